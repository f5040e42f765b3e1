"""List rows whose label does not fit, by out-of-fold predictions.

Every row is predicted by plain training on the other four fifths of the rows. A **class** does not
fit if two things hold. Another class is at least as likely as it is on the typical row of that
other class. And the log-odds of the own class are an outlier among the rows of that class: Hampel's
identifier, 2.5 robust deviations below the median. The second condition keeps a class that is hard
to predict from being listed as a whole; confident learning (Northcutt et al. 2021), which has only
the first one, listed a quarter of such a class. A **number** does not fit if its residual exceeds
4.685 robust scales, where Tukey's biweight vanishes (Maronna et al. 2019).

>>> p = np.array([[0.9, 0.1]] * 6 + [[0.8, 0.2]] * 5 + [[0.02, 0.98]] + [[0.1, 0.9]] * 9)
>>> misfits(p, np.array([0] * 12 + [1] * 9)).nonzero()[0].tolist()
[11]
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from dorfl.federated import training
from dorfl.objective import methods
from dorfl.objective.base import Loss
from dorfl.protocol import labels
from dorfl.protocol.training_rows import BIWEIGHT
from dorfl.selection import outliers
from dorfl.support.text import percent
from dorfl.support.types import Array
from dorfl.tabular.audit import number
from dorfl.tabular.model import Model
from dorfl.tabular.rows import Rows

FOLDS = 5
HAMPEL = 2.5  # robust deviations from the median (Hampel 1974; Maronna et al. 2019, 4.4.1)
FEWEST_ROWS = 30  # below which nothing is listed
_MAD_TO_SD = 1.4826  # standard deviations per median absolute deviation of a normal distribution


class LabelErrors(NamedTuple):
    """Rows whose label does not fit, the most surprising first."""

    places: Array  # indices into `Rows`
    predicted: Array  # the likeliest other class, or the predicted number
    confidence: Array  # probability of the predicted class; 1 for a number


NONE = LabelErrors(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


def find_label_errors(model: Model, rows: Rows, inliers: Array | None = None) -> LabelErrors:
    """Return the rows whose label does not fit, of the `inliers` or of all.

    Classes with fewer rows than folds are left out.
    """
    used = np.ones(len(rows.y), dtype=bool) if inliers is None else inliers.copy()
    if model.classifies:
        used &= np.bincount(rows.y[used], minlength=len(model.classes))[rows.y] >= FOLDS
    places, known = np.flatnonzero(used), np.unique(rows.y[used])
    if len(places) < FEWEST_ROWS or len(known) < 2:
        return NONE
    out = predict_out_of_fold(model.fit.problem.loss, rows.X[used], rows.y[used])
    if not model.classifies:
        residuals = np.abs(out[:, 0] - rows.y[used])
        cutoff = BIWEIGHT * _MAD_TO_SD * float(np.median(residuals))
        order = np.argsort(-residuals, kind="stable")
        order = order[residuals[order] > cutoff] if cutoff > 0 else order[:0]
        return LabelErrors(places[order], out[order, 0], np.ones(len(order)))
    codes = np.searchsorted(known, rows.y[used])
    found = np.flatnonzero(misfits(out, codes))
    predicted = _other_class(out, codes)[found]
    confidence = out[found, predicted]
    order = np.argsort(-confidence, kind="stable")
    return LabelErrors(places[found[order]], known[predicted[order]], confidence[order])


def describe(model: Model, rows: Rows, found: LabelErrors) -> list[tuple[int, str, str, str]]:
    """Return row number in the file (from 1), client, label, and prediction, as text."""
    owner = np.searchsorted(rows.bounds, found.places, side="right") - 1

    def written(value: float) -> str:
        target = model.target
        if target is None:
            return model.classes[int(value)]
        return number(target.center + target.spread * value, target)

    lines = []
    for k, i, value, p in zip(found.places, owner, found.predicted, found.confidence, strict=True):
        prediction = written(value) + (f" ({percent(p, 0)})" if model.classifies else "")
        lines.append((int(rows.order[k]) + 1, rows.names[i], written(rows.y[k]), prediction))
    return lines


def predict_out_of_fold(loss: Loss, X: Array, y: Array) -> Array:
    """Return predictions of models trained without the row: (n, classes) or (n, 1)."""
    fold = np.empty(len(y), dtype=np.int64)
    order = np.lexsort(
        [np.random.default_rng(0).random(len(y)), np.unique(y, return_inverse=True)[1]]
    )
    fold[order] = np.arange(len(y)) % FOLDS
    parts = np.empty((len(y), len(np.unique(y)) if loss.classifies else 1))
    for k in range(FOLDS):
        here, rest = fold == k, fold != k
        own = {"all": (X[rest], labels.for_training(y[rest], loss))}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unfinished training is accurate enough here
            fit = training.train(
                own, methods.erm(), loss=loss, l2=1.0 / int(rest.sum()), tol=outliers.TOLERANCE
            )
        parts[here] = (
            fit.predict_proba(X[here]) if loss.classifies else fit.predict(X[here])[:, None]
        )
    return parts


def misfits(p: Array, codes: Array) -> Array:
    """Return which class numbers do not fit the (n, classes) out-of-fold probabilities."""
    logs, rows, other = np.log(np.maximum(p, 1e-300)), np.arange(len(codes)), _other_class(p, codes)
    odds = logs[rows, codes] - logs[rows, other]
    typical, middle, scale = np.zeros((3, p.shape[1]))
    for k in np.unique(codes):
        own = codes == k
        typical[k], middle[k] = np.median(logs[own, k]), np.median(odds[own])
        scale[k] = _MAD_TO_SD * np.median(np.abs(odds[own] - middle[k]))
    contradicted = (logs[rows, other] >= typical[other]) & (odds < 0.0)
    return np.asarray(contradicted & (middle[codes] - odds > HAMPEL * scale[codes]))


def _other_class(p: Array, codes: Array) -> Array:
    """Return the likeliest class other than the label."""
    rest = p.copy()
    rest[np.arange(len(codes)), codes] = -np.inf
    return np.asarray(rest.argmax(axis=1))
