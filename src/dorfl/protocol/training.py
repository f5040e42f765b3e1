"""The server of a study's training, what a training came to, and the candidates in it."""

from __future__ import annotations

import numpy as np

from dorfl.federated import byzantine, training
from dorfl.federated import scale as scaling
from dorfl.federated.fit import describe
from dorfl.federated.server import Server
from dorfl.protocol import pooled_rounds, resolution
from dorfl.protocol.messages import Outcome
from dorfl.protocol.settings import linear
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT
from dorfl.selection.outliers import Decision
from dorfl.solvers.base import Info
from dorfl.support.types import Array

_MAX_REFUSED = 5  # rounds in a row that all sites refuse, after which training ends


def new_server(state: State) -> Server:
    """Return the server before the first round."""
    study, problem = linear(state.study), resolution.problem_of(state.agreed)
    start = resolution.start_of(problem) if state.selection.start is None else state.selection.start
    if study.privacy.summed:
        return pooled_rounds.server_of(state, start)
    rows, options = resolution.trained_on(state), resolution.options_now(state)
    bounds = resolution.limits_of(study) if state.here else resolution.bounds_of(study, problem)
    weights = np.array(state.counted_rows)
    options = options.changed(limits=bounds)
    server = training.serve(problem, state.sites, weights, start, options, state.centers)
    counts = dict(zip(state.sites, rows, strict=True))  # which reports have to repeat
    if not (server.detection.most or state.here):  # outlying clients are named at least
        detection = byzantine.plan_naming(options, problem.method.mixture, len(rows))
        server = server._replace(detection=detection)
    last = (server.budget or 0) + state.spent  # rounds of candidates have a budget of their own
    return server._replace(rows=counts, round=state.spent + len(state.history) + 1, budget=last)


def awaited_in_round(state: State, missing: tuple[str, ...], answered: set[str]) -> tuple[str, ...]:
    """Return the sites whose last report may not be extrapolated any more."""
    if not answered:
        return missing
    server, rule = state.running, state.study.absent
    evaluates = server.solver.ask(server.solving).kind == "evaluate"

    def is_extrapolated(site: str) -> bool:
        if site not in server.last or not evaluates:
            return False
        since = server.round - server.last[site][1].round
        return rule.then == "go on" or since <= rule.stand_in

    return tuple(site for site in missing if not is_extrapolated(site))


def unless_refused(state: State, info: Info) -> Info:
    """Return what a round showed; training ends if all sites refused the last few rounds."""
    last = state.history[-_MAX_REFUSED:]
    if info.done or len(last) < _MAX_REFUSED or any(line.answered for line in last):
        return info
    if not all(line.refused.keys() >= set(state.sites) for line in last):  # some did not reply
        return info
    return info._replace(done="refused", why=f"every site refused the last {_MAX_REFUSED} rounds")


def outcome_of(state: State, info: Info) -> Outcome:
    """Return what a training came to; a residual scale that was estimated is fixed."""
    options, problem = resolution.options_now(state), resolution.problem_of(state.agreed)
    scale, l2 = state.agreed.scatter, options.l2
    if problem.estimates_scale:
        problem, scale, info = scaling.settle(problem, info)
        l2 *= scale
    rho, doubted = problem.method.rho, state.running.detection.outlying
    words = [describe(info.done, info, options.tol), *(f"{s!r} {w}" for s, w in doubted.items())]
    # More rounds or other units do not help against refusals.
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
    """Return how many rounds each site refused, and its last reason."""
    last = {site: why for line in state.history for site, why in line.refused.items()}
    times = {site: sum(site in line.refused for line in state.history) for site in last}
    return [
        f"{site!r} refused {times[site]} of {len(state.history)} rounds, "
        f"the last time because: {why}"
        for site, why in sorted(last.items())
    ]


def keep_model(state: State, theta: Array) -> State:
    """Keep the model of the candidate that was trained by itself, and go on to the next one."""
    models = list(state.selection.models)
    models[state.selection.untrained[0]] = theta
    selection = state.selection._replace(models=tuple(models))
    return state._replace(selection=selection, step="select")


def decide(state: State, decision: Decision) -> State:
    """Go on to the final training by a decision; an earlier one stands beside one without rows.

    Without models the step `compare` is not needed, and the final training comes next.
    """
    agreed = state.agreed
    known = agreed.decision if agreed.decision is not None and not decision.rows else decision
    reference = agreed.reference if known.labels else None
    state = state.agree(decision=known, reference=reference, candidate=None, row_limit=0)
    ended = state.selection._replace(servers=(), models=())
    return state._replace(step=NEXT, selection=ended)
