"""Simulation: the rounds of training with a server and clients in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """History of one round.

    Attributes
    ----------
    round : int
        Number of the round, from 1.
    objective, gap : float
        Objective and optimality gap.
    risks, lam : Array
        (clients,) robust risks and mixture.
    answered : tuple of str
        Clients whose reports were used.
    refused, clipped : dict
        For each client whose report was refused or clipped, the reason.
    bytes_up, bytes_down : int
        Bytes of numbers sent by all clients and to all clients.
    """

    round: int
    objective: float
    gap: float
    risks: Array
    lam: Array
    answered: tuple[str, ...]
    refused: dict[str, str]
    clipped: Mapping[str, str] = {}
    bytes_up: int = 0
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
    """Run rounds until the solver or `progress` stops; return the last results and all rounds.

    All clients get a request in the first round, and a random share `participation` in later ones.
    `absent`, `tamper` and `progress` are those of :func:`dorfl.train`.
    """
    history: list[Round] = []
    count = len(oracle.names)
    while True:
        sent = serving.broadcast(server)
        sampled = list(range(count))
        if participation < 1.0 and sent.round > 1:
            rng = np.random.default_rng([seed, sent.round])
            size = max(1, round(participation * count))
            sampled = sorted(rng.choice(count, size=size, replace=False).tolist())
        if absent is not None:
            sampled = [i for i in sampled if not absent(sent.round, oracle.names[i])]
        reports = respond(oracle.select(sampled), sent, seed, privacy) if sampled else []
        if tamper is not None:
            reports = [tamper(sent, report) for report in reports]
        server, info, receipt = serving.receive(server, reports)
        history.append(Round(sent.round, info.objective, info.gap, info.risks, info.lam, *receipt))
        if progress is not None and progress(history[-1]) is True:
            info = info._replace(done=info.done or "stopped")
        if info.done:
            return info, history
