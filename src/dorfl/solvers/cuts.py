"""What `sqp` remembers of a kinked objective: pieces as they were seen at other points.

Where a row has two worst places, its client's risk is the larger of two smooth functions, and no
curvature at one point tells of the other. But each function, wherever it was seen, lies below the
risk: a *cut* is the parabola of one client's value, gradient and curvature at one point (after
*A bundle-Newton method for nonsmooth unconstrained minimization*, L. Lukšan and J. Vlček, 1998).
A tangent bends no risk the wrong way; a parabola may, so it bends no more than every value that was
seen since admits. What the step does not lean on is dropped, the oldest first: neither the server's
program nor its memory grows with the rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dorfl.oracle import curvature as packing
from dorfl.oracle.curvature import Sizes
from dorfl.solvers.base import Pieces, Setting
from dorfl.support.types import Array

MOST = 200  # cuts kept: a kink in d columns takes d + 1 to describe
_EACH = 32  # clients whose cut at a point is kept: those with the largest risks there
_NUMBERS = 2**23  # of curvature in all of them; beyond that they bend as the penalty does


class Cuts(NamedTuple):
    """Parabolas below the risks, oldest first; `weights` tell what the last step leant on."""

    points: Array  # (M, P)
    values: Array  # (M,)
    gradients: Array  # (M, P)
    owner: Array  # (M,) whose risk
    curvature: Array  # (M, numbers) packed
    weights: Array  # (M,)

    def moved(self, sizes: Sizes, to: Array) -> tuple[Array, Array, Array]:
        """Their values (M,) and gradients (M, P) at another point, and how far they bend to it."""
        away = to - self.points
        pull = self.pulls(sizes, away)
        values = self.values + np.einsum("mp,mp->m", self.gradients + 0.5 * pull, away)
        return values, self.gradients + pull, 0.5 * np.einsum("mp,mp->m", pull, away)

    def pulls(self, sizes: Sizes, moves: Array) -> Array:
        """Each one's curvature times a move: one for all, or one each."""
        moves = np.broadcast_to(moves, self.points.shape)
        each = zip(self.curvature, moves, strict=True)
        found = [packing.multiply(packed, sizes, move) for packed, move in each]
        return np.array(found).reshape(self.points.shape)


def no_cuts(setting: Setting, size: int) -> Cuts:
    """None yet."""
    finest = setting.shape.numbers(setting.resolution) if not setting.smooth else 0
    numbers = finest if finest and finest * MOST <= _NUMBERS else setting.shape.size
    nothing = np.empty((0, size))
    return Cuts(
        nothing,
        nothing[:, 0],
        nothing,
        np.empty(0, dtype=int),
        np.empty((0, numbers)),
        nothing[:, 0],
    )


def added(cuts: Cuts, setting: Setting, point: Array, seen: Pieces, level: float) -> Cuts:
    """With those of a point: of clients above `level` there, and who else makes up a mixture."""
    order = np.argsort(-seen.values, kind="stable")
    least = int(np.ceil(1.0 / setting.mixture.cap))
    wanted = max(int((seen.values >= level).sum()), least)
    who = np.sort(order[: min(wanted, max(_EACH, least))])
    numbers = cuts.curvature.shape[1]
    if seen.curvature is not None and seen.curvature.shape[1] == numbers:
        curvature = seen.curvature[who].astype(float)
    else:  # all that is known to bend
        curvature = np.zeros((len(who), numbers))
        places = packing.diagonal_places(setting.shape.sizes_of(curvature))
        curvature[:, places] = setting.penalty
    keep = _needed(cuts, MOST - len(who))
    points, nothing = np.tile(point, (len(who), 1)), np.zeros(len(who))
    new = (points, seen.values[who], seen.gradients[who], who, curvature, nothing)
    return Cuts(*(np.concatenate([old[keep], more]) for old, more in zip(cuts, new, strict=True)))


def _needed(cuts: Cuts, most: int) -> Array:
    """Which to keep: those with the largest multipliers, then the latest."""
    order = np.lexsort((np.arange(len(cuts.values)), cuts.weights))
    return np.sort(order[::-1][: max(most, 0)])


def admitted(cuts: Cuts, setting: Setting, point: Array, values: Array, slack: float) -> Cuts:
    """Bent no more than what was seen at a point admits: no parabola is above its client's risk."""
    if not len(cuts.values):
        return cuts
    at, _, _ = cuts.moved(setting.shape.sizes_of(cuts.curvature), point)
    straight = cuts.values + np.einsum("mp,mp->m", cuts.gradients, point - cuts.points)
    room = np.maximum(values[cuts.owner] - straight, 0.0)
    over = at > values[cuts.owner] + slack
    share = np.where(over, room / np.where(over, at - straight, 1.0), 1.0)
    return cuts._replace(curvature=share[:, None] * cuts.curvature) if over.any() else cuts
