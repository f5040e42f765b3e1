"""A loss of your own
==================

A loss is an object with the value of the loss at an output t of the model, and its derivative. The supremum over moved
rows is then found by gradient ascent.
"""

import matplotlib.pyplot as plt
import numpy as np

import dorfl
from dorfl.objective.base import Loss

# %%
# log cosh: quadratic for small residuals, linear for large ones. ``curvature`` bounds its second
# derivative, ``max_slope`` its first derivative. The first decides whether the supremum is unique, the second bounds the
# reports of clients.


class LogCosh(Loss):
    """log cosh(t − y)."""

    name, curvature, max_slope = "log-cosh", 1.0, 1.0

    def value(self, outputs, target):
        """l of every row."""
        return np.logaddexp(outputs - target, target - outputs) - np.log(2.0)

    def slope(self, outputs, target):
        """∂l/∂t of every row, as (n, 1)."""
        return np.tanh(outputs - target)[:, None]


# %%
# It trains by every method, as the losses of the library do.

rng = np.random.default_rng(0)
clients = {}
for name, noise in {"quiet": 0.2, "loud": 2.0}.items():
    X = rng.normal(size=(80, 1))
    clients[name] = (X, 1.5 * X[:, 0] + noise * rng.standard_t(2, size=80))

fits = {
    "squared": dorfl.train(clients, dorfl.methods.wafl(20.0), loss="squared"),
    "log cosh": dorfl.train(clients, dorfl.methods.wafl(20.0), loss=LogCosh()),
}
for name, fit in fits.items():
    print(f"{name}: slope {fit.theta[0]:.2f} (true 1.5), {fit.rounds} rounds")

# %%
fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, (X, y)), mark in zip(clients.items(), "ox", strict=True):
    ax.plot(X[:, 0], y, mark, ms=4, alpha=0.5, label=name)
line = np.array([[-2.5], [2.5]])
for (name, fit), style in zip(fits.items(), ("--", "-"), strict=True):
    ax.plot(line[:, 0], fit.predict(line), style, color="black", label=name)
ax.set(xlabel="x", ylabel="y", ylim=(-8, 8))
ax.legend()
plt.show()
