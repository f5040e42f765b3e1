"""Weights of the rows of a minibatch, p = exp((f − F_i)/τ)/n, with a running estimate of F_i.

A minibatch normalised by itself follows its own worst row, whatever the client's other rows are.
Here every client keeps a running mean of exp(f/τ), in the log domain, and normalises by that. The
mean of p ∇l over minibatches is then ∇F_i, up to the lag of the running mean (the moving-average
estimator of stochastic compositional optimisation; Li et al., 2021, for TERM).

If clients are compared by loss, F_i is reported without the part that depends on the score alone.
The share of outliers differs from batch to batch, and at a large τ that moves F_i by more than any
loss. Both means are therefore of the same batches, and the common part cancels.

>>> tilt = Tilt(temperature=1.0, memory=0.9)
>>> before = torch.tensor([[torch.nan, torch.nan]])
>>> bare = torch.tensor([[0.0, 0.0, 0.0, -30.0]])
>>> seen, weights = tilt.weigh(bare + 0.5, torch.ones(1, 4), before, bare)
>>> [round(p, 3) for p in weights[0].tolist()], tilt.risk(seen).tolist()
([0.333, 0.333, 0.333, 0.0], [0.5])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tilt:
    """Weights of rows from f (clients, n), and the clients' risks.

    `trim` leaves out that share of each batch, the rows with the largest f (DORO, Zhai et al.,
    2021). A rule `row_risk` of the user's own replaces the tilt.
    """

    temperature: float = math.inf
    memory: float = 0.9
    trim: float = 0.0
    row_risk: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def weigh(
        self, f: Tensor, there: Tensor, seen: Tensor, bare: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the running means after this batch, and the rows' weights.

        Parameters
        ----------
        f
            (clients, n) suprema.
        there
            (clients, n) 1 for a row, 0 for padding.
        seen
            (clients, 2) logarithms of the running means of exp(f/τ) and exp(bare/τ), or without a
            tilt the means of f and `bare`; NaN before the first batch.
        bare
            (clients, n) f without any loss, which is left out of the risk; None for 0.
        """
        plain = math.isinf(self.temperature) and self.trim == 0.0 and self.row_risk is None
        if plain and len(f) == 1:  # no padding
            mean = f.mean(1)
            means = torch.stack([mean, torch.zeros_like(mean) if bare is None else bare.mean(1)], 1)
            return means.to(seen), torch.full_like(f, 1.0 / f.shape[1])
        bare = torch.zeros_like(f) if bare is None else bare
        if self.trim > 0.0:
            there = there * self._kept(f, there)
        if self.row_risk is not None:
            risk, weights = self.row_risk(f, there)
            return torch.stack([risk, torch.zeros_like(risk)], 1).to(seen), weights.to(f)
        share = there / there.sum(1, keepdim=True).clamp(min=1.0)
        gone, both = there == 0, torch.stack([f, bare], 1)
        nobody = gone.all(1)[:, None]
        if math.isinf(self.temperature):
            means = (share[:, None] * both.masked_fill(gone[:, None], 0.0)).sum(2).to(seen)
            return torch.where(nobody, seen, means), share
        rise = both.to(seen) / self.temperature
        shared = (rise + share.to(seen).log()[:, None]).masked_fill(gone[:, None], -math.inf)
        batch = torch.logsumexp(shared, 2)
        older = seen + math.log(self.memory) if self.memory > 0 else seen - math.inf
        mixed = torch.logaddexp(older, batch + math.log1p(-self.memory))
        now = torch.where(seen.isnan(), batch, mixed)
        now = torch.where(nobody, seen, now)
        weights = (rise[:, 0] - now[:, :1]).exp().to(f) * share
        return now, torch.where(gone, 0.0, weights)

    def risk(self, seen: Tensor) -> Tensor:
        """Return F_i from the running means, without that of `bare`."""
        above = seen[:, 0] - seen[:, 1]
        return above if math.isinf(self.temperature) else self.temperature * above

    def _kept(self, f: Tensor, there: Tensor) -> Tensor:
        count = there.sum(1, keepdim=True)
        worst = torch.where(there > 0, f, -math.inf).argsort(1, descending=True).argsort(1)
        return (worst >= (self.trim * count).floor()).to(there)
