"""What clients do in a round: some steps on their own rows from the server's θ. Rows stay here.

Clients whose parameters fit into memory together step together, each along its own gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dorfl.networks.compression import Compression, Parts
from dorfl.networks.data import Rows
from dorfl.networks.model import Network
from dorfl.networks.plan import Plan
from dorfl.networks.rows import Climb, Place, Robust
from dorfl.networks.tilt import Tilt
from dorfl.objective.methods import Method
from dorfl.support.types import Array


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


class Batches(NamedTuple):
    """Row numbers (clients, steps, batch), and 1 where there is a row or 0 for padding."""

    numbers: Tensor
    there: Tensor


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
    by_loss: bool = False  # whether risks are told without what the score alone makes of the rows

    def begin(self) -> Kept:
        """What clients keep before the first round."""
        count, theta = len(self.rows.names), self.network.start()
        squeezed = self.plan.compression is not None
        return Kept(
            torch.full((count, 2), torch.nan, dtype=torch.float64),
            torch.zeros(count, len(theta), dtype=theta.dtype) if squeezed else None,
        )

    def answers(
        self, theta: Tensor, number: int, who: Sequence[int], kept: Kept, pull: Tensor | None
    ) -> Iterator[Answer]:
        """The answers of `who` in this round, as many clients at a time as memory admits.

        `pull` (clients, P) is added to the gradients: what drift correction asks for.
        """
        most = max(1, self.plan.max_parameters // self.network.size)
        order = in_order(who, self.rows.counts)
        for first in range(0, len(order), most):
            some = order[first : first + most]
            yield self.answer(
                theta, number, some, kept.of(some), None if pull is None else pull[some]
            )

    def answer(
        self, theta: Tensor, number: int, who: list[int], kept: Kept, pull: Tensor | None
    ) -> Answer:
        """The answers of some clients at once; what is given of `kept` and `pull` is theirs."""
        drawn = np.random.SeedSequence([self.plan.seed, number, self.first + who[0]])
        with torch.random.fork_rng(devices=[]):  # dropout draws the same for a seed
            torch.manual_seed(int(drawn.generate_state(1)[0]))
            ways, risks, seen = self._walk(theta, number, who, kept.seen, pull)
        residual, squeezer = kept.residual, self.plan.compression or Compression()
        if residual is None:
            return Answer(who, ways, risks, squeezer.pack(ways), Kept(seen, None))
        owed = ways + residual
        parts = squeezer.pack(owed)
        ways = squeezer.unpack(parts, self.network.size)
        return Answer(who, ways, risks, parts, Kept(seen, owed - ways))

    def _walk(
        self, theta: Tensor, number: int, who: list[int], seen: Tensor, pull: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Where the clients' steps lead, their risks before, and the running means after."""
        plan, batches = self.plan, self._batches(number, who)
        own = theta.expand(len(who), -1).clone()
        carried = plan.used_optimizer.start(own)
        risks = seen
        for step in range(batches.numbers.shape[1]):
            index, there = batches.numbers[:, step], batches.there[:, step]
            climb = self.climb(own if step else theta[None], who, index)
            bare = self.bare(who, index, climb)
            gradient, seen = self._gradient(own, climb, index, there, seen, bare)
            if step == 0:
                risks = self.tilt.risk(seen)
            if plan.l2 > 0:
                gradient.add_(own, alpha=plan.l2)
            if pull is not None:
                gradient.add_(pull)
            working = there.any(1, keepdim=True)
            if bool(working.all()):
                plan.used_optimizer.step(own, gradient, carried, step + 1)
            else:  # some have no rows left in this round: they stay where they are
                stay = own.clone()
                plan.used_optimizer.step(own, gradient, carried, step + 1)
                own = torch.where(working, own, stay)
        return torch.sub(theta, own, out=own), risks, seen

    def climb(self, theta: Tensor, who: Sequence[int], index: Tensor) -> Climb:
        """Rows (clients, n) of `who` at their worst, each client at its θ (clients or 1, P)."""
        with self.network.evaluating():
            return self.robust.climb(self.network, theta, *self._given(who, index))

    def bare(self, who: Sequence[int], index: Tensor, climb: Climb) -> Tensor:
        """f of these rows without any loss, where risks are told without it; 0 elsewhere."""
        if not self.by_loss:
            return torch.zeros(index.shape, dtype=self.rows.x.dtype)
        robust = self.robust
        if robust.place.still:  # no row has moved for its loss
            return climb.level
        if self.network.layer is not None:  # a score is on the inputs, which then do not move
            robust = replace(robust, place=Place(torch.zeros(())))
        return robust.bare(*self._given(who, index)).detach()

    def _given(self, who: Sequence[int], index: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, labels and centres of `who`."""
        x, y = self.rows.x[index], self.rows.y[index]
        if self.centers is None:
            return x, y, None
        own = self.centers[list(who)]
        if own.ndim == 3:  # one for each class: that of every row's
            own = own[torch.arange(len(own))[:, None], y]
        return x, y, own.view(len(who), -1, *x.shape[2:])

    def losses(self, theta: Tensor, climb: Climb, index: Tensor) -> Tensor:
        """l of the moved rows."""
        y = self.rows.y[index]
        return self.robust.losses(self.network, theta, climb.x.detach(), y, climb.shift)

    def _gradient(
        self, own: Tensor, climb: Climb, index: Tensor, there: Tensor, seen: Tensor, bare: Tensor
    ) -> tuple[Tensor, Tensor]:
        """∇F_i on a minibatch of every client, at its own θ, and the running means after it."""
        at = own.detach().requires_grad_(True)
        loss = self.losses(at, climb, index)
        seen, weights = self.tilt.weigh(loss.detach() + climb.level, there, seen, bare)
        (gradient,) = torch.autograd.grad((weights * loss).sum(), at)
        return gradient, seen

    def _batches(self, number: int, who: list[int]) -> Batches:
        """Row numbers for this round: every client has a random stream of its own."""
        plan, counts = self.plan, self.rows.counts[who]
        batch = int(min(plan.batch_size, counts.max()))
        steps = plan.local_steps or plan.local_epochs * -(-int(counts.max()) // batch)
        index = np.zeros((len(who), steps * batch), dtype=np.int64)
        there = np.zeros((len(who), steps * batch), dtype=np.float32)
        for row, (i, count) in enumerate(zip(who, counts.tolist(), strict=True)):
            rng = np.random.default_rng([plan.seed, number, self.first + i])
            drawn = _order(rng, count, batch, plan.local_epochs, steps if plan.local_steps else 0)
            places = np.flatnonzero(drawn >= 0)
            index[row, places] = self.rows.bounds[i] + drawn[places]
            there[row, places] = 1.0
        shape = (len(who), steps, batch)
        return Batches(torch.from_numpy(index).view(shape), torch.from_numpy(there).view(shape))


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
