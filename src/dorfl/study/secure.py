"""The coordinator's side of a secure sum: four steps, and what is made of their end.

    sum keys → sum shares → sum masked → sum open

take the place of every step whose answers add up: `round`, and those of :mod:`dorfl.study.counted`
(`columns` after `levels`, which asks for names alone). A sum becomes the answer of one client that
has everybody's rows, and the study goes on from that as from any other. A sum that cannot be opened
is asked for anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dorfl.federation import pooled, training
from dorfl.federation import server as serving
from dorfl.federation.local import Round
from dorfl.federation.messages import Advert, Broadcast
from dorfl.federation.pooled import Levels, Stage, Tilt
from dorfl.federation.server import Server
from dorfl.objective import mixture as mixing
from dorfl.solvers.base import Info
from dorfl.study import counted, meaning
from dorfl.study import summing as summed
from dorfl.study.messages import (
    Agreement,
    Answer,
    Columns,
    Dealt,
    Masked,
    Shares,
    Summing,
)
from dorfl.study.summing import ALL, Asked
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.study.coordinator import State

STEPS = summed.STEPS
ANSWERS: dict[str, type] = dict(zip(STEPS, (Advert, Dealt, Masked, Shares), strict=True))
SUMMED = (*counted.STEPS, "round")
_BOX = 64 + 16  # bytes: shares of two secrets, and the seal's tag
_VOID = 3  # sums in a row that cannot be opened
_LEVELS = 40  # levels that a round is asked at
_TAU, _SHRINK = 0.1, 0.5  # of the risk at the start: the first temperature; of the one before
_INNER = 0.25  # of the tolerance: how well a stage is solved
_STAGES = 60


class Sum(NamedTuple):
    """All that a coordinator carries of its secure sums."""

    number: int = 0
    of: str = ""
    named: dict[str, Columns] = {}  # noqa: RUF012 - replaced, never changed in place, as all here
    units: dict[str, float] = {}  # noqa: RUF012
    middles: dict[str, float] = {}  # noqa: RUF012 - medians that are looked for: the last guess
    found: Columns | None = None
    turns: int = 0
    adverts: dict[str, Advert] = {}  # noqa: RUF012
    boxes: dict[str, dict[str, bytes]] = {}  # noqa: RUF012 - by dealer, for whom
    masked: dict[str, Array] = {}  # noqa: RUF012
    voids: int = 0
    # rounds
    tilt: Tilt = Tilt()
    tried: Levels = Levels()
    among: tuple[str, ...] = ()  # who was in the last sum
    upper: float = np.inf  # the least that the worst risk is known to be below, and where
    best: Array | None = None
    lower: float = -np.inf


told = counted.told


def begin(state: State) -> State:
    """The state with the first step of a sum, where the step it is at is one to sum."""
    if not state.study.privacy.secure_sum or state.step not in SUMMED:
        return state
    carried = state.sum
    if state.step == "columns" and not carried.named:
        return state._replace(step="levels")
    following = carried._replace(
        number=carried.number + 1, of=state.step, adverts={}, boxes={}, masked={}
    )
    return state._replace(step=STEPS[0], sum=following)


def asked(state: State) -> tuple[str, ...]:
    """Who is asked at this step: in a sum, those who took part so far."""
    carried = state.sum
    taking: Any = {
        "sum shares": carried.adverts, "sum masked": carried.boxes, "sum open": carried.masked,
    }.get(state.step, state.roster)  # fmt: skip
    return tuple(site for site in state.roster if site in taking)


def question(state: State, site: str = "") -> Summing | None:
    """What goes with a request to `site`."""
    carried = state.sum
    if state.step not in STEPS:
        return None
    adverts = carried.adverts
    if state.step in STEPS[2:]:
        adverts = {name: adverts[name] for name in carried.boxes}
    levels, held = summed.levels_of(carried.named), state.believed
    summing = Summing(
        carried.number, carried.of, adverts, int(sum(held)), int(max(held)),
        tilt=carried.tilt, levels=levels, units=carried.units, middles=carried.middles,
    )  # fmt: skip
    if state.step == "sum open":
        boxes = {dealer: dealt[site] for dealer, dealt in carried.boxes.items() if site in dealt}
        summing = summing._replace(boxes=boxes, alive=tuple(sorted(carried.masked)))
    return summing


def about(state: State) -> Asked:
    """The models that a sum is about, from when it is asked."""
    of = state.sum.of if state.step in STEPS[2:] else state.step
    sent = serving.broadcast(state.server) if of == "round" and state.server is not None else None
    models = np.array(state.tried) if of == "judge" else None
    return Asked(sent, models, state.outcome if of == "residuals" else None)


def wrong(state: State, answer: Answer) -> str | None:
    """Why a site's answer to a step of a sum cannot be used, or nothing."""
    carried = state.sum
    if isinstance(answer, Advert):
        sizes = {len(part) for part in (answer.mask, answer.seal, answer.promise)}
        fine = sizes == {32} and len(answer.signature) <= 200
        return None if fine else "its keys have the wrong size"
    if isinstance(answer, Dealt):
        fine = set(answer.boxes) == set(carried.adverts)
        fine = fine and all(len(box) == _BOX for box in answer.boxes.values())
        return None if fine else "its shares are not for those who take part"
    if isinstance(answer, Masked):
        numbers = answer.numbers
        fine = numbers.dtype == np.int64 and numbers.shape == (_size(state),)
        return None if fine else "it adds another count of numbers than asked for"
    if isinstance(answer, Shares):
        fine = set(answer.shares) <= set(carried.boxes)
        fine = fine and all(len(share) == 32 for share in answer.shares.values())
        return None if fine else "it opens what is not part of the sum"
    return None


def waiting(state: State, answered: set[str]) -> tuple[str, ...]:
    """Whom the step cannot end without: before training all; later, who was away too long."""
    from dorfl.federation.secure_sum import threshold  # noqa: PLC0415

    if state.sum.of == "residuals":  # the model is there: it is refined by all, or not at all
        return ()
    missing = tuple(site for site in asked(state) if site not in answered)
    least = threshold(len(state.roster))
    enough = len(asked(state)) - len(missing) >= least
    if state.step == "sum open":
        return () if enough else missing
    if state.sum.of != "round" or not state.history or not enough:
        return missing
    rule = state.study.absent
    if rule.then == "go on":
        return ()
    recent = state.history[-rule.stand_in :] if rule.stand_in else ()
    return tuple(site for site in missing if not any(site in line.answered for line in recent))


def receive(state: State, answers: dict[str, Any]) -> tuple[State, Array | None, tuple[str, ...]]:
    """One step's answers into the next state; at the end the sum, and who lied about shares."""
    from dorfl.federation import secure_sum  # noqa: PLC0415

    carried, least = state.sum, secure_sum.threshold(len(state.roster))
    if len(answers) < least:
        return _again(state, "too few sites answered"), None, ()
    following = STEPS[min(STEPS.index(state.step) + 1, 3)]
    if state.step == "sum keys":
        return state._replace(step=following, sum=carried._replace(adverts=answers)), None, ()
    if state.step == "sum shares":
        boxes = {site: dealt.boxes for site, dealt in answers.items()}
        return state._replace(step=following, sum=carried._replace(boxes=boxes)), None, ()
    if state.step == "sum masked":
        masked = {site: told.numbers for site, told in answers.items()}
        return state._replace(step=following, sum=carried._replace(masked=masked)), None, ()
    summing = question(state)
    assert summing is not None
    agreement = meaning.agreed(state, "")
    told = {site: answer.shares for site, answer in answers.items()}
    try:
        total, liars = _total(state, summing, agreement, told, least)
    except ValueError as error:
        return _again(state, str(error)), None, ()
    numbers = secure_sum.decode(total, summed.BITS[carried.of])
    return state._replace(step=carried.of, sum=carried._replace(voids=0)), numbers, liars


def _total(
    state: State,
    summing: Summing,
    agreement: Agreement,
    told: dict[str, dict[str, bytes]],
    least: int,
) -> tuple[Array, tuple[str, ...]]:
    from dorfl.federation import secure_sum  # noqa: PLC0415

    carried = state.sum
    digest = summed.question_of(agreement, summing, about(state))
    masked = {site: numbers.view(np.uint64) for site, numbers in carried.masked.items()}
    return secure_sum.total(masked, summing.adverts, told, least, digest, sorted(carried.adverts))


def _again(state: State, reason: str) -> State:
    carried = state.sum
    if carried.voids >= _VOID:
        raise ValueError(f"secure sum: {reason}; tried {_VOID + 1} times")
    return begin(state._replace(step=carried.of, sum=carried._replace(voids=carried.voids + 1)))


def _size(state: State) -> int:
    """How many numbers a site adds to the present sum."""
    broadcast = about(state).broadcast
    if broadcast is None:
        return counted.size(state)
    return pooled.size(broadcast.task, meaning.problem_of(state).layout)


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────


def server_of(state: State, theta: Array) -> Server:
    """A server whose one client is all sites together: its mixture is in the sums already."""
    problem = meaning.problem_of(state)
    adversarial, method = problem.method.mixture.adversarial, problem.method
    if adversarial:
        fixed = replace(method, mixture=mixing.fixed(by=method.mixture.by))
        problem = replace(problem, method=fixed)
    options = meaning.options_now(state).changed(limits=None)
    if adversarial:
        options = options.changed(tol=_INNER * options.tol)
    rows = np.array([sum(state.believed)])
    server = training.serve(problem, (ALL,), rows, theta, options)
    number, last = state.spent + len(state.history) + 1, (server.budget or 0) + state.spent
    return server._replace(round=number, budget=last)


def _anew(state: State, theta: Array, server: Server) -> Server:
    """A server that begins at θ what another function is, in the rounds that are left."""
    return server_of(state, theta)._replace(round=server.round, budget=server.budget)


def tilted(state: State) -> State:
    """Before the first round: how sites are weighed."""
    tau = meaning.problem_of(state).method
    fixed = not tau.mixture.adversarial
    own = tau.temperature if fixed and np.isfinite(tau.temperature) else None
    fresh = state.sum._replace(
        tilt=Tilt(tau=own), tried=Levels(), among=(), upper=np.inf, best=None, lower=-np.inf
    )
    return state._replace(sum=fresh)


def round_of(state: State, total: Array, refused: dict[str, str]) -> tuple[State, Info | None]:
    """The sum of all reports into the next state; Info where the training has ended."""
    carried, problem, server = state.sum, meaning.problem_of(state), state.server
    assert server is not None
    asks, shape, tilt = serving.broadcast(server), problem.layout, carried.tilt
    task, adversarial = asks.task, problem.method.mixture.adversarial
    off = pooled.is_beyond(total)
    moved = pooled.relevel(tilt, None if off else float(total[2]), carried.tried)
    if moved is not None and carried.tried.times < _LEVELS:
        tilt, tried = moved
        return state._replace(sum=carried._replace(tilt=tilt, tried=tried)), None
    if off or moved is not None:
        raise ValueError("secure sum: a site's numbers are too large to be added up")
    alive = tuple(site for site in state.roster if site in carried.masked)
    count, share = int(sum(state.believed)), 1.0
    if not adversarial:
        held = dict(zip(state.roster, state.believed, strict=True))
        share = sum(held[site] for site in alive) / count
    seen = pooled.combine(total, task, tilt, shape, asks.round, ALL, count, share)
    if adversarial and tilt.tau is None:  # now it is known how large risks are
        size = max(abs(seen.report.value), 1e-12)
        finest = 0.25 * _tol(state) * size / float(np.log(len(state.roster)))
        tilt = Tilt(seen.report.value, _TAU * size, finest)
        return state._replace(sum=carried._replace(tilt=tilt, tried=Levels())), None
    if carried.among and alive != carried.among:  # another sum is another function
        server = _anew(state, task.theta, server)
    server, info, heard = serving.receive(server, [seen.report])
    level = seen.report.value if tilt.tau is not None else 0.0
    carried = carried._replace(tilt=tilt._replace(level=level), tried=Levels(), among=alive)
    state = state._replace(sum=carried, server=server)
    whole = len(alive) == len(state.roster)
    if adversarial and whole:
        state, info = _bounded(state, task.theta, seen.upper, info)
    elif info.done in ("converged", "stalled") and not (
        whole or (state.study.absent.then == "go on" and not adversarial)
    ):  # of some sites only: it goes on until all have been there
        info = info._replace(done="")
        state = state._replace(server=_anew(state, info.theta, server))
    if adversarial and not whole:  # of who is away nothing is known
        info = info._replace(gap=np.inf)
    up, down = _bytes(state, total.size, asks)
    line = Round(
        asks.round, info.objective, info.gap, info.risks, info.lam, alive,
        {**refused, **heard.refused}, heard.clipped, up, down,
    )  # fmt: skip
    if state.trial is not None:
        state = state._replace(spent=state.spent + 1)
    else:
        state = state._replace(history=(*state.history, line))
    return state, info if info.done else None


def _bounded(state: State, theta: Array, upper: float, info: Info) -> tuple[State, Info]:
    """The bounds on min max F that a round gives; at the end of a stage, the multipliers' step."""
    carried, server = state.sum, state.server
    assert server is not None
    penalty = server.solving.setting.penalty

    def added(at: Array) -> float:
        return 0.5 * float(penalty @ at**2)

    if upper + added(theta) < carried.upper:
        carried = carried._replace(upper=upper + added(theta), best=theta)
    ended = info.done in ("converged", "stalled")
    if ended:
        lower = max(carried.lower, info.objective - info.gap)
        carried = carried._replace(lower=lower)
    gap = carried.upper - carried.lower
    tol, done = _tol(state), info.done
    if ended:
        close = gap <= tol * max(abs(carried.upper), 1e-300)
        done = "converged" if close else "" if len(carried.tilt.stages) < _STAGES else "stalled"
    if ended and not done:
        at, tilt = info.theta, carried.tilt
        assert tilt.tau is not None
        level = info.objective - added(at)
        stages = (*tilt.stages, Stage(at, level, tilt.tau))
        tilt = tilt._replace(level=level, tau=_SHRINK * tilt.tau, stages=stages)
        carried = carried._replace(tilt=tilt)
        state = state._replace(server=_anew(state._replace(sum=carried), at, server))
    known = np.isfinite(carried.upper)
    info = info._replace(
        objective=carried.upper if known else info.objective,
        gap=gap,
        theta=carried.best if known and carried.best is not None and done else info.theta,
        done=done,
    )
    return state._replace(sum=carried), info


def _tol(state: State) -> float:
    return meaning.options_now(state).tol


def _bytes(state: State, numbers: int, asks: Broadcast) -> tuple[int, int]:
    """What all sites sent and were sent for a sum, without names and the words around."""
    carried = state.sum
    sites, dealers = len(carried.adverts), len(carried.boxes)
    adverts = sum(sum(map(len, advert)) for advert in carried.adverts.values())
    boxes, shares = sites * dealers * _BOX, len(carried.masked) * dealers * 32
    up = adverts + boxes + 8 * numbers * len(carried.masked) + shares
    return up, 3 * adverts * sites + boxes + 2 * asks.bytes * dealers
