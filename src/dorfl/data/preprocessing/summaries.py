"""Fit a transformation of columns from summaries of clients, in two exchanges.

The first exchange is for the centre of a column and the frequency of its levels, the second for the
distances from the centre. Clients report counts, sums, sketches and levels, never a row. No
statistic is of fewer than `least` rows: columns with fewer values and levels with fewer rows are
left out.

The server makes one transformation of them. Sums are exact and levels are counted, so both equal
those of the pooled table. Medians differ by at most :func:`dorfl.data.sketch.rank_error`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dorfl.data import sketch
from dorfl.data.preprocessing import columns, sums
from dorfl.data.preprocessing.transform import MISSING, Category, Numeric, Part, Transform
from dorfl.data.sketch import Sketch
from dorfl.support.threads import each
from dorfl.support.types import Array

_SCALINGS = ("robust", "standard", "none")
KINDS = ("numeric", "category", "ignore")
_MAX_LEVELS = 1000  # levels of a column that a client reports
_MAD = 1.4826022185056018  # 1 / Φ⁻¹(3/4): makes the MAD of normal rows their standard deviation
_MEAN = 1.2533141373155001  # √(π/2): the same for the mean distance
_P80 = 1.2815515655446004  # Φ⁻¹(9/10): the 80 % quantile of |x| for normal rows
_RARE = 4.0  # scales beyond which the values of a nearly constant column set its scale


@dataclass(frozen=True)
class ColumnPlan:
    """Plan of preprocessing, the same for all clients."""

    # "robust" (median and MAD), "standard" (mean and standard deviation) or "none"
    scaling: str = "robust"
    # "numeric", "category" or "ignore" for columns whose type does not decide it
    kinds: Mapping[str, str] = field(default_factory=dict)
    least: int = 5  # least number of rows in a statistic
    most_levels: int = 100  # most levels of a column; the most frequent are kept
    flags: bool = True  # whether a column of X marks missing numbers
    missing: tuple[str, ...] = ()  # cells that mean a missing value
    # least scale of columns; distances are then summed, with noise, in place of squares
    floors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scaling not in _SCALINGS:
            raise ValueError(f"scaling={self.scaling!r}: choose one of {', '.join(_SCALINGS)}")
        for name, kind in self.kinds.items():
            if kind not in KINDS:
                raise ValueError(f"column {name!r}: {kind!r} is none of {', '.join(KINDS)}")
        if self.least < 1 or not 1 <= self.most_levels <= _MAX_LEVELS:
            raise ValueError(f"least: at least 1; most_levels: from 1 to {_MAX_LEVELS}")


class Column(NamedTuple):
    """Summary of one column at a client."""

    kind: str  # "numeric", "date" or "category"; "empty" or "other" if it is not used
    rows: int = 0  # number of values
    missing: int = 0  # number of missing values
    total: tuple[float, ...] = ()  # exact sum of the values, for standard scaling
    values: Sketch = Sketch(0, ())  # sketch of the values, for robust scaling
    levels: Mapping[str, int] = {}  # never changed in place
    numbering: bool = False  # whether the column only numbers the rows


class Deviation(NamedTuple):
    """Distances of a column from its centre: number of rows, and sum of squares or a sketch."""

    rows: int = 0
    squares: tuple[float, ...] = ()
    distances: Sketch = Sketch(0, ())


def summarise(table: Any, plan: ColumnPlan) -> dict[str, Column]:
    """Summarise every column of a client's table, for the first exchange.

    >>> ages = {"age": [30, 30, 31, 39, 40, 44, 50, 51, 52, 53], "site": ["a"] * 10}
    >>> summarise(ages, ColumnPlan())["age"].values.means
    (34.0, 50.0)
    """
    given = columns.table_of(table)
    return {
        name: summarise_column(given.column(name), name, plan)
        for name in given.column_names
        if plan.kinds.get(name) != "ignore"
    }


def summarise_column(column: Any, name: str, plan: ColumnPlan) -> Column:
    """Summarise one column."""
    return read_column(column, name, plan)[0]


def read_column(column: Any, name: str, plan: ColumnPlan) -> tuple[Column, Array]:
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


def deviations(table: Any, transform: Transform, plan: ColumnPlan) -> dict[str, Deviation]:
    """Compute the distances of numeric columns from their centres, for the second exchange."""
    given = columns.table_of(table)
    return {p.name: deviation(given.column(p.name), p, plan) for p in transform.numeric}


def deviation(column: Any, part: Numeric, plan: ColumnPlan) -> Deviation:
    """Return the distances of one column from its centre."""
    return _deviation_of(columns.present(columns.numbers(column, part.name)), part, plan)


def _deviation_of(present: Array, part: Numeric, plan: ColumnPlan) -> Deviation:
    """Return the distances of numbers from the centre of their column."""
    if len(present) < plan.least:
        return Deviation()
    if plan.scaling == "standard":
        return Deviation(len(present), squares=sums.exact((present - part.center) ** 2))
    return Deviation(len(present), distances=sketch.of_distances(present, part.center, plan.least))


def _levels(found: columns.Levels, kind: str, plan: ColumnPlan) -> Column:
    counts = np.bincount(found.codes + 1, minlength=len(found.names) + 1).tolist()
    held = {n: c for n, c in zip(found.names, counts[1:], strict=True) if c >= plan.least}
    frequent = sorted(held, key=lambda name: (-held[name], name))[:_MAX_LEVELS]
    sent = {name: held[name] for name in frequent}
    return Column(kind, len(found.codes) - counts[0], _enough(counts[0], plan), levels=sent)


def _enough(count: int, plan: ColumnPlan) -> int:
    return count if count >= plan.least else 0


def agree(summaries: Mapping[str, Mapping[str, Column]], plan: ColumnPlan) -> Transform:
    """Return the transformation after the first exchange, with scales of 1."""
    if not summaries:
        raise ValueError("preprocessing: there are no clients")
    names = _check_columns({client: list(own) for client, own in summaries.items()}, plan)
    found = {
        name: agree_on(name, {c: own[name] for c, own in summaries.items()}, plan) for name in names
    }
    return _assemble(found, plan)


def _check_columns(listed: Mapping[str, list[str]], plan: ColumnPlan) -> list[str]:
    """Return the columns used; raise a ValueError if a client lacks one of them."""
    used = {
        client: [name for name in names if plan.kinds.get(name) != "ignore"]
        for client, names in listed.items()
    }
    first = next(iter(used))
    for client, names in used.items():
        strange = sorted(set(names) ^ set(used[first]))
        if strange:
            having, lacking = (client, first) if strange[0] in names else (first, client)
            raise ValueError(
                f"column {strange[0]!r}: client {having!r} has it, client {lacking!r} does not; "
                "add it there or ignore it everywhere"
            )
    return used[first]


def _assemble(found: Mapping[str, Part | str], plan: ColumnPlan) -> Transform:
    """Return the transformation of the columns used, with reasons for the others."""
    ignored = {name: "as the study says" for name, kind in plan.kinds.items() if kind == "ignore"}
    ignored |= {name: why for name, why in found.items() if isinstance(why, str)}
    parts = tuple(part for part in found.values() if not isinstance(part, str))
    return Transform(parts, ignored, plan.scaling, plan.missing)


def scale(
    transform: Transform, reports: Mapping[str, Mapping[str, Deviation]], plan: ColumnPlan
) -> Transform:
    """Return the transformation after the second exchange, with its scales."""
    parts = [
        part._replace(spread=_spread_of([d[part.name] for d in reports.values()], plan, part.name))
        if isinstance(part, Numeric)
        else part
        for part in transform.parts
    ]
    return replace(transform, parts=tuple(parts))


def agree_on(name: str, summaries: Mapping[str, Column], plan: ColumnPlan) -> Part | str:
    """Return the part of the transformation for a column, or the reason why it is not used.

    A ValueError says that clients read the column differently.
    """
    kinds = {column.kind: client for client, column in summaries.items() if column.kind != "empty"}
    if not kinds:
        return f"no client has {plan.least} values of it"
    if len(kinds) > 1:
        (one, here), (two, there) = list(kinds.items())[:2]
        raise ValueError(
            f"column {name!r} is {one} at client {here!r} and {two} at client {there!r}; correct "
            "the values that are no numbers, or declare it a category or ignored"
        )
    used = [column for column in summaries.values() if column.kind != "empty"]
    if "other" in kinds:
        return "neither numbers nor categories"
    missing = _missing(summaries)
    if "category" in kinds:
        return _category(name, used, missing, plan)
    if all(column.numbering for column in used):
        return "it only numbers the rows"
    values = {level for column in used for level in column.levels}
    if "date" not in kinds and len(values) <= 2 and all(column.levels for column in used):
        return _category(name, used, missing, plan)
    center = _center(used, plan)
    flagged, middle = plan.flags and missing > 0, 0.0 if plan.scaling == "none" else center
    return Numeric(name, middle, 1.0, center, flagged, missing, "date" in kinds)


def _missing(summaries: Mapping[str, Column]) -> float:
    """Return the share of rows with a missing value, as far as clients report it."""
    missing = sum(column.missing for column in summaries.values())
    return missing / max(missing + sum(column.rows for column in summaries.values()), 1)


def _category(name: str, used: list[Column], missing: float, plan: ColumnPlan) -> Category | str:
    rows: Counter[str] = Counter()
    for column in used:
        rows.update(column.levels)
    frequent = sorted(rows, key=lambda level: (-rows[level], level))[: plan.most_levels]
    if not frequent:
        return f"none of its values is held by {plan.least} rows of a client"
    if missing:
        frequent.append(MISSING)
    if len(frequent) == 1 and sum(rows.values()) < sum(column.rows for column in used):
        return f"all but one of its values are held by fewer than {plan.least} rows of a client"
    if len(frequent) == 1:
        return "it has one value only"
    return Category(name, tuple(columns.in_order(frequent)), missing)


def _center(used: list[Column], plan: ColumnPlan) -> float:
    if plan.scaling == "standard":
        return sums.combine(c.total for c in used) / sum(c.rows for c in used)
    return sketch.quantile([c.values for c in used], 0.5)


def _spread_of(reports: list[Deviation], plan: ColumnPlan, name: str = "") -> float:
    """Return the scale of a column; 1 for a constant column.

    The robust scale is the larger of the MAD and the scaled 80 % quantile of the distances: the
    MAD is too small if nearly half of the rows agree, and a tenth of outliers hardly moves the 80 %
    quantile. If a column is nearly constant, the nearest quarter of the rows that differ sets it.
    """
    if plan.scaling == "standard":
        count = sum(d.rows for d in reports)
        if name in plan.floors:
            mean = sums.combine(d.squares for d in reports) / count
            return max(_MEAN * mean, plan.floors[name])
        spread = float(np.sqrt(sums.combine(d.squares for d in reports) / count))
        return spread or 1.0
    distances = [d.distances for d in reports]
    spread = max(_MAD * sketch.quantile(distances, 0.5), sketch.quantile(distances, 0.8) / _P80)
    differing = sketch.quantile(distances, 0.25, above=0.0)
    if differing > _RARE * spread:
        spread = differing
    return spread if np.isfinite(spread) and spread > 0 else 1.0


def fit(
    tables: Mapping[str, Any],
    plan: ColumnPlan | None = None,
    inspect: Callable[[str], object] | None = None,
) -> Transform:
    """Fit a transformation to tables of clients in this process.

    `inspect` is called with the name of every column while it is in memory. A ValueError says that
    clients have different columns, or read one differently.
    """
    plan = plan or ColumnPlan()
    given = {name: columns.table_of(table) for name, table in sorted(tables.items())}
    if not given:
        raise ValueError("preprocessing: there are no clients")
    names = _check_columns({name: table.column_names for name, table in given.items()}, plan)

    def column(name: str) -> Part | str:
        """Run both exchanges for one column, which is read once."""
        read = {c: read_column(table.column(name), name, plan) for c, table in given.items()}
        if inspect is not None:
            inspect(name)
        part = agree_on(name, {client: summary for client, (summary, _) in read.items()}, plan)
        if isinstance(part, Numeric) and plan.scaling != "none":
            far = [_deviation_of(numbers, part, plan) for _, numbers in read.values()]
            return part._replace(spread=_spread_of(far, plan))
        return part

    return _assemble(dict(zip(names, each(column, names), strict=True)), plan)
