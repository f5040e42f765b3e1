"""Step `select`: train the candidates for the outlier share, all of them in the same rounds.

In a summed study candidates are trained one after the other, by the step `round`.
"""

from __future__ import annotations

from typing import Any

from dorfl.federated import server as federated
from dorfl.federated.simulation import Round
from dorfl.protocol import resolution, training
from dorfl.protocol.messages import NOT_ASKED, Refused, Reports, Request
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Sites, Step
from dorfl.protocol.steps.round import check_report, local_report
from dorfl.selection import constants, outliers
from dorfl.selection.outliers import Decision

_UNKNOWN = "the candidates are none that the study implies"


class Select(Step):
    """Train the candidates."""

    name = "select"
    answer = Reports
    sends = "the risks and gradients of the candidates"
    may_refuse = True

    def is_due(self, state: State) -> bool:
        """Return whether candidates are compared."""
        return resolution.selects(state.study)

    def begin(self, state: State) -> State:
        """Train the candidates without a model; go on to the comparison if all have one."""
        if not state.selection.models:
            state = _choose_candidates(state)
            if not state.selection.models:
                return state._replace(step=NEXT)
        selection = state.selection
        left = selection.untrained
        if not left:
            return state.agree(candidate=None)._replace(step="compare")
        if state.study.privacy.summed:
            place, candidate = left[0], selection.candidates[left[0]]
            # With a smaller ridge, training starts from the model with the usual one.
            start = selection.models[place - 1] if candidate.ridge < 1.0 else None
            state = state._replace(selection=selection._replace(start=start), step="round")
            return state.agree(candidate=candidate)
        servers = tuple(
            training.new_server(state.agree(candidate=candidate)) if model is None else None
            for candidate, model in zip(selection.candidates, selection.models, strict=True)
        )
        return state._replace(selection=selection._replace(servers=servers))

    def ask(self, state: State, site: str) -> dict[str, Any]:
        """Send the candidates, and θ of those that are still trained."""
        return {
            "candidates": state.selection.candidates,
            "broadcasts": {key: federated.broadcast(one) for key, one in _running(state).items()},
        }

    def local(self, site: LocalSite, request: Request) -> Reports:
        """Report on all candidates that are still trained."""
        if not request.broadcasts:
            raise Refused(NOT_ASKED)
        check_candidates(request)
        if not set(request.broadcasts) <= set(map(str, range(len(request.candidates)))):
            raise Refused(_UNKNOWN)
        reports = {}
        for place, sent in request.broadcasts.items():
            candidate = request.candidates[int(place)]
            agreement = request.agreement._replace(candidate=candidate)
            reports[place] = local_report(site, agreement, sent)
        return Reports(reports)

    def validate(self, state: State, site: str, answer: Reports) -> str | None:
        """Check the reports."""
        servers = _running(state)
        if set(answer.reports) != set(servers):
            return "it reports on other candidates than those asked about"
        reasons = (check_report(servers[k], site, one) for k, one in answer.reports.items())
        return next((reason for reason in reasons if reason), None)

    def waiting(self, state: State, missing: Sites, answered: set[str]) -> Sites:
        """Return the sites whose last reports may not be extrapolated any more."""
        return training.awaited_in_round(state, missing, answered)

    def combine(self, state: State, answers: Answers[Reports], refused: Reasons) -> State:
        """Pass the reports to the candidates' servers; decide without them if a site refuses."""
        if refused:
            return training.decide(state, outliers.CAUTIOUS)
        selection = state.selection
        servers, models = list(selection.servers), list(selection.models)
        for k, server in enumerate(selection.servers):
            if server is None:
                continue
            reports = [answer.reports[str(k)] for answer in answers.values()]
            after, info, received = federated.receive(server, reports)
            if received.odd:  # implausible reports: no comparison can be based on them
                line = Round(
                    server.round, info.objective, info.gap, info.risks, info.lam, *received
                )
                return training.decide(
                    state._replace(history=(*state.history, line)), outliers.CAUTIOUS
                )
            servers[k] = None if info.done else after
            models[k] = info.theta if info.done else None
        selection = selection._replace(servers=tuple(servers), models=tuple(models))
        state = state._replace(selection=selection, spent=state.spent + 1)
        return state if selection.untrained else state._replace(step="compare")


def _choose_candidates(state: State) -> State:
    """Return the state with candidates and a place for each model, or without if none is needed."""
    least, cutoffs = state.study.privacy.least, state.agreed.cutoffs
    if least > 1 and max(state.rows) < constants.HELD_OUT * outliers.STRATUM:
        return state.agree(decision=Decision(0.0))  # no client can report on held-out rows
    given = state.study.training.l2 is not None
    scored = tuple(
        candidate
        for candidate in state.selection.candidates
        if (candidate.share == 0 or cutoffs) and (candidate.ridge == 1 or not given)
    )
    state = state._replace(selection=state.selection._replace(candidates=scored))
    if len(scored) == 1 and not resolution.compares_labels(state):
        return state
    selection = state.selection._replace(models=(None,) * len(scored))
    state = state.agree(row_limit=outliers.row_limit(len(state.sites)))
    return state._replace(selection=selection)


def _running(state: State) -> dict[str, Any]:
    """Return the servers of candidates that are still trained, by place."""
    return {str(k): server for k, server in enumerate(state.selection.servers) if server}


def check_candidates(request: Request) -> None:
    """Raise Refused for candidates that the selection of outliers does not have."""
    known = outliers.default_candidates()
    allowed = {*known, *(candidate._replace(labels=True) for candidate in known)}
    if not (request.agreement.row_limit and set(request.candidates) <= allowed):
        raise Refused(_UNKNOWN)
    if len(set(request.candidates)) < len(request.candidates):
        raise Refused(_UNKNOWN)
    models = request.models
    if models is not None and (models.dtype != float or len(models) != len(request.candidates)):
        raise Refused(_UNKNOWN)
