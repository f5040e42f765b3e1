"""Drive a study over any carrier: send each step's requests, collect replies, go on.

The driver decides when to repeat a request and when to stop waiting. Which sites get a request,
which replies are refused and what comes next is decided by :mod:`dorfl.protocol.coordinator`. A
carrier moves envelopes (:mod:`dorfl.carriers.envelope`) between the driver and the sites.

To add a carrier, write a context manager with the members of :class:`Carrier`, and pass a function
that makes it as `connect` to :func:`dorfl.carriers.runs.begin`. At each site, pass the content of
every request to :meth:`~dorfl.carriers.envelope.SiteEndpoint.respond`, and carry back what it
returns. :class:`~dorfl.carriers.in_process.InProcess` is the shortest carrier.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cryptography import x509

from dorfl.carriers import envelope, keys
from dorfl.carriers.envelope import CoordinatorSeal
from dorfl.protocol import coordinator, reply_validation
from dorfl.protocol.messages import Refusal
from dorfl.protocol.state import State
from dorfl.protocol.transcript import Exchange, Transcript
from dorfl.support.text import one_line

EXCHANGE_SECONDS = 1.0  # longest wait of one call of `Carrier.exchange`
RETRY_SECONDS = 5.0  # pause before a request is repeated whose reply was unusable
GIVE_UP_SECONDS = 600.0  # time without a carrier after which a run stops


class CarrierLostError(Exception):
    """The carrier does not work at the moment; it may come back."""


class Outgoing(NamedTuple):
    """A request on its way to a site."""

    id: str  # 32 hexadecimal digits, new for every request
    site: str
    content: bytes  # the signed envelope
    limit: int = envelope.LIMIT  # largest reply in bytes; of a longer one, return limit + 1 bytes


class Incoming(NamedTuple):
    """A reply from a site."""

    id: str  # of the request
    site: str
    content: bytes  # what the site returned; the driver verifies it
    seconds: float  # since the site received the request, or since it was sent


class Exchanged(NamedTuple):
    """What one call of :meth:`Carrier.exchange` brought: replies, and events for the log."""

    replies: tuple[Incoming, ...]
    events: tuple[dict[str, str | int], ...]  # {"event": "request repeated", "site": …}


class Carrier(Protocol):
    """Move envelopes between a coordinator and its sites.

    A carrier is a context manager (:data:`Connect`), entered once for a run and again after each
    :class:`CarrierLostError`; a carrier that is entered again receives all requests anew.
    """

    @property
    def rejoin_seconds(self) -> float:
        """Seconds that a site which failed may take to be reachable again.

        A step waits at least so long for its replies.
        """
        ...

    def exchange(self, requests: list[Outgoing], awaited: set[str], patience: float) -> Exchanged:
        """Send requests and return replies.

        Return as soon as an awaited reply is there. A reply to a request that is no longer awaited
        may be returned too, and a reply that was returned before is ignored.

        Parameters
        ----------
        requests
            New requests, which the driver passes once. A carrier keeps a request until the site
            has answered it, also while the site is down.
        awaited
            The ids of all requests whose replies the coordinator waits for.
        patience
            Seconds after which to return with fewer replies or none.

        Returns
        -------
        Exchanged
            The replies that have arrived since the last call.

        Raises
        ------
        CarrierLostError
            If the carrier does not work at the moment.
        """
        ...


Note = Callable[..., object]
Connect = Callable[[], AbstractContextManager[Carrier]]


def conduct(
    state: State,
    connect: Connect,
    seal: CoordinatorSeal,
    registered: Callable[[], Mapping[str, x509.Certificate]],
    keep: Callable[[State, dict[str, float]], object],
    note: Note,
    transcript: Transcript | None = None,
) -> State:
    """Drive a study from any of its states to the end.

    Parameters
    ----------
    state
        Where to begin.
    connect
        Opens the carrier; called again after a carrier was lost.
    seal
        Signs requests and verifies replies.
    registered
        Returns the certificates of the registered sites. A site that is removed during a run is
        no longer waited for.
    keep
        Called with every new state and the seconds that each site took, before the next request.
    note : callable
        Called as `note(event, **details)`.
    transcript
        Keeps the signed replies of a summed study.

    Returns
    -------
    State
        The state whose step is "done".

    Raises
    ------
    ValueError
        If a site does not take part, or the carrier does not come back.
    """
    lost: float | None = None
    transcript = transcript or Transcript()
    while state.step != "done":
        try:
            with connect() as carrier:
                late = dict[str, str]()
                while state.step != "done":
                    exchange = Exchange(state, transcript)
                    collection = _Collection(exchange, carrier, seal, registered, note, late)
                    collection.collect(resumed=lost is not None)
                    lost = None
                    state = exchange.close()
                    keep(state, collection.took)
        except CarrierLostError as error:
            if lost is None:
                note("server lost", cause=one_line(str(error)))
                lost = time.monotonic()
            if time.monotonic() - lost > GIVE_UP_SECONDS:
                raise ValueError("the server is gone; start it again, then resume") from None
            time.sleep(0.5)
    return state


@dataclass
class _Collection:
    """The requests of one step, and the replies to them."""

    step: Exchange
    carrier: Carrier
    seal: CoordinatorSeal
    registered: Callable[[], Mapping[str, x509.Certificate]]
    note: Note
    late: dict[str, str]  # requests of earlier steps that are no longer awaited, and their sites
    took: dict[str, float] = field(default_factory=dict)  # seconds, by site
    open: dict[str, Outgoing] = field(default_factory=dict)  # requests without a reply, by id
    due: dict[str, float] = field(default_factory=dict)  # site → when to send it a request

    @property
    def state(self) -> State:
        """The state before the step."""
        return self.step.state

    def collect(self, *, resumed: bool) -> None:
        """Send requests and wait until all sites have replied, or time is up and enough have."""
        began = time.monotonic()
        within = max(self.state.study.absent.answer_within, self.carrier.rejoin_seconds)
        self.due = dict.fromkeys(coordinator.recipients(self.state), began)
        noted: tuple[str, ...] = ()
        while True:
            now = time.monotonic()
            left = began + within - now
            patience = min(EXCHANGE_SECONDS, left) if left > 0 else EXCHANGE_SECONDS
            found = self.carrier.exchange(self._requests(now), {*self.open}, patience)
            if resumed:
                self.note("server back")
                resumed = False
            for event in found.events:
                self.note(**event)
            for reply in found.replies:
                self._receive(reply)
            asked = set(coordinator.recipients(self.state))
            missing = asked - {*self.step.answers} - {*self.step.refused}
            if not missing or left <= 0:
                waiting = self._waiting()
                if not waiting:
                    self.late.update({id_: sent.site for id_, sent in self.open.items()})
                    return
                if waiting != noted:
                    self.note("waiting", sites=list(waiting))
                    noted = waiting

    def _requests(self, now: float) -> list[Outgoing]:
        """Return the requests that are due: to all sites, later to those with unusable replies."""
        found = []
        for site in [site for site, when in self.due.items() if when <= now]:
            payload = self.step.payload(site)
            limit = reply_validation.max_bytes(self.state) + envelope.OVERHEAD
            sent = Outgoing(uuid.uuid4().hex, site, self.seal.request(site, payload), limit)
            found.append(sent)
            self.open[sent.id] = sent
            del self.due[site]
        return found

    def _receive(self, reply: Incoming) -> None:
        if reply.id in self.late:
            self.note("late reply", site=self.late.pop(reply.id))
            return
        sent = self.open.get(reply.id)
        if sent is None or sent.site != reply.site:  # not a reply to any request
            return
        site = sent.site
        if len(reply.content) > sent.limit:
            self.note("reply too long", site=site, bytes=len(reply.content))
            return
        del self.open[reply.id]
        try:
            known = self.registered().get(site)
            if known is None:
                raise ValueError("is no longer registered")
            public = keys.public_of(known)
            payload = self.seal.reply(site, public, sent.content, reply.content)
            if self.step.read(site, payload):
                self.took[site] = reply.seconds
            else:  # the site needs earlier replies
                self.due[site] = time.monotonic()
        except ValueError as error:
            self.step.refused[site] = one_line(str(error))
            self.due[site] = time.monotonic() + RETRY_SECONDS
            self.note("reply refused", site=site, reason=self.step.refused[site])

    def _waiting(self) -> tuple[str, ...]:
        """Return the sites without which the step cannot end; ValueError if it never can."""
        spare = self.state.is_optional
        usable = {s for s, a in self.step.answers.items() if spare or not isinstance(a, Refusal)}
        waiting = coordinator.waiting(self.state, usable)
        known = self.registered()
        removed = {site for site in waiting if site not in known}
        if removed:  # extrapolate their last reports for as long as it takes
            study = self.state.study
            if study.privacy.summed:  # sites cannot know who is registered: they wait for it
                raise ValueError(
                    f"{', '.join(sorted(removed))}: left; start another run without it"
                )
            going = study._replace(absent=study.absent._replace(then="go on"))
            still = coordinator.waiting(self.state.agree(study=going), usable)
            if needed := removed.intersection(still):
                raise ValueError(
                    f"{', '.join(sorted(needed))}: left before its first report; start another "
                    "run without it"
                )
            waiting = tuple(site for site in waiting if site not in removed)
        refusals = dict[str, list[str]]()  # sites by reason
        for site in waiting:
            answer = self.step.answers.get(site)
            if isinstance(answer, Refusal):
                refusals.setdefault(one_line(answer.reason), []).append(repr(site))
        if refusals:
            raise ValueError("; ".join(_refused(*item) for item in refusals.items()))
        return waiting


def _refused(reason: str, sites: list[str]) -> str:
    """Return the sentence about sites that refuse for the same reason."""
    if len(sites) == 1:
        return f"site {sites[0]} does not take part: {reason}"
    return f"sites {', '.join(sites)} do not take part: {reason}"
