"""Compare a model's loss with that of the best constant prediction.

Both are on the training rows, with the final weights of clients (λ) and rows (p), so that outliers
do not count. A minimiser cannot be worse than a constant under these weights; without progress in
training it is no better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import entr

from dorfl.linear.problem import Problem
from dorfl.support.types import Array


class Learnt(NamedTuple):
    """A client's part: its weighted loss, and what the loss of a constant prediction depends on.

    `classes` has the weight of each class; for a regression `middle` is the loss of predicting 0,
    the centre of the label.
    """

    loss: float
    classes: tuple[float, ...] = ()
    middle: float = 0.0


def measure(problem: Problem, loss: Array, y: Array, weights: Array) -> Learnt:
    """Return a client's part from its rows' losses, encoded labels, and weights that sum to 1."""
    own = float(weights @ loss)
    if not problem.loss.classifies:
        return Learnt(own, middle=float(weights @ problem.loss.value(np.zeros(len(y)), y)))
    places = np.searchsorted(problem.classes, problem.decode(y))
    return Learnt(own, tuple(np.bincount(places, weights, len(problem.classes)).tolist()))


def against(parts: Sequence[Learnt], lam: Array) -> tuple[float, float]:
    """Return the mixture's loss and that of the best constant (in a regression, 0).

    >>> balanced, sure = Learnt(0.7, (0.5, 0.5)), Learnt(0.1, (0.0, 1.0))
    >>> loss, constant = against([balanced, sure], np.array([1.0, 0.0]))
    >>> loss, round(constant, 6)
    (0.7, 0.693147)
    """
    loss = float(lam @ [part.loss for part in parts])
    if not parts[0].classes:
        return loss, float(lam @ [part.middle for part in parts])
    return loss, float(entr(lam @ [part.classes for part in parts]).sum())
