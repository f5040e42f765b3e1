"""Outliers in the training rows
=============================

70 of 800 training rows are wrong, and it is not known which. The estimator lowers the weights of these rows. This is
the case of a data scientist: a table, a label, and a column that names the client of each row.
"""

import matplotlib.pyplot as plt
import numpy as np

import dorfl

# %%
# Three clients. 10, 5 and 10 % of their rows were multiplied by −7, −8 and −9 after labels were given. ``data.outliers``
# marks these rows, and is used below only to colour the picture.

data = dorfl.datasets.synthetic(seed=0)
X = np.concatenate([rows for rows, _ in data.clients.values()])
y = np.concatenate([labels for _, labels in data.clients.values()])
clients = np.repeat(list(data.clients), [len(labels) for _, labels in data.clients.values()])

# %%
# ERM, which is logistic regression here, gives each row the same weight. The robust classifier assumes that up to a
# tenth of the rows are outliers. All other parameters are chosen from the rows.

plain = dorfl.RobustClassifier("erm").fit(X, y, clients=clients)
robust = dorfl.RobustClassifier(outliers=0.1).fit(X, y, clients=clients)

test_X = np.concatenate([rows for rows, _ in data.test.values()])
test_y = np.concatenate([labels for _, labels in data.test.values()])
for name, model in {"plain": plain, "robust": robust}.items():
    print(f"{name}: accuracy on clean rows {model.score(test_X, test_y):.3f}")

# %%
# The reason: each row has a weight, 1 for an inlier. The weights of the outliers are nearly 0.

weights = robust.sample_weights_
wrong = np.concatenate(list(data.outliers.values()))
edges = np.linspace(0, weights.max(), 40)
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.hist(weights[~wrong], edges, label="inliers", color="#1f6f8b")
ax.hist(weights[wrong], edges, label="outliers", color="#b3541e", hatch="//", alpha=0.8)
ax.set(xlabel="weight of a row", ylabel="rows", yscale="log")
ax.legend()
plt.show()
