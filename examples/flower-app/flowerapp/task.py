"""Define the model, the data and the training for both client and server."""

import numpy as np
import torch
from torch import nn

import dorfl
from dorfl import methods, mixture
from dorfl.networks import Plan, sgd

METHODS = {
    "erm": methods.erm(),
    "afl": methods.afl(),
    "wafl": methods.wafl(rho=20.0),
    "gdrfl": methods.gdrfl(rho=20.0),
    # by="loss": by="risk" would underrate clients far from the centre of the score
    "dorfl": methods.paper(rho=20.0, beta=1.0, mixture=mixture.agnostic(by="loss")),
}


class Net(nn.Module):
    """Two layers, for tables of five columns and two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(5, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


def training(config):
    """Return the method and the plan that the run's configuration names."""
    plan = Plan(batch_size=32, local_epochs=1, optimizer=sgd(0.05), seed=int(config["seed"]))
    return METHODS[str(config["method"])], plan


def load_data(partition, config):
    """Return a client's training rows, some of them outliers, and clean test rows."""
    share = float(config["outliers"])
    data = dorfl.datasets.synthetic(
        int(config["seed"]), contamination=[share] * 3, factors=[8.0] * 3
    )
    name = f"client-{partition + 1}"

    def rows(X, y):
        return X.astype(np.float32), (y > 0).astype(int)

    return rows(*data.clients[name]), rows(*data.test[name])
