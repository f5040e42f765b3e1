"""Table 1 of the paper: accuracy of the five methods on clean test data, overall and by client.

The model is the paper's, θᵀx without an intercept. That matters: the labels are drawn without one,
and an intercept lets the methods that trust every row save themselves by always predicting the
larger class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dorfl import methods
from dorfl.datasets import Dataset, synthetic
from dorfl.methods import Method
from dorfl.training import train
from dorfl.types import Array

ORACLE = "clean rows only"
BAYES = "Bayes rule"


class Row(NamedTuple):
    """One line of the table: accuracies (seeds, 1 + clients), the first column overall."""

    name: str
    accuracy: Array
    rounds: Array

    @property
    def mean(self) -> Array:
        """Mean over seeds."""
        return np.asarray(self.accuracy.mean(axis=0))

    @property
    def error(self) -> Array:
        """Standard error of the mean over seeds (not a number for a single seed)."""
        count = len(self.accuracy)
        if count < 2:
            return np.full(self.accuracy.shape[1], np.nan)
        return np.asarray(self.accuracy.std(axis=0, ddof=1) / np.sqrt(count))


def five_methods() -> list[Method]:
    """The five methods at the settings of the synthetic study."""
    return [
        methods.erm(),
        methods.afl(),
        methods.wafl(rho=20),
        methods.gdrfl(rho=20),
        methods.dorfl(),
    ]


def table(seeds: Sequence[int], tick: Callable[[str], object] = str) -> list[Row]:
    """Every method on every seed, beside two that know better: clean rows only, and the true θ."""
    results: dict[str, list[tuple[list[float], int]]] = {}
    for seed in seeds:
        data = synthetic(seed)
        for method in five_methods():
            fit = train(data.clients, method, intercept=False)
            results.setdefault(method.name, []).append((_accuracies(data, fit.theta), fit.rounds))
            tick(method.name)
        clean = train(data.uncontaminated(), methods.erm(), intercept=False)
        results.setdefault(ORACLE, []).append((_accuracies(data, clean.theta), clean.rounds))
        assert data.theta is not None
        results.setdefault(BAYES, []).append((_accuracies(data, data.theta), 0))
    return [
        Row(name, np.array([a for a, _ in runs]), np.array([r for _, r in runs]))
        for name, runs in results.items()
    ]


def _accuracies(data: Dataset, theta: Array) -> list[float]:
    right = [np.where(X @ theta > 0, 1, -1) == y for X, y in data.test.values()]
    return [float(np.concatenate(right).mean()), *(float(part.mean()) for part in right)]
