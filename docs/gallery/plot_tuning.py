"""Choosing how robust to be
=========================

Two numbers set the robustness of a model: the assumed share of outliers, and how far rows may drift. ``dorfl.tune``
compares a grid of them on held-out rows; ``dorfl tune records.csv --label … --client …`` does so for a table. Held-out
rows contain outliers too, so only rows that are inliers for every candidate are compared. The simplest candidate that no
other beats is chosen.
"""

import matplotlib.pyplot as plt

import dorfl

# %%
# The paper's synthetic clients; 70 of 800 rows are wrong.

data = dorfl.datasets.synthetic(seed=0)
found = dorfl.tune(data.clients)
for trial in found.trials[:4]:
    print(trial.settings, f"loss {trial.loss:.4f}, {trial.difference:+.4f} ± {trial.error:.4f}")

# %%
# Its gain on clean test rows.

tuned = dorfl.train(data.clients, found.method, l2=1e-3)
plain = dorfl.train(data.clients, dorfl.methods.erm(), l2=1e-3)
names = list(data.test)
fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
for (label, fit), mark in zip({"tuned": tuned, "ERM": plain}.items(), "ox", strict=True):
    ax.plot([100 * fit.score(*data.test[name]) for name in names], names, mark, ms=9, label=label)
ax.set(xlabel="accuracy on clean rows, %")
ax.legend()
plt.show()
