"""Step `network`: one round of training a network, among sites elsewhere.

Sites receive θ and report θ − θ_i and F_i: one step of every site, on all of its rows. The server
is :mod:`dorfl.networks.server`, as in one process, and the network that of
:mod:`dorfl.networks.tabular`, so the same study gives the same model. The last round asks for the
risk of the model, which is the mean of the last θ. The state holds plain arrays; PyTorch is
imported with the first round.

An update has a number for every parameter, in every round: far more than a site's rows have. A
person there allows networks or does not (:attr:`~dorfl.site.policy.Policy.networks`). The site
checks that a request fits the study: its network, from the θ that its seed gives, no further than
the study's steps lead, on all rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dorfl.data.validation import Clients
from dorfl.federated import pooled
from dorfl.federated.messages import Broadcast, Report
from dorfl.linear.curvature import Shape
from dorfl.linear.group import Group
from dorfl.networks.layered import Layered, layered
from dorfl.protocol import pooled_rounds, resolution
from dorfl.protocol.messages import NOT_ASKED, Agreement, Finished, Outcome, Refused, Request
from dorfl.protocol.reply_validation import MAX_RISK
from dorfl.protocol.state import ALL_SITES, NetworkTraining, State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Sites, Step
from dorfl.solvers.base import Task
from dorfl.support import wire
from dorfl.support.types import Array

if TYPE_CHECKING:
    from torch import Tensor

    from dorfl.networks import server as network_server
    from dorfl.networks.client import LocalClients, RobustRisks
    from dorfl.networks.plan import Plan

NO_CERTIFICATE = "a network has no exact certificate: that is for linear models"
# Rates: no step of Adam is longer than (1 − β₁) / √((1 − β₁²/β₂)(1 − β₂)) = 7.3.
_MAX_STEP = 8.0


class NetworkRound(Step):
    """Pass the sites' updates to the network's server, for as many rounds as planned."""

    name = "network"
    answer = Report
    sends = "an update of the network and its risk; at the end the risk alone"
    may_refuse = True
    is_summed = True
    bits = 40
    sums_without = True

    def is_due(self, state: State) -> bool:
        """Return whether a network is trained."""
        return state.study.training.model != "linear"

    def begin(self, state: State) -> State:
        """Make the network and its server."""
        from dorfl.networks import server, tabular  # noqa: PLC0415 - imports torch

        agreed, counts = state.agreed, np.array(state.counted_rows)
        problem = layered(resolution.problem_of(agreed))
        plan = plan_of(agreed, counts, state.study.training.l2)
        setting = server.ServerSettings(problem.method, plan, *_clients(state))
        before = server.begin(setting, tabular.start(problem, plan.seed))
        if state.study.privacy.summed:
            state = pooled_rounds.begin(state)
        state = state.agree(decay=plan.l2)
        return state._replace(server=None, network_training=_plain(before))

    def ask(self, state: State, site: str) -> dict[str, Any]:
        """Send θ and λ."""
        return {"broadcast": broadcast(state)}

    def local(self, site: LocalSite, request: Request) -> Report:
        """Report one step on all rows from θ; in the last round, the risk of the model."""
        agreement, sent = request.agreement, request.broadcast
        if agreement.decay is None or sent is None:
            raise Refused(NOT_ASKED)
        own, task, number = _own(site, agreement), sent.task, sent.round
        plan = own.fleet.plan
        if task.theta.shape != own.start.shape or task.theta.dtype != np.float32:
            raise Refused("θ has another shape than the model agreed on")
        if not 1 <= number <= plan.rounds + 1:
            raise Refused("the round's number is out of range")
        last = number == plan.rounds + 1
        if task[2:] != _task(task.theta, task.lam, last=last)[2:]:
            raise Refused("the task is none that the study implies: one step on all rows")
        longest = _MAX_STEP * plan.used_server_optimizer.lr * (number - 1)
        if np.abs(task.theta - own.start).max() > longest:
            raise Refused("θ is further from where it began than the study's steps lead")
        if last:
            found = _risks(site, own, task.theta)
            value, update = float(found.values[0]), np.empty(0, np.float32)
        else:
            if np.isfinite(own.fleet.tilt.temperature):
                _risks(site, own, task.theta)
            reply = own.fleet.reply(_tensor(task.theta), number, [0], own.fleet.begin())
            value, update = float(reply.risks[0]), reply.updates[0].numpy()
        return Report(site.name, number, len(own.group.target), value, update)

    def validate(self, state: State, site: str, answer: Report) -> str | None:
        """Check the round, the number of rows, the risk and the shape of the update."""
        sent, size = broadcast(state), _problem(state).size
        if answer.client != site:
            return "reports for another site"
        if answer.round != sent.round:
            return f"does not answer round {sent.round}"
        if answer.rows != state.rows_of(site):
            return "announces another number of rows than before"
        if abs(answer.value) > MAX_RISK:
            return "its risk is too large to compute with"
        shape = (size,) if sent.task.kind == "local" else (0,)
        if answer.vector.shape != shape or answer.vector.dtype != np.float32:
            return "its update has the wrong shape"
        return None if answer.curvature is None else "reports a curvature that was not requested"

    def waiting(self, state: State, missing: Sites, answered: set[str]) -> Sites:
        """Return the sites that have not replied for too long; the others are left out."""
        now, rule = training(state), state.study.absent

        def is_left_out(site: str) -> bool:
            since = now.round + 1 - now.answered.get(site, -(10**9))
            return site in now.answered and (rule.then == "go on" or since <= rule.stand_in)

        return tuple(site for site in missing if not (answered and is_left_out(site)))

    def combine(self, state: State, answers: Answers[Report], refused: Reasons) -> State:
        """Update the network."""
        import torch  # noqa: PLC0415

        from dorfl.networks import server  # noqa: PLC0415 - imports torch
        from dorfl.networks.client import Reply, in_order  # noqa: PLC0415 - imports torch

        now, setting = training(state), _setting(state)
        summed = state.study.privacy.summed
        for site in sorted(set() if summed else refused.keys() - now.answered.keys()):
            raise ValueError(f"site {site!r} does not take part: {refused[site]}")
        if now.round == setting.plan.rounds:
            return _ended(state, setting, {site: one.value for site, one in answers.items()})
        reports = {
            i: (torch.from_numpy(answers[site].vector), answers[site].value)
            for i, site in enumerate(setting.names)
            if site in answers
        }
        usual, absurd = server.find_absurd(reports, server.TypicalSizes(*now.usual))
        before = _tensors(now)
        sent, received = server.ask(setting, before), server.no_replies(before)
        for i in in_order([i for i in reports if i not in absurd], setting.counts):
            update, risk = reports[i]
            reply = Reply([i], update[None], torch.tensor([risk], dtype=torch.float64))
            server.add_replies(setting.plan, sent, received, reply)
        unused = {setting.names[i]: reason for i, reason in absurd.items()}
        after, line = server.step(setting, before, sent, received, {**refused, **unused})
        if summed:
            up, down = pooled_rounds.sum_bytes(state, self.size(state), broadcast(state))
            replied = pooled_rounds.in_sum(state)
            line = line._replace(answered=replied, bytes_up=up, bytes_down=down)
        answered = now.answered | dict.fromkeys(line.answered, line.round)
        now = _plain(after)
        now = now._replace(usual=(usual.length, usual.risk), answered=answered)
        return state._replace(network_training=now, history=(*state.history, line))

    def sum_settings(self, state: State) -> dict[str, Any]:
        """Return how updates are weighted."""
        return {"tilt": state.pooled.tilt}

    def size(self, state: State) -> int:
        """Return the numbers of an update and a risk, with their weight."""
        task = broadcast(state).task
        return pooled.size(task, _shape(task))

    def encode(self, site: LocalSite, request: Request, answer: Report) -> Array:
        """Return the update and the risk, times the site's share of rows."""
        assert request.broadcast is not None
        task, summing = request.broadcast.task, request.sum
        share = min(answer.rows, summing.most) / summing.rows
        try:
            return pooled.terms(answer, np.log(share), task, summing.tilt, _shape(task))
        except OverflowError:
            return self.out_of_range(site, request)

    def out_of_range(self, site: LocalSite, request: Request) -> Array:
        """Return a flag, which does not show whose numbers are out of range."""
        assert request.broadcast is not None
        task = request.broadcast.task
        return pooled.beyond(task, _shape(task))

    def decode(self, state: State, total: Array) -> tuple[State, Report | None]:
        """Return the weighted means as the report of one client with all rows."""
        asks = broadcast(state)
        state, found = pooled_rounds.read(state, total, asks, _shape(asks.task))
        if found is None:
            return state, None
        report = found.report._replace(vector=found.report.vector.astype(np.float32))
        return state._replace(pooled=pooled_rounds.at_level(state, report.value)), report


def is_due(state: State) -> bool:
    """Return whether a network is trained next: nothing is left for a linear model to fix.

    A linear model fixes the selection of outliers, and the scale of Huber's loss.
    """
    if state.study.training.model == "linear" or state.agreed.candidate is not None:
        return False
    problem = resolution.problem_of(state.agreed)
    return state.agreed.scatter is not None or not resolution.refines(state.study, problem)


def objection(agreement: Agreement, step: str) -> str | None:
    """Return why a site does not answer a step while a network is trained, or None."""
    if agreement.decay is None:
        return None
    if agreement.study.training.model == "linear" or agreement.candidate is not None:
        return "a network is not what the study trains now"
    return None if step in ("network", "finish") else NOT_ASKED


def plan_of(agreed: Agreement, counts: Array, decay: float | None) -> Plan:
    """Return how the study's network is trained, among clients with so many rows."""
    from dorfl.networks import tabular  # noqa: PLC0415 - imports torch

    words = agreed.study.training
    return tabular.plan_for(
        counts, l2=decay, rounds=words.max_rounds, seed=words.seed, batch=words.batch
    )


def broadcast(state: State) -> Broadcast:
    """Return the request of the round."""
    now = training(state)
    last = now.round == _setting(state).plan.rounds
    return Broadcast(now.round + 1, _task(now.mean if last else now.theta, now.lam, last=last))


def finished(
    site: LocalSite, agreement: Agreement, outcome: Outcome, measure: Callable[..., Finished]
) -> Finished:
    """Return a site's statistics under the finished network, which it keeps."""
    own = _own(site, agreement)
    site.keep(agreement, own.group, outcome)
    group, least = own.group, agreement.study.privacy.least
    weights = _risks(site, own, outcome.theta).sample_weights[0]
    problem, theta = group.problem, outcome.theta
    return measure(problem, theta, group.rows, group.target, weights, agreement.target, least)


def risks_of(group: Group, theta: Array) -> Array:
    """Return F_i of clients at θ of any model."""
    if not isinstance(group.problem, Layered):
        return group.evaluate(theta).values
    from dorfl.networks import tabular  # noqa: PLC0415 - imports torch

    return tabular.evaluated(_rows(group), group.problem, theta, group.centers).values


def message(objective: float, missing: Mapping[str, int] = MappingProxyType({})) -> str:
    """Describe the end of a training; `missing` sites have an older risk, of the round given.

    >>> print(message(0.5, {"b": 11}))
    trained (objective 0.5; the optimality gap of a network is unknown); b did not reply at the \
end: its risk is that of round 11
    """
    text = f"trained (objective {objective:.6g}; the optimality gap of a network is unknown)"
    late = [
        f"{s} did not reply at the end: its risk is that of round {n}" for s, n in missing.items()
    ]
    return "; ".join([text, *late])


def describe_network(problem: Layered, plan: Plan) -> str:
    """Describe a network in a sentence."""
    layers = " and ".join(map(str, problem.hidden))
    rows = "all rows" if plan.risk_momentum == 0.0 else f"{plan.batch_size} rows"
    return (
        f"A network with layers of {layers}: {problem.size:,} parameters, weight decay "
        f"{plan.l2:.3g}, {plan.rounds} rounds of Adam on {rows} of every client. A linear model "
        "settled what follows."
    )


def describe(state: State) -> tuple[str, ...]:
    """Describe the network of a finished study; nothing if its model is linear."""
    if state.network_training is None:
        return ()
    return (describe_network(_problem(state), _setting(state).plan),)


def training(state: State) -> NetworkTraining:
    """Return the state of the training."""
    assert state.network_training is not None
    return state.network_training


# ── the coordinator ─────────────────────────────────────────────────────────────────────────────


def _ended(state: State, setting: network_server.ServerSettings, values: dict[str, float]) -> State:
    """Return the state with the model and its risks."""
    from dorfl.networks import server  # noqa: PLC0415 - imports torch

    now = training(state)
    names = setting.names
    risks = np.array([values.get(s, old) for s, old in zip(names, now.risks, strict=True)])
    objective, gap = server.objective_and_gap(setting.method, risks, now.lam)
    missing = {s: now.answered[s] for s in names if s not in values}
    outcome = Outcome(
        theta=now.mean,
        lam=now.lam,
        risks=risks,
        rho=None if np.isinf(setting.method.rho) else setting.method.rho,
        objective=objective,
        gap=gap if setting.method.mixture.adversarial else None,
        l2=setting.plan.l2,
        rounds=now.round,
        status="trained",
        message=message(objective, missing),
        scatter=state.agreed.scatter,
    )
    return state._replace(step=NEXT, trained=outcome)


def _task(theta: Array, lam: Array, *, last: bool) -> Task:
    """Return one step on all rows from θ or, in the last round, the risk of the model."""
    return Task(theta, lam) if last else Task(theta, lam, "local", rate=1.0)


def _problem(state: State) -> Layered:
    problem = resolution.problem_of(state.agreed)
    assert isinstance(problem, Layered)
    return problem


def _setting(state: State) -> network_server.ServerSettings:
    from dorfl.networks.server import ServerSettings  # noqa: PLC0415 - imports torch

    agreed, plan_counts = state.agreed, np.array(state.counted_rows)
    plan = plan_of(agreed, plan_counts, agreed.decay)
    return ServerSettings(_problem(state).method, plan, *_clients(state))


def _clients(state: State) -> tuple[tuple[str, ...], Array]:
    """Return the server's clients and their rows: all sites, of which a sum is one."""
    counts = np.array(state.counted_rows)
    if state.study.privacy.summed:
        return (ALL_SITES,), counts.sum(keepdims=True)
    return state.sites, counts


def _shape(task: Task) -> Shape:
    """Return the layout of an update; the last round has none."""
    return Shape(1, task.theta.size if task.kind == "local" else 0)


def _plain(state: network_server.ServerState) -> NetworkTraining:
    carried = tuple(tensor.numpy() for tensor in state.carried)
    theta, mean = state.theta.numpy(), state.mean.numpy()
    return NetworkTraining(state.round, theta, mean, carried, state.lam, state.risks)


def _tensors(now: NetworkTraining) -> network_server.ServerState:
    from dorfl.networks.server import ServerState  # noqa: PLC0415 - imports torch

    carried = [_tensor(part) for part in now.carried]
    theta, mean = _tensor(now.theta), _tensor(now.mean)
    return ServerState(now.round, theta, mean, carried, now.lam, now.risks)


# ── a site ──────────────────────────────────────────────────────────────────────────────────────


class _Own(NamedTuple):
    """A site's rows as the network sees them; made once for each agreement."""

    key: bytes
    group: Group
    fleet: LocalClients
    start: Array


def _own(site: LocalSite, agreement: Agreement) -> _Own:
    """Return what the site has for the rounds of an agreement, made if it is another one."""
    key, own = wire.encode(agreement), site.cache.get("network")
    if own is None or own.key != key:
        from dorfl.networks import tabular  # noqa: PLC0415 - imports torch

        group = site.group(agreement)
        problem, rows = group.problem, _rows(group)
        assert isinstance(problem, Layered)
        plan = plan_of(agreement, group.counts, agreement.decay)
        fleet = tabular.ready(rows, problem, group.centers, plan)
        own = site.cache["network"] = _Own(key, group, fleet, fleet.network.start().numpy())
    assert isinstance(own, _Own)
    return own


def _risks(site: LocalSite, own: _Own, theta: Array) -> RobustRisks:
    """Return the risk and the weights of rows at θ; Refused if one row has too much weight."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a supremum may be a local one
        found = own.fleet.risks(_tensor(theta))
    if found.sample_weights[0].max() * site.policy.least > 1.0 + 1e-9:
        raise Refused(
            f"fewer than {site.policy.least} rows stand behind the update; nothing is sent"
        )
    return found


def _rows(group: Group) -> Clients:
    (name,) = group.names
    return {name: (group.rows, group.problem.decode(group.target))}


def _tensor(numbers: Array) -> Tensor:
    import torch  # noqa: PLC0415

    return torch.from_numpy(numbers.copy())
