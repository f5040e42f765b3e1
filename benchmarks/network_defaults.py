"""Train neural networks with nothing but defaults: `dorfl.train(clients, model=net)`.

Clients are random, have one class each, or differ by Dirichlet(0.5) shares of classes. Rows are
clean, one in ten is multiplied by −8, or one in five has a wrong label (the next class). Every
method has the default plan. Beside the default method are FedAvg (`erm`) and AFL. The table shows
test accuracy / accuracy in the worst class, means over seeds; conditions are on the worst class.

- Clean: the default is at most two points below the better of FedAvg and AFL.
- Outliers: the default keeps 80 % of what they cost the better of FedAvg and AFL. Cells that cost
  less than a point show "–".
- Wrong labels: the default is not below AFL by more than a standard error of the difference, the
  larger one of that over seeds and that of the test rows.

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
ROWS = {"clean": 0.0, "10 % × −8": 0.1, "20 % wrong labels": 0.2}  # share of wrong rows
ALLOWED = 2.0  # points below the better of FedAvg and AFL on clean rows
LEAST_LOSS = 1.0  # points of accuracy that outliers must cost for "kept" to mean something
MUST_KEEP = 0.8  # of that
METHODS = {
    "FedAvg": methods.erm(),
    "AFL": methods.afl(),
    "default": None,
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


def cell(name: str, how: str, kind: str, seed: int) -> dict[str, tuple[float, float]]:
    """Return accuracy and worst class of every method, in percent."""
    rows, rng = DATA[name](seed), np.random.default_rng([seed, 1])
    owner, X, y = divide(rows.y, how, rng), rows.X.copy(), rows.y.copy()
    wrong, classes = rng.random(len(X)) < ROWS[kind], np.unique(rows.y)
    if "labels" in kind:
        y[wrong] = (y[wrong] + 1) % len(classes)
    else:
        X[wrong] *= -8.0
    clients = {f"client-{k}": (X[owner == k], y[owner == k]) for k in np.unique(owner)}
    found = {}
    for method_name, method in METHODS.items():
        fit = dorfl.train(
            clients,
            method,
            classes=classes,
            seed=seed,
            model=lambda: networks.mlp(X.shape[1], (32,), len(classes)),
        )
        right = fit.predict(rows.X_test) == rows.y_test
        worst = min(right[rows.y_test == k].mean() for k in classes)
        found[method_name] = (100.0 * float(right.mean()), 100.0 * float(worst))
    return found


def margin(one: np.ndarray, other: np.ndarray, rows: int) -> float:
    """Return a standard error of the difference of accuracies: over seeds, and of test rows."""
    seeds = float(np.std(one - other, ddof=1)) / np.sqrt(len(one)) if len(one) > 1 else 0.0
    share = float(np.mean(other)) / 100.0
    return max(seeds, 100.0 * float(np.sqrt(share * (1.0 - share) / (rows * len(one)))))


def verdict(kind: str, clean: dict[str, np.ndarray], now: dict[str, np.ndarray], rows: int) -> str:
    """Return whether the default meets the condition of such rows, from worst classes by seed."""
    mean = {name: float(values.mean()) for name, values in now.items()}
    if kind == "clean":
        below = max(mean["FedAvg"], mean["AFL"]) - mean["default"]
        return f"{'met' if below <= ALLOWED else 'missed'}: {-below:+.1f}"
    if "labels" in kind:
        below, error = mean["AFL"] - mean["default"], margin(now["default"], now["AFL"], rows)
        return f"{'met' if below <= error else 'missed'}: {-below:+.1f} (± {error:.1f})"
    before, after = (max(float(part[m].mean()) for m in ("FedAvg", "AFL")) for part in (clean, now))
    lost = before - after
    if lost < LEAST_LOSS:
        return "–"
    kept = (mean["default"] - after) / lost
    return f"{'met' if kept >= MUST_KEEP else 'missed'}: {100.0 * kept:.0f} % kept"


def main(console: Console) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=list(DATA))
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("data", "clients", "rows", *METHODS, "default")
    started = time.process_time()
    for name in given.data:
        per_class = len(DATA[name](0).y_test) // len(np.unique(DATA[name](0).y_test))
        for how in SPLITS:
            clean: dict[str, np.ndarray] = {}
            for kind in ROWS:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = [cell(name, how, kind, seed) for seed in range(given.seeds)]
                worst = {m: np.array([one[m][1] for one in found]) for m in METHODS}
                clean = clean or worst
                shown = [
                    f"{np.mean([one[m][0] for one in found]):.1f} / {worst[m].mean():.0f}"
                    for m in METHODS
                ]
                line = (name, how, kind, *shown, verdict(kind, clean, worst, per_class))
                table.add_row(*line)
                console.print(*line, f"{time.process_time() - started:.0f} s", sep=" | ")
    console.print(table)


if __name__ == "__main__":
    main(Console(width=160))
