"""Evaluation on held-out rows during a training, and callbacks that see the model.

A callback is a function of :class:`Progress`, called after every round. The training ends if it
returns True.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dorfl.federated.simulation import Round
from dorfl.networks.data import Rows
from dorfl.networks.device import array
from dorfl.networks.model import Network
from dorfl.networks.oracle import blocks_of
from dorfl.networks.supremum import RowLoss
from dorfl.support.types import Array


class Measured(NamedTuple):
    """How a client's held-out rows are served.

    `score` is the accuracy, NaN for a regression; of several labels of a row, each counts.
    """

    rows: int
    loss: float
    score: float


class Evaluation(NamedTuple):
    """Held-out rows after a round, by client."""

    round: int
    clients: dict[str, Measured]

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
    evaluation: Evaluation | None
    make: Callable[[], nn.Module]

    @property
    def model(self) -> nn.Module:
        """A module of its own with the present parameters, in eval mode."""
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


def evaluate_rows(
    network: Network, theta: Tensor, rows: Rows, loss: RowLoss,
    decide: Callable[[Array], Array], number: int, seed: int,
) -> Evaluation:  # fmt: skip
    """Return the loss and score of every client's rows; `decide` makes labels of outputs."""
    found: dict[str, Measured] = {}
    for i, name in enumerate(rows.names):
        losses, right = [], []
        for batch in blocks_of(rows, i, seed):
            with torch.no_grad(), network.evaluating():
                out = network.outputs(theta[None], batch.x)[0]
                losses.append(array(loss(out, batch.y[0])).astype(np.float64))
            if len(rows.classes):
                right.append((decide(array(out)) == rows.classes[array(batch.y[0])]).ravel())
        score = float(np.concatenate(right).mean()) if right else np.nan
        found[name] = Measured(int(rows.counts[i]), float(np.concatenate(losses).mean()), score)
    return Evaluation(number, found)


def read_evaluations(told: Mapping[str, Any]) -> list[Evaluation]:
    """Return evaluations as JSON has them, by round."""
    return [
        Evaluation(int(number), {name: Measured(*one) for name, one in clients.items()})
        for number, clients in told.items()
    ]
