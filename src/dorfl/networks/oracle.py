"""All rows of all clients at one θ: F_i, ∇F_i, the weights of rows, and how well rows climbed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dorfl.linear.base import Evaluation, Terms
from dorfl.networks.client import Fleet
from dorfl.networks.data import Batch, Rows
from dorfl.networks.device import array, seeded, tensor, wide
from dorfl.networks.model import Network
from dorfl.networks.supremum import Climb
from dorfl.objective.mixture import tilted_mean
from dorfl.support.types import Array

BLOCK = 4096  # rows at a time
LAZY_BLOCK = 8_000_000  # inputs of a data set at a time, 32 MB: a row may be large
_FEW = 0.01  # of the rows may cross a kink, as of ReLU, without a word


class Found(NamedTuple):
    """The clients' risks at one θ."""

    values: Array  # (clients,)
    gradients: Array | None  # (clients, P), where asked for
    sample_weights: list[Array]  # p of every row, by client
    error: float  # about how far the mean row is below its supremum
    bent: float  # the share of rows on whose way the problem was not concave
    steps: int  # of ascent, at most


def evaluate(fleet: Fleet, theta: Tensor, *, gradients: bool = False) -> Found:
    """F_i(θ) of every client from all its rows, with ∇F_i where asked for.

    Where clients are compared by loss, F_i is without what the score alone makes of the rows.
    A warning says where transport was not concave: f is then what a local maximum gives.
    """
    rows, tau = fleet.rows, fleet.tilt.temperature
    values, weights, slopes = [], [], []
    error, bent, steps = 0.0, 0, 0
    for i in range(len(rows.names)):
        blocks, found, bare = [], [], []
        for batch in blocks_of(rows, i, fleet.plan.seed):
            climb = fleet.climb(theta[None], batch)
            with torch.no_grad(), fleet.network.evaluating():
                f = fleet.losses(theta[None], climb, batch) + climb.level
            found.append(array(f[0]).astype(np.float64))
            alone = fleet.bare(batch, climb)
            bare.append(
                np.zeros(f.shape[1]) if alone is None else array(alone[0]).astype(np.float64)
            )
            error += float(climb.error[climb.bend > 0].sum())
            bent += int((climb.bend <= 0).sum())
            steps = max(steps, climb.steps)
            if gradients:
                blocks.append((batch, climb))
        f_all = np.concatenate(found)
        if fleet.plan.row_risk is not None:
            f = tensor(f_all, theta, wide(theta))[None]
            risk, share = (array(part)[0] for part in fleet.plan.row_risk(f, torch.ones_like(f)))
            values.append(float(risk))
        else:
            values.append(tilted_mean(f_all, tau) - tilted_mean(np.concatenate(bare), tau))
            share = np.exp((f_all - f_all.max()) / tau)  # all 1 for τ = ∞
        weights.append(share / share.sum())
        if gradients:
            slopes.append(array(_gradient(fleet, theta, blocks, weights[-1])).astype(np.float64))
    count = int(rows.counts.sum())
    if bent > _FEW * count:
        warnings.warn(
            f"on the way of {bent} of {count} rows to their worst place the problem is not "
            "concave: it may be a local one, and what is computed from it an estimate, not a "
            "bound; a larger rho helps",
            stacklevel=2,
        )
    table = np.array(slopes) if gradients else None
    return Found(np.array(values), table, weights, error / count, bent / count, steps)


@dataclass(frozen=True, eq=False)
class Agreement(Terms):
    """What server and clients of a network agree on: also what the network puts out."""

    network: Network

    def predict(self, theta: Array, rows: Array) -> Array:
        """The network's outputs for rows."""
        with torch.no_grad(), self.network.evaluating():
            at = tensor(theta, self.network.start())
            return array(self.network.outputs(at[None], tensor(rows, at)[None])[0])


@dataclass(frozen=True, eq=False)
class NetworkOracle:
    """Clients with a network, as solvers, server and engines see any: an oracle of all rows."""

    problem: Agreement
    fleet: Fleet

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names."""
        return self.fleet.rows.names

    @property
    def counts(self) -> Array:
        """How many rows each client has."""
        return self.fleet.rows.counts

    def evaluate(self, theta: Array, curvature: str = "none", *, rows: bool = False) -> Evaluation:
        """F_i and ∇F_i at θ; there is no curvature to tell."""
        del curvature
        at = tensor(theta, self.fleet.network.start())
        found = evaluate(self.fleet, at, gradients=True)
        assert found.gradients is not None
        weights = found.sample_weights if rows else None
        return Evaluation(found.values, found.gradients, found.error, weights=weights)

    def take(self, indices: Sequence[Array]) -> NetworkOracle:
        """The same clients with only the given rows of each."""
        return replace(self, fleet=replace(self.fleet, rows=self.fleet.rows.take(indices)))

    def select(self, clients: Sequence[int]) -> NetworkOracle:
        """Only some of the clients."""
        who = list(clients)
        centers = None if self.fleet.centers is None else self.fleet.centers[who]
        part = replace(self.fleet, rows=self.fleet.rows.select(who), centers=centers)
        return replace(self, fleet=part)


def _gradient(
    fleet: Fleet, theta: Tensor, blocks: list[tuple[Batch, Climb]], weights: Array
) -> Tensor:
    """Σ_j p_j ∇l(θ, z_j) of one client."""
    at = theta.detach().clone().requires_grad_(True)
    total = torch.zeros_like(theta)
    first = 0
    for batch, climb in blocks:
        p = tensor(weights[first : first + batch.there.shape[1]], theta)
        first += len(p)
        with fleet.network.evaluating():
            loss = fleet.losses(at[None], climb, batch)
        total += torch.autograd.grad((p * loss[0]).sum(), at)[0]
    return total


def blocks_of(rows: Rows, client: int, seed: int) -> Iterator[Batch]:
    """Return all rows of a client, some at a time."""
    count = int(rows.counts[client])
    size = int(np.clip(LAZY_BLOCK // rows.dims, 1, BLOCK)) if rows.lazy else BLOCK
    with seeded(seed, client):  # the same augmentation whenever all rows are read
        for first in range(0, count, size):
            yield rows.batch([client], [np.arange(first, min(first + size, count))])
