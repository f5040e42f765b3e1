"""Cardio: real entry errors, against an oracle that was trained on plausible records only."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dorfl.data.datasets import Dataset
from dorfl.objective import costs, methods, scores
from experiments import peers
from experiments.data import cardio
from experiments.tuning import (
    CONSTANT,
    NAMES,
    OURS,
    RULES,
    Candidate,
    choose,
    constant,
    defaults,
    fit,
    plain_grids,
    scored,
    validation,
)

ORACLE = "plausible rows only"
_TOLERANCE = 1e-5


def grids(data: Dataset) -> dict[str, list[Candidate]]:
    """Return six settings for each method, the mildest first."""
    cost = costs.squared(frozen=data.frozen)
    shape = np.ones(len(data.feature_names))
    shape[list(data.frozen)] = 0.0  # a category is never far out
    ridge = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
    price = (1000.0, 200.0, 50.0, 20.0, 5.0, 1.0)
    tilted = [
        (rho, beta, weight)
        for rho, (beta, weight) in product((100.0, 50.0, 20.0), ((1.0, 0.5), (1.0, 1.0)))
    ]
    return {
        **plain_grids(ridge, price, cost),
        "dorfl": [
            Candidate(
                f"ρ = {rho:g}, β = {beta:g}, ρ₂ = {weight:g}",
                methods.paper(rho, beta, scores.quadratic(weight, matrix=shape), cost=cost),
            )
            for rho, beta, weight in tilted
        ],
    }


def table(seed: int) -> dict[str, Any]:
    """Train every method on one split, tuned by either rule, with the oracle and the peers."""
    data = cardio(seed)
    kept, samples = validation(data, seed)
    rows: dict[str, Any] = {}
    for name, grid in grids(data).items():
        row = rows[NAMES[name]] = {}
        for rule, chosen in choose(grid, kept, samples, tol=1e-4).items():
            again = fit(chosen, data.clients, tol=_TOLERANCE)
            row[rule] = {
                **scored(again.decision, data.test),
                "settings": chosen.words,
                "lam": again.lam.tolist(),
            }
            if name == "dorfl":
                row[rule]["recall"] = _recall(again.sample_weights, data)
    oracle = fit(Candidate("", methods.erm()), data.uncontaminated(), tol=_TOLERANCE)
    share = float(np.concatenate(list(data.outliers.values())).mean())
    others = {
        ORACLE: scored(oracle.decision, data.test),
        CONSTANT: scored(constant(data.clients), data.test),
        OURS: scored(defaults(data.clients).decision, data.test),
        **{
            name: scored(partial(peers.outputs, theta), data.test)
            for name, theta in peers.everyone(data.clients, share).items()
        },
    }
    for name, found in others.items():
        rows[name] = {rule: {**found, "settings": ""} for rule in RULES}
    return rows


def _recall(weights: dict[str, Any], data: Dataset) -> float:
    """Return the share of the implausible records that is among the 3 % lightest rows."""
    weight = np.concatenate([w * len(w) for w in weights.values()])
    wrong = np.concatenate(list(data.outliers.values()))
    lightest = np.argsort(weight, kind="stable")[: round(0.03 * len(weight))]
    return float(wrong[lightest].sum() / wrong.sum())
