"""Statistics of a study from sums alone: what sites would tell of columns and rows, added up.

What a site adds is made of the very answer that it would give in the open, by the same rules:

| sum of | is made of | and says |
| --- | --- | --- |
| `middles` | sketches of columns | medians: counts around a middle, again around what they say |
| `spreads` | squares, or sketches of distances | the columns' units |
| `center` | where rows lie | how far rows spread, and the centre of all |
| `classes` | centres of classes | whether classes lie apart |
| `edge` | a sketch | the same of all rows |
| `compare` | statistics of held-out losses | the same of all rows |
| `certify` | means over a site's rows, by its share of all | the same of the mixture by rows |

Sketches are added up as :mod:`dorfl.data.sketch` says. A sum becomes the answer of one client
that has everybody's rows (:func:`told`). Where each site has a centre of its own, nobody else ever
learns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dorfl.certificates.bound import NO_BOUND, Told
from dorfl.data import robust, sketch
from dorfl.data.preprocessing import Deviation
from dorfl.data.robust import LocationReport
from dorfl.data.sketch import Sketch
from dorfl.protocol import labels, meaning, summing
from dorfl.protocol.messages import Agreement, Columns, Spreads, Summing
from dorfl.selection.outliers import HeldOut, pairs_of
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.protocol.coordinator import State

STEPS = (
    "columns", "middles", "spreads", "center", "classes", "edge", "compare", "certify",
)  # fmt: skip
PLAINLY = {"middles": "columns", "classes": "center"}  # the answers that sums are made of
_TURNS = 8  # times that a median is looked for
_BOUND = 2.0**19  # of a mean for the certificate: beyond, it is told as none


# ── a site's side ───────────────────────────────────────────────────────────────────────────────


def numbers(told: Any, agreement: Agreement, asked: Summing, rows: Any) -> Array | None:
    """What a site adds that would tell so; None where the question does not fit the columns."""
    if isinstance(told, Columns):
        known = {*told.columns, ""}
        if asked.of == "columns":
            label = agreement.study.data.label
            fits = set(asked.levels) == known
            return summing.counts(told, rows, label, asked.levels) if fits else None
        return _around(told, asked) if set(asked.middles) <= known & set(asked.units) else None
    if isinstance(told, Spreads):
        fits = {*told.spreads, ""} <= set(asked.units)
        return _distances(told, agreement, asked.units) if fits else None
    if isinstance(told, LocationReport):
        return _classes(told, agreement) if asked.of == "classes" else _place(told, agreement)
    if isinstance(told, Sketch):
        return sketch.histogram(told)
    if isinstance(told, Told):
        return _means(told, min(rows.num_rows, asked.most) / max(asked.rows, 1))
    assert isinstance(told, HeldOut)
    return np.concatenate(told)


def _around(told: Columns, asked: Summing) -> Array:
    parts = [
        sketch.histogram_around(
            (told.columns[name] if name else told.label).values, middle, asked.units[name]
        )
        for name, middle in sorted(asked.middles.items())
    ]
    return np.concatenate([np.zeros(0), *parts])


def _distances(told: Spreads, agreement: Agreement, units: dict[str, float]) -> Array:
    far = [*sorted(told.spreads.items()), *([("", told.label)] if told.label is not None else [])]
    parts = [
        np.r_[one.rows, sketch.histogram(one.distances, units[name])]
        if is_robust(agreement, name)
        else np.array([one.rows, sum(one.squares) / units[name] ** 2])
        for name, one in far
    ]
    return np.concatenate([np.zeros(0), *parts])


def _place(told: LocationReport, agreement: Agreement) -> Array:
    away = sketch.histogram_table(told.away[:, _drifting(agreement)], told.rows)
    return np.concatenate([[told.kept], told.kept * told.mean, away])


def _classes(told: LocationReport, agreement: Agreement) -> Array:
    shape = meaning.shape_of(agreement)
    found = robust.class_centers(told, shape)
    far = (found - told.mean) ** 2 @ shape
    return np.concatenate([told.by, told.by * far, (told.by[:, None] * found).ravel()])


def _means(told: Told, share: float) -> Array:
    """A site's share of means, or for none what no share of others comes up to."""
    means = np.concatenate([part.ravel() for part in told])
    return np.where(means < _BOUND, share * means, _BOUND)


# ── the coordinator's side ──────────────────────────────────────────────────────────────────────


def is_robust(agreed: Agreement | State, name: str) -> bool:
    """Whether it is a median that says where a column is; the label is ""."""
    plan = meaning.plan_of(agreed.study) if name else labels.unit_plan(agreed.study)
    return plan.scaling != "standard"


def size(state: State) -> int:
    """How many numbers a site adds to the present sum."""
    of, carried = state.sum.of, state.sum
    if of == "columns":
        return sum(4 + len(levels) for levels in summing.levels_of(carried.named).values())
    if of == "middles":
        return sketch.TWO_SIDED * len(carried.middles)
    if of == "spreads":
        return sum(_widths(state))
    assert state.transform is not None
    dims = len(state.transform.names)
    if of == "center":
        return 1 + dims + sketch.ONE_SIDED * len(_drifting(state))
    if of == "classes":
        return meaning.centered_classes(state) * (2 + dims)
    if of == "certify":
        return sum(map(int, map(np.prod, _shapes(state))))
    return sum(_held_out_sizes(state)) if of == "compare" else sketch.ONE_SIDED


def told(state: State, total: Array) -> tuple[State, Any]:
    """The state, and what one client would tell that had all rows; None where more is summed."""
    of = state.step
    if of == "columns":
        return _columns(state, total)
    if of == "middles":
        return _middles(state, total)
    if of == "spreads":
        return state, _spreads(state, total)
    if of == "center":
        return state, _placed(state, total)
    if of == "classes":
        return _apart(state, total), None
    if of == "compare":
        ends = np.cumsum(_held_out_sizes(state))[:-1]
        return state, HeldOut(*np.split(total, ends))
    if of == "certify":
        return state, _certified(state, total)
    return state, sketch.from_histogram(total)


def _held_out_sizes(state: State) -> list[int]:
    """Return the lengths of the parts of :class:`HeldOut`."""
    pairs = len(pairs_of(len(state.candidates)))
    return [pairs] * 4 + [len(state.candidates)]


def _columns(state: State, total: Array) -> tuple[State, Columns | None]:
    carried, levels = state.sum, summing.levels_of(state.sum.named)
    found, units = summing.columns_from(
        total, levels, carried.named, lambda name: is_robust(state, name)
    )
    numeric = {name: column for name, column in found.columns.items() if not column.levels}
    if "regression" in (meaning.task_of(state.study), labels.task_from([found.label])):
        numeric[""] = found.label
    middles = {
        name: 0.0
        for name, column in numeric.items()
        if is_robust(state, name) and column.kind in ("numeric", "date")
    }
    state = state._replace(sum=carried._replace(units=units, middles=middles, found=found))
    return (state._replace(step="middles"), None) if middles else (state, found)


def _middles(state: State, total: Array) -> tuple[State, Columns | None]:
    carried = state.sum
    assert carried.found is not None
    turn, parts = carried.turns + 1, total.reshape(-1, sketch.TWO_SIDED)
    columns, label, left = dict(carried.found.columns), carried.found.label, dict[str, float]()
    for (name, middle), part in zip(sorted(carried.middles.items()), parts, strict=True):
        found = sketch.histogram_median(part, middle, carried.units[name])
        if not found.found and turn < _TURNS:
            left[name] = found.value
        elif name:
            columns[name] = columns[name]._replace(values=found.values)
        else:
            label = label._replace(values=found.values)
    known = Columns(columns, label)
    carried = carried._replace(middles=left, found=known, turns=turn)
    state = state._replace(sum=carried)
    return (state, None) if left else (state._replace(step="columns"), known)


def _spreads(state: State, total: Array) -> Spreads:
    assert state.transform is not None
    names = sorted(part.name for part in state.transform.numeric)
    ends, units = np.cumsum(_widths(state))[:-1], state.sum.units

    def one(name: str, part: Array) -> Deviation:
        if is_robust(state, name):
            return Deviation(round(part[0]), distances=sketch.from_histogram(part[1:], units[name]))
        return Deviation(round(part[0]), (max(float(part[1]), 0.0) * units[name] ** 2,))

    parts = np.split(total, ends)
    far = {name: one(name, part) for name, part in zip([*names, ""], parts, strict=False)}
    return Spreads({name: far[name] for name in names}, far.get(""))


def _widths(state: State) -> list[int]:
    """How many numbers there are of each column's spread, and of the label's, if it is a number."""
    assert state.transform is not None
    names = sorted(part.name for part in state.transform.numeric)
    names += [""] if state.target is not None else []
    return [1 + sketch.ONE_SIDED if is_robust(state, name) else 2 for name in names]


def _placed(state: State, total: Array) -> LocationReport:
    assert state.transform is not None
    dims = len(state.transform.names)
    sketches = [
        sketch.from_histogram(part) for part in total[1 + dims :].reshape(-1, sketch.ONE_SIDED)
    ]
    rows = max((one.rows for one in sketches), default=0)
    blocks = max((len(one.means) for one in sketches), default=0)
    away = np.zeros((blocks, dims + (state.target is not None)))
    for k, one in zip(_drifting(state), sketches, strict=True):
        away[:, k] = one.means
    kept = float(total[0])
    return LocationReport(rows, kept, total[1 : 1 + dims] / kept, away)


def _shapes(state: State) -> tuple[tuple[int, ...], ...]:
    """Those of what is told for the certificate."""
    _, asked = meaning.certifying(state, meaning.thin(state))
    points, shares = len(asked.points), len(asked.shares)
    return (points, shares), (points, shares)


def _certified(state: State, total: Array) -> Told:
    """What one client would tell that had all rows; what rounding takes away is added."""
    means = np.where(total < _BOUND, total + 2.0**-32 * len(state.roster), NO_BOUND)
    shapes = _shapes(state)
    parts = np.split(means, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
    loss, error = (part.reshape(s) for part, s in zip(parts, shapes, strict=True))
    return Told(loss, error)


def _apart(state: State, total: Array) -> State:
    """Centres by class, if the classes lie apart: at each site its own, here those of all."""
    classes, shape = meaning.centered_classes(state), meaning.shape_of(state)
    by, far = total[:classes], total[classes : 2 * classes]
    differs = far / np.maximum(by, 1.0)
    state = state._replace(step="edge")
    if differs.max() < robust.CLASS_DIFFERS * np.count_nonzero(shape):
        return state
    found = total[2 * classes :].reshape(classes, -1) / np.maximum(by, 1.0)[:, None]
    assert state.centers is not None
    return state._replace(centers=np.where(by[:, None] > 0, found, state.centers[0])[None])


def _drifting(agreed: Agreement | State) -> list[int]:
    """The features whose spread matters, and what is predicted, if it is a number."""
    assert agreed.transform is not None
    dims, held = len(agreed.transform.names), meaning.frozen_of(agreed.study, agreed.transform)
    free = [k for k in range(dims) if k not in held]
    return [*free, *([dims] if agreed.target is not None else [])]
