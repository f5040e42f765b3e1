"""Where questions wait for their sites, and answers for the coordinator; in memory alone.

A site is given its oldest open question every time it asks for one, so that nothing is lost with a
connection or a process. It can answer only what it was asked. Of two processes with one site's key
only the first is served: the second is told, and so is the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dorfl.flower.signing import Turned
from dorfl.support import wire

PATIENCE = 20.0  # seconds that a site waits for a question before it asks again
_AWAY = 2 * PATIENCE  # … after which a silent site's process counts as gone
_OPEN = 8  # questions of one site at most; the oldest are for nothing by then
_BATCH = 32 * 2**20  # bytes of answers handed over at once, if there are several
_HELD = 512 * 2**20  # … that may wait, or be on their way in


class Question(NamedTuple):
    """Something a site is asked."""

    id: str
    site: str
    content: bytes
    most: int = wire.LIMIT  # bytes of its answer


class Answered(NamedTuple):
    """What a site sent, and how many seconds after it was asked."""

    id: str
    site: str
    content: bytes
    seconds: float


@dataclass
class Presence:
    """A site's process, as far as it has been heard of."""

    session: str
    peer: tuple[str, int]  # where it connects from
    since: float
    seen: float
    warned: str = ""  # the other process that was turned away last


@dataclass
class Desk:
    """The state between sites and coordinator; used from one event loop."""

    changed: Callable[[], object] = lambda: None  # who is there has changed
    sites: dict[str, Presence] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=1000))  # for the log
    _run: str = ""
    _open: dict[str, dict[str, Question]] = field(default_factory=dict)  # by site
    _given: dict[str, float] = field(default_factory=dict)  # question → when its site got it
    _answers: deque[Answered] = field(default_factory=deque)
    _coming: dict[str, int] = field(default_factory=dict)  # site → bytes on their way in
    _awaited: set[str] = field(default_factory=set)  # questions the coordinator waits for now
    _bells: dict[str, asyncio.Event] = field(default_factory=dict)  # by site: there is a question
    _complete: asyncio.Event = field(default_factory=asyncio.Event)

    def claim(self, site: str, session: str, peer: tuple[str, int]) -> None:
        """Be the one process that answers for `site`; Turned if another one is."""
        now, known = time.time(), self.sites.get(site)
        if known is not None and now - known.seen > _AWAY:
            known = None
        if known is not None and known.session != session:
            if known.warned != session:
                known.warned = session
                self.events.append({"event": "two processes under one key", "site": site})
            raise Turned(
                409,
                f"another process answers for site {site!r} since "
                f"{time.strftime('%H:%M:%S', time.gmtime(known.since))} UTC: stop it first. If it "
                "is not yours, the key has been copied: tell the coordinator",
            )
        if known is None:
            known = self.sites[site] = Presence(session, peer, now, now)
            self.changed()
        known.seen, known.peer = now, peer

    def gone(self, peer: tuple[str, int]) -> None:
        """A connection ended, and with it the process that last used it, as far as we know."""
        for site, known in list(self.sites.items()):
            if known.peer == peer:
                del self.sites[site]
                self.changed()

    async def next(self, site: str) -> Question | None:
        """The oldest open question of a site; waited for a while if there is none."""
        bell = self._bells.setdefault(site, asyncio.Event())
        try:
            async with asyncio.timeout(PATIENCE):
                await bell.wait()
        except TimeoutError:
            return None
        found = next(iter(self._open[site].values()))
        if found.id in self._given:  # its process, or the connection, was lost
            self.events.append({"event": "asked again", "site": site})
        self._given[found.id] = time.monotonic()
        return found

    def expects(self, site: str, question: str, size: int) -> None:
        """Make room for an answer that is announced; Turned if nobody waits for it."""
        if question not in self._open.get(site, {}) or question not in self._given:
            raise Turned(410, "nobody waits for this answer")
        if size > (most := self._open[site][question].most):
            self.events.append({"event": "answer too long", "site": site, "bytes": size})
            raise Turned(413, f"no answer to this question is longer than {most} bytes")
        if site in self._coming:
            raise Turned(429, "another answer of this site is on its way already")
        held = sum(self._coming.values()) + sum(len(a.content) for a in self._answers)
        if held and held + size > _HELD:
            raise Turned(503, "too much is on its way; try again")
        self._coming[site] = size

    def stopped(self, site: str) -> None:
        """An answer announced has come, or will not."""
        self._coming.pop(site, None)

    def answer(self, site: str, question: str, content: bytes) -> None:
        """Take an answer in."""
        if question not in self._open.get(site, {}):
            raise Turned(410, "nobody waits for this answer")
        seconds = time.monotonic() - self._given[question]
        self._close(site, question)
        self._answers.append(Answered(question, site, content, seconds))
        if not self._awaited:
            self._complete.set()

    def seen(self) -> list[dict[str, Any]]:
        """What has happened since this was last asked."""
        found = list(self.events)
        self.events.clear()
        return found

    async def exchange(
        self, run: str, questions: list[Question], awaited: set[str], patience: float
    ) -> list[Answered]:
        """The coordinator's turn: new questions in, and answers out once all awaited are there.

        Or as many as there are when `patience` seconds have passed. Another `run` than last time
        clears the desk.
        """
        if run != self._run:
            self._run = run
            for site, waiting in self._open.items():
                for old in list(waiting):
                    self._close(site, old)
            self._answers.clear()
        for question in questions:
            waiting = self._open.setdefault(question.site, {})
            waiting[question.id] = question
            while len(waiting) > _OPEN:
                self._close(question.site, next(iter(waiting)))
            self._bells.setdefault(question.site, asyncio.Event()).set()
        self._awaited = {q for waiting in self._open.values() for q in waiting if q in awaited}
        self._complete.clear()
        if self._awaited:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._complete.wait()
        taken, size = list[Answered](), 0
        while self._answers and (not taken or size + len(self._answers[0].content) <= _BATCH):
            taken.append(self._answers.popleft())
            size += len(taken[-1].content)
        return taken

    def _close(self, site: str, question: str) -> None:
        del self._open[site][question]
        self._given.pop(question, None)
        self._awaited.discard(question)
        if not self._open[site] and site in self._bells:
            self._bells[site].clear()
