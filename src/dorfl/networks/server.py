"""What the server makes of the clients' answers: whom to ask, θ, λ, and what it knows of drift.

A round is a function of the state before it, so a checkpoint is that state and nothing else. (The
tables of controls and residuals, one vector for each client, are too large to copy: they change.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dorfl.federation.local import Round
from dorfl.networks.client import Fleet
from dorfl.networks.plan import Plan
from dorfl.objective.methods import Method
from dorfl.objective.mixture import Mixture
from dorfl.support.types import Array


@dataclass(frozen=True, eq=False)
class State:
    """What is carried from round to round. `seen` and `residual` are the clients' own."""

    round: int
    theta: Tensor
    mean: Tensor  # the running mean of θ, which is the model
    carried: list[Tensor]  # of the server's rule
    lam: Array
    risks: Array  # F_i as last heard; NaN where never
    before: Array  # the same, one round earlier
    seen: Tensor  # (clients,) running means of the tilt
    controls: Tensor | None  # (clients, P) which way each client pulls, for drift correction
    residual: Tensor | None  # (clients, P) what compression left out


class Draw(NamedTuple):
    """Whom a round asks, and with which probability each was to be among them."""

    who: list[int]
    chance: Array


def begin(fleet: Fleet, method: Method, theta: Tensor) -> State:
    """The state before the first round."""
    names, plan = fleet.rows.names, fleet.plan
    count, unknown = len(names), np.full(len(names), np.nan)

    def table(wanted: bool) -> Tensor | None:
        return torch.zeros(count, len(theta), dtype=theta.dtype) if wanted else None

    return State(
        round=0,
        theta=theta.clone(),
        mean=theta.clone(),
        carried=plan.server.start(theta),
        lam=method.mixture.start(names, fleet.rows.counts),
        risks=unknown,
        before=unknown,
        seen=torch.full((count,), torch.nan, dtype=torch.float64),
        controls=table(plan.drift),
        residual=table(plan.compression is not None),
    )


def play(fleet: Fleet, method: Method, offsets: Array, state: State) -> tuple[State, Round]:
    """One round: ask, hear, step. `offsets` take a score's level out of the clients' risks."""
    plan, number = fleet.plan, state.round + 1
    draw = _draw(plan, state, number)
    shares = _shares(plan, method, state)
    pull = None
    if state.controls is not None:  # towards where all pull, and away from one's own side
        pull = torch.from_numpy(shares).to(state.theta) @ state.controls - state.controls
    way = torch.zeros_like(state.theta)
    numbers = state.theta.numel() * state.theta.element_size()  # bytes of one θ
    seen, told = state.seen.clone(), np.full(len(shares), np.nan)
    controls, residual, up = state.controls, state.residual, 0
    for answer in fleet.answers(state.theta, number, draw.who, seen, pull):
        who, ways = answer.who, answer.ways
        each = numbers
        if residual is not None and plan.compression is not None:
            owed = ways + residual[who]
            ways, each = plan.compression.squeeze(owed)
            residual[who] = owed - ways
        weights = shares[who] / draw.chance[who]
        way += torch.from_numpy(weights).to(way) @ ways
        if controls is not None and pull is not None:
            steps = _steps(fleet, who).to(ways)[:, None] * plan.local.rate
            controls[who] = ways / steps - pull[who]
        seen[who] = answer.seen
        told[who] = answer.risks.numpy() + offsets[who]
        up += len(who) * (each + 12)  # the way, and one number for the risk and one for n
    if not (bool(way.isfinite().all()) and np.isfinite(told[draw.who]).all()):
        raise ValueError(f"round {number}: the training diverged; lower the rates, or bound `most`")
    carried = [tensor.clone() for tensor in state.carried]
    theta = plan.server.step(state.theta.clone(), way, carried, number)
    memory = min(plan.average, state.round / number)  # a plain mean until there is enough
    mean = torch.lerp(theta, state.mean, memory)
    risks = np.where(np.isnan(told), state.risks, told)
    lam = _climb(plan, method.mixture, draw, state, told)
    down = len(draw.who) * numbers * (1 + plan.drift)
    after = replace(
        state, round=number, theta=theta, mean=mean, carried=carried, lam=lam, risks=risks,
        before=state.risks, seen=seen, controls=controls, residual=residual,
    )  # fmt: skip
    answered = tuple(fleet.rows.names[i] for i in draw.who)
    known = _known(risks)
    objective = method.mixture.objective(known, lam, method.temperature)
    gap = method.mixture.height(known) - float(lam @ known) if method.mixture.adversarial else 0.0
    return after, Round(number, objective, gap, risks, lam, answered, {}, {}, up, down)


def _draw(plan: Plan, state: State, number: int) -> Draw:
    """Some clients, half by λ and half evenly, and no one twice: systematic sampling."""
    count = len(state.lam)
    size = max(1, round(plan.participation * count))
    if size == count:
        return Draw(list(range(count)), np.ones(count))
    chance = chances(0.5 * state.lam + 0.5 / count, size)
    rng = np.random.default_rng([plan.seed, number])
    order = rng.permutation(count)
    rungs = np.floor(np.cumsum(chance[order]) + rng.random())
    picked = np.diff(rungs, prepend=0.0) > 0
    return Draw(sorted(order[picked].tolist()), chance)


def chances(shares: Array, size: int) -> Array:
    """Probabilities in proportion to `shares`, none above 1, that add up to `size`.

    >>> chances(np.array([0.8, 0.1, 0.1]), 2).tolist()
    [1.0, 0.5, 0.5]
    """
    chance = size * shares / shares.sum()
    while (chance > 1.0 + 1e-12).any():
        sure = chance >= 1.0
        rest = shares[~sure]
        chance[sure] = 1.0
        chance[~sure] = (size - sure.sum()) * rest / rest.sum()
    return np.asarray(np.minimum(chance, 1.0))


def _known(risks: Array) -> Array:
    """Risks with the others' mean for clients that were never heard."""
    return np.where(np.isnan(risks), np.nanmean(risks), risks)


def _shares(plan: Plan, method: Method, state: State) -> Array:
    """∂objective/∂F_i: how much each client's gradient counts."""
    if method.mixture.adversarial or np.isnan(state.risks).all():
        return state.lam
    risks = _known(state.risks)
    if plan.fairness > 0:
        fair = state.lam * np.maximum(risks, 1e-12) ** plan.fairness
        return np.asarray(fair / fair.sum())
    return method.mixture.shares(risks, state.lam, method.temperature)


def _climb(plan: Plan, mixture: Mixture, draw: Draw, state: State, told: Array) -> Array:
    """λ_i ∝ λ_i exp(rate · F_i), within the rule's cap.

    Who was not asked keeps the F_i last heard, and who was asked moves it by 1/chance of what it
    changed: the same on average as if all had been asked.
    """
    if not mixture.adversarial:
        return state.lam
    heard, last = ~np.isnan(told), np.where(np.isnan(state.risks), told, state.risks)
    rise = _known(np.where(heard, last + (told - last) / draw.chance, last))
    if plan.optimistic and not np.isnan(state.before).all():
        rise = rise + (_known(np.where(heard, told, state.risks)) - _known(state.risks))
    grown = state.lam * np.exp(plan.ascent * (rise - rise.max()))
    lam = np.maximum(grown / grown.sum(), 1e-12)  # nobody is lost for good
    return mixture.snap(lam) if mixture.cap == 1.0 else mixture.project(lam / lam.sum())


def _steps(fleet: Fleet, who: list[int]) -> Tensor:
    """How many local steps each of these takes in a round."""
    plan, counts = fleet.plan, fleet.rows.counts[who]
    steps = plan.steps or plan.epochs * -(-counts // np.minimum(plan.batch, counts))
    return torch.from_numpy(np.broadcast_to(steps, counts.shape).copy())
