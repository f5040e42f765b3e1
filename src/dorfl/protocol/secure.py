"""The coordinator's side of secure sums: two exchanges in the place of one, and what they come to.

    sum masked → sum open

take the place of every step whose answers add up: `round`, and those of
:mod:`dorfl.protocol.additive_statistics` (`columns` after `levels`, which asks for names
alone). A sum becomes the answer of one client that has everybody's rows, and the study goes on from
that as from any other. A sum that cannot be opened is asked for anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dorfl.federated import pooled
from dorfl.federated import server as serving
from dorfl.federated.pooled import Levels, Tilt
from dorfl.protocol import additive_statistics, reply_validation, resolution
from dorfl.protocol import summing as summed
from dorfl.protocol.messages import (
    Answer,
    Columns,
    Masked,
    Opened,
    Summing,
)
from dorfl.protocol.settings import SUMMED_SITES
from dorfl.protocol.summing import Asked
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.protocol.coordinator import State

STEPS = summed.STEPS
ANSWERS: dict[str, type] = dict(zip(STEPS, (Masked, Opened), strict=True))
SUMMED = (*additive_statistics.STEPS, "round")
AFTER = ("certify",)  # what is summed over all sites or left out
_VOID = 3  # sums in a row that cannot be opened


class Sum(NamedTuple):
    """All that a coordinator carries of its secure sums."""

    of: str = ""
    label: bytes = b""  # of the sum that is being opened
    named: dict[str, Columns] = {}  # noqa: RUF012 - replaced, never changed in place, as all here
    units: dict[str, float] = {}  # noqa: RUF012
    middles: dict[str, float] = {}  # noqa: RUF012 - medians that are looked for: the last guess
    found: Columns | None = None
    turns: int = 0
    masked: dict[str, Masked] = {}  # noqa: RUF012
    refused: dict[str, str] = {}  # noqa: RUF012 - by site, why it is not in the present sum
    voids: int = 0
    # rounds
    tilt: Tilt = Tilt()
    tried: Levels = Levels()
    among: tuple[str, ...] = ()  # whose sum the solver was told last
    upper: float = np.inf  # the least that the worst risk is known to be below, and where
    best: Array | None = None
    lower: float = -np.inf


def told(state: State, total: Array) -> tuple[State, Any]:
    """What a sum comes to, as if one client had all rows; ValueError where it cannot be one."""
    state, answer = additive_statistics.told(state, total)
    reason = reply_validation.unsound(answer, sum(state.rows))
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
    """Return the state with the first exchange of a sum, if the step it is at is one to sum."""
    if not state.study.privacy.summed or state.step not in SUMMED:
        return state
    carried = state.sum
    if state.step == "columns" and not carried.named:
        return state._replace(step="levels")
    following = carried._replace(of=state.step, label=b"", masked={}, refused={})
    return state._replace(step=STEPS[0], sum=following)


def asked(state: State) -> tuple[str, ...]:
    """Return the sites that are asked at this step: a sum is opened by those who are in it."""
    if state.step == "sum open":
        return tuple(site for site in state.roster if site in state.sum.masked)
    return state.roster


def question(state: State) -> Summing | None:
    """Return what goes with a request of a sum."""
    carried = state.sum
    if state.step not in STEPS:
        return None
    held = state.rows if carried.of == "certify" else state.believed  # as in the open
    return Summing(
        carried.of, carried.label or state.head, state.keys, tuple(sorted(carried.masked)),
        int(sum(held)), int(max(held)), carried.tilt, summed.levels_of(carried.named),
        carried.units, carried.middles,
    )  # fmt: skip


def about(state: State) -> Asked:
    """The models that a sum is about, from when it is asked."""
    of = state.sum.of if state.step in STEPS else state.step
    sent = serving.broadcast(state.server) if of == "round" and state.server is not None else None
    models = np.array(state.models) if of == "compare" else None
    outcome = state.outcome if of in AFTER else None
    return Asked(sent, models, outcome, resolution.thin(state))


def wrong(state: State, site: str, answer: Answer) -> str | None:
    """Return why a site's answer to a step of a sum cannot be used, or None."""
    from dorfl.federated import secure_sum  # noqa: PLC0415

    if isinstance(answer, Masked):
        numbers = answer.numbers
        fine = numbers.dtype == np.int64 and numbers.shape == (_size(state),)
        fine = fine and len(answer.promise) == secure_sum.KEY
        return None if fine else "it adds another count of numbers than asked for"
    if isinstance(answer, Opened):
        if secure_sum.promise(answer.seed) != state.sum.masked[site].promise:
            return "its seed is not the one that it promised"
        fine = set(answer.pairs) == set(state.roster) - set(state.sum.masked)
        fine = fine and all(len(seed) == secure_sum.KEY for seed in answer.pairs.values())
        return None if fine else "it opens what is not part of the sum"
    return None


def waiting(state: State, answered: set[str]) -> tuple[str, ...]:
    """Return the sites without which the step cannot end although time is up.

    Before training all; in rounds, those that were absent as often as the study allows. The
    difference of two sums shows the reports of a site that is in one of them.
    """
    if state.sum.of in AFTER:  # the model is there: of all sites, or not at all
        return ()
    missing = tuple(site for site in asked(state) if site not in answered)
    if state.sum.of != "round" or not state.history or not _enough(state, answered):
        return missing
    rule = state.study.absent
    if rule.then == "go on":
        return ()
    return tuple(site for site in missing if state.absences.get(site, 0) >= rule.stand_in)


def _enough(state: State, answered: Any) -> bool:
    """Whether a sum over these sites hides each: three, and more than half of all."""
    return len(answered) >= SUMMED_SITES and 2 * len(answered) > len(state.roster)


def receive(
    state: State, answers: dict[str, Any], refused: dict[str, str]
) -> tuple[State, Array | None]:
    """Return the next state and, after the second exchange, the sum."""
    from dorfl.federated import secure_sum  # noqa: PLC0415

    carried = state.sum._replace(refused={**state.sum.refused, **refused})
    state = state._replace(sum=carried)
    if not _enough(state, answers):
        return _again(state, "too few sites answered"), None
    if state.step == "sum masked":
        following = carried._replace(label=state.head, masked=answers)
        return state._replace(step="sum open", sum=following), None
    if gone := sorted(carried.masked.keys() - answers.keys()):
        return _again(state, f"site {gone[0]!r} is in the sum and does not open it"), None
    total = secure_sum.total(
        {site: told.numbers.view(np.uint64) for site, told in carried.masked.items()},
        {site: told.seed for site, told in answers.items()},
        {site: told.pairs for site, told in answers.items()},
        set(state.roster) - set(carried.masked),
    )
    if secure_sum.impossible(total):
        reason = "the sum is larger than sites may make it: somebody's part is"
        return _again(state, reason), None
    numbers = secure_sum.decode(total, summed.BITS[carried.of])
    return state._replace(step=carried.of, sum=carried._replace(voids=0)), numbers


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
        return additive_statistics.size(state)
    return pooled.size(broadcast.task, resolution.problem_of(state).layout)
