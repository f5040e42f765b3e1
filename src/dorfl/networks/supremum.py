"""Losses of single rows, and what a row may become: :class:`Robust` has all but the model and data.

    f(θ, ζ) = sup_x  l(θ, x, y) − h(x, y) − ρ c(x, ζ)

Cost and quadratic score are one quadratic −½ |u|² − penalty(ζ) in x = m + R u, as for linear models
(:mod:`dorfl.linear.inner`); what is left is found by gradient ascent in u, all rows at once.
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
    """log(1 + exp(−y t)) for labels 0 and 1 and one output t for each, summed over labels."""
    signs = 2.0 * y.to(outputs) - 1.0
    return _summed(functional.softplus(-signs * _matched(outputs, y), threshold=50))


def softmax(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy for class numbers; for a sequence (n, T), the mean over its T labels."""
    if y.ndim == 1:
        return functional.cross_entropy(outputs, y, reduction="none")
    each = functional.cross_entropy(outputs.movedim(-1, 1), y, reduction="none")
    return each.flatten(1).mean(1)


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """½ |t − y|²."""
    return _summed(0.5 * (_matched(outputs, y) - y) ** 2)


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """½ (t − y)² up to a distance of 1, linear beyond; summed over several outputs."""
    y = y.to(outputs)
    return _summed(functional.huber_loss(_matched(outputs, y), y, reduction="none"))


def _matched(outputs: Tensor, y: Tensor) -> Tensor:
    """Return outputs (n, 1) as (n,) for labels (n,)."""
    return outputs[..., 0] if y.ndim == 1 else outputs


def _summed(each: Tensor) -> Tensor:
    """Return losses of every output as one of every row."""
    return each if each.ndim == 1 else each.flatten(1).sum(1)


LOSSES: dict[str, RowLoss] = {
    "logistic": logistic, "softmax": softmax, "squared": squared, "huber": huber,
}  # fmt: skip


class Place(NamedTuple):
    """The quadratic that cost and score make around a row: x = m + R u costs ½ |u|² + penalty."""

    root: Tensor  # R: one number, one for each input, or a symmetric matrix
    still: bool = False  # nothing can move
    shrink: Tensor | None = None  # A, with m = A ζ + (I − A) ξ̄; none: m = ζ
    bowl: Tensor | None = None  # Q, with penalty(ζ) = (ζ − ξ̄)ᵀ Q (ζ − ξ̄)

    def middle(self, x: Any, center: Tensor | None) -> tuple[Any, Tensor]:
        """m and the penalty of rows (clients, n, …)."""
        if self.shrink is None or self.bowl is None or center is None:
            return x, torch.zeros((), dtype=self.root.dtype, device=self.root.device)
        offset = (x - center).flatten(2)
        diagonal = self.shrink.ndim == 1
        pulled = offset * self.shrink if diagonal else offset @ self.shrink.T
        bent = offset * self.bowl if diagonal else offset @ self.bowl
        return center + pulled.view_as(x), (bent * offset).sum(2)

    def move(self, u: Tensor) -> Tensor:
        """R u of (clients, n, …); by symmetry, Rᵀ of a gradient, too."""
        if self.root.ndim == 0:
            return u * self.root
        flat = u.flatten(2)
        return (flat @ self.root if self.root.ndim == 2 else flat * self.root).view_as(u)


def place(
    rho: float, cost: Cost, bend: Array | None, dims: int, like: Tensor | None = None
) -> Place:
    """The geometry of rows with `dims` numbers; `bend` is ∇²h of a quadratic score."""
    like = torch.empty(0) if like is None else like
    weights = cost.weights(dims)
    if bend is None:
        root = np.sqrt(1.0 / (rho * weights))
        same = bool((root == root[0]).all())
        return Place(tensor(root[0] if same else root, like), not root.any())
    found = geometry(rho, weights, bend)
    root = np.sqrt(found.inverse) if found.inverse.ndim == 1 else _root(found.inverse)
    shrink, bowl = tensor(found.shrink, like), tensor(found.bowl, like)
    return Place(tensor(root, like), not root.any(), shrink, bowl)


def _root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


class Climb(NamedTuple):
    """Where rows went, and how well: f = l at these rows + level."""

    x: Any  # (clients, n, …): the moved rows
    shift: Tensor | None  # what is added to their embedding, where that moves instead
    level: Tensor  # (clients, n): −h − ½ |u|² − penalty
    slope: Tensor  # (clients, n): ½ |∇|² in the metric of the cost, at the last place looked at
    bend: Tensor  # (clients, n): the least concavity seen along the way, in the same metric
    steps: int

    @property
    def error(self) -> Tensor:
        """About how far below its supremum f is; infinite where the way was not concave."""
        return torch.where(self.bend > 0, self.slope / self.bend.clamp(min=1e-12), np.inf)


@dataclass(frozen=True, eq=False)
class Robust:
    """f(θ, ζ) of rows for a method: everything but θ and the rows.

    `max_loss` bounds the loss: a tilt would otherwise follow the one row whose loss has no bound.
    `bounds` keep inputs in a box, and a row that lies outside no farther than it is.
    """

    loss: RowLoss
    place: Place
    score: RowScore | None = None
    max_loss: float = np.inf
    steps: int = 7
    lr: float = 1.0
    tol: float = 0.0
    bounds: tuple[float, float] | None = None

    def losses(
        self, network: Network, theta: Tensor | None, x: Any, y: Tensor, shift: Tensor | None = None
    ) -> Tensor:
        """l of rows (clients, n, …), each client at its θ (clients, P)."""
        out = network.flat_outputs(theta, x, shift)
        loss = self.loss(out, y.flatten(0, 1)).view(y.shape[:2])
        return loss.clamp(max=self.max_loss) if np.isfinite(self.max_loss) else loss

    def scores(self, x: Any, y: Tensor) -> Tensor:
        """h of rows (clients, n, …), but for a quadratic one, which is part of the place."""
        if self.score is None:
            return self.place.root.new_zeros(y.shape[:2])
        return self.score(joined(x), y.flatten(0, 1)).view(y.shape[:2])

    def bare(self, x: Any, y: Tensor, center: Tensor | None = None) -> Tensor:
        """f of rows without any loss: what score and transport alone make of them."""
        return self.climb(None, y.new_empty(0), x, y, center).level

    def climb(
        self, network: Network | None, theta: Tensor, x: Any, y: Tensor,
        center: Tensor | None = None,
    ) -> Climb:  # fmt: skip
        """The supremum for every row, by ascent with Barzilai–Borwein lengths, a row's own each.

        A step that does not gain is not taken. The last one is not looked at again (training looks
        there anyway), so it is no longer than what must gain wherever the problem is concave.
        Without a network there is no loss.
        """
        theta, here = theta.detach(), network is None or network.layer is None
        start, penalty = self.place.middle(x, center)
        if self.place.still or (network is None and self.score is None):
            rest = self.place.root.new_zeros(y.shape[:2])
            level = rest - penalty if self.score is None else -self.scores(start, y) - penalty
            return Climb(start, None, level, rest, torch.ones_like(rest), 0)

        def moved(u: Tensor) -> tuple[Tensor, Tensor | None]:
            step = self.place.move(u)
            return (start + step, None) if here else (start, step)

        def height(u: Tensor) -> tuple[Tensor, Tensor]:
            """The objective up to the penalty, and its gradient."""
            at, shift = moved(u)
            free = (at if shift is None else shift).requires_grad_(True)
            rise = u.new_zeros(y.shape[:2])
            if network is not None:
                rise = rise + self.losses(network, theta, at, y, shift)
            if shift is None and self.score is not None:
                rise = rise - self.scores(at, y)
            (slope,) = torch.autograd.grad(rise.sum(), free)
            return rise.detach() - 0.5 * _dot(u, u), self.place.move(slope).sub_(u)

        box = None if self.bounds is None or not here else self._box(start)
        u = torch.zeros_like(start if network is None or here else network.embed(x))
        value, gradient = height(u)
        slope = 0.5 * _dot(gradient, gradient)
        length, bend = torch.full_like(value, self.lr), torch.full_like(value, np.inf)
        tiny = 2.0 * torch.finfo(value.dtype).eps
        small = max(1e3 * tiny, 1e-6) ** 2
        wide = (...,) + (None,) * (u.ndim - 2)
        for step in range(1, self.steps + 1):
            last = step == self.steps
            if self.tol > 0.0:
                last = last or bool((slope <= self.tol * bend.clamp(1e-3, 1)).all())
            stride = length.clamp(max=1.0) if last else length
            trial = torch.addcmul(u, stride[wide], gradient)
            if box is not None:
                trial = trial.clamp(*box)
            if last:
                u = trial
                break
            reached, following = height(trial)
            way = trial - u
            gain, moved_by = _dot(way, gradient), _dot(way, way)
            bent = gain - _dot(way, following)
            rounding = tiny * (1.0 + value.abs())
            better = reached >= value + 1e-4 * gain - rounding
            went = moved_by > small * _dot(trial, trial)  # else all that is seen is rounding
            bend = torch.where(went, torch.minimum(bend, bent / moved_by.clamp(min=1e-30)), bend)
            seen = torch.where(bent > 0, moved_by / bent.clamp(min=1e-30), 2.0 * length)
            length = torch.where(better, seen.clamp(max=10.0), 0.5 * length)
            if u.device.type == "cpu" and bool(better.all()):  # elsewhere a look would wait
                u, gradient, value = trial, following, reached
            else:
                u = torch.where(better[wide], trial, u)
                gradient = torch.where(better[wide], following, gradient)
                value = torch.where(better, reached, value)
            slope = 0.5 * _dot(gradient, gradient)
        at, shift = moved(u)
        own = self.scores(at, y) if shift is None else self.scores(x, y)
        level = -own - 0.5 * _dot(u, u) - penalty
        return Climb(at, shift, level, slope, bend.clamp(max=1.0), step)

    def _box(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds in u around rows, each row itself included."""
        if self.place.root.ndim == 2:
            raise ValueError("bounds: not together with a score whose matrix is no diagonal")
        assert self.bounds is not None
        low, high = self.bounds
        rigid = self.place.root.clamp(min=1e-30)
        ends = (start.clamp(max=low) - start, start.clamp(min=high) - start)
        down, up = ((end.flatten(2) / rigid).view_as(start) for end in ends)
        return down, up


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of every row with its partner."""
    return torch.linalg.vecdot(a.flatten(2), b.flatten(2))
