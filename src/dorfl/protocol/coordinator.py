"""The coordinator's side of a study, from enrolment to certificate, as a pure state machine.

    enrol → columns → spreads → center → round … round → finish → done

Every step asks each site for one answer (:func:`request`); :func:`read` checks what comes back, and
:func:`receive` makes the next state of it. Engines only carry: the same functions run in process
and over a network, and give the same numbers. The state is all there is to save: a coordinator that
starts again from it asks the same question again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dorfl import centers, preprocessing, training
from dorfl import certificate as certifying
from dorfl.certificate import Bound, Part
from dorfl.federation import server as serving
from dorfl.federation.local import Round
from dorfl.federation.messages import Report
from dorfl.federation.server import Server
from dorfl.preprocessing import Numeric, Transform, sketch
from dorfl.problem import Problem
from dorfl.protocol import vetting, wire
from dorfl.protocol.messages import (
    Agreement,
    Answer,
    Columns,
    Enrolled,
    Outcome,
    Place,
    Refusal,
    Reply,
    Request,
    Spreads,
)
from dorfl.protocol.study import (
    Study,
    label_plan,
    limits_of,
    loss_of,
    mechanism_of,
    method_of,
    plan_of,
)
from dorfl.solvers.base import Info
from dorfl.types import Array


class State(NamedTuple):
    """All that a coordinator carries through a study."""

    run: str
    study: Study
    roster: tuple[str, ...]
    step: str = "enrol"
    rows: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    transform: Transform | None = None
    target: Numeric | None = None
    centers: Array | None = None  # ξ̄ by site
    edge: float | None = None
    server: Server | None = None
    history: tuple[Round, ...] = ()
    outcome: Outcome | None = None
    parts: dict[str, Part] = {}  # noqa: RUF012 - replaced, never changed in place


_ANSWERS: dict[str, type] = {
    "enrol": Enrolled,
    "columns": Columns,
    "spreads": Spreads,
    "center": Place,
    "round": Report,
    "finish": Part,
}


def begin(study: Study, run: str) -> State:
    """Before enrolment. The roster is fixed here, in an order that depends on names alone."""
    return State(run, study, tuple(sorted(study.sites)))


def request(state: State, site: str) -> Request:
    """What to ask `site` now."""
    center = None if state.centers is None else state.centers[state.roster.index(site)]
    agreement = Agreement(
        state.run, site, state.study, state.columns, state.classes, state.transform, state.target,
        center, state.edge,
    )  # fmt: skip
    sent = serving.broadcast(_training(state)) if state.step == "round" else None
    outcome = state.outcome if state.step == "finish" else None
    return Request(agreement, state.step, sent, outcome)


def read(state: State, site: str, data: bytes) -> Answer:
    """The answer in the bytes that came from `site`; ValueError says why it cannot be used.

    Who sent them is what the transport knows, not what the message says.
    """
    reply = wire.decode(data, Reply)
    if reply.site != site:
        raise ValueError("gives another site's name")
    if reply.run != state.run:
        raise ValueError("belongs to another run")
    if reply.step != state.step:
        raise ValueError(f"answers step {reply.step[:20]!r}, this is {state.step!r}")
    if isinstance(reply.answer, Refusal):
        return Refusal(reply.answer.reason[:500])
    if not isinstance(reply.answer, _ANSWERS[state.step]):
        raise ValueError(f"is no answer to step {state.step!r}")
    if isinstance(reply.answer, Report) and reply.answer.client != site:
        raise ValueError("reports for another site")
    rows = state.rows[state.roster.index(site)] if state.rows else 0
    dims = len(state.transform.names) if state.transform else 0
    reason = vetting.wrong(reply.answer, rows, dims, state.server)
    if reason is not None:
        raise ValueError(reason)
    return reply.answer


def waiting(state: State, answered: set[str]) -> tuple[str, ...]:
    """Whom the step cannot end without, although time is up: see :class:`~.study.Absent`."""
    missing = tuple(site for site in state.roster if site not in answered)
    if state.step == "finish":
        return ()
    if state.step != "round" or not answered:
        return missing
    server, rule = _training(state), state.study.absent
    evaluates = server.solver.ask(server.solving).kind == "evaluate"

    def stands_in(site: str) -> bool:
        if site not in server.last or not evaluates:
            return False
        since = server.round - server.last[site][1].round
        return rule.then == "go on" or since <= rule.stand_in

    return tuple(site for site in missing if not stands_in(site))


def receive(
    state: State, answers: dict[str, Answer], refused: dict[str, str] | None = None
) -> State:
    """One step's answers into the next state; `refused` says what was wrong with others'.

    Before training a site's refusal ends the study, with a ValueError that names it; during
    training the site counts as absent.
    """
    refused = dict(refused or {})
    for site in state.roster:
        answer = answers.get(site)
        if isinstance(answer, Refusal):
            if state.step not in ("round", "finish"):
                raise ValueError(f"site {site!r} does not take part: {answer.reason}")
            refused[site] = answer.reason
    good = {s: a for s in state.roster if not isinstance(a := answers.get(s), Refusal | None)}
    return _NEXT[state.step](state, good, refused)


def problem_of(agreement: Agreement | State) -> Problem:
    """What is trained, once columns and classes are agreed on; classes are 0, 1, … in order."""
    study, transform, classes = agreement.study, agreement.transform, agreement.classes
    assert transform is not None
    problem = Problem(
        method_of(study.method, len(transform.names), transform.frozen, agreement.edge),
        loss_of(study, len(classes)),
        len(transform.names),
        np.arange(len(classes)),
        study.training.intercept,
    )
    problem.check()
    return problem


def new_server(state: State) -> tuple[Server, int]:
    """The server before the first round, and its budget."""
    problem, options = problem_of(state), state.study.training
    mechanism = mechanism_of(state.study)
    return training.serve(
        problem, state.roster, np.array(state.rows), np.zeros(problem.size), l2=l2_of(state),
        solver=options.solver if mechanism is None else "auto", tol=options.tolerance,
        max_rounds=options.rounds, trim=state.study.defence.trim, limits=limits_of(state.study),
        centers=state.centers, privacy=mechanism,
    )  # fmt: skip


def l2_of(state: State) -> float:
    """As the study says, or one row's worth."""
    l2 = state.study.training.l2
    return 1.0 / sum(state.rows) if l2 is None else l2


def certificate(state: State) -> Bound | None:
    """Proposition 2 for the finished model, where there is transport and every site answered."""
    method = problem_of(state).method
    if state.outcome is None or np.isinf(method.rho) or set(state.parts) != set(state.roster):
        return None
    parts = [state.parts[site] for site in state.roster]
    return certifying.combine(parts, state.outcome.lam, method)


def _enrol(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    first = state.roster[0]
    columns = state.study.columns.use or tuple(answers[first].columns)
    for site, told in answers.items():
        odd = set(told.columns) ^ set(columns)
        if odd:
            raise ValueError(
                f"column {min(odd)!r}: site {site!r} and site {first!r} do not agree on it; name "
                "the columns that all have: [columns] use = [...]"
            )
        if told.rows < state.study.privacy.minimum_rows:
            raise ValueError(f"site {site!r}: enrols with fewer rows than the study's minimum")
        if told.rows > (state.study.defence.most_rows or told.rows):
            raise ValueError(f"site {site!r}: enrols with more rows than the study believes")
    rows = tuple(answers[site].rows for site in state.roster)
    return state._replace(step="columns", rows=rows, columns=columns)


def _columns(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    study = state.study
    used = [name for name in state.columns if name not in study.columns.ignore]
    for site, told in answers.items():
        if set(told.columns) != set(used):
            raise ValueError(f"site {site!r}: tells of other columns than those asked for")
    ordered = {s: {name: told.columns[name] for name in used} for s, told in answers.items()}
    transform = preprocessing.agree(ordered, plan_of(study))
    if not transform.names:
        raise ValueError("study: no column is left to learn from")
    state = state._replace(transform=transform)
    label, plan = study.data.label, label_plan(study)
    if study.data.task == "classification":
        held = {level for told in answers.values() for level in told.label.levels}
        classes = tuple(sorted(study.data.classes or held))
        if len(classes) < 2:
            raise ValueError(f"label {label!r}: the sites hold rows of one class only")
        state = state._replace(classes=classes)
        return state._replace(step="spreads") if transform.scaling != "none" else _spread(state)
    scaled = preprocessing.agree({s: {label: told.label} for s, told in answers.items()}, plan)
    if not scaled.numeric:
        raise ValueError(f"label {label!r}: {scaled.ignored.get(label, 'has too few values')}")
    return state._replace(target=scaled.numeric[0], step="spreads")


def _spreads(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    transform, study = state.transform, state.study
    assert transform is not None
    for site, told in answers.items():
        if set(told.spreads) != {part.name for part in transform.numeric}:
            raise ValueError(f"site {site!r}: tells of other columns than those asked for")
        if (told.label is None) != (state.target is None):
            raise ValueError(f"site {site!r}: its answer does not fit the label")
    if transform.scaling != "none":
        told = {site: answer.spreads for site, answer in answers.items()}
        state = state._replace(transform=preprocessing.scale(transform, told, plan_of(study)))
    if state.target is not None:
        label = study.data.label
        scaled = preprocessing.scale(
            Transform((state.target,), {}),
            {site: {label: answer.label} for site, answer in answers.items()},
            label_plan(study),
        )
        target = scaled.numeric[0]._replace(flagged=False)
        state = state._replace(target=target)
    return _spread(state)


def _spread(state: State) -> State:
    """On to training, or first to where the sites' rows are, for a score that has a centre."""
    return state._replace(step="center") if state.study.method.scores else _start(state)


def _center(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    told = [answers[site] for site in state.roster]
    own = np.array([place.mean for place in told])
    if state.study.method.center == "auto":
        common = centers.combine([centers.Summary(place.kept, place.mean) for place in told])
        own = np.tile(common, (len(told), 1))
    edge = sketch.quantile([place.distances for place in told], state.study.method.bulk)
    return _start(state._replace(centers=own, edge=edge if np.isfinite(edge) and edge > 0 else 1.0))


def _start(state: State) -> State:
    return state._replace(step="round", server=new_server(state)[0])


def _round(state: State, answers: dict[str, Any], refused: dict[str, str]) -> State:
    server = _training(state)
    number = server.round
    server, info, heard = serving.receive(server, answers.values())
    line = Round(
        number, info.objective, info.gap, info.risks, info.lam, heard.answered,
        {**refused, **heard.refused}, heard.clipped,
    )  # fmt: skip
    state = state._replace(server=server, history=(*state.history, line))
    early = training.stop_rule(problem_of(state), np.array(state.rows), l2_of(state), np.inf)
    noisy = state.study.privacy.epsilon is not None
    status = info.done or (early(info) if early and not noisy else "")
    if not status and number >= new_server(state)[1]:
        status = "budget"
    return state if not status else _end(state, info, status)


def _end(state: State, info: Info, status: str) -> State:
    rho = problem_of(state).method.rho
    outcome = Outcome(
        theta=info.theta,
        lam=info.lam,
        risks=info.risks,
        rho=None if np.isinf(rho) else rho,
        objective=info.objective,
        gap=info.gap if np.isfinite(info.gap) else None,
        l2=l2_of(state),
        rounds=len(state.history),
        status=status,
        message=training.describe(status, info, state.study.training.tolerance),
    )
    return state._replace(step="finish", outcome=outcome)


def _finish(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    return state._replace(step="done", parts=answers)


def _training(state: State) -> Server:
    assert state.server is not None
    return state.server


_NEXT: dict[str, Callable[[State, dict[str, Any], dict[str, str]], State]] = {
    "enrol": _enrol,
    "columns": _columns,
    "spreads": _spreads,
    "center": _center,
    "round": _round,
    "finish": _finish,
}
