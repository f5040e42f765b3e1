"""Step `compare`: compare the candidates on held-out rows, and decide on the outlier share."""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.data import robust
from dorfl.linear.problem import Problem
from dorfl.protocol import resolution, training
from dorfl.protocol.messages import NOT_ASKED, Agreement, Refused, Request
from dorfl.protocol.reply_validation import MAX_RISK
from dorfl.protocol.state import State
from dorfl.protocol.step import Answers, LocalSite, Reasons, Sites, Step
from dorfl.protocol.steps.select import check_candidates
from dorfl.protocol.training_rows import label_weights
from dorfl.selection import constants, outliers
from dorfl.selection.outliers import Candidate, HeldOut, pairs_of
from dorfl.support.types import Array


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
        return check(answer, state.rows_of(site))

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
        return check(answer, sum(state.rows))


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


def check(answer: HeldOut, rows: int) -> str | None:
    """Return why statistics of at most so many held-out rows cannot be true, or None."""
    pairs, count = answer.rows.shape, len(answer.losses)
    shaped = {part.shape for part in answer[:4]} == {pairs}
    shaped = shaped and len(answer.rows) == len(pairs_of(count))
    if not shaped or {part.dtype for part in answer} != {np.dtype(float)}:
        return "its held-out statistics do not fit the candidates"
    if answer.rows.min(initial=0.0) < 0.0 or (answer.rows > rows).any():
        return "its number of held-out rows is out of range"
    if (np.r_[answer.variances, answer.errors] < 0.0).any():
        return "its held-out statistics do not add up"
    largest = max(np.abs(part).max(initial=0.0) for part in answer)
    return "its held-out losses are out of range" if largest > MAX_RISK else None
