"""Do the defaults hold on real tables? Accuracy on clean rows, beside scikit-learn's.

For every table: `RobustClassifier()` as it comes, clients by a column of the table, against
`StandardScaler` and `LogisticRegression`, as they come too, on the same columns (numbers, and
categories one-hot). Once on the training rows as they are, once with the numbers of one row in ten
multiplied by −8 in the units of the table, and once in standard deviations. Tables marked * were
not looked at when the defaults were set. Random splits, seven rows in ten to train on, 20,000 of
them at most; Adult by its own split; cardio tested on plausible rows.

    python benchmarks/defaults.py [--splits 5] [--mixture agnostic] [table ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn import datasets as bundled
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import public_tables
from dorfl import RobustClassifier
from dorfl.data.datasets.adult import adult_table
from dorfl.data.datasets.cardio import cardio_table, plausible

FACTOR, SHARE, MOST = -8.0, 0.1, 20_000


class Table(NamedTuple):
    numbers: np.ndarray
    categories: np.ndarray  # one-hot
    labels: np.ndarray
    clients: np.ndarray
    train: np.ndarray | None = None  # a split of its own
    fine: np.ndarray | None = None  # rows fit to be tested on


def table(frame: pd.DataFrame, label: str, client: np.ndarray, drop: tuple[str, ...] = ()) -> Table:
    labels = pd.factorize(frame[label], sort=True)[0]
    columns = frame.drop(columns=[label, *drop])
    numeric = [c for c in columns.select_dtypes("number") if columns[c].nunique() > 2]
    rest = columns.drop(columns=numeric).astype(str)
    hot = (
        pd.get_dummies(rest, dtype=float).to_numpy()
        if len(rest.columns)
        else np.empty((len(rest), 0))
    )
    return Table(columns[numeric].to_numpy(float), hot, labels, np.asarray(client).astype(str))


def adult() -> Table:
    frame = adult_table()
    race = frame["race"].where(frame["race"].isin(["White", "Black"]), "Other")
    made = table(frame, "income", race.to_numpy(), drop=("part", "race"))
    return made._replace(train=(frame["part"] == "train").to_numpy())


def cardio() -> Table:
    frame = cardio_table()
    band = pd.cut(frame["age"], [0, 45, 50, 55, 60, 100]).astype(str).to_numpy()
    graded = {name: frame[name].astype(str) for name in ("cholesterol", "gluc", "gender")}
    made = table(frame.assign(**graded), "cardio", band, drop=("id", "male"))
    return made._replace(fine=plausible(frame))


def from_virny(name: str, label: str, client: str) -> Table:
    frame = public_tables.virny(name)
    return table(frame, label, frame[client].to_numpy())


def from_keel(name: str) -> Table:
    frame = public_tables.keel(name)
    return table(frame, "label", bands(frame["x0"]))


def from_sklearn(name: str) -> Table:
    found = getattr(bundled, f"load_{name}")(as_frame=True)
    return table(found.frame, "target", bands(found.frame.iloc[:, 0]))


def bands(column: pd.Series) -> np.ndarray:
    """Three clients of unequal size that differ: by the first column."""
    return pd.qcut(column.rank(method="first"), [0, 0.5, 0.8, 1], labels=False).to_numpy()


TABLES: dict[str, Callable[[], Table]] = {
    "adult": adult,
    "cardio": cardio,
    "bank": lambda: from_virny("bank-full", "y", "marital"),
    "german": lambda: from_virny("german_data_credit", "class-label", "sex"),
    "law": lambda: from_virny("law_school_clean", "pass_bar", "race"),
    "student": lambda: from_virny("student_por_new", "class", "school"),
    "breast": lambda: from_sklearn("breast_cancer"),
    "wine": lambda: from_sklearn("wine"),
    **{
        name: lambda name=name: from_keel(name)
        for name in ("magic", "phoneme", "spambase", "pima", "heart", "saheart")
    },
    "ricci": lambda: from_virny("ricci_race", "Promoted", "Race"),
    "compas": lambda: from_virny("COMPAS", "recidivism", "race"),
    "digits*": lambda: from_sklearn("digits"),
    **{
        f"{name}*": lambda name=name: from_keel(name)
        for name in ("australian", "crx", "satimage", "segment", "vehicle", "ring", "mammographic",
                     "marketing", "contraceptive", "wisconsin", "sonar")
    },
}  # fmt: skip


class Result(NamedTuple):
    accuracy: float
    by_client: dict[str, float]


def measure(name: str, splits: int, mixture: str | None) -> str:
    data = TABLES[name]()
    ours: dict[str, list[Result]] = {"clean": [], "raw": [], "scaled": []}
    theirs: dict[str, list[Result]] = {"clean": [], "raw": [], "scaled": []}
    for seed in range(splits):
        rng = np.random.default_rng(seed)
        train = rng.random(len(data.labels)) < 0.7 if data.train is None else data.train
        test = ~train if data.fine is None else ~train & data.fine
        rows = rng.permutation(np.flatnonzero(train))[:MOST]
        bad = rng.permutation(len(rows))[: round(SHARE * len(rows))]
        scaled = StandardScaler().fit(data.numbers[rows]).transform(data.numbers)
        for kind, numbers in (("clean", data.numbers), ("raw", data.numbers), ("scaled", scaled)):
            fitted = numbers[rows].copy()
            if kind != "clean":
                fitted[bad] *= FACTOR
            X = np.hstack([fitted, data.categories[rows]])
            held = np.hstack([numbers, data.categories])[test]
            robust = RobustClassifier(mixture=mixture)
            robust.fit(X, data.labels[rows], clients=data.clients[rows])
            plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000))
            plain.fit(X, data.labels[rows])
            for model, results in ((robust, ours), (plain, theirs)):
                hit = 100.0 * (model.predict(held) == data.labels[test])
                who = data.clients[test]
                by = {c: float(hit[who == c].mean()) for c in np.unique(who)}
                results[kind].append(Result(float(hit.mean()), by))
    return line(name, ours, theirs)


def line(name: str, ours: dict[str, list[Result]], theirs: dict[str, list[Result]]) -> str:
    def mean(results: list[Result]) -> float:
        return float(np.mean([result.accuracy for result in results]))

    reference = mean(theirs["clean"])
    served = [
        min(a.by_client[c] - b.by_client[c] for c in a.by_client)
        for a, b in zip(ours["clean"], theirs["clean"], strict=True)
    ]
    cells = [f"{name:13}", f"{reference:5.1f}", f"{mean(ours['clean']) - reference:+5.2f}"]
    cells.append(f"{np.mean(served):+5.2f}")
    for kind in ("raw", "scaled"):
        lost = reference - mean(theirs[kind])
        kept = 100.0 * (mean(ours[kind]) - mean(theirs[kind])) / lost if lost >= 0.3 else np.nan
        cells += [f"{mean(theirs[kind]):5.1f}", f"{mean(ours[kind]):5.1f}", f"{kept:4.0f} %"]
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", default=[], help="all of them if none is named")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--mixture", default=None)
    asked = parser.parse_args()
    print("table         |  LR   | ours  | worst | −8 LR |  ours |  kept  | σ LR  |  ours |  kept")
    for name in asked.tables or TABLES:
        print(measure(name, asked.splits, asked.mixture), flush=True)


if __name__ == "__main__":
    main()
