"""Step `finish`: sites report their statistics under the finished model, and keep the model.

In a summed study a site releases rounded figures at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dorfl.certificates import certificate
from dorfl.certificates.certificate import Bound
from dorfl.data import sketch
from dorfl.data.preprocessing import Numeric
from dorfl.federated.messages import Report
from dorfl.linear.group import Group
from dorfl.linear.problem import Problem
from dorfl.protocol import constant_baseline, resolution
from dorfl.protocol.messages import (
    NOT_ASKED,
    Agreement,
    Finished,
    Outcome,
    Refused,
    Released,
    Request,
)
from dorfl.protocol.reply_validation import MAX_RISK
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Sites, Step
from dorfl.protocol.steps import network
from dorfl.protocol.training_rows import outputs
from dorfl.support.threads import each
from dorfl.support.types import Array

EDGES = (0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of rows' weights
_MAX_CERTIFIED = 20_000_000  # numbers; the worst case of more takes more memory than training does
_SCORE_STEP = 0.01  # step of a released accuracy, if so many rows are `least` or more
_DIGITS = 2  # significant digits of a released loss or error
_MAX_RISK_RATIO = 1e3  # largest difference of a risk with and without the score's level


class Finish(Step):
    """Keep the sites' statistics under the finished model."""

    name = "finish"
    answer = (Finished, Released)
    sends = "the loss and the accuracy of the model at the site"
    may_refuse = True
    is_open = True  # rounded figures, if the site releases them
    in_private = True  # the site keeps the model, and sends nothing

    def ask(self, state: State, site: str) -> dict[str, Any]:
        """Send the model."""
        return {"outcome": state.outcome}

    def local(self, site: LocalSite, request: Request) -> Finished | Released:
        """Report statistics, rounded in a summed study; the site keeps the model."""
        agreement, outcome = request.agreement, request.outcome
        if outcome is None:
            raise Refused(NOT_ASKED)
        if agreement.decay is not None:
            found = network.finished(site, agreement, outcome, client_statistics)
        else:
            group = finished_group(site, agreement, outcome)
            site.keep(agreement, group, outcome)
            least = agreement.study.privacy.least
            found = statistics(group, outcome.theta, agreement.target, least)[0]
        if agreement.study.privacy.epsilon is not None:
            raise Refused("the study is private: a site's exact figures are not sent")
        return _released(site, agreement, found) if agreement.study.privacy.summed else found

    def validate(self, state: State, site: str, answer: Finished | Released) -> str | None:
        """Check ranges, and the certificate's part against the risk that the site reported."""
        if state.study.privacy.summed != isinstance(answer, Released):
            return f"is no answer to step {self.name!r}"
        if isinstance(answer, Released):
            return None
        last = state.server.last.get(site) if state.server is not None else None
        rows = state.rows_of(site)
        return _check(answer, rows, None if last is None else last[1])

    def waiting(self, state: State, missing: Sites, answered: set[str]) -> Sites:
        """Return no site: the model is trained."""
        return ()

    def combine(self, state: State, answers: Answers[Any], refused: Reasons) -> State:
        """Keep the statistics, and which sites sent none."""
        state = state._replace(step=NEXT)
        if state.study.privacy.summed:
            return state._replace(released=dict(answers))
        missing = unanswered(state, answers, refused)
        withheld = missing if resolution.certifies(state.study) else {}
        return state._replace(finished=dict(answers), withheld=withheld)


def unanswered(
    state: State, answers: Mapping[str, object], refused: Mapping[str, str]
) -> dict[str, str]:
    """Return the sites without an answer, and the reason that each gave."""
    return {
        site: refused.get(site, "it did not reply in time")
        for site in state.sites
        if site not in answers
    }


def finished_group(site: LocalSite, agreement: Agreement, outcome: Outcome) -> Group:
    """Return the site's rows; raise Refused if the model is not the one agreed on."""
    group = site.group(agreement)
    if outcome.theta.shape != (group.problem.size,):
        raise Refused("θ has another shape than the model agreed on")
    return group


def certificate_of(state: State) -> Bound | None:
    """Return Proposition 2 for the finished model, if there is transport and all sites replied."""
    method = resolution.problem_of(state.agreed).method
    found = [state.finished[site].part for site in state.sites if site in state.finished]
    parts = [part for part in found if part is not None]
    if np.isinf(method.rho) or len(parts) < len(state.sites):
        return None
    return certificate.combine(parts, state.outcome.lam, method)


def statistics(group: Group, theta: Array, target: Numeric | None, least: int) -> list[Finished]:
    """Return the clients' statistics under a linear model, with their parts of the certificate."""
    parts: list[certificate.Part | None] = [None] * len(group.names)
    if np.isfinite(group.problem.method.rho) and group.rows.size <= _MAX_CERTIFIED:
        parts = list(certificate.parts(group, theta))
    weights = group.sample_weights(theta)

    def one(i: int) -> Finished:
        rows = slice(int(group.bounds[i]), int(group.bounds[i + 1]))
        X, y = group.rows[rows], group.target[rows]
        found = client_statistics(group.problem, theta, X, y, weights[i], target, least)
        return found._replace(part=parts[i])

    return each(one, range(len(parts)))


def client_statistics(
    problem: Problem, theta: Array, X: Array, y: Array, p: Array, target: Numeric | None, least: int
) -> Finished:
    """Return the statistics of one client under any model."""
    out = outputs(problem, theta, X)
    loss = problem.loss.value(out, y)
    learnt = constant_baseline.measure(problem, loss, y, p)
    score = _score(problem, out, y, target, least)
    return Finished(float(loss.mean()), score, learnt, count_weights(p * len(y), least), None)


def count_weights(relative: Array, least: int) -> tuple[int, ...]:
    """Count rows by weight, in blocks of `least`; an ordinary row has weight 1.

    >>> count_weights(np.array([1.1] * 7 + [0.0] * 7), least=5)
    (7, 0, 0, 0, 0, 0, 0, 7, 0, 0)
    """
    counts, _ = np.histogram(sketch.levelled(relative, least), [*EDGES, np.inf])
    return tuple(int(count) if count >= least else 0 for count in counts)


def _score(problem: Problem, out: Array, y: Array, target: Numeric | None, least: int) -> float:
    """Return the accuracy, or the mean absolute error in the label's own unit.

    Exact counts of many models would show where single rows lie. So correct predictions are counted
    in blocks of `least` rows, which are ordered by margin.
    """
    if not problem.loss.classifies:
        off = np.abs(sketch.levelled(out - y, least)) if least > 1 else np.abs(out - y)
        return float(off.mean() * (target.spread if target else 1.0))
    correct = problem.loss.predict(out, problem.classes) == problem.decode(y)
    if least <= 1:
        return float(correct.mean())
    top = np.sort(out.reshape(len(out), -1), axis=1)
    margin = np.abs(top[:, 0]) if top.shape[1] == 1 else top[:, -1] - top[:, -2]
    return float((sketch.levelled(np.where(correct, margin, -margin), least) > 0.0).mean())


def _released(site: LocalSite, agreement: Agreement, found: Finished) -> Released:
    """Return the site's figures, rounded so that fewer than `least` rows show little."""
    if not site.policy.release_figures:
        return Released(None, None)
    score = _significant(found.score)
    if agreement.classes:
        unit = max(_SCORE_STEP, site.policy.least / site.rows(agreement).num_rows)
        score = min(round(found.score / unit) * unit, 1.0)
    return Released(_significant(found.loss), score)


def _significant(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _check(answer: Finished, rows: int, last: Report | None) -> str | None:
    largest = max(abs(answer.loss), abs(answer.score), abs(answer.learnt.loss))
    if max(largest, answer.learnt.middle) > MAX_RISK:
        return "its loss or score is out of range"
    if any(not 0 <= share <= 1 + 1e-9 for share in answer.learnt.classes):
        return "the shares of its classes are out of range"
    if any(count < 0 for count in answer.weights) or sum(answer.weights) > rows:
        return "its rows by weight do not add up"
    part = answer.part
    if part is not None:
        sizes = (part.value, part.spent, part.attained, part.error or 0.0)
        if max(map(abs, sizes)) > MAX_RISK or part.spent < 0.0 or (part.error or 0.0) < 0.0:
            return "its part of the certificate is out of range"
        # Its last report has the same risk, except for the level of its score.
        if last is not None and (
            abs(part.value - last.value) > _MAX_RISK_RATIO * (1.0 + abs(last.value))
        ):
            return "its part of the certificate does not fit the risk that it reported"
    return None
