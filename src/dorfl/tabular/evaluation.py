"""Measure a model on labelled rows: accuracy with standard errors, classes, calibration.

One definition holds for `dorfl train`, `evaluate` and `compare`. A row's score is 1 if its class is
predicted and 0 if not, or its absolute error. The score of a client is the mean over its rows; the
overall score is the mean over all rows. Standard errors are those of means of independent rows; the
overall one is stratified by client (Cochran 1977, *Sampling Techniques*, 5.3). Every score is given
over inliers (:func:`dorfl.tabular.audit.is_inlier`) and over all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dorfl.federated.fit import probabilities
from dorfl.protocol import training_rows
from dorfl.support.types import Array
from dorfl.tabular.model import Model
from dorfl.tabular.model.facts import Estimate
from dorfl.tabular.rows import Rows

_BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # edges in the probability of the predicted class
_BLOCK = 65_536  # rows predicted at once


class Scores(NamedTuple):
    """Means of a quantity over all rows and over the rows of each client that has any."""

    overall: Estimate
    clients: dict[str, Estimate]


class Bin(NamedTuple):
    """Rows whose class is predicted with a probability from `low` to `high`.

    `said` is the mean predicted probability, `right` the share of correct predictions.
    """

    low: float
    high: float
    rows: int
    said: float
    right: float


class Classes(NamedTuple):
    """Results by class; `confusion[i][j]` counts rows of class i that are predicted as j.

    The recall of a class without rows, and the precision of a class that is never predicted, are
    None. `error` is the expected calibration error: the mean of |probability − accuracy| over bins.
    """

    names: tuple[str, ...]
    confusion: list[list[int]]
    recall: list[float | None]
    precision: list[float | None]
    calibration: list[Bin]
    error: float


def estimate(values: Array, owner: Array) -> Estimate:
    """Return the mean of (n,) values and its standard error, stratified by owner.

    A stratum of one row has the pooled variance.

    >>> values, owner = np.array([1.0, 1.0, 1.0, 0.0]), np.array([0, 0, 1, 1])
    >>> found = estimate(values, owner)
    >>> found.mean, round(found.error, 4), found.rows
    (0.75, 0.25, 4)
    """
    count = np.bincount(owner)
    count, owner = count[count > 0], np.unique(owner, return_inverse=True)[1]
    means = np.bincount(owner, values) / count
    squares = np.bincount(owner, (values - means[owner]) ** 2)
    rows, freedom = len(values), len(values) - len(count)
    if not freedom:
        return Estimate(float(values.mean()), None, rows)
    pooled = squares.sum() / freedom
    variances = np.where(count > 1, squares / np.maximum(count - 1, 1), pooled)
    return Estimate(float(values.mean()), float(np.sqrt(count @ variances)) / rows, rows)


def summarise(
    values: Array, owner: Array, names: Sequence[str], used: Array | None = None
) -> Scores:
    """Return the mean of the used values overall and by client; `owner` is ascending."""
    if used is not None:
        values, owner = values[used], owner[used]
    ends = np.searchsorted(owner, np.arange(len(names) + 1)).tolist()
    clients = {
        name: estimate(values[first:stop], owner[first:stop])
        for name, (first, stop) in zip(names, pairwise(ends), strict=True)
        if first < stop
    }
    return Scores(estimate(values, owner), clients)


def row_scores(model: Model, rows: Rows) -> Array:
    """Return (n,) 1 for a row whose class is predicted and 0 for others, or absolute errors."""
    problem, out = model.fit.problem, _outputs(model, rows)
    if not model.classifies:
        unit = model.target.spread if model.target else 1.0
        return np.asarray(unit * np.abs(out - rows.y))
    return np.asarray(problem.loss.predict(out, problem.classes) == rows.y, dtype=float)


def row_losses(model: Model, rows: Rows) -> Array:
    """Return (n,) the training loss of each row where it lies."""
    problem = model.fit.problem
    return np.asarray(problem.loss.value(_outputs(model, rows), problem.encode(rows.y)))


def brier_scores(model: Model, rows: Rows) -> Array:
    """Return (n,) Brier scores of a classifier, from 0 to 2."""
    return _brier(probabilities(_outputs(model, rows)), rows.y)


def constant_scores(model: Model, y: Array, rows: Rows) -> tuple[Array, Array | None]:
    """Return (n,) scores of a constant prediction, and Brier scores unless it is a regression.

    The constant is that of labels `y`: their most frequent class, with the probabilities of their
    frequencies, or their median.
    """
    if not model.classifies:
        unit = model.target.spread if model.target else 1.0
        return unit * np.abs(rows.y - np.median(y)), None
    share = np.bincount(y.astype(int), minlength=len(model.classes)) / len(y)
    scores = np.asarray(rows.y == share.argmax(), dtype=float)
    return scores, _brier(np.tile(share, (len(rows.y), 1)), rows.y)


def _brier(p: Array, y: Array) -> Array:
    p[np.arange(len(y)), y.astype(int)] -= 1.0
    return np.asarray((p**2).sum(axis=1))


def _outputs(model: Model, rows: Rows) -> Array:
    return training_rows.outputs(model.fit.problem, model.fit.theta, rows.X)


def by_class(model: Model, rows: Rows) -> Classes:
    """Return the confusion matrix, recall, precision and calibration over all rows."""
    blocks = range(0, len(rows.X), _BLOCK)
    chances = np.concatenate([model.fit.predict_proba(rows.X[k : k + _BLOCK]) for k in blocks])
    said, y, count = chances.argmax(axis=1), rows.y.astype(int), len(model.classes)
    confusion = np.bincount(y * count + said, minlength=count**2).reshape(count, count)
    top, right = chances.max(axis=1), said == y
    place = np.clip(np.searchsorted(_BINS, top, side="right") - 1, 0, len(_BINS) - 2)
    bins = [
        Bin(
            _BINS[k], _BINS[k + 1], int(own.sum()), float(top[own].mean()), float(right[own].mean())
        )
        for k in range(len(_BINS) - 1)
        if (own := place == k).any()
    ]
    error = sum(b.rows * abs(b.said - b.right) for b in bins) / len(y)
    hits = np.diag(confusion)
    recall, precision = (_shares(hits, confusion.sum(axis=axis)) for axis in (1, 0))
    return Classes(model.classes, confusion.tolist(), recall, precision, bins, error)


def auc(model: Model, rows: Rows) -> dict[str | None, float]:
    """Return the area under the ROC curve of each client, and of all rows under None.

    Only for two classes, and only for clients with rows of both.
    """
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - slow to import, training needs none

    problem, theta = model.fit.problem, model.fit.theta
    return {
        name: float(roc_auc_score(y, training_rows.outputs(problem, theta, X)))
        for name, (X, y) in [*rows.clients.items(), (None, (rows.X, rows.y))]
        if len(model.classes) == 2 and 0 < y.sum() < len(y)
    }


def _shares(hits: Array, of: Array) -> list[float | None]:
    return [h / n if n else None for h, n in zip(hits.tolist(), of.tolist(), strict=True)]
