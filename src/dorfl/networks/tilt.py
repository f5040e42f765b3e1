"""How much the rows of a minibatch count: p = exp((f − F_i)/τ)/n, with F_i known from before.

A minibatch normalised by itself gives all it has to its own worst row, whatever the client's other
rows are like. Here every client keeps a running mean of exp(f/τ) instead, in the log domain, and a
row is weighed against that: the mean of p ∇l over minibatches is then ∇F_i, up to how far the
running mean lags behind.

>>> tilt = Tilt(temperature=1.0, memory=0.9)
>>> seen, weights = tilt.weigh(torch.zeros(1, 4), torch.ones(1, 4), torch.tensor([torch.nan]))
>>> weights.tolist(), tilt.risk(seen).tolist()
([[0.25, 0.25, 0.25, 0.25]], [0.0])
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tilt:
    """Weights of rows from f (clients, n), and the clients' risks.

    `trim` leaves out that share of each batch, the rows with the largest f, as DORO does.
    """

    temperature: float = math.inf
    memory: float = 0.9
    trim: float = 0.0

    def weigh(self, f: Tensor, there: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The running means after this batch, and the rows' weights.

        `there` is 1 for a row and 0 for padding. `seen` is log of the running mean of exp(f/τ),
        or of f itself without a tilt; NaN before the first batch.
        """
        if self.trim > 0.0:
            there = there * self._kept(f, there)
        share = there / there.sum(1, keepdim=True).clamp(min=1.0)
        gone = there == 0
        if math.isinf(self.temperature):
            mean = (share * torch.where(gone, 0.0, f)).sum(1).to(seen)
            return torch.where(gone.all(1), seen, mean), share
        rise = f.to(seen) / self.temperature
        batch = torch.logsumexp((rise + share.to(seen).log()).masked_fill(gone, -math.inf), 1)
        older = seen + math.log(self.memory) if self.memory > 0 else seen - math.inf
        mixed = torch.logaddexp(older, batch + math.log1p(-self.memory))
        now = torch.where(seen.isnan(), batch, mixed)
        now = torch.where(gone.all(1), seen, now)
        weights = (rise - now[:, None]).exp().to(f) * share
        return now, torch.where(gone, 0.0, weights)

    def risk(self, seen: Tensor) -> Tensor:
        """F_i from the running means."""
        return seen if math.isinf(self.temperature) else self.temperature * seen

    def _kept(self, f: Tensor, there: Tensor) -> Tensor:
        count = there.sum(1, keepdim=True)
        worst = torch.where(there > 0, f, -math.inf).argsort(1, descending=True).argsort(1)
        return (worst >= (self.trim * count).floor()).to(there)
