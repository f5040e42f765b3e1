"""The scale form: the scale σ of residuals is an unknown too, the last entry of θ.

Clients report F_i(θ, σ), which is jointly convex (:mod:`dorfl.linear.scale`), so that
:class:`~dorfl.solvers.sqp.Sqp` solves the problem like any other with one more parameter.

Along σ alone, at the scale σ₀, F is about a + ½ b (σ + s²σ₀²/σ) with s² = 1 − (2/b) ∂F/∂σ. That
is least at s σ₀. A parabola with the curvature of F leads elsewhere. If s < 1 it leads to a
negative σ. If all residuals are far beyond εσ, F does not bend in σ and it leads to infinity. So
for s < 1 the curvature b s²/σ₀ is raised to ½ b (1 + s)/σ₀, that of the parabola which is least at
s σ₀ too. For s > 1 a step along σ alone is bounded. At the solution s = 1 and nothing changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dorfl.solvers.base import Answers, Info, Needs, Setting, Solver, Task
from dorfl.solvers.radius import keep_positive
from dorfl.solvers.sqp import Sqp
from dorfl.support.types import Array

_LARGEST_RISE = 9.0  # times σ: the longest step upwards along σ alone


class ScaleState(NamedTuple):
    """The state between rounds."""

    setting: Setting
    inner: Any  # the inner solver's state
    is_first: bool = True  # whether no round is over yet


@dataclass(frozen=True)
class Scale:
    """The solver in θ and σ, see the text of this module.

    Attributes
    ----------
    consistency : float
        b of the loss, :attr:`dorfl.objective.losses.ConcomitantHuber.consistency`.
    inner : Solver
        One whose needs have `radius`: it can use further unknowns after θ.
    """

    consistency: float
    inner: Solver = field(default_factory=Sqp)
    name: str = "sqp"

    @property
    def needs(self) -> Needs:
        """Return what the inner solver needs."""
        return self.inner.needs._replace(radius=False)

    def init(self, setting: Setting, theta: Array, lam: Array) -> ScaleState:
        """Return the state before the first round, from (θ, σ)."""
        return ScaleState(setting, self.inner.init(setting, theta, lam))

    def ask(self, state: ScaleState) -> Task:
        """Return the request of the inner solver, at (θ, σ)."""
        return self.inner.ask(state.inner)

    def update(self, state: ScaleState, answers: Answers) -> tuple[ScaleState, Info]:
        """Take one round of the inner solver, with curvatures changed in σ."""
        task, vectors = self.inner.ask(state.inner), answers.vectors
        curvature = answers.curvature
        if curvature is None and state.is_first:  # the guess of the inner solver
            steepest = float(np.linalg.norm(vectors[:, :-1], axis=1).max())
            curvature = np.full(vectors.shape, steepest)
            curvature[:, -1] = 0.0
        if curvature is not None:
            rate = float(task.lam @ vectors[:, -1])
            bent = _bent(curvature, rate, float(task.theta[-1]), self.consistency)
            answers = answers._replace(curvature=bent)
        inner, info = self.inner.update(state.inner, answers)
        return ScaleState(state.setting, keep_positive(inner), is_first=False), info


def _bent(packed: Array, rate: float, scale: float, consistency: float) -> Array:
    """Return curvatures that lead from σ to about s σ; `rate` is the mixture's ∂F/∂σ."""
    packed = packed.copy()
    share = math.sqrt(max(1.0 - 2.0 * rate / consistency, 0.0))  # s
    if share < 1.0:
        packed[:, -1] += 0.5 * (1.0 - share) * (1.0 + 2.0 * share) * consistency / scale
    else:
        packed[:, -1] = np.maximum(packed[:, -1], -rate / (_LARGEST_RISE * scale))
    return packed
