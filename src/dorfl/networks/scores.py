"""Outlier scores of rows for networks: functions h(x, y) of tensors.

Scores on NumPy arrays (:mod:`dorfl.scores`) serve here too. :func:`distance` is for inputs with
many correlated columns, such as pictures: how far a row is from the middle of its class in the
leading components, all of it found from medians and sums that clients tell of their rows.

>>> x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
>>> x[:25] *= -8
>>> rows = gather([(x, torch.zeros(500))], torch.float32, classify=True)
>>> h = distance(20.0).find(rows)(*rows.known(0))
>>> bool(h[:25].min() > 20 * h[25:].median())
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dorfl.networks.agreement import LEAST, Agreed, Told, find
from dorfl.networks.data import Rows, gather  # noqa: F401 - for the example above
from dorfl.networks.device import array, tensor
from dorfl.networks.supremum import RowScore
from dorfl.objective.base import Score
from dorfl.support.types import Array


@dataclass(frozen=True, eq=False)
class Distance:
    """h(x, y) = weight · min(max(d²/median − slack, 0), most); see :func:`distance`."""

    weight: float
    components: int
    slack: float
    most: float
    features: Callable[[Tensor], Tensor] | None

    stages = ("middle", "axes", "spread", "typical")

    def tell(self, stage: str, rows: Rows, agreed: Agreed) -> Told:
        """Medians by class of a client's rows; or, for the components, a sum of bounded terms."""
        own, y = rows.known(0)
        x, kind = _features(self.features, own), _kinds(rows, y)
        known = max(1, len(rows.classes))
        if stage == "middle":
            return _medians(x, kind, known)
        middle, *others = (tensor(agreed[k], x) for k in self.stages if k in agreed)
        offset = x - middle[kind]
        if stage == "axes":
            unit = nn.functional.normalize(offset)
            return Told(array(unit.T @ unit), np.array([len(x)], dtype=float))
        near, off = _parts(offset, others[0])
        if stage == "spread":
            return _medians(near.abs(), kind, known)
        inside = ((near / others[1][kind]) ** 2).mean(1)
        return _medians(torch.stack([inside, off], 1), kind, known)

    def agree(self, stage: str, told: Sequence[Told]) -> Array:
        """The middle one of the clients' medians; or the leading components.

        Those are of rows scaled to length 1, so that none counts more than another (the
        spatial-sign covariance of Locantore et al., 1999).
        """
        if stage == "axes":
            total = torch.from_numpy(np.asarray(sum(one.values for one in told)))
            if self.components >= len(total):
                return np.asarray(torch.eye(len(total), dtype=total.dtype).numpy())
            return np.asarray(torch.linalg.eigh(total).eigenvectors[:, -self.components :].numpy())
        middle = _by_class(told)
        if stage != "middle":
            middle = middle.clamp(min=1e-6) * (1.4826 if stage == "spread" else 1.0)
        return np.asarray(middle.numpy())

    def find(self, rows: Rows) -> RowScore:
        """The score, with what the clients of this process agree on."""
        return self.at(find(self, rows), len(rows.classes) > 0)

    def at(self, agreed: Agreed, classify: bool) -> RowScore:
        """The score, with what was agreed on."""
        full = len(set(agreed["axes"].shape)) == 1  # nothing is off the components

        def score(x: Tensor, y: Tensor) -> Tensor:
            kind = y if classify else torch.zeros_like(y, dtype=torch.long)
            found = _features(self.features, x)
            center, axes, spread, typical = (tensor(agreed[k], found) for k in self.stages)
            near, off = _parts(found - center[kind], axes)
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

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """h of rows."""
        loss = nn.functional.cross_entropy(self.model(x), y, reduction="none")
        return self.weight * (loss - self.slack).clamp(0.0, self.most)


def reference(model: nn.Module, weight: float, slack: float = 1.0, most: float = 5.0) -> Reference:
    """How unlikely a row's label is to another model, trained before or elsewhere: label errors."""
    kept = model.eval().requires_grad_(False)
    return Reference(kept, float(weight), float(slack), float(most))


def row_score(score: Any, rows: Rows, agreed: Agreed | None = None) -> RowScore | None:
    """Any score as a function of tensors; a quadratic one on inputs is part of the geometry."""
    if score is None:
        return None
    if isinstance(score, Distance):
        return score.find(rows) if agreed is None else score.at(agreed, len(rows.classes) > 0)
    if isinstance(score, Score):
        score.check(rows.dims, rows.classes)
        return None if score.hessian(rows.dims) is not None else _bridge(score, rows)
    if callable(score):
        return score
    raise ValueError(f"score={score!r}: give one of dorfl.scores, or a function of (rows, labels)")


def _bridge(score: Score, rows: Rows) -> RowScore:
    """A score of NumPy arrays, with its gradient, as one of tensors."""
    if score.center is not None:
        raise ValueError("score: one with a centre must be a quadratic; else give a function")
    center, classes = np.zeros(rows.dims), rows.classes

    def arrays(x: Tensor, y: Tensor) -> tuple[Array, Array, Array]:
        labels = classes[array(y)] if len(classes) else array(y)
        return array(x.flatten(1).double()), center, labels

    class Bridge(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return tensor(score.at(*arrays(x, y)), x)

        @staticmethod
        def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
            x, y = ctx.saved_tensors
            slope = tensor(score.gradient(*arrays(x, y)), x)
            return grad[0].view(-1, *[1] * (x.ndim - 1)) * slope.view_as(x), None

    return Bridge.apply


def _features(features: Callable[[Tensor], Tensor] | None, x: Tensor) -> Tensor:
    return (x if features is None else features(x)).flatten(1)


def _parts(offset: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets (n, d) along the components (n, k), and the squared length off them (n,)."""
    near = offset @ axes
    return near, (offset**2).sum(1) - (near**2).sum(1)


def _kinds(rows: Rows, y: Tensor) -> Tensor:
    return y if len(rows.classes) else torch.zeros_like(y, dtype=torch.long)


def _medians(x: Tensor, kind: Tensor, known: int) -> Told:
    """A client's medians of every class in every column, and of all its rows."""
    values, weight = x.new_zeros(known + 1, x.shape[1]), np.zeros(known + 1)
    for k in range(known + 1):
        own = x[kind == k] if k < known else x
        if len(own) >= LEAST:
            values[k], weight[k] = own.median(0).values, len(own)
    return Told(array(values), weight)


def _by_class(told: Sequence[Told]) -> Tensor:
    """The middle median of every class in every column; of all rows where nobody tells of one."""
    values = torch.from_numpy(np.stack([one.values for one in told]))
    weight = torch.from_numpy(np.stack([one.weight for one in told]).astype(np.float32))
    there = weight > 0
    if not bool(there[:, -1].any()):
        raise ValueError(f"distance: no client has {LEAST} rows to tell the middle of")
    rows = [k if bool(there[:, k].any()) else -1 for k in range(weight.shape[1] - 1)]
    return torch.stack([_middle(values[there[:, k], k], weight[there[:, k], k]) for k in rows])


def _middle(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted median of every column: half of the weight lies on either side."""
    ordered, order = values.sort(0)
    below = weight[order].cumsum(0)
    first = (below >= 0.5 * weight.sum()).to(torch.int8).argmax(0)
    return ordered.gather(0, first[None])[0]
