"""Train neural networks with nothing but defaults: `dorfl.train(clients, model=net)`.

Clients are random, have one class each, or differ by Dirichlet(0.5) shares of classes. Rows are
clean, or one in ten is multiplied by −8. Every method has the default plan. Beside the default
method are FedAvg (`erm`) and AFL, with which the default with a worst mixture is compared. The
table shows test accuracy / accuracy in the worst class, means over seeds.

A clean cell is met if the default is within a standard error of the better of FedAvg and AFL. The
standard error is the larger one of the paired difference over seeds and of the test accuracy. A
contaminated cell is met if the default keeps 80 % of what outliers cost the better of FedAvg and
AFL. Cells that cost them less than a point show "–".

    pip install 'dorfl[torch]' scikit-learn
    PYTHONPATH=. python benchmarks/network_defaults.py [--seeds 3] [--data digits]
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import dorfl
from dorfl import methods, networks
from experiments.data import fashion_mnist

SPLITS = ("random", "one class each", "Dirichlet 0.5")
OUTLIERS = 0.1  # share of rows that are multiplied by −8
LEAST_LOSS = 1.0  # points of accuracy that outliers must cost for "kept" to mean something
MUST_KEEP = 0.8  # of that
METHODS = {
    "FedAvg": methods.erm(),
    "AFL": methods.afl(),
    "default": None,
    "default, agnostic": methods.dorfl(mixture="agnostic"),
}


class Rows(NamedTuple):
    """Training and test rows with class numbers."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def digits(seed: int, *, standardised: bool = False) -> Rows:
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32) / 16.0
    if standardised:
        X = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1.0)
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[:600], order[600:]
    return Rows(X[train], y[train], X[test], y[test])


def fashion(seed: int) -> Rows:
    """T-shirt, pullover and shirt: 700 training and 500 test rows of each, drawn anew."""
    data = fashion_mnist()
    rng, parts = np.random.default_rng(seed), []
    for k, (X, _) in enumerate(data.clients.values()):
        drawn = X[rng.choice(len(X), 1_200, replace=False)]
        parts.append((drawn[:700], np.full(700, k), drawn[700:], np.full(500, k)))
    return Rows(*(np.concatenate(part) for part in zip(*parts, strict=True)))


DATA = {
    "digits": digits,
    "digits, standardised": lambda seed: digits(seed, standardised=True),
    "Fashion-MNIST, 3 classes": fashion,
}


def divide(y: np.ndarray, how: str, rng: np.random.Generator) -> np.ndarray:
    """Return the client of every row; there are as many clients as classes."""
    count = len(np.unique(y))
    if how == "random":
        return rng.integers(0, count, len(y))
    if how == "one class each":
        return y
    while True:  # until every client has some rows
        owner = np.empty(len(y), dtype=int)
        for k in range(count):
            own = np.flatnonzero(y == k)
            owner[own] = rng.choice(count, len(own), p=rng.dirichlet(np.full(count, 0.5)))
        if np.bincount(owner, minlength=count).min() >= 10:
            return owner


def cell(name: str, how: str, bad: float, seed: int) -> dict[str, tuple[float, float]]:
    """Return accuracy and worst class of every method, in percent."""
    rows, rng = DATA[name](seed), np.random.default_rng([seed, 1])
    owner = divide(rows.y, how, rng)
    X = rows.X.copy()
    X[rng.random(len(X)) < bad] *= -8.0
    clients = {f"client-{k}": (X[owner == k], rows.y[owner == k]) for k in np.unique(owner)}
    classes = np.unique(rows.y)
    found = {}
    for method_name, method in METHODS.items():
        fit = dorfl.train(
            clients, method, classes=classes, seed=seed,
            model=lambda: networks.mlp(X.shape[1], (32,), len(classes)),
        )  # fmt: skip
        right = fit.predict(rows.X_test) == rows.y_test
        worst = min(right[rows.y_test == k].mean() for k in classes)
        found[method_name] = (100.0 * float(right.mean()), 100.0 * float(worst))
    return found


def margin(one: np.ndarray, other: np.ndarray, rows: int) -> float:
    """Return a standard error of the difference of accuracies: over seeds, and of test rows."""
    seeds = float(np.std(one - other, ddof=1)) / np.sqrt(len(one)) if len(one) > 1 else 0.0
    share = float(np.mean(other)) / 100.0
    return max(seeds, 100.0 * float(np.sqrt(share * (1.0 - share) / (rows * len(one)))))


def main(console: Console) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=list(DATA))
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("data", "clients", "rows", *METHODS, "clean: default, agnostic", "kept")
    started, met = time.process_time(), []
    for name in given.data:
        tests = len(DATA[name](0).y_test)
        for how in SPLITS:
            clean: dict[str, np.ndarray] = {}
            for bad in (0.0, OUTLIERS):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = [cell(name, how, bad, seed) for seed in range(given.seeds)]
                accuracy = {m: np.array([one[m][0] for one in found]) for m in METHODS}
                shown = [
                    f"{accuracy[m].mean():.1f} / {np.mean([one[m][1] for one in found]):.0f}"
                    for m in METHODS
                ]
                if not bad:
                    clean = accuracy
                    best = max(("FedAvg", "AFL"), key=lambda m: float(clean[m].mean()))
                    fine = [
                        accuracy[m].mean()
                        >= accuracy[b].mean() - margin(accuracy[m], accuracy[b], tests)
                        for m, b in (("default", best), ("default, agnostic", "AFL"))
                    ]
                    met += fine
                    verdict = [", ".join("met" if one else "missed" for one in fine), ""]
                else:
                    before, after = (
                        max(float(part[m].mean()) for m in ("FedAvg", "AFL"))
                        for part in (clean, accuracy)
                    )
                    lost, gain = before - after, float(accuracy["default"].mean()) - after
                    kept = gain / max(lost, LEAST_LOSS)
                    verdict = ["", "–" if lost < LEAST_LOSS else f"{100.0 * kept:.0f} %"]
                    if lost >= LEAST_LOSS:
                        met.append(kept >= MUST_KEEP)
                table.add_row(
                    name, how, f"{100 * bad:.0f} % × −8" if bad else "clean", *shown, *verdict
                )
                console.print(name, how, bad, *shown, *verdict)
    console.print(table)
    console.print(
        f"{sum(met)} of {len(met)} met; {time.process_time() - started:.0f} s of processor time"
    )


if __name__ == "__main__":
    main(Console(width=160))
