"""What of a study is summed, as vectors of numbers; the same on both sides of a secure sum.

Counts and sums of columns, and the reports of a round. :mod:`dorfl.protocol.additive_statistics`
adds up sketches. The kinds of columns and the names of levels are not sums (:func:`names_of`).
What a site would report of itself at the end is not asked for.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dorfl.data.preprocessing import Column, columns
from dorfl.federated import pooled
from dorfl.federated.messages import Broadcast, Report
from dorfl.linear.curvature import Shape
from dorfl.protocol.messages import Columns, Outcome, Summing
from dorfl.support.types import Array

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

ALL = "all sites"
STEPS = ("sum masked", "sum open")
_STATISTICS = ("middles", "spreads", "center", "classes", "edge", "compare", "certify")
BITS = {"columns": 20, **dict.fromkeys(_STATISTICS, 32), "round": 40}  # units of 2^-bits
_PLAIN = 4  # numbers of a column beside its levels: rows, missing, Σx, Σ|x|, or Σ1 and Σ log|x|


class Asked(NamedTuple):
    """What a sum may be about beside what is agreed on: models, all sites the same."""

    broadcast: Broadcast | None = None
    models: Array | None = None
    outcome: Outcome | None = None
    thin: int = 1


# ── keys ────────────────────────────────────────────────────────────────────────────────────────


def peer(name: str, key: ec.EllipticCurvePublicKey) -> str:
    """A site and its registered key, as a study names them."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    point = key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    )
    return f"{name} {b64encode(point).decode()}"


@lru_cache(maxsize=64)
def peers_of(listed: tuple[str, ...]) -> dict[str, ec.EllipticCurvePublicKey]:
    """The registered keys by site, as the study has them; ValueError if it is no list of those."""
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    found = {}
    for line in listed:
        name, _, point = line.rpartition(" ")
        try:
            key = ec.EllipticCurvePublicKey.from_encoded_point(
                ec.SECP384R1(), b64decode(point, validate=True)
            )
        except ValueError:
            raise ValueError("privacy.peers: is no list of sites with their keys") from None
        found[name] = key
    return found


# ── columns ─────────────────────────────────────────────────────────────────────────────────────


def names_of(told: Columns, rows: int) -> Columns:
    """Of what a site could tell of its columns, the kinds and the names of levels alone."""

    def bare(column: Column) -> Column:
        there = 0 if column.kind == "empty" else rows
        return Column(
            column.kind, there, levels=dict.fromkeys(column.levels, 1), numbering=column.numbering
        )

    return Columns({name: bare(one) for name, one in told.columns.items()}, bare(told.label))


def levels_of(named: dict[str, Columns]) -> dict[str, tuple[str, ...]]:
    """The levels of every column that counts are summed of; the label is "" here.

    Of a number that some site has more than two values of, none.
    """
    first = next(iter(named.values()))
    found = {
        name: _levels([told.columns[name] for told in named.values()]) for name in first.columns
    }
    return {**found, "": _levels([told.label for told in named.values()])}


def _levels(told: list[Column]) -> tuple[str, ...]:
    used = [column for column in told if column.kind != "empty"]
    if not all(column.levels or column.kind == "category" for column in used):
        return ()
    return tuple(columns.in_order({level for column in used for level in column.levels}))


def counts(told: Columns, rows: Any, label: str, levels: dict[str, tuple[str, ...]]) -> Array:
    """A site's numbers for `columns`."""
    numbers: list[float] = []
    for name, wanted in sorted(levels.items()):
        column = told.columns[name] if name else told.label
        total, size = sum(column.total), 0.0
        if column.total:
            present = columns.present(columns.numbers(rows.column(name or label), name or label))
            size = float(np.abs(present).sum())
        elif column.values.rows:  # of medians only the size matters, which no wild value moves
            means, sizes = np.abs(column.values.means), column.values.sizes
            total, size = float(sizes[means > 0].sum()), float(sizes @ _log(means))
        numbers += [column.rows, column.missing, total, size]
        numbers += [column.levels.get(level, 0) for level in wanted]
    return np.array(numbers, dtype=np.float64)


def columns_from(
    total: Array,
    levels: dict[str, tuple[str, ...]],
    named: dict[str, Columns],
    robust: Callable[[str], bool],
) -> tuple[Columns, dict[str, float]]:
    """The sum as what one site would tell that had all rows, and a unit for every number.

    Of columns that are `robust` there is no sum yet that says where they are.
    """
    found, units, at = dict[str, Column](), dict[str, float](), 0
    for name, wanted in sorted(levels.items()):
        told = [one.columns[name] if name else one.label for one in named.values()]
        kinds = [column.kind for column in told if column.kind != "empty"] or ["empty"]
        rows, missing, sum_, size = total[at : at + _PLAIN].tolist()
        counted = total[at + _PLAIN : at + _PLAIN + len(wanted)].tolist()
        at += _PLAIN + len(wanted)
        held = {level: round(n) for level, n in zip(wanted, counted, strict=True) if n > 0}
        alone = all(column.numbering for column in told if column.kind != "empty")
        told_sum = () if robust(name) else (sum_,)
        found[name] = Column(
            kinds[0], round(rows), round(missing), told_sum, levels=held, numbering=alone
        )
        if robust(name):
            units[name] = float(np.exp2(np.clip(size / max(sum_, 1.0), -900.0, 900.0)))
        else:
            units[name] = size / rows if rows > 0 and size > 0 else 1.0
    label = found.pop("")
    return Columns(found, label), units


def _log(sizes: Array) -> Array:
    """log₂, and nothing of nothing."""
    return np.log2(sizes, out=np.zeros_like(sizes), where=sizes > 0)


def disagree(named: dict[str, Columns]) -> str | None:
    """Which column is read as different kinds, if any."""
    first = next(iter(named.values()))
    for name in first.columns:
        kinds = {told.columns[name].kind for told in named.values()} - {"empty"}
        if len(kinds) > 1:
            return name
    return None


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────


def report(told: Report, log_weight: float, sent: Broadcast, summing: Summing, shape: Shape) -> Any:
    """A site's numbers for a round, or that they are out of range, which is not said of whom."""
    from dorfl.federated import secure_sum  # noqa: PLC0415

    bits, sites = BITS["round"], len(summing.keys)
    try:
        numbers = pooled.terms(told, log_weight, sent.task, summing.tilt, shape)
        return secure_sum.encode(numbers, bits, sites)
    except (OverflowError, ValueError):
        return secure_sum.encode(pooled.beyond(sent.task, shape), bits, sites)
