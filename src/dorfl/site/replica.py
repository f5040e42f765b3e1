"""A site's own copy of the coordinator, from which it knows the study's own requests.

On one kind of processor own and relayed requests are equal to the last bit. Between kinds θ differs
by 3e-13 of its largest entry, and by 2.6e-10 in an ill-conditioned problem. Requests within
`TOLERANCE` count as equal, and the site goes on with the relayed numbers, so that all sites sum at
the same θ.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dorfl.data.preprocessing import Transform
from dorfl.protocol import coordinator, transcript
from dorfl.protocol.messages import Request
from dorfl.protocol.state import State
from dorfl.protocol.transcript import Relay, UnfitError
from dorfl.site.journal import Journal
from dorfl.support import wire

TOLERANCE = 1e-8  # of the largest entry; 40 times what was measured between processors


class BehindError(Exception):
    """The site needs the replies from step `number` on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def follow(replicas: dict[str, State], journal: Journal, relay: Relay) -> State:
    """Return the state after all relayed replies, which becomes the run's entry of `replicas`.

    UnfitError if they are not the study's, BehindError if earlier ones are needed, Refused if the
    site has answered at a step of the run after other replies.
    """
    study, run = relay.request.agreement.study, relay.request.agreement.run
    state = replicas.get(run)
    if state is None:
        state = coordinator.begin(study, run)
    if state.study != study:
        raise UnfitError("the run is one of another study")
    if not 0 <= relay.first <= relay.number or relay.first + len(relay.steps) > relay.number:
        raise UnfitError("the request does not follow from the replies that come with it")
    if relay.number < state.number:
        raise UnfitError("the request goes back behind replies that this site has seen")
    if relay.first > state.number:
        raise BehindError(state.number)
    for step in relay.steps[state.number - relay.first :]:
        try:
            state = transcript.advance(state, step)
        except UnfitError:
            raise
        except ValueError as error:
            raise UnfitError(f"the study has ended: {error}") from None
        journal.recall(run, place_of(state), state.head.hex())
    before = dict(list(replicas.items())[-1:])
    replicas.clear()
    replicas.update({**before, run: state})  # the last two runs
    if state.number < relay.number:
        raise BehindError(state.number)
    return state


def place_of(state: State) -> str:
    """Return the place of a step in the journal."""
    return f"step {state.number}"


def agree(state: State, site: str, relayed: Request) -> State:
    """Return the state with the relayed numbers; UnfitError if the request is not the own one."""
    if state.step == "done" or site not in coordinator.recipients(state):
        raise UnfitError("this site is not asked at this step of the study")
    own = coordinator.request(state, site)
    if wire.encode(own) == wire.encode(relayed):
        return state
    own = wire.decode(wire.encode(own), Request)
    if not distance(own, relayed) <= TOLERANCE:
        raise UnfitError("the request is not the study's own")
    return adopt(state, own, relayed)  # type: ignore[no-any-return]


def distance(own: Any, relayed: Any) -> float:
    """Return the largest difference of two requests, relative to the largest entry of its array.

    Infinite if they differ in anything but floating-point numbers.

    >>> distance((1.0, "a"), (1.0 + 1e-12, "a")) < 1e-11, distance((1.0, "a"), (1.0, "b"))
    (True, inf)
    """
    if isinstance(own, np.ndarray) and isinstance(relayed, np.ndarray):
        if own.shape != relayed.shape or own.dtype != relayed.dtype:
            return np.inf
        size = float(np.abs(own).max(initial=0.0))
        difference = float(np.abs(own - relayed).max(initial=0.0))
        return difference / size if size else (0.0 if difference == 0.0 else np.inf)
    if isinstance(own, float) and isinstance(relayed, float):
        if own == relayed:
            return 0.0
        return abs(own - relayed) / max(abs(own), abs(relayed))
    if type(own) is not type(relayed):
        return np.inf
    if isinstance(own, Transform):
        own, relayed = (own.parts, own.ignored), (relayed.parts, relayed.ignored)
    if isinstance(own, tuple) and len(own) == len(relayed):
        return max((distance(a, b) for a, b in zip(own, relayed, strict=True)), default=0.0)
    if isinstance(own, dict) and own.keys() == relayed.keys():
        return max((distance(own[key], relayed[key]) for key in own), default=0.0)
    return 0.0 if own == relayed else np.inf


def adopt(state: Any, own: Any, relayed: Any) -> Any:
    """Return `state` with the numbers of the own request replaced by the relayed ones."""
    changed = _differences(own, relayed, {})
    return _replaced(state.agree(study=None), changed).agree(study=state.study)


def _differences(own: Any, relayed: Any, found: dict[Any, Any]) -> dict[Any, Any]:
    if isinstance(own, np.ndarray):
        if own.tobytes() != relayed.tobytes():
            found[own.tobytes()] = relayed
    elif isinstance(own, float):
        if own not in (relayed, round(own, 3)):  # a short number may be another setting too
            found[own] = relayed
    elif isinstance(own, Transform):
        _differences(own.parts, relayed.parts, found)
    elif isinstance(own, tuple):
        for a, b in zip(own, relayed, strict=True):
            _differences(a, b, found)
    elif isinstance(own, dict):
        for key in own:
            _differences(own[key], relayed[key], found)
    return found


def _replaced(value: Any, changed: dict[Any, Any]) -> Any:
    if isinstance(value, np.ndarray):
        return changed.get(value.tobytes(), value)
    if isinstance(value, float):
        return changed.get(value, value)
    if isinstance(value, Transform):
        return dataclasses.replace(value, parts=_replaced(value.parts, changed))
    if isinstance(value, tuple):
        parts = [_replaced(part, changed) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {key: _replaced(part, changed) for key, part in value.items()}
    return value
