"""The paper's Adult study: 70/30 splits, groups by race, and a score on suspect capital gains."""

from __future__ import annotations

from itertools import product
from typing import Any

from dorfl import costs, methods, scores
from dorfl.datasets import Dataset, adult
from dorfl.datasets.adult import SUSPECT_GAIN
from dorfl.datasets.base import Clients, hold_out
from dorfl.experiments.tuning import NAMES, Candidate, accuracies, choose, fit, log_losses
from dorfl.solvers import Paper
from dorfl.training import Fit

RULES = ("clean", "contaminated")
STEPS = 1000  # the paper's budget of gradient steps
_TOLERANCE = 1e-5


def grids(data: Dataset) -> dict[str, list[Candidate]]:
    """Six settings for each method, the mildest first."""
    cost = costs.squared(frozen=data.frozen)
    ridge = (0.0, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
    transport = list(product((1000.0, 100.0, 20.0), (0.0, 3e-4)))
    level = data.in_units("capital-gain", SUSPECT_GAIN)
    column = data.feature_names.index("capital-gain")
    score = scores.threshold(10.0, column, level, softness=0.1, label=-1)
    return {
        "erm": [Candidate(f"l2 = {l2:g}", methods.erm(), l2) for l2 in ridge],
        "afl": [Candidate(f"l2 = {l2:g}", methods.afl(), l2) for l2 in ridge],
        "wafl": [
            Candidate(f"ρ = {rho:g}, l2 = {l2:g}", methods.wafl(rho, cost=cost), l2)
            for rho, l2 in transport
        ],
        "gdrfl": [
            Candidate(f"ρ = {rho:g}, l2 = {l2:g}", methods.gdrfl(rho, cost=cost), l2)
            for rho, l2 in transport
        ],
        "dorfl": [
            Candidate(
                f"ρ = {rho:g}, ρβ = {tilt:g}, ρ₂ = 10, l2 = {l2:g}",
                methods.dorfl(rho, tilt / rho, score, cost=cost),
                l2,
            )
            for (rho, tilt), l2 in product(((1000.0, 100.0), (100.0, 100.0), (100.0, 20.0)), (0.0, 3e-4))
        ],
    }


def method(seed: int, name: str) -> dict[str, Any]:
    """One method on one split: tuned by either rule, to convergence and at the paper's budget."""
    data = adult("paper", seed=seed)
    kept, samples = _validation(data, seed)
    chosen = choose(grids(data)[name], kept, samples, tol=1e-4, max_rounds=80)
    found: dict[str, Any] = {}
    for rule in RULES:
        candidate = chosen[rule].candidate
        same = next((r for r in found.values() if r["settings"] == candidate.words), None)
        found[rule] = same or {
            "settings": candidate.words,
            "converged": _measured(fit(candidate, data.clients, tol=_TOLERANCE), data.test),
            "budget": _measured(
                fit(candidate, data.clients, solver=Paper(rounds=STEPS, batch=None)), data.test
            ),
        }
    return found


def best_linear(seed: int) -> list[float]:
    """The least log loss a linear model can have on the test rows, overall and by group."""
    test = adult("paper", seed=seed).test
    cases = [test, *({name: rows} for name, rows in test.items())]
    return [
        float(log_losses(fit(Candidate("", methods.erm()), case, tol=_TOLERANCE), case)[0])
        for case in cases
    ]


def official(name: str) -> dict[str, Any]:
    """One method at the mildest of its settings on the official split, to convergence."""
    data = adult("official")
    candidate = grids(data)[name][0]
    return _measured(fit(candidate, data.clients, tol=_TOLERANCE), data.test) | {
        "settings": candidate.words
    }


def _measured(fitted: Fit, test: Clients) -> dict[str, Any]:
    return {
        "accuracy": accuracies(fitted, test),
        "loss": log_losses(fitted, test),
        "lam": fitted.lam.tolist(),
        "rounds": fitted.rounds,
    }


def _validation(data: Dataset, seed: int) -> tuple[Clients, dict[str, Clients]]:
    """A fifth of every client's rows to tune on: as they are, and without the suspects."""
    kept, held = hold_out(data.clients, 0.2, seed)
    pairs = list(zip(data.clients.items(), kept, held, strict=True))
    rest = {name: (X[rows], y[rows]) for (name, (X, y)), rows, _ in pairs}
    sample = {name: (X[rows], y[rows]) for (name, (X, y)), _, rows in pairs}
    clean = {}
    for name, (X, y), rows in ((name, xy, rows) for (name, xy), _, rows in pairs):
        fine = rows[~data.outliers[name][rows]]
        clean[name] = (X[fine], y[fine])
    return rest, {"clean": clean, "contaminated": sample}


METHODS = tuple(NAMES)
