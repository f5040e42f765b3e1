"""Descent–ascent with steps fixed beforehand, whose result is an average of the iterates.

    θ⁺ = Proj_Θ(θ − η g),      λ⁺ = Proj_Λ(λ + ν v)

`paper` is Algorithm 1 of *Distributionally Robust Federated Learning with Outlier Resilience*
(arXiv 2509.24462, 2025) as printed, for fidelity. Every round each client draws one row (or
`batch`) and finds its (ε-approximate) worst place z. With the weight w = exp((L(θ, z) − ρ c)/ρβ)
it sends θ_i = θ − η w ∇L/ρβ and v_i = w, and the server averages the θ_i. After T rounds with η =
ν = 1/√T it returns the mean of all iterates, which Theorem 1 is about, in expectation. One closing
round evaluates it on all rows. It is no part of Algorithm 1: it only reports.

`noisy` is for reports that carry noise of their own, with g = Σ λ_i ∇F_i and v = F: as in *Private
Empirical Risk Minimization* (R. Bassily, A. Smith, A. Thakurta, 2014, arXiv 1405.7085), with a
mixture. The result is the mean of the later half of the iterates. Adaptive solvers would derive
step lengths and convergence from the noise; fixed steps do not, and averaging removes it.
Differential privacy needs the number of rounds beforehand, and a round that evaluates the result
would cost privacy too. So the reported risks are means over the rounds, and no gap is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dorfl.solvers.base import Answers, Info, Needs, Setting, Task, pieces, trimmed_mean
from dorfl.support.types import Array


class DescentState(NamedTuple):
    """The state between rounds; the totals are sums over the rounds that are averaged."""

    setting: Setting
    theta: Array
    lam: Array
    total: Array
    total_lam: Array
    total_risks: Array
    round: int = 1

    def counted(self, risks: Array) -> DescentState:
        """Return the state with this round's θ, λ and risks in the totals."""
        return self._replace(
            total=self.total + self.theta,
            total_lam=self.total_lam + self.lam,
            total_risks=self.total_risks + risks,
        )

    def moved(self, theta: Array, ascent: Array) -> DescentState:
        """Return the state of the next round, from θ and the step of λ before projection."""
        mixture = self.setting.mixture
        lam = mixture.project(self.lam + ascent) if mixture.adversarial else self.lam
        return self._replace(theta=self.setting.project(theta), lam=lam, round=self.round + 1)


def _initial(setting: Setting, theta: Array, lam: Array) -> DescentState:
    zeros = np.zeros_like(lam)
    return DescentState(setting, theta, lam, np.zeros_like(theta), zeros, zeros)


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

    def init(self, setting: Setting, theta: Array, lam: Array) -> DescentState:
        """Return the state before the first round."""
        return _initial(setting, theta, lam)

    def ask(self, state: DescentState) -> Task:
        """Return a step of Algorithm 1, or after T of them an evaluation of the average."""
        setting = state.setting
        if state.round > setting.rounds:
            lam = setting.mixture.snap(state.total_lam)
            return Task(state.total / setting.rounds, lam, curvature=setting.diagonal)
        batch = setting.batch or self.batch
        return Task(state.theta, state.lam, "paper", batch=batch, rate=self.rate_of(setting))

    def update(self, state: DescentState, answers: Answers) -> tuple[DescentState, Info]:
        """Apply lines 11 and 12, or in the closing round report the average's objective."""
        setting, task = state.setting, self.ask(state)
        if task.kind == "evaluate":
            return state, _evaluated(setting, task, answers)
        eta = self.rate_of(setting)
        decay = eta * setting.penalty * state.theta
        theta = trimmed_mean(answers.vectors, state.lam, setting.trim) - decay
        unknown = np.full(len(answers.values), np.nan)
        info = Info(np.nan, np.nan, unknown, state.lam, state.theta)
        return state.counted(answers.values).moved(theta, eta * answers.values), info


def _evaluated(setting: Setting, task: Task, answers: Answers) -> Info:
    """Return the objective of an average, with an estimate of its gap if curvature is reported."""
    seen = pieces(setting, task.theta, answers, task.lam)
    lam = task.lam if setting.mixture.adversarial else np.ones(1)
    gradient, height = lam @ seen.gradients, setting.mixture.height(seen.values)
    short = np.nan  # without curvature the distance to the minimum is unknown
    if seen.curvature is not None:
        bend = np.maximum(lam @ seen.curvature, 1e-12)
        short = 0.5 * float(gradient @ (gradient / bend))
    gap = max(height - float(lam @ seen.values), 0.0) + short
    return Info(height, gap, answers.values, task.lam, task.theta, "budget")


@dataclass(frozen=True)
class Noisy:
    """Take `rounds` steps of length `rate` (η) for θ and `pace` (ν) for λ."""

    rounds: int
    rate: float
    pace: float
    name: str = "noisy"

    @property
    def needs(self) -> Needs:
        """Return that it takes exactly the rounds its steps were computed for."""
        return Needs(trims=True, rounds=self.rounds)

    def init(self, setting: Setting, theta: Array, lam: Array) -> DescentState:
        """Return the state before the first round."""
        return _initial(setting, theta, lam)

    def ask(self, state: DescentState) -> Task:
        """Return an evaluation without curvature."""
        return Task(state.theta, state.lam)

    def update(self, state: DescentState, answers: Answers) -> tuple[DescentState, Info]:
        """Take one step and report the average so far."""
        setting, count = state.setting, state.round - self.rounds // 2
        found = (state.theta, state.lam, answers.values)
        if count > 0:
            state = state.counted(answers.values)
            mean_lam = setting.mixture.snap(state.total_lam)
            found = (state.total / count, mean_lam, state.total_risks / count)
        theta, lam, risks = found
        objective = setting.mixture.objective(risks, lam, setting.temperature)
        done = "spent" if state.round >= self.rounds else ""
        info = Info(objective, np.nan, risks, lam, theta, done)
        seen = pieces(setting, state.theta, answers, state.lam)
        share = state.lam if setting.mixture.adversarial else np.ones(1)
        gradient = trimmed_mean(seen.gradients, share, setting.trim)
        return state.moved(state.theta - self.rate * gradient, self.pace * seen.values), info
