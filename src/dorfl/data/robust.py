"""Where rows lie and how far they spread, found without pooling them and unmoved by bad ones.

Every client tells its robust centre (:mod:`dorfl.data.centers`) and, column by column, a sketch of
how far its rows lie from their middle (:mod:`dorfl.data.sketch`): no number in it is
of fewer than `least` rows. Sketches are read together, so the answer is nearly that of the pooled
table, however rows are divided among clients.

>>> import numpy as np
>>> rows = np.random.default_rng(0).normal(scale=[1.0, 50.0], size=(1000, 2))
>>> rows[:100] *= -8                                            # one row in ten is wrong
>>> places = [tell(rows[:500], least=5), tell(rows[500:], least=5)]
>>> measure(places, bulk=0.8).units.round(1)
array([ 1.2, 59.2])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dorfl.data import centers, sketch
from dorfl.data.sketch import Sketch
from dorfl.support.types import Array

FEW = 20  # rows below which a client has no centre of its own
DIFFERS = 0.5  # squared units of a column, from which on a class lies apart from its client's rows
BEYOND = 9.0  # and from which on it is taken for wrong rows that lie together
HUBER = 1.345
LOOK = 5_000  # rows of a client that are looked at: enough to know a unit within some two percent


class Place(NamedTuple):
    """What a client tells: where its rows are, and how far they lie from their middle.

    `away` has the block means of every column's distances, (blocks, columns); with a number for a
    target, its distances come last. `by` and `means`: :func:`dorfl.data.centers.by_class`.
    """

    rows: int  # looked at
    kept: float
    mean: Array
    away: Array
    by: Array = np.zeros(0)
    means: Array = np.zeros((0, 0))


class Spread(NamedTuple):
    """The unit of every column: a standard deviation that outliers do not move, 0 for a constant.

    `rigid` names columns that mostly have one value; `target` is the unit of what is predicted.
    """

    units: Array
    rigid: tuple[int, ...] = ()
    target: float = 1.0


def tell(
    rows: Array,
    target: Array | None = None,
    *,
    classes: int = 0,
    middle: Array | None = None,
    least: int = 1,
    stand_ins: Array | None = None,
) -> Place:
    """A client's part; `middle` is the others' too where clients are too small for their own.

    The `target` is a number, or one of so many classes: 0, 1, … Distances are those of the block
    means that were told of a column (:func:`dorfl.data.sketch.known`), so they show no row of it;
    `stand_ins` (2, d) says of every column what stands for missing values, and how often.
    """
    looked = look(rows).astype(np.float64, copy=False)
    place, part = centers.summarise(looked, least=least), len(rows) / len(looked)
    by, means = np.zeros(0), np.zeros((0, looked.shape[1]))
    if target is not None and classes:
        by, means = centers.by_class(looked, look(target).astype(np.int64), classes, least)
    elif target is not None:
        looked = np.column_stack([looked, look(target)])
    if least > 1:
        looked = _known(looked, stand_ins if len(looked) == len(rows) else None, least)
    away = sketch.table(looked, middle_of(looked, least) if middle is None else middle, least)
    return Place(len(looked), place.kept * part, place.mean, away, by * part, means)


def gather(
    tables: Sequence[Array], targets: Sequence[Array | None], classes: int = 0
) -> tuple[list[Place], bool]:
    """The parts of clients that are all here, and whether each has a middle of its own."""
    own, middle = apart([len(X) for X in tables]), None
    pairs = list(zip(tables, targets, strict=True))
    if not own:  # the middle of all: hardly any client has rows enough for one of its own
        rows = [X if y is None or classes else np.column_stack([X, y]) for X, y in pairs]
        middle = middle_of(np.concatenate([look(X) for X in rows]).astype(np.float64))
    return [tell(X, y, classes=classes, middle=middle) for X, y in pairs], own


def measure(places: Sequence[Place], bulk: float) -> Spread:
    """The units of all columns, from the share `bulk` of the rows that lie nearest.

    The unit of a column is how near the bulk keeps to the median, over what that is for a normal
    distribution. A column that mostly has one value (nearly always nil, or a flag) has no such
    unit: there it is the typical size of the other values, or honest rare ones would look wild.
    """
    dims, away = len(places[0].mean), np.concatenate([place.away for place in places])
    sizes = np.concatenate([sketch.sizes_of(place.rows, len(place.away)) for place in places])
    found = [_unit(column, sizes, bulk) for column in away.T]
    units = np.array([unit for unit, _ in found])
    rigid = tuple(k for k, (_, stiff) in enumerate(found[:dims]) if stiff)
    return Spread(units[:dims], rigid, float(units[dims] or 1.0) if len(units) > dims else 1.0)


def centers_of(places: Sequence[Place], own: bool, shape: Array | None = None) -> Array:
    """ξ̄ of every client (clients, d): each its own, or one for all.

    (clients, classes, d) if each has its own and a class lies apart: by `shape`, what the columns
    add to a squared distance, it is DIFFERS a column from the rows of its clients. Around one
    centre it would be suspect as a whole where others are more frequent.
    """
    common = centers.combine([centers.Summary(place.kept, place.mean) for place in places])
    if not own:
        return np.array([common] * len(places))
    middle, by = np.array([place.mean for place in places]), np.array([p.by for p in places])
    if shape is None or not by.any():
        return middle
    found = np.array([centers_by_class(place, shape) for place in places])
    far = (by * ((found - middle[:, None]) ** 2 @ shape)).sum(axis=0) / np.maximum(by.sum(0), 1.0)
    return found if far.max() >= DIFFERS * np.count_nonzero(shape) else middle


def centers_by_class(place: Place, shape: Array) -> Array:
    """ξ̄ of a client's classes (classes, d).

    A class of which a client has too few rows has the centre of all: of nothing else can the client
    be sure that it gives none of them away. So has one BEYOND the others: a cluster of wrong rows
    with one label, which would vouch for itself.
    """
    far = (place.means - place.mean) ** 2 @ shape
    known = (place.by > 0) & (far <= BEYOND * np.count_nonzero(shape))
    return np.where(known[:, None], place.means, place.mean)


def apart(counts: Sequence[int]) -> bool:
    """Whether most rows are with clients that have enough of them for a middle of their own."""
    return 2 * sum(n for n in counts if n >= FEW) >= sum(counts)


def distances(rows: Array, center: Array, shape: Array, least: int = 1) -> Sketch:
    """A client's squared distances (x − ξ̄)ᵀ diag(shape) (x − ξ̄), as a sketch; ξ̄ for all or each."""
    center = look(center) if center.ndim == 2 else center
    offset = look(rows).astype(np.float64, copy=False) - center
    return sketch.of(offset**2 @ shape, least)


def edge(told: Sequence[Sketch], bulk: float) -> float:
    """The squared distance within which the bulk of the rows lies; never 0."""
    found = sketch.quantile(told, bulk) or sketch.quantile(told, 0.5, above=0.0)
    return found if np.isfinite(found) and found > 0 else 1.0


def residuals(out: Array, target: Array, least: int = 1) -> Sketch:
    """How far a client's labels are from what a model says of them, as a sketch."""
    found = (look(target) - look(out))[:, None]
    return sketch.around(found[:, 0], float(middle_of(found, least)[0]), least)


def scatter(told: Sequence[Sketch]) -> float:
    """The unit σ of residuals, that of scikit-learn's `HuberRegressor`: mean min(r²/σ², ε²) = 1.

    However large residuals are, none counts for more than ε² of it; ε is 1.345.

    >>> round(scatter([sketch.of(np.array([1.0] * 8 + [50.0, 1e9]), least=1)]), 2)
    1.12
    """
    sizes = np.concatenate([np.empty(0), *(part.sizes for part in told)])
    square = np.concatenate([np.empty(0), *(part.means for part in told)]) ** 2
    order = np.argsort(square, kind="stable")
    square, sizes = square[order], sizes[order]
    count = np.cumsum(sizes)
    if not len(square):
        return 0.0
    # With the residuals up to the k-th below εσ, the equation is linear in σ²: the first k that
    # keeps its promise is it.
    free = count[-1] - HUBER**2 * (count[-1] - count)
    found = np.divide(
        np.cumsum(sizes * square), free, where=free > 0, out=np.full(len(free), np.inf)
    )
    following = np.append(square[1:], np.inf)
    fits = (free > 0) & (HUBER**2 * found <= following)
    return float(np.sqrt(found[int(np.argmax(fits))]))


def look(values: Array) -> Array:
    """At most LOOK of the rows, the same ones every time."""
    if len(values) <= LOOK:
        return np.asarray(values)
    rows = np.random.default_rng(0).choice(len(values), LOOK, replace=False, shuffle=False)
    return np.asarray(values[np.sort(rows)])


def middle_of(rows: Array, least: int = 1) -> Array:
    """The medians: one of the values, so that a value most rows have is met exactly.

    Where no single row may show, as :func:`dorfl.data.sketch.quantile` reads it between blocks.
    """
    if least > 1:
        return np.array([sketch.quantile([sketch.of(part, least)], 0.5) for part in rows.T])
    columns, half = np.ascontiguousarray(rows.T), (len(rows) - 1) // 2
    return np.asarray(np.partition(columns, half, axis=1)[:, half])


def _known(rows: Array, stand_ins: Array | None, least: int) -> Array:
    """Every column as the blocks of its values tell it, in order."""
    each = np.zeros((2, rows.shape[1]))
    if stand_ins is not None:
        each[:, : stand_ins.shape[1]] = stand_ins
    pairs = zip(rows.T, each.T.tolist(), strict=True)
    told = [sketch.known(column, least, (value, int(count))) for column, (value, count) in pairs]
    return np.column_stack(told) if told else rows


def _unit(away: Array, sizes: Array, bulk: float) -> tuple[float, bool]:
    """A column's unit, and whether it mostly has one value."""
    if sketch.read(away, sizes, 0.5) > 0.0:
        return sketch.read(away, sizes, bulk) / float(ndtri(0.5 + bulk / 2.0)), False
    unit = sketch.read(away, sizes, 0.5, above=0.0)
    return (unit if np.isfinite(unit) else 0.0), True
