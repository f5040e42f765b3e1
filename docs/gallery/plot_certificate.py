"""
What is guaranteed
==================

If some rows are wrong and the others drift, how bad can it get? A certificate answers with a bound, not an
estimate, for any linear model, whatever it was trained with.
"""

import matplotlib.pyplot as plt
import numpy as np

import dorfl

# %%
# Plain ERM and DOR-FL on the same rows, of which one in ten is wrong.

data = dorfl.datasets.synthetic(seed=0)
fits = {
    "ERM": dorfl.train(data.clients, dorfl.methods.erm()),
    "DOR-FL": dorfl.train(
        data.clients, dorfl.methods.dorfl(rho=20, beta=1, score=dorfl.scores.quadratic(0.5))
    ),
}

# %%
# In words: at most 10 % of every client's rows are wrong, and rows to come differ from the good ones by
# at most 0.1 standard deviations.

certificates = {
    name: dorfl.certify(fit, data.clients, outliers=0.1, drift=0.1) for name, fit in fits.items()
}
print(certificates["DOR-FL"])

# %%
# The same numbers give the whole curve over the drift.

drifts = np.linspace(0.0, 0.4, 21)
fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, found), style in zip(certificates.items(), ("--", "-"), strict=True):
    ax.plot(drifts, [100 * found.at(drift=d).accuracy for d in drifts], style, label=name)
ax.set(xlabel="drift in standard deviations", ylabel="certified accuracy in %")
ax.legend()
plt.show()
