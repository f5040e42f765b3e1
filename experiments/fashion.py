"""Fashion-MNIST with one class per client, for comparison with published figures.

The accuracy on a client with one class is the recall of that class. The mean loss gives up on
shirts, the worst mixture does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from dorfl.data.datasets.base import Clients
from dorfl.federated.fit import Fit
from dorfl.objective import methods
from dorfl.solvers.base import relative
from experiments.data import fashion_mnist
from experiments.tuning import Candidate, accuracies, fit

L2 = 1e-5
THREE = (0, 2, 6)  # T-shirt, pullover, shirt: the classes of Mohri, Sivek and Suresh
RUNS: dict[str, dict[str, Any]] = {
    "ERM, three classes": {"name": "erm", "classes": list(THREE), "tol": 1e-4},
    "AFL, three classes": {"name": "afl", "classes": list(THREE), "tol": 1e-4},
    "AFL, ten classes": {"name": "afl", "classes": list(range(10)), "tol": 1e-3},
}


def method(name: str, classes: Sequence[int], tol: float) -> dict[str, Any]:
    """Train one method to its optimum, and measure it on the test pictures."""
    data = fashion_mnist(classes)
    return measured(name, data.clients, data.test, tol)


def measured(name: str, clients: Clients, test: Clients, tol: float) -> dict[str, Any]:
    """Train one method to its optimum, and return accuracies by client, λ, loss and rounds."""
    made = {"erm": methods.erm, "afl": methods.afl}[name]()
    found = fit(Candidate(name, made, L2), clients, loss="softmax", tol=tol)
    overall, *by_client = accuracies(found, test)
    return {
        "clients": list(found.clients),
        "overall": overall,
        "by_client": by_client,
        "loss": _log_loss(found, test),
        "lam": np.asarray(found.lam).tolist(),
        "objective": found.objective,
        "gap": relative(found.gap, found.objective, found.history[0].objective),
        "rounds": found.rounds,
        "converged": found.status == "converged",
    }


def _log_loss(found: Fit, test: Clients) -> float:
    """Return the mean softmax loss on the test rows."""
    losses = []
    for X, y in test.values():
        scores, place = found.decision(X), np.searchsorted(found.problem.classes, y)
        losses.append(logsumexp(scores, axis=1) - scores[np.arange(len(y)), place])
    return float(np.concatenate(losses).mean())
