"""The coordinator's side of a study, from enrolment to certificate, as a pure state machine.

    enrol → columns → spreads → center → edge → round … round → finish → certify → done

A regression trains twice: once how far residuals scatter is known (`residuals`), Huber's loss is
set in that unit and rounds go on from where they were.

Every step asks each site for one answer (:func:`request`); :func:`read` checks what comes back, and
:func:`receive` makes the next state of it. Engines only carry: the same functions run in process
and over a network, and give the same numbers. The state is all there is to save: a coordinator that
starts again from it asks the same question again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dorfl.data import preprocessing
from dorfl.data import spread as spreading
from dorfl.data.preprocessing import Numeric, Transform
from dorfl.data.sketch import Sketch
from dorfl.data.spread import Place, Spread
from dorfl.federation import apart, training
from dorfl.federation import server as serving
from dorfl.federation.fit import describe
from dorfl.federation.local import Round
from dorfl.federation.messages import Report
from dorfl.federation.server import Server
from dorfl.guarantees import certificate as certifying
from dorfl.guarantees.bound import Told
from dorfl.guarantees.certificate import Bound
from dorfl.solvers.base import Info
from dorfl.study import defaults, meaning, secure, settling, summing, vetting
from dorfl.study.messages import (
    Answer,
    Columns,
    Enrolled,
    Finished,
    Outcome,
    Refusal,
    Reply,
    Request,
    Spreads,
)
from dorfl.study.secure import Sum
from dorfl.study.settings import Study
from dorfl.study.settling import scale_label, settle_label
from dorfl.support import text, wire
from dorfl.support.types import Array


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
    spread: Spread | None = None
    centers: Array | None = None  # ξ̄ by site
    edge: float | None = None
    scatter: float | None = None  # of residuals
    server: Server | None = None
    history: tuple[Round, ...] = ()
    outcome: Outcome | None = None
    finished: dict[str, Finished] = {}  # noqa: RUF012 - replaced, never changed in place
    told: dict[str, Told] = {}  # noqa: RUF012 - so is this
    sum: Sum = Sum()  # of a study of secure sums
    here: bool = False  # whether all rows are in this process: nothing is a site's word alone
    sizes: tuple[float, ...] = ()  # what clients weigh, where rows do not count alike

    @property
    def apart(self) -> bool:
        """Whether the sites have rows enough for a middle of their own."""
        return spreading.apart(self.rows)

    @property
    def shown(self) -> dict[str, int]:
        """Whose λ and risk are known, with their rows: every site's, or that of all together."""
        if self.study.privacy.secure_sum:
            return {summing.ALL: sum(self.rows)}
        return dict(zip(self.roster, self.rows, strict=True))

    @property
    def believed(self) -> tuple[float, ...]:
        """The rows that sites weigh by."""
        most = self.study.defence.most_rows
        return self.sizes or vetting.believed(self.rows, most, sites=not self.here)


_ANSWERS: dict[str, type] = {
    "enrol": Enrolled,
    "columns": Columns,
    "levels": Columns,
    **secure.ANSWERS,
    "spreads": Spreads,
    "center": Place,
    "edge": Sketch,
    "round": Report,
    "residuals": Sketch,
    "finish": Finished,
    "certify": Told,
}
_AFTER = ("residuals", "finish", "certify")  # steps that go on with whoever answers


def begin(study: Study, run: str) -> State:
    """Before enrolment. The roster is fixed here, in an order that depends on names alone."""
    return State(run, study, tuple(sorted(study.sites, key=lambda n: (n.startswith("("), n))))


def request(state: State, site: str) -> Request:
    """What to ask `site` now."""
    sent = serving.broadcast(_training(state)) if state.step == "round" else secure.sent(state)
    outcome = state.outcome if state.step in _AFTER else None
    return Request(
        meaning.agreed(state, site), state.step, sent, outcome, secure.question(state, site),
        meaning.thin(state),
    )  # fmt: skip


def asked(state: State) -> tuple[str, ...]:
    """Whom to ask now: the roster, or who takes part in a secure sum."""
    return secure.asked(state)


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
        return Refusal(text.one_line(reply.answer.reason))
    if not isinstance(reply.answer, _ANSWERS[state.step]):
        raise ValueError(f"is no answer to step {state.step!r}")
    if isinstance(reply.answer, Report) and reply.answer.client != site:
        raise ValueError("reports for another site")
    rows = state.rows[state.roster.index(site)] if state.rows else 0
    dims = len(state.transform.names) if state.transform else 0
    wide = dims + (state.target is not None)
    reason = secure.wrong(state, reply.answer) or vetting.wrong(
        reply.answer, rows, dims, wide, state.server, site
    )
    if reason is None and isinstance(reply.answer, Told):
        reason = vetting.untold(reply.answer, meaning.certifying(state, meaning.thin(state))[1])
    if reason is not None:
        raise ValueError(reason)
    return reply.answer


def waiting(state: State, answered: set[str]) -> tuple[str, ...]:
    """Whom the step cannot end without, although time is up: see :class:`~.study.Absent`."""
    if state.step in secure.STEPS:
        return secure.waiting(state, answered)
    missing = tuple(site for site in state.roster if site not in answered)
    if state.step in _AFTER:
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
    step = state.sum.of if state.step in secure.STEPS else state.step
    for site in state.roster:
        answer = answers.get(site)
        if isinstance(answer, Refusal):
            if step not in ("round", *_AFTER):
                raise ValueError(f"site {site!r} does not take part: {answer.reason}")
            refused[site] = answer.reason
    good = {s: a for s in state.roster if not isinstance(a := answers.get(s), Refusal | None)}
    return secure.begin(_NEXT[state.step](state, good, refused))


def new_server(state: State) -> Server:
    """The server before the first round."""
    study, problem = state.study, meaning.problem_of(state)
    start = np.zeros(problem.size) if state.outcome is None else state.outcome.theta
    if study.privacy.secure_sum:
        return secure.server_of(state, start)
    options = meaning.options_of(study, sum(state.believed))
    bounds = meaning.limits_of(study) if state.here else meaning.bounds_of(study, problem)
    server = training.serve(
        problem, state.roster, np.array(state.believed), start,
        options.changed(limits=bounds), state.centers,
    )  # fmt: skip
    told = dict(zip(state.roster, state.rows, strict=True))  # which reports have to repeat
    if not (server.doubt.most or state.here):  # who pulls apart is named at least
        server = server._replace(doubt=apart.watching(options, problem.method.mixture, len(told)))
    return server._replace(rows=told, round=len(state.history) + 1)


def certificate(state: State) -> Bound | None:
    """Proposition 2 for the finished model, where there is transport and every site answered."""
    method = meaning.problem_of(state).method
    told = [state.finished[site].part for site in state.roster if site in state.finished]
    parts = [part for part in told if part is not None]
    if state.outcome is None or np.isinf(method.rho) or len(parts) < len(state.roster):
        return None
    return certifying.combine(parts, state.outcome.lam, method)


def _enrol(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    first = state.roster[0]
    columns = state.study.columns.use or answers[first].columns
    for site, told in answers.items():
        odd = set(told.columns) ^ set(columns)
        if odd:
            raise ValueError(
                f"column {min(odd)!r}: site {site!r} and site {first!r} do not agree on it; name "
                "the columns that all have: [columns] use = [...]"
            )
        if told.rows < state.study.privacy.minimum_rows:
            raise ValueError(f"site {site!r}: enrols with fewer rows than the study's minimum")
    rows = tuple(answers[site].rows for site in state.roster)
    return state._replace(step="columns", rows=rows, columns=columns)


def _columns(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    study = state.study
    used = [name for name in state.columns if name not in study.columns.ignore]
    for site, told in answers.items():
        if set(told.columns) != set(used):
            raise ValueError(f"site {site!r}: tells of other columns than those asked for")
    ordered = {s: {name: told.columns[name] for name in used} for s, told in answers.items()}
    state = state._replace(transform=preprocessing.agree(ordered, meaning.plan_of(study)))
    state = settle_label(state, {site: told.label for site, told in answers.items()})
    scales = state.target is not None or study.columns.scaling != "none"
    return state._replace(step="spreads") if scales else prepared(state)


def _sum(state: State, answers: dict[str, Any], refused: dict[str, str]) -> State:
    state, total, liars = secure.receive(state, answers)
    if total is None:
        return state
    refused |= dict.fromkeys(liars, "its shares of others' secrets are wrong")
    if state.step == "columns":
        state, told = secure.columns_of(state, total)
        return _columns(state, {summing.ALL: told}, refused)
    if state.step == "spreads":
        return _spreads(state, {summing.ALL: secure.spreads_of(state, total)}, refused)
    state, info = secure.round_of(state, total, refused)
    return state if info is None else _end(state, info)


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
        state = state._replace(
            transform=preprocessing.scale(transform, told, meaning.plan_of(study))
        )
    if state.target is not None:
        state = scale_label(state, {site: answer.label for site, answer in answers.items()})
    return prepared(state)


def prepared(state: State) -> State:
    """Columns and label are agreed on: to training, or first to where the sites' rows are."""
    assert state.transform is not None
    if not state.transform.names:
        reasons = "; ".join(f"{name!r}: {why}" for name, why in state.transform.ignored.items())
        raise ValueError(f"no column is left to learn from ({reasons})")
    return state._replace(step="center") if meaning.asks_where(state.study) else _start(state)


def _center(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    told = [answers[site] for site in state.roster]
    spread = spreading.measure(told, defaults.share_kept(state.study.method.outliers))
    state = state._replace(spread=spread)
    if not (state.study.method.scores and meaning.shape_of(state).any()):
        return _start(state)
    own = state.apart and state.study.method.center == "client"
    return state._replace(step="edge", centers=spreading.centers_of(told, own))


def _edge(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    told = [answers[site] for site in state.roster]
    bulk = defaults.share_kept(state.study.method.outliers)
    return _start(state._replace(edge=spreading.edge(told, bulk)))


def _start(state: State) -> State:
    if state.study.privacy.secure_sum:
        state = secure.tilted(state)
    return state._replace(step="round", server=new_server(state))


def _round(state: State, answers: dict[str, Any], refused: dict[str, str]) -> State:
    server = _training(state)
    number = server.round
    server, info, heard = serving.receive(server, answers.values())
    line = Round(
        number, info.objective, info.gap, info.risks, info.lam, heard.answered,
        {**refused, **heard.refused}, heard.clipped, heard.bytes_up, heard.bytes_down,
    )  # fmt: skip
    state = state._replace(server=server, history=(*state.history, line))
    return _end(state, info) if info.done else state


def _end(state: State, info: Info) -> State:
    options = meaning.options_of(state.study, sum(state.believed))
    problem, doubted = meaning.problem_of(state), _training(state).doubt.aside
    words = [describe(info.done, info, options.tol), *(f"{s!r} {w}" for s, w in doubted.items())]
    outcome = Outcome(
        theta=info.theta,
        lam=info.lam,
        risks=info.risks,
        rho=None if np.isinf(problem.method.rho) else problem.method.rho,
        objective=info.objective,
        gap=info.gap if np.isfinite(info.gap) else None,
        l2=options.l2,
        rounds=len(state.history),
        status=info.done,
        message="; ".join(words),
    )
    again = state.scatter is None and info.done != "budget"
    refine = again and meaning.refines(state.study, problem)
    return state._replace(step="residuals" if refine else "finish", outcome=outcome)


def _residuals(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    # Where every row is met exactly there is nothing to refine; without all sites no unit for all.
    if len(answers) < len(state.roster):
        return state._replace(step="finish")
    scatter = spreading.scatter([answers[site] for site in state.roster])
    if not scatter > 0:
        return state._replace(step="finish")
    return _start(state._replace(scatter=scatter))


def _finish(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    asks = len(answers) == len(state.roster) and meaning.certifies(state.study)
    return state._replace(step="certify" if asks else "done", finished=answers)


def _certify(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    return state._replace(step="done", told=answers)


def _training(state: State) -> Server:
    assert state.server is not None
    return state.server


_NEXT: dict[str, Callable[[State, dict[str, Any], dict[str, str]], State]] = {
    "enrol": _enrol,
    "levels": lambda state, answers, _: settling.levels(state, answers),
    **dict.fromkeys(secure.STEPS, _sum),
    "columns": _columns,
    "spreads": _spreads,
    "center": _center,
    "edge": _edge,
    "round": _round,
    "residuals": _residuals,
    "finish": _finish,
    "certify": _certify,
}
