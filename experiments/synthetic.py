"""The paper's synthetic study and its extensions: every cell is a function of a seed.

The main setting has an intercept, as a user has it. The paper's own setting is θᵀx without one,
which keeps methods that trust every row from predicting the larger class always.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dorfl.data.datasets import Dataset, synthetic
from dorfl.data.datasets.synthetic import MEANS
from dorfl.federated.fit import Fit
from dorfl.objective import methods, mixture, scores
from dorfl.objective.methods import Method
from dorfl.objective.mixture import Mixture
from dorfl.solvers import Paper
from dorfl.support.types import Array
from experiments import peers
from experiments.tuning import (
    CONSTANT,
    NAMES,
    OURS,
    Candidate,
    Scores,
    accuracies,
    choose,
    constant,
    defaults,
    fit,
    plain_grids,
    scored,
)

ORACLE, BAYES = "clean rows only", "Bayes rule"
PAPERS = "DOR-FL"
FORMS: dict[str, str | Mixture] = {  # how clients are compared: the paper's own form first
    PAPERS: "agnostic",
    "DOR-FL, clients by loss": mixture.agnostic(by="loss"),
    "DOR-FL, clients by regret": mixture.agnostic(by="regret"),
    "DOR-FL, clients by size": "fixed",
}
WITHOUT = "clients by loss, outliers left out"
OFFSETS = tuple(range(-5, 6))
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
STEPS = 1000  # the paper's budget of gradient steps
LENGTHS = (1, 10)  # of a step, in units of 1/√T
KINDS = {
    "negate": "negated and scaled",
    "scale": "scaled",
    "flip": "labels flipped",
    "cluster": "far cluster",
}

_MEANS = np.array(MEANS)
OPEN: dict[str, dict[str, Any]] = {  # what the paper leaves open, one choice at a time
    "as in the main table": {},
    "labels: means of rows × 0": {"means": 0.0 * _MEANS},
    "labels: means × ½": {"means": 0.5 * _MEANS},
    "labels: third client's mean × −1": {"means": _MEANS * [[1], [1], [-1]]},
    "θ* × ½": {"theta": (1.0, 1.0, 0.5, -0.5, 0.25)},
    "θ* × 2": {"theta": (4.0, 4.0, 2.0, -2.0, 1.0)},
    "θ* = (1, 1, 1, 1, 1)": {"theta": (1.0,) * 5},
    "θ* = (2, −2, 1, 1, ½)": {"theta": (2.0, -2.0, 1.0, 1.0, 0.5)},
    "outliers × −2": {"factors": (2.0,) * 3},
    "outliers × −4": {"factors": (4.0,) * 3},
    "outliers × −16": {"factors": (16.0,) * 3},
    "outliers × 4": {"factors": (4.0,) * 3, "kind": "scale"},
    "outliers × 7, 8, 9": {"kind": "scale"},
    "no outlier": {"contamination": (0.0,) * 3},
    "20 % wrong": {"contamination": (0.2,) * 3},
    "30 % wrong": {"contamination": (0.3,) * 3},
    "wrong: 70 of client 1": {"contamination": (0.7, 0.0, 0.0)},
    "wrong: 70 of client 2": {"contamination": (0.0, 0.35, 0.0)},
    "wrong: 70 of client 3": {"contamination": (0.0, 0.0, 0.14)},
    "rows: half as many": {"sizes": (50, 100, 250)},
    "rows: five times as many": {"sizes": (500, 1000, 2500)},
    "rows: 267 each": {"sizes": (267, 267, 267)},
}


def five_methods() -> list[Method]:
    """Return the five methods at the settings of the synthetic study."""
    return [
        methods.erm(),
        methods.afl(),
        methods.wafl(rho=20),
        methods.gdrfl(rho=20),
        methods.paper(),
    ]


def grids() -> dict[str, list[Candidate]]:
    """Return twelve settings for each method, the mildest first."""
    ridge = (0.0, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
    price = (500.0, 200.0, 100.0, 50.0, 30.0, 20.0, 10.0, 5.0, 3.0, 2.0, 1.0, 0.5)
    return {
        **plain_grids(ridge, price),
        "dorfl": [
            Candidate(
                f"ρ = {rho:g}, β = {beta:g}, ρ₂ = {weight:g}",
                methods.paper(rho, beta, scores.quadratic(weight)),
            )
            for rho, beta, weight in product((50.0, 20.0, 5.0), (1.0, 0.2), (0.2, 0.5))
        ],
    }


def table(seed: int, intercept: bool) -> dict[str, Any]:
    """Return Table 1 for one seed: every method at the study's settings, baselines and references.

    With an intercept, methods are also tuned by either rule. Without one, as in the paper, they
    are also stopped after the paper's number of steps.
    """
    data = synthetic(seed)
    rows: dict[str, Any] = {name: {"study": run} for name, run in _everyone(data, intercept)}
    samples = _validation(seed) if intercept else {}
    for name, grid in grids().items() if samples else ():
        for rule, chosen in choose(grid, data.clients, samples).items():
            again = scored(fit(chosen, data.clients).decision, data.test)
            rows[NAMES[name]][rule] = {"accuracy": again["accuracy"], "settings": chosen.words}
    for method in () if intercept else five_methods():
        rows[NAMES[method.name]]["stopped"] = {
            str(length): accuracies(_stopped(method, data, length), data.test) for length in LENGTHS
        }
    return rows


def _stopped(method: Method, data: Dataset, length: float) -> Fit:
    """Train by full-batch steps of Algorithm 1; a step counts in units of 1/√T, and of ρβ."""
    tilt = method.temperature if np.isfinite(method.temperature) else 1.0
    solver = Paper(rounds=STEPS, batch=None, rate=length * tilt / STEPS**0.5)
    return fit(Candidate("", method), data.clients, solver=solver, intercept=False)


def _everyone(data: Dataset, intercept: bool = True) -> Iterator[tuple[str, Scores]]:
    """Yield what every method, baseline and reference scores on clean rows, nothing tuned."""
    yield CONSTANT, scored(constant(data.clients), data.test)
    for method in five_methods():
        fitted = fit(Candidate("", method), data.clients, intercept=intercept)
        yield NAMES[method.name], scored(fitted.decision, data.test)
    yield OURS, scored(defaults(data.clients, intercept=intercept).decision, data.test)
    for name, theta in _references(data, intercept).items():
        yield name, scored(partial(peers.outputs, theta), data.test)


def sensitivity(seed: int) -> dict[str, list[float]]:
    """Return overall accuracy with ξ̄ at the clean mean plus each offset in every coordinate.

    DOR-FL is in the paper's form, and with other mixtures and dorfl's default ridge 1/n. By loss
    it is also trained without the outliers, as an upper limit.
    """
    data = synthetic(seed)
    clean = data.uncontaminated()
    sizes = [len(y) for _, y in data.clients.values()]
    mean = np.average(MEANS, axis=0, weights=sizes)
    forms = FORMS | {WITHOUT: mixture.agnostic(by="loss")}
    found: dict[str, list[float]] = {name: [] for name in forms}
    for offset in OFFSETS:
        score = scores.quadratic(0.5, center=mean + offset)
        for name, rule in forms.items():
            method = methods.paper(score=score, mixture=rule)
            l2 = 0.0 if name == PAPERS else 1.0 / sum(sizes)
            rows = clean if name == WITHOUT else data.clients
            fitted = fit(Candidate("", method, l2), rows, intercept=False)
            found[name].append(accuracies(fitted, data.test)[0])
    return found


def contamination(seed: int) -> dict[str, dict[str, list[Scores]]]:
    """Score all methods at the settings of the study, with an intercept, over four sweeps."""
    return {
        "share": _sweep([{"contamination": (share,) * 3} for share in SHARES], seed),
        "factor": _sweep([{"factors": (factor,) * 3} for factor in FACTORS], seed),
        "kind": _sweep([{"kind": kind} for kind in KINDS], seed),
        "client": _sweep([{"contamination": tuple(np.eye(3)[i])} for i in range(3)], seed),
    }


def _sweep(cases: list[dict[str, Any]], seed: int) -> dict[str, list[Scores]]:
    found: dict[str, list[Scores]] = {}
    for case in cases:
        for name, run in _everyone(synthetic(seed, **case)):
            found.setdefault(name, []).append({key: values[:1] for key, values in run.items()})
    return found


def open_choices(seed: int) -> dict[str, dict[str, Any]]:
    """Score all methods on clean rows, with each choice that the paper leaves open changed."""
    found: dict[str, dict[str, Any]] = {}
    for name, case in OPEN.items():
        data = synthetic(seed, **case)
        found[name] = {
            "positive": float(np.mean(np.concatenate([y for _, y in data.test.values()]) > 0))
        }
        found[name] |= {
            method: {key: values[0] for key, values in run.items()}
            for method, run in _everyone(data)
            if method in (CONSTANT, OURS, *NAMES.values())
        }
    return found


def _references(data: Dataset, intercept: bool) -> dict[str, Array]:
    """Return θ trained on the clean rows only, the true θ, and the peers."""
    clean = {name: rows for name, rows in data.uncontaminated().items() if len(rows[1])}
    bad = np.concatenate(list(data.outliers.values()))
    oracle = fit(Candidate("", methods.erm()), clean, intercept=intercept)
    assert data.theta is not None
    others = peers.everyone(data.clients, float(bad.mean()), intercept=intercept)
    return {ORACLE: oracle.theta, BAYES: data.theta, **others}


def _validation(seed: int) -> dict[str, dict[str, tuple[Array, Array]]]:
    """Return fresh rows to tune on: a clean, unshifted sample, and one like the training rows."""
    fresh = 1_000_000 + seed
    none = (0.0, 0.0, 0.0)
    clean = synthetic(fresh, contamination=none, shifts=none)
    return {"clean": clean.clients, "contaminated": synthetic(fresh).clients}
