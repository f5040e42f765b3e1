"""Ditto (Li et al., 2021): one network per client, pulled to the network of all clients."""

from fedprox import Proximal

import dorfl
from dorfl import networks


def ditto(clients, model, mu=0.5, lr=0.1, local_epochs=5, **options):
    """Return a fit of all clients, and one of each client that is near it in θ."""
    fit = dorfl.train(clients, "erm", model=model, **options)
    local = {"rounds": 1, "local_epochs": local_epochs, "optimizer": Proximal(lr, mu)}
    own = {
        name: dorfl.train(
            {name: rows}, "erm", model=fit.model, classes=fit.classes, average=0.0, **local
        )
        for name, rows in clients.items()
    }
    return fit, own


if __name__ == "__main__":
    data = dorfl.datasets.synthetic(seed=0)
    fit, own = ditto(data.clients, networks.mlp(5, (16,), 2), rounds=100)
    for name, rows in data.test.items():
        print(name, round(fit.score(*rows), 3), round(own[name].score(*rows), 3))
