"""The coordinator's engine: carries a study's questions and answers over a Flower run.

It knows no maths and makes no decision about the study: whom to wait for, what to refuse and what
to ask next is in :mod:`dorfl.study.coordinator`. Here is only time: when to ask again, and when
time is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from dorfl.flower.superlink import Grid, Link, Node
from dorfl.study import coordinator
from dorfl.study.coordinator import State
from dorfl.study.messages import Answer, Refusal
from dorfl.support import wire

_POLL = 0.1  # seconds between looks for replies
_LOOK = 1.0  # … at which sites are there
_AGAIN = 5.0  # … before a site whose answer was unusable is asked anew
_GONE = 600.0  # … before a server that went away is given up
_LIFETIME = 3600.0  # … that a question keeps: what comes after its time may still be of use

Note = Callable[..., object]


def conduct(
    state: State, connect: Callable[[], Link], keep: Callable[[State], object], note: Note
) -> State:
    """A study from any of its states to the end.

    `keep` is given every new state before the next question is asked; `note(event, **details)` is
    told what happens. When the server goes away and comes back, the question is asked again.
    """
    lost: float | None = None
    while state.step != "done":
        try:
            with connect() as link, link.run() as grid:
                if lost is not None:
                    note("server back")
                lost, late = None, dict[str, str]()
                while state.step != "done":
                    step = _Step(state, grid, note, late)
                    step.collect(link)
                    state = coordinator.receive(state, step.answers, step.refused)
                    keep(state)
        except httpx.HTTPError as error:
            if lost is None:
                note("server lost", cause=type(error).__name__)
                lost = time.monotonic()
            if time.monotonic() - lost > _GONE:
                raise ValueError("the server is gone; start it again, then resume") from None
            time.sleep(0.5)
    return state


@dataclass
class _Step:
    """One question to all sites, and what came back."""

    state: State
    grid: Grid
    note: Note
    late: dict[str, str]  # questions of earlier steps that nobody waits for, by message: whose
    answers: dict[str, Answer] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)  # message → site
    again: dict[str, float] = field(default_factory=dict)  # site → when to ask it next
    since: dict[str, str] = field(default_factory=dict)  # site → when it had come, as asked

    def collect(self, link: Link) -> None:
        """Ask and listen until the step can end: all have answered, or time is up."""
        began, looked = time.monotonic(), float("-inf")
        told: tuple[str, ...] = ()
        while True:
            now = time.monotonic()
            if now - looked >= _LOOK:
                self._ask(link.nodes(), now)
                looked = now
            for message, content in self.grid.replies([*self.asked, *self.late]):
                self._hear(message, content)
            silent = set(self.state.roster) - {*self.answers} - {*self.refused}
            if not silent or now - began > self.state.study.absent.answer_within:
                waiting = self._waiting()
                if not waiting:
                    self.late.update(self.asked)  # what comes now comes too late
                    return
                if waiting != told:
                    self.note("waiting", sites=list(waiting))
                    told = waiting
            time.sleep(_POLL)

    def _ask(self, nodes: dict[str, Node], now: float) -> None:
        """Ask every site that is there and was not asked, or has lost the question since."""
        for site in self.state.roster:
            node = nodes.get(site)
            if site in self.answers or node is None or not node.online:
                continue
            restarted = self.since.get(site, node.since) != node.since
            if now < self.again.get(site, now) and not restarted:
                continue
            if site in self.again:
                self.note("asked again", site=site)
            content = wire.encode(coordinator.request(self.state, site))
            self.asked[self.grid.send(node.node_id, content, _LIFETIME)] = site
            self.again[site], self.since[site] = now + _LIFETIME, node.since

    def _hear(self, message: str, content: bytes | None) -> None:
        if message in self.late:
            site = self.late.pop(message)
            if content is not None:
                self.note("late answer", site=site)
            return
        if message not in self.asked:  # answered already
            return
        site = self.asked.pop(message)
        if site in self.answers:
            self.note("second answer", site=site)
            return
        if content is None:  # Flower's own: the site went away, or its answer cannot be read
            self.again[site] = time.monotonic() + _LOOK
            return
        try:
            self.answers[site] = coordinator.read(self.state, site, content)
            self.refused.pop(site, None)
        except ValueError as error:
            self.refused[site] = str(error)
            self.again[site] = time.monotonic() + _AGAIN
            self.note("answer refused", site=site, reason=str(error))

    def _waiting(self) -> tuple[str, ...]:
        usable = {site for site, a in self.answers.items() if not isinstance(a, Refusal)}
        waiting = coordinator.waiting(self.state, usable)
        for site in waiting:
            answer = self.answers.get(site)
            if isinstance(answer, Refusal):
                raise ValueError(f"site {site!r} does not take part: {answer.reason}")
        return waiting
