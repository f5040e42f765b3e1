"""How good a model's answers are: which classes it finds, and whether its probabilities hold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dorfl.study import serving
from dorfl.study.model import Model
from dorfl.study.rows import Rows
from dorfl.support.types import Array

_BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of the probability of the class that is said
_BLOCK = 65_536


class Bin(NamedTuple):
    """Rows whose answer is said with a probability from `low` to `high`, and how many are right."""

    low: float
    high: float
    rows: int
    said: float  # the mean of those probabilities
    right: float


class Classes(NamedTuple):
    """Class by class: `confusion[i][j]` rows of class i are said to be j.

    A recall of a class without rows, or a precision of one never said, is not known. `error` is how
    far what is said is from what is right, on average over rows.
    """

    names: tuple[str, ...]
    confusion: list[list[int]]
    recall: list[float | None]
    precision: list[float | None]
    calibration: list[Bin]
    error: float


def by_class(model: Model, rows: Rows) -> Classes:
    """What is taken for what, and how sure the model is of it."""
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
    return Classes(
        model.classes, confusion.tolist(), _shares(hits, confusion.sum(axis=1)),
        _shares(hits, confusion.sum(axis=0)), bins, error,
    )  # fmt: skip


def auc(model: Model, rows: Rows) -> dict[str | None, float]:
    """The area under the ROC curve by client, for two classes, where both occur; None: all rows."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - slow to import, training needs none

    problem, theta = model.fit.problem, model.fit.theta
    return {
        name: float(roc_auc_score(y, serving.outputs(problem, theta, X)))
        for name, (X, y) in [*rows.clients.items(), (None, (rows.X, rows.y))]
        if len(model.classes) == 2 and 0 < y.sum() < len(y)
    }


def constant(model: Model, rows: Rows) -> tuple[str, float]:
    """The simplest answer, the same for all rows, in words; and what it scores here."""
    if not model.classifies:
        unit = model.target.spread if model.target else 1.0
        return "the median", float(unit * np.abs(rows.y - np.median(rows.y)).mean())
    counts = np.bincount(rows.y.astype(int), minlength=len(model.classes))
    name = model.classes[int(counts.argmax())]
    return f"the most frequent class, {name!r}", float(counts.max() / counts.sum())


def _shares(hits: Array, of: Array) -> list[float | None]:
    return [h / n if n else None for h, n in zip(hits.tolist(), of.tolist(), strict=True)]
