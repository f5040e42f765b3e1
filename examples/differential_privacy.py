"""What differential privacy costs in accuracy on the synthetic study.

    python examples/differential_privacy.py     prints the tables of docs/differential-privacy.md

Means over several data sets and, for each, several draws of the noise; δ = 1e-5 for every row, 50
rounds, gradients of rows clipped to length 1, f to [0, 2]. The largest site has 500 rows.
"""

from __future__ import annotations

import sys

import numpy as np

import dorfl
from dorfl.data.datasets import Dataset
from dorfl.federated.fit import Fit
from dorfl.protocol import coordinator, settings, toml
from dorfl.site import local
from dorfl.site.policy import Policy
from dorfl.site.site import Site
from dorfl.support.types import Array

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
CENTER = (1.5, 1.5, 0.3, 0.6, 1.3)  # given, not computed from rows: about where the columns are
METHODS = {
    "ERM": dorfl.methods.erm(),
    "AFL": dorfl.methods.afl(),
    "DOR-FL": dorfl.methods.paper(score=dorfl.scores.quadratic(0.5, center=CENTER)),
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


STUDY = """
[data]
label = "y"
classes = ["0", "1"]
[columns]
use = ["x0", "x1", "x2", "x3", "x4"]
scaling = "standard"
[method]
name = "erm"
[training]
max_rounds = 50
[privacy]
"""
KNOWN = "known = {" + ", ".join(f"x{j} = [-10, 10]" for j in range(5)) + "}\n"


def table(X: Array, y: Array) -> dict[str, Array]:
    """A site's rows, by column."""
    return {**{f"x{j}": X[:, j] for j in range(5)}, "y": (y > 0).astype(int)}


def study(data: Dataset, words: str, draw: int) -> float:
    """Test accuracy in percent of a study among sites, its columns scaled without pooling."""
    sites = {
        name: Site(
            name,
            table(*rows),
            Policy((*table(*rows),), ("*",), allow_open_reports=True),
            secret=bytes([draw]),
        )
        for name, rows in data.clients.items()
    }
    mode = "" if "epsilon" in words else 'reports = "open"\n'
    asked = settings.among(toml.parse(STUDY + words + mode), tuple(sites))
    end = local.run(coordinator.begin(asked, "run"), sites)
    assert end.outcome is not None
    X, y = (np.concatenate([pair[k] for pair in data.test.values()]) for k in (0, 1))
    theta = end.outcome.theta
    found = end.agreed.transform.apply(table(X, y)).X @ theta[:-1] + theta[-1] > 0
    return 100.0 * float(np.mean(found == (y > 0)))


def end_to_end(seeds: int = 5, draws: int = 2) -> None:
    """Print the cost of private scaling too, without outliers and with even classes."""
    print("\n| ERM, a study among sites | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |")
    print("| --- " * (1 + len(EPSILONS)) + "|")
    none = {"contamination": (0.0,) * 3, "means": ((0.0,) * 5,) * 3, "shifts": (0.0,) * 3}
    sets = [dorfl.datasets.synthetic(seed, **none) for seed in range(seeds)]  # type: ignore[arg-type]
    for name, known in (("training alone", ""), ("from end to end", KNOWN)):
        cells = []
        for epsilon in EPSILONS:
            words = f"epsilon = {epsilon}\n{known}"
            found = [study(data, words, draw) for data in sets for draw in range(draws)]
            cells.append(f"{np.mean(found):.1f} ± {np.std(found):.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    plain = [study(data, "", 0) for data in sets]
    print(f"\nnot private: {np.mean(plain):.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    end_to_end(*map(int, sys.argv[1:]))
