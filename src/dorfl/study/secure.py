"""The coordinator's side of a secure sum: four steps, and what is made of their end.

    sum keys → sum shares → sum masked → sum open

take the place of every step whose answers add up: `round`, and those of :mod:`dorfl.study.counted`
(`columns` after `levels`, which asks for names alone). A sum becomes the answer of one client that
has everybody's rows, and the study goes on from that as from any other. A sum that cannot be opened
is asked for anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dorfl.federated import pooled
from dorfl.federated import server as serving
from dorfl.federated.messages import Advert
from dorfl.federated.pooled import Levels, Tilt
from dorfl.study import counted, meaning, vetting
from dorfl.study import summing as summed
from dorfl.study.limits import DEFAULT
from dorfl.study.messages import (
    Agreement,
    Answer,
    Columns,
    Dealt,
    Masked,
    Shares,
    Summing,
)
from dorfl.study.summing import Asked
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.study.coordinator import State

STEPS = summed.STEPS
ANSWERS: dict[str, type] = dict(zip(STEPS, (Advert, Dealt, Masked, Shares), strict=True))
SUMMED = (*counted.STEPS, "round")
AFTER = ("certify",)  # what is summed over all sites or left out
BOX = 64 + 16  # bytes: shares of two secrets, and the seal's tag
_VOID = 3  # sums in a row that cannot be opened


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
    refused: dict[str, str] = {}  # noqa: RUF012 - by site, why it is not in the present sum
    voids: int = 0
    # rounds
    round: int = 0  # the last one of which sites were asked to open a sum,
    opened: tuple[str, ...] = ()  # among whom,
    changes: int = 0  # and how often that was among others than the round before
    tilt: Tilt = Tilt()
    tried: Levels = Levels()
    among: tuple[str, ...] = ()  # whose sum the solver was told last
    upper: float = np.inf  # the least that the worst risk is known to be below, and where
    best: Array | None = None
    lower: float = -np.inf


def told(state: State, total: Array) -> tuple[State, Any]:
    """What a sum comes to, as if one client had all rows; ValueError where it cannot be one."""
    state, answer = counted.told(state, total)
    reason = vetting.unsound(answer, sum(state.rows))
    if reason is not None:
        raise impossible(reason)
    return state, answer


def impossible(reason: str) -> ValueError:
    """The error that says why a sum cannot be one of what sites were asked for, and what to do."""
    return ValueError(
        f"secure sum: {reason}. Somebody adds other numbers than asked for, and a sum does not "
        "tell who: leave sites out in turn, or run the study in the open"
    )


def begin(state: State) -> State:
    """The state with the first step of a sum, where the step it is at is one to sum."""
    if not state.study.privacy.secure_sum or state.step not in SUMMED:
        return state
    carried = state.sum
    if state.step == "columns" and not carried.named:
        return state._replace(step="levels")
    following = carried._replace(
        number=carried.number + 1, of=state.step, adverts={}, boxes={}, masked={}, refused={}
    )
    return state._replace(step=STEPS[0], sum=following)


def asked(state: State) -> tuple[str, ...]:
    """Who is asked at this step: in a sum, those who took part so far.

    Sites open sums that they were in before where they would not open any among others.
    """
    carried = state.sum
    if state.step == STEPS[0] and carried.of == "round" and carried.changes >= DEFAULT.changes:
        return carried.opened
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
    held = state.rows if carried.of == "certify" else held  # as in the open
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
    models = np.array(state.models) if of == "compare" else None
    outcome = state.outcome if of in AFTER else None
    return Asked(sent, models, outcome, meaning.thin(state))


def wrong(state: State, answer: Answer) -> str | None:
    """Why a site's answer to a step of a sum cannot be used, or nothing."""
    carried = state.sum
    if isinstance(answer, Advert):
        sizes = {len(part) for part in (answer.mask, answer.seal, answer.promise)}
        fine = sizes == {32} and len(answer.signature) <= 200
        return None if fine else "its keys have the wrong size"
    if isinstance(answer, Dealt):
        fine = set(answer.boxes) == set(carried.adverts)
        fine = fine and all(len(box) == BOX for box in answer.boxes.values())
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
    from dorfl.federated.secure_sum import threshold  # noqa: PLC0415

    if state.sum.of in AFTER:  # the model is there: of all sites, or not at all
        return ()
    missing = tuple(site for site in asked(state) if site not in answered)
    least = threshold(len(state.roster))
    enough = len(asked(state)) - len(missing) >= least
    if state.step == "sum open":
        return () if enough else missing
    if state.sum.of != "round" or not state.history or not enough or not _room(state, missing):
        return missing
    rule = state.study.absent
    if rule.then == "go on":
        return ()
    recent = state.history[-rule.stand_in :] if rule.stand_in else ()
    return tuple(site for site in missing if not any(site in line.answered for line in recent))


def _room(state: State, missing: tuple[str, ...]) -> bool:
    """Whether sites would still open a sum without some of them, and later one of all again.

    A site lets the sites in a run's sums change so often and no more: what is left is kept for
    those who come back, and from then on nobody is gone on without.
    """
    carried, rest = state.sum, tuple(site for site in asked(state) if site not in missing)
    back = rest != state.roster and state.study.absent.then != "go on"
    return carried.changes + (carried.opened not in ((), rest)) + back <= DEFAULT.changes


def receive(
    state: State, answers: dict[str, Any], refused: dict[str, str] | None = None
) -> tuple[State, Array | None, tuple[str, ...]]:
    """One step's answers into the next state; at the end the sum, and who lied about shares."""
    from dorfl.federated import secure_sum  # noqa: PLC0415

    carried = state.sum._replace(refused={**state.sum.refused, **(refused or {})})
    state, least = state._replace(sum=carried), secure_sum.threshold(len(state.roster))
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
        state = state._replace(step=following, sum=carried._replace(masked=masked))
        return (_opening(state) if carried.of == "round" else state), None, ()
    summing = question(state)
    assert summing is not None
    agreement = meaning.agreed(state, "")
    told = {site: answer.shares for site, answer in answers.items()}
    try:
        total, liars = _total(state, summing, agreement, told, least)
    except ValueError as error:
        return _again(state, str(error)), None, ()
    if secure_sum.impossible(total):
        return (
            _again(state, "the sum is larger than sites may make it: somebody's part is"),
            None,
            (),
        )
    numbers = secure_sum.decode(total, summed.BITS[carried.of])
    return state._replace(step=carried.of, sum=carried._replace(voids=0)), numbers, liars


def _total(
    state: State,
    summing: Summing,
    agreement: Agreement,
    told: dict[str, dict[str, bytes]],
    least: int,
) -> tuple[Array, tuple[str, ...]]:
    from dorfl.federated import secure_sum  # noqa: PLC0415

    carried = state.sum
    digest = summed.question_of(agreement, summing, about(state))
    masked = {site: numbers.view(np.uint64) for site, numbers in carried.masked.items()}
    return secure_sum.total(masked, summing.adverts, told, least, digest, sorted(carried.adverts))


def _opening(state: State) -> State:
    """Before a round's sum is opened: what sites remember of it.

    They open all sums of one round among the same sites. If one has gone since another level was
    tried, or shares did not fit, the sum is asked for as that of the next round.
    """
    carried, server = state.sum, state.server
    assert server is not None
    alive = tuple(site for site in state.roster if site in carried.masked)
    moved = carried.opened not in ((), alive)
    if moved and carried.round == server.round:
        later = server._replace(round=server.round + 1, budget=(server.budget or 0) + 1)
        return begin(state._replace(step="round", server=later, spent=state.spent + 1))
    carried = carried._replace(round=server.round, opened=alive, changes=carried.changes + moved)
    return state._replace(sum=carried)


def _again(state: State, reason: str) -> State:
    carried = state.sum
    if carried.voids >= _VOID:
        words = "".join(f"; site {site!r}: {why}" for site, why in carried.refused.items())
        raise ValueError(f"secure sum: {reason}; tried {_VOID + 1} times{words}")
    return begin(state._replace(step=carried.of, sum=carried._replace(voids=carried.voids + 1)))


def _size(state: State) -> int:
    """How many numbers a site adds to the present sum."""
    broadcast = about(state).broadcast
    if broadcast is None:
        return counted.size(state)
    return pooled.size(broadcast.task, meaning.problem_of(state).layout)
