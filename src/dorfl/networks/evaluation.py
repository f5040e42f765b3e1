"""Evaluate a network on all rows: held-out rows, and defects of a trained network.

:func:`evaluate_rows` returns loss and accuracy of held-out rows during a training. A callback is a
function of :class:`Progress`, called after every round. The training ends if it returns True.
:func:`diagnose` returns a warning if the trained network learnt nothing, or nothing of a client or
class. Robust risks at one θ are in :class:`~dorfl.networks.client.LocalClients`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dorfl.federated.diagnostics import INLIER, NO_BETTER, NO_WEIGHT, list_ignored_clients
from dorfl.federated.simulation import Round
from dorfl.networks.client import LocalClients
from dorfl.networks.data import ClientRows
from dorfl.networks.device import array, tensor
from dorfl.networks.supremum import RowLoss
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
    local: LocalClients, theta: Tensor, number: int, loss: str | RowLoss
) -> RoundEvaluation:
    """Return the loss and score of every client's held-out rows, after round `number`."""
    rows = local.held_out
    assert rows is not None
    found: dict[str, ClientFigures] = {}
    for i, name in enumerate(rows.names):
        losses, right = [], []
        for out, y, own in _passes(local, theta, rows, i):
            losses.append(own)
            if len(rows.classes):
                predicted = decide(array(out), rows.classes, loss)
                right.append((predicted == rows.classes[array(y)]).ravel())
        score = float(np.concatenate(right).mean()) if right else np.nan
        mean = float(np.concatenate(losses).mean())
        found[name] = ClientFigures(int(rows.counts[i]), mean, score)
    return RoundEvaluation(number, found)


def decide(out: Array, classes: Array, loss: str | RowLoss) -> Array:
    """Return what outputs (n, …) mean: labels, or values of a regression.

    The logistic loss has one output for each label, others have one for each class. Outputs of
    another number, by a loss of the user's own, are read as those of the logistic loss.
    """
    own = out[..., 0] if out.ndim == 2 and out.shape[1] == 1 else out
    if not len(classes):
        return np.asarray(own)
    if loss == "logistic" or own.ndim < out.ndim or out.shape[-1] != len(classes):
        return np.asarray(classes[(own > 0).astype(int)])
    return np.asarray(classes[out.argmax(-1)])


def _passes(
    local: LocalClients, theta: Tensor, rows: ClientRows, client: int
) -> Iterator[tuple[Tensor, Tensor, Array]]:
    """Return outputs, labels and losses of a client's rows, some rows at a time."""
    for batch in rows.blocks(client, local.plan.seed):
        with torch.no_grad(), local.network.evaluating():
            out = local.network.outputs(theta[None], batch.x)[0]
            losses = local.robust.loss(out, batch.y[0])
            yield out, batch.y[0], array(losses).astype(np.float64)


# ── callbacks ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Progress:
    """What a callback sees after a round.

    Attributes
    ----------
    round
        The line of the history.
    evaluation
        Held-out rows, if they were evaluated in this round.
    make
        Function that makes the model as it is now: the running mean of θ.
    """

    round: Round
    evaluation: RoundEvaluation | None
    make: Callable[[], nn.Module]

    @property
    def model(self) -> nn.Module:
        """A copy of the module with the present parameters, in eval mode."""
        return self.make()

    def metrics(self) -> dict[str, float]:
        """Return numbers to log by name."""
        line = self.round
        found = {"objective": line.objective, "gap": line.gap}
        found["worst_client_risk"] = float(np.nanmax(line.risks))
        return found | ({} if self.evaluation is None else self.evaluation.metrics())


Callback: TypeAlias = Callable[[Progress], Any]


def tensorboard(folder: str | Path) -> Callback:
    """Return a callback that writes metrics for TensorBoard (extra `tensorboard`)."""
    from tensorboardX import SummaryWriter  # noqa: PLC0415 - optional

    writer = SummaryWriter(str(folder))

    def log(progress: Progress) -> None:
        for name, value in progress.metrics().items():
            writer.add_scalar(name, value, progress.round.round)
        writer.flush()

    return log


def mlflow(client: Any = None) -> Callback:
    """Return a callback that logs metrics to MLflow's active run, or to `client.log_metrics`."""
    if client is None:
        client = importlib.import_module("mlflow")

    def log(progress: Progress) -> None:
        client.log_metrics(progress.metrics(), step=progress.round.round)

    return log


# ── defects of a trained network ────────────────────────────────────────────────────────────────


class _Block(NamedTuple):
    """What is kept of a pass over some rows; outputs are not, because they may be large."""

    labels: Tensor
    losses: Array
    shape: torch.Size  # of the outputs
    mean: Tensor  # mean output in every position
    codes: Array | None  # predicted class numbers, if a row has one label


def diagnose(local: LocalClients, theta: Tensor, lam: Array, weights: list[Array]) -> list[str]:
    """Return a sentence for each defect of a trained network, with what to try.

    `weights` has for each client the sample weights p of its rows, which sum to 1.
    """
    rows = local.rows
    relative = np.concatenate([len(p) * p for p in weights])  # 1: counts in full
    blocks = [
        _block(rows, *passed)
        for i in range(len(rows.names))
        for passed in _passes(local, theta, rows, i)
    ]
    losses = np.concatenate([block.losses for block in blocks])
    mean = relative / relative.sum()
    found = _constant(local, blocks, mean, float(mean @ losses))
    found += _ignored_clients(local, lam, mean, losses)
    if not len(rows.classes) or any(block.codes is None for block in blocks):
        return found
    codes = np.concatenate([array(block.labels) for block in blocks])
    right = np.concatenate([block.codes for block in blocks if block.codes is not None]) == codes
    owners = np.repeat(np.arange(len(rows.names)), rows.counts)
    for kind, groups, names in (
        ("class(es)", codes, rows.classes),
        ("client(s)", owners, np.array(rows.names, dtype=object)),
    ):
        wrong = _never_right(right, groups, relative, names)
        if wrong:
            found.append(
                f"the network is wrong on every inlier of {len(wrong)} {kind}, such as "
                f"{', '.join(wrong[:_NAMED])}. Try more rounds (rounds=), a worst mixture "
                '(methods.dorfl(mixture="agnostic")), or fewer local steps.'
            )
    return found + _ignored_classes(local, relative, codes)


def _block(rows: ClientRows, out: Tensor, y: Tensor, losses: Array) -> _Block:
    codes = None
    if len(rows.classes) and out.ndim == 2 and y.ndim == 1:
        codes = array(out.argmax(1) if out.shape[1] > 1 else (out[:, 0] > 0).long())
    return _Block(y, losses, out.shape, out.mean(0), codes)


def _constant(local: LocalClients, blocks: list[_Block], mean: Array, loss: float) -> list[str]:
    """Warn of a network that is no better than one with the same outputs for every row."""
    if len({block.mean.shape for block in blocks}) > 1:  # sequences of several lengths
        blocks = [
            block._replace(mean=block.mean.flatten(0, -2).mean(0, keepdim=True)) for block in blocks
        ]
    constant = _best_constant_loss(local, blocks, mean)
    if not np.isfinite(constant) or loss < constant - NO_BETTER * abs(constant):
        return []
    return [
        f"the network is no better than a constant prediction: its mean loss on inliers is "
        f"{loss:.4g}, the constant's {constant:.4g}. {_ADVICE}"
    ]


def _best_constant_loss(local: LocalClients, blocks: list[_Block], mean: Array) -> float:
    """Return the smallest mean loss of equal outputs for all rows, by L-BFGS from two starts."""
    ends = np.cumsum([len(block.losses) for block in blocks])[:-1]
    weights = [tensor(part, blocks[0].mean) for part in np.split(mean, ends)]
    average = torch.stack([block.mean for block in blocks]).mean(0)
    found = []
    for start in (torch.zeros_like(average), average):
        outputs = start.clone().requires_grad_(True)
        optimizer = torch.optim.LBFGS([outputs], line_search_fn="strong_wolfe")

        def evaluate(outputs: Tensor = outputs) -> Tensor:
            outputs.grad = None
            total = outputs.new_zeros(())
            for block, weight in zip(blocks, weights, strict=True):
                loss = weight @ local.robust.loss(outputs.expand(block.shape), block.labels)
                loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
                total += loss.detach()
            found.append(float(total))
            return total

        optimizer.step(evaluate)
    return min((value for value in found if np.isfinite(value)), default=np.inf)


def _never_right(right: Array, groups: Array, relative: Array, names: Array) -> list[str]:
    """Return the names of groups none of whose inliers is classified correctly."""
    inlier = relative >= INLIER
    count = np.bincount(groups[inlier], minlength=len(names))
    hits = np.bincount(groups[inlier & right], minlength=len(names))
    return [str(names[k]) for k in np.flatnonzero((count >= MIN_ROWS) & (hits == 0))]


def _ignored_clients(local: LocalClients, lam: Array, mean: Array, losses: Array) -> list[str]:
    """Warn of clients without weight in λ although their loss is above that of the mixture."""
    method = local.method
    if method.mixture.by != "risk" or method.score is None:
        return []
    rows = local.rows
    first = np.cumsum(rows.counts) - rows.counts
    sums = np.add.reduceat(mean * losses, first) / np.add.reduceat(mean, first)
    level = float(lam @ sums)
    least = level * (1.0 + NO_BETTER) + NO_BETTER
    return list_ignored_clients(rows.names, lam, sums, least)


def _ignored_classes(local: LocalClients, relative: Array, codes: Array) -> list[str]:
    """Warn of classes whose rows have together nearly no weight."""
    if local.method.score is None and local.robust.score is None:
        return []
    rows = local.rows
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
