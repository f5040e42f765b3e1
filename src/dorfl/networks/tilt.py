"""Weights of the rows of a minibatch, p = exp((f − F_i)/τ)/n, with a running estimate of F_i.

A minibatch normalised by itself follows its own worst row, whatever the client's other rows are.
Here every client keeps a running mean of exp(f/τ), in the log domain, and normalises by that. The
mean of p ∇l over minibatches is then ∇F_i, up to the lag of the running mean (the moving-average
estimator of stochastic compositional optimisation; Li et al., 2021, for TERM).

If clients are compared by loss, F_i is reported without the part that depends on the score alone.
The share of outliers differs from batch to batch, and at a large τ that moves F_i by more than any
loss. Both means are therefore of the same batches, and the common part cancels.

>>> tilt = RowTilt(temperature=1.0, momentum=0.9)
>>> before = torch.tensor([[torch.nan, torch.nan]])
>>> without_loss = torch.tensor([[0.0, 0.0, 0.0, -30.0]])
>>> means, weights = tilt.weigh(without_loss + 0.5, torch.ones(1, 4), before, without_loss)
>>> [round(p, 3) for p in weights[0].tolist()], tilt.risk(means).tolist()
([0.333, 0.333, 0.333, 0.0], [0.5])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

RowRisk: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RowTilt:
    """Weights of rows from f (clients, n), and the clients' risks.

    `trim` leaves out that share of each batch, the rows with the largest f (DORO, Zhai et al.,
    2021). A rule `row_risk` of the user's own replaces the tilt.
    """

    temperature: float = math.inf
    momentum: float = 0.9
    trim: float = 0.0
    row_risk: RowRisk | None = None

    @property
    def is_mean(self) -> bool:
        """Whether the risk is the mean of f, so that all rows have the same weight."""
        return math.isinf(self.temperature) and self.trim == 0.0 and self.row_risk is None

    def weigh(
        self, f: Tensor, mask: Tensor, means: Tensor, without_loss: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the running means after this batch, and the weights of its rows (clients, n).

        `mask` is 0 for padding. `means` (clients, 2) are logarithms of the running means of
        exp(f/τ) and exp(without_loss/τ), or without a tilt the means of both; NaN before the first
        batch. `without_loss` (clients, n) is f for a loss of 0, left out of the risk.
        """
        if self.is_mean and len(f) == 1:  # no padding
            mean = f.mean(1)
            other = torch.zeros_like(mean) if without_loss is None else without_loss.mean(1)
            return torch.stack([mean, other], 1).to(means), torch.full_like(f, 1.0 / f.shape[1])
        if self.trim > 0.0:
            mask = mask * self._kept(f, mask)
        if self.row_risk is not None:
            risk, weights = self.row_risk(f, mask)
            return torch.stack([risk, torch.zeros_like(risk)], 1).to(means), weights.to(f)
        both = torch.stack([f, torch.zeros_like(f) if without_loss is None else without_loss], 1)
        share = mask / mask.sum(1, keepdim=True).clamp(min=1.0)
        padding = mask == 0
        empty = padding.all(1)[:, None]  # clients without a row in this batch
        if math.isinf(self.temperature):
            now = (share[:, None] * both.masked_fill(padding[:, None], 0.0)).sum(2).to(means)
            return torch.where(empty, means, now), share
        tilted = both.to(means) / self.temperature
        terms = (tilted + share.to(means).log()[:, None]).masked_fill(padding[:, None], -math.inf)
        batch = torch.logsumexp(terms, 2)
        older = means + math.log(self.momentum) if self.momentum > 0 else means - math.inf
        mixed = torch.logaddexp(older, batch + math.log1p(-self.momentum))
        now = torch.where(means.isnan(), batch, mixed)
        now = torch.where(empty, means, now)
        weights = (tilted[:, 0] - now[:, :1]).exp().to(f) * share
        return now, torch.where(padding, 0.0, weights)

    def risk(self, means: Tensor) -> Tensor:
        """Return F_i from the running means, without that of a loss of 0."""
        difference = means[:, 0] - means[:, 1]
        return difference if math.isinf(self.temperature) else self.temperature * difference

    def _kept(self, f: Tensor, mask: Tensor) -> Tensor:
        count = mask.sum(1, keepdim=True)
        rank = torch.where(mask > 0, f, -math.inf).argsort(1, descending=True).argsort(1)
        return (rank >= (self.trim * count).floor()).to(mask)
