"""The signed replies of a run, from which every site recomputes the coordinator's requests.

The coordinator is a pure function of the replies: :func:`~dorfl.protocol.coordinator.receive` makes
the next state of them, and :func:`~dorfl.protocol.coordinator.request` the next request of that. In
a summed study each reply is signed together with the *head*, a digest of the study, the run and all
replies before it. With a request (:class:`Relay`) come the replies of the step before. A site
checks the signatures, applies the same functions (:func:`advance`) and answers only the request
that it computes itself. The coordinator can therefore delay replies, but not choose a question. Two
sites that were shown different replies have different heads, so neither accepts the other's
signature.

Replaying signed logs against a deterministic reference is the idea of PeerReview [1]_; detecting
forks by signed histories is that of SUNDR [2]_.

References
----------
.. [1] A. Haeberlen, P. Kouznetsov, P. Druschel, "PeerReview: practical accountability for
   distributed systems", SOSP 2007.
.. [2] J. Li, M. Krohn, D. Mazières, D. Shasha, "Secure untrusted data repository (SUNDR)", OSDI
   2004.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from dorfl.protocol import coordinator, site_keys
from dorfl.protocol.messages import Answer, Refusal, Reply, Request
from dorfl.protocol.state import State
from dorfl.support import wire

_SCHEME = ec.ECDSA(hashes.SHA256())
_CHUNK = wire.LIMIT // 4  # bytes of earlier replies that go with one request


class UnfitError(ValueError):
    """Replies or requests are not part of the study's course; the text may be sent."""


class SignedReply(NamedTuple):
    """A site's reply and its signature over the reply and the head. An unsigned one is no reply."""

    site: str
    reply: bytes
    signature: bytes = b""


class Relay(NamedTuple):
    """Coordinator to site: a request, and the replies that it follows from."""

    number: int  # steps that were closed before this request
    first: int  # number of the first step in `steps`
    steps: tuple[tuple[SignedReply, ...], ...]  # replies of steps first, first + 1, …
    request: Request  # what the coordinator computed from all replies

    @staticmethod
    def is_tagged() -> bool:
        """Return True: a site accepts a Request or a Relay."""
        return True


def signed_text(head: bytes, site: str, reply: bytes) -> bytes:
    """Return the bytes that the signature of a reply is over."""
    return wire.encode(("dorfl reply at head", head, site, hashlib.sha256(reply).digest()))


def sign(key: ec.EllipticCurvePrivateKey, head: bytes, site: str, reply: bytes) -> SignedReply:
    """Return a site's signed reply."""
    return SignedReply(site, reply, key.sign(signed_text(head, site, reply), _SCHEME))


def verify(state: State, said: SignedReply) -> None:
    """Raise UnfitError if `said` is not signed by its site at the head of `state`."""
    keys = site_keys.peers_of(state.study.privacy.peers)
    try:
        keys[said.site].verify(
            said.signature, signed_text(state.head, said.site, said.reply), _SCHEME
        )
    except (KeyError, InvalidSignature):
        raise UnfitError(
            f"the reply of site {said.site[:60]!r} is not signed by it at this point of the run: "
            "sites were shown different replies, or it was altered"
        ) from None


def advance(state: State, step: Sequence[SignedReply]) -> State:
    """Return the state after a step, at the coordinator and at every site alike.

    UnfitError if the replies cannot end the step: a site answers twice or unasked, a signature is
    wrong, too few answered, or one is missing that the study waits for. ValueError ends the study.
    """
    asked, names = coordinator.recipients(state), [said.site for said in step]
    if len(set(names)) < len(names) or not set(names) <= set(asked):
        raise UnfitError("a site answers twice, or was not asked")
    answers, refused = dict[str, Answer](), dict[str, str]()
    for said in step:
        verify(state, said)
        try:
            answers[said.site] = coordinator.read(state, said.site, said.reply)
        except ValueError as error:
            refused[said.site] = str(error)
    usable = {s for s, a in answers.items() if state.is_optional or not isinstance(a, Refusal)}
    away = [site for site in asked if site not in names]
    if awaited := set(away).intersection(coordinator.waiting(state, usable)):
        raise UnfitError(f"the step ends without site {min(awaited)!r}, which it has to wait for")
    if 2 * len(names) <= len(asked):
        raise UnfitError("the step ends without half of the sites")
    after = coordinator.receive(state, answers, refused)
    absences = {s: state.absences.get(s, 0) + (s in away) for s in state.sites}
    return after._replace(head=_after(state.head, step), number=state.number + 1, absences=absences)


def _after(head: bytes, step: Sequence[SignedReply]) -> bytes:
    """Return the head once these replies are part of the run."""
    digests = sorted((said.site, hashlib.sha256(said.reply).digest()) for said in step)
    return hashlib.sha256(wire.encode((head, digests))).digest()


@dataclass
class Transcript:
    """The closed steps of a run; with a `file`, they outlive the process.

    Attributes
    ----------
    file
        Gets one line for each step, before the next request is sent. None keeps steps in memory.
    steps
        The signed replies of each step.
    """

    file: Path | None = None
    steps: list[tuple[SignedReply, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.file is None or not self.file.exists():
            return
        kept = []
        for line in self.file.read_bytes().split(b"\n")[:-1]:  # a line cut short is asked again
            kept.append(wire.decode(line, tuple[SignedReply, ...]))
        self.steps = kept
        self.file.write_bytes(b"".join(wire.encode(step) + b"\n" for step in kept))

    def append(self, step: tuple[SignedReply, ...]) -> None:
        """Add a closed step."""
        self.steps.append(step)
        if self.file is not None:
            with self.file.open("ab") as out:
                out.write(wire.encode(step) + b"\n")

    def follow(self, state: State) -> State:
        """Return the state after all steps kept: a checkpoint may be older."""
        for step in self.steps[state.number :]:
            state = advance(state, step)
        return state

    def relay(self, state: State, site: str, first: int) -> Relay:
        """Return the request to `site` with steps from `first` on, as many as a message holds."""
        steps, size = list[tuple[SignedReply, ...]](), 0
        for step in self.steps[first : state.number]:
            size += 2 * sum(len(said.reply) + len(said.signature) for said in step)
            if steps and size > _CHUNK:
                break
            steps.append(step)
        return Relay(state.number, first, tuple(steps), coordinator.request(state, site))


@dataclass
class Exchange:
    """The requests and replies of one step, in any mode.

    In a summed study replies are collected for the transcript; otherwise they are only read.
    """

    state: State
    transcript: Transcript
    answers: dict[str, Answer] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    _said: dict[str, SignedReply] = field(default_factory=dict)
    _first: dict[str, int] = field(default_factory=dict)  # step that a site asked to be shown from

    def payload(self, site: str) -> bytes:
        """Return the bytes of the request to `site`."""
        if not self.state.study.privacy.summed:
            return wire.encode(coordinator.request(self.state, site))
        first = self._first.get(site, max(self.state.number - 1, 0))
        return wire.encode(self.transcript.relay(self.state, site, first))

    def read(self, site: str, data: bytes) -> bool:
        """Take in a reply; False if the site has to be asked again at once, with earlier steps.

        A reply that cannot be used is kept in `refused`, and raises ValueError.
        """
        try:
            return self._read(site, data)
        except ValueError as error:
            if site not in self.answers:
                self.refused[site] = str(error)
            raise

    def _read(self, site: str, data: bytes) -> bool:
        if self.state.study.privacy.summed:
            try:
                said = wire.decode(data, SignedReply)
            except ValueError:  # a site that cannot read a request does not know that it is summed
                return self._unsigned(site, wire.decode(data, Reply).answer)
            reply = wire.decode(said.reply, Reply)
            if said.site != site:
                raise ValueError("gives another site's name")
            if not said.signature:
                return self._unsigned(site, reply.answer)
            verify(self.state, said)
            self._said[site] = said
            data = said.reply
        self.answers[site] = coordinator.read(self.state, site, data)
        self.refused.pop(site, None)
        return True

    def _unsigned(self, site: str, answer: Any) -> bool:
        if isinstance(answer, Refusal) and answer.behind is not None:
            if not 0 <= answer.behind < self.state.number:
                raise ValueError("asks for steps that there are not")
            self._first[site] = answer.behind
            return False
        reason = (
            answer.reason if isinstance(answer, Refusal) else "gives an answer without signature"
        )
        raise ValueError(reason)

    def close(self) -> State:
        """Return the next state; in a summed study the step is added to the transcript first."""
        if not self.state.study.privacy.summed:
            refused = {s: why for s, why in self.refused.items() if s not in self.answers}
            return coordinator.receive(self.state, self.answers, refused)
        step = tuple(self._said[site] for site in self.state.sites if site in self._said)
        after = advance(self.state, step)
        self.transcript.append(step)
        return after
