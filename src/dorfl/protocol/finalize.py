"""When a step is over, who it waits for, what a training came to, and Proposition 2 at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dorfl.certificates import certificate as certifying
from dorfl.certificates.bound import Told
from dorfl.certificates.certificate import Bound
from dorfl.federated import scale as scaling
from dorfl.federated.fit import describe
from dorfl.federated.server import Server
from dorfl.protocol import network_rounds, resolution, secure
from dorfl.protocol.messages import Outcome, Released
from dorfl.solvers.base import Info

if TYPE_CHECKING:
    from dorfl.protocol.coordinator import State

_REFUSED = 5  # rounds that all sites refuse before no more are asked for
AFTER = ("finish", "certify")  # steps that go on with whoever answers


def waiting(state: State, answered: set[str]) -> tuple[str, ...]:
    """Whom the step cannot end without, although time is up: see :class:`~.study.Absent`."""
    if state.step in secure.STEPS:
        return secure.waiting(state, answered)
    missing = tuple(site for site in state.roster if site not in answered)
    if state.step in AFTER:
        return ()
    if state.step == "network":
        return network_rounds.waiting(state, missing, answered)
    if state.step == "compare" and answered:  # whoever answers decides
        return ()
    if state.step not in ("round", "select") or not answered:
        return missing
    server, rule = running(state), state.study.absent
    evaluates = server.solver.ask(server.solving).kind == "evaluate"

    def stands_in(site: str) -> bool:
        if site not in server.last or not evaluates:
            return False
        since = server.round - server.last[site][1].round
        return rule.then == "go on" or since <= rule.stand_in

    return tuple(site for site in missing if not stands_in(site))


def unless_refused(state: State, info: Info) -> Info:
    """What a round showed; an end where every site has refused the last few."""
    last = state.history[-_REFUSED:]
    if info.done or len(last) < _REFUSED or any(line.answered for line in last):
        return info
    if not all(line.refused.keys() >= set(state.roster) for line in last):  # some were away
        return info
    return info._replace(done="refused", why=f"every site refused the last {_REFUSED} rounds")


def outcome(state: State, info: Info) -> Outcome:
    """Return what a training came to; a residual scale that was estimated is fixed."""
    options, problem = resolution.options_now(state), resolution.problem_of(state)
    scale, l2 = state.scatter, options.l2
    if problem.estimates_scale:
        problem, scale, info = scaling.settle(problem, info)
        l2 *= scale
    rho, doubted = problem.method.rho, running(state).detection.outlying
    words = [describe(info.done, info, options.tol), *(f"{s!r} {w}" for s, w in doubted.items())]
    # More rounds or other units are no help against a no.
    if info.done in ("budget", "stalled", "refused"):
        words = [*_refusals(state), *words]
    return Outcome(
        theta=info.theta,
        lam=info.lam,
        risks=info.risks,
        rho=None if np.isinf(rho) else rho,
        objective=info.objective,
        gap=info.gap if np.isfinite(info.gap) else None,
        l2=l2,
        rounds=len(state.history),
        status=info.done,
        message="; ".join(words),
        scatter=scale,
        gap_kind=info.gap_kind,
    )


def _refusals(state: State) -> list[str]:
    """Who refused how many rounds of a training, and why the last time."""
    last = {site: why for line in state.history for site, why in line.refused.items()}
    times = {site: sum(site in line.refused for line in state.history) for site in last}
    return [
        f"{site!r} refused {times[site]} of {len(state.history)} rounds, "
        f"the last time because: {why}"
        for site, why in sorted(last.items())
    ]


def finish(state: State, answers: dict[str, Any], refused: dict[str, str]) -> State:
    """How the model serves the sites, and on to its certificate where there is one."""
    certifies = resolution.certifies(state.study)
    if state.study.privacy.summed:
        released = {site: told for site, told in answers.items() if isinstance(told, Released)}
        return state._replace(step="certify" if certifies else "done", released=released)
    missing = silent(state, answers, refused)
    return state._replace(
        step="done" if missing or not certifies else "certify",
        finished=answers,
        withheld=missing if certifies else {},
    )


def certified(state: State, answers: dict[str, Told], refused: dict[str, str]) -> State:
    """Store the sites' parts of the certificate, and which site withheld its part and why."""
    missing = silent(state, answers, refused)
    if state.study.privacy.summed:  # one answer for all sites, or none
        missing = {} if answers else refused
    return state._replace(step="done", told=answers, withheld=missing)


def silent(state: State, answers: Mapping[str, object], refused: dict[str, str]) -> dict[str, str]:
    """Return the sites without an answer, and the reason that each gave."""
    return {
        site: refused.get(site, "it did not reply in time")
        for site in state.roster
        if site not in answers
    }


def uncertified(state: State) -> tuple[str, ...]:
    """Return a sentence for every site that withheld its part of the certificate."""
    return tuple(
        f"the model has no certificate, because site {site!r} withheld its part: {reason}"
        for site, reason in state.withheld.items()
    )


def certificate(state: State) -> Bound | None:
    """Proposition 2 for the finished model, where there is transport and every site answered."""
    method = resolution.problem_of(state).method
    told = [state.finished[site].part for site in state.roster if site in state.finished]
    parts = [part for part in told if part is not None]
    if state.outcome is None or np.isinf(method.rho) or len(parts) < len(state.roster):
        return None
    return certifying.combine(parts, state.outcome.lam, method)


def running(state: State) -> Server:
    """Return the server that conducts the rounds; of candidates, that of the first in training."""
    server = state.server
    if state.step == "select":
        server = next(one for one in state.servers if one is not None)
    assert server is not None
    return server
