"""Baselines of the network benchmark as rules of a user's own: TERM, CVaR and FedProx.

References: TERM: Li et al., 2021. CVaR: Rockafellar and Uryasev, 2000. FedProx: Li et al., 2020.

>>> losses, there = torch.tensor([[0.0, 1.0, 9.0]]), torch.ones(1, 3)
>>> risk, weights = CVaR(0.5)(losses, there)
>>> float(risk[0]), weights.tolist()
(5.0, [[0.0, 0.5, 0.5]])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Term:
    """(1/t) log mean exp(t · loss): t > 0 follows the worst rows, t < 0 leaves them out."""

    t: float

    def __call__(self, losses: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return risks (clients,) and weights (clients, n) of losses and mask (clients, n)."""
        tilted = (self.t * losses).masked_fill(there == 0, -torch.inf)
        risk = (tilted.logsumexp(1) - there.sum(1).log()) / self.t
        return risk, tilted.softmax(1)


@dataclass(frozen=True)
class CVaR:
    """The mean of the `share` of the rows with the largest losses."""

    share: float

    def __call__(self, losses: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return risks (clients,) and weights (clients, n) of losses and mask (clients, n)."""
        order = losses.masked_fill(there == 0, -torch.inf).argsort(
            dim=1, descending=True, stable=True
        )
        rank = order.argsort(dim=1)
        kept = (self.share * there.sum(1)).ceil().clamp(min=1.0)
        weights = (rank < kept[:, None]) / kept[:, None]
        return (weights * losses).sum(1), weights.to(losses.dtype)


@dataclass(frozen=True)
class Proximal:
    """Steps on F_i(θ) + ½ μ ‖θ − θ_server‖²."""

    lr: float
    mu: float

    def start(self, theta: Tensor) -> list[Tensor]:
        """Return the server's θ, from which the steps start."""
        return [theta.clone()]

    def step(self, theta: Tensor, gradient: Tensor, carried: list[Tensor], count: int) -> Tensor:
        """Return θ after a step."""
        del count
        return theta - self.lr * (gradient + self.mu * (theta - carried[0]))
