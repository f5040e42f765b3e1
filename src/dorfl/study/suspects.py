"""Rows that lie far out: are they wrong, or merely rare? Decided from rows nobody trained with.

Two models are fitted to two thirds of the rows: one **trusts** every row, one sets **aside** those
that lie far out, by their score. Both are judged by the rest, and there by the bulk alone: rows
within twice the edge of the bulk, which neither holds for suspect. Wrong rows pull a model that
trusts them away from all others; rows that are rare but honest do not. So far-out rows are trusted,
and no row is suspect, unless that makes the bulk worse served: by more than `WORSE` of its loss,
with a standard error added, for where little is known caution costs less than trust.

Every client tells six sums of its own rows held back: see :class:`Judged`. A client with fewer than
`FEWEST` rows holds none back; where nobody does, rows that lie far out are set aside.

>>> told = [Judged(rows=500, loss=150.0, worse=-1.0, squares=2.0, far=20, seen=1500)]
>>> verdict(told).share
0.0
>>> print(words(verdict(told)))
Rows that lie far out (1.3 %) are trusted: with them the loss of the others is at most 5 % larger \
(0.298 against 0.3 on 500 rows not trained with), so they are taken for rare rather than wrong.
>>> verdict([told[0]._replace(worse=60.0)]).share
0.013
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dorfl.support.types import Array

AUTO = "auto"
ASSUMED = 0.1  # the share of wrong rows, until something is known of it
WORSE = 0.05  # of the loss
REACH = 4.0  # how far the bulk reaches, in squared units of its edge
FEWEST = 30  # rows of a client that holds some back
SIZES = tuple(60 << k for k in range(9))  # of a trial: how many rows of a client are looked at
_ROWS = 20_000  # of all clients together
TOL, ROUNDS = 1e-2, 30  # of the two fits: only a difference of percents counts


class Trial(NamedTuple):
    """Which of the two models is fitted, and to how many rows of a client, those held back too."""

    trusts: bool
    most: int


class Judged(NamedTuple):
    """What a client tells of its rows held back, as far as they are bulk.

    How many, the sum of their losses where suspects are set aside, and the sums of how much larger
    they are where all are trusted, and of its squares; and how many of all rows seen lie far out.
    """

    rows: int
    loss: float
    worse: float
    squares: float
    far: int
    seen: int


NOTHING = Judged(0, 0.0, 0.0, 0.0, 0, 0)


class Verdict(NamedTuple):
    """The share of rows that are wrong (0: far-out rows are trusted), and what says so.

    Means over `rows` rows held back; of no rows nothing was found out.
    """

    share: float
    far: float = 0.0
    rows: int = 0
    loss: float = 0.0
    worse: float = 0.0


def most_of(clients: int) -> int:
    """How many rows of each of so many clients are looked at."""
    return max((size for size in SIZES if size * clients <= _ROWS), default=SIZES[0])


def parts(rows: int, most: int) -> tuple[Array, Array]:
    """The places of the rows a client trains with in a trial, and of those it holds back.

    All rows are looked at, or at most half of them: two trials of different size, or one and a
    training with all rows, then differ by many rows, and not by one that the difference would show.

    >>> [len(part) for part in parts(3000, most=960)], [len(part) for part in parts(20, most=960)]
    ([640, 320], [20, 0])
    """
    order = np.random.default_rng(0).permutation(rows)
    if rows >= 2 * most:
        order = order[:most]
    held = order[2::3] if len(order) >= FEWEST else order[:0]
    return np.setdiff1d(order, held), np.sort(held)


def mark(table: str, rows: int, all_rows: int) -> str:
    """What stands for the rows of a report: between a trial's and all there are many others."""
    return table if rows == all_rows else f"trial{rows}-{table}"


def settled(distance: Array, least: int) -> Array:
    """Distances of which none, or more than `least`, are beyond the bulk.

    Sums over a bulk that leaves fewer out would tell of them beside sums over all. Then the `least`
    outermost count neither as bulk nor as far out: they have no distance.

    >>> settled(np.array([1.0, 9.0, 2.0, 3.0, 0.5]), least=2)
    array([1. , nan, 2. , nan, 0.5])
    """
    few = 0 < int((distance > REACH).sum()) <= least
    if least <= 1 or not few:
        return distance
    distance = distance.copy()
    distance[np.argsort(-distance, kind="stable")[:least]] = np.nan
    return distance


def judge(
    trusting: Array, aside: Array, distance: Array, everywhere: Array, least: int = 1
) -> Judged:
    """A client's part: both models' losses of its rows held back, and how far out they are.

    Distances are squared, in units of the edge of the bulk; `everywhere` are those of all rows
    seen. Of fewer than `least` rows nothing is told, and sums are rounded to four digits.
    """
    bulk = distance <= REACH
    rows, far = int(bulk.sum()), int((everywhere > REACH).sum())
    if rows < least:
        return NOTHING
    worse = (trusting - aside)[bulk]
    sums = (aside[bulk].sum(), worse.sum(), (worse**2).sum())
    loss, larger, squares = (float(f"{value:.4g}") for value in sums)
    return Judged(rows, loss, larger, squares, far if far >= least else 0, len(everywhere))


def verdict(told: Sequence[Judged]) -> Verdict:
    """What all clients' parts come to."""
    parts_of = zip(*(told or [NOTHING]), strict=True)
    rows, loss, worse, squares, far, seen = (float(sum(part)) for part in parts_of)
    if rows < FEWEST / 3:
        return Verdict(ASSUMED)
    mean = worse / rows
    error = np.sqrt(max(squares / rows - mean**2, 0.0) / rows)
    share = float(f"{far / seen:.2g}")
    wrong = mean + error > WORSE * loss / rows
    found = min(max(share, 0.01), 0.4) if wrong else 0.0
    return Verdict(found, share, int(rows), loss / rows, mean)


def words(found: Verdict) -> str:
    """The decision and its reason, in one sentence; where rows are set aside, its beginning."""
    if not found.rows:
        return "Rows that lie far out are set aside, for nothing shows that they can be trusted"
    compared = (
        f"{found.loss + found.worse:.3g} against {found.loss:.3g} on {found.rows} rows not trained "
        "with)"
    )
    few = "a few at most" if not found.far else f"{100 * found.far:.2g} %"
    if found.share > 0:
        makes = "makes" if found.worse > WORSE * found.loss else "may make"
        return (
            f"Rows that lie far out ({few}) are held for wrong, because trusting them {makes} the "
            f"others worse served (loss {compared}"
        )
    if not found.far:
        return f"Hardly a row lies far out, and all are trusted (loss {compared}."
    return (
        f"Rows that lie far out ({few}) are trusted: with them the loss of the others is at most "
        f"{100 * WORSE:g} % larger ({compared}, so they are taken for rare rather than wrong."
    )
