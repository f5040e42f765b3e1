"""A site's own copy of the coordinator, from which it knows the study's own requests."""

from __future__ import annotations

from dorfl.protocol import coordinator, rounding, transcript
from dorfl.protocol.messages import Request
from dorfl.protocol.state import State
from dorfl.protocol.transcript import Relay, UnfitError
from dorfl.site.journal import Journal
from dorfl.support import wire


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
    if not rounding.distance(own, relayed) <= rounding.TOLERANCE:
        raise UnfitError("the request is not the study's own")
    return rounding.adopt(state, own, relayed)  # type: ignore[no-any-return]
