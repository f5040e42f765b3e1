"""Aggregation rules: how the server makes one update of those of the clients.

An aggregator is any function of updates (clients, P) and weights (clients,), which sum to 1, that
returns one update (P,). The mean is the default. The rules here bound what a few clients can do.

>>> updates = torch.tensor([[1.0], [2.0], [3.0], [1000.0]])
>>> weights = torch.full((4,), 0.25)
>>> [float(rule(updates, weights)) for rule in (trimmed_mean(0.25), coordinate_median(), krum(1))]
[2.5, 2.0, 1.0]

References
----------
.. [1] D. Yin et al., "Byzantine-robust distributed learning", ICML 2018.
.. [2] K. Pillutla, S. Kakade, Z. Harchaoui, "Robust aggregation for federated learning", 2022.
.. [3] P. Blanchard et al., "Machine learning with adversaries", NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Aggregator: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted median of each column; of two medians the lower one."""
    ordered, order = values.sort(0)
    below = weights[order].cumsum(0)
    first = (below >= (0.5 - 1e-6) * weights.sum()).to(torch.int8).argmax(0)
    return ordered.gather(0, first[None])[0]


def trimmed_mean(share: float = 0.1) -> Aggregator:
    """Return a rule that leaves out the largest and smallest `share` of each coordinate [1]_."""
    if not 0.0 <= share < 0.5:
        raise ValueError(f"trimmed_mean(share={share}): must be from 0 to below 0.5")

    def aggregate(updates: Tensor, weights: Tensor) -> Tensor:
        cut = int(share * len(updates))
        ordered, order = updates.sort(0)
        kept = weights[order][cut : len(updates) - cut]
        return (ordered[cut : len(updates) - cut] * kept).sum(0) / kept.sum(0)

    return aggregate


def coordinate_median() -> Aggregator:
    """Return the rule of the weighted median of each coordinate [1]_."""
    return weighted_median


def geometric_median(steps: int = 10, smoothing: float = 1e-6) -> Aggregator:
    """Return the geometric median by Weiszfeld's steps: RFA [2]_."""

    def aggregate(updates: Tensor, weights: Tensor) -> Tensor:
        point = weights @ updates
        for _ in range(steps):
            distance = torch.linalg.vector_norm(updates - point, dim=1)
            share = weights / distance.clamp(min=smoothing)
            point = (share / share.sum()) @ updates
        return point

    return aggregate


def krum(byzantine: int, kept: int = 1) -> Aggregator:
    """Return a rule that averages the `kept` updates nearest to their neighbours [3]_.

    `byzantine` is the number of clients that may send anything.
    """
    if byzantine < 0 or kept < 1:
        raise ValueError(f"krum(byzantine={byzantine}, kept={kept}): must be ≥ 0 and ≥ 1")

    def aggregate(updates: Tensor, weights: Tensor) -> Tensor:
        near = len(updates) - byzantine - 2
        if near < 1:
            raise ValueError(f"krum: {len(updates)} clients are too few; give byzantine below this")
        squares = torch.cdist(updates, updates) ** 2
        score = squares.sort(1).values[:, 1 : near + 1].sum(1)
        best = score.argsort(stable=True)[:kept]
        return (weights[best] / weights[best].sum()) @ updates[best]

    return aggregate
