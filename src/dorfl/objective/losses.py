"""Losses l(t, y) of a linear model's output t: what the model is trained to make small.

A loss of your own is a subclass of :class:`~dorfl.objective.kinds.Loss`.

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
from scipy.special import logsumexp
from scipy.special import softmax as chances

from dorfl.objective.kinds import Loss
from dorfl.support.types import Array


@dataclass(frozen=True)
class Logistic(Loss):
    """log(1 + e^{−y t}), y = ±1."""

    name = supremum = "logistic"
    classifies = unbounded = bends = True
    curvature = 0.25
    steep = 1.0

    def value(self, outputs: Array, target: Array) -> Array:
        return np.asarray(np.logaddexp(0.0, -target * outputs))

    def slope(self, outputs: Array, target: Array) -> Array:
        return np.asarray(-target * np.exp(-np.logaddexp(0.0, target * outputs)))[:, None]

    def bend(self, slope: Array, target: Array, value: Array) -> Array:
        s = np.abs(slope)
        return np.asarray(s * (1.0 - s))[:, :, None]

    def ceiling(self, output: Any, target: Array, outputs: int) -> Array:
        return np.asarray(np.logaddexp(0.0, output) + np.zeros(len(target)))


@dataclass(frozen=True)
class Softmax(Loss):
    """log Σ_c e^{t_c} − t_y, y the number of the class."""

    name = supremum = "softmax"
    classifies = unbounded = bends = invariant = True
    curvature = 0.5
    steep = 2.0**0.5

    def outputs(self, classes: int) -> int:
        return classes

    def value(self, outputs: Array, target: Array) -> Array:
        rows = np.arange(len(target))
        return np.asarray(logsumexp(outputs, axis=1) - outputs[rows, target.astype(int)])

    def slope(self, outputs: Array, target: Array) -> Array:
        g = chances(outputs, axis=1)
        g[np.arange(len(target)), target.astype(int)] -= 1.0
        return np.asarray(g)

    def bend(self, slope: Array, target: Array, value: Array) -> Array:
        chance = slope.copy()
        chance[np.arange(len(target)), target.astype(int)] += 1.0
        bend = -chance[:, :, None] * chance[:, None, :]
        np.einsum("ncc->nc", bend)[:] += chance
        return np.asarray(bend)


@dataclass(frozen=True)
class Squared(Loss):
    """½ (t − y)²."""

    name = supremum = "squared"
    bends = True
    curvature = 1.0
    finite_below = 1.0

    def value(self, outputs: Array, target: Array) -> Array:
        return np.asarray(0.5 * np.abs(outputs - target) ** 2)

    def slope(self, outputs: Array, target: Array) -> Array:
        return np.asarray(outputs - target)[:, None]

    def bend(self, slope: Array, target: Array, value: Array) -> Array:
        return np.ones((*slope.shape, 1))

    def bounds(
        self, output: float, spread: float, targets: Array, outputs: int
    ) -> tuple[float, float]:
        """The most that supremum and slope can be: nothing bounds them from a spread of 1 on."""
        if spread >= 1.0:
            return np.inf, np.inf
        far = output + float(np.abs(targets).max())
        return 0.5 * far**2 / (1.0 - spread), far / (1.0 - spread)


@dataclass(frozen=True)
class Huber(Loss):
    """½ (t − y)² up to a residual of `delta`, linear beyond."""

    name = supremum = "huber"
    bends = covers = has_unit = True
    curvature = 1.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.delta) and self.delta > 0):
            raise ValueError(f"huber(delta={self.delta}): delta must be a positive number")

    def scaled(self, unit: float) -> Huber:
        return Huber(self.delta * unit)

    @property
    def steep(self) -> float:
        return self.delta

    @property
    def parameter(self) -> float:
        return self.delta

    def value(self, outputs: Array, target: Array) -> Array:
        residual = np.abs(outputs - target)
        linear = self.delta * (residual - 0.5 * self.delta)
        return np.asarray(np.where(residual <= self.delta, 0.5 * residual**2, linear))

    def slope(self, outputs: Array, target: Array) -> Array:
        return np.asarray(np.clip(outputs - target, -self.delta, self.delta))[:, None]

    def bend(self, slope: Array, target: Array, value: Array) -> Array:
        """∂²l/∂t² of every row; beyond `delta`, that of the parabola that covers the loss."""
        residual = np.maximum(value / self.delta + 0.5 * self.delta, self.delta)
        inside = np.abs(slope) < self.delta
        return np.where(inside, 1.0, self.delta / residual[:, None])[:, :, None]


KINDS: dict[str, type[Loss]] = {
    kind.name: kind for kind in (Logistic, Softmax, Squared, Huber)
}  # a new loss is a file and a place here

logistic, squared = Logistic(), Squared()


def huber(delta: float = 1.0) -> Huber:
    """Quadratic up to a residual of `delta`, linear beyond."""
    return Huber(float(delta))


def resolve(loss: str | Loss) -> Loss:
    """The loss itself, or the one of that name."""
    if isinstance(loss, Loss):
        return loss
    if loss in ("exponential", "poisson"):
        raise ValueError(
            f"loss={loss!r} grows faster than the transport cost, so its supremum is infinite; "
            f"choose one of {', '.join(KINDS)}"
        )
    if loss not in KINDS:
        raise ValueError(f"loss={loss!r} is unknown; choose one of {', '.join(KINDS)}")
    return KINDS[loss]()
