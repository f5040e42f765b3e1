"""What clients do in a round: some steps on their own rows from the server's θ. Rows stay here.

Clients whose parameters fit into memory together step together, each along its own gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dorfl.networks.compression import Compression, Parts
from dorfl.networks.data import Batch, Rows
from dorfl.networks.device import mapped, seeded, tensor, wide
from dorfl.networks.model import Network
from dorfl.networks.optimizers import at_round
from dorfl.networks.plan import Plan
from dorfl.networks.supremum import Climb, Place, Robust
from dorfl.networks.tilt import Tilt
from dorfl.objective.methods import Method
from dorfl.support.types import Array

MAX_SHARED_WORK = 1_000_000  # parameters × rows of a step up to which clients step together
MAX_PADDING = 1.5  # times as many rows as the smallest client of a group has


class Kept(NamedTuple):
    """What clients keep to themselves from round to round."""

    seen: Tensor  # (clients, 2) running means of the tilt; NaN before the first
    residual: Tensor | None  # (clients, P) what compression left out

    def of(self, who: list[int]) -> Kept:
        """That of some clients."""
        return Kept(self.seen[who], None if self.residual is None else self.residual[who])


class Answer(NamedTuple):
    """What some clients found: their ways θ − θ_i (clients, P), as they arrive, and risks."""

    who: list[int]
    ways: Tensor
    risks: Tensor  # (clients,) F_i at the server's θ
    parts: Parts  # the ways as they travel
    kept: Kept  # stays at the clients


@dataclass(frozen=True, eq=False)
class Fleet:
    """All clients of this process, and what they have agreed to train."""

    network: Network
    rows: Rows
    robust: Robust
    tilt: Tilt
    plan: Plan
    method: Method
    notes: tuple[str, ...] = ()  # reasons for a method that was chosen from the rows
    centers: Tensor | None = None  # ξ̄ of a quadratic score: (clients, d), or (clients, classes, d)
    first: int = 0  # the number, among all clients, of the first one here
    held: Rows | None = None  # rows that are evaluated, and not trained on
    by_loss: bool = False  # whether risks are told without what the score alone makes of the rows

    def begin(self) -> Kept:
        """What clients keep before the first round."""
        count, theta = len(self.rows.names), self.network.start()
        squeezed = self.plan.compression is not None
        return Kept(
            theta.new_full((count, 2), torch.nan, dtype=wide(theta)),
            theta.new_zeros(count, len(theta)) if squeezed else None,
        )

    def answers(
        self, theta: Tensor, number: int, who: Sequence[int], kept: Kept, pull: Tensor | None
    ) -> Iterator[Answer]:
        """The answers of `who` in this round, as many clients at a time as memory admits.

        `pull` (clients, P) is added to the gradients: what drift correction asks for.
        """
        order = in_order(who, self.rows.counts)
        for some in self._groups(order):
            yield self.answer(
                theta, number, some, kept.of(some), None if pull is None else pull[some]
            )

    def answer(
        self, theta: Tensor, number: int, who: list[int], kept: Kept, pull: Tensor | None
    ) -> Answer:
        """The answers of some clients at once; what is given of `kept` and `pull` is theirs."""
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
        """Clients that step together: as many as memory admits, if that is faster than one by one.

        One call for all pays where calls cost more than sums: a step of little work, clients of
        like size, and no convolutions, which PyTorch batches over clients slowly on a CPU.
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
        """Where the clients' steps lead, their risks before, and the running means after."""
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

    def climb(self, theta: Tensor, batch: Batch) -> Climb:
        """Rows at their worst, each client at its θ (clients or 1, P)."""
        robust = self.robust
        with nullcontext() if robust.place.still else self.network.evaluating():
            return robust.climb(self.network, theta, batch.x, batch.y, self._center(batch))

    def bare(self, batch: Batch, climb: Climb) -> Tensor | None:
        """f of these rows without any loss, if risks are told without it."""
        if not self.by_loss:
            return None
        robust = self.robust
        if robust.place.still:  # no row has moved for its loss
            return climb.level
        if self.network.layer is not None:  # a score is on the inputs, which then do not move
            robust = replace(robust, place=Place(robust.place.root.new_zeros(()), still=True))
        return robust.bare(batch.x, batch.y, self._center(batch)).detach()

    def _center(self, batch: Batch) -> Tensor | None:
        """ξ̄ of the rows of a batch, if the score has a centre."""
        if self.centers is None:
            return None
        own = self.centers[list(batch.who)]
        if own.ndim == 3:  # one for each class: that of every row's
            own = own[torch.arange(len(own), device=own.device)[:, None], batch.y]
        return own.view(len(batch.who), -1, *batch.x.shape[2:])

    def losses(self, theta: Tensor | None, climb: Climb, batch: Batch) -> Tensor:
        """l of the moved rows."""
        x = mapped(Tensor.detach, climb.x)
        return self.robust.losses(self.network, theta, x, batch.y, climb.shift)

    def _gradient(
        self, own: Tensor, climb: Climb, batch: Batch, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """∇F_i on a minibatch of every client, at its own θ, and the running means after it."""
        alone = len(own) == 1
        at = None if alone else own.detach().requires_grad_(True)
        trained = self.network.load(own) if alone else [at]
        loss = self.losses(at, climb, batch)
        f = loss.detach() + climb.level
        seen, weights = self.tilt.weigh(f, batch.there, seen, self.bare(batch, climb))
        found = torch.autograd.grad((weights * loss).sum(), trained)
        return torch.cat([part.reshape(-1) for part in found]).view(own.shape), seen

    def _draw(self, number: int, who: list[int]) -> Array:
        """Row numbers for this round, (clients, steps, batch): every client has its own stream."""
        plan, counts = self.plan, self.rows.counts[who]
        batch = int(min(plan.batch_size, counts.max()))
        steps = plan.local_steps or plan.local_epochs * -(-int(counts.max()) // batch)
        drawn = np.full((len(who), steps * batch), -1, dtype=np.int64)
        for row, (i, count) in enumerate(zip(who, counts.tolist(), strict=True)):
            rng = np.random.default_rng([plan.seed, number, self.first + i])
            own = _order(rng, count, batch, plan.local_epochs, plan.local_steps)
            drawn[row, : len(own)] = own
        return drawn.reshape(len(who), steps, batch)


def in_order(who: Sequence[int], counts: Array) -> list[int]:
    """Clients as their answers are added up: those alike together, which need less padding."""
    return sorted(who, key=lambda i: (-counts[i], i))


def _order(rng: np.random.Generator, count: int, batch: int, epochs: int, steps: int) -> Array:
    """Row numbers in the order they are used; −1 where a batch is not full.

    A batch never has the same row twice: what an epoch leaves is not filled up from the next. One
    of all rows has them as they are.
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
