"""Secure sums: in a summed study, two exchanges in place of one add up the answers to a step.

    sum masked → sum open

Sites send the numbers of their answers with masks, then what opens the sum over sites
(:mod:`dorfl.federated.secure_sum`). A step says which numbers these are and reads their sum
(:meth:`~dorfl.protocol.step.Step.encode`, :meth:`~dorfl.protocol.step.Step.decode`). The study goes
on from the sum as from the answer of one site with all rows. A sum that cannot be opened is asked
anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from dorfl.protocol import site_keys, steps
from dorfl.protocol.messages import NOT_ASKED, Answer, Masked, Opened, Refused, Request, Summing
from dorfl.protocol.settings import SUMMED_SITES
from dorfl.protocol.state import ALL_SITES, SecureSum, State
from dorfl.protocol.step import Answers, LocalSite, Reasons, Sites, Step, impossible_sum
from dorfl.support.types import Array

_MAX_VOIDS = 3  # sums in a row that cannot be opened


class _SumStep(Step):
    """Base of the two exchanges of a sum."""

    def ask(self, state: State, site: str) -> dict[str, Any]:
        """Send what the step sends, and what the sum is about."""
        return {**summed_step(state).ask(state, site), "summing": _summing(state)}

    def waiting(self, state: State, missing: Sites, answered: set[str]) -> Sites:
        """Return the sites without which the exchange cannot end when time is up.

        Before training all; in rounds, those that were absent as often as the study allows. The
        difference of two sums shows the reports of a site that is in one of them.
        """
        step = summed_step(state)
        if not step.waiting(state, missing, set()):  # the step never waits
            return ()
        if not step.sums_without or not state.history or not _are_enough(state, answered):
            return missing
        rule = state.study.absent
        if rule.then == "go on":
            return ()
        return tuple(site for site in missing if state.absences.get(site, 0) >= rule.stand_in)

    def combine(self, state: State, answers: Answers[Any], refused: Reasons) -> State:
        """Go on to the other exchange, or from the sum."""
        step = summed_step(state)
        if (given_up := step.give_up(state, answers, refused)) is not None:
            return given_up
        kept = state.sum._replace(refused={**state.sum.refused, **refused})
        state = state._replace(sum=kept)
        if not _are_enough(state, answers):
            return _again(state, "too few sites answered")
        if self.name == MASKED.name:
            opening = kept._replace(label=state.head, masked=dict(answers))
            return state._replace(step=OPEN.name, sum=opening)
        if gone := sorted(kept.masked.keys() - answers.keys()):
            return _again(state, f"site {gone[0]!r} is in the sum and does not open it")
        total = _open(state, step, answers)
        if total is None:
            return _again(state, "the sum is larger than sites may make it: a site adds too much")
        state = state._replace(step=step.name, sum=kept._replace(voids=0))
        state, answer = step.decode(state, total)
        if answer is None:
            return state
        if (reason := step.validate_sum(state, answer)) is not None:
            raise impossible_sum(reason)
        return steps.named(state.step).combine(state, {ALL_SITES: answer}, kept.refused)


class _SumMasked(_SumStep):
    name = "sum masked"
    answer = Masked
    sends = "masked numbers, of which only the sum over sites can be read"

    def local(self, site: LocalSite, request: Request) -> Masked:
        """Return the masked numbers of the site's answer."""
        from dorfl.federated import secure_sum  # noqa: PLC0415 - an extra

        asked = request.sum
        numbers = _numbers(site, request, asked)
        own = secure_sum.seed(site.secret, asked.label)
        private = site_keys.run_key(site.secret, request.agreement)
        masked = secure_sum.mask(numbers, own, private, site.name, asked.keys, asked.label)
        return Masked(masked.view(np.int64), secure_sum.promise(own))

    def validate(self, state: State, site: str, answer: Masked) -> str | None:
        """Check how many numbers there are."""
        from dorfl.federated import secure_sum  # noqa: PLC0415 - an extra

        numbers, size = answer.numbers, summed_step(state).size(state)
        fits = numbers.dtype == np.int64 and numbers.shape == (size,)
        fits = fits and len(answer.promise) == secure_sum.KEY
        return None if fits else "it adds another count of numbers than asked for"


class _SumOpen(_SumStep):
    name = "sum open"
    answer = Opened
    sends = "seeds that open the sum, and nothing else"

    def local(self, site: LocalSite, request: Request) -> Opened:
        """Return the seed of the own mask, and those shared with sites that are not in the sum."""
        from dorfl.federated import secure_sum  # noqa: PLC0415 - an extra

        asked = request.sum
        private = site_keys.run_key(site.secret, request.agreement)
        pairs = {
            name: secure_sum.pair_seed(private, site.name, name, key, asked.label)
            for name, key in asked.keys.items()
            if name not in asked.alive
        }
        return Opened(secure_sum.seed(site.secret, asked.label), pairs)

    def validate(self, state: State, site: str, answer: Opened) -> str | None:
        """Check the seed against the promise, and whose seeds there are."""
        from dorfl.federated import secure_sum  # noqa: PLC0415 - an extra

        if secure_sum.promise(answer.seed) != state.sum.masked[site].promise:
            return "its seed is not the one that it promised"
        fits = set(answer.pairs) == set(state.sites) - set(state.sum.masked)
        fits = fits and all(len(seed) == secure_sum.KEY for seed in answer.pairs.values())
        return None if fits else "it opens what is not part of the sum"


MASKED, OPEN = _SumMasked(), _SumOpen()
EXCHANGES: dict[str, Step] = {MASKED.name: MASKED, OPEN.name: OPEN}


def begin(state: State) -> State:
    """Return the state with the first exchange, if the answers to its step are summed."""
    step = steps.find(state.step)
    if not state.study.privacy.summed or step is None or not step.is_summed:
        return state
    fresh = SecureSum(of=state.step, voids=state.sum.voids)
    return state._replace(step=MASKED.name, sum=fresh)


def summed_step(state: State) -> Step:
    """Return the step whose answers are summed."""
    return steps.named(state.sum.of)


def sends(step: str) -> str:
    """Return what a site sends at a step, for its log."""
    found = EXCHANGES.get(step) or steps.find(step)
    return step if found is None else found.sends


def recipients(state: State) -> tuple[str, ...]:
    """Return the sites that are asked: a sum is opened by those that are in it."""
    if state.step == OPEN.name:
        return tuple(site for site in state.sites if site in state.sum.masked)
    return state.sites


def local(site: LocalSite, request: Request) -> Answer:
    """Return a site's answer in a summed study."""
    exchange, step = EXCHANGES.get(request.step), steps.find(request.step)
    if exchange is not None and request.summing is not None:
        return exchange.local(site, request)
    if step is None or not step.is_open:
        raise Refused(NOT_ASKED)
    return site.local(step, request)


def _summing(state: State) -> Summing:
    """Return what goes with the requests of a sum."""
    step = summed_step(state)
    rows = state.rows if step.counts_all_rows else state.counted_rows
    masked = tuple(sorted(state.sum.masked))
    label, settings = state.sum.label or state.head, step.sum_settings(state)
    return Summing(step.name, label, state.keys, masked, int(sum(rows)), int(max(rows)), **settings)


def _numbers(site: LocalSite, request: Request, asked: Summing) -> Array:
    """Return the integers that stand for the site's answer."""
    from dorfl.federated import secure_sum  # noqa: PLC0415 - an extra

    step, sites = steps.find(asked.of), len(asked.keys)
    if step is None or not step.is_summed:
        raise Refused(NOT_ASKED)
    numbers = step.encode(site, request, site.local(step, request))
    try:
        return secure_sum.encode(numbers, step.bits, sites)
    except (OverflowError, ValueError):
        return secure_sum.encode(step.out_of_range(site, request), step.bits, sites)


def _open(state: State, step: Step, answers: Mapping[str, Opened]) -> Array | None:
    """Return the sum, or None if no honest sites could make it as large."""
    from dorfl.federated import secure_sum  # noqa: PLC0415 - an extra

    total = secure_sum.total(
        {site: one.numbers.view(np.uint64) for site, one in state.sum.masked.items()},
        {site: one.seed for site, one in answers.items()},
        {site: one.pairs for site, one in answers.items()},
        set(state.sites) - set(state.sum.masked),
    )
    return None if secure_sum.impossible(total) else secure_sum.decode(total, step.bits)


def _are_enough(state: State, answered: Collection[str]) -> bool:
    """Return whether a sum over these sites hides each: three, and more than half of all."""
    return len(answered) >= SUMMED_SITES and 2 * len(answered) > len(state.sites)


def _again(state: State, reason: str) -> State:
    """Return the state with the sum asked anew; raise ValueError after the last time."""
    voids, refused = state.sum.voids, state.sum.refused
    if voids >= _MAX_VOIDS:
        words = "".join(f"; site {site!r}: {why}" for site, why in refused.items())
        raise ValueError(f"secure sum: {reason}; tried {_MAX_VOIDS + 1} times{words}")
    return state._replace(step=state.sum.of, sum=state.sum._replace(voids=voids + 1))
