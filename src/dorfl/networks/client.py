"""Clients of this process: a round's local steps, and risks of all rows. Rows stay here.

Clients whose parameters fit into memory together step together, each along its own gradient. All
clients of the process are also an :class:`~dorfl.linear.base.Oracle`, as the solvers of linear
models need it.

With differential privacy a client sends the gradient of all its rows, each clipped by itself
(Abadi et al., "Deep learning with differential privacy", CCS 2016), and its risk, both with the
noise of :mod:`dorfl.federated.privacy`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from dorfl.linear.base import Evaluation, Terms
from dorfl.networks.data import Batch, ClientRows
from dorfl.networks.device import array, mapped, seeded, tensor, wide
from dorfl.networks.model import Network
from dorfl.networks.optimizers import SGD, at_round
from dorfl.networks.plan import NetworkPlan
from dorfl.networks.supremum import Ascent, RobustLoss
from dorfl.networks.tilt import RowTilt
from dorfl.objective.methods import Method
from dorfl.objective.mixture import tilted_mean
from dorfl.support.types import Array

MAX_SHARED_WORK = 1_000_000  # parameters × rows of a step up to which clients step together
MAX_PADDING = 1.5  # times as many rows as the smallest client of a group has
MAX_ROW_GRADIENTS = 8_000_000  # numbers of gradients by row at a time, 32 MB
MAX_NON_CONCAVE = 0.01  # share of rows without a concave supremum that does not warn


class Reply(NamedTuple):
    """The replies of some clients in a round."""

    clients: list[int]  # Numbers of the clients
    updates: Tensor  # (clients, P) updates θ − θ_i
    risks: Tensor  # (clients,) F_i at the server's θ
    means: Tensor = torch.empty(0)  # (clients, 2) running means of the tilt, which are not sent


class RobustRisks(NamedTuple):
    """The clients' risks at one θ, over all rows."""

    values: Array  # (clients,) F_i
    gradients: Array | None  # (clients, P) ∇F_i; None if they were not requested
    sample_weights: list[Array]  # Weights p of every row, by client
    error: float  # Estimate of how far the mean row is below its supremum
    non_concave: float  # Share of rows for which the problem was not concave
    steps: int  # Steps of gradient ascent, at most


@dataclass(frozen=True, eq=False)
class NetworkProblem(Terms):
    """What server and clients of a network agree on: a method, where θ starts, and the network."""

    network: Network

    def predict(self, theta: Array, rows: Array) -> Array:
        """Return the network's outputs for rows."""
        with torch.no_grad(), self.network.evaluating():
            at = tensor(theta, self.network.start())
            return array(self.network.outputs(at[None], tensor(rows, at)[None])[0])


@dataclass(frozen=True, eq=False)
class LocalClients:
    """All clients of this process, with what they train."""

    network: Network  # The model and the clients' rows
    rows: ClientRows
    robust: RobustLoss  # f of a row, and how a client's risk weighs rows
    tilt: RowTilt
    plan: NetworkPlan  # How the network is trained, and for which objective
    method: Method
    notes: tuple[str, ...] = ()  # Reasons for a method that was chosen from the rows
    centers: Tensor | None = None  # ξ̄ of a quadratic score: (clients, d), or (clients, classes, d)
    first: int = 0  # Number, among all clients, of the first one here
    held_out: ClientRows | None = None  # Held-out rows
    by_loss: bool = False  # Whether risks leave out the part of the score alone

    # ── a round ─────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Tensor:
        """Return the running means of the tilt before the first round: (clients, 2), NaN."""
        theta = self.network.start()
        return theta.new_full((len(self.names), 2), torch.nan, dtype=wide(theta))

    def replies(
        self,
        theta: Tensor,
        number: int,
        clients: Sequence[int],
        means: Tensor,
    ) -> Iterator[Reply]:
        """Return the replies of `clients` in this round, as many at a time as memory admits."""
        for some in self._groups(in_order(clients, self.rows.counts)):
            yield self.reply(theta, number, some, means[some])

    def reply(self, theta: Tensor, number: int, clients: list[int], means: Tensor) -> Reply:
        """Return the replies of some clients; `means` are of these clients."""
        if self.plan.privacy is not None:
            return Reply(clients, *self._private(theta, number, clients), means)
        torch_only = not (self.rows.lazy or self.network.has_user_code)
        with seeded(self.plan.seed, number, self.first + clients[0], torch_only=torch_only):
            if len(clients) == 1 and self._is_plain:
                return self._plain_steps(theta, number, clients[0], means)
            return self._local_steps(theta, number, clients, means)

    def _groups(self, order: list[int]) -> Iterator[list[int]]:
        """Return clients that step together: as many as memory admits, if that is faster.

        One call for all is faster if calls cost more than sums: a step of little work, clients of
        similar size, and no convolutions, which PyTorch batches over clients slowly on a CPU.
        """
        plan, counts = self.plan, self.rows.counts
        limit = max(1, plan.max_parameters // self.network.size)
        work = self.network.size * plan.batch_size
        if self.rows.lazy or self.network.convolves or work > MAX_SHARED_WORK:
            limit = 1
        first = 0
        while first < len(order):
            some = order[first : first + limit]
            if len(some) > 1 and not plan.local_steps:  # smaller clients would wait
                some = [i for i in some if MAX_PADDING * counts[i] >= counts[some[0]]]
            first += len(some)
            yield some

    @property
    def _is_plain(self) -> bool:
        """Whether F_i is the mean loss of the rows as they are: no tilt, transport or score."""
        robust = self.robust
        moves = self.centers is not None or not robust.geometry.frozen
        return self.tilt.is_mean and robust.score is None and not moves

    def _plain_steps(self, theta: Tensor, number: int, client: int, means: Tensor) -> Reply:
        """Return the reply of a client whose steps are those of FedAvg, without other work."""
        plan, risk = self.plan, means.new_zeros(())
        optimizer = at_round(plan.used_optimizer, plan.lr_schedule, number)
        is_sgd = isinstance(optimizer, SGD) and optimizer.momentum == 0.0
        own = theta.clone()[None]
        carried = optimizer.start(own)
        batches = self.rows.stream([client], self._draw(number, [client]))
        for step, batch in enumerate(batches, 1):
            trained = self.network.load(own)
            outputs = self.network.flat_outputs(None, batch.x)
            loss = self.robust.bounded(outputs, batch.y[0]).mean()
            gradients = torch.autograd.grad(loss, trained)
            if step == 1:
                risk = loss.detach().to(means)
            if is_sgd and plan.l2 == 0.0:  # in place, by parameter: half the time of a flat step
                for parameter, gradient in zip(trained, gradients, strict=True):
                    parameter.data.sub_(gradient, alpha=optimizer.lr)
                continue
            flat = torch.cat([part.reshape(-1) for part in gradients])[None]
            if plan.l2 > 0.0:
                flat.add_(own, alpha=plan.l2)
            own = optimizer.step(own, flat, carried, step)
        update = torch.sub(theta, own, out=own)
        return Reply([client], update, risk[None], torch.stack([risk, risk * 0.0])[None])

    def _local_steps(self, theta: Tensor, number: int, clients: list[int], means: Tensor) -> Reply:
        """Return the clients' updates, their risks before, and the running means after."""
        plan = self.plan
        drawn = self._draw(number, clients)
        has_rows = drawn.max(2) >= 0  # (clients, steps)
        all_have_rows = has_rows.all(0).tolist()
        optimizer = at_round(plan.used_optimizer, plan.lr_schedule, number)
        own = theta.expand(len(clients), -1).clone()
        carried = optimizer.start(own)
        risks = means
        for step, batch in enumerate(self.rows.stream(clients, drawn)):
            ascent = self.ascend(own if step else theta[None], batch)
            gradient, means = self._gradient(own, ascent, batch, means)
            if step == 0:
                risks = self.tilt.risk(means)
            if plan.l2 > 0:
                gradient.add_(own, alpha=plan.l2)
            before = None if all_have_rows[step] else own.clone()
            own = optimizer.step(own, gradient, carried, step + 1)
            if before is not None:  # clients without rows left in this round stay where they are
                moving = tensor(has_rows[:, step], own, torch.bool)[:, None]
                own = torch.where(moving, own, before)
        return Reply(clients, torch.sub(theta, own, out=own), risks, means)

    def _private(self, theta: Tensor, number: int, clients: list[int]) -> tuple[Tensor, Tensor]:
        """Return gradients of all rows with noise, and risks with noise."""
        privacy = self.plan.privacy
        assert privacy is not None
        risks, gradients = privacy.report(self.select(clients), _wide(theta), number)
        updates = tensor(gradients, theta)
        if self.plan.l2 > 0:
            updates.add_(theta, alpha=self.plan.l2)
        return updates, tensor(risks, theta)

    def ascend(self, theta: Tensor, batch: Batch) -> Ascent:
        """Return the supremum of every row, each client at its θ (clients or 1, P)."""
        frozen = self.robust.geometry.frozen
        with nullcontext() if frozen else self.network.evaluating():
            return self.robust.ascend(self.network, theta, batch.x, batch.y, self._center(batch))

    def _without_loss(self, batch: Batch, ascent: Ascent) -> Tensor | None:
        """Return f of these rows for a loss of 0, if risks are reported without it."""
        if not self.by_loss:
            return None
        if self.robust.geometry.frozen:  # no row has moved for its loss
            return ascent.level
        return self.robust.without_loss(batch.x, batch.y, self._center(batch)).detach()

    def _center(self, batch: Batch) -> Tensor | None:
        """Return ξ̄ of the rows of a batch, if the score has a centre."""
        if self.centers is None:
            return None
        own = self.centers[list(batch.clients)]
        if own.ndim == 3:  # one for each class
            own = own[torch.arange(len(own), device=own.device)[:, None], batch.y]
        return own.view(len(batch.clients), -1, *batch.x.shape[2:])

    def losses(self, theta: Tensor | None, ascent: Ascent, batch: Batch) -> Tensor:
        """Return l of the moved rows."""
        x = mapped(Tensor.detach, ascent.x)
        return self.robust.losses(self.network, theta, x, batch.y)

    def _gradient(
        self, own: Tensor, ascent: Ascent, batch: Batch, means: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ∇F_i on a minibatch of every client, at its θ, and the running means after it."""
        if len(own) == 1:
            at = None
            trained = self.network.load(own)
        else:
            at = own.detach().requires_grad_(True)
            trained = [at]
        loss = self.losses(at, ascent, batch)
        f = loss.detach() + ascent.level
        means, weights = self.tilt.weigh(f, batch.mask, means, self._without_loss(batch, ascent))
        found = torch.autograd.grad((weights * loss).sum(), trained)
        return torch.cat([part.reshape(-1) for part in found]).view(own.shape), means

    def _draw(self, number: int, clients: list[int]) -> Array:
        """Return row numbers, (clients, steps, batch): every client has its own stream."""
        plan, counts = self.plan, self.rows.counts[clients]
        batch = int(min(plan.batch_size, counts.max()))
        steps = plan.local_steps or plan.local_epochs * -(-int(counts.max()) // batch)
        epochs = 0 if plan.local_steps else plan.local_epochs
        drawn = np.full((len(clients), steps, batch), -1)
        for own, i, count in zip(drawn, clients, counts.tolist(), strict=True):
            _fill(own, np.random.default_rng([plan.seed, number, self.first + i]), count, epochs)
        return drawn

    # ── all rows at one θ: an oracle ────────────────────────────────────────────────────────────

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients."""
        return self.rows.names

    @property
    def counts(self) -> Array:
        """Numbers of rows."""
        return self.rows.counts

    @cached_property
    def problem(self) -> NetworkProblem:
        """What the clients agree on with a server."""
        start = array(self.network.start()).astype(np.float64)
        return NetworkProblem(self.method, start, self.network)

    def evaluate(self, theta: Array, curvature: str = "none", *, rows: bool = False) -> Evaluation:
        """Return F_i and ∇F_i at θ; there is no curvature."""
        del curvature
        found = self.risks(tensor(theta, self.network.start()), gradients=True)
        assert found.gradients is not None
        weights = found.sample_weights if rows else None
        return Evaluation(found.values, found.gradients, found.error, weights=weights)

    def take(self, indices: Sequence[Array]) -> LocalClients:
        """Return the clients with only the given rows of each."""
        return replace(self, rows=self.rows.take(indices))

    def select(self, clients: Sequence[int]) -> LocalClients:
        """Return only some of the clients."""
        some = list(clients)
        centers = None if self.centers is None else self.centers[some]
        return replace(self, rows=self.rows.select(some), centers=centers)

    def risks(self, theta: Tensor, *, gradients: bool = False) -> RobustRisks:
        """Return F_i(θ) of every client from all its rows, with ∇F_i if requested.

        If clients are compared by loss, F_i is without the part that depends on the score alone.
        Warns if the supremum was not concave, because f is then that of a local maximum.
        """
        tau, rule = self.tilt.temperature, self.plan.row_risk
        values, weights, gradients_by_client = [], [], []
        error, non_concave, steps = 0.0, 0, 0
        for i in range(len(self.names)):
            found, without_loss, kept = [], [], []
            for batch, ascent, f in self._all_rows(theta, i):
                found.append(f)
                part = self._without_loss(batch, ascent)
                without_loss.append(np.zeros(len(f)) if part is None else _wide(part[0]))
                error += float(ascent.error[ascent.concavity > 0].sum())
                non_concave += int((ascent.concavity <= 0).sum())
                steps = max(steps, ascent.steps)
                kept += [(batch, ascent)] if gradients else []  # rows may be larger than memory
            f = np.concatenate(found)
            if rule is not None:
                row = tensor(f, theta, wide(theta))[None]
                risk, share = (array(part)[0] for part in rule(row, torch.ones_like(row)))
                values.append(float(risk))
            else:
                common = tilted_mean(np.concatenate(without_loss), tau)
                values.append(tilted_mean(f, tau) - common)
                share = np.exp((f - f.max()) / tau)  # all 1 for τ = ∞
            weights.append(share / share.sum())
            if gradients:
                gradients_by_client.append(self._full_gradient(theta, kept, weights[-1]))
        count = int(self.counts.sum())
        if non_concave > MAX_NON_CONCAVE * count:
            warnings.warn(
                f"on the way of {non_concave} of {count} rows to their worst place the problem is "
                "not concave: it may be a local one, and what is computed from it an estimate, not "
                "a bound; a larger rho helps",
                stacklevel=2,
            )
        table = np.array(gradients_by_client) if gradients else None
        return RobustRisks(
            np.array(values), table, weights, error / count, non_concave / count, steps
        )

    def clipped(self, theta: Array, max_length: float, bounds: tuple[float, float]) -> Evaluation:
        """Return F_i and ∇F_i with every f clipped to `bounds` and its gradient to `max_length`.

        The weights p are those of the clipped f, as :mod:`dorfl.federated.privacy` needs them.
        """
        at, tau = tensor(theta, self.network.start()), self.tilt.temperature
        values, gradients = [], np.zeros((len(self.names), len(theta)))
        for i in range(len(self.names)):
            f = np.concatenate([found for *_, found in self._all_rows(at, i)]).clip(*bounds)
            values.append(tilted_mean(f, tau))
            share = np.exp((f - f.max()) / tau)
            share, first = share / share.sum(), 0
            for batch, ascent, found in self._all_rows(at, i):
                own = share[first : first + len(found)]
                first += len(found)
                gradients[i] += self._clipped_sum(at, batch, ascent, own, max_length)
        return Evaluation(np.array(values), gradients)

    def _all_rows(self, theta: Tensor, client: int) -> Iterator[tuple[Batch, Ascent, Array]]:
        """Return batches of a client's rows with their suprema f."""
        for batch in self.rows.blocks(client, self.plan.seed):
            ascent = self.ascend(theta[None], batch)
            with torch.no_grad(), self.network.evaluating():
                f = self.losses(theta[None], ascent, batch) + ascent.level
            yield batch, ascent, _wide(f[0])

    def _full_gradient(
        self, theta: Tensor, passed: list[tuple[Batch, Ascent]], weights: Array
    ) -> Array:
        """Return Σ_j p_j ∇l(θ, z_j) of one client."""
        at = theta.detach().clone().requires_grad_(True)
        total, first = torch.zeros_like(theta), 0
        for batch, ascent in passed:
            p = tensor(weights[first : first + batch.mask.shape[1]], theta)
            first += len(p)
            with self.network.evaluating():
                loss = self.losses(at[None], ascent, batch)
            total += torch.autograd.grad((p * loss[0]).sum(), at)[0]
        return _wide(total)

    def _clipped_sum(
        self, theta: Tensor, batch: Batch, ascent: Ascent, weights: Array, max_length: float
    ) -> Array:
        """Return Σ_j p_j g_j, each row's gradient g_j clipped to length `max_length`."""

        def loss(at: Tensor, x: Any, y: Tensor) -> Tensor:
            own = tree_map(lambda leaf: leaf[None, None], (x, y))
            return self.robust.losses(self.network, at[None], *own)[0, 0]

        rows = tree_map(lambda leaf: leaf.detach()[0], (ascent.x, batch.y))
        by_row = grad(loss)
        size, total = max(1, MAX_ROW_GRADIENTS // len(theta)), np.zeros(len(theta))
        for first in range(0, len(weights), size):
            part = tree_map(lambda leaf, k=first: leaf[k : k + size], rows)
            p = tensor(weights[first : first + size], theta)
            with self.network.evaluating():
                try:
                    slopes = vmap(by_row, (None, 0, 0))(theta, *part)
                except RuntimeError:  # a module that cannot be batched over rows
                    each = [tree_map(lambda leaf, j=j: leaf[j], part) for j in range(len(p))]
                    slopes = torch.stack([by_row(theta, *one) for one in each])
            norms = torch.linalg.vector_norm(slopes, dim=1)
            scale = p * max_length / norms.clamp(min=max_length)
            total += _wide(scale @ slopes)
        return total


def in_order(clients: Sequence[int], counts: Array) -> list[int]:
    """Return clients in the order in which replies are summed: large ones first."""
    return sorted(clients, key=lambda i: (-counts[i], i))


def _wide(values: Tensor) -> Array:
    """Return a tensor as an array of float64."""
    return array(values).astype(np.float64)


def _fill(drawn: Array, rng: np.random.Generator, count: int, epochs: int) -> None:
    """Fill (steps, batch) with row numbers in the order of their use; −1 pads a short batch.

    A batch never has the same row twice. A batch of all rows has them in their own order. Without
    epochs, all batches are full.
    """
    steps, batch = drawn.shape
    size = min(batch, count)
    order = np.arange if size == count else rng.permutation
    length = -(-count // size) if epochs else count // size  # batches in a pass over the rows
    for first in range(0, epochs * length or steps, length):
        rows = np.full(length * size, -1)
        rows[:count] = order(count)[: length * size]
        drawn[first : first + length, :size] = rows.reshape(length, size)[: steps - first]
