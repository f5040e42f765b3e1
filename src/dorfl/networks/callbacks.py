"""Callbacks, which see the model during a training, and loggers for TensorBoard and MLflow.

A callback is a function of :class:`Progress`, called after every round. The training ends if it
returns True.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import nn

from dorfl.federated.simulation import Round
from dorfl.networks.evaluation import RoundEvaluation


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
