"""The in-process engine: carries messages between a server and clients that live right here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dorfl.federated import server as serving
from dorfl.federated.client import respond
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.privacy import Gaussian
from dorfl.federated.server import Server
from dorfl.linear.base import Oracle
from dorfl.solvers.base import Info
from dorfl.support.types import Array


class Round(NamedTuple):
    """One line of a training's history."""

    round: int
    objective: float
    gap: float
    risks: Array
    lam: Array
    answered: tuple[str, ...]
    refused: dict[str, str]
    clipped: dict[str, str] = {}  # noqa: RUF012 - never changed in place
    bytes_up: int = 0  # what all clients sent, in numbers
    bytes_down: int = 0


def run(
    server: Server,
    oracle: Oracle,
    *,
    seed: int,
    participation: float = 1.0,
    absent: Callable[[int, str], bool] | None = None,
    tamper: Callable[[Broadcast, Report], Report] | None = None,
    privacy: Gaussian | None = None,
    progress: Callable[[Round], object] | None = None,
) -> tuple[Info, list[Round]]:
    """Rounds until there is a reason to stop, which is the last Info's `done`.

    Args:
        server: before its first round.
        oracle: the clients.
        seed: where the random streams of minibatches and participation begin.
        participation: the share of clients asked in a round (everyone in the first).
        absent: `absent(round, client)` says who does not answer although asked.
        tamper: `tamper(broadcast, report)` is what is sent instead of an honest report.
        privacy: the noise that clients add.
        progress: called with every round as it ends.

    Returns:
        What the last round showed, and all rounds.
    """
    history: list[Round] = []
    count = len(oracle.names)
    while True:
        sent = serving.broadcast(server)
        asked = list(range(count))
        if participation < 1.0 and sent.round > 1:
            rng = np.random.default_rng([seed, sent.round])
            size = max(1, round(participation * count))
            asked = sorted(rng.choice(count, size=size, replace=False).tolist())
        if absent is not None:
            asked = [i for i in asked if not absent(sent.round, oracle.names[i])]
        reports = respond(oracle.select(asked), sent, seed, privacy) if asked else []
        if tamper is not None:
            reports = [tamper(sent, report) for report in reports]
        server, info, heard = serving.receive(server, reports)
        history.append(Round(sent.round, info.objective, info.gap, info.risks, info.lam, *heard))
        if progress is not None and progress(history[-1]) is True:
            info = info._replace(done=info.done or "stopped")
        if info.done:
            return info, history
