"""Labels that do not fit their rows: an audit, whatever training made of them.

A label is judged by a reference that did not see its row: plain training (a number's by Huber's
loss, which wrong ones hardly pull) on four fifths of the rows, five times. What is surprising is
relative. A **number** does not fit where it is further from what the reference says than `FAR`
robust units of such residuals. A **class** does not fit where another one is as likely as it is on
the typical row of that other class, *and* where the odds of the own one are below those of its
class by more than `ODD` robust deviations: in a class that the reference knows badly hardly a label
is odd, and none is for being there.

>>> odds = np.log([[0.9, 0.1]] * 6 + [[0.8, 0.2]] * 5 + [[0.02, 0.98]] + [[0.1, 0.9]] * 9)
>>> odd(odds, np.array([0] * 12 + [1] * 9)).nonzero()[0].tolist()
[11]
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from dorfl.federation import training
from dorfl.objective import methods
from dorfl.objective.kinds import Loss
from dorfl.study import labels, suspects, tuning
from dorfl.study.audit import number
from dorfl.study.model import Model
from dorfl.study.rows import Rows
from dorfl.support.text import percent
from dorfl.support.types import Array

ODD = 2.5  # robust standard deviations
_FOLDS = 5
_ROBUST = 1.4826  # medians of absolute deviations in a standard deviation


class Misfits(NamedTuple):
    """Rows whose label does not fit, the most surprising first: places in `Rows`, what is said.

    `said` is the class that the reference takes the row for, or the number it says; `sure` how
    likely that class is (1 for a number).
    """

    places: Array
    said: Array
    sure: Array


NONE = Misfits(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


def misfits(model: Model, rows: Rows, counted: Array | None = None) -> Misfits:
    """The rows among those `counted` (all if not said) whose label does not fit the others.

    Nothing is said of fewer than `suspects.FEWEST` rows, nor of classes with fewer rows than folds.
    """
    used = np.ones(len(rows.y), dtype=bool) if counted is None else counted.copy()
    if model.classifies:
        used &= np.bincount(rows.y[used], minlength=len(model.classes))[rows.y] >= _FOLDS
    places = np.flatnonzero(used)
    known = np.unique(rows.y[used])
    if len(places) < suspects.FEWEST or len(known) < 2:
        return NONE
    out = unseen(model.fit.problem.loss, rows.X[used], rows.y[used])
    if not model.classifies:
        off = np.abs(out[:, 0] - rows.y[used])
        unit = _ROBUST * float(np.median(off))
        order = np.argsort(-off, kind="stable")
        told = unit > 0 and not suspects.one_valued(rows.y[used])
        order = order[off[order] > suspects.FAR * unit] if told else order[:0]
        return Misfits(places[order], out[order, 0], np.ones(len(order)))
    codes = np.searchsorted(known, rows.y[used])
    found = np.flatnonzero(odd(out, codes))
    other = _others(out, codes)[found]
    sure = out[found, other]
    order = np.argsort(-sure, kind="stable")
    return Misfits(places[found[order]], known[other[order]], np.exp(sure[order]))


def listed(model: Model, rows: Rows, found: Misfits) -> list[tuple[int, str, str, str]]:
    """Place in the file (from 1), client, label, and what rows like it have, as people read it."""
    owner = np.searchsorted(rows.bounds, found.places, side="right") - 1

    def told(value: float) -> str:
        target = model.target
        if target is None:
            return model.classes[int(value)]
        return number(target.center + target.spread * value, target)

    return [
        (
            int(rows.order[k]) + 1, rows.names[i], told(rows.y[k]),
            told(said) + (f" ({percent(sure, 0)})" if model.classifies else ""),
        )
        for k, i, said, sure in zip(found.places, owner, found.said, found.sure, strict=True)
    ]  # fmt: skip


def unseen(loss: Loss, X: Array, y: Array) -> Array:
    """Of every row what a model trained without it says: log probabilities, or a number."""
    fold = tuning.folds_of({"": (X, y)}, _FOLDS, seed=0)[""]
    parts = np.empty((len(y), len(np.unique(y)) if loss.classifies else 1))
    for k in range(_FOLDS):
        here, rest = fold == k, fold != k
        own = {"all": (X[rest], labels.for_training(y[rest], loss))}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it has come to after so many rounds will do
            fit = training.train(
                own, methods.erm(), loss=loss, l2=1.0 / int(rest.sum()), tol=suspects.TOL
            )
        if loss.classifies:
            parts[here] = np.log(np.maximum(fit.predict_proba(X[here]), 1e-300))
        else:
            parts[here, 0] = fit.predict(X[here])
    return parts


def odd(likely: Array, codes: Array) -> Array:
    """Which classes do not fit, by the log probabilities (rows, classes) of models without them."""
    rows, other = np.arange(len(codes)), _others(likely, codes)
    ahead = likely[rows, codes] - likely[rows, other]
    typical, middle, wide = np.zeros((3, likely.shape[1]))
    for k in np.unique(codes):
        own = codes == k
        typical[k], middle[k] = np.median(likely[own, k]), np.median(ahead[own])
        wide[k] = _ROBUST * np.median(np.abs(ahead[own] - middle[k]))
    contradicted = (likely[rows, other] >= typical[other]) & (ahead < 0.0)
    return np.asarray(contradicted & (middle[codes] - ahead > ODD * wide[codes]))


def _others(likely: Array, codes: Array) -> Array:
    """The most likely class beside the own one."""
    rest = likely.copy()
    rest[np.arange(len(codes)), codes] = -np.inf
    return np.asarray(rest.argmax(axis=1))
