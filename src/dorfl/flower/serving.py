"""The coordinator's server: SuperLink and front, and what passes between them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import signal
import socket
import ssl
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from dorfl.flower import keys, superlink
from dorfl.flower.desk import Desk
from dorfl.flower.door import Door
from dorfl.flower.folders import Federation
from dorfl.flower.front import HEADERS, front
from dorfl.flower.superlink import FAILURES, FrontNode, Link, Told
from dorfl.support.files import write_whole

_BUSY, _IDLE = 0.03, 0.5  # seconds between looks for the coordinator, during a run and otherwise
_STAYS_BUSY = 30.0
_LOOK = 0.5  # … between looks at the SuperLink and the certificate


def serve(federation: Federation, address: str, ready: Callable[[], object]) -> None:
    """SuperLink and front, until told to stop; a SuperLink that dies is started again."""
    desk = Desk()
    desk.changed = lambda: _keep_presence(federation, desk)
    with _open_door(federation, address) as door, _Superlink(federation) as child:
        app = front(
            desk, door, federation.sites, functools.partial(_told, federation),
            functools.partial(_carry, desk, child),
        )  # fmt: skip
        config = uvicorn.Config(
            app,
            http="h11", h11_max_incomplete_event_size=HEADERS, loop="asyncio", ws="none",
            ssl_certfile=str(federation.keys / "server.crt"),
            ssl_keyfile=str(federation.keys / "server.key"),
            log_level="warning", access_log=False, proxy_headers=False, server_header=False,
            timeout_keep_alive=3600,  # the door closes what is idle
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        config.load()
        assert config.ssl is not None
        child.context = config.ssl
        server = uvicorn.Server(config)
        # Only what is said by a server that is up can be relied on, so it is said last.
        with federation.holding("server", {"superlink": child.port}):
            _keep_presence(federation, desk)
            threading.Thread(target=_announce, args=(server, ready), daemon=True).start()
            # uvicorn ends on a signal and then raises it again: nothing more must come of that.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: None)
            server.run(sockets=[door])


class _Superlink(contextlib.AbstractContextManager["_Superlink"]):
    """A SuperLink kept alive, with the front registered; new certificates are taken up."""

    def __init__(self, federation: Federation) -> None:
        self._federation, self.port = federation, free_port()
        self.ca = federation.keys / "ca.crt"
        self.key = keys.new_key()  # of the front, for as long as this server lives
        self.context: ssl.SSLContext | None = None
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._certified = self._certificate()

    def __enter__(self) -> _Superlink:
        self._start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._end()

    def _start(self) -> None:
        log = self._federation.path / "logs" / "superlink.log"
        self._process = superlink.start(self._federation.keys, self.port, log)
        with Link(self.port, self.ca) as link:
            link.wait()
            link.register(keys.public_bytes(self.key.public_key()))

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()  # its state is in memory: there is nothing to put away
            self._process.wait()

    def _certificate(self) -> int:
        return (self._federation.keys / "server.crt").stat().st_mtime_ns

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK):
            with contextlib.suppress(*FAILURES, OSError):
                if self._certificate() != self._certified and self.context is not None:
                    files = (self._federation.keys / name for name in ("server.crt", "server.key"))
                    self.context.load_cert_chain(*map(str, files))
                    self._certified = self._certificate()
                    self._end()
                if self._process is not None and self._process.poll() is not None:
                    self._start()


async def _carry(desk: Desk, link: _Superlink) -> None:
    """Between the coordinator and the desk, for ever; a SuperLink that is away is waited for."""
    busy = 0.0
    with FrontNode(link.port, link.ca, link.key) as node:
        while True:
            try:
                await asyncio.to_thread(node.activate)
                while True:
                    found = await asyncio.to_thread(node.receive)
                    if found is None:
                        idle = time.monotonic() - busy > _STAYS_BUSY
                        await asyncio.sleep(_IDLE if idle else _BUSY)
                        continue
                    busy = time.monotonic()
                    message, head, questions = found
                    answers = await desk.exchange(
                        head["run"], questions, set(head["awaited"]), head["patience"]
                    )
                    await asyncio.to_thread(node.reply, message, Told(answers, desk.seen()))
            except FAILURES:
                await asyncio.sleep(_LOOK)
            except Exception:  # whatever it is, sites must not be cut off for good
                traceback.print_exc()  # into the server's log
                await asyncio.sleep(_LOOK)


def _keep_presence(federation: Federation, desk: Desk) -> None:
    told = {site: {"since": p.since} for site, p in desk.sites.items()}
    write_whole(federation.path / "state" / "sites.json", json.dumps(told).encode())


def _open_door(federation: Federation, address: str) -> Door:
    try:
        return Door(address, federation.port, federation.connections)
    except PermissionError:
        raise ValueError(
            f"port {federation.port} needs more rights; use one above 1023 (port in "
            "federation.toml)"
        ) from None
    except OSError as error:
        raise ValueError(
            f"port {federation.port} at {address}: {error.strerror}; port is in federation.toml"
        ) from None


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _announce(server: Any, ready: Callable[[], object]) -> None:
    while not server.started and not server.should_exit:
        time.sleep(0.05)
    if server.started:
        ready()


def _told(federation: Federation, site: str) -> dict[str, Any]:
    """What a site is told that says hello: its name here, and the study that runs."""
    study, running = None, federation.noted("run")
    if running is not None and "folder" in running:
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((Path(running["folder"]) / "record.json").read_text())
            study = json.dumps(record["study"])
    return {"site": site, "study": study}
