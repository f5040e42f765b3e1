"""The paper's synthetic study, and what lies beyond: every cell is a plain function of a seed.

The model is the paper's, θᵀx without an intercept. That matters: the labels are drawn without one,
and an intercept lets the methods that trust every row save themselves by always predicting the
larger class.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from dorfl.data.datasets import Dataset, synthetic
from dorfl.data.datasets.synthetic import MEANS
from dorfl.objective import methods, mixture, scores
from dorfl.objective.methods import Method
from dorfl.objective.mixture import Mixture
from dorfl.study import arrays
from dorfl.support.types import Array
from experiments import peers
from experiments.tuning import NAMES, Candidate, accuracies, choose, fit, plain_grids

ORACLE, BAYES = "clean rows only", "Bayes rule"
OURS = "DOR-FL, dorfl's defaults"
PAPERS = "DOR-FL"
FORMS: dict[str, str | Mixture] = {  # how clients are compared: the paper's own form first
    PAPERS: "agnostic",
    "DOR-FL, clients by loss": mixture.agnostic(by="loss"),
    "DOR-FL, clients by regret": mixture.agnostic(by="regret"),
    "DOR-FL, clients by size": "fixed",
}
TOLD = "clients by loss, wrong rows left out"
OFFSETS = tuple(range(-5, 6))
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
KINDS = {
    "negate": "negated and scaled",
    "scale": "scaled",
    "flip": "labels flipped",
    "cluster": "far cluster",
}


def five_methods() -> list[Method]:
    """The five methods at the settings of the synthetic study."""
    return [
        methods.erm(),
        methods.afl(),
        methods.wafl(rho=20),
        methods.gdrfl(rho=20),
        methods.paper(),
    ]


def grids() -> dict[str, list[Candidate]]:
    """Twelve settings for each method, the mildest first."""
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


def table(seed: int) -> dict[str, Any]:
    """Table 1 for one seed: settings of the study, and tuned by either rule; oracles and peers."""
    data = synthetic(seed)
    rows: dict[str, Any] = {}
    samples = _validation(seed)
    for name, grid in grids().items():
        usual = next(m for m in five_methods() if m.name == name)
        fixed = fit(Candidate("", usual), data.clients, intercept=False)
        rows[NAMES[name]] = {"study": accuracies(fixed, data.test), "rounds": fixed.rounds}
        for rule, chosen in choose(grid, data.clients, samples, intercept=False).items():
            again = fit(chosen, data.clients, intercept=False)
            rows[NAMES[name]][rule] = {
                "accuracy": accuracies(again, data.test),
                "settings": chosen.words,
            }
    for name, theta in _references(data).items():
        rows[name] = {"study": peers.accuracies(theta, data.test)}
    return rows


def sensitivity(seed: int) -> dict[str, list[float]]:
    """Overall accuracy with ξ̄ at the clean mean plus each offset in every coordinate.

    Of DOR-FL, and of the same with clients compared in other ways and the ridge 1/n that dorfl
    gives any table; by loss also with the wrong rows left out, which no method can better.
    """
    data = synthetic(seed)
    clean = data.uncontaminated()
    sizes = [len(y) for _, y in data.clients.values()]
    mean = np.average(MEANS, axis=0, weights=sizes)
    forms = FORMS | {TOLD: mixture.agnostic(by="loss")}
    found: dict[str, list[float]] = {name: [] for name in forms}
    for offset in OFFSETS:
        score = scores.quadratic(0.5, center=mean + offset)
        for name, rule in forms.items():
            method = methods.paper(score=score, mixture=rule)
            l2 = 0.0 if name == PAPERS else 1.0 / sum(sizes)
            rows = clean if name == TOLD else data.clients
            fitted = fit(Candidate("", method, l2), rows, intercept=False)
            found[name].append(accuracies(fitted, data.test)[0])
    return found


def contamination(seed: int) -> dict[str, dict[str, list[float]]]:
    """Overall accuracy of everyone, at the settings of the study, over four sweeps.

    And of DOR-FL at the settings that dorfl finds in the rows, as it does for any table.
    """
    return {
        "share": _sweep([{"contamination": (share,) * 3} for share in SHARES], seed),
        "factor": _sweep([{"factors": (factor,) * 3} for factor in FACTORS], seed),
        "kind": _sweep([{"kind": kind} for kind in KINDS], seed),
        "client": _sweep([{"contamination": tuple(np.eye(3)[i])} for i in range(3)], seed),
    }


def _sweep(cases: list[dict[str, Any]], seed: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for case in cases:
        data = synthetic(seed, **case)
        for method in five_methods():
            fitted = fit(Candidate("", method), data.clients, intercept=False)
            score = accuracies(fitted, data.test)[0]
            found.setdefault(NAMES[method.name], []).append(score)
        ours = fit(Candidate("", arrays.choose(data.clients).method), data.clients,
                   intercept=False)  # fmt: skip
        found.setdefault(OURS, []).append(accuracies(ours, data.test)[0])
        for name, theta in _references(data).items():
            found.setdefault(name, []).append(peers.accuracies(theta, data.test)[0])
    return found


def _references(data: Dataset) -> dict[str, Array]:
    """θ trained on the clean rows alone, the true θ, and the peers."""
    clean = {name: rows for name, rows in data.uncontaminated().items() if len(rows[1])}
    bad = np.concatenate(list(data.outliers.values()))
    oracle = fit(Candidate("", methods.erm()), clean, intercept=False)
    assert data.theta is not None
    others = peers.everyone(data.clients, float(bad.mean()), intercept=False)
    return {ORACLE: oracle.theta, BAYES: data.theta, **others}


def _validation(seed: int) -> dict[str, dict[str, tuple[Array, Array]]]:
    """Rows of their own to tune on: one sample clean and unshifted, one like those to train on."""
    fresh = 1_000_000 + seed
    none = (0.0, 0.0, 0.0)
    clean = synthetic(fresh, contamination=none, shifts=none)
    return {"clean": clean.clients, "contaminated": synthetic(fresh).clients}
