"""What the server makes of the clients' answers: whom to ask, θ, λ, and what it knows of drift.

A round is a function of the state before it, so a checkpoint is that state and what clients keep.
(The table of controls, one vector for each client, is too large to copy: it changes.) Whoever
carries the messages calls :func:`ask`, :func:`hear` for the answers, and :func:`step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dorfl.federated.simulation import Round
from dorfl.networks.client import Fleet, Kept
from dorfl.networks.compression import size_of
from dorfl.networks.device import array, tensor
from dorfl.networks.optimizers import at_round
from dorfl.networks.plan import Plan
from dorfl.objective.methods import Method
from dorfl.objective.mixture import Mixture
from dorfl.support.types import Array

FAR = 100.0  # times the middle client's: no honest answer is so long


class Setting(NamedTuple):
    """What is trained, how, and by whom: what a server knows of clients before it asks them."""

    method: Method
    plan: Plan
    names: tuple[str, ...]
    counts: Array  # (clients,) rows


@dataclass(frozen=True, eq=False)
class State:
    """What the server carries from round to round."""

    round: int
    theta: Tensor
    mean: Tensor  # the running mean of θ, which is the model
    carried: list[Tensor]  # of the server's rule
    lam: Array
    risks: Array  # F_i as last heard; NaN where never
    before: Array  # the same, one round earlier
    controls: Tensor | None  # (clients, P) which way each client pulls, for drift correction


class Draw(NamedTuple):
    """Whom a round asks, and with which probability each was to be among them."""

    who: list[int]
    chance: Array


class Ask(NamedTuple):
    """What a round asks: of whom, how much each counts, and what drift correction adds."""

    number: int
    draw: Draw
    weights: Array  # (clients,) how much the update of each counts
    pull: Tensor | None  # (clients, P)


@dataclass
class Heard:
    """A round's answers, of which only sums are kept."""

    way: Tensor  # the weighted sum
    risks: Array  # (clients,) NaN for who has not answered
    who: list[int] = field(default_factory=list)
    bytes_up: int = 0
    updates: list[Tensor] = field(default_factory=list)  # for an aggregator that needs each


class Usual(NamedTuple):
    """How long the middle client's way, and how high its risk, has been so far."""

    longest: float = 0.0
    highest: float = 1.0


def begin(setting: Setting, theta: Tensor) -> State:
    """The state before the first round."""
    count = len(setting.names)
    unknown = np.full(count, np.nan)
    drift = theta.new_zeros(count, len(theta)) if setting.plan.scaffold else None
    return State(
        round=0,
        theta=theta.clone(),
        mean=theta.clone(),
        carried=setting.plan.used_server_optimizer.start(theta),
        lam=setting.method.mixture.start(setting.names, setting.counts),
        risks=unknown,
        before=unknown,
        controls=drift,
    )


def play(fleet: Fleet, setting: Setting, state: State, kept: Kept) -> tuple[State, Round]:
    """One round with clients of this process, who change what they have `kept`."""
    asked = ask(setting, state)
    heard = listen(state)
    for some in fleet.answers(state.theta, asked.number, asked.draw.who, kept, asked.pull):
        size = size_of(some.parts)
        hear(setting, state, asked, heard, some.who, some.ways, array(some.risks), size)
        kept.seen[some.who] = some.kept.seen
        if kept.residual is not None and some.kept.residual is not None:
            kept.residual[some.who] = some.kept.residual
    return step(setting, state, asked, heard)


def ask(setting: Setting, state: State) -> Ask:
    """What the next round asks."""
    number = state.round + 1
    shares, pull = _shares(setting.plan, setting.method, state), None
    if state.controls is not None:  # towards where all pull, and away from one's own side
        pull = tensor(shares, state.theta) @ state.controls - state.controls
    draw = _draw(setting.plan, setting.method.mixture, state, number)
    weights = shares / draw.chance
    if not _unbiased(setting.plan, setting.method.mixture):
        weights = shares / shares[draw.who].sum()
    return Ask(number, draw, weights, pull)


def listen(state: State) -> Heard:
    """Before the first answer of a round."""
    return Heard(torch.zeros_like(state.theta), np.full(len(state.lam), np.nan))


def hear(
    setting: Setting, state: State, asked: Ask, heard: Heard,
    who: list[int], ways: Tensor, risks: Array, size: int,
) -> None:  # fmt: skip
    """Add the answers of some clients: ways (clients, P), risks, and the bytes of one's way."""
    if setting.plan.aggregator is None:
        heard.way += tensor(asked.weights[who], heard.way) @ ways
    else:
        heard.updates += list(ways)
    if state.controls is not None and asked.pull is not None:
        plan = setting.plan
        lr = at_round(plan.used_optimizer, plan.lr_schedule, asked.number).lr
        steps = tensor(_steps(setting, who), ways)[:, None] * lr
        state.controls[who] = ways / steps - asked.pull[who]
    heard.risks[who] = risks
    heard.who += who
    heard.bytes_up += len(who) * (size + 12)  # and one number for the risk and one for n


def step(
    setting: Setting, state: State, asked: Ask, heard: Heard,
    refused: Mapping[str, str] | None = None,
) -> tuple[State, Round]:  # fmt: skip
    """The state after a round. Who was asked and not heard is stood in for by those who were."""
    method, plan, number, told = setting.method, setting.plan, asked.number, heard.risks
    if not (bool(heard.way.isfinite().all()) and np.isfinite(told[heard.who]).all()):
        raise ValueError(
            f"round {number}: the training diverged; lower the rates, or bound `max_loss`"
        )
    way, who, there = heard.way, asked.draw.who, float(asked.weights[heard.who].sum())
    if plan.aggregator is not None and there > 0.0:
        order = np.argsort(heard.who)
        updates = torch.stack([heard.updates[k] for k in order])
        weights = asked.weights[np.array(heard.who)[order]]
        way = plan.aggregator(updates, tensor(weights / there, updates))
        if way.shape != state.theta.shape:
            raise ValueError(
                f"aggregator: must return one update {tuple(state.theta.shape)}, and returned "
                f"{tuple(way.shape)}"
            )
        way = there * way
    if len(heard.who) < len(who) and there > 0.0:
        way = way * (float(asked.weights[who].sum()) / there)
    carried = [tensor.clone() for tensor in state.carried]
    server = at_round(plan.used_server_optimizer, plan.server_lr_schedule, number)
    theta = server.step(state.theta.clone(), way, carried, number)
    memory = min(plan.average, state.round / number)  # a plain mean until there is enough
    mean = torch.lerp(theta, state.mean, memory)
    risks = np.where(np.isnan(told), state.risks, told)
    lam = _climb(plan, method.mixture, asked.draw, state, told)
    down = len(who) * theta.numel() * theta.element_size() * (1 + plan.scaffold)
    after = replace(
        state, round=number, theta=theta, mean=mean, carried=carried, lam=lam, risks=risks,
        before=state.risks,
    )  # fmt: skip
    answered = tuple(setting.names[i] for i in sorted(heard.who))
    objective, gap = standing(method, _known(risks), lam)
    return after, Round(
        number, objective, gap, risks, lam, answered, dict(refused or {}), {}, heard.bytes_up, down
    )


def standing(method: Method, risks: Array, lam: Array) -> tuple[float, float]:
    """The objective, and what the mixture could still gain."""
    rule = method.mixture
    gap = rule.height(risks) - float(lam @ risks) if rule.adversarial else 0.0
    return rule.objective(risks, lam, method.temperature), gap


def absurd(told: Mapping[int, tuple[Tensor, float]], usual: Usual) -> tuple[Usual, dict[int, str]]:
    """Whose way and risk are a hundred times what the middle client has told so far, and why.

    >>> one = {i: (torch.ones(4), 0.5) for i in range(3)}
    >>> _, found = absurd({**one, 3: (500.0 * torch.ones(4), 0.5)}, Usual())
    >>> list(found)
    [3]
    """
    lengths = {i: float(way.double().norm()) for i, (way, _) in told.items()}
    usual = Usual(
        max(usual.longest, middle(list(lengths.values()))),
        max(usual.highest, middle([abs(risk) for _, risk in told.values()])),
    )
    found = {
        i: f"a way of length {length:.3g} and a risk of {told[i][1]:.3g} are absurd beside what "
        "other clients tell"
        for i, length in lengths.items()
        if length > FAR * usual.longest or abs(told[i][1]) > FAR * usual.highest
    }
    return usual, found


def middle(values: list[float]) -> float:
    """The lower median: with few clients, a single one cannot raise it."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0


def _unbiased(plan: Plan, mixture: Mixture) -> bool:
    """Whether clients are drawn by λ and counted by the inverse of their chance."""
    return (plan.weighting or ("renormalised", "unbiased")[mixture.adversarial]) == "unbiased"


def _draw(plan: Plan, mixture: Mixture, state: State, number: int) -> Draw:
    """Some clients, no one twice: evenly, or half by λ and half evenly (systematic sampling)."""
    count = len(state.lam)
    size = max(1, round(plan.participation * count))
    if size == count:
        return Draw(list(range(count)), np.ones(count))
    shares = state.lam if _unbiased(plan, mixture) else np.full(count, 1.0 / count)
    chance = chances(0.5 * shares + 0.5 / count, size)
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
    grown = state.lam * np.exp(plan.mixture_lr * (rise - rise.max()))
    lam = np.maximum(grown / grown.sum(), 1e-12)  # nobody is lost for good
    return mixture.snap(lam) if mixture.cap == 1.0 else mixture.project(lam / lam.sum())


def _steps(setting: Setting, who: list[int]) -> Array:
    """How many local steps each of these takes in a round."""
    plan, counts = setting.plan, setting.counts[who]
    steps = plan.local_steps or plan.local_epochs * -(
        -counts // np.minimum(plan.batch_size, counts)
    )
    return np.broadcast_to(steps, counts.shape).copy()
