"""Detect neural networks that have learnt nothing, or nothing of a client or class."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dorfl.networks.client import Fleet
from dorfl.networks.device import array, tensor
from dorfl.networks.oracle import blocks_of
from dorfl.objective.methods import Method
from dorfl.support.types import Array

NO_BETTER = 1e-6  # relative margin by which a network must beat a constant prediction
NO_WEIGHT = 0.01  # share of its proportional weight below which a client or class has none
INLIER = 0.5  # relative weight from which on a row counts as an inlier
MIN_ROWS = 5  # inliers of a client or class that its accuracy is judged by
_NAMED = 3  # clients or classes that a warning names


def diagnose(
    fleet: Fleet, method: Method, theta: Tensor, lam: Array, weights: list[Array]
) -> list[str]:
    """Return warnings about a trained network.

    Parameters
    ----------
    fleet
        The clients with their rows.
    method
        The method that the network was trained by.
    theta
        Trained parameters.
    lam
        (clients,) mixture λ.
    weights
        For each client, the sample weights p of its rows, which sum to 1.

    Returns
    -------
    list of str
        One sentence for each defect, with what to try; empty if there is none.
    """
    rows = fleet.rows
    relative = np.concatenate([len(p) * p for p in weights])  # 1: counts in full
    outputs, losses, labels = _outputs(fleet, theta)
    mean = relative / relative.sum()
    loss, constant = float(mean @ losses), _constant_loss(fleet, outputs, labels, mean)
    found = []
    if not loss < constant - NO_BETTER * abs(constant):
        found.append(
            f"the network is no better than a constant prediction: its mean loss on inliers is "
            f"{loss:.4g}, the constant's {constant:.4g}. Try more rounds (rounds=), standardised "
            "inputs, or a lower rate of the server (server_optimizer=networks.adam(0.001))."
        )
    found += _ignored_clients(fleet, method, lam, mean, losses)
    if not len(rows.classes) or labels.ndim > 1:
        return found
    predicted = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    codes = array(labels)
    right = array(predicted) == codes
    by_class = _never_right(right, codes, relative, rows.classes)
    owners = np.repeat(np.arange(len(rows.names)), rows.counts)
    by_client = _never_right(right, owners, relative, np.array(rows.names, dtype=object))
    for kind, names in (("class(es)", by_class), ("client(s)", by_client)):
        if names:
            found.append(
                f"the network is wrong on every inlier of {len(names)} {kind}, such as "
                f"{', '.join(names[:_NAMED])}. Try more rounds (rounds=), a worst mixture "
                '(methods.dorfl(mixture="agnostic")), or fewer local steps.'
            )
    return found + _ignored_classes(fleet, method, relative, codes)


def _outputs(fleet: Fleet, theta: Tensor) -> tuple[Tensor, Array, Tensor]:
    """Return outputs (n, k), losses (n,) and labels of all rows where they are.

    Of sequences, whose outputs may differ in shape, there are no outputs and labels.
    """
    outputs, losses, labels = [], [], []
    for i in range(len(fleet.rows.names)):
        for batch in blocks_of(fleet.rows, i, fleet.plan.seed):
            with torch.no_grad(), fleet.network.evaluating():
                out = fleet.network.outputs(theta[None], batch.x)[0]
                losses.append(array(fleet.robust.loss(out, batch.y[0])).astype(np.float64))
            outputs.append(out)
            labels.append(batch.y[0])
    if outputs[0].ndim != 2 or labels[0].ndim != 1:
        return theta.new_zeros(0, 0), np.concatenate(losses), theta.new_zeros(0, 0)
    return torch.cat(outputs), np.concatenate(losses), torch.cat(labels)


def _constant_loss(fleet: Fleet, outputs: Tensor, labels: Tensor, weights: Array) -> float:
    """Return the least loss of a constant output: the classes' log frequencies, or a location."""
    rows, loss = fleet.rows, fleet.robust.loss
    if labels.ndim > 1:
        return np.inf
    if len(rows.classes):
        share = np.bincount(array(labels), weights, len(rows.classes)).clip(min=1e-12)
        logits = np.log(share) if outputs.shape[1] > 1 else np.log(share[1:] / share[:1])
        guesses = [tensor(logits, outputs)]
    else:
        y = array(labels).astype(np.float64)
        order = np.argsort(y, kind="stable")
        median = y[order][np.searchsorted(np.cumsum(weights[order]), 0.5 * weights.sum())]
        guesses = [tensor([place], outputs) for place in (median, float(weights @ y))]
    if any(len(guess) != outputs.shape[1] for guess in guesses):
        return np.inf  # outputs that a loss of the user's own reads in another way
    with torch.no_grad():
        return min(
            float(weights @ array(loss(guess.expand(len(labels), -1), labels)).astype(np.float64))
            for guess in guesses
        )


def _never_right(right: Array, groups: Array, relative: Array, names: Array) -> list[str]:
    """Return the names of groups none of whose inliers is classified correctly."""
    inlier = relative >= INLIER
    count = np.bincount(groups[inlier], minlength=len(names))
    hits = np.bincount(groups[inlier & right], minlength=len(names))
    return [str(names[k]) for k in np.flatnonzero((count >= MIN_ROWS) & (hits == 0))]


def _ignored_clients(
    fleet: Fleet, method: Method, lam: Array, mean: Array, losses: Array
) -> list[str]:
    """Warn of clients without weight in λ although their loss is above that of the mixture."""
    if method.mixture.by != "risk" or method.score is None:
        return []
    rows = fleet.rows
    first = np.cumsum(rows.counts) - rows.counts
    sums = np.add.reduceat(mean * losses, first) / np.add.reduceat(mean, first)
    level = float(lam @ sums)
    ignored = (lam * len(lam) < NO_WEIGHT) & (sums > level * (1.0 + NO_BETTER) + NO_BETTER)
    if not ignored.any():
        return []
    worst = int(np.argmax(np.where(ignored, sums, -np.inf)))
    return [
        f"{int(ignored.sum())} client(s) have no weight in the mixture although their loss is "
        f"higher, such as {rows.names[worst]!r} (loss {sums[worst]:.4g}, the mixture's "
        f'{level:.4g}): the score lowers their risk. Use mixture.agnostic(by="loss"), or '
        "dorfl.methods.dorfl()."
    ]


def _ignored_classes(fleet: Fleet, method: Method, relative: Array, codes: Array) -> list[str]:
    """Warn of classes whose rows have together nearly no weight."""
    if method.score is None and fleet.robust.score is None:
        return []
    rows = fleet.rows
    count = np.bincount(codes, minlength=len(rows.classes))
    share = np.bincount(codes, relative, len(rows.classes)) / np.maximum(count, 1)
    few = np.flatnonzero((count > 0) & (share < NO_WEIGHT))
    if not len(few):
        return []
    named = ", ".join(str(rows.classes[k]) for k in few[:_NAMED])
    return [
        f"all rows of {len(few)} class(es) ({named}) have nearly no weight: the score treats them "
        "as outliers, or the tilt follows much larger losses of other rows. Try dorfl.methods."
        "dorfl(), a smaller outlier share, standardised inputs, or a bound on the loss (max_loss=)."
    ]
