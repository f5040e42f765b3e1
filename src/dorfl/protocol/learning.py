"""The rounds of a network among sites elsewhere, as the coordinator plays them.

θ goes down, θ − θ_i and F_i come up: one step of every site, on all of its rows. What is made of it
is :mod:`dorfl.networks.server`'s business, as in one process, and the network that of
:mod:`dorfl.networks.tabular`, so the same study gives the same model. The last question is for the
risk of the model itself, which is the mean of the last θ.

What is carried is plain arrays, as a checkpoint holds them; PyTorch comes in with the first round.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dorfl.federated.messages import Broadcast, Report
from dorfl.networks.layered import Layered, layered
from dorfl.protocol import meaning
from dorfl.protocol.messages import Agreement, Outcome
from dorfl.solvers.base import Task
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.networks.plan import Plan
    from dorfl.networks.server import ServerSettings, ServerState
    from dorfl.protocol.coordinator import State

NO_CERTIFICATE = "a network has no exact certificate: that is for linear models"
_HIGHEST = 1e20  # no risk is as large


class Learning(NamedTuple):
    """What the server of a network carries from round to round; see its `State`."""

    round: int
    theta: Array
    mean: Array
    carried: tuple[Array, ...]
    lam: Array
    risks: Array
    before: Array
    decay: float
    usual: tuple[float, float] = (0.0, 1.0)  # the middle site's: length of its way, and risk
    heard: dict[str, int] = {}  # noqa: RUF012 - by site, the last round it answered; replaced


def planned(agreed: Agreement | State, counts: Array, decay: float | None) -> Plan:
    """How the study's network is trained, among clients with so many rows."""
    from dorfl.networks import tabular  # noqa: PLC0415 - brings in torch

    words = agreed.study.training
    return tabular.plan_for(
        counts, l2=decay, rounds=words.max_rounds, seed=words.seed, batch=words.batch
    )


def due(state: State) -> bool:
    """Whether a network is to be trained, and a linear model has nothing to settle for it any more.

    What it settles is the selection, and the scale that gives Huber's loss its unit.
    """
    if state.study.training.model == "linear" or state.candidate is not None:
        return False
    return state.scatter is not None or not meaning.refines(state.study, meaning.problem_of(state))


def after(state: State) -> State:
    """A linear model is trained: to the end, or to the network that it was for."""
    if state.study.training.model == "linear":
        return state._replace(step="finish")
    return begin(state)


def begin(state: State) -> State:
    """To the rounds, once all is settled that a linear model settles."""
    from dorfl.networks import server, tabular  # noqa: PLC0415 - brings in torch

    problem, counts = layered(meaning.problem_of(state)), np.array(state.believed)
    plan = planned(state, counts, state.study.training.l2)
    setting = server.ServerSettings(problem.method, plan, state.roster, counts)
    playing = server.begin(setting, tabular.start(problem, plan.seed))
    return state._replace(step="network", server=None, learning=_kept(playing, plan.l2))


def sent(state: State) -> Broadcast:
    """The question of the present round."""
    now = learning(state)
    last = now.round == _setting(state).plan.rounds
    return Broadcast(now.round + 1, asked(now.mean if last else now.theta, now.lam, last=last))


def asked(theta: Array, lam: Array, *, last: bool) -> Task:
    """A step on all rows from θ; at last, the risk of the model."""
    return Task(theta, lam) if last else Task(theta, lam, "local", rate=1.0)


def wrong(state: State, site: str, report: Report) -> str | None:
    """Why a site's answer cannot be used, or nothing; types are known, and that it is finite."""
    question, size = sent(state), _problem(state).size
    if report.round != question.round:
        return f"does not answer round {question.round}"
    if report.rows != state.rows[state.roster.index(site)]:
        return "announces another number of rows than before"
    if abs(report.value) > _HIGHEST:
        return "its risk is too large to compute with"
    shape = (size,) if question.task.kind == "local" else (0,)
    if report.vector.shape != shape or report.vector.dtype != np.float32:
        return "its update has the wrong shape"
    return None if report.curvature is None else "tells a curvature that nobody asked for"


def waiting(state: State, missing: tuple[str, ...], answered: set[str]) -> tuple[str, ...]:
    """Whom the round cannot end without; for others, those who answered stand in."""
    now, rule = learning(state), state.study.absent

    def stood_in_for(site: str) -> bool:
        since = now.round + 1 - now.heard.get(site, -(10**9))
        return site in now.heard and (rule.then == "go on" or since <= rule.stand_in)

    return tuple(site for site in missing if not (answered and stood_in_for(site)))


def receive(state: State, answers: dict[str, Any], refused: dict[str, str]) -> State:
    """One round's answers into the next state."""
    import torch  # noqa: PLC0415

    from dorfl.networks import server  # noqa: PLC0415 - brings in torch
    from dorfl.networks.client import Reply, in_order  # noqa: PLC0415 - brings in torch

    now, setting = learning(state), _setting(state)
    for site in sorted(refused.keys() - now.heard.keys()):
        raise ValueError(f"site {site!r} does not take part: {refused[site]}")
    if now.round == setting.plan.rounds:
        return _end(state, setting, {site: report.value for site, report in answers.items()})
    told = {
        i: (torch.from_numpy(answers[site].vector), answers[site].value)
        for i, site in enumerate(state.roster)
        if site in answers
    }
    usual, absurd = server.find_absurd(told, server.TypicalSizes(*now.usual))
    before = _playing(now)
    question, heard = server.ask(setting, before), server.no_replies(before)
    for i in in_order([i for i in told if i not in absurd], setting.counts):
        way, risk = told[i]
        reply = Reply([i], way[None], torch.tensor([risk], dtype=torch.float64))
        server.add_replies(setting, before, question, heard, reply)
    unused = {state.roster[i]: reason for i, reason in absurd.items()}
    after, line = server.step(setting, before, question, heard, {**refused, **unused})
    there = now.heard | dict.fromkeys(line.answered, line.round)
    now = _kept(after, now.decay)._replace(usual=(usual.length, usual.risk), heard=there)
    return state._replace(learning=now, history=(*state.history, line))


def _end(state: State, setting: ServerSettings, told: dict[str, float]) -> State:
    from dorfl.networks import server  # noqa: PLC0415 - brings in torch

    now = learning(state)
    risks = np.array([told.get(s, old) for s, old in zip(state.roster, now.risks, strict=True)])
    objective, gap = server.objective_and_gap(setting.method, risks, now.lam)
    away = {s: now.heard[s] for s in state.roster if s not in told}
    outcome = Outcome(
        theta=now.mean,
        lam=now.lam,
        risks=risks,
        rho=None if np.isinf(setting.method.rho) else setting.method.rho,
        objective=objective,
        gap=gap if setting.method.mixture.adversarial else None,
        l2=now.decay,
        rounds=now.round,
        status="trained",
        message=message(objective, away),
        scatter=state.scatter,
    )
    return state._replace(step="finish", outcome=outcome)


def message(objective: float, away: Mapping[str, int] = MappingProxyType({})) -> str:
    """How a network's training ends; of sites away at the last question, how old their risk is.

    >>> print(message(0.5, {"b": 11}))
    trained (objective 0.5; how far a network is from its best nobody knows); b was away at the \
end: its risk is that of round 11
    """
    said = f"trained (objective {objective:.6g}; how far a network is from its best nobody knows)"
    late = [f"{s} was away at the end: its risk is that of round {n}" for s, n in away.items()]
    return "; ".join([said, *late])


def words(problem: Layered, plan: Plan) -> str:
    """What network it is."""
    layers = " and ".join(map(str, problem.hidden))
    rows = "all rows" if plan.risk_momentum == 0.0 else f"{plan.batch_size} rows"
    return (
        f"A network with layers of {layers}: {problem.size:,} parameters, weight decay "
        f"{plan.l2:.3g}, {plan.rounds} rounds of Adam on {rows} of every client. A linear model "
        "settled what follows."
    )


def described(state: State) -> tuple[str, ...]:
    """The same, of a study that is done; nothing where its model is linear."""
    if state.learning is None:
        return ()
    return (words(_problem(state), _setting(state).plan),)


def learning(state: State) -> Learning:
    """What the network's rounds have come to."""
    assert state.learning is not None
    return state.learning


def _problem(state: State) -> Layered:
    problem = meaning.problem_of(state)
    assert isinstance(problem, Layered)
    return problem


def _setting(state: State) -> ServerSettings:
    from dorfl.networks.server import ServerSettings  # noqa: PLC0415 - brings in torch

    counts, method = np.array(state.believed), _problem(state).method
    plan = planned(state, counts, learning(state).decay)
    return ServerSettings(method, plan, state.roster, counts)


def _kept(playing: ServerState, decay: float) -> Learning:
    carried = tuple(tensor.numpy() for tensor in playing.carried)
    return Learning(
        playing.round, playing.theta.numpy(), playing.mean.numpy(), carried, playing.lam,
        playing.risks, playing.before, decay,
    )  # fmt: skip


def _playing(now: Learning) -> ServerState:
    import torch  # noqa: PLC0415

    from dorfl.networks.server import ServerState  # noqa: PLC0415 - brings in torch

    def tensor(numbers: Array) -> torch.Tensor:
        return torch.from_numpy(numbers.copy())

    return ServerState(
        now.round, tensor(now.theta), tensor(now.mean), [tensor(part) for part in now.carried],
        now.lam, now.risks, now.before, None,
    )  # fmt: skip
