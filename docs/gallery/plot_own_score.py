"""A score of your own
===================

A score is large for outliers. It is subtracted from the loss of a row, so that an outlier does not gain weight because
the model fits it badly. Any function of the row will do.
"""

import matplotlib.pyplot as plt
import numpy as np

import dorfl

# %%
# A sensor that fails reports values near 9, whatever is measured. No distance is needed to find it.


def stuck(rows, labels):
    """30 where the second column stands at 9, nearly 0 elsewhere."""
    return 30.0 * np.exp(-(((rows[:, 1] - 9.0) / 0.5) ** 2))


rng = np.random.default_rng(1)
X = rng.normal(size=(300, 2))
y = (X[:, 0] + X[:, 1] + 0.3 * rng.normal(size=300) > 0).astype(int)
broken = rng.random(300) < 0.15
X[broken, 1] = rng.normal(9.0, 0.1, broken.sum())

# %%
# The tilt must be on for weights to change: ``beta`` is its price.

plain = dorfl.train([(X, y)], dorfl.methods.erm())
robust = dorfl.train(
    [(X, y)], dorfl.methods.paper(rho=50.0, beta=0.1, score=dorfl.scores.custom(stuck))
)
new = rng.normal(size=(5000, 2))
truth = (new.sum(axis=1) > 0).astype(int)
for name, fit in {"plain": plain, "with the score": robust}.items():
    print(f"{name}: accuracy {fit.score(new, truth):.3f}")

# %%
weights = next(iter(robust.sample_weights.values())) * len(X)
fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
ax.scatter(*X[~broken].T, s=12, c=weights[~broken], vmin=0, vmax=weights.max(), cmap="viridis")
dots = ax.scatter(*X[broken].T, s=24, marker="x", c=weights[broken], vmin=0, vmax=weights.max())
fig.colorbar(dots, label="weight of a row")
ax.set(xlabel="first column", ylabel="second column (× broken)")
plt.show()
