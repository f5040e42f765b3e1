"""The robust loss of a row: a supremum over the points to which transport may move it.

    f(θ, ζ) = sup_x  l(θ, x, y) − h(x, y) − ρ c(x, ζ)

Cost and quadratic score are one quadratic −½ |u|² − penalty(ζ) in x = m + R u, as for linear models
(:mod:`dorfl.linear.inner`). The supremum is found by gradient ascent in u, for all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dorfl.linear.inner import geometry
from dorfl.networks.device import tensor
from dorfl.networks.model import Network, joined
from dorfl.objective.costs import Cost
from dorfl.support.types import Array

RowLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # outputs (n, k), labels (n,) → (n,)
RowScore: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # rows (n, …), labels (n,) → (n,)


def logistic(outputs: Tensor, y: Tensor) -> Tensor:
    """Return log(1 + exp(−y t)) for labels 0 and 1 and one output t each, summed over labels."""
    signs = 2.0 * y.to(outputs) - 1.0
    return _summed(functional.softplus(-signs * _matched(outputs, y), threshold=50))


def softmax(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of class numbers; for a sequence (n, T), the mean over T labels."""
    if y.ndim == 1:
        return functional.cross_entropy(outputs, y, reduction="none")
    each = functional.cross_entropy(outputs.movedim(-1, 1), y, reduction="none")
    return each.flatten(1).mean(1)


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Return ½ |t − y|²."""
    return _summed(0.5 * (_matched(outputs, y) - y) ** 2)


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Return ½ (t − y)², linear beyond a distance of 1; summed over several outputs."""
    y = y.to(outputs)
    return _summed(functional.huber_loss(_matched(outputs, y), y, reduction="none"))


def _matched(outputs: Tensor, y: Tensor) -> Tensor:
    """Return outputs (n, 1) as (n,) for labels (n,)."""
    return outputs[..., 0] if y.ndim == 1 else outputs


def _summed(each: Tensor) -> Tensor:
    """Return the sum of each row's losses over its outputs."""
    return each if each.ndim == 1 else each.flatten(1).sum(1)


LOSSES: dict[str, RowLoss] = {
    "logistic": logistic,
    "softmax": softmax,
    "squared": squared,
    "huber": huber,
}


class TransportGeometry(NamedTuple):
    """The quadratic of cost and score around a row: x = m + R u costs ½ |u|² + penalty."""

    root: Tensor  # R: one number, one for each input, or a symmetric matrix
    frozen: bool = False  # Whether no input can move
    shrink: Tensor | None = None  # A of m = A ζ + (I − A) ξ̄; None for m = ζ
    penalty_matrix: Tensor | None = None  # Q of penalty (ζ − ξ̄)ᵀ Q (ζ − ξ̄); None for none

    def start(self, x: Any, center: Tensor | None) -> tuple[Any, Tensor]:
        """Return m and the penalty of rows (clients, n, …)."""
        if self.shrink is None or self.penalty_matrix is None or center is None:
            return x, torch.zeros((), dtype=self.root.dtype, device=self.root.device)
        offset = (x - center).flatten(2)
        diagonal = self.shrink.ndim == 1
        shrunk = offset * self.shrink if diagonal else offset @ self.shrink.T
        scaled = offset * self.penalty_matrix if diagonal else offset @ self.penalty_matrix
        return center + shrunk.view_as(x), (scaled * offset).sum(2)

    def move(self, u: Tensor) -> Tensor:
        """Return R u of (clients, n, …); by symmetry also Rᵀ of a gradient."""
        if self.root.ndim == 0:
            return u * self.root
        flat = u.flatten(2)
        return (flat @ self.root if self.root.ndim == 2 else flat * self.root).view_as(u)


def transport_geometry(
    rho: float, cost: Cost, hessian: Array | None, dims: int, like: Tensor | None = None
) -> TransportGeometry:
    """Return the geometry of rows with `dims` numbers; `hessian` is that of a quadratic score."""
    like = torch.empty(0) if like is None else like
    weights = cost.weights(dims)
    if hessian is None:
        root = np.sqrt(1.0 / (rho * weights))
        same = bool((root == root[0]).all())
        return TransportGeometry(tensor(root[0] if same else root, like), not root.any())
    found = geometry(rho, weights, hessian)
    root = np.sqrt(found.inverse) if found.inverse.ndim == 1 else _root(found.inverse)
    return TransportGeometry(
        tensor(root, like), not root.any(), tensor(found.shrink, like), tensor(found.bowl, like)
    )


def _root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


class Ascent(NamedTuple):
    """Result of the ascent: f is the loss at the moved rows plus `level`."""

    x: Any  # (clients, n, …) moved rows
    level: Tensor  # (clients, n) −h − ½ |u|² − penalty
    slope: Tensor  # (clients, n) ½ |∇|² in the metric of the cost, at the last point evaluated
    concavity: Tensor  # (clients, n) smallest concavity along the steps, in the same metric
    steps: int  # Number of steps

    @property
    def error(self) -> Tensor:
        """Estimate of how far f is below its supremum; infinite if not concave."""
        bound = self.slope / self.concavity.clamp(min=1e-12)
        return torch.where(self.concavity > 0, bound, np.inf)


@dataclass(frozen=True, eq=False)
class RobustLoss:
    """f(θ, ζ) of rows for a method: everything but θ and the rows."""

    loss: RowLoss  # Loss of (outputs, labels)
    geometry: TransportGeometry  # Geometry of cost and quadratic score
    score: RowScore | None = None  # Another score h(x, y)
    max_loss: float = np.inf  # Bound on the loss; without it a tilt follows the largest
    steps: int = 7  # Options `inner_steps`, `inner_lr` and `inner_tol` of the plan
    lr: float = 1.0
    tol: float = 0.0
    bounds: tuple[float, float] | None = None  # Of inputs; a row outside moves no farther out

    def losses(self, network: Network, theta: Tensor | None, x: Any, y: Tensor) -> Tensor:
        """Return l of rows (clients, n, …), each client at its θ (clients, P)."""
        out = network.flat_outputs(theta, x)
        return self.bounded(out, y.flatten(0, 1)).view(y.shape[:2])

    def bounded(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return l of outputs (n, …) and labels (n, …), at most `max_loss`."""
        loss = self.loss(outputs, y)
        return loss.clamp(max=self.max_loss) if self.max_loss < np.inf else loss

    def scores(self, x: Any, y: Tensor) -> Tensor:
        """Return h of rows (clients, n, …), without a quadratic one, part of `geometry`."""
        if self.score is None:
            return self.geometry.root.new_zeros(y.shape[:2])
        return self.score(joined(x), y.flatten(0, 1)).view(y.shape[:2])

    def without_loss(self, x: Any, y: Tensor, center: Tensor | None = None) -> Tensor:
        """Return f of rows for a loss of 0: the part of score and transport."""
        return self.ascend(None, y.new_empty(0), x, y, center).level

    def ascend(
        self,
        network: Network | None,
        theta: Tensor,
        x: Any,
        y: Tensor,
        center: Tensor | None = None,
    ) -> Ascent:
        """Return the supremum of every row, by ascent with Barzilai–Borwein steps.

        Every row has its own step length. A step that does not increase f is not taken. The result
        of the last step is not evaluated, so that step has at most the length that increases a
        concave f. Without a network there is no loss.
        """
        theta = theta.detach()
        start, penalty = self.geometry.start(x, center)
        if self.geometry.frozen or (network is None and self.score is None):
            zero = self.geometry.root.new_zeros(y.shape[:2])
            level = zero - penalty if self.score is None else -self.scores(start, y) - penalty
            return Ascent(start, level, zero, torch.ones_like(zero), 0)

        def objective(u: Tensor) -> tuple[Tensor, Tensor]:
            """Return the objective up to the penalty, and its gradient."""
            at = (start + self.geometry.move(u)).requires_grad_(True)
            value = u.new_zeros(y.shape[:2])
            if network is not None:
                value = value + self.losses(network, theta, at, y)
            if self.score is not None:
                value = value - self.scores(at, y)
            (slope,) = torch.autograd.grad(value.sum(), at)
            return value.detach() - 0.5 * _dot(u, u), self.geometry.move(slope).sub_(u)

        box = None if self.bounds is None else self._box(start)
        u = torch.zeros_like(start)
        value, gradient = objective(u)
        slope = 0.5 * _dot(gradient, gradient)
        length = torch.full_like(value, self.lr)
        concavity = torch.full_like(value, np.inf)
        rounding = 2.0 * torch.finfo(value.dtype).eps
        shortest = max(1e3 * rounding, 1e-6) ** 2  # squared, relative; below it a step is rounding
        by_row = (...,) + (None,) * (u.ndim - 2)
        for step in range(1, self.steps + 1):
            last = step == self.steps
            if self.tol > 0.0:
                last = last or bool((slope <= self.tol * concavity.clamp(1e-3, 1)).all())
            rate = length.clamp(max=1.0) if last else length
            trial = torch.addcmul(u, rate[by_row], gradient)
            if box is not None:
                trial = trial.clamp(*box)
            if last:
                u = trial
                break
            trial_value, trial_gradient = objective(trial)
            change = trial - u
            gain = _dot(change, gradient)
            squared_length = _dot(change, change)
            curvature = gain - _dot(change, trial_gradient)
            sufficient = value + 1e-4 * gain - rounding * (1.0 + value.abs())
            better = trial_value >= sufficient
            secant = curvature / squared_length.clamp(min=1e-30)
            reliable = squared_length > shortest * _dot(trial, trial)
            concavity = torch.where(reliable, torch.minimum(concavity, secant), concavity)
            inverse = squared_length / curvature.clamp(min=1e-30)
            longer = torch.where(curvature > 0, inverse, 2.0 * length)
            length = torch.where(better, longer.clamp(max=10.0), 0.5 * length)
            if u.device.type == "cpu" and bool(better.all()):  # on a GPU reading a value waits
                u, gradient, value = trial, trial_gradient, trial_value
            else:
                u = torch.where(better[by_row], trial, u)
                gradient = torch.where(better[by_row], trial_gradient, gradient)
                value = torch.where(better, trial_value, value)
            slope = 0.5 * _dot(gradient, gradient)
        at = start + self.geometry.move(u)
        level = -self.scores(at, y) - 0.5 * _dot(u, u) - penalty
        return Ascent(at, level, slope, concavity.clamp(max=1.0), step)

    def _box(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bounds in u around rows; each row itself is within them."""
        if self.geometry.root.ndim == 2:
            raise ValueError("bounds: not together with a score whose matrix is no diagonal")
        assert self.bounds is not None
        low, high = self.bounds
        root = self.geometry.root.clamp(min=1e-30)
        ends = (start.clamp(max=low) - start, start.clamp(min=high) - start)
        lower, upper = ((end.flatten(2) / root).view_as(start) for end in ends)
        return lower, upper


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return inner products row by row."""
    return torch.linalg.vecdot(a.flatten(2), b.flatten(2))
