"""Step `round`: one round of training. Sites report their risk, gradient and curvature at θ."""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.federated import pooled
from dorfl.federated import server as federated
from dorfl.federated.client import respond
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.server import Server
from dorfl.federated.simulation import Round
from dorfl.linear.curvature import RESOLUTIONS, coarser
from dorfl.protocol import pooled_rounds, resolution, training
from dorfl.protocol.messages import MAX_ROUNDS, NOT_ASKED, Agreement, Refused, Request
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Sites, Step, unless
from dorfl.protocol.steps import network
from dorfl.selection import outliers
from dorfl.solvers.base import Info, Task
from dorfl.support.types import Array

_MAX_THETA = 1e9  # in a private study: outputs of a row that overflow would show through the noise


class TrainingRound(Step):
    """Pass the sites' reports to the server, until its solver ends."""

    name = "round"
    answer = Report
    sends = "the risk and its gradient"
    may_refuse = True
    is_summed = True
    bits = 40
    sums_without = True
    in_private = True

    def is_due(self, state: State) -> bool:
        """Return whether a linear model is trained, or fixes something for the network."""
        return not network.is_due(state)

    def begin(self, state: State) -> State:
        """Make the server."""
        if state.study.privacy.summed:
            state = pooled_rounds.begin(state)
        return state._replace(server=training.new_server(state))

    def ask(self, state: State, site: str) -> dict[str, Any]:
        """Send θ, λ and the curvature that is requested."""
        return {"broadcast": federated.broadcast(state.running)}

    def local(self, site: LocalSite, request: Request) -> Report:
        """Report the risk at θ, its gradient and its curvature."""
        if request.broadcast is None:
            raise Refused(NOT_ASKED)
        return local_report(site, request.agreement, request.broadcast)

    def validate(self, state: State, site: str, answer: Report) -> str | None:
        """Check the report against the problem and earlier reports."""
        return check_report(state.running, site, answer)

    def waiting(self, state: State, missing: Sites, answered: set[str]) -> Sites:
        """Return the sites whose last report may not be extrapolated any more."""
        return training.awaited_in_round(state, missing, answered)

    def combine(self, state: State, answers: Answers[Any], refused: Reasons) -> State:
        """Update the server; end the training if the solver is done."""
        if state.study.privacy.summed:
            (info,) = answers.values()
            if state.agreed.candidate is not None:
                return training.keep_model(state, info.theta)
            return _ended(state, info)
        server = state.running
        for site in sorted(refused.keys() - server.last.keys()):
            raise ValueError(f"site {site!r} does not take part: {refused[site]}")
        number, (server, info, received) = server.round, federated.receive(server, answers.values())
        received = received._replace(refused={**refused, **received.refused})
        line = Round(number, info.objective, info.gap, info.risks, info.lam, *received)
        if state.study.training.model == "linear":
            state = state._replace(server=server, history=(*state.history, line))
        else:
            state = state._replace(server=server, spent=state.spent + 1)
        info = training.unless_refused(state, info)
        return _ended(state, info) if info.done else state

    def sum_settings(self, state: State) -> dict[str, Any]:
        """Return how reports are weighted."""
        return {"tilt": state.pooled.tilt}

    def size(self, state: State) -> int:
        """Return the numbers of a report."""
        task = federated.broadcast(state.running).task
        return pooled.size(task, resolution.problem_of(state.agreed).layout)

    def encode(self, site: LocalSite, request: Request, answer: Report) -> Array:
        """Return the report, weighted by the site's share of rows or its λ."""
        broadcast, summing = request.broadcast, request.sum
        assert broadcast is not None
        shape = site.group(request.agreement).problem.layout
        try:
            weight = _log_weight(site, request)
            return pooled.terms(answer, weight, broadcast.task, summing.tilt, shape)
        except (OverflowError, ValueError):
            return self.out_of_range(site, request)

    def out_of_range(self, site: LocalSite, request: Request) -> Array:
        """Return a flag, which does not show whose numbers are out of range."""
        assert request.broadcast is not None
        shape = site.group(request.agreement).problem.layout
        return pooled.beyond(request.broadcast.task, shape)

    def decode(self, state: State, total: Array) -> tuple[State, Info | None]:
        """Return the end of the training, or None while it goes on."""
        return pooled_rounds.receive(state, total)

    def give_up(self, state: State, answers: Answers[Any], refused: Reasons) -> State | None:
        """Decide without a comparison if a site takes no part in the training of a candidate."""
        if state.agreed.candidate is not None and refused:
            return training.decide(state, outliers.CAUTIOUS)._replace(step="compare")
        return None


def local_report(site: LocalSite, agreement: Agreement, sent: Broadcast) -> Report:
    """Report on θ of a broadcast, with no finer curvature than the site allows."""
    group, task = site.group(agreement), sent.task
    size = group.problem.layout.size
    if task.theta.shape != (size,) or task.theta.dtype != np.float64:
        raise Refused("θ has another shape than the model agreed on")
    unless(_check_task(task, agreement.study.training.curvature))
    if not 1 <= sent.round <= MAX_ROUNDS:
        raise Refused("the round's number is out of range")
    noise = site.noise(agreement)
    if noise is not None:
        if np.abs(task.theta).max(initial=0.0) > _MAX_THETA:
            raise Refused("θ is out of range")
        return respond(group, sent, 0, noise)[0]
    finest = coarser(task.curvature, site.policy.curvature) if group.problem.bends else "none"
    sent = sent._replace(task=task._replace(curvature=finest))
    return respond(group, sent, 0, least=agreement.study.privacy.least)[0]


def check_report(server: Server, site: str, report: Report) -> str | None:
    """Return why a site's report cannot be used, or None."""
    if report.client != site:
        return "reports for another site"
    return federated.refuse(server, federated.broadcast(server), federated.bare(report))


def _check_task(task: Task, allowed: str) -> str | None:
    """Return what of a task no study with the curvature `allowed` implies, or None.

    Minibatches and local steps are of few rows, which are drawn by a seed that others know.
    """
    if task.kind != "evaluate" or task.batch is not None or task.steps != 1:
        return "the task is none that the study implies: all rows, risk and gradient"
    if task.curvature not in RESOLUTIONS or (
        allowed != "auto" and coarser(task.curvature, allowed) != task.curvature
    ):
        return "the task asks for a curvature that the study does not"
    return None


def _log_weight(site: LocalSite, request: Request) -> float:
    """Return log of the site's weight: its share of the rows or, for the worst mixture, λ_i."""
    agreement, summing = request.agreement, request.sum
    group = site.group(agreement)
    if not group.problem.method.mixture.adversarial:
        rows = site.rows(agreement).num_rows
        return float(np.log(min(rows, summing.most) / summing.rows))
    stages = summing.tilt.stages
    risks = [float(group.evaluate(stage.theta).values[0]) for stage in stages]
    return pooled.multiplier(1.0 / len(agreement.study.sites), risks, stages)


def _ended(state: State, info: Info) -> State:
    """Keep what the training came to."""
    outcome = training.outcome_of(state, info)
    return state.agree(scatter=outcome.scatter)._replace(step=NEXT, trained=outcome)
