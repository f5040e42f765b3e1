"""TERM (Li et al., 2021), tilted empirical risk, as a user's own risk of a client's rows."""

from dataclasses import dataclass

import torch

import dorfl
from dorfl import networks


@dataclass(frozen=True)
class Term:
    """(1/t) log mean exp(t · loss): t > 0 follows the worst rows, t < 0 leaves them out."""

    t: float

    def __call__(self, losses, mask):
        tilted = (self.t * losses).masked_fill(mask == 0, -torch.inf)
        risk = (tilted.logsumexp(1) - mask.sum(1).log()) / self.t
        return risk, tilted.softmax(1)


dorfl.register_method("own TERM", dorfl.methods.erm(), options={"row_risk": Term(-1.0)})

if __name__ == "__main__":
    data = dorfl.datasets.synthetic(seed=0, contamination=[0.1] * 3, factors=[8.0] * 3)
    for t, model in ((1.0, networks.mlp(5, (16,), 2)), (-1.0, networks.mlp(5, (16,), 2))):
        fit = dorfl.train(data.clients, "erm", model=model, rounds=100, row_risk=Term(t))
        print(t, {name: round(fit.score(*rows), 3) for name, rows in data.test.items()})
