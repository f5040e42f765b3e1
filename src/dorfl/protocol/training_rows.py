"""The rows that a client trains with, and their weights; the same at a site and in one process."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dorfl.linear.problem import Problem
from dorfl.protocol import labels, resolution
from dorfl.protocol.messages import Agreement, Refused
from dorfl.selection import outliers
from dorfl.support.types import Array

BIWEIGHT = 4.685  # scales: Tukey's biweight with 95 % efficiency (Maronna et al. 2019, 2.3.3)
BLOCK_ROWS = 65_536  # rows that a model is applied to at a time
_MAX_FEATURE = 1e15  # of a row under differential privacy: its square fits single precision
_LEAST_WEIGHT = 1e-5  # of a row with an outlying label: a client's weights must not all vanish


def features(rows: pa.Table, agreement: Agreement) -> tuple[Array, Array]:
    """Return (n, d) standardised rows and (n,) labels as they are trained on."""
    study, name = agreement.study, agreement.study.data.label
    try:
        y, _ = labels.encode(rows.column(name), name, agreement.classes, agreement.target)
    except labels.UnknownClassError:  # its text names a value of the rows
        raise Refused(
            "some rows have a label that is not among the study's classes; name them all: "
            "[data] classes = [...]"
        ) from None
    X = agreement.transform.apply(rows, resolution.dtype_of(study)).X
    # With noise a row must not change others, and needs no others to hide among.
    if study.privacy.epsilon is None:
        X = hold_constant(X, study.privacy.least)
    else:  # an infinite entry would be an error, which has no noise
        X = np.clip(X, -_MAX_FEATURE, _MAX_FEATURE)
    return X, labels.for_training(y, resolution.loss_of(study, len(agreement.classes)))


def hold_constant(rows: Array, least: int) -> Array:
    """Return the rows with columns held constant in which fewer than `least` of them differ.

    Statistics of such a column would be those rows' own. So a level has `least` rows, or none.

    >>> rows = np.array([[0.0, 1.0], [0.0, 2.0], [7.0, 3.0], [0.0, 4.0], [0.0, 5.0]])
    >>> hold_constant(rows, least=2).T
    array([[0., 0., 0., 0., 0.],
           [1., 2., 3., 4., 5.]])
    """
    if least <= 1 or not len(rows):
        return rows
    few = np.sort(rows[: 2 * least - 1], axis=0)  # most of them have the value that nearly all have
    common = few[len(few) // 2]
    differing = (rows != common).sum(axis=0)
    rare = np.flatnonzero((differing > 0) & (differing < least))
    if not len(rare):
        return rows
    rows = rows.copy()
    rows[:, rare] = common[rare]
    return rows


def select(X: Array, y: Array, agreed: Agreement) -> tuple[Array, Array]:
    """Return the rows that a client trains with: all, or the training rows of candidates."""
    if agreed.candidate is None:
        return X, y
    places, _ = outliers.split_rows(len(y), agreed.row_limit, y if agreed.classes else None)
    return hold_constant(X[places], agreed.study.privacy.least), y[places]


def weights(problem: Problem, X: Array, y: Array, agreed: Agreement) -> Array | None:
    """Return the weights of rows by their labels, or None if labels are not down-weighted."""
    if agreed.reference is None or not resolution.labels_of(agreed):
        return None
    return label_weights(problem, agreed.reference, X, y)


def label_weights(problem: Problem, reference: Array, X: Array, y: Array) -> Array:
    """Return Tukey's biweights of residuals: the reweighting step of an MM-estimator.

    `reference` is (θ, σ) of an M-estimate with Huber's loss.

    References
    ----------
    Yohai, V. J. (1987). High breakdown-point and high efficiency robust estimates for regression.
    """
    theta, scale = reference[:-1], float(reference[-1])
    away = (outputs(problem, theta, X) - y) / (BIWEIGHT * scale)
    return np.asarray(np.maximum(np.maximum(1.0 - away**2, 0.0) ** 2, _LEAST_WEIGHT))


def outputs(problem: Problem, theta: Array, X: Array) -> Array:
    """Return the model's outputs, computed in blocks of rows to save memory."""
    starts = range(0, max(len(X), 1), BLOCK_ROWS)
    return np.concatenate([problem.predict(theta, X[k : k + BLOCK_ROWS]) for k in starts])
