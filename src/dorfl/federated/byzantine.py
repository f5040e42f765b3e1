"""Clients that pull apart from the others, where up to so many of them may be lying.

Reports that contradict nothing can still lead away: labels flipped, a made-up convex risk. What
such clients need is a gradient that the others do not have. It shows best where the others would be
without them, so that is where every suspicion is looked into. For a set A of suspects let δ be the
Newton step to the least of the others' mean risk, with curvature H, and let B be the curvature of
all. There a client has the gradient g_i = ∇F_i + ∇²F_i δ and would lead the others away by B⁻¹ g_i,
which costs them ½ d_i², d_i = ‖B⁻¹ g_i‖_H. Rows of one distribution give d_i² ≈ P / n_i; clients
that differ give h² more, taken as the mean over the m clients that are not in A. If

    d_i² > 9 (1 + 3/m) (P / n_i + h²)     for every i in A

the others agree with each other and none of A does with them. (1 + 3/m: few clients say little of
how far clients differ.) Suspects are sets of clients that pull alike, as large as may be. A set
that comes halfway to this is tried: training goes on without it, and if its clients then do not
pull as far they are taken back. No entry of a diagonal of a curvature counts beyond three times
that of a client who need not be a liar, so that nobody hides a pull behind a curvature.

A client that passes moves the model by its share λ_i: the others' risk rises by about ½ λ_i² d_i².
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

import numpy as np

from dorfl.federated.options import Options
from dorfl.linear import curvature
from dorfl.linear.curvature import Base, Shape
from dorfl.objective.mixture import Mixture
from dorfl.support.types import Array

_FAR = 3.0  # times as far as others are, if there are many of them
_STIFF = 3.0  # times the curvature of somebody honest
_STARTS = 32  # clients whose like are looked for


class Doubt(NamedTuple):
    """How many clients may lie, whether to go on without them, and who they are thought to be."""

    most: int = 0
    leave: bool = False
    aside: dict[str, str] = {}  # noqa: RUF012 - by name in what way; replaced, never changed
    cleared: tuple[tuple[str, ...], ...] = ()  # those who turned out to pull as others do


def doubting(options: Options, mixture: Mixture, count: int) -> Doubt:
    """Whom of so many clients to look for, as the options say; ValueError where nobody can tell."""
    if options.liars > 0.0 and mixture.adversarial:
        raise ValueError(
            "liars: an agnostic mixture gives one client the last word, and who is badly served "
            'looks like who says so; use a fixed one (mixture="fixed"), or a cap and trim'
        )
    if options.liars > 0.0 and not _comparable(options):
        raise ValueError("liars: to tell who lies, all clients have to answer, without noise")
    return Doubt(int(options.liars * count + 1e-9), leave=True)


def watching(options: Options, mixture: Mixture, count: int) -> Doubt:
    """Up to a quarter of the clients, to be named at the end, where that can be told."""
    can = _comparable(options) and not mixture.adversarial
    return Doubt(count // 4 if can else 0)


def _comparable(options: Options) -> bool:
    return options.all_answer and options.privacy is None


class Apart(NamedTuple):
    """Who pulls apart, how many times as far as others each of them, and what it costs these."""

    who: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    sure: bool = False
    harm: float = 0.0  # of the others' mean risk, in nats; to second order


class Pulls(NamedTuple):
    """What clients report where training would end; penalties are part of it."""

    vectors: Array  # (N, P) ∇F_i
    bends: Array  # (N, numbers) ∇²F_i, packed, within reason
    sizes: tuple[int, ...]
    rows: Array  # (N,) how many rows each has
    metric: Base

    def without(self, suspects: tuple[int, ...]) -> Apart:
        """How far these pull from where the others would be without them."""
        others = np.delete(np.arange(len(self.rows)), suspects)
        share = self.rows[others] / self.rows[others].sum()
        theirs, pull = curvature.mix(self.bends[others], share), share @ self.vectors[others]
        move = -curvature.base(theirs, self.sizes, self.metric.extra).solve(pull)
        there = self.vectors + [curvature.multiply(bend, self.sizes, move) for bend in self.bends]
        leads = self.metric.solve(there)
        away = (leads * curvature.multiply(theirs, self.sizes, leads)).sum(axis=1)
        noise = self.vectors.shape[1] / self.rows
        differ = np.maximum(away - noise, 0.0)[others].mean()
        times = np.sqrt(away / (noise + differ))[list(suspects)]
        sure = bool(times.min() > _FAR * np.sqrt(1.0 + 3.0 / len(others)))
        return Apart(suspects, tuple(times.tolist()), sure, -0.5 * float(pull @ move))

    def suspects(self, most: int) -> list[tuple[int, ...]]:
        """Clients with those that pull most as they do: as many as may lie first, then fewer."""
        alike = self.metric.solve(self.vectors) @ self.vectors.T
        apart = np.diag(alike)[:, None] + np.diag(alike) - 2.0 * alike
        starts = np.argsort(-apart.sum(axis=1), kind="stable")[:_STARTS]
        nearest = np.argsort(apart[starts], axis=1, kind="stable")
        sets = [tuple(sorted(row[:n].tolist())) for n in range(most, 0, -1) for row in nearest]
        return list(dict.fromkeys(sets))


def pulls(vectors: Array, bends: Array | None, shape: Shape, rows: Array, most: int) -> Pulls:
    """From reports of which `most` may be lies; without curvature clients are taken to be alike.

    >>> vectors = np.array([[0.1, 0.0], [0.0, 0.1], [-0.1, 0.0], [0.0, -0.1], [3.0, 0.0]])
    >>> told = pulls(vectors, None, Shape(1, 2), np.full(5, 1000), 1)
    >>> told.without((4,)).sure, told.without((0,)).sure
    (True, False)
    """
    if bends is None:
        bends = np.ones((len(vectors), shape.size))
    sizes, bends = shape.sizes_of(bends), _limited(bends, shape, most)
    floor = np.full(shape.size, 1e-9 * max(float(bends.max()), 1e-300))
    metric = curvature.base(bends.mean(axis=0), sizes, floor)
    return Pulls(vectors, bends, sizes, rows, metric)


def find(told: Pulls, most: int, cleared: Container[tuple[int, ...]] = ()) -> Apart:
    """The largest set of clients that may well pull apart, and of these the one that does most."""
    best = Apart()
    for suspects in told.suspects(most):
        if len(suspects) < len(best.who):
            break
        if suspects not in cleared:
            found = told.without(suspects)
            far = 0.5 * _FAR * np.sqrt(1.0 + 3.0 / (len(told.rows) - len(suspects)))
            best = max(best, found, key=lambda one: min(one.times, default=far))
    return best


def _limited(bends: Array, shape: Shape, most: int) -> Array:
    """Curvatures with no entry of a diagonal far beyond what `most` liars cannot have made up."""
    sizes = shape.sizes_of(bends)
    bend = np.sort(curvature.diagonal(bends, sizes).astype(np.float64), axis=0)[-most - 1]
    limit = _STIFF * np.maximum(bend, 1e-9 * max(float(bend.max()), 1e-300))
    return np.array([curvature.limited(one, sizes, limit) for one in bends])
