"""The client's side: a pure function from a broadcast and the client's own rows to a report.

Several clients that live in one process answer together, in one pass over their rows; each report
is the one the client would have sent alone.
"""

from __future__ import annotations

import zlib

import numpy as np

from dorfl.federation.messages import Broadcast, Report
from dorfl.federation.privacy import Gaussian
from dorfl.oracle import hessian
from dorfl.oracle.group import Group
from dorfl.solvers.base import Task
from dorfl.support.types import Array


def respond(
    group: Group,
    broadcast: Broadcast,
    seed: int,
    privacy: Gaussian | None = None,
    least: int = 1,
) -> list[Report]:
    """The reports of the clients in `group`, in their order; with `privacy`, clipped and noisy.

    A curvature that fewer than `least` rows make up is left out, as a site would.
    """
    task, number = broadcast.task, broadcast.round
    curvature: Array | None = None
    if privacy is not None:
        if task.kind != "evaluate" or task.curvature != "none" or task.batch is not None:
            raise ValueError("privacy: only risk and gradient over all rows are sent; not asked so")
        values, vectors = privacy.report(group, task.theta, number)
    elif task.kind == "local":
        values, vectors = _local_steps(group, task, number, seed)
    elif task.kind == "paper":
        values, vectors = _paper_step(_batch(group, task, number, 0, seed), task)
    else:
        risks = _batch(group, task, number, 0, seed).risks(task.theta)
        values, vectors = risks.values, risks.gradients
        if task.curvature != "none":
            curvature = hessian.curvature(*group.at(task.theta), task.curvature)
    bends: list[Array | None] = [None] * len(values)
    if curvature is not None:
        few = _rests_on_few(group, task.theta, least)
        bends = [None if alone else own for own, alone in zip(curvature, few, strict=True)]
    return [
        Report(name, number, rows, value, vector, bend)
        for name, rows, value, vector, bend in zip(
            group.names, group.counts.tolist(), values.tolist(), vectors, bends, strict=True
        )
    ]


def enough(group: Group, task: Task, least: int = 10) -> Task:
    """Raise if a report on `task` would rest on fewer than `least` rows of some client.

    Rows count by their weight: with a tilt one row of a thousand can be nearly all of ∇F_i. A
    weight of 1/`least` is the most that any may have. So for ∇²F_i, whose weights are others:
    what is returned is the task to answer, without a curvature that rests on fewer.

    >>> import dorfl
    >>> from dorfl.federation.training import prepare
    >>> task = Task(np.zeros(2), np.ones(1))
    >>> few = prepare({"a": ([[0.0], [1.0]], [0, 1])}, dorfl.methods.erm())
    >>> enough(few, task)
    Traceback (most recent call last):
    ValueError: client 'a': fewer than 10 rows stand behind the report; nothing is sent
    """
    behind = group.counts.astype(float)
    group, theta = group.at(task.theta)
    if np.isfinite(group.problem.method.temperature):
        behind = np.array([1.0 / weights.max() for weights in group.sample_weights(theta)])
    if task.batch is not None:
        behind = np.minimum(behind, task.batch)
    for name, rows in zip(group.names, behind, strict=True):
        if rows < least * (1.0 - 1e-9):
            raise ValueError(
                f"client {name!r}: fewer than {least} rows stand behind the report; nothing is sent"
            )
    if task.curvature == "none" or not _rests_on_few(group, theta, least).any():
        return task
    return task._replace(curvature="none")


def _rests_on_few(group: Group, theta: Array, least: int) -> Array:
    """Whether one row makes up more than 1/`least` of each client's curvature."""
    if least <= 1:
        return np.zeros(len(group.names), dtype=bool)
    return np.asarray(hessian.heaviest(*group.at(theta)) * least > 1.0 + 1e-9)


def stream(seed: int, client: str, number: int, step: int = 0) -> np.random.Generator:
    """A client's own random stream of a round, the same wherever and in whatever order it runs."""
    return np.random.default_rng([seed, zlib.crc32(client.encode()), number, step])


def _batch(group: Group, task: Task, number: int, step: int, seed: int) -> Group:
    """Every client's rows, or `task.batch` of them drawn with replacement from its own stream."""
    if task.batch is None:
        return group
    drawn = [
        stream(seed, name, number, step).integers(rows, size=task.batch)
        for name, rows in zip(group.names, group.counts, strict=True)
    ]
    return group.take(drawn)


def _local_steps(group: Group, task: Task, number: int, seed: int) -> tuple[Array, Array]:
    """F_i at θ, and θ_i after `task.steps` gradient steps on the client's own risk."""
    values = np.empty(len(group.names))
    ends = np.empty((len(group.names), task.theta.size))
    for i in range(len(group.names)):
        own, theta = group.select([i]), task.theta
        for step in range(task.steps):
            risks = _batch(own, task, number, step, seed).risks(theta)
            if step == 0:
                values[i] = risks.values[0]
            theta = theta - task.rate * risks.gradients[0]
        ends[i] = theta
    return values, ends


def _paper_step(batch: Group, task: Task) -> tuple[Array, Array]:
    """Algorithm 1, lines 4–9: g^λ = exp(F/ρβ) and θ_i = θ − η g^θ, g^θ = exp(F/ρβ) ∇F/ρβ.

    With F the log-mean-exp over the minibatch this is the mean of the paper's one-sample estimates.
    Without a tilt there is no exponential: g^λ = F and g^θ = ∇F, stochastic descent–ascent.
    """
    risks, tau = batch.risks(task.theta), batch.problem.method.temperature
    if np.isinf(tau):
        return risks.values, task.theta - task.rate * risks.gradients
    if risks.values.max() > 700.0 * tau:
        raise OverflowError(
            "solver 'paper': exp(f/ρβ) overflows for these rows; use a larger rho or beta, or "
            "the solvers 'sqp' or 'optimistic', which work with its logarithm"
        )
    weight = np.exp(risks.values / tau)
    return weight, task.theta - task.rate * weight[:, None] * risks.gradients / tau
