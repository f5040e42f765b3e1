"""A solver of your own
====================

A solver computes the next θ and λ from the reports of the clients. It is three functions over a state: ``init`` before
the first round, ``ask`` for the request of a round, and ``update`` with the reports. ``needs`` declares its requirements.
"""

from dataclasses import dataclass
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import dorfl
from dorfl import Options, methods, solvers
from dorfl.solvers.base import Info, Needs, Setting, Task, pieces

# %%
# Gradient descent with momentum. ``pieces`` adds the ridge penalty and pools clients where the mixture is
# fixed; ``setting`` has the tolerance, the mixture and how many rounds there are.


class MomentumState(NamedTuple):
    """The state between two rounds."""

    setting: Setting
    theta: np.ndarray
    lam: np.ndarray
    speed: np.ndarray


NEEDS = Needs(reports_gap=True, rounds=2000)


@dataclass(frozen=True)
class Momentum:
    """θ ← θ + v, v ← 0.9 v − 0.1 ∇."""

    name: str = "momentum"
    needs: Needs = NEEDS

    def init(self, setting, theta, lam):
        """Return the state before the first round."""
        return MomentumState(setting, theta, lam, np.zeros_like(theta))

    def ask(self, state):
        """Return the θ and λ at which clients evaluate."""
        return Task(state.theta, state.lam)

    def update(self, state, answers):
        """Take one step, and return the state and the round's figures."""
        seen = pieces(state.setting, state.theta, answers, state.lam)
        slope = seen.gradients.sum(axis=0)
        steep = float(slope @ slope)
        height = state.setting.mixture.height(seen.values)
        done = "converged" if steep <= state.setting.tol**2 else ""
        info = Info(height, steep, answers.values, state.lam, state.theta, done)
        speed = 0.9 * state.speed - 0.1 * slope
        return state._replace(theta=state.theta + speed, speed=speed), info


# %%
# Once registered, it is an option of ``dorfl.train`` by its name.

solvers.register(Momentum)
data = dorfl.datasets.synthetic(seed=0)
fits = {
    name: dorfl.train(data.clients, methods.erm(), Options(solver=name, l2=0.01, tol=1e-4))
    for name in ("momentum", "sqp")
}
for name, fit in fits.items():
    print(
        f"{name}: {fit.rounds} rounds, objective {fit.objective:.6f}, {fit.bytes_up / 1e3:.0f} kB sent"
    )

# %%
# The default solver uses curvature as well, and needs a few rounds.

fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
best = min(fit.objective for fit in fits.values())
for (name, fit), style in zip(fits.items(), ("-", "o-"), strict=True):
    above = [max(line.objective - best, 1e-12) for line in fit.history]
    ax.loglog(range(1, len(above) + 1), above, style, ms=4, label=name)
ax.set(xlabel="round", ylabel="objective above the best")
ax.legend()
plt.show()
