"""Collect the replies of a step over any carrier.

The driver decides when to repeat a request and when to stop waiting. Which sites get a request,
which replies are refused and what comes next is decided by :mod:`dorfl.protocol.coordinator`. A
carrier moves envelopes (:mod:`dorfl.carriers.envelope`) between the driver and the sites.

To add a carrier, write a subclass of :class:`Carrier`, and pass an instance to
:func:`dorfl.carriers.runs.begin`. At each site, pass the content of every request to
:meth:`~dorfl.carriers.envelope.SiteEndpoint.respond`, and carry back what it returns.
"""

from __future__ import annotations

import abc
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography import x509

from dorfl.carriers import envelope, keys
from dorfl.carriers.envelope import CoordinatorSeal
from dorfl.protocol import coordinator, reply_validation
from dorfl.protocol.messages import Refusal
from dorfl.protocol.state import State
from dorfl.protocol.transcript import Exchange
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
    limit: int = envelope.LIMIT  # largest reply in bytes; of a longer one, limit + 1 bytes suffice


class Exchanged(NamedTuple):
    """What one call of :meth:`Carrier.exchange` brought."""

    replies: dict[str, bytes]  # by the request's id: what the site returned, not verified
    events: tuple[dict[str, str], ...] = ()  # for the log: {"event": "late reply", "site": …}


class Carrier(abc.ABC):
    """Move envelopes between a coordinator and its sites."""

    @property
    def rejoin_seconds(self) -> float:
        """Seconds that a site which failed may take to be reachable again.

        A step waits at least so long for its replies.
        """
        return 0.0

    @abc.abstractmethod
    def exchange(self, requests: Sequence[Outgoing], patience: float) -> Exchanged:
        """Carry requests to their sites, and return the replies that have arrived.

        Parameters
        ----------
        requests
            All requests without a reply, at most one for each site. A request is in every call
            until its reply was returned or the coordinator needs it no longer. A reply to a request
            that is not in the call is ignored.
        patience
            Seconds to wait for a reply. Return as soon as there is one.

        Returns
        -------
        Exchanged
            Replies by the id of their request, and events for the log of the run.

        Raises
        ------
        CarrierLostError
            If the carrier does not work at the moment. It is called again with the same requests.
        """


@dataclass
class Collection:
    """The requests of one step of a study, and the replies to them."""

    step: Exchange
    carrier: Carrier
    seal: CoordinatorSeal
    registered: Callable[[], Mapping[str, x509.Certificate]]  # certificates by site, as of now
    note: Callable[..., object]  # note(event, **details)
    took: dict[str, float] = field(default_factory=dict)  # seconds, by site
    open: dict[str, Outgoing] = field(default_factory=dict)  # requests without a reply, by id
    due: dict[str, float] = field(default_factory=dict)  # site → when to send it a request
    sent: dict[str, float] = field(default_factory=dict)  # request → when it was sent

    @property
    def state(self) -> State:
        """The state before the step."""
        return self.step.state

    def collect(self) -> None:
        """Send requests and wait until all sites have replied, or time is up and enough have.

        ValueError if a site does not take part, or the carrier does not come back.
        """
        within = max(self.state.study.absent.answer_within, self.carrier.rejoin_seconds)
        end = time.monotonic() + within
        self.due = dict.fromkeys(coordinator.recipients(self.state), 0.0)
        lost: float | None = None
        noted: tuple[str, ...] = ()
        while True:
            self._send_due()
            left = end - time.monotonic()
            patience = min(EXCHANGE_SECONDS, left) if left > 0 else EXCHANGE_SECONDS
            try:
                found = self.carrier.exchange([*self.open.values()], patience)
            except CarrierLostError as error:
                lost = self._lose(lost, error)
                continue
            if lost is not None:
                self.note("server back")
                lost, end = None, time.monotonic() + within
            for event in found.events:
                self.note(**event)
            for id_, content in found.replies.items():
                self._receive(id_, content)
            asked = set(coordinator.recipients(self.state))
            missing = asked - {*self.step.answers} - {*self.step.refused}
            if not missing or left <= 0:
                waiting = self._waiting()
                if not waiting:
                    return
                if waiting != noted:
                    self.note("waiting", sites=list(waiting))
                    noted = waiting

    def _lose(self, since: float | None, error: CarrierLostError) -> float:
        """Pause, and return since when the carrier is lost; ValueError after a long time."""
        if since is None:
            self.note("server lost", cause=one_line(str(error)))
            since = time.monotonic()
        if time.monotonic() - since > GIVE_UP_SECONDS:
            raise ValueError("the server is gone; start it again, then resume")
        time.sleep(0.5)
        return since

    def _send_due(self) -> None:
        """Make the requests that are due: to all sites, later to those with unusable replies."""
        now = time.monotonic()
        for site in [site for site, when in self.due.items() if when <= now]:
            limit = reply_validation.max_bytes(self.state) + envelope.OVERHEAD
            content = self.seal.request(site, self.step.payload(site))
            request = Outgoing(uuid.uuid4().hex, site, content, limit)
            self.open[request.id] = request
            self.sent[request.id] = now
            del self.due[site]

    def _receive(self, id_: str, content: bytes) -> None:
        request = self.open.pop(id_, None)
        if request is None:
            return
        site = request.site
        try:
            if len(content) > request.limit:
                raise ValueError(f"is longer than the {request.limit} bytes allowed")
            known = self.registered().get(site)
            if known is None:
                raise ValueError("is no longer registered")
            payload = self.seal.reply(site, keys.public_of(known), request.content, content)
            if self.step.read(site, payload):
                self.took[site] = time.monotonic() - self.sent[id_]
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
