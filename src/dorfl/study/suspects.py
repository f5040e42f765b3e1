"""Rows that lie far out: are they wrong, or merely rare? Decided from rows nobody trained with.

Models are fitted to two thirds of the rows: one **trusts** every row, and is plain training; one
sets **aside** those that lie far out, by their score. They are judged by the rest, and there by the
bulk alone: rows within twice the edge of the bulk, which neither holds for suspect. Wrong rows pull
a model that trusts them away from all others; rows that are rare but honest do not. So far-out rows
are trusted, and no row is suspect, unless that makes the bulk worse served: by more than `WORSE` of
its loss, with a standard error added, for where little is known caution costs less than trust; but
it is taken off where hardly a row lies far out. Where without those rows more of the others are
missed, that is served worse than by no model, the loss has to show it beyond a standard error, or
by twice as much.

The judges are rows near the centre of any class: one with a wrong label is far from that of its
own, and judges without such rows prefer a model that is surer of itself to one that is right more
often. Where labels are numbers and `MOST` rows far out, if not `FEW`, are served worse by the
model without them than by none, they contradict the others: then any harm is too much that is
larger than its standard error.

The edge is that of the nearest 80 % of the rows. It is further out where a **gap** parts rows from
all others, within one percent of them twice as far: it leaves those beyond without weight, and the
honest tail before it in its own. Where of these, or of all if more than `MANY` are beyond the gap,
more than `MANY` lie further than twice the edge of the nearest **half**, more than one row in five
may be wrong and that edge be theirs: then a third model, which goes by the nearer edge, challenges
the better one of the two. It has to show more, for honest rows further out are none of its judges:
twice as much, beyond a standard error, and no row more that is missed.

**Labels** that are numbers may be wrong as well. Where more of them than `UNFIT` are further than
`FAR` robust units from what the model says, more than even Cauchy's distribution has there, which
is without a mean, they are no tail of the others: one more model is fitted, with rows weighed by
their residuals as rows that lie far out are by their distance. It is judged by the bulk of the
residuals, and taken unless that is served worse by more than a standard error: Huber's loss bounds
what wrong labels do, so that of few rows held back the gain does not show.

A trial that a client refuses, or that somebody's reports spoil, decides nothing: what those before
it found stands, and where none has found anything rows that lie far out are set aside.

Every client tells nine sums of its own rows held back: see :class:`Judged`. A client with fewer
than `FEWEST` rows holds none back; where nobody does, rows that lie far out are set aside.

>>> told = [Judged(rows=500, loss=150.0, worse=-1.0, squares=2.0, missed=0, far=20, seen=1500)]
>>> verdict(told).share
0.0
>>> print(words(verdict(told)))
Rows that lie far out (1.3 %) are trusted: with them the loss of the others is at most 5 % larger \
(0.298 with them, 0.3 without, on 500 rows not trained with), so they are taken for rare rather \
than wrong.
>>> verdict([told[0]._replace(worse=60.0)]).share
0.013
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dorfl.data import centers
from dorfl.data.sketch import levelled
from dorfl.oracle.problem import Problem
from dorfl.support.types import Array

AUTO = "auto"
ASSUMED = 0.1  # the share of wrong rows, until something is known of it
HALF = 0.25  # … where the nearer half alone says what is usual
WORSE = 0.05  # of the loss
MANY = 0.15  # of the rows
FEW, MOST = 0.05, 0.75  # of the rows, and of those far out
REACH = 4.0  # how far the bulk reaches, in squared units of its edge
USUAL = 0.8  # of residuals, the smallest: where the bulk of them has its edge
FAR, UNFIT = 8.0, 0.0535  # robust units, and the share of Cauchy's distribution beyond
FEWEST = 30  # rows of a client that holds some back
SUPPORT = 5  # rows of a class that a trial trains with, of any that are there
SIZES = tuple(60 << k for k in range(9))  # of a trial: how many rows of a client are looked at
_ROWS = 20_000  # of all clients together
TOL, ROUNDS = 1e-3, 30  # of the fits: a difference of half a percent counts


class Trial(NamedTuple):
    """The share of rows that the model holds for wrong (0, ASSUMED or HALF), and its rows.

    As many of a client at most, those held back among them. Or `labels` far from what the better
    model so far says count less.
    """

    share: float
    most: int
    labels: bool = False


class Judged(NamedTuple):
    """What a client tells of its rows held back, as far as they are bulk, and of two models.

    How many, the sum of their losses by the second model, and the sums of how much larger they are
    by the first, and of its squares; how many more the second serves worse than no model would
    (two classes: misclassifies); how many of all rows seen lie far out; and, in blocks of `least`,
    how many have a label, a number, that does not fit what the first says, and how many of those
    far out have one that the second serves worse than no model would.
    """

    rows: int
    loss: float
    worse: float
    squares: float
    missed: int
    far: int
    seen: int
    unfit: int = 0
    against: int = 0


NOTHING = Judged(0, 0.0, 0.0, 0.0, 0, 0, 0)


def _hides(_: Array, __: Array | None) -> bool:
    return True


class Before(NamedTuple):
    """What a client makes of its sums where others know what it told before; by default nothing.

    `bulk` makes of distances those of a bulk that sums may be told of, `counted` of the rows that
    are counted others, and `hides` says whether sums (rows, sums) of classes show no single row.
    """

    bulk: Callable[[Array], Array] = np.asarray
    counted: Callable[[Array], Array] = np.asarray
    hides: Callable[[Array, Array | None], bool] = _hides


FRESH = Before()


class Verdict(NamedTuple):
    """The share of rows that are wrong (0: far-out rows are trusted), and what says so.

    Means over `rows` rows held back; of no rows nothing was found out. `assumed` is the share that
    the edge of the bulk was measured for, `labels` the share of rows whose label is held for wrong.
    """

    share: float
    far: float = 0.0
    rows: int = 0
    loss: float = 0.0
    worse: float = 0.0
    assumed: float = ASSUMED
    labels: float = 0.0


def share_kept(outliers: float) -> float:
    """The share of the rows, nearest first, that says what is usual: no outlier is among them."""
    return float(np.clip(1.0 - 2.0 * outliers, 0.5, 0.95))


def measured(outliers: float) -> float:
    """The share of the rows that says what a standard deviation is: one unit for most studies."""
    return share_kept(max(outliers, ASSUMED))


def is_bulk(X: Array, codes: Array, center: Array, shape: Array) -> Array:
    """Which rows lie no further from their centre, or that of their class, than the bulk reaches.

    A squared distance is the sum of `shape` times the squares along the columns, and 1 at the edge.
    """
    offset = X.astype(np.float64, copy=False) - centers.at(center, codes)
    return np.asarray(offset**2 @ shape <= REACH)


def _nearest(X: Array, center: Array, shape: Array) -> Array:
    """Squared distances from the nearest centre, of whatever class."""
    found = np.full(len(X), np.inf)
    for one in np.atleast_2d(center):
        found = np.minimum(found, (X.astype(np.float64, copy=False) - one) ** 2 @ shape)
    return found


def most_of(clients: int) -> int:
    """How many rows of each of so many clients are looked at."""
    return max((size for size in SIZES if size * clients <= _ROWS), default=SIZES[0])


def parts(rows: int, most: int, labels: Array | None = None) -> tuple[Array, Array]:
    """The places of the rows a client trains with in a trial, and of those it holds back.

    All rows are looked at, or at most half of them: two trials of different size, or one and a
    training with all rows, then differ by many rows, and not by one that the difference would show.
    Of every class in `labels` there are SUPPORT rows among those trained with, if it has as many.

    >>> [len(part) for part in parts(3000, most=960)], [len(part) for part in parts(20, most=960)]
    ([640, 320], [20, 0])
    """
    order = np.random.default_rng(0).permutation(rows)
    if rows >= 2 * most:
        order = order[:most]
    held = order[2::3] if len(order) >= FEWEST else order[:0]
    used = np.zeros(rows, dtype=np.int64)  # 1: trained with, 2: held back
    used[order], used[held] = 1, 2
    if labels is not None:
        _support(used, np.unique(labels, return_inverse=True)[1].reshape(-1))
    return np.flatnonzero(used == 1), np.flatnonzero(used == 2)


def _support(used: Array, codes: Array) -> None:
    """Let rows of classes that few are trained with change places with those of the largest."""
    counts = np.bincount(codes[used == 1], minlength=int(codes.max(initial=0)) + 1)
    for rare in np.flatnonzero((counts > 0) & (counts < SUPPORT)).tolist():
        largest = int(counts.argmax())
        room = max(int(counts[largest]) - SUPPORT, 0)  # none where all classes are as small
        spare = np.flatnonzero((used != 1) & (codes == rare))[: SUPPORT - int(counts[rare])][:room]
        given = np.flatnonzero((used == 1) & (codes == largest))[: len(spare)]
        used[given], used[spare] = used[spare], used[given]
        counts[largest] -= len(spare)


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
    problem: Problem,
    models: Sequence[Array],
    X: Array,
    y: Array,
    center: Array,
    shape: Array,
    most: int,
    least: int = 1,
    before: Before = FRESH,
    *,
    labels: bool = False,
) -> Judged:
    """A client's part: what the rows it held back say of two models.

    Of fewer than `least` rows nothing is told, nor of sums that would show single ones; they are
    rounded to four digits, squares to three. Where it is about `labels`, the distances are those of
    labels from what the first model says.
    """
    codes = np.searchsorted(problem.classes, y) if len(problem.classes) else y
    trained, held = parts(len(y), most, codes if len(problem.classes) else None)
    if not len(held):
        return NOTHING
    places = np.concatenate([held, trained])
    unfit, residuals = 0, np.zeros(0)
    if not problem.loss.classifies:
        residuals = np.abs(problem.predict(models[0], X[places]) - y[places])
        if not one_valued(y[places]):
            unfit = _beyond(residuals - FAR * 1.4826 * np.median(residuals), least)
    away = far_off(residuals) if labels else _nearest(X[places], center, shape)
    distance = before.bulk(settled(away, least))
    bulk = distance[: len(held)] <= REACH
    rows, far, seen = int(bulk.sum()), int((distance > REACH).sum()), len(distance)
    if rows < least:
        return NOTHING
    target, rows_held = problem.encode(y[held][bulk]), X[held][bulk]
    zero, first, second = (
        problem.loss.value(problem.predict(theta, rows_held), target)
        for theta in (np.zeros_like(models[0]), *models)
    )
    worse, added = first - second, np.zeros((len(held), 2))
    added[bulk] = np.column_stack([second, worse])
    if not before.hides(added, codes[held] if len(problem.classes) else None):
        return NOTHING
    # One by one: in blocks a few rows more would not show, and they are what a verdict goes by.
    change = np.zeros((2, len(held)), dtype=bool)
    change[:, bulk] = (second > zero) & (first <= zero), (first > zero) & (second <= zero)
    more, less = before.counted(change.ravel()).reshape(2, -1).sum(axis=1).tolist()
    missed = more - less
    loss, larger = (float(f"{value:.4g}") for value in (second.sum(), worse.sum()))
    squares = float(f"{(worse**2).sum():.3g}")
    against = 0  # of classes nothing is said: one may be right by chance
    if not problem.loss.classifies:
        out = places[distance > REACH]
        none, own = (
            problem.loss.value(problem.predict(theta, X[out]), y[out])
            for theta in (np.zeros_like(models[0]), models[1])
        )
        against = _beyond(own - none, least)
    far, unfit, against = (count if count >= least else 0 for count in (far, unfit, against))
    return Judged(rows, loss, larger, squares, missed, far, seen, unfit, against)


def one_valued(y: Array) -> bool:
    """Whether most labels are one number (no visit, no claim): others are rare then, and no tail.

    >>> one_valued(np.array([0.0, 0.0, 2.0, 0.0])), one_valued(np.array([0.0, 1.0, 2.0]))
    (True, False)
    """
    return bool((y == np.median(y)).mean() > 0.5)


def _beyond(values: Array, least: int) -> int:
    """How many are positive, in blocks: by single ones two models would show where a row lies."""
    return int((levelled(values, least) > 0.0).sum())


def far_off(residuals: Array) -> Array:
    """How far labels are from what a model says, squared, in units of the edge of their bulk.

    >>> far_off(np.array([1.0, 2.0, 1.0, 6.0, 0.0, 2.0])).tolist()
    [0.25, 1.0, 0.25, 9.0, 0.0, 1.0]
    """
    edge = float(np.quantile(residuals, USUAL)) if len(residuals) else 0.0
    return np.asarray((residuals / edge) ** 2 if edge > 0 else np.zeros(len(residuals)))


def misfit(told: Sequence[Judged]) -> float:
    """The share of rows whose label does not fit, where that is more than any tail has; else 0."""
    seen = sum(part.seen for part in told)
    share = sum(part.unfit for part in told) / seen if seen else 0.0
    return float(f"{share:.2g}") if share > UNFIT else 0.0


def verdict(
    told: Sequence[Judged], before: Verdict | None = None, *, labels: bool = False
) -> Verdict:
    """What all clients' parts come to; `before` is what was found until one more model came."""
    parts_of = zip(*(told or [NOTHING]), strict=True)
    sums = [float(sum(part)) for part in parts_of]
    rows, loss, worse, squares, missed, far, seen, _, against = sums
    if rows < FEWEST / 3:
        return before or Verdict(ASSUMED)
    mean = worse / rows
    error = np.sqrt(max(squares / rows - mean**2, 0.0) / rows)
    if labels and before is not None:
        return before._replace(labels=misfit(told) if mean > -error else 0.0)
    share = float(f"{far / seen:.2g}")
    found, level = min(max(share, 0.01), 0.4), WORSE * loss / rows
    if before is not None:
        wrong = missed <= 0 and mean - error > 2.0 * level
        third = Verdict(found, share, int(rows), loss / rows, mean, HALF, before.labels)
        return third if wrong else before
    margin = -error if not far else error if missed <= 0 else -min(error, level)
    contradicted = against > MOST * far and far >= FEW * seen
    wrong = mean + margin > level or (contradicted and mean > error)
    return Verdict(found if wrong else 0.0, share, int(rows), loss / rows, mean)


def label_words(found: Verdict) -> tuple[str, ...]:
    """What is held for wrong of the labels, if any, and why."""
    if not found.labels > 0:
        return ()
    return (
        "Labels far from what the model says of their rows are held for wrong and hardly count: "
        f"{100 * found.labels:.2g} % are further than {FAR:g} units, of the heaviest tail "
        f"{100 * UNFIT:.2g} %, and the others are served as well or better without them.",
    )


def words(found: Verdict) -> str:
    """The decision and its reason, in one sentence; where rows are set aside, its beginning."""
    if not found.rows:
        return "Rows that lie far out are set aside, for nothing shows that they can be trusted"
    compared = (
        f"{found.loss + found.worse:.3g} with them, {found.loss:.3g} without, on {found.rows} rows "
        "not trained with)"
    )
    few = "a few at most" if not found.far else f"{100 * found.far:.2g} %"
    if found.share > 0:
        makes = "makes" if found.worse > WORSE * found.loss else "may make"
        return (
            f"Rows that lie far out ({few}) are held for wrong, because trusting them {makes} the "
            f"others worse served (loss {compared}"
        )
    if not found.far:
        return f"Hardly a row lies far out, and those are trusted (loss {compared}."
    return (
        f"Rows that lie far out ({few}) are trusted: with them the loss of the others is at most "
        f"{100 * WORSE:g} % larger ({compared}, so they are taken for rare rather than wrong."
    )
