"""The two processes that stay up: the coordinator's server, and a site."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError

from dorfl.flower import superlink
from dorfl.flower.fleet import Connection
from dorfl.flower.folders import Federation
from dorfl.flower.front import front
from dorfl.flower.superlink import Link
from dorfl.study.site import Site

_ACTIVE, _IDLE = 0.2, 1.0  # seconds between looks for a message, during a study and otherwise
_STAYS_ACTIVE = 60.0


def serve(federation: Federation, address: str, ready: Callable[[], object]) -> None:
    """SuperLink and front, until told to stop; a SuperLink that dies is started again."""
    if not _free(address, federation.port):
        raise ValueError(f"port {federation.port} is taken; change it in federation.toml")
    port = free_port()
    child = _Superlink(federation, port)
    app = front(
        f"https://127.0.0.1:{port}",
        federation.keys / "ca.crt",
        federation.sites,
        lambda site: _told(federation, port, site),
    )
    config = uvicorn.Config(
        app,
        host=address,
        port=federation.port,
        ssl_certfile=str(federation.keys / "server.crt"),
        ssl_keyfile=str(federation.keys / "server.key"),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    # Only what is said by a server that is up can be relied on, so it is said last.
    with child.running(), federation.holding("server", {"superlink": port}):
        threading.Thread(target=_announce, args=(server, ready), daemon=True).start()
        # uvicorn ends on a signal and then raises it again: nothing more must come of that.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        server.run()


class _Superlink:
    """A SuperLink kept alive, with the federation's sites registered."""

    def __init__(self, federation: Federation, port: int) -> None:
        self._federation, self._port = federation, port
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Up and registered inside the block."""
        self._start()
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._stopping.set()
            watch.join()
            if self._process is not None:
                self._process.kill()  # its state is in memory: there is nothing to put away
                self._process.wait()

    def _start(self) -> None:
        log = self._federation.path / "logs" / "superlink.log"
        self._process = superlink.start(self._federation.keys, self._port, log)
        with Link(self._port, self._federation.keys / "ca.crt") as link:
            link.wait()
            link.register(self._federation.sites())

    def _watch(self) -> None:
        while not self._stopping.wait(0.5):
            if self._process is not None and self._process.poll() is not None:
                with contextlib.suppress(httpx.HTTPError):
                    self._start()


def attend(
    site: Site, connection: Connection, stop: threading.Event, note: Callable[[str], object]
) -> None:
    """Answer the coordinator until told to stop; a server that goes away is waited for."""
    active, pause, away = 0.0, _ACTIVE, True
    with connection.beating():
        while not stop.is_set():
            try:
                if away:
                    connection.activate()
                    away = False
                    note(f"connected to {connection.server} as {site.name}")
                message = connection.receive()
                if message is not None:
                    active = time.monotonic()
                    _answer(site, connection, message, note)
                    continue
                pause = _ACTIVE if time.monotonic() - active < _STAYS_ACTIVE else _IDLE
            except (httpx.HTTPError, ObjectPullError, ObjectPushError) as error:
                if not away:
                    note(f"lost the server ({type(error).__name__}); trying again")
                away, pause = True, min(max(pause, 0.5) * 1.5, 5.0)
            stop.wait(pause)


def _answer(site: Site, connection: Connection, message: Any, note: Any) -> None:
    content = superlink.body(message)
    if content is None:
        return
    reply = site.respond(content)
    try:
        connection.reply(message, reply)
    except httpx.HTTPStatusError as error:
        if error.response.status_code in (401, 502, 503, 504):
            raise
        note("the coordinator no longer waits for an answer just given")


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set."""
    event = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: event.set())
    return event


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except PermissionError:
            raise ValueError(
                f"port {port} needs more rights; use one above 1023 (port in federation.toml)"
            ) from None
        except OSError:
            return False
    return True


def _announce(server: Any, ready: Callable[[], object]) -> None:
    while not server.started and not server.should_exit:
        time.sleep(0.05)
    if server.started:
        ready()


def _told(federation: Federation, port: int, site: str) -> dict[str, Any]:
    """What a site is told that says hello: its name and number here, and the study that runs."""
    with Link(port, federation.keys / "ca.crt") as link:
        node = link.nodes().get(site)
    study, running = None, federation.noted("run")
    if running is not None:
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((Path(running["folder"]) / "record.json").read_text())
            study = json.dumps(record["study"])
    return {"site": site, "node": node.node_id if node else 0, "study": study}
