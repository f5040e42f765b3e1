"""Choosing how robust to be
=========================

Two numbers say how robust a model is to be: the share of rows that may be wrong, and how far rows may drift.
``dorfl.tune`` chooses them by cross-validation; ``dorfl tune records.csv --label … --client …`` does so for a
table. Accuracy on rows held out is no guide where held-out rows are wrong as well: the measure is the loss of the
rows that do not lie far out, the same rows for every candidate.
"""

import matplotlib.pyplot as plt

import dorfl

# %%
# The paper's synthetic clients; one row in ten is wrong.

data = dorfl.datasets.synthetic(seed=0)
found = dorfl.tune(data.clients, folds=3, seed=0)
for trial in found.trials[:4]:
    print(trial.settings, f"loss {trial.loss:.4f}")

# %%
# What it buys on rows that are right.

tuned = dorfl.train(data.clients, found.method, l2=1e-3)
plain = dorfl.train(data.clients, dorfl.methods.erm(), l2=1e-3)
names = list(data.test)
fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
for (label, fit), mark in zip({"tuned": tuned, "ERM": plain}.items(), "ox", strict=True):
    ax.plot([100 * fit.score(*data.test[name]) for name in names], names, mark, ms=9, label=label)
ax.set(xlabel="accuracy on clean rows, %")
ax.legend()
plt.show()
