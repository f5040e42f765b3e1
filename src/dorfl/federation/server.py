"""The server's side: pure functions that turn reports into the next broadcast.

What a server receives is untrusted: :func:`refuse` says what is wrong with a report before anything
uses it. A client that does not answer, or whose report is refused, is represented by its last good
report, extended along its gradient to the new θ: by convexity never more than its true risk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dorfl.federation.messages import Broadcast, Report
from dorfl.solvers.base import Answers, Info, Solver, Task


class Server(NamedTuple):
    """All a server carries from one round to the next."""

    rows: dict[str, int]  # the roster, in its order: every client's n_i as first announced
    solver: Solver
    solving: Any  # the solver's own state
    round: int = 1
    last: dict[str, tuple[Task, Report]] = {}  # noqa: RUF012 - replaced, never changed in place

    @property
    def roster(self) -> tuple[str, ...]:
        """The clients' names, in the order all sums are taken in."""
        return tuple(self.rows)


class Heard(NamedTuple):
    """Who answered a round, and which reports were refused for what."""

    answered: tuple[str, ...]
    refused: dict[str, str]


def broadcast(server: Server) -> Broadcast:
    """What to send to every client now."""
    return Broadcast(server.round, server.solver.ask(server.solving))


def receive(server: Server, reports: Iterable[Report]) -> tuple[Server, Info, Heard]:
    """One round's reports into the next state. The order they came in makes no difference."""
    sent = broadcast(server)
    good: dict[str, Report] = {}
    refused: dict[str, str] = {}
    for report in sorted(reports, key=lambda r: str(r.client)):
        reason = refuse(server, sent, report)
        if reason is None and report.client in good:
            reason = "answered twice"
        if reason is None:
            good[report.client] = report
        else:
            refused[str(report.client)] = reason
    last = dict(server.last)
    for name, report in good.items():
        known = last[name][1].curvature if name in last else None
        diagonal = known if report.curvature is None else report.curvature
        last[name] = (sent.task, report._replace(curvature=diagonal))
    silent = [name for name in server.roster if name not in last]
    if silent:
        because = f": {refused[silent[0]]}" if silent[0] in refused else ""
        raise ValueError(
            f"client {silent[0]!r} has sent no usable report yet{because}; "
            "every client must answer once before training can go on without it"
        )
    solving, info = server.solver.update(server.solving, _answers(server, sent.task, last))
    server = server._replace(solving=solving, round=server.round + 1, last=last)
    if info.done == "converged" and len(good) < len(server.roster):
        info = info._replace(done="")  # a stand-in is a lower bound: it cannot show convergence
    return server, info, Heard(tuple(good), refused)


def refuse(server: Server, sent: Broadcast, report: Report) -> str | None:
    """Why a report cannot be used, or nothing."""
    if not isinstance(report.client, str) or report.client not in server.rows:
        return "not on the roster"
    if not isinstance(report.round, int) or report.round != sent.round:
        return f"answers round {report.round}, this is round {sent.round}"
    if not isinstance(report.rows, int) or report.rows != server.rows[report.client]:
        return "announces another number of rows than before"
    if not isinstance(report.value, float) or not math.isfinite(report.value):
        return "its risk is not a finite number"
    vector = report.vector
    if not isinstance(vector, np.ndarray) or vector.shape != sent.task.theta.shape:
        return "its vector has the wrong shape"
    if vector.dtype != np.float64 or not np.isfinite(vector).all():
        return "its vector is not made of finite numbers"
    if sent.task.curvature:
        diagonal = report.curvature
        if not isinstance(diagonal, np.ndarray) or diagonal.shape != sent.task.theta.shape:
            return "its curvature has the wrong shape"
        real = diagonal.dtype == np.float64
        if not (real and np.isfinite(diagonal).all() and (diagonal >= 0).all()):
            return "its curvature is not made of finite numbers ≥ 0"
    return None


def _answers(server: Server, task: Task, last: dict[str, tuple[Task, Report]]) -> Answers:
    """The last good reports in the roster's order, brought to the present θ."""
    used = [_brought_to(task, *last[name]) for name in server.roster]
    diagonals = [report.curvature for report in used]
    return Answers(
        np.array([report.value for report in used]),
        np.array([report.vector for report in used]),
        np.array(diagonals) if task.curvature else None,
    )


def _brought_to(task: Task, asked: Task, report: Report) -> Report:
    if asked is task or task.kind != "evaluate":
        return report
    if asked.kind != "evaluate":
        raise ValueError(
            f"client {report.client!r} has not answered; there is nothing to stand in for it"
        )
    return report._replace(value=report.value + float(report.vector @ (task.theta - asked.theta)))
