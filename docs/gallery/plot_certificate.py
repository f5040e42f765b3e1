"""
What is guaranteed
==================

If some rows are outliers and the others drift, how bad can it get for rows to come? A certificate answers with a
bound that holds with 95 % confidence, for any linear model, however it was trained.
"""

import matplotlib.pyplot as plt
import numpy as np

import dorfl

# %%
# Plain ERM and DOR-FL on the same rows, of which one in ten is an outlier. Models have an intercept, which is
# the default. The page of ``python -m experiments reproduce`` has the same setting.

data = dorfl.datasets.synthetic(seed=0, contamination=(0.1, 0.1, 0.1))
fits = {
    "ERM": dorfl.train(data.clients, dorfl.methods.erm()),
    "DOR-FL": dorfl.train(
        data.clients, dorfl.methods.paper(rho=20, beta=1, score=dorfl.scores.quadratic(0.5))
    ),
}

# %%
# The certificate needs rows that the model was not trained on. Here one in ten of them is an outlier as well. The
# training rows define the unit of the drift, a robust standard deviation of every column.

new = dorfl.datasets.synthetic(seed=1, contamination=(0.1, 0.1, 0.1), sizes=(1000, 2000, 5000))
certificates = {
    name: dorfl.certify(fit, new.clients, outliers=0.1, drift=0.1, reference=data.clients)
    for name, fit in fits.items()
}
print(certificates["DOR-FL"])

# %%
# The bound over the drift. It is monotone in the drift and in the share of outliers. The outliers pull ERM to a nearly
# constant prediction, which no drift changes: it is right for the largest client, and wrong for the smallest.

for name, found in certificates.items():
    print(name, {client: f"{at.accuracy:.1%}" for client, at in found.clients.items()})

drifts = np.linspace(0.0, 0.4, 21)
fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, found), style in zip(certificates.items(), ("--", "-"), strict=True):
    ax.plot(drifts, [100 * found.at(drift=d).accuracy for d in drifts], style, label=name)
ax.set(xlabel="drift in standard deviations", ylabel="certified accuracy in %")
ax.legend()
plt.show()
