"""Outlier scores of rows for networks: functions h(x, y) of tensors.

Scores on NumPy arrays (:mod:`dorfl.scores`) serve here too. :func:`distance` is for inputs with
many correlated columns, such as pictures: how far a row is from the middle of its class in the
leading components, all of it found from medians and sums that clients tell of their rows.

>>> x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
>>> x[:25] *= -8
>>> rows = Rows(("a",), x, torch.zeros(500, dtype=torch.long), np.array([0, 500]), np.array([0]))
>>> h = distance(20.0).find(rows)(rows.x, rows.y)
>>> bool(h[:25].min() > 20 * h[25:].median())
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dorfl.networks.data import Rows
from dorfl.networks.rows import RowScore
from dorfl.objective.kinds import Score
from dorfl.support.types import Array

_LEAST = 5  # rows of a class that a client must have to tell of their middle


@dataclass(frozen=True, eq=False)
class Distance:
    """h(x, y) = weight · min(max(d²/median − slack, 0), most); see :func:`distance`."""

    weight: float
    components: int
    slack: float
    most: float
    features: Callable[[Tensor], Tensor] | None

    def find(self, rows: Rows) -> RowScore:
        """The score with its centres and scales, from what clients tell: three exchanges."""
        x = _features(self.features, rows.x)
        known = max(1, len(rows.classes))
        kind = rows.y if len(rows.classes) else torch.zeros(len(x), dtype=torch.long)
        center = _by_class(rows, x, kind, known)
        axes = _axes(rows, x - center[kind], self.components)
        full = axes.shape[0] == axes.shape[1]  # nothing is off the components
        near, off = _parts(x - center[kind], axes)
        spread = 1.4826 * _by_class(rows, near.abs(), kind, known).clamp(min=1e-6)
        far = torch.stack([((near / spread[kind]) ** 2).mean(1), off], 1)
        typical = _by_class(rows, far, kind, known).clamp(min=1e-6)
        classify = len(rows.classes) > 0

        def score(x: Tensor, y: Tensor) -> Tensor:
            kind = y if classify else torch.zeros_like(y, dtype=torch.long)
            near, off = _parts(_features(self.features, x) - center[kind], axes)
            inside = ((near / spread[kind]) ** 2).mean(1) / typical[kind, 0]
            ratio = inside if full else torch.maximum(inside, off / typical[kind, 1])
            return self.weight * (ratio - self.slack).clamp(0.0, self.most)

        return score


def distance(
    weight: float,
    components: int = 30,
    slack: float = 2.5,
    most: float = 30.0,
    features: Callable[[Tensor], Tensor] | None = None,
) -> Distance:
    """How far a row is from the middle of its class, squared, in units of the class's median row.

    Along the leading components or off them, whichever is more (Hubert et al., 2005): a row can be
    extreme, or unlike anything in its class. Rows up to `slack` such units away are no suspects.
    `weight` is what a unit beyond costs, in units of the loss: with a tilt of temperature τ a row
    counts exp(−h/τ), so give a weight of about τ. `most` bounds the units, `features` maps rows to
    what is measured.
    """
    if not (weight >= 0 and components >= 1 and slack >= 0 and most > 0):
        raise ValueError("distance: weight and slack must be ≥ 0, components and most positive")
    return Distance(float(weight), int(components), float(slack), float(most), features)


@dataclass(frozen=True, eq=False)
class Reference:
    """h(x, y) = weight · min(max(l_ref(x, y) − slack, 0), most); see :func:`reference`."""

    model: nn.Module
    weight: float
    slack: float
    most: float

    def find(self, rows: Rows) -> RowScore:
        """The score itself: nothing has to be found."""
        del rows
        kept = self.model.eval().requires_grad_(False)

        def score(x: Tensor, y: Tensor) -> Tensor:
            loss = nn.functional.cross_entropy(kept(x), y, reduction="none")
            return self.weight * (loss - self.slack).clamp(0.0, self.most)

        return score


def reference(model: nn.Module, weight: float, slack: float = 1.0, most: float = 5.0) -> Reference:
    """How unlikely a row's label is to another model, trained before or elsewhere: label errors."""
    return Reference(model, float(weight), float(slack), float(most))


def row_score(score: Any, rows: Rows) -> RowScore | None:
    """Any score as a function of tensors; a quadratic one on inputs is part of the geometry."""
    if score is None:
        return None
    if hasattr(score, "find"):
        return score.find(rows)
    if isinstance(score, Score):
        score.check(rows.dims, rows.classes)
        return None if score.bend(rows.dims) is not None else _bridge(score, rows)
    if callable(score):
        return score
    raise ValueError(f"score={score!r}: give one of dorfl.scores, or a function of (rows, labels)")


def _bridge(score: Score, rows: Rows) -> RowScore:
    """A score of NumPy arrays, with its gradient, as one of tensors."""
    if score.center is not None:
        raise ValueError("score: one with a centre must be a quadratic; else give a function")
    center, classes = np.zeros(rows.dims), rows.classes

    def arrays(x: Tensor, y: Tensor) -> tuple[Array, Array, Array]:
        labels = classes[y.numpy()] if len(classes) else y.numpy()
        return np.asarray(x.detach().flatten(1).double().numpy()), center, labels

    class Bridge(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return torch.from_numpy(score.at(*arrays(x, y))).to(x)

        @staticmethod
        def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
            x, y = ctx.saved_tensors
            slope = torch.from_numpy(score.gradient(*arrays(x, y))).to(x)
            return grad[0].view(-1, *[1] * (x.ndim - 1)) * slope.view_as(x), None

    return Bridge.apply


def _features(features: Callable[[Tensor], Tensor] | None, x: Tensor) -> Tensor:
    return (x if features is None else features(x)).flatten(1)


def _parts(offset: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets (n, d) along the components (n, k), and the squared length off them (n,)."""
    near = offset @ axes
    return near, (offset**2).sum(1) - (near**2).sum(1)


def _by_class(rows: Rows, x: Tensor, kind: Tensor, known: int) -> Tensor:
    """The median of every class in every column: clients tell theirs, the middle one is taken."""
    told: list[list[Tensor]] = [[] for _ in range(known)]
    weight: list[list[float]] = [[] for _ in range(known)]
    for i in range(len(rows.names)):
        part = rows.client(i)
        for k in range(known):
            own = x[part][kind[part] == k]
            if len(own) >= _LEAST:
                told[k].append(own.median(0).values)
                weight[k].append(float(len(own)))
    all_rows = x.median(0).values if any(not t for t in told) else None
    return torch.stack([
        all_rows if all_rows is not None and not told[k]
        else _middle(torch.stack(told[k]), torch.tensor(weight[k]))
        for k in range(known)
    ])  # fmt: skip


def _middle(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted median of every column: half of the weight lies on either side."""
    ordered, order = values.sort(0)
    below = weight[order].cumsum(0)
    first = (below >= 0.5 * weight.sum()).to(torch.int8).argmax(0)
    return ordered.gather(0, first[None])[0]


def _axes(rows: Rows, offset: Tensor, components: int) -> Tensor:
    """Leading components (d, k) of rows scaled to length 1, so that none counts more than another.

    (The spatial-sign covariance of Locantore et al., 1999: a sum over rows of bounded terms.)
    """
    dims = offset.shape[1]
    if components >= dims:
        return torch.eye(dims, dtype=offset.dtype)
    total = torch.zeros(dims, dims, dtype=offset.dtype)
    for i in range(len(rows.names)):
        unit = nn.functional.normalize(offset[rows.client(i)])
        total += unit.T @ unit
    return torch.linalg.eigh(total).eigenvectors[:, -components:]
