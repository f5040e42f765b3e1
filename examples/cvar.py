"""CVaR, the mean of the largest losses, as a user's own risk of a client's rows."""

from dataclasses import dataclass

import dorfl
from dorfl import networks


@dataclass(frozen=True)
class Cvar:
    """Mean of the `share` of rows with the largest losses."""

    share: float

    def __call__(self, losses, mask):
        count = (self.share * mask.sum(1, keepdim=True)).ceil().clamp(min=1.0)
        rank = losses.masked_fill(mask == 0, -float("inf")).argsort(1, descending=True).argsort(1)
        weights = (rank < count) * mask / count
        return (weights * losses).sum(1), weights


dorfl.register_method("own CVaR", dorfl.methods.erm(), options={"row_risk": Cvar(0.5)})

if __name__ == "__main__":
    data, model = dorfl.datasets.synthetic(seed=0), networks.mlp(5, (16,), 2)
    fit = dorfl.train(data.clients, "erm", model=model, rounds=100, row_risk=Cvar(0.5))
    print({name: round(fit.score(*rows), 3) for name, rows in data.test.items()})
