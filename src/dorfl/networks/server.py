"""The server of a network: which clients a round samples, and the steps of θ and λ.

A round is a function of the state before it, so a checkpoint is that state and the clients' running
means. A carrier of messages calls :func:`ask` for the request, :func:`add_replies` for the replies,
and :func:`step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dorfl.federated.simulation import Round
from dorfl.networks.client import LocalClients, Reply
from dorfl.networks.device import array, tensor
from dorfl.networks.optimizers import at_round
from dorfl.networks.plan import NetworkPlan
from dorfl.objective.methods import Method
from dorfl.objective.mixture import Mixture
from dorfl.support.types import Array

MAX_RATIO = 100.0  # an update or risk this many times the median client's is refused


class ServerSettings(NamedTuple):
    """What the server knows before the first round."""

    method: Method  # What is trained, and how
    plan: NetworkPlan
    names: tuple[str, ...]  # Names of the clients
    counts: Array  # (clients,) numbers of rows


@dataclass(frozen=True, eq=False)
class ServerState:
    """What the server carries from round to round."""

    round: int  # Number of rounds so far
    theta: Tensor  # (P,) parameters
    mean: Tensor  # (P,) running mean of θ, which is the trained model
    carried: list[Tensor]  # State of the server's optimizer
    lam: Array  # (clients,) mixture λ
    risks: Array  # (clients,) F_i as last reported; NaN before the first report


class RoundRequest(NamedTuple):
    """A round's request."""

    number: int  # The round
    clients: list[int]  # Sampled clients
    chance: Array  # (clients,) probability of each client to be sampled
    weights: Array  # (clients,) weights of the updates


@dataclass
class RoundReplies:
    """A round's replies, summed unless an aggregator needs each."""

    update: Tensor  # (P,) weighted sum of updates
    risks: Array  # (clients,) reported F_i; NaN for clients without a reply
    clients: list[int] = field(default_factory=list)  # Clients that replied
    bytes_up: int = 0  # Bytes of the replies
    updates: list[Tensor] = field(default_factory=list)  # The updates, if there is an aggregator


class TypicalSizes(NamedTuple):
    """Largest length of the median client's update, and its largest risk, so far."""

    length: float = 0.0
    risk: float = 1.0


def begin(settings: ServerSettings, theta: Tensor) -> ServerState:
    """Return the state before the first round."""
    count = len(settings.names)
    unknown = np.full(count, np.nan)
    return ServerState(
        round=0,
        theta=theta.clone(),
        mean=theta.clone(),
        carried=settings.plan.used_server_optimizer.start(theta),
        lam=settings.method.mixture.start(settings.names, settings.counts),
        risks=unknown,
    )


def run_round(
    clients: LocalClients, settings: ServerSettings, state: ServerState, means: Tensor
) -> tuple[ServerState, Round]:
    """Return the state after a round with clients of this process.

    `means` (clients, 2) are the clients' running means, which change in place.
    """
    request = ask(settings, state)
    replies = no_replies(state)
    for reply in clients.replies(state.theta, request.number, request.clients, means):
        add_replies(settings.plan, request, replies, reply)
        means[reply.clients] = reply.means
    return step(settings, state, request, replies)


def ask(settings: ServerSettings, state: ServerState) -> RoundRequest:
    """Return the next round's request."""
    plan = settings.plan
    mixture = settings.method.mixture
    number = state.round + 1
    shares = _shares(plan, settings.method, state)
    clients, chance = _sample(plan, mixture, state, number)
    unbiased = _is_unbiased(plan, mixture)
    weights = shares / (chance if unbiased else shares[clients].sum())
    return RoundRequest(number, clients, chance, weights)


def no_replies(state: ServerState) -> RoundReplies:
    """Return an empty sum of replies."""
    return RoundReplies(torch.zeros_like(state.theta), np.full(len(state.lam), np.nan))


def add_replies(
    plan: NetworkPlan, request: RoundRequest, replies: RoundReplies, reply: Reply
) -> None:
    """Add the replies of some clients."""
    clients, updates = reply.clients, reply.updates
    if plan.aggregator is None and len(clients) == 1:
        replies.update.add_(updates[0], alpha=float(request.weights[clients[0]]))
    elif plan.aggregator is None:
        replies.update += tensor(request.weights[clients], replies.update) @ updates
    else:
        replies.updates += list(updates)
    replies.risks[clients] = array(reply.risks)
    replies.clients += clients
    # Beside an update there is one number for the risk and one for n.
    replies.bytes_up += len(clients) * (updates[0].numel() * updates.element_size() + 12)


def step(
    settings: ServerSettings,
    state: ServerState,
    request: RoundRequest,
    replies: RoundReplies,
    refused: Mapping[str, str] | None = None,
) -> tuple[ServerState, Round]:
    """Return the state after a round.

    Sampled clients without a reply are ignored, and the weights of the others are rescaled.
    """
    method, plan = settings.method, settings.plan
    number = request.number
    reported = replies.risks
    finite = np.isfinite(reported[replies.clients]).all()
    if not (finite and bool(replies.update.isfinite().all())):
        raise ValueError(
            f"round {number}: the training diverged; lower the rates, or bound `max_loss`"
        )
    server = at_round(plan.used_server_optimizer, plan.server_lr_schedule, number)
    carried = [part.clone() for part in state.carried]
    update = _aggregate(plan, state, request, replies)
    theta = server.step(state.theta.clone(), update, carried, number)
    memory = min(plan.average, state.round / number)  # a plain mean until there is enough
    risks = np.where(np.isnan(reported), state.risks, reported)
    after = replace(
        state,
        round=number,
        theta=theta,
        mean=torch.lerp(theta, state.mean, memory),
        carried=carried,
        lam=_next_mixture(plan, method.mixture, request, state, reported),
        risks=risks,
    )
    objective, gap = objective_and_gap(method, _known(risks), after.lam)
    line = Round(
        round=number,
        objective=objective,
        gap=gap,
        risks=risks,
        lam=after.lam,
        answered=tuple(settings.names[i] for i in sorted(replies.clients)),
        refused=dict(refused or {}),
        clipped={},
        bytes_up=replies.bytes_up,
        bytes_down=len(request.clients) * theta.nbytes,
    )
    return after, line


def _aggregate(
    plan: NetworkPlan, state: ServerState, request: RoundRequest, replies: RoundReplies
) -> Tensor:
    """Return the update of a round, as large as if every sampled client had replied."""
    replied = float(request.weights[replies.clients].sum())
    if replied <= 0.0:
        return replies.update
    sampled = float(request.weights[request.clients].sum())
    if plan.aggregator is None:
        complete = len(replies.clients) == len(request.clients)
        return replies.update if complete else replies.update * (sampled / replied)
    order = np.argsort(replies.clients)
    updates = torch.stack([replies.updates[k] for k in order])
    weights = request.weights[np.array(replies.clients)[order]]
    update = plan.aggregator(updates, tensor(weights / replied, updates))
    if update.shape != state.theta.shape:
        raise ValueError(
            f"aggregator: must return one update {tuple(state.theta.shape)}, and returned "
            f"{tuple(update.shape)}"
        )
    return sampled * update


def objective_and_gap(method: Method, risks: Array, lam: Array) -> tuple[float, float]:
    """Return the objective, and the gap max_i F_i − Σ λ_i F_i of a worst mixture."""
    rule = method.mixture
    gap = rule.height(risks) - float(lam @ risks) if rule.adversarial else 0.0
    return rule.objective(risks, lam, method.temperature), gap


def find_absurd(
    replies: Mapping[int, tuple[Tensor, float]], typical: TypicalSizes
) -> tuple[TypicalSizes, dict[int, str]]:
    """Return the clients whose update or risk is ``MAX_RATIO`` times the median's, and why.

    >>> one = {i: (torch.ones(4), 0.5) for i in range(3)}
    >>> _, found = find_absurd({**one, 3: (500.0 * torch.ones(4), 0.5)}, TypicalSizes())
    >>> list(found)
    [3]
    """
    lengths = {i: float(update.double().norm()) for i, (update, _) in replies.items()}
    risks = {i: abs(risk) for i, (_, risk) in replies.items()}
    typical = TypicalSizes(
        max(typical.length, lower_median(lengths.values())),
        max(typical.risk, lower_median(risks.values())),
    )
    found = {
        i: f"an update of length {length:.3g} and a risk of {replies[i][1]:.3g} are absurd beside "
        "those of other clients"
        for i, length in lengths.items()
        if length > MAX_RATIO * typical.length or risks[i] > MAX_RATIO * typical.risk
    }
    return typical, found


def lower_median(values: Iterable[float]) -> float:
    """Return the lower median, which one of few clients cannot raise; 0 without values."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0


def _is_unbiased(plan: NetworkPlan, mixture: Mixture) -> bool:
    """Return whether clients are sampled by λ and weighted by 1 / probability."""
    if plan.weighting is None:
        return mixture.adversarial
    return plan.weighting == "unbiased"


def _sample(
    plan: NetworkPlan, mixture: Mixture, state: ServerState, number: int
) -> tuple[list[int], Array]:
    """Sample clients without replacement; return them and every client's probability.

    Clients are sampled evenly, or half by λ and half evenly (systematic sampling).
    """
    count = len(state.lam)
    size = max(1, round(plan.participation * count))
    if size == count:
        return list(range(count)), np.ones(count)
    shares = state.lam if _is_unbiased(plan, mixture) else np.full(count, 1.0 / count)
    chance = probabilities(0.5 * shares + 0.5 / count, size)
    rng = np.random.default_rng([plan.seed, number])
    order = rng.permutation(count)
    thresholds = np.floor(np.cumsum(chance[order]) + rng.random())
    sampled = np.diff(thresholds, prepend=0.0) > 0
    return sorted(order[sampled].tolist()), chance


def probabilities(shares: Array, size: int) -> Array:
    """Return probabilities in proportion to `shares`, at most 1, that add up to `size`.

    >>> probabilities(np.array([0.8, 0.1, 0.1]), 2).tolist()
    [1.0, 0.5, 0.5]
    """
    chance = size * shares / shares.sum()
    while (chance > 1.0 + 1e-12).any():
        certain = chance >= 1.0
        rest = shares[~certain]
        chance[certain] = 1.0
        chance[~certain] = (size - certain.sum()) * rest / rest.sum()
    return np.asarray(np.minimum(chance, 1.0))


def _known(risks: Array) -> Array:
    """Return risks, with the mean of the others for clients without any report."""
    return np.where(np.isnan(risks), np.nanmean(risks), risks)


def _shares(plan: NetworkPlan, method: Method, state: ServerState) -> Array:
    """Return ∂objective/∂F_i, the weight of each client's gradient."""
    if method.mixture.adversarial or np.isnan(state.risks).all():
        return state.lam
    risks = _known(state.risks)
    if plan.fairness > 0:
        fair = state.lam * np.maximum(risks, 1e-12) ** plan.fairness
        return np.asarray(fair / fair.sum())
    return method.mixture.shares(risks, state.lam, method.temperature)


def _next_mixture(
    plan: NetworkPlan, mixture: Mixture, request: RoundRequest, state: ServerState, reported: Array
) -> Array:
    """Return λ_i ∝ λ_i exp(rate · F_i), within the rule's cap.

    A client that was not sampled keeps its last F_i. For a sampled client the change of F_i is
    divided by the probability of the sample, which is unbiased.
    """
    if not mixture.adversarial:
        return state.lam
    has_report = ~np.isnan(reported)
    last = np.where(np.isnan(state.risks), reported, state.risks)
    risks = _known(np.where(has_report, last + (reported - last) / request.chance, last))
    grown = state.lam * np.exp(plan.mixture_lr * (risks - risks.max()))
    lam = np.maximum(grown / grown.sum(), 1e-12)  # no client is lost for good
    return mixture.snap(lam) if mixture.cap == 1.0 else mixture.project(lam / lam.sum())
