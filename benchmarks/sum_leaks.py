"""Compute rows from the honest reports of a study, in the open and as sums.

    python benchmarks/sum_leaks.py [iris] [wine] [1] [3] [6] [10] [starts=8] [steps=400]

Names are tables, and numbers are those of sites in a sum; by default all. A fit has so many starts,
and each of them so many steps.

A coordinator that sends only the study's own requests knows θ of every round, and value, gradient
and Hessian of the loss at it: of each site in an open study, their sums over all sites in a summed
one. It looks for rows that would have given these numbers, by the method of Levenberg and
Marquardt. It is given more than it has: the Hessian of every round, the number of rows of each
class, and starts near the true rows, one standard deviation away in every column. Other starts are
drawn from a normal distribution, without knowledge of the rows. Of several starts it takes the one
that explains the numbers best, which it can tell without the rows.

A true row counts as found if a computed row of its class is within 0.01 standard deviations of it
in every column. The last column says whether the saturation rule lets the study begin.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
from scipy.optimize import OptimizeResult, least_squares
from sklearn.datasets import load_iris, load_wine

import dorfl
from dorfl.federated import training
from dorfl.federated.options import Options
from dorfl.site.policy import Policy

TABLES = {"iris": load_iris, "wine": load_wine}
ROWS = 30  # of a site
SITES = (1, 3, 6, 10)  # in a sum; 1 is an open study
CLOSE = 0.01  # standard deviations
LIMITS = {"starts": 8, "steps": 400}  # starts, until one explains the numbers
EXACT = 1e-20  # half the sum of squared errors at which numbers count as explained
STARTS = {"1 sd away": True, "none": False}


def course(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return θ of every round of an honest training (rounds, classes, columns + 1)."""
    thetas: list[np.ndarray] = []

    def note(sent, report):
        thetas.append(sent.task.theta)
        return report

    options = Options(loss="logistic" if y.max() == 1 else "softmax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.train({"all": (X, y)}, dorfl.methods.erm(), options, tamper=note)
    return np.array(thetas).reshape(len(thetas), -1, X.shape[1] + 1)


def reports(thetas: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return each row's part of value, gradient and Hessian of all rounds, (rows, numbers)."""
    ones = np.ones((len(X), 1))
    rows = np.hstack([X, ones])
    low = np.tril_indices(thetas.shape[1] * rows.shape[1])
    parts = []
    for theta in thetas:
        scores = rows @ theta.T
        if len(theta) == 1:  # two classes: the first one's scores are 0
            scores = np.hstack([0.0 * scores, scores])
        scores = scores - scores.real.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        p = odds / odds.sum(axis=1, keepdims=True)
        value = np.log(odds.sum(axis=1)) - scores[np.arange(len(X)), y]
        residual = p.copy()
        residual[np.arange(len(X)), y] -= 1.0
        residual, p = residual[:, -len(theta) :], p[:, -len(theta) :]
        gradient = (residual[:, :, None] * rows[:, None, :]).reshape(len(X), -1)
        covariance = p[:, :, None] * (np.eye(theta.shape[0]) - p[:, None, :])
        hessian = np.einsum("nab,nj,nk->najbk", covariance, rows, rows)
        size = gradient.shape[1]
        hessian = hessian.reshape(len(X), size, size)[:, low[0], low[1]]
        parts.append(np.hstack([value[:, None], gradient, hessian]))
    return np.hstack(parts)


def jacobian(thetas: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return (numbers, rows · columns): derivatives of the sums, by complex steps."""
    columns = []
    for j in range(X.shape[1]):
        moved = X.astype(complex)
        moved[:, j] += 1e-30j
        columns.append(reports(thetas, moved, y).imag / 1e-30)
    return np.stack(columns, axis=1).reshape(X.size, -1).T


def fit_rows(
    thetas: np.ndarray, sums: np.ndarray, start: np.ndarray, y: np.ndarray
) -> OptimizeResult:
    """Return rows whose reports add up to the sums (as `x`), by Levenberg and Marquardt."""

    def wrong(rows: np.ndarray) -> np.ndarray:
        return reports(thetas, rows.reshape(start.shape), y).sum(axis=0) - sums

    def derivatives(rows: np.ndarray) -> np.ndarray:
        return jacobian(thetas, rows.reshape(start.shape), y)

    exact = dict.fromkeys(("ftol", "xtol", "gtol"), 1e-15)
    return least_squares(
        wrong, start.ravel(), derivatives, method="lm", max_nfev=LIMITS["steps"], **exact
    )


def count_found(true: np.ndarray, computed: np.ndarray, y: np.ndarray) -> int:
    """Return how many true rows are within CLOSE of a computed one of their class."""
    apart = np.abs(true[:, None, :] - computed[None, :, :]).max(axis=2)
    apart[y[:, None] != y[None, :]] = np.inf
    return int((apart.min(axis=1) <= CLOSE).sum())


def run(name: str, counts: list[int] | None = None) -> None:
    """Print the rows of one table, for each number of sites."""
    X, y = TABLES[name](return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    X, y = ((X - X.mean(axis=0)) / X.std(axis=0))[order], y[order]
    for sites in counts or SITES:
        rows = min(ROWS, len(y) // sites)
        own, labels = X[: sites * rows], y[: sites * rows]
        if len(np.unique(labels)) < len(np.unique(y)):
            continue
        thetas = course(own, labels)
        sums = reports(thetas, own, labels).sum(axis=0)
        columns = thetas.shape[2]
        cells = []
        for near in STARTS.values():
            fits = []
            for _ in range(LIMITS["starts"]):
                noise = rng.normal(size=own.shape)
                fits.append(fit_rows(thetas, sums, own + noise if near else noise, labels))
                if fits[-1].cost < EXACT:  # the coordinator sees that the numbers are explained
                    break
            computed = min(fits, key=lambda fit: fit.cost).x.reshape(own.shape)
            found = count_found(own, computed, labels)
            cells.append(f"{found} of {len(labels)}, start {len(fits)}")
        lets = "yes" if columns <= Policy().parameters_per_row * len(labels) else "no"
        what = "open, one site" if sites == 1 else f"sums of {sites} sites"
        print(f"| {name} | {what} of {rows} rows | {' | '.join(cells)} | {lets} |", flush=True)


if __name__ == "__main__":
    print(f"| table | reports | {' | '.join('start: ' + s for s in STARTS)} | rule lets it begin |")
    print("| --- " * 5 + "|")
    counts = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    given = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
    LIMITS.update({name: int(value) for name, value in given.items()})
    for table in [word for word in sys.argv[1:] if word in TABLES] or TABLES:
        run(table, counts)
