"""Clients that differ
===================

With one class per client, a model of the mean loss has the largest loss on the hardest class. AFL gives that client more
weight, until no other mixture has a larger loss.
"""

import matplotlib.pyplot as plt
import numpy as np

import dorfl

# %%
# Three clients whose rows overlap; the third is the smallest and the hardest.

rng = np.random.default_rng(0)
centres = {"north": (-2.0, 0.0), "south": (2.0, 0.5), "east": (0.3, 0.8)}
sizes = {"north": 600, "south": 500, "east": 150}
clients = {
    name: (rng.normal(centre, 1.0, (sizes[name], 2)), np.full(sizes[name], k))
    for k, (name, centre) in enumerate(centres.items())
}

# %%
# Both are solved to the same tolerance; ``fit.history`` has one entry a round.

fits = {
    "by size (ERM)": dorfl.train(clients, dorfl.methods.erm(), loss="softmax"),
    "worst mixture (AFL)": dorfl.train(clients, dorfl.methods.afl(), loss="softmax"),
}
for name, fit in fits.items():
    scores = {client: fit.score(*rows) for client, rows in clients.items()}
    shown = ", ".join(f"{client} {accuracy:.2f}" for client, accuracy in scores.items())
    print(f"{name}: {fit.rounds} rounds; accuracy {shown}")

# %%
# λ, round by round: the worst mixture moves weight to the client with the highest loss.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
path = np.array([entry.lam for entry in fits["worst mixture (AFL)"].history])
for k, (name, style) in enumerate(zip(clients, ("-o", "--s", ":^"), strict=True)):
    left.plot(np.arange(1, len(path) + 1), path[:, k], style, label=name)
left.set(xlabel="round", ylabel="λ of the client", ylim=(0, 1))
left.legend()
place = np.arange(len(clients))
for shift, (name, fit) in zip((-0.2, 0.2), fits.items(), strict=True):
    accuracy = [fit.score(*rows) for rows in clients.values()]
    right.bar(place + shift, accuracy, 0.36, label=name)
right.set(xticks=place, xticklabels=list(clients), ylabel="accuracy", ylim=(0, 1.0))
right.legend(loc="lower left")
plt.show()
