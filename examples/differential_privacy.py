"""What differential privacy costs in accuracy on the synthetic study.

    python examples/differential_privacy.py     prints the table of docs/differential-privacy.md

Means over several data sets and, for each, several draws of the noise; δ = 1e-5 for every row, 50
rounds, gradients of rows clipped to length 1, f to [0, 2]. The largest site has 500 rows.
"""

from __future__ import annotations

import sys

import numpy as np

import dorfl
from dorfl.data.datasets import Dataset
from dorfl.federation.fit import Fit

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
CENTER = (1.5, 1.5, 0.3, 0.6, 1.3)  # given, not computed from rows: about where the columns are
METHODS = {
    "ERM": dorfl.methods.erm(),
    "AFL": dorfl.methods.afl(),
    "DOR-FL": dorfl.methods.dorfl(score=dorfl.scores.quadratic(0.5, center=CENTER)),
}


def accuracy(fit: Fit, data: Dataset) -> float:
    """Test accuracy in percent over all clients."""
    X = np.concatenate([rows for rows, _ in data.test.values()])
    y = np.concatenate([labels for _, labels in data.test.values()])
    return 100.0 * fit.score(X, y)


def main(seeds: int = 5, draws: int = 5) -> None:
    """Print the table in Markdown."""
    print("| method | not private | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |")
    print("| --- " * (2 + len(EPSILONS)) + "|")
    sets = [dorfl.datasets.synthetic(seed) for seed in range(seeds)]
    for name, method in METHODS.items():
        plain = [accuracy(dorfl.train(d.clients, method, intercept=False), d) for d in sets]
        cells = [f"{np.mean(plain):.1f}"]
        for epsilon in EPSILONS:
            found = []
            for data in sets:
                for draw in range(draws):
                    private = dorfl.privacy.gaussian(epsilon, delta=1e-5, seed=draw)
                    fit = dorfl.train(data.clients, method, intercept=False, privacy=private)
                    found.append(accuracy(fit, data))
            cells.append(f"{np.mean(found):.1f} ± {np.std(found):.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
