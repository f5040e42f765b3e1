"""`paper`: Algorithm 1 of *Distributionally Robust Federated Learning with Outlier Resilience*.

arXiv 2509.24462 (2025). As printed, for fidelity: every round each client draws one row (or
`batch`) and finds its (ε-approximate) worst place z; with the weight w = exp((L(θ, z) − ρ c)/ρβ) it
sends θ_i = θ − η w ∇L/ρβ and g^λ_i = w. The server takes θ⁺ = Proj_Θ(Σ λ_i θ_i) and
λ⁺ = Proj_Λ(λ + η g^λ), η = 1/√T, and after T rounds returns the averaged iterate θ̄. Theorem 1 is
about that average, in expectation.

One closing round evaluates θ̄ on all rows. It is no part of Algorithm 1: it only reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dorfl.solvers.base import Answers, Info, Needs, Setting, Task, pieces, trimmed_mean
from dorfl.support.types import Array


class PaperState(NamedTuple):
    """The state between rounds; `total` and `total_lam` are sums of the iterates."""

    setting: Setting
    theta: Array
    lam: Array
    total: Array
    total_lam: Array
    round: int = 1


@dataclass(frozen=True)
class Paper:
    """Algorithm 1, see the text of this module.

    Attributes
    ----------
    rounds : int
        T, unless `max_rounds` is given.
    batch : int or None
        Rows that a client draws per round, unless the training's `batch` is given.
    rate : float or None
        η for θ and λ; 1/√T by default.
    """

    rounds: int = 1000
    batch: int | None = 1
    rate: float | None = None
    name: str = "paper"

    @property
    def needs(self) -> Needs:
        """Return that it takes T rounds and one that evaluates their average."""
        return Needs(trims=True, curvature=True, rounds=self.rounds, closing=1)

    def rate_of(self, setting: Setting) -> float:
        """Return η_θ = η_λ, 1/√T unless `rate` is given."""
        return 1.0 / float(np.sqrt(setting.rounds)) if self.rate is None else self.rate

    def init(self, setting: Setting, theta: Array, lam: Array) -> PaperState:
        """Return the state before the first round."""
        return PaperState(setting, theta, lam, np.zeros_like(theta), np.zeros_like(lam))

    def ask(self, state: PaperState) -> Task:
        """Return a step of Algorithm 1, or after T of them an evaluation of the average."""
        setting = state.setting
        if state.round > setting.rounds:
            lam = setting.mixture.snap(state.total_lam)
            return Task(state.total / setting.rounds, lam, curvature=setting.diagonal)
        batch = setting.batch or self.batch
        return Task(state.theta, state.lam, "paper", batch=batch, rate=self.rate_of(setting))

    def update(self, state: PaperState, answers: Answers) -> tuple[PaperState, Info]:
        """Apply lines 11 and 12, or in the closing round report the average's objective."""
        setting, task = state.setting, self.ask(state)
        if task.kind == "evaluate":
            seen = pieces(setting, task.theta, answers, task.lam)
            lam = task.lam if setting.mixture.adversarial else np.ones(1)
            push = lam @ seen.gradients
            height = setting.mixture.height(seen.values)
            short = np.nan  # without curvature the distance to the minimum is unknown
            if seen.curvature is not None:
                short = 0.5 * float(push @ (push / np.maximum(lam @ seen.curvature, 1e-12)))
            gap = max(height - float(lam @ seen.values), 0.0) + short
            return state, Info(height, gap, answers.values, task.lam, task.theta, "budget")
        eta = self.rate_of(setting)
        decay = eta * setting.penalty * state.theta
        theta = setting.project(trimmed_mean(answers.vectors, state.lam, setting.trim) - decay)
        lam = state.lam
        if setting.mixture.adversarial:
            lam = setting.mixture.project(lam + eta * answers.values)
        following = state._replace(
            theta=theta,
            lam=lam,
            total=state.total + state.theta,
            total_lam=state.total_lam + state.lam,
            round=state.round + 1,
        )
        nothing = np.full(len(answers.values), np.nan)
        return following, Info(np.nan, np.nan, nothing, state.lam, state.theta)
