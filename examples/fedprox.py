"""FedProx (Li et al., 2020) as a user's own optimizer: local steps are pulled to the server's θ."""

from dataclasses import dataclass

import dorfl
from dorfl import networks


@dataclass(frozen=True)
class Proximal:
    """Minimise F_i(θ) + ½ mu |θ − θ_server|² by plain steps."""

    lr: float
    mu: float

    def start(self, theta):
        return [theta.clone()]  # the server's θ

    def step(self, theta, gradient, carried, count):
        return theta - self.lr * (gradient + self.mu * (theta - carried[0]))


OPTIONS = {"local_epochs": 2, "optimizer": Proximal(lr=0.05, mu=0.1)}
dorfl.register_method("own FedProx", dorfl.methods.erm(), options=OPTIONS)

if __name__ == "__main__":
    data = dorfl.datasets.synthetic(seed=0)
    fit = dorfl.train(data.clients, "erm", model=networks.mlp(5, (16,), 2), rounds=20, **OPTIONS)
    print({name: round(fit.score(*rows), 3) for name, rows in data.test.items()})
