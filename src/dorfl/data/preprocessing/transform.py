"""Fitted transformation from the columns of a table to the features of a model.

It contains no row, is the same at every client, and is saved as JSON without loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dorfl.data.preprocessing import cells, columns
from dorfl.support import wire
from dorfl.support.threads import share
from dorfl.support.types import Array

MISSING = "(missing)"
_BATCH = 8  # columns transposed at once; one at a time takes ten times as long


class Numeric(NamedTuple):
    """Numeric column: x ↦ (x − center) / spread."""

    name: str  # the column
    center: float  # location
    spread: float  # scale
    fill: float  # imputation value
    flagged: bool = False  # whether one more feature marks missing values
    missing: float = 0.0  # share of missing values in the training rows
    date: bool = False  # whether x is a date, in days since 1970

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of its features."""
        return (self.name, f"{self.name}={MISSING}") if self.flagged else (self.name,)

    @property
    def fixed(self) -> tuple[bool, ...]:
        """Return which features are frozen: the flag."""
        return (False, True)[: 1 + self.flagged]

    def write(self, column: Any, out: Array) -> None:
        """Write the scaled column to `out` (features, rows)."""
        values = columns.numbers(column, self.name)
        scaled = values - self.center
        scaled /= self.spread
        out[0], out[1:] = scaled, 0.0
        if np.isnan(scaled.sum()):
            missing = np.isnan(scaled)
            out[0, missing] = (self.fill - self.center) / self.spread
            out[1:] = missing  # out[1:] is empty if the column is not flagged

    def strange(self, column: Any) -> tuple[int, int]:
        """Return the numbers of missing values and of unknown levels (none)."""
        return int(np.isnan(columns.numbers(column, self.name)).sum()), 0


class Category(NamedTuple):
    """One-hot encoded column; an unknown level is 0 in all features."""

    name: str
    levels: tuple[str, ...]
    missing: float = 0.0

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of its features."""
        return tuple(f"{self.name}={level}" for level in self.levels)

    @property
    def fixed(self) -> tuple[bool, ...]:
        """Return which features are frozen: all."""
        return (True,) * len(self.levels)

    def write(self, column: Any, out: Array) -> None:
        """Write the encoded column to `out` (features, rows)."""
        found = columns.levels(column, self.name)
        place = {level: k for k, level in enumerate(self.levels)}
        lookup = np.array([place.get(name, -1) for name in [*found.names, MISSING]])
        hot = lookup[found.codes]
        out[:] = 0.0
        known = np.flatnonzero(hot >= 0)
        out[hot[known], known] = 1.0

    def strange(self, column: Any) -> tuple[int, int]:
        """Return the numbers of missing values and of unknown levels."""
        found = columns.levels(column, self.name)
        counts = np.bincount(found.codes + 1, minlength=len(found.names) + 1).tolist()
        unseen = [c for n, c in zip(found.names, counts[1:], strict=True) if n not in self.levels]
        return counts[0], sum(unseen)


Part: TypeAlias = Numeric | Category


class Features(NamedTuple):
    """Features of rows: X (n, d), their names, and the columns that are frozen."""

    X: Array
    names: tuple[str, ...]
    frozen: tuple[int, ...]


@dataclass(frozen=True)
class Transform:
    """Transformation of a table."""

    parts: tuple[Part, ...]  # the columns used, in order
    ignored: Mapping[str, str]  # for each other column, the reason why it is not used
    scaling: str = "robust"  # as in :class:`~dorfl.data.preprocessing.ColumnPlan`
    missing: tuple[str, ...] = ()  # cells that mean a missing value

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns of X: a numeric column's name, or name=level."""
        return tuple(name for part in self.parts for name in part.features)

    @cached_property
    def frozen(self) -> tuple[int, ...]:
        """Return the columns of X that transport must not move: levels and flags."""
        fixed = [flag for part in self.parts for flag in part.fixed]
        return tuple(k for k, flag in enumerate(fixed) if flag)

    @property
    def numeric(self) -> tuple[Numeric, ...]:
        """Return the numeric parts."""
        return tuple(part for part in self.parts if isinstance(part, Numeric))

    @property
    def sources(self) -> tuple[str, ...]:
        """Return for each column of X the column of the table that it comes from."""
        return tuple(part.name for part in self.parts for _ in part.features)

    def apply(self, table: Any, dtype: Any = np.float64) -> Features:
        """Return the features of a table that has at least the columns used.

        >>> rows = {"age": [31.0, 45.0, None], "sex": ["f", "m", "x"]}
        >>> age, sex = Numeric("age", 40.0, 10.0, fill=38.0), Category("sex", ("f", "m"))
        >>> Transform((age, sex), {}).apply(rows).X
        array([[-0.9,  1. ,  0. ],
               [ 0.5,  0. ,  1. ],
               [-0.2,  0. ,  0. ]])
        """
        given = columns.table_of(table)
        known = frozenset(given.column_names)
        absent = [part.name for part in self.parts if part.name not in known]
        if absent:
            raise ValueError(f"the table has no column {absent[0]!r}, which the model uses")
        X = np.empty((given.num_rows, len(self.names)), dtype=dtype)
        stops = np.cumsum([0, *(len(part.features) for part in self.parts)]).tolist()
        groups = [range(len(self.parts))[k : k + _BATCH] for k in range(0, len(self.parts), _BATCH)]
        widest = max((stops[group.stop] - stops[group.start] for group in groups), default=0)
        block = np.empty((widest, len(X)), dtype=dtype)

        for group in groups:
            first, stop = stops[group.start], stops[group.stop]

            def write(some: slice, group: range = group, first: int = first) -> None:
                for k in group[some]:
                    part = self.parts[k]
                    column = cells.without(given.column(part.name), self.missing)
                    part.write(column, block[stops[k] - first : stops[k + 1] - first])

            share(write, len(group), block.size)
            X[:, first:stop] = block[: stop - first].T
        return Features(X, self.names, self.frozen)

    def strange(self, table: Any) -> dict[str, tuple[int, int]]:
        """Return for each column the numbers of missing values and of unknown levels.

        >>> Transform((Category("sex", ("f", "m")),), {}).strange({"sex": ["f", "x", None, "m"]})
        {'sex': (1, 1)}
        """
        given = columns.table_of(table)
        return {
            part.name: part.strange(cells.without(given.column(part.name), self.missing))
            for part in self.parts
        }

    def to_json(self) -> dict[str, Any]:
        """Return JSON types; floats are preserved bit for bit."""
        plain: dict[str, Any] = json.loads(wire.encode(self))
        return plain

    @classmethod
    def from_json(cls, written: Any) -> Transform:
        """Read the result of :meth:`to_json` from an untrusted file; every field is checked."""
        found: Transform = wire.read(written, cls, "transform", finite=True)
        if len({part.name for part in found.parts}) < len(found.parts):
            raise ValueError("transform: a column is listed twice")
        for part in found.parts:
            if not 0 <= part.missing <= 1 or (isinstance(part, Numeric) and part.spread <= 0):
                raise ValueError("transform: a column is damaged")
        return found
