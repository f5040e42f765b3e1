"""A site at work: it fetches questions, answers them, and says what it does."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from dorfl.flower.fleet import Away, Connection, Taken, clocks
from dorfl.study.site import Site

_TAKEN = 5.0  # seconds until it is clear that another process of this site is not just ending
_PAUSES = (0.2, 5.0)  # … between attempts to reach a server that is away: the first, the longest


def attend(
    site: Site, connection: Connection, stop: threading.Event, note: Callable[[str], object]
) -> None:
    """Answer the coordinator until told to stop; a server that goes away is waited for."""
    away, pause, taken = True, _PAUSES[0], 0.0
    while not stop.is_set():
        try:
            if away:
                _greet(connection, site.name, note)
                away, pause = False, _PAUSES[0]
            question = connection.receive()
            taken = 0.0
            if question is None or stop.is_set():
                continue
            if not connection.reply(question, site.respond(question.content)):
                note("the coordinator no longer waits for an answer just given")
            continue
        except Taken:
            taken = taken or time.monotonic()
            if time.monotonic() - taken > _TAKEN:
                raise
        except Away as error:
            if not away or pause == _PAUSES[0]:
                note(f"{connection.server} does not answer ({error}); trying until it does")
            away, pause = True, min(pause * 1.5, _PAUSES[1])
        stop.wait(pause)


def _greet(connection: Connection, name: str, note: Callable[[str], object]) -> None:
    told = clocks(connection.hello().ahead)
    if told is not None:
        note(told)
    note(f"connected to {connection.server} as {name}")


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set; what is waited for then is given up."""
    event = threading.Event()

    def stop(*_: object) -> None:
        event.set()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return event
