"""The trimmed mean (Yin et al., 2018) as a user's own aggregator of the clients' updates."""

import numpy as np

import dorfl
from dorfl import networks


def trimmed_mean(updates, weights, share=0.2):
    """Leave out the largest and smallest `share` of every coordinate; clients count alike."""
    cut = int(share * len(updates))
    ordered = updates.sort(dim=0).values
    return ordered[cut : len(updates) - cut].mean(dim=0)


dorfl.register_method("own trimmed mean", dorfl.methods.erm(), options={"aggregator": trimmed_mean})

if __name__ == "__main__":
    rng, clients = np.random.default_rng(0), {}
    for k in range(5):  # the labels of client 0 are all wrong
        X = rng.normal(size=(200, 5)).astype(np.float32)
        clients[f"client-{k}"] = (X, ((X[:, 0] > 0) ^ (k == 0)).astype(int))
    for rule in (None, trimmed_mean):
        fit = dorfl.train(
            clients, "erm", model=lambda: networks.mlp(5, (16,), 2), rounds=100, aggregator=rule
        )
        print(rule, round(fit.score(*clients["client-1"]), 3))
