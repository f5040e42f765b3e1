"""The coordinator's side of a study, from enrolment to certificate, as a pure state machine.

    enrol → columns → spreads → center → edge → round … round → finish → certify → done

If the study leaves the share of outliers open, candidates are trained first, all of them in the
same rounds (`select`), and compared on held-out rows (`compare`): :mod:`dorfl.selection.outliers`.
The final training starts from the selected one. A network is trained after that, instead of a
linear model (`network`: :mod:`dorfl.protocol.learning`).

Every step asks each site for one answer (:func:`request`); :func:`read` checks what comes back, and
:func:`receive` makes the next state of it. Engines only carry: the same functions run in process
and over a network, and give the same numbers. The state is all there is to save: a coordinator that
starts again from it asks the same question again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dorfl.certificates.bound import Told
from dorfl.data import preprocessing, robust
from dorfl.data.preprocessing import Numeric, Transform, in_order
from dorfl.data.robust import ColumnScales, LocationReport
from dorfl.data.sketch import Sketch
from dorfl.federated import byzantine, training
from dorfl.federated import server as serving
from dorfl.federated.messages import Report
from dorfl.federated.server import Server
from dorfl.federated.simulation import Round
from dorfl.protocol import (  # fmt: skip
    ending,
    learning,
    meaning,
    pooling,
    secure,
    settling,
    summing,
    vetting,
)
from dorfl.protocol.ending import AFTER, running
from dorfl.protocol.learning import Learning
from dorfl.protocol.messages import (
    Answer,
    Columns,
    Enrolled,
    Finished,
    Outcome,
    Refusal,
    Released,
    Reply,
    Reports,
    Request,
    Spreads,
)
from dorfl.protocol.secure import Sum
from dorfl.protocol.settings import Study, linear
from dorfl.protocol.settling import scale_label, settle_label
from dorfl.selection import constants, outliers
from dorfl.selection.defaults import cutoff_of
from dorfl.selection.outliers import Candidate, Decision, HeldOut
from dorfl.solvers.base import Info
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
    spread: ColumnScales | None = None
    centers: Array | None = None  # ξ̄ by site, or by site and class
    cutoffs: tuple[tuple[float, float], ...] = ()  # (outlier share, squared distance from ξ̄)
    candidates: tuple[Candidate, ...] = outliers.default_candidates()  # that are compared
    row_limit: int = 0  # rows of a client that candidates see
    candidate: Candidate | None = None  # whose training the state is about
    servers: tuple[Server | None, ...] = ()  # of candidates, while they are trained
    models: tuple[Array | None, ...] = ()  # θ of candidates that are trained
    spent: int = 0  # rounds of candidates
    compared: HeldOut | None = None  # of all clients: statistics of held-out losses
    decision: Decision | None = None
    start: Array | None = None  # θ that the final training starts from
    reference: Array | None = None  # (θ, σ): rows with labels far from it are down-weighted
    scatter: float | None = None  # scale of the residuals
    server: Server | None = None
    history: tuple[Round, ...] = ()
    outcome: Outcome | None = None
    finished: dict[str, Finished] = {}  # noqa: RUF012 - replaced, never changed in place
    released: dict[str, Released] = {}  # noqa: RUF012 - so are these
    told: dict[str, Told] = {}  # noqa: RUF012
    withheld: dict[str, str] = {}  # noqa: RUF012 - sites without a part of the certificate, and why
    sum: Sum = Sum()  # of a summed study; so are the next four
    keys: dict[str, bytes] = {}  # noqa: RUF012 - public keys of sites
    head: bytes = b""  # digest of all replies so far: see dorfl.protocol.transcript
    number: int = 0  # steps that are closed
    absences: dict[str, int] = {}  # noqa: RUF012 - steps that went on without a site
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
        return robust.have_own_centers(self.rows)

    @property
    def spare(self) -> bool:
        """Whether the study can go on without the step at hand: the comparison of candidates."""
        return self.candidate is not None or self.step in ("select", "compare")

    @property
    def shown(self) -> dict[str, int]:
        """Whose λ and risk are known, with their rows: every site's, or that of all together."""
        if self.study.privacy.summed:
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
    "center": LocationReport,
    "edge": Sketch,
    "round": Report,
    "network": Report,
    "select": Reports,
    "compare": HeldOut,
    "finish": Finished,
    "certify": Told,
}  # to `finish` in a summed study: Released


def begin(study: Study, run: str) -> State:
    """Before enrolment. The roster is fixed here, in an order that depends on names alone."""
    roster = tuple(sorted(in_order(study.sites), key=lambda n: n.startswith("(")))
    head = hashlib.sha256(wire.encode(("dorfl run", run, study))).digest()
    return State(run, study, roster, head=head)


def request(state: State, site: str) -> Request:
    """What to ask `site` now."""
    sent, models, outcome, thin = secure.about(state)
    outcome = state.outcome if state.step in AFTER else outcome
    sent = learning.sent(state) if state.step == "network" else sent
    broadcasts = {
        str(k): serving.broadcast(server) for k, server in enumerate(state.servers) if server
    }
    compared = state.candidates if state.step in ("select", "compare") or models is not None else ()
    return Request(
        meaning.agreed(state, site), state.step, sent, outcome, secure.question(state),
        compared, broadcasts, models, thin,
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
    kind = _ANSWERS[state.step]
    if state.study.privacy.summed and kind is Finished:
        kind = Released
    if not isinstance(reply.answer, kind):
        raise ValueError(f"is no answer to step {state.step!r}")
    if isinstance(reply.answer, Report) and reply.answer.client != site:
        raise ValueError("reports for another site")
    if (reason := _wrong(state, site, reply.answer)) is not None:
        raise ValueError(reason)
    return reply.answer


def _wrong(state: State, site: str, answer: Answer) -> str | None:
    if isinstance(answer, Report) and state.step == "network":
        return learning.wrong(state, site, answer)
    if isinstance(answer, Reports):
        return _wrong_reports(state, site, answer)
    if isinstance(answer, Told):
        return vetting.untold(answer, *meaning.certificates(state, meaning.thin(state)))
    rows = state.rows[state.roster.index(site)] if state.rows else 0
    dims = len(state.transform.names) if state.transform else 0
    widths = (dims, dims + (state.target is not None), meaning.centered_classes(state))
    return secure.wrong(state, site, answer) or vetting.wrong(
        answer, rows, widths, state.server, site, noisy=bool(state.study.privacy.known)
    )


def _wrong_reports(state: State, site: str, answer: Reports) -> str | None:
    """Return why the reports on candidates cannot be used, or None."""
    running = {str(k): server for k, server in enumerate(state.servers) if server}
    if set(answer.reports) != set(running):
        return "it reports on other candidates than those asked about"
    for place, server in running.items():
        report = answer.reports[place]
        if report.client != site:
            return "reports for another site"
        if reason := vetting.wrong(report, 0, (0, 0, 0), server, site):
            return reason
    return None


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
            if step not in ("round", "select", "compare", "network", *AFTER):
                raise ValueError(f"site {site!r} does not take part: {answer.reason}")
            refused[site] = answer.reason
    good = {s: a for s in state.roster if not isinstance(a := answers.get(s), Refusal | None)}
    good = vetting.discounted(state, good)
    return secure.begin(_NEXT[state.step](state, good, refused))


def new_server(state: State) -> Server:
    """The server before the first round."""
    study, problem = linear(state.study), meaning.problem_of(state)
    start = meaning.start_of(problem) if state.start is None else state.start
    if study.privacy.summed:
        return pooling.server_of(state, start)
    told, options = meaning.trained_on(state), meaning.options_now(state)
    bounds = meaning.limits_of(study) if state.here else meaning.bounds_of(study, problem)
    server = training.serve(
        problem, state.roster, np.array(state.believed), start,
        options.changed(limits=bounds), state.centers,
    )  # fmt: skip
    counts = dict(zip(state.roster, told, strict=True))  # which reports have to repeat
    if not (server.detection.most or state.here):  # who pulls apart is named at least
        detection = byzantine.plan_naming(options, problem.method.mixture, len(told))
        server = server._replace(detection=detection)
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
    if state.candidate is not None and refused:
        return _decided(state, outliers.CAUTIOUS)
    if state.sum.of in secure.AFTER and len(answers) < len(state.roster):
        return _NEXT[state.sum.of](state, {}, ending.silent(state, answers, refused))
    state, total = secure.receive(state, answers, refused)
    if total is None:
        return state
    refused = state.sum.refused
    if state.step != "round":
        state, told = secure.told(state, total)
        return state if told is None else _NEXT[state.step](state, {summing.ALL: told}, refused)
    state, info = pooling.round_of(state, total, refused)
    if info is None:
        return state
    return _end(state, info) if state.candidate is None else _trained_alone(state, info.theta)


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
    state = state._replace(spread=robust.column_scales(told, meaning.measured_of(state.study)))
    own, shape = meaning.keeps_center(state), meaning.shape_of(state)
    if not (state.study.method.scores and shape.any()):
        return _begin_selection(state)
    state = state._replace(centers=robust.client_centers(told, own, shape))
    if own and state.study.privacy.summed and meaning.centered_classes(state):
        return state._replace(step="classes")
    return state._replace(step="edge")


def _edge(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    told, shares = list(answers.values()), meaning.shares_of(state)
    cutoffs = tuple((share, cutoff_of(told, share)) for share in shares)
    return _begin_selection(state._replace(cutoffs=cutoffs))


# ── selection of the outlier share ──────────────────────────────────────────────────────────────


def _begin_selection(state: State) -> State:
    """Go on to the training of candidates, or to the final training if there is one candidate."""
    if not meaning.selects(state.study):
        return _start(state)
    scored = [c for c in state.candidates if c.share == 0 or state.cutoffs]
    least = state.study.privacy.least
    if least > 1 and max(state.rows) < constants.HELD_OUT * outliers.STRATUM:
        return _start(
            state._replace(decision=Decision(0.0))
        )  # no client can report on held-out rows
    limit = outliers.row_limit(len(state.roster))
    state = state._replace(candidates=tuple(scored), row_limit=limit)
    if len(scored) == 1 and not meaning.compares_labels(state):
        return _start(state._replace(row_limit=0))
    return _train_candidates(state, (None,) * len(scored))


def _train_candidates(state: State, models: tuple[Array | None, ...]) -> State:
    """Train the candidates that have no model yet: at the same time, or one by one if summed."""
    state = state._replace(models=models)
    left = _untrained(models)
    if not left:
        return state._replace(step="compare", candidate=None)
    if state.study.privacy.summed:
        return _start(state._replace(candidate=state.candidates[left[0]]))
    servers = tuple(
        new_server(state._replace(candidate=candidate)) if model is None else None
        for candidate, model in zip(state.candidates, models, strict=True)
    )
    return state._replace(step="select", servers=servers)


def _select(state: State, answers: dict[str, Any], refused: dict[str, str]) -> State:
    if refused:
        return _decided(state, outliers.CAUTIOUS)
    servers, models = list(state.servers), list(state.models)
    for k, server in enumerate(state.servers):
        if server is None:
            continue
        reports = [answer.reports[str(k)] for answer in answers.values()]
        after, info, heard = serving.receive(server, reports)
        if heard.odd:  # implausible reports: no comparison can be based on them
            line = Round(
                server.round, info.objective, info.gap, info.risks, info.lam, *heard[:3],
                heard.bytes_up, heard.bytes_down,
            )  # fmt: skip
            return _decided(state._replace(history=(*state.history, line)), outliers.CAUTIOUS)
        servers[k] = None if info.done else after
        models[k] = info.theta if info.done else None
    state = state._replace(servers=tuple(servers), models=tuple(models), spent=state.spent + 1)
    return state if _untrained(models) else state._replace(step="compare")


def _untrained(models: Sequence[Array | None]) -> list[int]:
    """Return the places of candidates that have no model yet."""
    return [k for k, model in enumerate(models) if model is None]


def _trained_alone(state: State, theta: Array) -> State:
    """Keep the model of the candidate that was trained by itself and go on to the next."""
    place = _untrained(state.models)[0]
    return _train_candidates(state, (*state.models[:place], theta, *state.models[place + 1 :]))


def _compare(state: State, answers: dict[str, Any], _: dict[str, str]) -> State:
    if not answers:  # no site takes part in the comparison
        return _decided(state, outliers.CAUTIOUS)
    total, classifies = outliers.combine(list(answers.values())), bool(state.classes)
    decision = outliers.decide(state.candidates, total, classifies)
    winner = state.models[outliers.select(state.candidates, total, classifies)]
    state = state._replace(compared=total)
    first = state.decision
    if first is not None:  # labels were compared second, and the share of outliers stands
        if first.rows and (first.share > 0 or not decision.labels):
            decision = first._replace(labels=decision.labels)
    elif meaning.compares_labels(state) and (decision.rows or len(state.candidates) == 1):
        plain = Candidate(decision.share)
        state = state._replace(
            decision=decision, reference=winner, candidates=(plain, plain._replace(labels=True))
        )
        return _train_candidates(state, (winner, None))
    return _decided(state._replace(start=winner), decision)


def _decided(state: State, decision: Decision) -> State:
    """Begin the final training by the decision; one that was made before stands."""
    known = state.decision if state.decision is not None and not decision.rows else decision
    reference = state.reference if known.labels else None
    return _start(
        state._replace(
            decision=known, reference=reference, candidate=None, servers=(), models=(), row_limit=0
        )
    )


def _start(state: State) -> State:
    if state.study.privacy.summed:
        state = pooling.tilted(state)
    if learning.due(state):
        return learning.begin(state)
    return state._replace(step="round", server=new_server(state))


def _round(state: State, answers: dict[str, Any], refused: dict[str, str]) -> State:
    server = running(state)
    for site in sorted(refused.keys() - server.last.keys()):
        raise ValueError(f"site {site!r} does not take part: {refused[site]}")
    number, (server, info, heard) = server.round, serving.receive(server, answers.values())
    line = Round(
        number, info.objective, info.gap, info.risks, info.lam, heard.answered,
        {**refused, **heard.refused}, heard.clipped, heard.bytes_up, heard.bytes_down,
    )  # fmt: skip
    if state.study.training.model == "linear":
        state = state._replace(server=server, history=(*state.history, line))
    else:
        state = state._replace(server=server, spent=state.spent + 1)
    info = ending.unless_refused(state, info)
    return _end(state, info) if info.done else state


def _end(state: State, info: Info) -> State:
    outcome = ending.outcome(state, info)
    return learning.after(state._replace(outcome=outcome, scatter=outcome.scatter))


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
    "select": _select,
    "compare": _compare,
    "finish": ending.finish,
    "certify": ending.certified,
}
