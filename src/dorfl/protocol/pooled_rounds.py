"""Rounds of training from sums over sites: read a sum as one client's report, update multipliers.

The mathematics is in :mod:`dorfl.federated.pooled`, the secure sum in :mod:`dorfl.protocol.sums`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dorfl.federated import pooled, training
from dorfl.federated import server as federated
from dorfl.federated.messages import Broadcast
from dorfl.federated.pooled import LevelSearch, Pooled, Stage, SumSettings
from dorfl.federated.server import Server
from dorfl.federated.simulation import Round
from dorfl.linear.curvature import Shape
from dorfl.objective import mixture as mixing
from dorfl.protocol import resolution
from dorfl.protocol.state import ALL_SITES, PooledTraining, State
from dorfl.protocol.step import impossible_sum
from dorfl.solvers.base import Info
from dorfl.support.types import Array

_MAX_LEVELS = 40  # levels that a round is asked at
_FIRST_TEMPERATURE = 0.1  # in units of the risk at the start
_NEXT_TEMPERATURE = 0.5  # in units of the temperature before
_STAGE_TOLERANCE = 0.25  # tolerance of a stage, in units of the study's
_MAX_STAGES = 60
_WEIGHT_ROUNDING = 1e-9  # of a thousand sites' weights


def server_of(state: State, theta: Array) -> Server:
    """Return a server whose one client is all sites together; the sums have the mixture."""
    problem = resolution.problem_of(state.agreed)
    adversarial, method = problem.method.mixture.adversarial, problem.method
    if adversarial:
        fixed = replace(method, mixture=mixing.fixed(by=method.mixture.by))
        problem = replace(problem, method=fixed)
    options = resolution.options_now(state).changed(limits=None)
    if adversarial:
        options = options.changed(tol=_STAGE_TOLERANCE * options.tol)
    rows = np.array([sum(state.counted_rows)])
    server = training.serve(problem, (ALL_SITES,), rows, theta, options)
    number, last = state.spent + len(state.history) + 1, (server.budget or 0) + state.spent
    return server._replace(round=number, budget=last)


def _anew(state: State, theta: Array, server: Server) -> Server:
    """Return a server that begins at θ again, for another function, in the rounds that are left."""
    return server_of(state, theta)._replace(round=server.round, budget=server.budget)


def begin(state: State) -> State:
    """Return the state before the first round, with the weighting of sites."""
    method = resolution.problem_of(state.agreed).method
    fixed = not method.mixture.adversarial
    tau = method.temperature if fixed and np.isfinite(method.temperature) else None
    return state._replace(pooled=PooledTraining(tilt=SumSettings(tau=tau)))


def read(state: State, total: Array, asks: Broadcast, shape: Shape) -> tuple[State, Pooled | None]:
    """Return the sum of a round as one report, or None if it is asked anew at another level."""
    carried, tilt = state.pooled, state.pooled.tilt
    adversarial = resolution.problem_of(state.agreed).method.mixture.adversarial
    off, weight = pooled.is_beyond(total), float(total[2])
    if not off and weight < 0.0:
        raise impossible_sum("what sites weigh is negative")
    moved = pooled.relevel(tilt, None if off else weight, carried.tried)
    if moved is not None and carried.tried.times < _MAX_LEVELS:
        tilt, tried = moved
        return state._replace(pooled=carried._replace(tilt=tilt, tried=tried)), None
    if off or moved is not None:
        raise ValueError("secure sum: a site's numbers are too large to be added up")
    alive = in_sum(state)
    count, share = int(sum(state.counted_rows)), 1.0
    if not adversarial:
        held = dict(zip(state.sites, state.counted_rows, strict=True))
        share = sum(held[site] for site in alive) / count
    _check_weights(total, tilt, len(alive) / len(state.sites) if adversarial else share)
    found = pooled.combine(
        total, asks.task, tilt, shape, asks.round, ALL_SITES, count, share, len(alive)
    )
    return state, found


def receive(state: State, total: Array) -> tuple[State, Info | None]:
    """Return the state after the sum of all reports, and the end of training or None."""
    problem, server = resolution.problem_of(state.agreed), state.running
    asks, adversarial = federated.broadcast(server), problem.method.mixture.adversarial
    task = asks.task
    state, seen = read(state, total, asks, problem.layout)
    if seen is None:
        return state, None
    carried, tilt = state.pooled, state.pooled.tilt
    alive = in_sum(state)
    if adversarial and tilt.tau is None:  # now it is known how large risks are
        size = max(abs(seen.report.value), 1e-12)
        finest = 0.25 * _tol(state) * size / float(np.log(len(state.sites)))
        tilt = SumSettings(seen.report.value, _FIRST_TEMPERATURE * size, finest)
        return state._replace(pooled=carried._replace(tilt=tilt, tried=LevelSearch())), None
    if carried.among and alive != carried.among:  # another sum is another function
        server = _anew(state, task.theta, server)
    server, info, received = federated.receive(server, [seen.report], imputed=seen.imputed)
    carried = at_level(state, seen.report.value)._replace(among=alive)
    state = state._replace(pooled=carried, server=server)
    whole = len(alive) == len(state.sites)
    if adversarial and whole:
        state, info = _bounded(state, task.theta, seen.upper, info)
    elif info.done in ("converged", "stalled") and not (
        whole or (state.study.absent.then == "go on" and not adversarial)
    ):  # of some sites only: go on until all have replied
        info = info._replace(done="")
        state = state._replace(server=_anew(state, info.theta, server))
    if adversarial and not whole:  # nothing is known of the other sites
        info = info._replace(gap=np.inf)
    up, down = sum_bytes(state, total.size, asks)
    refused = {**state.sum.refused, **received.refused}
    received = received._replace(answered=alive, refused=refused, bytes_up=up, bytes_down=down)
    line = Round(asks.round, info.objective, info.gap, info.risks, info.lam, *received)
    if state.agreed.candidate is not None:
        state = state._replace(spent=state.spent + 1)
    else:
        state = state._replace(history=(*state.history, line))
    return state, info if info.done else None


def at_level(state: State, level: float) -> PooledTraining:
    """Return what is carried to the next round, whose numbers are small around `level`."""
    tilt = state.pooled.tilt
    level = level if tilt.tau is not None else 0.0
    return state.pooled._replace(tilt=tilt._replace(level=level), tried=LevelSearch())


def in_sum(state: State) -> tuple[str, ...]:
    """Return the sites whose numbers are in the sum."""
    return tuple(site for site in state.sites if site in state.sum.masked)


def _check_weights(total: Array, tilt: SumSettings, share: float) -> None:
    """Raise if weights that are known add up to something else.

    Other numbers of a sum may be anything within range.
    """
    if tilt.tau is None and not abs(float(total[2]) - share) <= _WEIGHT_ROUNDING:
        raise impossible_sum("what sites weigh does not add up")


def _bounded(state: State, theta: Array, upper: float, info: Info) -> tuple[State, Info]:
    """Update the bounds on min max F; at the end of a stage, take a step of the multipliers."""
    carried, server = state.pooled, state.running
    penalty = server.solving.setting.penalty

    def added(at: Array) -> float:
        return 0.5 * float(penalty @ at**2)

    if upper + added(theta) < carried.upper:
        carried = carried._replace(upper=upper + added(theta), best=theta)
    ended = info.done in ("converged", "stalled")
    if ended:
        lower = max(carried.lower, info.objective - info.gap)
        carried = carried._replace(lower=lower)
    gap = carried.upper - carried.lower
    tol, done = _tol(state), info.done
    if ended:
        close = gap <= tol * max(abs(carried.upper), 1e-300)
        done = "converged" if close else "" if len(carried.tilt.stages) < _MAX_STAGES else "stalled"
    if ended and not done:
        at, tilt = info.theta, carried.tilt
        assert tilt.tau is not None
        level = info.objective - added(at)
        stages = (*tilt.stages, Stage(at, level, tilt.tau))
        tilt = tilt._replace(level=level, tau=_NEXT_TEMPERATURE * tilt.tau, stages=stages)
        carried = carried._replace(tilt=tilt)
        state = state._replace(server=_anew(state._replace(pooled=carried), at, server))
    known = np.isfinite(carried.upper)
    info = info._replace(
        objective=carried.upper if known else info.objective,
        gap=gap,
        theta=carried.best if known and carried.best is not None and done else info.theta,
        done=done,
    )
    return state._replace(pooled=carried), info


def _tol(state: State) -> float:
    return resolution.options_now(state).tol


def sum_bytes(state: State, numbers: int, asks: Broadcast) -> tuple[int, int]:
    """Return the bytes that all sites sent and were sent for a sum: its numbers alone."""
    sites = len(state.sum.masked)
    return 8 * numbers * sites, (asks.bytes + 8 * numbers * sites) * sites
