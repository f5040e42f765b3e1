"""Fair tuning: the same number of settings for every method, one rule, and no test rows.

The rule is the accuracy on a validation sample. Two samples show how much it matters which: a clean
one, as the paper's "tuned optimally" suggests, and one contaminated like the rows to train on,
which is what a user really has. Accuracy, not loss: a wild row can cost no more than any other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import dorfl
from dorfl.data.datasets.base import Clients, Dataset
from dorfl.federated.fit import Fit
from dorfl.federated.training import train
from dorfl.objective import methods
from dorfl.objective.costs import Cost
from dorfl.objective.methods import Method
from dorfl.support.types import Array
from experiments.rows import hold_out

NAMES = {"erm": "ERM", "afl": "AFL", "wafl": "WAFL", "gdrfl": "GDRFL", "dorfl": "DOR-FL"}

CONSTANT = "constant"
OURS = "dorfl's defaults"
RULES = ("clean", "contaminated")
Scores = dict[str, list[float]]  # accuracy, balanced accuracy, log loss: overall, then by client


class Candidate(NamedTuple):
    """A method at one of its settings; `words` say which."""

    words: str
    method: Method
    l2: float = 0.0


def plain_grids(
    ridge: Sequence[float], price: Sequence[float], cost: Cost | None = None, l2: float = 0.0
) -> dict[str, list[Candidate]]:
    """Return settings of the four methods without a score: a ridge, or a price of transport.

    `l2` is the ridge of methods that are tuned by a price.
    """
    return {
        "erm": [Candidate(f"l2 = {one:.2g}", methods.erm(), one) for one in ridge],
        "afl": [Candidate(f"l2 = {one:.2g}", methods.afl(), one) for one in ridge],
        "wafl": [Candidate(f"ρ = {rho:g}", methods.wafl(rho, cost=cost), l2) for rho in price],
        "gdrfl": [Candidate(f"ρ = {rho:g}", methods.gdrfl(rho, cost=cost), l2) for rho in price],
    }


def fit(candidate: Candidate, clients: Clients, **options: Any) -> Fit:
    """Train at these settings, without a warning if the rounds run out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return train(clients, candidate.method, l2=candidate.l2, **options)


def defaults(clients: Clients, **options: Any) -> Fit:
    """Train as `dorfl.train(clients)` does, with nothing chosen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found: Fit = dorfl.train(clients, **options)
    return found


def choose(
    candidates: Sequence[Candidate],
    clients: Clients,
    samples: Mapping[str, Clients],
    **options: Any,
) -> dict[str, Candidate]:
    """Return the most accurate candidate for each validation sample, the first of equals."""
    fits = [fit(candidate, clients, **options) for candidate in candidates]
    return {
        name: candidates[int(np.argmax([accuracies(fitted, sample)[0] for fitted in fits]))]
        for name, sample in samples.items()
    }


def accuracies(fitted: Fit, test: Clients) -> list[float]:
    """Return accuracy overall, then by client."""
    return by_client([fitted.predict(X) == y for X, y in test.values()])


def log_losses(fitted: Fit, test: Clients) -> list[float]:
    """Return the mean logistic loss (labels ±1) overall, then by client."""
    return by_client([np.logaddexp(0.0, -y * fitted.decision(X)) for X, y in test.values()])


def scored(outputs: Callable[[Array], Array], test: Clients) -> Scores:
    """Measure a model, given as its log odds, on test rows with labels ±1.

    >>> rows = {"a": (np.zeros((4, 1)), np.array([1, 1, 1, -1]))}
    >>> found = scored(lambda X: np.full(len(X), np.log(3.0)), rows)
    >>> found["accuracy"], found["balanced"], round(found["loss"][0], 3)
    ([0.75, 0.75], [0.5, 0.5], 0.562)
    """
    parts = [(outputs(X), y) for X, y in test.values()]
    right = [(np.where(odds > 0, 1, -1) == y) for odds, y in parts]
    pairs = [(hit, y) for hit, (_, y) in zip(right, parts, strict=True)]
    whole = (np.concatenate(right), np.concatenate([y for _, y in parts]))
    return {
        "accuracy": by_client(right),
        "balanced": [_balanced(*pair) for pair in (whole, *pairs)],
        "loss": by_client([np.logaddexp(0.0, -y * odds) for odds, y in parts]),
    }


def _balanced(right: Array, y: Array) -> float:
    """Return the mean over the classes that occur of the share of their rows that is right."""
    return float(np.mean([right[y == label].mean() for label in np.unique(y)]))


def constant(clients: Clients) -> Callable[[Array], Array]:
    """Return the log odds of the larger class among the training rows, whatever the row.

    >>> rows = {"a": (np.zeros((4, 1)), np.array([1, 1, 1, -1]))}
    >>> constant(rows)(np.zeros((2, 1))).round(3).tolist()
    [1.099, 1.099]
    """
    share = float(np.mean(np.concatenate([y for _, y in clients.values()]) > 0))
    odds = np.log(share / (1.0 - share))
    return lambda X: np.full(len(X), odds)


def by_client(parts: Sequence[Array]) -> list[float]:
    """Return the mean over all rows, then over each client's."""
    return [float(np.concatenate(parts).mean()), *(float(part.mean()) for part in parts)]


def validation(data: Dataset, seed: int) -> tuple[Clients, dict[str, Clients]]:
    """Return four fifths of each client's rows, and the fifth without and with known outliers."""
    kept, held = hold_out(data.clients, 0.2, seed)

    def rows(places: Sequence[Array]) -> Clients:
        pairs = zip(data.clients.items(), places, strict=True)
        return {name: (X[at], y[at]) for (name, (X, y)), at in pairs}

    right = [at[~data.outliers[name][at]] for name, at in zip(data.clients, held, strict=True)]
    return rows(kept), {"clean": rows(right), "contaminated": rows(held)}
