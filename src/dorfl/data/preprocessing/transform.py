"""A fitted transformation: from the columns of a table to the numbers a model sees.

It holds no row, is the same at every client, and is written down as plain JSON, from which it comes
back exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dorfl.data.preprocessing import cells, columns
from dorfl.support import wire
from dorfl.support.threads import share
from dorfl.support.types import Array

FORMAT, VERSION = "dorfl.transform", 1
MISSING = "(missing)"
_TOGETHER = 8  # columns turned into rows at once: one at a time takes ten times as long


class Numeric(NamedTuple):
    """x ↦ (x − center)/spread, with `fill` for a missing value; `flagged`: a column says which.

    `missing` is the share of values that were missing when it was fitted; of a `date`, x is days
    since 1970.
    """

    name: str
    center: float
    spread: float
    fill: float
    flagged: bool = False
    missing: float = 0.0
    date: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """The columns it makes."""
        return (self.name, f"{self.name}={MISSING}") if self.flagged else (self.name,)

    @property
    def fixed(self) -> tuple[bool, ...]:
        """Which of them cannot move by a little."""
        return (False, True)[: 1 + self.flagged]

    def write(self, column: Any, out: Array) -> None:
        """The scaled column into `out` (features, rows)."""
        values = columns.numbers(column, self.name)
        scaled = values - self.center
        scaled /= self.spread
        out[0], out[1:] = scaled, 0.0
        if np.isnan(scaled.sum()):
            missing = np.isnan(scaled)
            out[0, missing] = (self.fill - self.center) / self.spread
            out[1:] = missing  # there is such a row only where it is flagged

    def strange(self, column: Any) -> tuple[int, int]:
        """How many values are missing, and how many of a level that is not known: none."""
        return int(np.isnan(columns.numbers(column, self.name)).sum()), 0


class Category(NamedTuple):
    """One column of 0 and 1 per level; a value that is none of them is 0 in all."""

    name: str
    levels: tuple[str, ...]
    missing: float = 0.0

    @property
    def features(self) -> tuple[str, ...]:
        """The columns it makes."""
        return tuple(f"{self.name}={level}" for level in self.levels)

    @property
    def fixed(self) -> tuple[bool, ...]:
        """Which of them cannot move by a little: none can."""
        return (True,) * len(self.levels)

    def write(self, column: Any, out: Array) -> None:
        """The encoded column into `out` (features, rows)."""
        found = columns.levels(column, self.name)
        place = {level: k for k, level in enumerate(self.levels)}
        lookup = np.array([place.get(name, -1) for name in [*found.names, MISSING]])
        hot = lookup[found.codes]
        out[:] = 0.0
        known = np.flatnonzero(hot >= 0)
        out[hot[known], known] = 1.0

    def strange(self, column: Any) -> tuple[int, int]:
        """How many values are missing, and how many are a level that is not known."""
        found = columns.levels(column, self.name)
        counts = np.bincount(found.codes + 1, minlength=len(found.names) + 1).tolist()
        unseen = [c for n, c in zip(found.names, counts[1:], strict=True) if n not in self.levels]
        return counts[0], sum(unseen)


Part: TypeAlias = Numeric | Category


class Features(NamedTuple):
    """What a model sees: the numbers, the columns' names, and which columns cannot move."""

    X: Array
    names: tuple[str, ...]
    frozen: tuple[int, ...]


@dataclass(frozen=True)
class Transform:
    """The parts of the table that are used, in order, and why the others are not.

    Cells that are one of `missing` count as empty.
    """

    parts: tuple[Part, ...]
    ignored: Mapping[str, str]
    scaling: str = "robust"
    missing: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns of X: a numeric column's name, or name=level."""
        return tuple(name for part in self.parts for name in part.features)

    @cached_property
    def frozen(self) -> tuple[int, ...]:
        """The columns of X that transport must not move: levels of categories, and flags."""
        fixed = [flag for part in self.parts for flag in part.fixed]
        return tuple(k for k, flag in enumerate(fixed) if flag)

    @property
    def numeric(self) -> tuple[Numeric, ...]:
        """The numeric parts alone."""
        return tuple(part for part in self.parts if isinstance(part, Numeric))

    @property
    def sources(self) -> tuple[str, ...]:
        """The table's column that each column of X comes from."""
        return tuple(part.name for part in self.parts for _ in part.features)

    def apply(self, table: Any, dtype: Any = np.float64) -> Features:
        """The numbers a model sees, of a table with (at least) the columns that are used.

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
        groups = [
            range(len(self.parts))[k : k + _TOGETHER] for k in range(0, len(self.parts), _TOGETHER)
        ]
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
        """By column, how many values are missing and how many of a level that is not known.

        >>> Transform((Category("sex", ("f", "m")),), {}).strange({"sex": ["f", "x", None, "m"]})
        {'sex': (1, 1)}
        """
        given = columns.table_of(table)
        return {
            part.name: part.strange(cells.without(given.column(part.name), self.missing))
            for part in self.parts
        }

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; floats come back to the last bit."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "scaling": self.scaling,
            "missing": list(self.missing),
            "columns": [
                {"kind": "numeric" if isinstance(part, Numeric) else "category", **part._asdict()}
                for part in self.parts
            ],
            "ignored": dict(self.ignored),
        }

    @classmethod
    def from_json(cls, written: Any) -> Transform:
        """The transformation written down, every field checked: the file may come from anywhere."""
        if not isinstance(written, dict) or written.get("format") != FORMAT:
            raise ValueError("transform: this is not a transformation written by dorfl")
        if written.get("version") != VERSION:
            raise ValueError(
                f"transform: written in version {written.get('version')!r}, this dorfl reads "
                f"version {VERSION}; use the dorfl it was written with"
            )
        listed, ignored = written.get("columns"), written.get("ignored")
        # Before it was written down, a level called NA counted as missing too.
        missing = written.get("missing", list(cells.MARKS))
        if not (
            isinstance(listed, list) and isinstance(ignored, dict) and isinstance(missing, list)
        ):
            raise ValueError("transform: its list of columns is damaged")
        parts = tuple(_part(entry) for entry in listed)
        if len({part.name for part in parts}) < len(parts):
            raise ValueError("transform: a column is listed twice")
        reasons = {str(name): str(reason) for name, reason in ignored.items()}
        return cls(parts, reasons, str(written.get("scaling")), tuple(map(str, missing)))


def _part(entry: Any) -> Part:
    try:
        kind: Any = {"numeric": Numeric, "category": Category}[entry["kind"]]
        plain = {name: value for name, value in entry.items() if name != "kind"}
        part: Part = wire.read({**kind._field_defaults, **plain}, kind, "column", finite=True)
        if not 0 <= part.missing <= 1 or (isinstance(part, Numeric) and part.spread <= 0):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError("transform: a column is damaged") from None
    return part
