"""What the server makes of the clients' updates.

An aggregator is any function of updates (clients, P) and weights (clients,), which sum to 1, that
returns one update (P,). The mean is the default. The others bound what a few clients can do.

>>> updates = torch.tensor([[1.0], [2.0], [3.0], [1000.0]])
>>> weights = torch.full((4,), 0.25)
>>> [float(rule(updates, weights)) for rule in (trimmed_mean(0.25), coordinate_median(), krum(1))]
[2.5, 2.0, 1.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Aggregator(Protocol):
    """Make one update of those of the clients."""

    def __call__(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return (P,) of updates (clients, P) and weights (clients,) that sum to 1."""
        ...


@dataclass(frozen=True)
class TrimmedMean:
    """See :func:`trimmed_mean`."""

    share: float

    def __call__(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the mean of what is left in every coordinate."""
        cut = int(self.share * len(updates))
        ordered, order = updates.sort(0)
        kept = weights[order][cut : len(updates) - cut]
        return (ordered[cut : len(updates) - cut] * kept).sum(0) / kept.sum(0)


@dataclass(frozen=True)
class CoordinateMedian:
    """See :func:`coordinate_median`."""

    def __call__(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the lower weighted median of every coordinate."""
        ordered, order = updates.sort(0)
        below = weights[order].cumsum(0)
        first = (below >= 0.5 * weights.sum() - 1e-6).to(torch.int8).argmax(0)
        return ordered.gather(0, first[None])[0]


@dataclass(frozen=True)
class GeometricMedian:
    """See :func:`geometric_median`."""

    steps: int
    smoothing: float

    def __call__(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the point with the least weighted sum of distances."""
        point = weights @ updates
        for _ in range(self.steps):
            distance = torch.linalg.vector_norm(updates - point, dim=1)
            share = weights / distance.clamp(min=self.smoothing)
            point = (share / share.sum()) @ updates
        return point


@dataclass(frozen=True)
class Krum:
    """See :func:`krum`."""

    byzantine: int
    kept: int

    def __call__(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean of the updates with the nearest neighbours."""
        near = len(updates) - self.byzantine - 2
        if near < 1:
            raise ValueError(f"krum: {len(updates)} clients are too few; give byzantine below this")
        squares = torch.cdist(updates, updates) ** 2
        score = squares.sort(1).values[:, 1 : near + 1].sum(1)
        best = score.argsort(stable=True)[: self.kept]
        return (weights[best] / weights[best].sum()) @ updates[best]


def trimmed_mean(share: float = 0.1) -> TrimmedMean:
    """Leave out the largest and smallest `share` of each coordinate (Yin et al., 2018)."""
    if not 0.0 <= share < 0.5:
        raise ValueError(f"trimmed_mean(share={share}): must be from 0 to below 0.5")
    return TrimmedMean(float(share))


def coordinate_median() -> CoordinateMedian:
    """Take the weighted median of each coordinate (Yin et al., 2018)."""
    return CoordinateMedian()


def geometric_median(steps: int = 10, smoothing: float = 1e-6) -> GeometricMedian:
    """Take the geometric median by Weiszfeld's steps: RFA (Pillutla et al., 2022)."""
    return GeometricMedian(int(steps), float(smoothing))


def krum(byzantine: int, kept: int = 1) -> Krum:
    """Average the `kept` updates nearest to their neighbours (Blanchard et al., 2017).

    `byzantine` is the number of clients that may send anything.
    """
    if byzantine < 0 or kept < 1:
        raise ValueError(f"krum(byzantine={byzantine}, kept={kept}): must be ≥ 0 and ≥ 1")
    return Krum(int(byzantine), int(kept))
