"""The problem of a linear model, without data: method, loss, columns and classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse

from dorfl.linear.base import Agreed
from dorfl.linear.curvature import Shape
from dorfl.linear.inner import Geometry, geometry
from dorfl.objective.base import Loss, Score
from dorfl.objective.methods import Method
from dorfl.objective.scores import Nothing
from dorfl.support.types import Array

INTERCEPT_RIDGE = 1e-3  # of l2: changes no prediction that matters, and makes the gap a bound
_COUPLED = 64  # outputs up to which terms that couple any three of them (300,000) are computed


@dataclass(frozen=True, eq=False)
class Problem(Agreed):
    """A linear model: its method and loss, its columns and classes."""

    method: Method
    loss: Loss
    dims: int
    classes: Array
    intercept: bool = True

    @cached_property
    def outputs(self) -> int:
        """The number of outputs of the model for a row."""
        return self.loss.outputs(len(self.classes))

    @cached_property
    def size(self) -> int:
        """The number of parameters of the model."""
        return self.outputs * (self.dims + self.intercept)

    @cached_property
    def score(self) -> Score:
        """The outlier score of the method; zero if it has none."""
        return Nothing() if self.method.score is None else self.method.score

    @cached_property
    def stiffness(self) -> Array:
        """ρ w, the cost of moving a row along each column; infinite for frozen columns."""
        return np.asarray(self.method.rho * self.method.cost.weights(self.dims))

    def priced(self, rho: float) -> Problem:
        """Return the problem with another price ρ."""
        return replace(self, method=self.method.priced(rho))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of θ for users: a vector, or for softmax one row per class."""
        row = self.dims + self.intercept
        return (row,) if self.outputs == 1 else (self.outputs, row)

    @cached_property
    def layout(self) -> Shape:
        """The layout of the parameters: a row of weights, intercept last, for every output."""
        apart = self.outputs == 1 or self.loss.invariant
        rows = (self.outputs, self.dims + self.intercept) if apart else (1, self.size)
        return Shape(*rows, self.others)

    @property
    def finest(self) -> str:
        """The finest curvature: blocks if many outputs are coupled by transport or tilt."""
        coupled = np.isfinite([self.method.rho, self.method.temperature]).any()
        return "blocks" if coupled and self.outputs > _COUPLED else super().finest

    @property
    def estimates_scale(self) -> bool:
        """True if the scale σ of residuals is an unknown too; see `ConcomitantHuber`."""
        return self.loss.estimates_scale

    @property
    def penalised(self) -> Array:
        """The share of `l2` of each parameter: 1 for weights, a thousandth for intercepts.

        Without any ridge on the intercept, the lower bound on the optimum would be −∞.
        """
        share = np.ones((self.outputs, self.dims + self.intercept))
        share[:, self.dims :] = INTERCEPT_RIDGE
        return share.ravel()

    @property
    def bends(self) -> bool:
        """True if clients can report curvature."""
        return self.loss.has_hessian and (self.outputs == 1 or self.loss.invariant)

    @property
    def smooth(self) -> bool:
        """True if no risk has a non-smooth point: a row that cannot move has one maximiser."""
        return self.bends and bool(np.isinf(self.method.rho))

    @property
    def covered(self) -> bool:
        """True if the reported curvature is that of a parabola above the risk."""
        return self.loss.majorizes

    def encode(self, labels: Array) -> Array:
        """Return labels encoded for the loss."""
        return self.loss.encode(labels, self.classes)

    def decode(self, target: Array) -> Array:
        """Return the labels of encoded targets."""
        return self.loss.decode(target, self.classes)

    def places(self, target: Array) -> Array:
        """Return the index of the class of every encoded target."""
        return np.searchsorted(self.classes, self.decode(target))

    def split(self, theta: Array) -> tuple[Array, Array]:
        """Return θ as weights (outputs, dims) and intercepts (outputs,)."""
        table = np.asarray(theta, dtype=np.float64).reshape(self.outputs, -1)
        if not self.intercept:
            return table, np.zeros(self.outputs)
        return np.ascontiguousarray(table[:, :-1]), table[:, -1].copy()

    def predict(self, theta: Array, rows: Array) -> Array:
        """Return the model's outputs for rows: (n,), or (n, classes) for softmax."""
        weights, intercept = self.split(theta)
        table = rows if sparse.issparse(rows) else np.asarray(rows)
        if table.shape[1] != self.dims:
            raise ValueError(
                f"X has {table.shape[1]} columns, the model was trained with {self.dims}"
            )
        out = table @ weights.T + intercept
        return np.asarray(out if self.outputs > 1 else out[:, 0])

    def check(self) -> None:
        """Raise ValueError if cost, score and loss do not fit together."""
        cost = self.method.cost
        cost.weights(self.dims)
        if np.isfinite(cost.label_price) and not self.loss.classifies:
            raise ValueError(f"label_price: {self.loss.name} loss has no classes to change")
        self.score.check(self.dims, self.classes)
        if self.estimates_scale and self.constrained:
            raise ValueError(
                "radius: goes with a loss of a given scale; give huber(delta) instead of "
                'scale="auto"'
            )
        if self.estimates_scale and self.method.mixture.by == "regret":
            raise ValueError(
                'mixture by="regret": goes with a loss of a given scale; give huber(delta) instead '
                'of scale="auto"'
            )

    @property
    def unbounded(self) -> bool:
        """True if the objective has no finite minimiser for separable rows."""
        still = bool(np.isinf(self.stiffness).any())
        return self.loss.unbounded and still and self.method.score is None

    @cached_property
    def geometry(self) -> Geometry:
        """The quadratic form of cost and score; see :mod:`dorfl.linear.inner`."""
        weights = self.method.cost.weights(self.dims)
        return geometry(self.method.rho, weights, self.score.hessian(self.dims))

    def is_finite(self, theta: Array) -> bool:
        """Return True if the supremum is finite at θ (always, except for the squared loss)."""
        if self.constrained and theta.size > self.size:
            return bool(theta[-1] > 0) and self.priced(theta[-1]).is_finite(theta[:-1])
        if np.isinf(self.loss.finite_below):
            return True
        weights, _ = self.split(theta)
        return float(self.geometry.spread(weights)[0, 0]) < self.loss.finite_below

    @cached_property
    def threshold(self) -> tuple[float, ...]:
        """The threshold score as the arguments of the kernel; all zero if there is none."""
        found = self.score.threshold_form(self.stiffness)
        if found is None or self.approximate:
            return (0.0,) * 6
        return (*found[0], float(self.encode(np.array([found[1]]))[0]))

    @cached_property
    def closed(self) -> bool:
        """True if the kernel has a closed form for the score; else rows with it cannot move."""
        return self.score.has_closed_form(self.stiffness, self.outputs)

    @cached_property
    def approximate(self) -> bool:
        """True if the supremum has no closed form and is found by ascent."""
        moves = bool(np.isfinite(self.method.rho))
        return not self.loss.supremum or (moves and not self.closed)
