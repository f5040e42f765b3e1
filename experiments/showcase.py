"""One training in detail: rows, their weights, λ over the rounds, and certificates."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from dorfl.certificates.certified import Bounds, certify
from dorfl.data.datasets import synthetic
from dorfl.federated.training import train
from dorfl.objective import methods, scores
from dorfl.solvers import Paper
from experiments.tuning import Candidate, fit

Curve = list[tuple[float, Bounds]]
STEPS = 10_000  # of Algorithm 1: more than it is ever given, to see where it goes


def training(seed: int) -> dict[str, Any]:
    """Train DOR-FL at the settings of the study on the synthetic data of one seed."""
    data = synthetic(seed)
    trained = train(data.clients, methods.paper(), intercept=False)
    rows = np.concatenate([X for X, _ in data.clients.values()])
    wrong = np.concatenate(list(data.outliers.values()))
    # 1 for an ordinary row of its client, whatever the client's size
    weight = np.concatenate([w * len(w) for w in trained.sample_weights.values()])
    return {
        "rows": rows[:, :2].tolist(),
        "outlier": wrong.tolist(),
        "weight": weight.tolist(),
        "area": float(roc_auc_score(wrong, -weight)),
        "precision": float(average_precision_score(wrong, -weight)),
        "lam": [round_.lam.tolist() for round_ in trained.history],
    }


def promises(seed: int) -> dict[str, Any]:
    """Certify ERM and DOR-FL over drift and the share of outliers, as `docs/gallery` does.

    One row in ten is an outlier, in training and among the rows to certify on, and models have an
    intercept. DOR-FL also at a price of moving rows that is a quarter of the study's. Accuracy is
    bounded with 95 % confidence for rows to come, from ten times as many rows that no model was
    trained on. The loss is bounded in sample, on the training rows.
    """
    shares = (0.1, 0.1, 0.1)
    data = synthetic(seed, contamination=shares)
    new = synthetic(seed + 1, contamination=shares, sizes=(1000, 2000, 5000))
    inliers = [
        (X[~new.outliers[name]], y[~new.outliers[name]]) for name, (X, y) in new.clients.items()
    ]
    found: dict[str, Any] = {}
    for name, method in (
        ("ERM", methods.erm()),
        ("DOR-FL", methods.paper()),
        ("DOR-FL, ρ = 5", methods.paper(rho=5.0, beta=4.0, score=scores.quadratic(0.125))),
    ):
        trained = train(data.clients, method)
        sure = certify(trained, new.clients, 0.1, 0.1, reference=data.clients)
        here = certify(trained, data.clients, 0.1, 0.1, confidence=None)
        right = [trained.predict(X) == y for X, y in inliers]
        found[name] = {
            "accuracy": float(np.concatenate(right).mean()),
            "words": f"{name}: {sure} {here}",
            "drift": _both(sure.over_drift(), here.over_drift()),
            "share": _both(sure.over_outliers(), here.over_outliers()),
        }
    return found


def _both(sure: Curve, here: Curve) -> list[tuple[float, float | None, float | None]]:
    """Return the accuracy of one curve beside the loss of another."""
    return [
        (at, one.accuracy, other.loss) for (at, one), (_, other) in zip(sure, here, strict=True)
    ]


def convergence(seed: int) -> dict[str, dict[str, list[float]]]:
    """Return max_i F_i above its minimum by round, for the three solvers."""
    data, method = synthetic(seed), methods.paper()
    best = train(data.clients, method, tol=1e-9, intercept=False).objective
    found = {}
    for solver in ("sqp", "optimistic"):
        done = fit(
            Candidate(solver, method), data.clients, solver=solver, tol=1e-8, max_rounds=2000,
            intercept=False,
        )  # fmt: skip
        heights = np.minimum.accumulate([line.objective for line in done.history])
        found[solver] = _curve(np.arange(1, len(heights) + 1), heights - best)
    rounds = np.array([10, 100, 1000, STEPS])
    excess = [
        train(
            data.clients, method, solver=Paper(rounds=int(T)), seed=seed, intercept=False
        ).objective
        - best
        for T in rounds
    ]
    found["Algorithm 1"] = _curve(rounds, np.array(excess))
    return found


def _curve(rounds: Any, excess: Any) -> dict[str, list[float]]:
    seen = excess > 1e-12
    return {"rounds": rounds[seen].tolist(), "excess": excess[seen].tolist()}
