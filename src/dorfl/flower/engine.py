"""The coordinator's engine: carries a study's questions and answers over a Flower run.

It knows no maths and makes no decision about the study: whom to wait for, what to refuse and what
to ask next is in :mod:`dorfl.study.coordinator`. Here is only time: when to ask again, and when
time is up.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from dorfl.flower.desk import Answered, Question
from dorfl.flower.superlink import FAILURES, Line, Link
from dorfl.study import coordinator, vetting
from dorfl.study.coordinator import State
from dorfl.study.messages import Answer, Refusal
from dorfl.support import wire
from dorfl.support.text import one_line

_PATIENCE = 1.0  # seconds that an exchange with the front takes at most
_AGAIN = 5.0  # … before a site whose answer was unusable is asked anew
_GONE = 600.0  # … before a server that went away is given up

Note = Callable[..., object]


def conduct(
    state: State,
    connect: Callable[[], Link],
    registered: Callable[[], Container[str]],
    keep: Callable[[State, dict[str, float]], object],
    note: Note,
) -> State:
    """A study from any of its states to the end.

    `keep` is given every new state, and the seconds each site took, before the next question is
    asked; `note(event, **details)` is told what happens. When the server goes away and comes back,
    the question is asked again. A site that is no longer `registered` is not waited for.
    """
    lost: float | None = None
    while state.step != "done":
        try:
            with connect() as link, link.run() as line:
                if lost is not None:
                    note("server back")
                lost, late = None, dict[str, str]()
                while state.step != "done":
                    step = _Step(state, line, registered, note, late)
                    step.collect()
                    state = coordinator.receive(state, step.answers, step.refused)
                    keep(state, step.took)
        except FAILURES as error:
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
    line: Line
    registered: Callable[[], Container[str]]
    note: Note
    late: dict[str, str]  # questions of earlier steps that nobody waits for: whose
    answers: dict[str, Answer] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)  # seconds, by site
    asked: dict[str, str] = field(default_factory=dict)  # question → site
    again: dict[str, float] = field(default_factory=dict)  # site → when to ask it

    def collect(self) -> None:
        """Ask and listen until the step can end: all have answered, or time is up."""
        began = time.monotonic()
        self.again = dict.fromkeys(coordinator.asked(self.state), began)
        told: tuple[str, ...] = ()
        while True:
            now = time.monotonic()
            left = began + self.state.study.absent.answer_within - now
            patience = min(_PATIENCE, left) if left > 0 else _PATIENCE
            heard = self.line.exchange(self._questions(now), [*self.asked], patience)
            for event in heard.events:
                self.note(**event)
            for answer in heard.answers:
                self._hear(answer)
            silent = set(coordinator.asked(self.state)) - {*self.answers} - {*self.refused}
            if not silent or left <= 0:
                waiting = self._waiting()
                if not waiting:
                    self.late.update(self.asked)  # what comes now comes too late
                    return
                if waiting != told:
                    self.note("waiting", sites=list(waiting))
                    told = waiting

    def _questions(self, now: float) -> list[Question]:
        """To those whose time has come: at first all, later who gave an answer of no use."""
        found = []
        for site in [site for site, when in self.again.items() if when <= now]:
            content = wire.encode(coordinator.request(self.state, site))
            found.append(Question(uuid.uuid4().hex, site, content, vetting.longest(self.state)))
            self.asked[found[-1].id] = site
            del self.again[site]
        return found

    def _hear(self, told: Answered) -> None:
        if told.id in self.late:
            self.note("late answer", site=self.late.pop(told.id))
            return
        site = self.asked.pop(told.id, None)
        if site is None or site != told.site:  # nobody asked for it
            return
        try:
            self.answers[site] = coordinator.read(self.state, site, told.content)
            self.refused.pop(site, None)
            self.took[site] = told.seconds
        except ValueError as error:
            self.refused[site] = one_line(str(error))
            self.again[site] = time.monotonic() + _AGAIN
            self.note("answer refused", site=site, reason=self.refused[site])

    def _waiting(self) -> tuple[str, ...]:
        spare = self.state.spare
        usable = {s for s, a in self.answers.items() if spare or not isinstance(a, Refusal)}
        waiting = coordinator.waiting(self.state, usable)
        known = self.registered()
        left = {site for site in waiting if site not in known}
        if left:  # their last reports stand in for as long as it takes
            study = self.state.study
            going = study._replace(absent=study.absent._replace(then="go on"))
            needed = left.intersection(
                coordinator.waiting(self.state._replace(study=going), usable)
            )
            if needed:
                raise ValueError(
                    f"{', '.join(sorted(needed))}: left before a report could stand in; start "
                    "another run without"
                )
            waiting = tuple(site for site in waiting if site not in left)
        for site in waiting:
            answer = self.answers.get(site)
            if isinstance(answer, Refusal):
                raise ValueError(f"site {site!r} does not take part: {one_line(answer.reason)}")
        return waiting
