"""The client's side: what it tells of its columns. Counts, sums, sketches and levels; never a row.

Nothing is told of fewer than `least` rows: not of a column with fewer values, nor of a level with
fewer rows. There are two exchanges: the first says where the middle of a column is (and how often
each level occurs), the second how far the values are from it.
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
_MOST_SENT = 1000  # levels of a column


@dataclass(frozen=True)
class Plan:
    """What all clients agree on before they look at their columns.

    `scaling` is "robust" (median and MAD), "standard" (mean and standard deviation) or "none".
    `kinds` says of a column that it is "numeric", "category" or to "ignore", where its type does
    not. A column never has more than `most_levels` levels: the most frequent. `flags` adds a column
    that says where a number was missing. Cells that are one of `missing` are so everywhere. With
    `floors`, not squares but distances are summed, with noise, and no column spreads less than its
    floor.
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
        if self.least < 1 or not 1 <= self.most_levels <= _MOST_SENT:
            raise ValueError(f"least: at least 1; most_levels: from 1 to {_MOST_SENT}")


class Column(NamedTuple):
    """What a client tells of one column; `kind` as it reads it, or why it does not use it."""

    kind: str
    rows: int = 0  # values that are there
    missing: int = 0
    total: tuple[float, ...] = ()  # their exact sum (standard scaling)
    values: Sketch = Sketch(0, ())  # their sketch (robust scaling)
    levels: Mapping[str, int] = {}  # rows by level; never changed
    numbering: bool = False  # whether it only numbers the rows


class Deviation(NamedTuple):
    """How far a column's values are from its centre: their squares' sum, or a sketch."""

    rows: int = 0
    squares: tuple[float, ...] = ()
    distances: Sketch = Sketch(0, ())


def summarise(table: Any, plan: Plan) -> dict[str, Column]:
    """The first exchange: every column of a client's table.

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
    """What is told of one column."""
    return read_column(column, name, plan)[0]


def read_column(column: Any, name: str, plan: Plan) -> tuple[Column, Array]:
    """What is told of one column, and its numbers in order: what the second exchange is about."""
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
    told = Column(kind, len(present), missing)
    if name not in plan.kinds and kind == "numeric":
        if columns.at_most_two(present):  # perhaps a yes and a no: the server sees what others have
            told = told._replace(levels=_levels(columns.levels(column, name), "", plan).levels)
        told = told._replace(numbering=columns.is_identifier(values, name))
    if plan.scaling == "standard":
        return told._replace(total=sums.exact(present)), present
    ordered = np.sort(present)
    return told._replace(values=sketch.of(ordered, plan.least)), ordered


def deviations(table: Any, transform: Transform, plan: Plan) -> dict[str, Deviation]:
    """The second exchange: how far the numeric columns' values are from their centres."""
    given = columns.table_of(table)
    return {p.name: deviation(given.column(p.name), p, plan) for p in transform.numeric}


def deviation(column: Any, part: Numeric, plan: Plan) -> Deviation:
    """How far one column's values are from its centre."""
    return deviation_of(columns.present(columns.numbers(column, part.name)), part, plan)


def deviation_of(present: Array, part: Numeric, plan: Plan) -> Deviation:
    """How far numbers are from their column's centre."""
    if len(present) < plan.least:
        return Deviation()
    if plan.scaling == "standard":
        return Deviation(len(present), squares=sums.exact((present - part.center) ** 2))
    return Deviation(len(present), distances=sketch.of_distances(present, part.center, plan.least))


def _levels(found: columns.Levels, kind: str, plan: Plan) -> Column:
    counts = np.bincount(found.codes + 1, minlength=len(found.names) + 1).tolist()
    held = {n: c for n, c in zip(found.names, counts[1:], strict=True) if c >= plan.least}
    frequent = sorted(held, key=lambda name: (-held[name], name))[:_MOST_SENT]
    sent = {name: held[name] for name in frequent}
    return Column(kind, len(found.codes) - counts[0], _enough(counts[0], plan), levels=sent)


def _enough(count: int, plan: Plan) -> int:
    return count if count >= plan.least else 0
