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
from dorfl.networks.compression import Compression, Parts
from dorfl.networks.data import Batch, Rows
from dorfl.networks.device import array, mapped, seeded, tensor, wide
from dorfl.networks.model import Network
from dorfl.networks.optimizers import at_round
from dorfl.networks.plan import Plan
from dorfl.networks.supremum import Climb, Place, Robust
from dorfl.networks.tilt import Tilt
from dorfl.objective.methods import Method
from dorfl.objective.mixture import tilted_mean
from dorfl.support.types import Array

MAX_SHARED_WORK = 1_000_000  # parameters × rows of a step up to which clients step together
MAX_PADDING = 1.5  # times as many rows as the smallest client of a group has
MAX_ROW_GRADIENTS = 8_000_000  # numbers of gradients by row at a time, 32 MB
MAX_NON_CONCAVE = 0.01  # share of rows without a concave supremum that does not warn


class Kept(NamedTuple):
    """State that clients keep from round to round and do not send.

    Attributes
    ----------
    seen
        (clients, 2) running means of the tilt; NaN before the first round.
    residual
        (clients, P) what compression left out; None without compression.
    """

    seen: Tensor
    residual: Tensor | None

    def of(self, who: list[int]) -> Kept:
        """Return the state of some clients."""
        return Kept(self.seen[who], None if self.residual is None else self.residual[who])


class Answer(NamedTuple):
    """The replies of some clients in a round.

    Attributes
    ----------
    who
        Numbers of the clients.
    ways
        (clients, P) updates θ − θ_i, as the server decodes them.
    risks
        (clients,) F_i at the server's θ.
    parts
        The updates as they are sent.
    kept
        State that stays at the clients.
    """

    who: list[int]
    ways: Tensor
    risks: Tensor
    parts: Parts
    kept: Kept


class RobustRisks(NamedTuple):
    """The clients' risks at one θ, over all rows.

    Attributes
    ----------
    values
        (clients,) F_i.
    gradients
        (clients, P) ∇F_i; None if they were not requested.
    sample_weights
        Weights p of every row, by client.
    error
        Estimate of how far the mean row is below its supremum.
    non_concave
        Share of rows for which the problem was not concave on the way to the supremum.
    steps
        Steps of gradient ascent, at most.
    """

    values: Array
    gradients: Array | None
    sample_weights: list[Array]
    error: float
    non_concave: float
    steps: int


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
class Fleet:
    """All clients of this process, with what they train.

    Attributes
    ----------
    network, rows
        The model and the clients' rows.
    robust, tilt
        f of a row, and how a client's risk weighs rows.
    plan, method
        How the network is trained, and for which objective.
    notes
        Reasons for a method that was chosen from the rows.
    centers
        ξ̄ of a quadratic score: (clients, d), or (clients, classes, d).
    first
        Number, among all clients, of the first one here.
    held
        Held-out rows.
    by_loss
        Whether risks are reported without the part that depends on the score alone.
    """

    network: Network
    rows: Rows
    robust: Robust
    tilt: Tilt
    plan: Plan
    method: Method
    notes: tuple[str, ...] = ()
    centers: Tensor | None = None
    first: int = 0
    held: Rows | None = None
    by_loss: bool = False

    # ── a round ─────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Kept:
        """Return the state of clients before the first round."""
        count, theta = len(self.rows.names), self.network.start()
        squeezed = self.plan.compression is not None
        return Kept(
            theta.new_full((count, 2), torch.nan, dtype=wide(theta)),
            theta.new_zeros(count, len(theta)) if squeezed else None,
        )

    def answers(
        self, theta: Tensor, number: int, who: Sequence[int], kept: Kept, pull: Tensor | None
    ) -> Iterator[Answer]:
        """Return the replies of `who` in this round, as many clients at a time as memory admits.

        `pull` (clients, P) is added to the gradients, for drift correction.
        """
        order = in_order(who, self.rows.counts)
        for some in self._groups(order):
            yield self.answer(
                theta, number, some, kept.of(some), None if pull is None else pull[some]
            )

    def answer(
        self, theta: Tensor, number: int, who: list[int], kept: Kept, pull: Tensor | None
    ) -> Answer:
        """Return the replies of some clients at once; `kept` and `pull` are of these clients."""
        if self.plan.privacy is not None:
            ways, risks, seen = self._private(theta, number, who, kept.seen)
        else:
            with seeded(self.plan.seed, number, self.first + who[0]):
                ways, risks, seen = self._walk(theta, number, who, kept.seen, pull)
        residual, squeezer = kept.residual, self.plan.compression or Compression()
        if residual is None:
            return Answer(who, ways, risks, squeezer.pack(ways), Kept(seen, None))
        owed = ways + residual
        parts = squeezer.pack(owed)
        ways = squeezer.unpack(parts, self.network.size)
        return Answer(who, ways, risks, parts, Kept(seen, owed - ways))

    def _groups(self, order: list[int]) -> Iterator[list[int]]:
        """Return clients that step together: as many as memory admits, if that is faster.

        One call for all is faster if calls cost more than sums: a step of little work, clients of
        similar size, and no convolutions, which PyTorch batches over clients slowly on a CPU.
        """
        plan, counts = self.plan, self.rows.counts
        most = max(1, plan.max_parameters // self.network.size)
        work = self.network.size * plan.batch_size
        if self.rows.lazy or self.network.convolves or work > MAX_SHARED_WORK:
            most = 1
        first = 0
        while first < len(order):
            some = order[first : first + most]
            if plan.local_epochs and not plan.local_steps:  # smaller clients would wait
                some = [i for i in some if MAX_PADDING * counts[i] >= counts[some[0]]]
            first += len(some)
            yield some

    def _walk(
        self, theta: Tensor, number: int, who: list[int], seen: Tensor, pull: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the clients' updates, their risks before, and the running means after."""
        plan, drawn = self.plan, self._draw(number, who)
        optimizer = at_round(plan.used_optimizer, plan.lr_schedule, number)
        own = theta.expand(len(who), -1).clone()
        carried = optimizer.start(own)
        risks, working = seen, drawn.max(2) >= 0  # (clients, steps)
        for step, batch in enumerate(self.rows.stream(who, drawn)):
            climb = self.climb(own if step else theta[None], batch)
            gradient, seen = self._gradient(own, climb, batch, seen)
            if step == 0:
                risks = self.tilt.risk(seen)
            if plan.l2 > 0:
                gradient.add_(own, alpha=plan.l2)
            if pull is not None:
                gradient.add_(pull)
            if working[:, step].all():
                own = optimizer.step(own, gradient, carried, step + 1)
            else:  # some have no rows left in this round: they stay where they are
                stay = own.clone()
                own = optimizer.step(own, gradient, carried, step + 1)
                own = torch.where(tensor(working[:, step], own, torch.bool)[:, None], own, stay)
        return torch.sub(theta, own), risks, seen

    def _private(
        self, theta: Tensor, number: int, who: list[int], seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradients of all rows with noise, risks with noise, and `seen` as it is."""
        privacy = self.plan.privacy
        assert privacy is not None
        at = array(theta).astype(np.float64)
        risks, gradients = privacy.report(self.select(who), at, number)
        updates = tensor(gradients, theta)
        if self.plan.l2 > 0:
            updates.add_(theta, alpha=self.plan.l2)
        return updates, tensor(risks, theta), seen

    def climb(self, theta: Tensor, batch: Batch) -> Climb:
        """Return the supremum of every row, each client at its θ (clients or 1, P)."""
        robust = self.robust
        with nullcontext() if robust.place.still else self.network.evaluating():
            return robust.climb(self.network, theta, batch.x, batch.y, self._center(batch))

    def bare(self, batch: Batch, climb: Climb) -> Tensor | None:
        """Return f of these rows without any loss, if risks are reported without it."""
        if not self.by_loss:
            return None
        robust = self.robust
        if robust.place.still:  # no row has moved for its loss
            return climb.level
        if self.network.layer is not None:  # a score is on the inputs, which then do not move
            robust = replace(robust, place=Place(robust.place.root.new_zeros(()), still=True))
        return robust.bare(batch.x, batch.y, self._center(batch)).detach()

    def _center(self, batch: Batch) -> Tensor | None:
        """Return ξ̄ of the rows of a batch, if the score has a centre."""
        if self.centers is None:
            return None
        own = self.centers[list(batch.who)]
        if own.ndim == 3:  # one for each class
            own = own[torch.arange(len(own), device=own.device)[:, None], batch.y]
        return own.view(len(batch.who), -1, *batch.x.shape[2:])

    def losses(self, theta: Tensor | None, climb: Climb, batch: Batch) -> Tensor:
        """Return l of the moved rows."""
        x = mapped(Tensor.detach, climb.x)
        return self.robust.losses(self.network, theta, x, batch.y, climb.shift)

    def _gradient(
        self, own: Tensor, climb: Climb, batch: Batch, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ∇F_i on a minibatch of every client, at its θ, and the running means after it."""
        alone = len(own) == 1
        at = None if alone else own.detach().requires_grad_(True)
        trained = self.network.load(own) if alone else [at]
        loss = self.losses(at, climb, batch)
        f = loss.detach() + climb.level
        seen, weights = self.tilt.weigh(f, batch.there, seen, self.bare(batch, climb))
        found = torch.autograd.grad((weights * loss).sum(), trained)
        return torch.cat([part.reshape(-1) for part in found]).view(own.shape), seen

    def _draw(self, number: int, who: list[int]) -> Array:
        """Return row numbers, (clients, steps, batch): every client has its own stream."""
        plan, counts = self.plan, self.rows.counts[who]
        batch = int(min(plan.batch_size, counts.max()))
        steps = plan.local_steps or plan.local_epochs * -(-int(counts.max()) // batch)
        drawn = np.full((len(who), steps * batch), -1, dtype=np.int64)
        for row, (i, count) in enumerate(zip(who, counts.tolist(), strict=True)):
            rng = np.random.default_rng([plan.seed, number, self.first + i])
            own = _order(rng, count, batch, plan.local_epochs, plan.local_steps)
            drawn[row, : len(own)] = own
        return drawn.reshape(len(who), steps, batch)

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

    def take(self, indices: Sequence[Array]) -> Fleet:
        """Return the clients with only the given rows of each."""
        return replace(self, rows=self.rows.take(indices))

    def select(self, clients: Sequence[int]) -> Fleet:
        """Return only some of the clients."""
        who = list(clients)
        centers = None if self.centers is None else self.centers[who]
        return replace(self, rows=self.rows.select(who), centers=centers)

    def risks(self, theta: Tensor, *, gradients: bool = False) -> RobustRisks:
        """Return F_i(θ) of every client from all its rows, with ∇F_i if requested.

        If clients are compared by loss, F_i is without the part that depends on the score alone.
        Warns if the supremum was not concave, because f is then that of a local maximum.
        """
        tau, rule = self.tilt.temperature, self.plan.row_risk
        values, weights, slopes = [], [], []
        error, bent, steps = 0.0, 0, 0
        for i in range(len(self.names)):
            found, bare, kept = [], [], []
            for batch, climb, f in self._all_rows(theta, i):
                found.append(f)
                alone = self.bare(batch, climb)
                bare.append(np.zeros(len(f)) if alone is None else _wide(alone[0]))
                error += float(climb.error[climb.bend > 0].sum())
                bent += int((climb.bend <= 0).sum())
                steps = max(steps, climb.steps)
                kept += [(batch, climb)] if gradients else []  # rows may be larger than memory
            f = np.concatenate(found)
            if rule is not None:
                rise = tensor(f, theta, wide(theta))[None]
                risk, share = (array(part)[0] for part in rule(rise, torch.ones_like(rise)))
                values.append(float(risk))
            else:
                values.append(tilted_mean(f, tau) - tilted_mean(np.concatenate(bare), tau))
                share = np.exp((f - f.max()) / tau)  # all 1 for τ = ∞
            weights.append(share / share.sum())
            if gradients:
                slopes.append(self._full_gradient(theta, kept, weights[-1]))
        count = int(self.counts.sum())
        if bent > MAX_NON_CONCAVE * count:
            warnings.warn(
                f"on the way of {bent} of {count} rows to their worst place the problem is not "
                "concave: it may be a local one, and what is computed from it an estimate, not a "
                "bound; a larger rho helps",
                stacklevel=2,
            )
        table = np.array(slopes) if gradients else None
        return RobustRisks(np.array(values), table, weights, error / count, bent / count, steps)

    def clipped(self, theta: Array, longest: float, bounds: tuple[float, float]) -> Evaluation:
        """Return F_i and ∇F_i with every f clipped to `bounds` and its gradient to `longest`.

        The weights p are those of the clipped f, as :mod:`dorfl.federated.privacy` needs them.
        """
        at, tau = tensor(theta, self.network.start()), self.tilt.temperature
        values, gradients = [], np.zeros((len(self.names), len(theta)))
        for i in range(len(self.names)):
            f = np.concatenate([found for *_, found in self._all_rows(at, i)]).clip(*bounds)
            values.append(tilted_mean(f, tau))
            share = np.exp((f - f.max()) / tau)
            share, first = share / share.sum(), 0
            for batch, climb, found in self._all_rows(at, i):
                own = share[first : first + len(found)]
                first += len(found)
                gradients[i] += self._clipped_sum(at, batch, climb, own, longest)
        return Evaluation(np.array(values), gradients)

    def _all_rows(self, theta: Tensor, client: int) -> Iterator[tuple[Batch, Climb, Array]]:
        """Return batches of a client's rows with their suprema f."""
        for batch in self.rows.blocks(client, self.plan.seed):
            climb = self.climb(theta[None], batch)
            with torch.no_grad(), self.network.evaluating():
                f = self.losses(theta[None], climb, batch) + climb.level
            yield batch, climb, _wide(f[0])

    def _full_gradient(
        self, theta: Tensor, passed: list[tuple[Batch, Climb]], weights: Array
    ) -> Array:
        """Return Σ_j p_j ∇l(θ, z_j) of one client."""
        at = theta.detach().clone().requires_grad_(True)
        total, first = torch.zeros_like(theta), 0
        for batch, climb in passed:
            p = tensor(weights[first : first + batch.there.shape[1]], theta)
            first += len(p)
            with self.network.evaluating():
                loss = self.losses(at[None], climb, batch)
            total += torch.autograd.grad((p * loss[0]).sum(), at)[0]
        return _wide(total)

    def _clipped_sum(
        self, theta: Tensor, batch: Batch, climb: Climb, weights: Array, longest: float
    ) -> Array:
        """Return Σ_j p_j g_j, each row's gradient g_j clipped to length `longest`."""

        def loss(at: Tensor, x: Any, y: Tensor, *shift: Tensor) -> Tensor:
            own = tree_map(lambda leaf: leaf[None, None], (x, y, *shift))
            return self.robust.losses(self.network, at[None], *own)[0, 0]

        moved = (climb.x, batch.y) if climb.shift is None else (climb.x, batch.y, climb.shift)
        rows = tree_map(lambda leaf: leaf.detach()[0], moved)
        by_row = grad(loss)
        size, total = max(1, MAX_ROW_GRADIENTS // len(theta)), np.zeros(len(theta))
        for first in range(0, len(weights), size):
            part = tree_map(lambda leaf, k=first: leaf[k : k + size], rows)
            p = tensor(weights[first : first + size], theta)
            with self.network.evaluating():
                try:
                    slopes = vmap(by_row, (None, *[0] * len(part)))(theta, *part)
                except RuntimeError:  # a module that cannot be batched over rows
                    each = [tree_map(lambda leaf, j=j: leaf[j], part) for j in range(len(p))]
                    slopes = torch.stack([by_row(theta, *one) for one in each])
            norms = torch.linalg.vector_norm(slopes, dim=1)
            scale = p * longest / norms.clamp(min=longest)
            total += _wide(scale @ slopes)
        return total


def in_order(who: Sequence[int], counts: Array) -> list[int]:
    """Return clients in the order in which replies are summed: large ones first."""
    return sorted(who, key=lambda i: (-counts[i], i))


def _wide(values: Tensor) -> Array:
    """Return a tensor as an array of float64."""
    return array(values).astype(np.float64)


def _order(rng: np.random.Generator, count: int, batch: int, epochs: int, steps: int) -> Array:
    """Return row numbers in the order in which they are used; −1 pads a batch that is not full.

    A batch never has the same row twice. A batch of all rows has them in their own order.
    """
    size = min(batch, count)
    order = np.arange if size == count else rng.permutation
    full = -(-count // size)  # batches in an epoch
    if steps:
        whole = max(1, count // size)  # of a stream of full batches
        passes = [order(count)[: whole * size] for _ in range(-(-steps // whole))]
        drawn = np.concatenate(passes)[: steps * size].reshape(steps, size)
    else:
        padded = [np.pad(order(count), (0, full * size - count), constant_values=-1)
                  for _ in range(epochs)]  # fmt: skip
        drawn = np.concatenate(padded).reshape(-1, size)
    return np.pad(drawn, ((0, 0), (0, batch - size)), constant_values=-1).ravel()
