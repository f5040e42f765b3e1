"""The Flower carrier: a study on a stock SuperLink and SuperNodes, by public APIs alone.

The app in `flower_app` is the same for every study. Its ServerApp calls :func:`run_study`. Its
ClientApp forwards each envelope to the Unix socket of the site's own process
(:func:`attend_socket`). A SuperNode executes the app that its SuperLink sends, so the rows are in
that process of another user, which code in the SuperNode reaches by the socket alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import secrets
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dorfl.carriers import envelope, keys, runs
from dorfl.carriers.driver import Carrier, Exchanged, Outgoing
from dorfl.carriers.envelope import Respond
from dorfl.carriers.folders import Federation, SiteFolder, short_path
from dorfl.protocol import settings, toml

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from dorfl.protocol.state import State

REJOIN_SECONDS = 90.0  # a SuperNode that was killed is let in again after up to 60 s
RETRY_SECONDS = 1.0  # pause before a request is sent again that its node could not carry
LOOK_SECONDS = 0.1  # between looks for replies; `Grid.send_and_receive` looks every 3 s
ENDING_SECONDS = 600.0  # to wait for a ServerApp whose SuperLink was lost; it retries for ever
MESSAGE_SECONDS = 600.0  # after which Flower drops a message
MODE = 0o660  # of a site's socket: the site's user, and the group that it shares with the SuperNode
READ_SECONDS = 60.0  # until a request has arrived on the socket, and until its reply is taken
MAX_REQUESTS = 4  # held in memory at once; further connections wait
SUPERLINK_PORT = 8000  # of the loopback, behind nginx
SOCKET = "/run/dorfl/site.sock"  # where a site's service answers


class GridCarrier(Carrier):
    """Carry envelopes as messages of a Flower grid, one for each request.

    A node is known by the name under which its key was registered (`flwr supernode register
    --name`). In simulation nodes have no names, and any node carries a request to any site.
    `alive` is called whenever the SuperLink has answered.
    """

    def __init__(self, grid: Grid, alive: Callable[[], object] = lambda: None) -> None:
        self._grid, self._alive = grid, alive
        self._pushed: dict[str, tuple[str, int]] = {}  # Flower's message → request, node
        self._retry: dict[str, float] = {}  # request → when to push it again

    @property
    def rejoin_seconds(self) -> float:
        """Seconds that a node which failed may take to be reachable again."""
        return 0.0 if _simulated(self._grid.get_nodes()) else REJOIN_SECONDS

    def exchange(self, requests: Sequence[Outgoing], patience: float) -> Exchanged:
        """Push requests to nodes that are online, and pull replies."""
        end = time.monotonic() + patience
        while True:
            self._push(requests)
            found = self._pull({sent.id: sent for sent in requests})
            if found.replies or found.events or time.monotonic() > end:
                return found
            time.sleep(LOOK_SECONDS)

    def _push(self, requests: Sequence[Outgoing]) -> None:
        from flwr.app import ConfigRecord, Message, RecordDict  # noqa: PLC0415 - an extra

        pushed, now = {id_ for id_, _ in self._pushed.values()}, time.monotonic()
        due = [s for s in requests if s.id not in pushed and self._retry.get(s.id, now) <= now]
        if not due:
            return
        nodes = list(self._grid.get_nodes())
        self._alive()
        named = {node.name: node.node_id for node in nodes if node.name}
        for place, sent in enumerate(due):
            node = named.get(sent.site)
            if _simulated(nodes):
                node = nodes[place % len(nodes)].node_id
            if node is None:
                continue
            content = RecordDict(
                {"dorfl": ConfigRecord({"site": sent.site, "request": sent.content})}
            )
            message = Message(content, node, "query.dorfl", ttl=MESSAGE_SECONDS)
            for id_ in self._grid.push_messages([message]):
                self._pushed[id_] = sent.id, node

    def _pull(self, awaited: Mapping[str, Outgoing]) -> Exchanged:
        self._pushed = {m: sent for m, sent in self._pushed.items() if sent[0] in awaited}
        self._retry = {id_: when for id_, when in self._retry.items() if id_ in awaited}
        replies, events = dict[str, bytes](), list[dict[str, str]]()
        if self._pushed:
            for message in self._grid.pull_messages(list(self._pushed)):
                id_, node = self._pushed.pop(message.metadata.reply_to_message_id)
                if message.has_error() or message.metadata.src_node_id != node:
                    # The node went away, or its app did not reach the site.
                    self._retry[id_] = time.monotonic() + RETRY_SECONDS
                    events.append({"event": "request repeated", "site": awaited[id_].site})
                else:
                    replies[id_] = _reply_of(message)
            self._alive()
        return Exchanged(replies, tuple(events))


def _simulated(nodes: Iterable[Any]) -> bool:
    """Return whether nodes are those of a simulation, which have no names."""
    found = list(nodes)
    return bool(found) and not any(node.name for node in found)


def _reply_of(message: Any) -> bytes:
    """Return the envelope in a message, or no bytes if the message has none."""
    record = message.content.get("dorfl")
    content = record.get("reply") if record is not None else None
    return content if isinstance(content, bytes) else b""


def run_study(grid: Grid, config: Mapping[str, Any]) -> State:
    """Run or resume a study in a ServerApp; return the last state.

    The run's configuration has `federation` (the coordinator's folder), and `study` (its text, or
    the name of a file in that folder) or `resume` (the name of a run, or "last").
    """
    federation = Federation.open(Path(str(config["federation"])))
    carrier = GridCarrier(grid, lambda: federation.touch("run"))
    if name := str(config["resume"]):
        folder = runs.unfinished(federation, None if name == "last" else name)
        state = runs.resume(federation, folder, _show, carrier=carrier, patience=ENDING_SECONDS)
    else:
        text = str(config["study"])
        found = toml.parse(text) if "\n" in text else toml.read(federation.path / text)
        study = settings.among(found, tuple(federation.sites()))
        study = study._replace(data=study.data._replace(file=None))  # each site has its own table
        state, folder = runs.begin(federation, study, _show, carrier=carrier)
    print(f"model: {folder / 'model'}", flush=True)
    return state


def _show(state: State, event: str, line: dict[str, Any]) -> None:
    """Print a line of the log, for `flwr log`."""
    shown = ("round", "gap", "seconds", "site", "reason")
    details = {name: line[name] for name in shown if line.get(name) is not None}
    print(f"{event} ({state.step}): {details}", flush=True)


async def attend_socket(
    path: Path, respond: Respond, note: Callable[[str], object] = lambda _: None
) -> None:
    """Answer requests on a Unix socket until this task is cancelled.

    A connection carries one request, which ends when the other side shuts down its writing half,
    and one reply. A connection that is too slow or too long is closed without a reply. An older
    socket is replaced.
    """

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with slots:
                async with asyncio.timeout(READ_SECONDS):
                    request = await _read(reader)
                writer.write(respond(request))
                async with asyncio.timeout(READ_SECONDS):
                    await writer.drain()
                    writer.write_eof()
        except (TimeoutError, OSError, ValueError) as error:
            note(f"a request on the socket failed: {type(error).__name__} {error}")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    slots, place = asyncio.Semaphore(MAX_REQUESTS), short_path(path)
    place.unlink(missing_ok=True)
    before = os.umask(0o777 & ~MODE)  # so that the socket never has another mode
    try:
        server = await asyncio.start_unix_server(handle, place)
    finally:
        os.umask(before)
    note(f"answering on {path}")
    try:
        async with server:
            await server.serve_forever()
    finally:
        place.unlink(missing_ok=True)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Read to the end; ValueError if that is too long for an envelope."""
    content = bytearray()
    while chunk := await reader.read(1 << 16):
        content += chunk
        if len(content) > envelope.LIMIT:
            raise ValueError(f"more than {envelope.LIMIT} bytes")
    return bytes(content)


def control_answers(address: str, ca: Path) -> bool:
    """Return whether a SuperLink's control API can be reached from here, at host:port.

    ValueError if nothing answers there, or not by a certificate of the authority `ca`.
    """
    try:
        context = ssl.create_default_context(cafile=str(ca))
        line = http.client.HTTPSConnection(address, timeout=15, context=context)
        with contextlib.closing(line):
            kind = {"content-type": "application/protobuf"}
            line.request("POST", "/v1/control/list-runs", b"", kind)
            return line.getresponse().status not in (403, 404)
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"{address}: {error}") from None


def write_coordinator(federation: Federation, superlink: int = SUPERLINK_PORT) -> Path:
    """Write the Flower app, units and nginx configuration of a coordinator; return their folder.

    The SuperLink listens on the port `superlink` of the loopback, behind nginx.
    """
    folder = federation.path / "flower"
    _write_app(folder / "app", federation.path.resolve())
    secret = folder / "superexec.secret"
    if not secret.exists():
        keys.write_secret(secret, secrets.token_hex(32).encode())
    names = ("nginx.conf", "flower-superlink.service", "dorfl-coordinator.service")
    _write_templates(
        folder,
        names,
        host=federation.host,
        port=str(federation.port),
        keys=str(federation.keys.resolve()),
        federation=str(federation.path.resolve()),
        superlink=str(superlink),
    )
    return folder


def write_site(site: SiteFolder, ca: Path) -> Path:
    """Write the SuperNode's key and the units of a site; return their folder."""
    folder = site.path / "flower"
    folder.mkdir(exist_ok=True)
    if not (folder / "supernode.key").exists():
        keys.create_ssh_pair(folder / "supernode.key", folder / f"{site.name}.pub")
    shutil.copyfile(ca, folder / "ca.crt")
    names = ("flower-supernode.service", "dorfl-site.service")
    place = str(site.path.resolve())
    _write_templates(folder, names, name=site.name, site=place, socket=SOCKET)
    return folder


def _write_app(folder: Path, federation: Path) -> None:
    """Copy the Flower app, with the coordinator's folder in its configuration."""
    with resources.as_file(resources.files("dorfl.carriers") / "flower_app") as source:
        shutil.copytree(
            source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    settings_file = folder / "pyproject.toml"
    text = settings_file.read_text(encoding="utf-8")
    settings_file.write_text(text.replace('federation = ""', f'federation = "{federation}"'))


def _write_templates(folder: Path, names: tuple[str, ...], **values: str) -> None:
    python = Path(sys.executable)
    values |= {"folder": str(folder.resolve()), "bin": str(python.parent), "python": str(python)}
    for name in names:
        text = (resources.files("dorfl.carriers") / "templates" / name).read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        (folder / name).write_text(text, encoding="utf-8")
