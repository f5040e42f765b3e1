"""The coordinator's way into Flower: a SuperLink on the loopback, its nodes, and a run's grid."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from dorfl.support import wire

logging.getLogger("flwr").setLevel(logging.ERROR)

RECORD = "dorfl"  # where our bytes are in a Flower message
_TASK = "flwr-serverapp"
_PATIENCE = 30.0  # seconds that a reply's content may come after its announcement
_OBJECTS = 16  # in a reply; ours has a handful
# Flower starts a run only with an app. Ours is empty: nobody installs or executes it.
_APP = """[project]
name = "dorfl"
version = "1.0.0"
[tool.flwr.app]
publisher = "dorfl"
[tool.flwr.app.components]
serverapp = "dorfl.flower:none"
clientapp = "dorfl.flower:none"
"""


# `flower-superlink`, but one that ends when the process that started it does, however that ends.
_PROGRAM = """
import sys
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.superlink.cli import flower_superlink
start_parent_process_monitor(int(sys.argv.pop(1)))
flower_superlink()
"""


class Node(NamedTuple):
    """A registered site, as the SuperLink sees it."""

    node_id: int
    online: bool
    since: str  # when it last said it is there


def start(folder: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    """A SuperLink on 127.0.0.1, with the certificate in `folder`; its state is in memory alone."""
    command = [
        sys.executable, "-c", _PROGRAM, str(os.getpid()),
        "--host", "127.0.0.1", "--port", str(port),
        "--isolation", "process", "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        "--ssl-ca-certfile", str(folder / "ca.crt"),
        "--ssl-certfile", str(folder / "server.crt"),
        "--ssl-keyfile", str(folder / "server.key"),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(log.parent / "flower"),
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment
        )


class Link(contextlib.AbstractContextManager["Link"]):
    """A SuperLink's control interface, from the machine it runs on."""

    def __init__(self, port: int, ca: Path) -> None:
        self._address, self._ca = f"127.0.0.1:{port}", ca.read_bytes()
        # A proxy in the environment is for the world outside, not for the loopback.
        direct = os.environ.get("NO_PROXY", "")
        if "127.0.0.1" not in direct:
            os.environ["NO_PROXY"] = f"{direct},127.0.0.1".lstrip(",")
        self._control = ControlHttpClient.from_server_address(self._address, False, self._ca, [])

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the line go."""
        self._control.close()

    def wait(self, seconds: float = 60.0) -> None:
        """Until the SuperLink answers."""
        end = time.monotonic() + seconds
        while True:
            try:
                self._control.ListNodes(ListNodesRequest())
            except httpx.TransportError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
            else:
                return

    def register(self, sites: dict[str, bytes]) -> None:
        """Make the SuperLink know these sites' keys, and no others."""
        known = {n.public_key: n for n in self._control.ListNodes(ListNodesRequest()).nodes_info}
        for key, node in known.items():
            if sites.get(node.name) != key and node.status != "unregistered":
                self._control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        for name, key in sites.items():
            if key not in known:
                self._control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def nodes(self) -> dict[str, Node]:
        """The registered sites by name."""
        found = self._control.ListNodes(ListNodesRequest()).nodes_info
        return {
            n.name: Node(n.node_id, n.status == "online", n.last_activated_at)
            for n in found
            if n.status != "unregistered"
        }

    @contextlib.contextmanager
    def run(self) -> Iterator[Grid]:
        """A run of its own, whose task this process takes on itself."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(zipfile.ZipInfo("pyproject.toml"), _APP)
        content = packed.getvalue()
        fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
        run_id = self._control.StartRun(StartRunRequest(fab=fab)).run_id
        grid = HttpGrid(self._address, False, self._ca, token=self._take_task(run_id))
        told = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        grid.set_run(run_from_proto(told.run))
        TaskIdentity.task_id, TaskIdentity.run_id = told.task_id, told.run.run_id
        TaskIdentity.node_id = told.context.node_id
        heart = HeartbeatSender(lambda: _beats(grid))
        heart.start()
        try:
            yield Grid(grid)
        finally:
            heart.stop()
            with contextlib.suppress(httpx.HTTPError):
                self._control.StopRun(StopRunRequest(run_id=run_id))
            grid.close()

    def _take_task(self, run_id: int) -> str:
        """The token for the run's one task; those of coordinators that died are passed by."""
        version = RuntimeVersionHttpInterceptor(component_name="dorfl")
        with RuntimeHttpClient.from_server_address(
            self._address, False, self._ca, [version]
        ) as runtime:
            for _ in range(1000):
                taken = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[_TASK]))
                if taken.token and taken.task.run_id == run_id:
                    return str(taken.token)
        raise ValueError("the SuperLink gives us no task for our own run")


class Grid:
    """Messages of a run: bytes to nodes, and bytes back."""

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        grid._retry_invoker.max_tries = 1  # what to do without a server is the engine's decision
        self._coming: dict[str, tuple[str, list[str], float]] = {}  # replies not all here yet

    def send(self, node_id: int, content: bytes, lifetime: float) -> str:
        """Queue a message; its id."""
        record = RecordDict({RECORD: ConfigRecord({"body": content})})
        message = Message(record, node_id, "query.dorfl", ttl=lifetime)
        return str(next(iter(self._grid.push_messages([message]))))

    def replies(self, ids: Sequence[str]) -> list[tuple[str, bytes | None]]:
        """New replies, by the id of what they answer; nothing in place of one without content.

        A reply is announced before its content is there. Flower's own grid would wait for that, for
        hours if a site died in between; we look again next time, and give up after a while.
        """
        here = {answered for answered, *_ in self._coming.values()}
        wanted = [message for message in ids if message not in here]
        if wanted:
            told = self._grid._runtime_client.PullMessages(
                PullAppMessagesRequest(message_ids=wanted)
            )
            for message, tree in zip(told.messages_list, told.message_object_trees, strict=True):
                objects = [node.object_id for node in iterate_object_tree(tree)]
                answered = message.metadata.reply_to_message_id
                until = time.monotonic() + _PATIENCE
                self._coming[message.metadata.message_id] = (answered, objects, until)
        found: list[tuple[str, bytes | None]] = []
        for name, (answered, objects, until) in list(self._coming.items()):
            try:
                found.append((answered, self._content(name, objects)))
            except ObjectUnavailableError:
                if time.monotonic() < until:
                    continue
                found.append((answered, None))
            except httpx.TransportError:
                raise
            except Exception:  # sent by a site: it may be anything
                found.append((answered, None))
            del self._coming[name]
        return found

    def _content(self, name: str, objects: list[str]) -> bytes | None:
        client, run_id = self._grid._runtime_client, self._grid.run.run_id
        pull = make_pull_object_fn_protobuf(client.PullObject, self._grid.node, run_id)
        if len(objects) > _OBJECTS:
            return None
        contents: dict[str, bytes] = {}
        for object_id in objects:
            contents[object_id] = pull(object_id)
            if sum(map(len, contents.values())) > 2 * wire.LIMIT:
                return None
        message = inflate_object_from_contents(name, contents)
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._grid.node, run_id=run_id, message_object_id=name
            )
        )
        return body(message)


def body(message: Any) -> bytes | None:
    """Our bytes in a Flower message, if it has them."""
    if not isinstance(message, Message) or not message.has_content():
        return None
    record = message.content.get(RECORD)
    found = record.get("body") if isinstance(record, ConfigRecord) else None
    return found if isinstance(found, bytes) else None


def _beats(grid: HttpGrid) -> bool:
    with contextlib.suppress(httpx.HTTPError):  # the engine notices that the server is gone
        grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    return True
