"""Detect fits that are worthless although the solver converged, and say what to try."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import entr

from dorfl.linear.group import Group
from dorfl.support.types import Array

NO_BETTER = 1e-6  # relative margin by which a model must beat a constant prediction
INLIER = 0.5  # of an even weight, from which on a row is an inlier
NO_WEIGHT = 0.01  # share of its proportional weight below which a client or class has none


class FitWarning(UserWarning):
    """A fit that converged is of no use for some or all rows."""


def diagnose(group: Group, theta: Array, lam: Array, weights: Sequence[Array]) -> list[str]:
    """Return warnings about a fit: no better than a constant, or a client or class ignored.

    `weights` are the sample weights p of each client's rows, which sum to 1.
    """
    problem, counts = group.problem, group.counts
    sizes = lam if problem.method.mixture.adversarial else counts / counts.sum()
    weights = [_even_over_inliers(p) for p in weights]
    rows = np.concatenate([size * p for size, p in zip(sizes, weights, strict=True)])
    losses = problem.loss.value(problem.predict(theta, group.rows), group.target)
    by_client = np.array(
        [float(p @ losses[a:b]) for p, a, b in _slices(group, weights)], dtype=float
    )
    found = []
    loss, constant = float(sizes @ by_client), _constant_loss(group, rows)
    if not loss < constant * (1.0 - NO_BETTER):
        found.append(
            f"the model is no better than a constant prediction: its mean loss on inliers is "
            f"{loss:.4g}, the constant's {constant:.4g}. {_ADVICE}"
        )
    return (
        found + _ignored_clients(group, lam, by_client, weights) + _ignored_classes(group, weights)
    )


_ADVICE = (
    "Parameters in the wrong units are the usual cause: use dorfl.methods.dorfl(), which measures "
    "them, or standardise the columns."
)


def _even_over_inliers(p: Array) -> Array:
    """Return even weights of the rows that keep at least half of an even weight."""
    inliers = p * len(p) >= INLIER
    return np.asarray(inliers / max(int(inliers.sum()), 1))


def _slices(group: Group, weights: Sequence[Array]) -> list[tuple[Array, int, int]]:
    ends = group.bounds.tolist()
    return list(zip(weights, ends[:-1], ends[1:], strict=True))


def _constant_loss(group: Group, weights: Array, rows: slice = slice(None)) -> float:
    """Return the loss of the best constant prediction under these weights of these rows."""
    loss, target = group.problem.loss, group.target[rows]
    if loss.classifies:
        codes = np.unique(target, return_inverse=True)[1]
        return float(entr(np.bincount(codes, weights)).sum())
    order = np.argsort(target, kind="stable")
    median = target[order][np.searchsorted(np.cumsum(weights[order]), 0.5 * weights.sum())]
    guesses = (float(median), float(np.average(target, weights=weights)))
    return min(
        float(weights @ loss.value(np.full(len(target), guess), target)) for guess in guesses
    )


def _ignored_clients(
    group: Group, lam: Array, losses: Array, weights: Sequence[Array]
) -> list[str]:
    """Warn of clients without weight in λ to which the model is no better than a constant."""
    if group.problem.method.mixture.by != "risk":
        return []
    constants = [_constant_loss(group, p, slice(a, b)) for p, a, b in _slices(group, weights)]
    least = np.maximum(constants, float(lam @ losses))
    return list_ignored_clients(group.names, lam, losses, least)


def list_ignored_clients(
    names: Sequence[str], lam: Array, losses: Array, least: Array | float
) -> list[str]:
    """Return a warning if clients have no weight in λ although their loss is above `least`."""
    ignored = (lam * len(lam) < NO_WEIGHT) & (losses > least)
    if not ignored.any():
        return []
    worst = int(np.argmax(np.where(ignored, losses, -np.inf)))
    return [
        f"{int(ignored.sum())} client(s) have no weight in the mixture although their loss is "
        f"higher, such as {names[worst]!r} (loss {losses[worst]:.4g}, the mixture's "
        f"{float(lam @ losses):.4g}). A score lowers the risk of clients far from its centre. Use "
        'mixture.agnostic(by="loss"), or dorfl.methods.dorfl().'
    ]


def _ignored_classes(group: Group, p: Sequence[Array]) -> list[str]:
    """Warn of classes whose rows have together nearly no weight at their clients."""
    problem = group.problem
    total = group.counts.sum()
    weights = np.concatenate([len(own) / total * own for own in p])
    if not problem.loss.classifies or problem.method.score is None:
        return []
    labels, codes = np.unique(problem.decode(group.target), return_inverse=True)
    even = np.full(len(codes), 1.0 / total)
    share = np.bincount(codes, weights) / np.bincount(codes, even)
    few = np.flatnonzero(share < NO_WEIGHT)
    if not len(few):
        return []
    named = ", ".join(str(labels[k]) for k in few[:3])
    return [
        f"all rows of {len(few)} class(es) ({named}) are treated as outliers and have no weight. "
        "Use centres per class, a smaller outlier share, or dorfl.methods.dorfl()."
    ]
