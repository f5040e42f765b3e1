"""What clients and server agree on before the first round: method, loss, classes. No data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dorfl.objective.losses import Loss, encode
from dorfl.objective.methods import Method
from dorfl.objective.scores import Custom, Quadratic, Threshold
from dorfl.oracle import kernels
from dorfl.oracle.curvature import Shape
from dorfl.oracle.inner import Geometry, geometry
from dorfl.support.types import Array


@dataclass(frozen=True, eq=False)
class Problem:
    """What clients and server agree on before the first round; no data in it."""

    method: Method
    loss: Loss
    dims: int
    classes: Array
    intercept: bool = True

    @cached_property
    def outputs(self) -> int:
        """How many numbers the model computes for a row."""
        return len(self.classes) if self.loss.kind == kernels.SOFTMAX else 1

    @cached_property
    def size(self) -> int:
        """How many parameters the model has."""
        return self.outputs * (self.dims + self.intercept)

    @property
    def constrained(self) -> bool:
        """Whether ρ is an unknown too: the last entry of what server and clients exchange."""
        return self.method.radius is not None

    def priced(self, rho: float) -> Problem:
        """The same problem with another price ρ."""
        return replace(self, method=self.method.priced(rho))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape users see θ in: a vector, or for softmax one row per class."""
        row = self.dims + self.intercept
        return (row,) if self.outputs == 1 else (self.outputs, row)

    @cached_property
    def layout(self) -> Shape:
        """How the parameters are laid out: a row of weights, intercept last, for every output."""
        return Shape(self.outputs, self.dims + self.intercept)

    def split(self, theta: Array) -> tuple[Array, Array]:
        """θ as weights (outputs, dims) and intercepts (outputs,)."""
        table = np.asarray(theta, dtype=np.float64).reshape(self.outputs, -1)
        if not self.intercept:
            return table, np.zeros(self.outputs)
        return np.ascontiguousarray(table[:, :-1]), table[:, -1].copy()

    def predict(self, theta: Array, rows: Array) -> Array:
        """The model's outputs for rows: (n,), or (n, classes) for softmax."""
        weights, intercept = self.split(theta)
        out = np.asarray(rows) @ weights.T + intercept
        return np.asarray(out if self.outputs > 1 else out[:, 0])

    def check(self) -> None:
        """Raise where cost, score and loss do not fit together."""
        cost, score = self.method.cost, self.method.score
        cost.weights(self.dims)
        if np.isfinite(cost.label_price) and not self.loss.classifies:
            raise ValueError(f"label_price: {self.loss.name} loss has no classes to change")
        if isinstance(score, Quadratic):
            score.shape(self.dims)
        if isinstance(score, Threshold):
            if not self.loss.classifies:
                raise ValueError(f"threshold score: {self.loss.name} loss has no labels to look at")
            if not 0 <= score.column < self.dims:
                raise ValueError(
                    f"threshold(column={score.column}): there are columns 0 to {self.dims - 1}"
                )
            if score.label not in self.classes:
                known = ", ".join(map(repr, self.classes.tolist()))
                raise ValueError(f"threshold(label={score.label!r}): y only has {known}")

    @property
    def unbounded(self) -> bool:
        """Whether separable rows would leave the objective without a finite minimiser."""
        still = np.isinf(self.method.rho * self.method.cost.weights(self.dims)).any()
        return self.loss.classifies and bool(still) and self.method.score is None

    @cached_property
    def geometry(self) -> Geometry:
        """The quadratic that cost and score make; see :mod:`dorfl.oracle.inner`."""
        weights, score = self.method.cost.weights(self.dims), self.method.score
        if isinstance(score, Quadratic):
            return geometry(self.method.rho, weights, score.weight, score.shape(self.dims))
        return geometry(self.method.rho, weights)

    def is_finite(self, theta: Array) -> bool:
        """Whether the supremum is finite at θ (always, except for the squared loss)."""
        if self.constrained and theta.size > self.size:
            return bool(theta[-1] > 0) and self.priced(theta[-1]).is_finite(theta[:-1])
        if np.isinf(self.loss.finite_below):
            return True
        weights, _ = self.split(theta)
        return float(self.geometry.spread(weights)[0, 0]) < self.loss.finite_below

    @cached_property
    def threshold(self) -> tuple[float, ...]:
        """The threshold score as the kernel takes it: all zero where there is none."""
        score = self.method.score
        if not isinstance(score, Threshold) or self.approximate:
            return (0.0,) * 6
        stiffness = float(self.method.rho * self.method.cost.weights(self.dims)[score.column])
        marked = float(encode(self.loss, np.array([score.label]), self.classes)[0])
        return float(score.column), stiffness, score.level, score.softness, score.weight, marked

    @cached_property
    def frozen_threshold(self) -> bool:
        """Whether the threshold's column cannot move: the score is then a constant of the row."""
        score = self.method.score
        return isinstance(score, Threshold) and bool(
            np.isinf(self.method.rho * self.method.cost.weights(self.dims)[score.column])
        )

    @cached_property
    def approximate(self) -> bool:
        """Whether the supremum has no closed form here and is found by ascent."""
        score = self.method.score
        if np.isinf(self.method.rho):
            return False
        softmax = self.loss.kind == kernels.SOFTMAX
        return isinstance(score, Custom) or (
            isinstance(score, Threshold) and softmax and not self.frozen_threshold
        )
