"""The coordinator's side of a study, from enrolment to certificate, as a pure state machine.

    enrol → columns → spreads → center → edge → round … round → finish → certify → done

Where the study leaves open whether rows that lie far out are wrong, that is tried first: rounds on
some rows, trusting all and then not, and `judge` (:mod:`dorfl.study.suspects`). A regression goes
on from where it was with Huber's loss in the unit of `residuals`, again while that halves. A
network is trained after that, instead of a linear model (`network`: :mod:`dorfl.study.learning`).

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
from dorfl.data.preprocessing import Numeric, Transform, in_order
from dorfl.data.sketch import Sketch
from dorfl.data.spread import Place, Spread
from dorfl.federation import apart, training
from dorfl.federation import server as serving
from dorfl.federation.local import Round
from dorfl.federation.messages import Report
from dorfl.federation.server import Server
from dorfl.guarantees.bound import Told
from dorfl.solvers.base import Info
from dorfl.study import (
    ending,
    learning,
    meaning,
    pooling,
    secure,
    settling,
    summing,
    trying,
    vetting,
)  # fmt: skip
from dorfl.study.ending import AFTER, running
from dorfl.study.learning import Learning
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
from dorfl.study.settings import Study, linear
from dorfl.study.settling import scale_label, settle_label
from dorfl.study.suspects import Judged, Trial, Verdict
from dorfl.support import text, wire
from dorfl.support.types import Array

certificate, waiting, asked = ending.certificate, ending.waiting, secure.asked


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
    centers: Array | None = None  # ξ̄ by site, or by site and class
    edge: float | None = None
    edges: tuple[float, ...] = ()  # that of the bulk, and of its nearer half if that is tried
    reference: Array | None = None  # θ by which labels are suspect
    scatter: float | None = None  # of residuals
    refined: int = 0  # how often they were asked for
    trial: Trial | None = None
    tried: tuple[Array, ...] = ()  # θ of the trials that are over
    spent: int = 0  # rounds of trials
    verdict: Verdict | None = None
    server: Server | None = None
    history: tuple[Round, ...] = ()
    outcome: Outcome | None = None
    finished: dict[str, Finished] = {}  # noqa: RUF012 - replaced, never changed in place
    told: dict[str, Told] = {}  # noqa: RUF012 - so is this
    sum: Sum = Sum()  # of a study of secure sums
    here: bool = False  # whether all rows are in this process: nothing is a site's word alone
    sizes: tuple[float, ...] = ()  # what clients weigh, where rows do not count alike
    learning: Learning | None = None  # of a network's rounds
    network: bool = False  # whether one follows although the study does not say so

    @property
    def decay(self) -> float | None:
        """Once a network is trained, how much its weights decay."""
        return None if self.learning is None else self.learning.decay

    @property
    def apart(self) -> bool:
        """Whether the sites have rows enough for a middle of their own."""
        return spreading.apart(self.rows)

    @property
    def spare(self) -> bool:
        """Whether what is under way can be done without: who refuses it ends that alone.

        That is a trial, or training that begins anew to give the loss of a model a better unit.
        """
        anew = self.outcome is not None and self.server is not None and not self.server.last
        return anew or self.trial is not None

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
    "network": Report,
    "judge": Judged,
    "residuals": Sketch,
    "finish": Finished,
    "certify": Told,
}


def begin(study: Study, run: str) -> State:
    """Before enrolment. The roster is fixed here, in an order that depends on names alone."""
    return State(run, study, tuple(sorted(in_order(study.sites), key=lambda n: n.startswith("("))))


def request(state: State, site: str) -> Request:
    """What to ask `site` now."""
    sent, models, outcome, thin = secure.about(state)
    outcome = state.outcome if state.step in AFTER else outcome
    sent = learning.sent(state) if state.step == "network" else sent
    return Request(
        meaning.agreed(state, site), state.step, sent, outcome, secure.question(state, site),
        models, thin,
    )  # fmt: skip


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
    if (reason := _wrong(state, site, reply.answer)) is not None:
        raise ValueError(reason)
    return reply.answer


def _wrong(state: State, site: str, answer: Answer) -> str | None:
    if isinstance(answer, Report) and state.step == "network":
        return learning.wrong(state, site, answer)
    if isinstance(answer, Told):
        return vetting.untold(answer, *meaning.certificates(state, meaning.thin(state)))
    rows = state.rows[state.roster.index(site)] if state.rows else 0
    dims = len(state.transform.names) if state.transform else 0
    widths = (dims, dims + (state.target is not None), meaning.centered_classes(state))
    return secure.wrong(state, answer) or vetting.wrong(
        answer, rows, widths, state.server, site, noisy=bool(state.study.privacy.known)
    )


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
        if isinstance(answer := answers.get(site), Refusal):
            if step not in ("round", "network", "judge", *AFTER):
                raise ValueError(f"site {site!r} does not take part: {answer.reason}")
            refused[site] = answer.reason
    good = {s: a for s in state.roster if not isinstance(a := answers.get(s), Refusal | None)}
    good = vetting.discounted(state, good)
    return secure.begin(_NEXT[state.step](state, good, refused))


def new_server(state: State) -> Server:
    """The server before the first round."""
    study, problem = linear(state.study), meaning.problem_of(state)
    start = np.zeros(problem.size) if state.outcome is None else state.outcome.theta
    if study.privacy.secure_sum:
        return pooling.server_of(state, start)
    told, options = meaning.trained_on(state), meaning.options_now(state)
    bounds = meaning.limits_of(study) if state.here else meaning.bounds_of(study, problem)
    server = training.serve(
        problem, state.roster, np.array(state.believed), start,
        options.changed(limits=bounds), state.centers,
    )  # fmt: skip
    counts = dict(zip(state.roster, told, strict=True))  # which reports have to repeat
    if not (server.doubt.most or state.here):  # who pulls apart is named at least
        server = server._replace(doubt=apart.watching(options, problem.method.mixture, len(told)))
    last = (server.budget or 0) + state.spent  # rounds of trials have a budget of their own
    return server._replace(rows=counts, round=state.spent + len(state.history) + 1, budget=last)


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
    if state.spare and refused:
        return _without(state)
    if state.sum.of in secure.AFTER and len(answers) < len(state.roster):
        return _NEXT[state.sum.of](state, {}, {})
    state, total, liars = secure.receive(state, answers, refused)
    if total is None:
        return state
    refused = state.sum.refused | dict.fromkeys(liars, "its shares of others' secrets are wrong")
    if state.step != "round":
        state, told = secure.told(state, total)
        return state if told is None else _NEXT[state.step](state, {summing.ALL: told}, refused)
    state, info = pooling.round_of(state, total, refused)
    if info is None:
        return state
    return _end(state, info) if state.trial is None else _tried(state, info.theta)


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
        raise ValueError(f"no column is left to learn from ({reasons or 'none but the label'})")
    return state._replace(step="center") if meaning.asks_where(state.study) else _start(state)


def _center(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    told = list(answers.values())
    state = state._replace(spread=spreading.measure(told, meaning.measured_of(state.study)))
    own, shape = meaning.keeps_center(state), meaning.shape_of(state)
    if not (state.study.method.scores and shape.any()):
        return _start(trying.labels(state, told, own, shape))
    state = state._replace(step="edge")
    if own and state.study.privacy.secure_sum and meaning.centered_classes(state):
        state = state._replace(step="classes")
    return state._replace(centers=spreading.centers_of(told, own, shape))


def _edge(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    return _start(trying.begin(state, list(answers.values())))


def _tried(state: State, theta: Array) -> State:
    state = trying.fitted(state, theta)
    return state if state.step == "judge" else _start(state)


def _judge(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    return _start(trying.judged(state, list(answers.values())))


def _start(state: State) -> State:
    if state.study.privacy.secure_sum:
        state = pooling.tilted(state)
    if learning.due(state):
        return learning.begin(state)
    return state._replace(step="round", server=new_server(state))


def _round(state: State, answers: dict[str, Any], refused: dict[str, str]) -> State:
    server = running(state)
    if state.spare and refused:
        return _without(state)
    for site in sorted(refused.keys() - server.last.keys()):
        raise ValueError(f"site {site!r} does not take part: {refused[site]}")
    number, (server, info, heard) = server.round, serving.receive(server, answers.values())
    line = Round(
        number, info.objective, info.gap, info.risks, info.lam, heard.answered,
        {**refused, **heard.refused}, heard.clipped, heard.bytes_up, heard.bytes_down,
    )  # fmt: skip
    odd = state.trial is not None and heard.odd
    if odd or (state.trial is None and state.study.training.model == "linear"):
        state = state._replace(server=server, history=(*state.history, line))
    else:
        state = state._replace(server=server, spent=state.spent + 1)
    if odd:  # reports that cannot be true decide nothing, but are kept
        return _judge(state, {}, {})
    if not (info := ending.unless_refused(state, info)).done:
        return state
    return _end(state, info) if state.trial is None else _tried(state, info.theta)


def _without(state: State) -> State:
    """On without a trial, or with the model that is there, in the unit it was trained in."""
    if state.trial is not None:
        return _judge(state._replace(spent=state.spent + 1), {}, {})
    assert state.outcome is not None
    return learning.after(state._replace(scatter=state.outcome.scatter))


def _end(state: State, info: Info) -> State:
    asks = state.refined < meaning.REFINED and info.done != "budget"
    state = state._replace(outcome=ending.outcome(state, info))
    if asks and meaning.refines(state.study, meaning.problem_of(state)):
        return state._replace(step="residuals")
    return learning.after(state)


def _residuals(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    known, state = state.scatter, state._replace(refined=state.refined + 1)
    scatter = spreading.scatter(list(answers.values()))
    # Where every row is met exactly there is nothing to refine; without all sites no unit for all.
    enough = len(answers) == len(state.shown) and scatter > meaning.EXACT
    if not enough or (known is not None and scatter > meaning.NEAR * known):
        return learning.after(state)
    # Unless a loss for far larger residuals told of them, the unit is known well enough.
    times = meaning.REFINED if 2.0 * scatter > (known or meaning.FIRST) else state.refined
    return _start(state._replace(scatter=scatter, refined=times))


_NEXT: dict[str, Callable[[State, dict[str, Any], dict[str, str]], State]] = {
    "enrol": settling.enrolled,
    "levels": lambda state, answers, _: settling.levels(state, answers),
    **dict.fromkeys(secure.STEPS, _sum),
    "columns": _columns,
    "spreads": _spreads,
    "center": _center,
    "edge": _edge,
    "round": _round,
    "network": learning.receive,
    "judge": _judge,
    "residuals": _residuals,
    "finish": ending.finish,
    "certify": lambda state, answers, _: state._replace(step="done", told=answers),
}
