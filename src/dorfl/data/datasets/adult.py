"""UCI Adult: does a person earn more than $50K a year? Clients are groups by race.

The files are the verbatim ones of Becker and Kohavi (1996), kept compressed beside this module
(see NOTICE). The paper suspects rows with a capital gain above $20,000 and at most $50K of income.

>>> data = adult()
>>> {name: len(y) for name, (X, y) in data.clients.items()}
{'White': 27816, 'Black': 3124, 'Other': 1621}
>>> data.clients["White"][0].shape[1], int(sum(bad.sum() for bad in data.outliers.values()))
(108, 8)
"""

from __future__ import annotations

import io
import lzma
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from dorfl.data.datasets.base import Dataset, seventy_percent
from dorfl.support.types import Array

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
SUSPECT_GAIN = 20_000


def adult(split: str = "official", *, features: str = "all", seed: int = 0) -> Dataset:
    """Return Adult with the clients White, Black and Other.

    Numbers are standardised by the training rows. Labels are +1 for more than $50K, −1 for less.

    Parameters
    ----------
    split
        "official" (32,561 training rows, 16,281 test rows) or "paper" (random 70 % of all rows to
        train, the others to test).
    features
        "all" (six numbers and one-hot categories: 108 columns) or "numeric" (the six numbers).
    seed
        Of the random split.
    """
    if split not in ("official", "paper"):
        raise ValueError(f'adult(split={split!r}): choose "official" or "paper"')
    if features not in ("all", "numeric"):
        raise ValueError(f'adult(features={features!r}): choose "all" or "numeric"')
    table = adult_table()
    training = table["part"].to_numpy() == "train"
    if split == "paper":
        training = seventy_percent(len(table), seed)
    units = {name: _unit(table[name].to_numpy()[training]) for name in NUMERIC}
    rows, names = _encode(table, units, features == "all")
    label = np.where(table["income"].to_numpy() == ">50K", 1, -1)
    suspect = (table["capital-gain"].to_numpy() > SUSPECT_GAIN) & (label == -1)
    race = table["race"].to_numpy()
    group = np.where(np.isin(race, ("White", "Black")), race, "Other")
    clients, test, outliers = {}, {}, {}
    for name in ("White", "Black", "Other"):
        ours, others = training & (group == name), ~training & (group == name)
        clients[name], test[name] = (rows[ours], label[ours]), (rows[others], label[others])
        outliers[name] = suspect[ours]
    frozen = tuple(range(len(NUMERIC), len(names)))
    return Dataset(clients, test, outliers, names, frozen=frozen, units=units)


@cache
def adult_table() -> pd.DataFrame:
    """Return all 48,842 rows, with a column `part` that is "train" or "test".

    Values are those of the files, "?" included; the full stop after test labels is left out.
    """
    import pandas as pd  # noqa: PLC0415 - half a second that `import dorfl` can do without

    parts = []
    for file, part in (("adult.data", "train"), ("adult.test", "test")):
        packed = resources.files("dorfl.data.datasets").joinpath("data", f"{file}.xz").read_bytes()
        lines = io.StringIO(lzma.decompress(packed).decode("ascii"))
        if part == "test":
            lines.readline()  # "|1x3 Cross validator"
        frame = pd.read_csv(lines, header=None, names=list(COLUMNS), skipinitialspace=True)
        parts.append(frame.assign(income=frame["income"].str.rstrip("."), part=part))
    return pd.concat(parts, ignore_index=True)


def _encode(
    table: pd.DataFrame, units: dict[str, tuple[float, float]], categories: bool
) -> tuple[Array, tuple[str, ...]]:
    """Return the scaled numbers, then a 0/1 column for every value of every category."""
    columns = [(table[name].to_numpy() - zero) / unit for name, (zero, unit) in units.items()]
    names = list(units)
    for name in COLUMNS[:-1] if categories else ():
        if name not in units:
            values = table[name].to_numpy()
            for value in np.unique(values):
                columns.append(values == value)
                names.append(f"{name}={value}")
    return np.stack(columns, axis=1).astype(np.float32), tuple(names)


def _unit(values: Array) -> tuple[float, float]:
    return float(values.mean()), float(values.std())
