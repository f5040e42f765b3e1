"""Rows that are wrong
===================

One row in ten is wrong, nobody knows which, and the model is to be right all the same. This is the data
scientist's case: a table, a label, a column that says where a row comes from.
"""

import matplotlib.pyplot as plt
import numpy as np

import dorfl

# %%
# Three clients. A tenth of their rows was multiplied by −8 after labels were given; ``data.outliers``
# says which, and is used below only to colour the picture.

data = dorfl.datasets.synthetic(seed=0)
X = np.concatenate([rows for rows, _ in data.clients.values()])
y = np.concatenate([labels for _, labels in data.clients.values()])
clients = np.repeat(list(data.clients), [len(labels) for _, labels in data.clients.values()])

# %%
# Plain logistic regression trusts every row. The robust classifier is told that up to a tenth of the rows
# may be wrong; everything else is derived from the rows.

plain = dorfl.RobustClassifier("erm").fit(X, y, clients=clients)
robust = dorfl.RobustClassifier(outliers=0.1).fit(X, y, clients=clients)

test_X = np.concatenate([rows for rows, _ in data.test.values()])
test_y = np.concatenate([labels for _, labels in data.test.values()])
for name, model in {"plain": plain, "robust": robust}.items():
    print(f"{name}: accuracy on clean rows {model.score(test_X, test_y):.3f}")

# %%
# Why: every row has a weight, and the wrong ones have next to none.

weights = np.concatenate([w * len(w) for w in robust.sample_weights_.values()])
wrong = np.concatenate(list(data.outliers.values()))
edges = np.linspace(0, weights.max(), 40)
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.hist(weights[~wrong], edges, label="rows that are right", color="#1f6f8b")
ax.hist(weights[wrong], edges, label="rows that are wrong", color="#b3541e", hatch="//", alpha=0.8)
ax.set(xlabel="weight of a row (1: an ordinary one)", ylabel="rows", yscale="log")
ax.legend()
plt.show()
