"""Client side: a pure function from a broadcast and a client's rows to its report.

Clients in one process are evaluated together, in one pass over their rows; each report equals the
one that the client would send alone.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.privacy import Gaussian
from dorfl.linear.base import Evaluation, Oracle, Priced
from dorfl.linear.scale import Scaled
from dorfl.solvers.base import Task
from dorfl.support.types import Array


def respond(
    oracle: Oracle,
    broadcast: Broadcast,
    seed: int,
    privacy: Gaussian | None = None,
    least: int = 1,
) -> list[Report]:
    """Return the reports of the clients in `oracle`, in order.

    A curvature of which one row is more than 1/`least` is left out.
    """
    task, number = broadcast.task, broadcast.round
    oracle = with_unknowns(oracle)
    seen = None
    if privacy is not None:
        if task.kind != "evaluate" or task.curvature != "none" or task.batch is not None:
            raise ValueError("privacy: only risk and gradient over all rows can be sent")
        values, vectors = privacy.report(oracle, task.theta, number)
    elif task.kind == "local":
        values, vectors = _local_steps(oracle, task, number, seed)
    elif task.kind == "paper":
        values, vectors = _paper_step(_batch(oracle, task, number, 0, seed), task)
    else:
        if task.batch is None or task.curvature != "none":
            needs_weights = least > 1 and task.curvature != "none"
            seen = oracle.evaluate(task.theta, task.curvature, rows=needs_weights)
        if task.batch is None and seen is not None:
            values, vectors = seen[:2]
        else:
            values, vectors = _batch(oracle, task, number, 0, seed).evaluate(task.theta)[:2]
    bends: list[Array | None] = [None] * len(values)
    if seen is not None and seen.curvature is not None:
        few = _has_heavy_row(seen, least)
        bends = [None if heavy else own for own, heavy in zip(seen.curvature, few, strict=True)]
    return [
        Report(name, number, rows, value, vector, bend)
        for name, rows, value, vector, bend in zip(
            oracle.names, oracle.counts.tolist(), values.tolist(), vectors, bends, strict=True
        )
    ]


def with_unknowns(oracle: Any) -> Oracle:
    """Return clients that evaluate θ with any unknowns after it: ρ, or the scale σ."""
    if oracle.problem.constrained:
        return Priced(oracle)
    return Scaled(oracle) if oracle.problem.estimates_scale else oracle


def _has_heavy_row(seen: Evaluation, least: int) -> Array:
    """Return whether one row has more than 1/`least` of a client's curvature (clients,)."""
    if least <= 1 or seen.heaviest is None:
        return np.zeros(len(seen.values), dtype=bool)
    return np.asarray(seen.heaviest * least > 1.0 + 1e-9)


def stream(seed: int, client: str, number: int, step: int = 0) -> np.random.Generator:
    """Return a client's random stream for a step of a round, independent of where it runs."""
    return np.random.default_rng([seed, zlib.crc32(client.encode()), number, step])


def _batch(oracle: Oracle, task: Task, number: int, step: int, seed: int) -> Oracle:
    """Return the clients' rows, or minibatches drawn with replacement from their streams."""
    if task.batch is None:
        return oracle
    drawn = [
        stream(seed, name, number, step).integers(rows, size=task.batch)
        for name, rows in zip(oracle.names, oracle.counts, strict=True)
    ]
    return oracle.take(drawn)


def _local_steps(oracle: Oracle, task: Task, number: int, seed: int) -> tuple[Array, Array]:
    """Return F_i(θ), and θ_i after `task.steps` gradient steps on F_i."""
    values = np.empty(len(oracle.names))
    ends = np.empty((len(oracle.names), task.theta.size))
    for i in range(len(oracle.names)):
        own, theta = oracle.select([i]), task.theta
        for step in range(task.steps):
            risks = _batch(own, task, number, step, seed).evaluate(theta)
            if step == 0:
                values[i] = risks.values[0]
            theta = theta - task.rate * risks.gradients[0]
        ends[i] = theta
    return values, ends


def _paper_step(batch: Oracle, task: Task) -> tuple[Array, Array]:
    """Do lines 4–9 of Algorithm 1: g^λ = exp(F/ρβ) and θ_i = θ − η g^θ, g^θ = exp(F/ρβ) ∇F/ρβ.

    With F the log-mean-exp over the minibatch this is the mean of the paper's one-sample estimates.
    Without a tilt there is no exponential: g^λ = F and g^θ = ∇F, stochastic descent–ascent.
    """
    risks, tau = batch.evaluate(task.theta), batch.problem.method.temperature
    if np.isinf(tau):
        return risks.values, task.theta - task.rate * risks.gradients
    if risks.values.max() > 700.0 * tau:
        raise OverflowError(
            "solver 'paper': exp(f/ρβ) overflows for these rows; use a larger rho or beta, or "
            "the solvers 'sqp' or 'optimistic', which work with its logarithm"
        )
    weight = np.exp(risks.values / tau)
    return weight, task.theta - task.rate * weight[:, None] * risks.gradients / tau
