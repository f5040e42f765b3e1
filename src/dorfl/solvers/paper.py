"""`paper`: Algorithm 1 as printed, for fidelity.

Every round each client draws one row (or `batch`) and finds its (ε-approximate) worst place z; with
the weight w = exp((L(θ, z) − ρ c)/ρβ) it sends θ_i = θ − η w ∇L/ρβ and g^λ_i = w. The server takes
θ⁺ = Proj_Θ(Σ λ_i θ_i) and λ⁺ = Proj_Λ(λ + η g^λ), η = 1/√T, and after T rounds returns the averaged
iterate θ̄. Theorem 1 is about that average, in expectation.

One closing round evaluates θ̄ on all rows. It is no part of Algorithm 1: it only reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dorfl.solvers.base import Answers, Info, Setting, Task, pieces, trimmed_mean
from dorfl.support.types import Array


class State(NamedTuple):
    """What is carried from round to round; `total` and `total_lam` are sums of the iterates."""

    setting: Setting
    theta: Array
    lam: Array
    total: Array
    total_lam: Array
    round: int = 1


@dataclass(frozen=True)
class Paper:
    """See the module's text. `rounds` is T; `rate` replaces 1/√T for θ and λ."""

    rounds: int = 1000
    batch: int | None = 1
    rate: float | None = None
    name: str = "paper"
    exact: bool = False

    @property
    def eta(self) -> float:
        """η_θ = η_λ = 1/√T unless told otherwise."""
        return 1.0 / float(np.sqrt(self.rounds)) if self.rate is None else self.rate

    def init(self, setting: Setting, theta: Array, lam: Array) -> State:
        """Before the first round."""
        return State(setting, theta, lam, np.zeros_like(theta), np.zeros_like(lam))

    def ask(self, state: State) -> Task:
        """A step of Algorithm 1; after T of them, an evaluation of the average."""
        if state.round > self.rounds:
            lam = state.setting.mixture.snap(state.total_lam)
            return Task(state.total / self.rounds, lam, curvature="diagonal")
        return Task(state.theta, state.lam, "paper", batch=self.batch, rate=self.eta)

    def update(self, state: State, answers: Answers) -> tuple[State, Info]:
        """Lines 11 and 12; in the closing round, what the average is worth."""
        setting, task = state.setting, self.ask(state)
        if task.kind == "evaluate":
            seen = pieces(setting, task.theta, answers, task.lam)
            lam = task.lam if setting.mixture.adversarial else np.ones(1)
            push = lam @ seen.gradients
            height = setting.mixture.height(seen.values)
            short = np.nan  # without curvature nothing tells how far the minimum is
            if seen.curvature is not None:
                short = 0.5 * float(push @ (push / np.maximum(lam @ seen.curvature, 1e-12)))
            gap = max(height - float(lam @ seen.values), 0.0) + short
            return state, Info(height, gap, answers.values, task.lam, task.theta, "budget")
        decay = self.eta * setting.penalty * state.theta
        theta = setting.project(trimmed_mean(answers.vectors, state.lam, setting.trim) - decay)
        lam = state.lam
        if setting.mixture.adversarial:
            lam = setting.mixture.project(lam + self.eta * answers.values)
        following = state._replace(
            theta=theta,
            lam=lam,
            total=state.total + state.theta,
            total_lam=state.total_lam + state.lam,
            round=state.round + 1,
        )
        nothing = np.full(len(answers.values), np.nan)
        return following, Info(np.nan, np.nan, nothing, state.lam, state.theta)
