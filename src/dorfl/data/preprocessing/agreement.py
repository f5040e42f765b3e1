"""Server side of preprocessing: from the clients' summaries of columns to one transformation.

Sums are exact and levels are counted, so both equal those of the pooled table. Medians differ by at
most :func:`dorfl.data.sketch.rank_error`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dorfl.data import sketch
from dorfl.data.preprocessing import columns, sums
from dorfl.data.preprocessing.summaries import Column, Deviation, Plan
from dorfl.data.preprocessing.transform import MISSING, Category, Numeric, Part, Transform

_MAD = 1.4826022185056018  # 1 / Φ⁻¹(3/4): makes the MAD of normal rows their standard deviation
_MEAN = 1.2533141373155001  # √(π/2): the same for the mean distance
_P80 = 1.2815515655446004  # Φ⁻¹(9/10): the 80 % quantile of |x| for normal rows
_RARE = 4.0  # scales beyond which the values of a nearly constant column set its scale


def agree(summaries: Mapping[str, Mapping[str, Column]], plan: Plan) -> Transform:
    """Return the transformation after the first exchange, with scales of 1.

    Parameters
    ----------
    summaries
        Summaries by client and column: :func:`~dorfl.data.preprocessing.summarise`.
    plan
        The plan that all clients followed.

    Raises
    ------
    ValueError
        If clients have different columns, or read one differently.
    """
    if not summaries:
        raise ValueError("preprocessing: there are no clients")
    names = check_columns({client: list(own) for client, own in summaries.items()}, plan)
    found = {
        name: agree_on(name, {c: own[name] for c, own in summaries.items()}, plan) for name in names
    }
    return assemble(found, plan)


def check_columns(listed: Mapping[str, list[str]], plan: Plan) -> list[str]:
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


def assemble(found: Mapping[str, Part | str], plan: Plan) -> Transform:
    """Return the transformation of the columns used, with reasons for the others."""
    ignored = {name: "as the study says" for name, kind in plan.kinds.items() if kind == "ignore"}
    ignored |= {name: why for name, why in found.items() if isinstance(why, str)}
    parts = tuple(part for part in found.values() if not isinstance(part, str))
    return Transform(parts, ignored, plan.scaling, plan.missing)


def scale(
    transform: Transform, reports: Mapping[str, Mapping[str, Deviation]], plan: Plan
) -> Transform:
    """Return the transformation after the second exchange, with its scales."""
    parts = [
        part._replace(spread=spread_of([d[part.name] for d in reports.values()], plan, part.name))
        if isinstance(part, Numeric)
        else part
        for part in transform.parts
    ]
    return replace(transform, parts=tuple(parts))


def agree_on(name: str, summaries: Mapping[str, Column], plan: Plan) -> Part | str:
    """Return how a column is used, or the reason why it is not."""
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


def _category(name: str, used: list[Column], missing: float, plan: Plan) -> Category | str:
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


def _center(used: list[Column], plan: Plan) -> float:
    if plan.scaling == "standard":
        return sums.combine(c.total for c in used) / sum(c.rows for c in used)
    return sketch.quantile([c.values for c in used], 0.5)


def spread_of(reports: list[Deviation], plan: Plan, name: str = "") -> float:
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
