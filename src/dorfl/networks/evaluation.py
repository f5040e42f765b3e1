"""Evaluate a network on all rows: held-out rows, and defects of a trained network.

:func:`evaluate_rows` returns loss and accuracy of held-out rows during a training.
:func:`diagnose` returns a warning if the trained network learnt nothing, or nothing of a client or
class. Robust risks at one θ are in :class:`~dorfl.networks.client.Fleet`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dorfl.federated.diagnostics import INLIER, NO_BETTER, NO_WEIGHT, list_ignored_clients
from dorfl.networks.client import Fleet
from dorfl.networks.data import Rows
from dorfl.networks.device import array, tensor
from dorfl.networks.model import Network
from dorfl.networks.supremum import RowLoss, logistic
from dorfl.support.types import Array

MIN_ROWS = 5  # inliers of a client or class that its accuracy is judged by
_NAMED = 3  # clients or classes that a warning names
_ADVICE = (
    "Try more rounds (rounds=), standardised inputs, or a lower rate of the server "
    "(server_optimizer=networks.adam(0.001))."
)


# ── held-out rows ───────────────────────────────────────────────────────────────────────────────


class ClientFigures(NamedTuple):
    """Loss and accuracy on a client's held-out rows.

    `score` is the accuracy, NaN for a regression; of several labels of a row, each counts.
    """

    rows: int
    loss: float
    score: float


class RoundEvaluation(NamedTuple):
    """Held-out rows after a round, by client."""

    round: int
    clients: dict[str, ClientFigures]

    def objective(self, *, worst: bool) -> float:
        """Return the loss of the worst client, or the mean over rows."""
        losses = np.array([one.loss for one in self.clients.values()])
        return float(losses.max() if worst else losses @ self._shares())

    def metrics(self) -> dict[str, float]:
        """Return means over rows, and the worst client's figures."""
        found = {"held_out/loss": self.objective(worst=False)}
        found["held_out/worst_client_loss"] = self.objective(worst=True)
        scores = np.array([one.score for one in self.clients.values()])
        if np.isfinite(scores).all():
            found["held_out/accuracy"] = float(scores @ self._shares())
            found["held_out/worst_client_accuracy"] = float(scores.min())
        return found

    def _shares(self) -> Array:
        counts = np.array([one.rows for one in self.clients.values()], dtype=float)
        return np.asarray(counts / counts.sum())


def evaluate_rows(
    network: Network, theta: Tensor, rows: Rows, loss: RowLoss,
    decide: Callable[[Array], Array], number: int, seed: int,
) -> RoundEvaluation:  # fmt: skip
    """Return the loss and score of every client's rows; `decide` makes labels of outputs."""
    found: dict[str, ClientFigures] = {}
    for i, name in enumerate(rows.names):
        losses, right = [], []
        for out, y, own in _passes(network, theta, rows, i, loss, seed):
            losses.append(own)
            if len(rows.classes):
                right.append((decide(array(out)) == rows.classes[array(y)]).ravel())
        score = float(np.concatenate(right).mean()) if right else np.nan
        mean = float(np.concatenate(losses).mean())
        found[name] = ClientFigures(int(rows.counts[i]), mean, score)
    return RoundEvaluation(number, found)


def read_evaluations(written: Mapping[str, Any]) -> list[RoundEvaluation]:
    """Return evaluations from JSON, by round."""
    return [
        RoundEvaluation(int(number), {name: ClientFigures(*one) for name, one in clients.items()})
        for number, clients in written.items()
    ]


def _passes(
    network: Network, theta: Tensor, rows: Rows, client: int, loss: RowLoss, seed: int
) -> Iterator[tuple[Tensor, Tensor, Array]]:
    """Return outputs, labels and losses of a client's rows, some rows at a time."""
    for batch in rows.blocks(client, seed):
        with torch.no_grad(), network.evaluating():
            out = network.outputs(theta[None], batch.x)[0]
            yield out, batch.y[0], array(loss(out, batch.y[0])).astype(np.float64)


# ── defects of a trained network ────────────────────────────────────────────────────────────────


class _Block(NamedTuple):
    """What is kept of a pass over some rows; outputs are not, because they may be large."""

    labels: Tensor
    losses: Array
    like: Tensor  # (1, …) outputs of one row
    low: Tensor  # smallest and largest output in every place
    high: Tensor
    codes: Array | None  # predicted class numbers, if a row has one label


def diagnose(fleet: Fleet, theta: Tensor, lam: Array, weights: list[Array]) -> list[str]:
    """Return warnings about a trained network.

    Parameters
    ----------
    fleet
        The clients with their rows.
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
    blocks = [
        _block(rows, out, y, losses)
        for i in range(len(rows.names))
        for out, y, losses in _passes(
            fleet.network, theta, rows, i, fleet.robust.loss, fleet.plan.seed
        )
    ]
    losses = np.concatenate([block.losses for block in blocks])
    mean = relative / relative.sum()
    found = _constant(fleet, blocks, mean, float(mean @ losses))
    found += _ignored_clients(fleet, lam, mean, losses)
    if not len(rows.classes) or any(block.codes is None for block in blocks):
        return found
    codes = np.concatenate([array(block.labels) for block in blocks])
    right = np.concatenate([block.codes for block in blocks if block.codes is not None]) == codes
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
    return found + _ignored_classes(fleet, relative, codes)


def _block(rows: Rows, out: Tensor, y: Tensor, losses: Array) -> _Block:
    codes = None
    if len(rows.classes) and out.ndim == 2 and y.ndim == 1:
        codes = array(out.argmax(1) if out.shape[1] > 1 else (out[:, 0] > 0).long())
    return _Block(y, losses, out[:1].clone(), out.amin(0), out.amax(0), codes)


def _constant(fleet: Fleet, blocks: list[_Block], mean: Array, loss: float) -> list[str]:
    """Warn of a network that is no better than one with the same outputs for every row."""
    if len({block.low.shape for block in blocks}) == 1:
        low = torch.stack([block.low for block in blocks]).amin(0)
        high = torch.stack([block.high for block in blocks]).amax(0)
        if bool((high - low <= NO_BETTER * (1.0 + low.abs())).all()):
            return [f"the network has the same outputs for every row. {_ADVICE}"]
    guesses = _guesses(fleet, blocks, mean)
    if not guesses:
        return []
    constant, ends = np.inf, np.cumsum([0, *(len(block.losses) for block in blocks)])
    for guess in guesses:
        total = 0.0
        for block, a, b in zip(blocks, ends[:-1], ends[1:], strict=True):
            out = guess.expand(len(block.losses), *block.like.shape[1:])
            with torch.no_grad():
                each = fleet.robust.loss(out, block.labels)
            total += float(mean[a:b] @ array(each).astype(np.float64))
        constant = min(constant, total)
    if loss < constant - NO_BETTER * abs(constant):
        return []
    return [
        f"the network is no better than a constant prediction: its mean loss on inliers is "
        f"{loss:.4g}, the constant's {constant:.4g}. {_ADVICE}"
    ]


def _guesses(fleet: Fleet, blocks: list[_Block], mean: Array) -> list[Tensor]:
    """Return constant outputs to compare with; empty if the loss may read outputs in another way.

    They are log frequencies of classes, or medians and means of values.
    """
    classes, shape, like = len(fleet.rows.classes), blocks[0].like.shape[1:], blocks[0].like
    tables = [array(block.labels).reshape(len(block.labels), -1) for block in blocks]
    binary = fleet.robust.loss is logistic or (classes == 2 and shape == (1,))
    if classes and not binary:
        if any(block.like.shape[-1] != classes for block in blocks):
            return []
        ends = np.cumsum([len(table) for table in tables])[:-1]
        pairs = list(zip(tables, np.split(mean, ends), strict=True))
        if len({block.like.shape for block in blocks}) == 1:  # frequencies in every place
            places = range(tables[0].shape[1])
            share = np.array([_frequencies(pairs, classes, [k]) for k in places])
            return [tensor(np.log(share), like).reshape(shape)]
        return [tensor(np.log(_frequencies(pairs, classes)), like)]
    if len({table.shape[1] for table in tables}) > 1:
        return []
    y = np.concatenate(tables).astype(np.float64)
    if y.shape[1] != int(np.prod(shape)):
        return []
    if classes:
        share = np.clip(mean @ y, 1e-12, 1.0 - 1e-12)
        return [tensor(np.log(share / (1.0 - share)), like).reshape(shape)]
    order = np.argsort(y, axis=0, kind="stable")
    half = (np.cumsum(mean[order], axis=0) >= 0.5 * mean.sum()).argmax(0)
    medians = np.take_along_axis(y, np.take_along_axis(order, half[None], 0), 0)[0]
    return [tensor(place, like).reshape(shape) for place in (medians, mean @ y)]


def _frequencies(
    pairs: list[tuple[Array, Array]], classes: int, places: list[int] | None = None
) -> Array:
    """Return how often each class is the label, in some places of a sequence or in all."""
    share = np.zeros(classes)
    for table, weights in pairs:
        own = table if places is None else table[:, places]
        each = np.repeat(weights / own.shape[1], own.shape[1])
        share += np.bincount(own.ravel(), each, classes)
    return share.clip(min=1e-12)


def _never_right(right: Array, groups: Array, relative: Array, names: Array) -> list[str]:
    """Return the names of groups none of whose inliers is classified correctly."""
    inlier = relative >= INLIER
    count = np.bincount(groups[inlier], minlength=len(names))
    hits = np.bincount(groups[inlier & right], minlength=len(names))
    return [str(names[k]) for k in np.flatnonzero((count >= MIN_ROWS) & (hits == 0))]


def _ignored_clients(fleet: Fleet, lam: Array, mean: Array, losses: Array) -> list[str]:
    """Warn of clients without weight in λ although their loss is above that of the mixture."""
    method = fleet.method
    if method.mixture.by != "risk" or method.score is None:
        return []
    rows = fleet.rows
    first = np.cumsum(rows.counts) - rows.counts
    sums = np.add.reduceat(mean * losses, first) / np.add.reduceat(mean, first)
    level = float(lam @ sums)
    least = level * (1.0 + NO_BETTER) + NO_BETTER
    return list_ignored_clients(rows.names, lam, sums, least)


def _ignored_classes(fleet: Fleet, relative: Array, codes: Array) -> list[str]:
    """Warn of classes whose rows have together nearly no weight."""
    if fleet.method.score is None and fleet.robust.score is None:
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
