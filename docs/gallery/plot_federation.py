"""A federation in one process
===========================

``dorfl.train`` is a federation in one process: clients evaluate, the server sees their reports, and rows stay with the
clients. Here one client does not reply in some rounds.
"""

import matplotlib.pyplot as plt

import dorfl

# %%
# Client 2 is absent in every other round after the first. Its last report is extrapolated then.

data = dorfl.datasets.synthetic(seed=0)


def absent(number, client):
    """Return whether a client does not reply in a round."""
    return client == "client-2" and number > 1 and number % 2 == 0


fits = {
    "all clients reply": dorfl.train(data.clients, dorfl.methods.erm(), l2=1e-3),
    "client 2 is absent": dorfl.train(data.clients, dorfl.methods.erm(), l2=1e-3, absent=absent),
}

# %%
# Both runs end at the same model. What a client sends depends on the number of columns and not on its rows.

for name, fit in fits.items():
    print(
        f"{name}: {fit.rounds} rounds, objective {fit.objective:.6f}, {fit.bytes_up / 1e3:.1f} kB sent"
    )

# %%
fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, fit), style in zip(fits.items(), ("o-", "s--"), strict=True):
    gaps = [max(line.gap, 1e-12) for line in fit.history]
    ax.semilogy(range(1, len(gaps) + 1), gaps, style, ms=4, label=name)
ax.set(xlabel="round", ylabel="optimality gap")
ax.legend()
plt.show()
