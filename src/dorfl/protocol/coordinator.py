"""The coordinator of a study, from enrolment to certificate, as a pure state machine.

A study is a sequence of steps (:mod:`dorfl.protocol.steps`). For every step, :func:`request` makes
the request to a site, :func:`read` validates a reply, and :func:`receive` makes the next state of
all answers. Everything that belongs to a step is in its class; here steps follow each other.

Carriers only move messages: the same functions run in process and over a network, and give the same
numbers. The state is everything that has to be saved. A coordinator that starts again from it sends
the same requests again.
"""

from __future__ import annotations

import hashlib

from dorfl.data.preprocessing import in_order
from dorfl.protocol import steps, sums
from dorfl.protocol.messages import Agreement, Answer, Refusal, Reply, Request
from dorfl.protocol.settings import Study
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Step
from dorfl.support import text, wire


def begin(study: Study, run: str) -> State:
    """Return the state before enrolment; the order of sites depends on their names alone."""
    sites = tuple(sorted(in_order(study.sites), key=lambda n: n.startswith("(")))
    head = hashlib.sha256(wire.encode(("dorfl run", run, study))).digest()
    return State(Agreement(run, "", study), sites, head=head)


def recipients(state: State) -> tuple[str, ...]:
    """Return the sites that get a request now."""
    return sums.recipients(state)


def request(state: State, site: str) -> Request:
    """Return the request to `site`."""
    return Request(state.for_site(site), state.step, **_exchange(state).ask(state, site))


def read(state: State, site: str, data: bytes) -> Answer:
    """Return the answer in a reply of `site`; ValueError says why it cannot be used."""
    reply, step = wire.decode(data, Reply), _exchange(state)
    if reply.site != site:
        raise ValueError("gives another site's name")
    if reply.run != state.run:
        raise ValueError("belongs to another run")
    if reply.step != state.step:
        raise ValueError(f"answers step {reply.step[:20]!r}, this is {state.step!r}")
    if isinstance(reply.answer, Refusal):
        return Refusal(text.one_line(reply.answer.reason))
    if not isinstance(reply.answer, step.answer):
        raise ValueError(f"is no answer to step {state.step!r}")
    if (reason := step.validate(state, site, reply.answer)) is not None:
        raise ValueError(reason)
    return reply.answer


def waiting(state: State, answered: set[str]) -> tuple[str, ...]:
    """Return the sites without which the step cannot end when time is up.

    The study says how long its last report stands for a site: :class:`~.settings.Absent`.
    """
    missing = tuple(site for site in recipients(state) if site not in answered)
    return _exchange(state).waiting(state, missing, answered)


def receive(
    state: State, answers: dict[str, Answer], refused: dict[str, str] | None = None
) -> State:
    """Return the state after the answers to a step, and the reasons of replies that are of no use.

    ValueError ends the study: before training no site may refuse; later a refusal is an absence.
    """
    refused, step = {s: why for s, why in (refused or {}).items() if s in state.sites}, _step(state)
    for site in state.sites:
        if isinstance(answer := answers.get(site), Refusal):
            if not step.may_refuse:
                raise ValueError(f"site {site!r} does not take part: {answer.reason}")
            refused[site] = answer.reason
    good = {s: a for s in state.sites if not isinstance(a := answers.get(s), Refusal | None)}
    exchange = _exchange(state)
    after = exchange.combine(state, _limited(state, exchange, good), refused)
    return after if after.step in sums.EXCHANGES else sums.begin(_entered(after, step.name))


def proceed(state: State, step: str) -> State:
    """Return the state in the first step after `step` that the study needs."""
    return sums.begin(_entered(state._replace(step=NEXT), step))


def _entered(state: State, at: str) -> State:
    """Begin the step to which a state has come from the step `at`, skipping steps not needed."""
    while state.step != at:
        at = steps.following(at) if state.step == NEXT else state.step
        if at == steps.DONE:
            return state._replace(step=at)
        step = steps.named(at)
        if step.is_due(state):
            state = step.begin(state._replace(step=at))
        else:
            state = state._replace(step=NEXT)
    return state


def _step(state: State) -> Step:
    """Return the step at hand, also while its answers are summed."""
    return steps.named(state.sum.of if state.step in sums.EXCHANGES else state.step)


def _exchange(state: State) -> Step:
    """Return the step at hand, or the exchange that sums its answers."""
    return sums.EXCHANGES.get(state.step) or steps.named(state.step)


def _limited(state: State, step: Step, answers: dict[str, Answer]) -> dict[str, Answer]:
    """Return answers as if sites had no more rows than they count for.

    Statistics are of all sites' rows together: otherwise a site that reports more rows than all
    others would choose the units of all sites.
    """
    if state.here or not state.rows:
        return answers
    counts = dict(zip(state.sites, zip(state.rows, state.counted_rows, strict=True), strict=True))
    return {
        site: step.limit_rows(answer, *counts[site])
        if counts[site][1] < counts[site][0]
        else answer
        for site, answer in answers.items()
    }
