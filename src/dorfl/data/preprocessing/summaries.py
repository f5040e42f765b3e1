"""Client side of preprocessing: counts, sums, sketches and levels of columns; never a row.

No statistic is of fewer than `least` rows: columns with fewer values and levels with fewer rows are
left out. The first exchange is for the centre of a column and the frequency of its levels, the
second for the distances from the centre.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dorfl.data import sketch
from dorfl.data.preprocessing import columns, sums
from dorfl.data.preprocessing.transform import Numeric, Transform
from dorfl.data.sketch import Sketch
from dorfl.support.types import Array

SCALINGS = ("robust", "standard", "none")
KINDS = ("numeric", "category", "ignore")
_MAX_LEVELS = 1000  # levels of a column that a client reports


@dataclass(frozen=True)
class Plan:
    """Plan of preprocessing, the same for all clients.

    Attributes
    ----------
    scaling : str
        "robust" (median and MAD), "standard" (mean and standard deviation) or "none".
    kinds : mapping
        "numeric", "category" or "ignore" for columns whose type does not decide it.
    least : int
        Least number of rows in a statistic.
    most_levels : int
        Most levels of a column; the most frequent are kept.
    flags : bool
        Whether a column of X marks missing numbers.
    missing : tuple of str
        Cells that mean a missing value.
    floors : mapping
        Least scale of columns; distances are then summed, with noise, in place of squares.
    """

    scaling: str = "robust"
    kinds: Mapping[str, str] = field(default_factory=dict)
    least: int = 5
    most_levels: int = 100
    flags: bool = True
    missing: tuple[str, ...] = ()
    floors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise ValueError(f"scaling={self.scaling!r}: choose one of {', '.join(SCALINGS)}")
        for name, kind in self.kinds.items():
            if kind not in KINDS:
                raise ValueError(f"column {name!r}: {kind!r} is none of {', '.join(KINDS)}")
        if self.least < 1 or not 1 <= self.most_levels <= _MAX_LEVELS:
            raise ValueError(f"least: at least 1; most_levels: from 1 to {_MAX_LEVELS}")


class Column(NamedTuple):
    """Summary of one column at a client.

    Attributes
    ----------
    kind : str
        "numeric", "date" or "category"; "empty" or "other" if it is not used.
    rows, missing : int
        Number of values, and of missing values.
    total : tuple of float
        Exact sum of the values, for standard scaling.
    values : Sketch
        Sketch of the values, for robust scaling.
    levels : mapping
        Rows by level.
    numbering : bool
        Whether the column only numbers the rows.
    """

    kind: str
    rows: int = 0
    missing: int = 0
    total: tuple[float, ...] = ()
    values: Sketch = Sketch(0, ())
    levels: Mapping[str, int] = {}  # never changed in place
    numbering: bool = False


class Deviation(NamedTuple):
    """Distances of a column from its centre: number of rows, and sum of squares or a sketch."""

    rows: int = 0
    squares: tuple[float, ...] = ()
    distances: Sketch = Sketch(0, ())


def summarise(table: Any, plan: Plan) -> dict[str, Column]:
    """Summarise every column of a client's table, for the first exchange.

    >>> ages = {"age": [30, 30, 31, 39, 40, 44, 50, 51, 52, 53], "site": ["a"] * 10}
    >>> summarise(ages, Plan())["age"].values.means
    (34.0, 50.0)
    """
    given = columns.table_of(table)
    return {
        name: summarise_column(given.column(name), name, plan)
        for name in given.column_names
        if plan.kinds.get(name) != "ignore"
    }


def summarise_column(column: Any, name: str, plan: Plan) -> Column:
    """Summarise one column."""
    return read_column(column, name, plan)[0]


def read_column(column: Any, name: str, plan: Plan) -> tuple[Column, Array]:
    """Return the summary of a column, and its sorted numbers for the second exchange."""
    none = np.empty(0)
    seen = columns.kind_of(column)
    kind = seen if seen == "empty" else plan.kinds.get(name, seen)
    if kind == "numeric" and seen == "date":
        kind = seen
    if kind in ("empty", "other"):
        return Column(kind, missing=len(column) if kind == "empty" else 0), none
    if kind == "category":
        return _levels(columns.levels(column, name), "category", plan), none
    values = columns.numbers(column, name)
    present = columns.present(values)
    missing = _enough(len(values) - len(present), plan)
    if len(present) < plan.least:
        return Column("empty", missing=len(values)), none
    summary = Column(kind, len(present), missing)
    if name not in plan.kinds and kind == "numeric":
        if columns.at_most_two(present):  # may be categories: the server compares clients
            summary = summary._replace(
                levels=_levels(columns.levels(column, name), "", plan).levels
            )
        summary = summary._replace(numbering=columns.is_identifier(values, name))
    if plan.scaling == "standard":
        return summary._replace(total=sums.exact(present)), present
    ordered = np.sort(present)
    return summary._replace(values=sketch.of(ordered, plan.least)), ordered


def deviations(table: Any, transform: Transform, plan: Plan) -> dict[str, Deviation]:
    """Return the distances of numeric columns from their centres, for the second exchange."""
    given = columns.table_of(table)
    return {p.name: deviation(given.column(p.name), p, plan) for p in transform.numeric}


def deviation(column: Any, part: Numeric, plan: Plan) -> Deviation:
    """Return the distances of one column from its centre."""
    return deviation_of(columns.present(columns.numbers(column, part.name)), part, plan)


def deviation_of(present: Array, part: Numeric, plan: Plan) -> Deviation:
    """Return the distances of numbers from the centre of their column."""
    if len(present) < plan.least:
        return Deviation()
    if plan.scaling == "standard":
        return Deviation(len(present), squares=sums.exact((present - part.center) ** 2))
    return Deviation(len(present), distances=sketch.of_distances(present, part.center, plan.least))


def _levels(found: columns.Levels, kind: str, plan: Plan) -> Column:
    counts = np.bincount(found.codes + 1, minlength=len(found.names) + 1).tolist()
    held = {n: c for n, c in zip(found.names, counts[1:], strict=True) if c >= plan.least}
    frequent = sorted(held, key=lambda name: (-held[name], name))[:_MAX_LEVELS]
    sent = {name: held[name] for name in frequent}
    return Column(kind, len(found.codes) - counts[0], _enough(counts[0], plan), levels=sent)


def _enough(count: int, plan: Plan) -> int:
    return count if count >= plan.least else 0
