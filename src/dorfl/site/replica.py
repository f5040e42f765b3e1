"""A site's own copy of the coordinator: it answers the study's own requests, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorfl.protocol import coordinator, rounding, transcript
from dorfl.protocol.coordinator import State
from dorfl.protocol.messages import Refusal, Reply, Request
from dorfl.protocol.transcript import Relay, Said, UnfitError
from dorfl.site.consent import Refused
from dorfl.support import wire

if TYPE_CHECKING:
    from dorfl.site.site import Site


class BehindError(Exception):
    """The site needs the replies from step `number` on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def respond(site: Site, relay: Relay) -> bytes:
    """Return the signed reply to a relayed request, or an unsigned one that says why there is none.

    A site that was restarted asks for the replies from the first step on and replays them.
    """
    agreement, step = relay.request.agreement, relay.request.step
    try:
        site.consent(agreement)
        state = _agreed(site, _followed(site, relay), relay.request)
        said = _answered(site, state, coordinator.request(state, site.name))
    except BehindError as behind:
        said = _unsigned(site, relay, Refusal("needs earlier replies", behind.number))
    except (UnfitError, Refused) as error:
        site.note(f"refused {step[:20] or 'a request'}: {error}")
        said = _unsigned(site, relay, Refusal(str(error)))
    return wire.encode(said)


def _unsigned(site: Site, relay: Relay, refusal: Refusal) -> Said:
    reply = Reply(relay.request.agreement.run, site.name, relay.request.step, refusal)
    return Said(site.name, wire.encode(reply))


def _followed(site: Site, relay: Relay) -> State:
    """Return the state after all relayed replies."""
    study, run = relay.request.agreement.study, relay.request.agreement.run
    state = site.replicas.get(run)
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
        _one_course(site, state)
    site.replicas = {**dict(list(site.replicas.items())[-1:]), run: state}
    if state.number < relay.number:
        raise BehindError(state.number)
    return state


def _one_course(site: Site, state: State) -> None:
    """Raise Refused if this site has answered at this step of the run after other replies."""
    site.journal.recall(state.run, _place(state), state.head.hex())


def _place(state: State) -> str:
    return f"step {state.number}"


def _agreed(site: Site, state: State, relayed: Request) -> State:
    """Return the state with the relayed numbers; UnfitError if the request is not the own one."""
    if state.step == "done" or site.name not in coordinator.asked(state):
        raise UnfitError("this site is not asked at this step of the study")
    own = coordinator.request(state, site.name)
    if wire.encode(own) == wire.encode(relayed):
        return state
    own = wire.decode(wire.encode(own), Request)
    if not rounding.distance(own, relayed) <= rounding.TOLERANCE:
        raise UnfitError("the request is not the study's own")
    return rounding.adopt(state, own, relayed)  # type: ignore[no-any-return]


def _answered(site: Site, state: State, request: Request) -> Said:
    """Return the signed reply: the one given before, if this step was answered already."""
    place, mark = _place(state), state.head.hex()
    given = site.journal.recall(state.run, place, mark)
    if given:
        return wire.decode(given, Said)
    reply = site.reply(request, site.add_up)
    said = transcript.sign(site.key, state.head, site.name, reply)
    if not isinstance(wire.decode(reply, Reply).answer, Refusal):  # a refusal has no content
        site.journal.record(state.run, place, mark, wire.encode(said))
    return said
