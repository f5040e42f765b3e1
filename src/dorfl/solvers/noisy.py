"""`noisy`: descent–ascent with steps fixed beforehand, for reports that carry noise of their own.

    θ⁺ = Proj_Θ(θ − η Σ λ_i ∇F_i(θ)),      λ⁺ = Proj_Λ(λ + ν F(θ))

As in *Private Empirical Risk Minimization* (R. Bassily, A. Smith, A. Thakurta, 2014, arXiv
1405.7085), with a mixture. The result is the mean of the later half of the iterates. Adaptive
solvers would derive step lengths and convergence from the noise. Here step lengths are fixed, and
averaging removes the noise. Differential privacy needs the number of rounds beforehand, and one
more round to evaluate the result would cost privacy too. So the reported risks are means over the
rounds, and no gap is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dorfl.solvers.base import Answers, Info, Needs, Setting, Task, pieces, trimmed_mean
from dorfl.support.types import Array


class NoisyState(NamedTuple):
    """The state between rounds; the sums are over the later half of the rounds."""

    setting: Setting
    theta: Array
    lam: Array
    total: Array
    total_lam: Array
    total_risks: Array
    round: int = 1


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

    def init(self, setting: Setting, theta: Array, lam: Array) -> NoisyState:
        """Return the state before the first round."""
        zeros = np.zeros_like(lam)
        return NoisyState(setting, theta, lam, np.zeros_like(theta), zeros, zeros)

    def ask(self, state: NoisyState) -> Task:
        """Return an evaluation without curvature."""
        return Task(state.theta, state.lam)

    def update(self, state: NoisyState, answers: Answers) -> tuple[NoisyState, Info]:
        """Take one step and report the average so far."""
        setting, adversarial = state.setting, state.setting.mixture.adversarial
        if state.round > self.rounds // 2:
            state = state._replace(
                total=state.total + state.theta,
                total_lam=state.total_lam + state.lam,
                total_risks=state.total_risks + answers.values,
            )
        seen = pieces(setting, state.theta, answers, state.lam)
        share = state.lam if adversarial else np.ones(1)
        push = trimmed_mean(seen.gradients, share, setting.trim)
        theta, lam = setting.project(state.theta - self.rate * push), state.lam
        if adversarial:
            lam = setting.mixture.project(lam + self.pace * seen.values)
        count = state.round - self.rounds // 2
        found = (state.theta, state.lam, answers.values)
        if count > 0:
            lam_mean = setting.mixture.snap(state.total_lam)
            found = (state.total / count, lam_mean, state.total_risks / count)
        objective = setting.mixture.objective(found[2], found[1], setting.temperature)
        done = "spent" if state.round >= self.rounds else ""
        info = Info(objective, np.nan, found[2], found[1], found[0], done)
        return state._replace(theta=theta, lam=lam, round=state.round + 1), info
