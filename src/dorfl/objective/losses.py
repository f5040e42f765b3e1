"""Losses l(t, y) of a linear model's output t: what the model is trained to make small.

>>> from dorfl import losses
>>> losses.resolve("logistic").name
'logistic'
>>> losses.huber(delta=0.5).delta
0.5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax

from dorfl.oracle import kernels
from dorfl.support.types import Array


@dataclass(frozen=True)
class Loss:
    """A loss with an exact inner supremum.

    `curvature` bounds ∂²l/∂t² (in the largest direction): with S = θᵀK⁻¹θ the spread of the model,
    the supremum is strictly concave when S · curvature < 1. `finite_below` is the spread from which
    the supremum is infinite, `steep` the largest ‖∂l/∂t‖.
    """

    name: str
    kind: int
    classifies: bool
    curvature: float
    finite_below: float = np.inf
    delta: float = 1.0
    steep: float = np.inf

    def value(self, outputs: Array, target: Array) -> Array:
        """l of every row; `outputs` is (n,) or, for softmax, (n, classes); `target` as encoded."""
        if self.kind == kernels.SOFTMAX:
            rows = np.arange(len(target))
            return np.asarray(logsumexp(outputs, axis=1) - outputs[rows, target.astype(int)])
        if self.kind == kernels.LOGISTIC:
            return np.asarray(np.logaddexp(0.0, -target * outputs))
        residual = np.abs(outputs - target)
        if self.kind == kernels.SQUARED:
            return np.asarray(0.5 * residual**2)
        inside = residual <= self.delta
        linear = self.delta * (residual - 0.5 * self.delta)
        return np.asarray(np.where(inside, 0.5 * residual**2, linear))

    def slope(self, outputs: Array, target: Array) -> Array:
        """∂l/∂t of every row, as (n, outputs)."""
        if self.kind == kernels.SOFTMAX:
            g = softmax(outputs, axis=1)
            g[np.arange(len(target)), target.astype(int)] -= 1.0
            return np.asarray(g)
        if self.kind == kernels.LOGISTIC:
            return np.asarray(-target * np.exp(-np.logaddexp(0.0, target * outputs)))[:, None]
        residual = outputs - target
        if self.kind == kernels.HUBER:
            residual = np.clip(residual, -self.delta, self.delta)
        return np.asarray(residual)[:, None]

    def bend(self, slope: Array, target: Array, value: Array) -> Array:
        """The diagonal of ∂²l/∂t² of every row from its l (n,) and ∂l/∂t, as (n, outputs).

        Huber's loss has none beyond `delta`: there it is that of the parabola that covers it.
        """
        if self.kind == kernels.SOFTMAX:
            p = slope.copy()
            p[np.arange(len(target)), target.astype(int)] += 1.0
            return np.asarray(p * (1.0 - p))
        if self.kind == kernels.LOGISTIC:
            s = np.abs(slope)
            return np.asarray(s * (1.0 - s))
        if self.kind == kernels.HUBER:
            residual = np.maximum(value / self.delta + 0.5 * self.delta, self.delta)
            return np.where(np.abs(slope) < self.delta, 1.0, self.delta / residual[:, None])
        return np.ones_like(slope)


logistic = Loss("logistic", kernels.LOGISTIC, classifies=True, curvature=0.25, steep=1.0)
softmax_loss = Loss("softmax", kernels.SOFTMAX, classifies=True, curvature=0.5, steep=2.0**0.5)
squared = Loss("squared", kernels.SQUARED, classifies=False, curvature=1.0, finite_below=1.0)


def huber(delta: float = 1.0) -> Loss:
    """Quadratic up to a residual of `delta`, linear beyond."""
    if not (np.isfinite(delta) and delta > 0):
        raise ValueError(f"huber(delta={delta}): delta must be a positive number")
    d = float(delta)
    return Loss("huber", kernels.HUBER, classifies=False, curvature=1.0, delta=d, steep=d)


_NAMED = {"logistic": logistic, "softmax": softmax_loss, "squared": squared, "huber": huber()}


def resolve(loss: str | Loss) -> Loss:
    """The loss itself, or the one of that name."""
    if isinstance(loss, Loss):
        return loss
    if loss in ("exponential", "poisson"):
        raise ValueError(
            f"loss={loss!r} grows faster than the transport cost, so its supremum is infinite; "
            f"choose one of {', '.join(_NAMED)}"
        )
    if loss not in _NAMED:
        raise ValueError(f"loss={loss!r} is unknown; choose one of {', '.join(_NAMED)}")
    return _NAMED[loss]


def encode(loss: Loss, labels: Array, classes: Array) -> Array:
    """Labels as the kernel wants them: ±1, class numbers, or the values themselves."""
    if not loss.classifies:
        return np.asarray(labels, dtype=np.float64)
    position = np.searchsorted(classes, labels).astype(np.float64)
    return 2.0 * position - 1.0 if loss.kind == kernels.LOGISTIC else position


def decode(loss: Loss, target: Array, classes: Array) -> Any:
    """The labels behind encoded targets."""
    if not loss.classifies:
        return target
    position = (target + 1.0) / 2.0 if loss.kind == kernels.LOGISTIC else target
    return classes[position.astype(int)]
