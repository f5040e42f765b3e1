"""The Flower carrier: a study on a stock SuperLink and SuperNodes, by public APIs alone.

The app in `flower_app` is the same for every study. Its ServerApp calls :func:`run_study`. Its
ClientApp forwards each envelope to the Unix socket of the site's own process, which has the rows.
"""

from __future__ import annotations

import contextlib
import http.client
import secrets
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dorfl.carriers import keys, runs
from dorfl.carriers.driver import Exchanged, Incoming, Outgoing
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.protocol import settings, toml

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from dorfl.protocol.state import State

REJOIN_SECONDS = 90.0  # a SuperNode that was killed is let in again after up to 60 s
RETRY_SECONDS = 1.0  # pause before a request is sent again that its node could not carry
LOOK_SECONDS = 0.1  # between looks for replies; `Grid.send_and_receive` looks every 3 s
ENDING_SECONDS = 600.0  # to wait for a ServerApp whose SuperLink was lost; it retries for ever
MESSAGE_SECONDS = 600.0  # after which Flower drops a message
PROTOBUF = "application/protobuf"
SUPERLINK_PORT = 8000  # of the loopback, behind nginx
SOCKET = "/run/dorfl/site.sock"  # where a site's service answers


class GridCarrier(AbstractContextManager["GridCarrier"]):
    """Carry envelopes as messages of a Flower grid, one for each request.

    A node is known by the name under which its key was registered (`flwr supernode register
    --name`). In simulation nodes have no names, and any node carries a request to any site.

    Parameters
    ----------
    grid
        The grid of the ServerApp.
    alive
        Called whenever the SuperLink has answered.
    """

    def __init__(self, grid: Grid, alive: Callable[[], object] = lambda: None) -> None:
        self._grid, self._alive = grid, alive
        self._unsent: list[tuple[float, Outgoing]] = []  # with the time from which on to send it
        self._open: dict[str, tuple[Outgoing, int, float]] = {}  # by the id of Flower's message

    def __exit__(self, *_: object) -> None:
        """Leave the grid to the ServerApp, which closes it."""

    @property
    def rejoin_seconds(self) -> float:
        """Seconds that a node which failed may take to be reachable again."""
        return 0.0 if _simulated(self._grid.get_nodes()) else REJOIN_SECONDS

    def exchange(self, requests: list[Outgoing], awaited: set[str], patience: float) -> Exchanged:
        """Push requests to nodes that are online, and pull replies."""
        self._unsent += [(0.0, sent) for sent in requests]
        end, missing = time.monotonic() + patience, set(awaited)
        replies, events = list[Incoming](), list[dict[str, str | int]]()
        while True:
            self._push()
            self._pull(replies, events)
            missing -= {reply.id for reply in replies}
            if not missing or time.monotonic() > end:
                return Exchanged(tuple(replies), tuple(events))
            time.sleep(LOOK_SECONDS)

    def _push(self) -> None:
        from flwr.app import ConfigRecord, Message, RecordDict  # noqa: PLC0415 - an extra

        now = time.monotonic()
        if not any(due <= now for due, _ in self._unsent):
            return
        nodes = list(self._grid.get_nodes())
        self._alive()
        named = {node.name: node.node_id for node in nodes if node.name}
        waiting, self._unsent = self._unsent, []
        for place, (due, sent) in enumerate(waiting):
            node = named.get(sent.site)
            if _simulated(nodes):
                node = nodes[place % len(nodes)].node_id
            if node is None or due > now:
                self._unsent.append((due, sent))
                continue
            record = ConfigRecord({"site": sent.site, "request": sent.content})
            message = Message(
                RecordDict({"dorfl": record}), node, "query.dorfl", ttl=MESSAGE_SECONDS
            )
            for id_ in self._grid.push_messages([message]):
                self._open[id_] = (sent, node, time.monotonic())

    def _pull(self, replies: list[Incoming], events: list[dict[str, str | int]]) -> None:
        if not self._open:
            return
        pulled = self._grid.pull_messages(list(self._open))
        self._alive()
        for reply in pulled:
            sent, node, when = self._open.pop(reply.metadata.reply_to_message_id)
            if reply.has_error() or reply.metadata.src_node_id != node:
                # The node went away, or its app did not reach the site.
                self._unsent.append((time.monotonic() + RETRY_SECONDS, sent))
                events.append({"event": "request repeated", "site": sent.site})
                continue
            seconds = time.monotonic() - when
            replies.append(Incoming(sent.id, sent.site, _reply_of(reply), seconds))


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
    """Run or resume a study in a ServerApp.

    Parameters
    ----------
    grid
        The grid of the ServerApp.
    config
        The run's configuration: `federation` (the coordinator's folder), and `study` (its text, or
        the name of a file in that folder) or `resume` (the name of a run, or "last").

    Returns
    -------
    State
        The last state; model, record and log are in the run's folder.
    """
    federation = Federation.open(Path(str(config["federation"])))
    carrier = GridCarrier(grid, lambda: federation.touch("run"))
    if name := str(config["resume"]):
        folder = runs.unfinished(federation, None if name == "last" else name)
        state = runs.resume(
            federation, folder, _show, connect=lambda: carrier, patience=ENDING_SECONDS
        )
    else:
        text = str(config["study"])
        found = toml.parse(text) if "\n" in text else toml.read(federation.path / text)
        study = settings.among(found, tuple(federation.sites()))
        study = study._replace(data=study.data._replace(file=None))  # each site has its own table
        state, folder = runs.begin(federation, study, _show, connect=lambda: carrier)
    print(f"model: {folder / 'model'}", flush=True)
    return state


def _show(state: State, event: str, line: dict[str, Any]) -> None:
    """Print a line of the log, for `flwr log`."""
    shown = ("round", "gap", "seconds", "site", "reason")
    details = {name: line[name] for name in shown if line.get(name) is not None}
    print(f"{event} ({state.step}): {details}", flush=True)


def control_answers(address: str, ca: Path) -> bool:
    """Return whether a SuperLink's control API can be reached from here.

    Parameters
    ----------
    address
        The SuperLink as host:port.
    ca
        The coordinator's `ca.crt`.

    Raises
    ------
    ValueError
        If nothing answers there, or not by the coordinator's certificate.
    """
    try:
        context = ssl.create_default_context(cafile=str(ca))
        line = http.client.HTTPSConnection(address, timeout=15, context=context)
        with contextlib.closing(line):
            line.request("POST", "/v1/control/list-runs", b"", {"content-type": PROTOBUF})
            return line.getresponse().status not in (403, 404)
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"{address}: {error}") from None


def write_coordinator(federation: Federation, superlink: int = SUPERLINK_PORT) -> Path:
    """Write the Flower app, units and nginx configuration of a coordinator.

    Parameters
    ----------
    federation
        The coordinator's folder.
    superlink
        The port of the loopback on which the SuperLink listens, behind nginx.

    Returns
    -------
    Path
        The folder with what was written.
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
    values |= {"folder": str(folder.resolve()), "bin": str(Path(sys.executable).parent)}
    for name in names:
        text = (resources.files("dorfl.carriers") / "templates" / name).read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        (folder / name).write_text(text, encoding="utf-8")
