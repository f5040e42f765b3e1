"""Steps `select` and `compare`: train candidates in the same rounds, and compare them.

In a summed study candidates are trained one after the other, by the step `round`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.data import robust
from dorfl.federated import server as federated
from dorfl.federated.simulation import Round
from dorfl.linear.problem import Problem
from dorfl.protocol import resolution, training
from dorfl.protocol.messages import NOT_ASKED, Agreement, Refused, Reports, Request
from dorfl.protocol.reply_validation import MAX_RISK
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Sites, Step
from dorfl.protocol.steps.round import check_report, local_report
from dorfl.protocol.training_rows import label_weights
from dorfl.selection import constants, outliers
from dorfl.selection.outliers import Candidate, Decision, HeldOut, pairs_of
from dorfl.support.types import Array

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


class Compare(Step):
    """Decide on the candidates by their losses on held-out rows of all clients."""

    name = "compare"
    answer = HeldOut
    sends = "differences of the candidates' losses on held-out rows"
    may_refuse = True
    is_summed = True

    def is_due(self, state: State) -> bool:
        """Return whether candidates are trained; the step `select` leads here."""
        return bool(state.selection.models)

    def ask(self, state: State, site: str) -> dict[str, Any]:
        """Send the candidates and their models."""
        chosen = state.selection
        return {"candidates": chosen.candidates, "models": np.array(chosen.models)}

    def local(self, site: LocalSite, request: Request) -> HeldOut:
        """Return the statistics of the candidates' losses on the site's held-out rows."""
        agreement, models = request.agreement, request.models
        if models is None:
            raise Refused(NOT_ASKED)
        check_candidates(request)
        X, y = site.features(agreement)
        problem = resolution.problem_of(agreement)
        center = site.center(agreement, X, y) if agreement.cutoffs else None
        losses = candidate_losses(problem, models, X, y, agreement, center)
        return outliers.compare_losses(request.candidates, losses, agreement.study.privacy.least)

    def validate(self, state: State, site: str, answer: HeldOut) -> str | None:
        """Check shapes, ranges, and the number of held-out rows."""
        return check_held_out(answer, _sizes(state), state.rows_of(site))

    def waiting(self, state: State, missing: Sites, answered: set[str]) -> Sites:
        """Return no site once one has answered."""
        return () if answered else missing

    def combine(self, state: State, answers: Answers[HeldOut], refused: Reasons) -> State:
        """Decide; labels are compared in a second comparison."""
        if not answers:  # no site takes part in the comparison
            return training.decide(state, outliers.CAUTIOUS)
        total, classifies = outliers.combine(list(answers.values())), bool(state.agreed.classes)
        selection, first = state.selection._replace(compared=total), state.agreed.decision
        decision = outliers.decide(selection.candidates, total, classifies)
        winner = selection.models[outliers.select(selection.candidates, total, classifies)]
        if first is not None:  # labels were compared second, and the share of outliers stands
            if first.rows and (first.share > 0 or not decision.labels):
                decision = first._replace(labels=decision.labels)
        elif (decision.rows or len(selection.candidates) == 1) and resolution.compares_labels(
            state
        ):
            plain = Candidate(decision.share, ridge=decision.ridge)
            labelled = (plain, plain._replace(labels=True))
            selection = selection._replace(candidates=labelled, models=(winner, None))
            state = state.agree(decision=decision, reference=winner)
            return state._replace(step="select", selection=selection)
        state = state._replace(selection=selection._replace(start=winner))
        return training.decide(state, decision)

    def size(self, state: State) -> int:
        """Return the numbers of all statistics."""
        return sum(_sizes(state))

    def encode(self, site: LocalSite, request: Request, answer: HeldOut) -> Array:
        """Return the statistics one after the other."""
        return np.concatenate(answer)

    def decode(self, state: State, total: Array) -> tuple[State, HeldOut]:
        """Return the statistics of all clients."""
        return state, HeldOut(*np.split(total, np.cumsum(_sizes(state))[:-1]))

    def validate_sum(self, state: State, answer: HeldOut) -> str | None:
        """Check the sums against the rows of all sites."""
        return check_held_out(answer, _sizes(state), sum(state.rows))


def candidate_losses(
    problem: Problem,
    models: Array,
    X: Array,
    y: Array,
    agreed: Agreement,
    center: Array | None,
) -> list[Array]:
    """Return the losses of every candidate on a client's held-out rows, of all its rows `X`, `y`.

    `center` is ξ̄ of the client, or of its classes; None if no row can be an outlier.
    """
    least = agreed.study.privacy.least
    _, held = outliers.split_rows(len(y), agreed.row_limit, y if agreed.classes else None)
    if agreed.cutoffs and center is not None:
        offset = X[held].astype(np.float64) - robust.row_centers(center, y[held])
        away = offset**2 @ resolution.shape_of(agreed)
        held = held[outliers.compared_rows(away, max(agreed.cutoffs)[1], least)]
    if agreed.reference is not None:  # labels are compared: only rows whose label fits
        fitting = label_weights(problem, agreed.reference, X[held], y[held])
        held = held[outliers.compared_rows(1.0 - fitting, 0.5 / constants.COMPARED, least)]
    return [
        outliers.held_out_losses(problem, theta[: problem.size], X[held], y[held])
        for theta in models
    ]


def _sizes(state: State) -> list[int]:
    """Return the lengths of the parts of :class:`HeldOut`."""
    pairs = len(pairs_of(len(state.selection.candidates)))
    return [pairs] * 4 + [len(state.selection.candidates)]


def check_held_out(answer: HeldOut, sizes: list[int], rows: int) -> str | None:
    """Return why parts of these lengths, of at most so many rows, cannot be true, or None."""
    shapes = [part.shape for part in answer]
    if shapes != [(size,) for size in sizes] or {part.dtype for part in answer} != {
        np.dtype(float)
    }:
        return "its held-out statistics do not fit the candidates"
    if answer.rows.min(initial=0.0) < 0.0 or (answer.rows > rows).any():
        return "its number of held-out rows is out of range"
    if (np.r_[answer.variances, answer.errors] < 0.0).any():
        return "its held-out statistics do not add up"
    largest = max(np.abs(part).max(initial=0.0) for part in answer)
    return "its held-out losses are out of range" if largest > MAX_RISK else None
