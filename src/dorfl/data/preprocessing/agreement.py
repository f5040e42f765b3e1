"""The server's side: from what clients tell of their columns to one transformation for all.

Sums are exact and levels are counted, so these come out as on the pooled table; medians do within
:func:`dorfl.data.sketch.rank_error`. What is told is put together in the clients'
order, which makes no difference to sums and counts.
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
_FAR = 1.2815515655446004  # Φ⁻¹(9/10): four normal rows in five are nearer


def agree(summaries: Mapping[str, Mapping[str, Column]], plan: Plan) -> Transform:
    """After the first exchange: which columns are used and how; spreads are still 1.

    Raises where clients have different columns, or read one differently.
    """
    if not summaries:
        raise ValueError("preprocessing: there are no clients")
    names = check_columns({client: list(told) for client, told in summaries.items()}, plan)
    found = {
        name: agree_on(name, {c: told[name] for c, told in summaries.items()}, plan)
        for name in names
    }
    return assemble(found, plan)


def check_columns(listed: Mapping[str, list[str]], plan: Plan) -> list[str]:
    """The columns that all clients have, or an error that says who lacks which."""
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
    """The columns that are used, and why the others are not."""
    ignored = {name: "as the study says" for name, kind in plan.kinds.items() if kind == "ignore"}
    ignored |= {name: why for name, why in found.items() if isinstance(why, str)}
    parts = tuple(part for part in found.values() if not isinstance(part, str))
    return Transform(parts, ignored, plan.scaling, plan.missing)


def scale(
    transform: Transform, told: Mapping[str, Mapping[str, Deviation]], plan: Plan
) -> Transform:
    """After the second exchange: the transformation with its spreads."""
    parts = [
        part._replace(spread=spread_of([d[part.name] for d in told.values()], plan, part.name))
        if isinstance(part, Numeric)
        else part
        for part in transform.parts
    ]
    return replace(transform, parts=tuple(parts))


def agree_on(name: str, told: Mapping[str, Column], plan: Plan) -> Part | str:
    """How a column is used, or why it is not."""
    kinds = {column.kind: client for client, column in told.items() if column.kind != "empty"}
    if not kinds:
        return f"no client has {plan.least} values of it"
    if len(kinds) > 1:
        (one, here), (two, there) = list(kinds.items())[:2]
        raise ValueError(
            f"column {name!r} is {one} at client {here!r} and {two} at client {there!r}; correct "
            "the values that are no numbers, or declare it a category or ignored"
        )
    used = [column for column in told.values() if column.kind != "empty"]
    if "other" in kinds:
        return "neither numbers nor categories"
    missing = _missing(told)
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


def _missing(told: Mapping[str, Column]) -> float:
    """The share of all rows in which the column is missing, as far as clients tell."""
    missing = sum(column.missing for column in told.values())
    return missing / max(missing + sum(column.rows for column in told.values()), 1)


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


def spread_of(told: list[Deviation], plan: Plan, name: str = "") -> float:
    """The unit a column is measured in: never 0, for what does not vary needs none."""
    if plan.scaling == "standard":
        count = sum(d.rows for d in told)
        if name in plan.floors:
            mean = sums.combine(d.squares for d in told) / count
            return max(_MEAN * mean, plan.floors[name])
        spread = float(np.sqrt(sums.combine(d.squares for d in told) / count))
        return spread or 1.0
    distances = [d.distances for d in told]
    # The MAD, unless half of the rows (nearly) agree and it says little: then what four in five
    # say, which a tenth of wrong rows cannot move far either; and of a column that is nearly always
    # the same, what the nearest quarter of the rows say that do differ: wrong rows differ too, and
    # may be as many as they.
    spread = max(_MAD * sketch.quantile(distances, 0.5), sketch.quantile(distances, 0.8) / _FAR)
    differing = sketch.quantile(distances, 0.25, above=0.0)
    if differing > 4.0 * spread:
        spread = differing
    return spread if np.isfinite(spread) and spread > 0 else 1.0
