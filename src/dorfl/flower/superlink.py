"""Flower as `dorfl run` uses it: a SuperLink on the loopback, a run's grid, the front's own node.

Tested with Flower 1.41 and 1.42; its internals are used here and nowhere else (`strategy` and
`client`, for Flower apps, import what every app does). The coordinator's process takes a run's one
task on itself, and the front is the SuperLink's one node. A message carries the questions of many
sites, its reply their answers, so what a step costs Flower does not grow with their number.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import json
import logging
import os
import secrets
import subprocess
import sys
import time
import zipfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, TIMESTAMP_HEADER
from flwr.common.serde import message_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient

from dorfl.flower import keys
from dorfl.flower.desk import Answered, Question

logging.getLogger("flwr").setLevel(logging.ERROR)

FAILURES = (httpx.HTTPError, ObjectPullError, ObjectPushError)  # of a SuperLink that is not there
_RECORD = "dorfl"  # where our bytes are in a Flower message
_NODE = "front"
_TASK = "flwr-serverapp"
_LIFETIME = 600.0  # seconds that a message keeps
_PATIENCE = 30.0  # … that its content may come after its announcement
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

    def register(self, public: bytes) -> None:
        """Make the SuperLink know the front's key, as its one node."""
        self._control.RegisterNode(RegisterNodeRequest(public_key=public, name=_NODE))

    def _node(self) -> int:
        """The front's node, once it is there."""
        for node in self._control.ListNodes(ListNodesRequest()).nodes_info:
            if node.name == _NODE and node.status == "online":
                return int(node.node_id)
        raise httpx.ConnectError("the front is not there yet")

    @contextlib.contextmanager
    def run(self) -> Iterator[Line]:
        """A run of its own, whose task this process takes on itself."""
        node = self._node()
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
            yield Line(grid, node)
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


class Told(NamedTuple):
    """What came of an exchange: answers, and what the front has seen."""

    answers: list[Answered]
    events: list[dict[str, Any]]


class Line:
    """The coordinator's line to the front, for one run."""

    def __init__(self, grid: HttpGrid, node: int) -> None:
        self._grid, self._node, self._run = grid, node, secrets.token_hex(8)
        grid._retry_invoker.max_tries = 1  # what to do without a server is the engine's decision

    def exchange(
        self, questions: Sequence[Question], awaited: Sequence[str], patience: float
    ) -> Told:
        """Give questions to the front; take answers once all `awaited` or `patience` is over."""
        turn = {"run": self._run, "awaited": list(awaited), "patience": patience}
        turn["most"] = max((q.most for q in questions), default=0)
        bodies = {f"{q.site}/{q.id}": q.content for q in questions}
        message = Message(_packed(turn, bodies), self._node, "query.dorfl", ttl=_LIFETIME)
        (asked,) = self._grid.push_messages([message])
        head, bodies = _unpacked(self._reply(str(asked), time.monotonic() + patience + _PATIENCE))
        seconds, answers = head["seconds"], []
        for name, content in bodies.items():
            site, _, question = name.partition("/")
            answers.append(Answered(question, site, content, seconds[name]))
        return Told(answers, head["events"])

    def _reply(self, asked: str, until: float) -> Message:
        client, run_id = self._grid._runtime_client, self._grid.run.run_id
        pull = make_pull_object_fn_protobuf(client.PullObject, self._grid.node, run_id)
        pause = 0.02
        while time.monotonic() < until:
            told = client.PullMessages(PullAppMessagesRequest(message_ids=[asked]))
            if not told.messages_list:
                time.sleep(pause)
                pause = min(pause * 1.5, 0.2)
                continue
            name = told.messages_list[0].metadata.message_id
            wanted = [node.object_id for node in iterate_object_tree(told.message_object_trees[0])]
            contents: dict[str, bytes] = {}
            while len(contents) < len(wanted) and time.monotonic() < until:
                try:
                    contents[wanted[len(contents)]] = pull(wanted[len(contents)])
                except ObjectUnavailableError:  # announced, and still on its way
                    time.sleep(0.01)
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self._grid.node, run_id=run_id, message_object_id=name
                )
            )
            if len(contents) == len(wanted):
                found = inflate_object_from_contents(name, contents)
                assert isinstance(found, Message)
                return found
        raise httpx.ReadTimeout("the front does not answer")


class FrontNode(contextlib.AbstractContextManager["FrontNode"]):
    """The front as a node of the SuperLink: receives what the coordinator asks, and replies."""

    def __init__(self, port: int, ca: Path, key: ec.EllipticCurvePrivateKey) -> None:
        self._public = keys.public_bytes(key.public_key())
        self._client = FleetHttpClient.from_server_address(
            f"127.0.0.1:{port}",
            False,
            ca.read_bytes(),
            [RuntimeVersionHttpInterceptor(component_name="SuperNode"), _Signed(key, self._public)],
        )
        self._node = Node()
        self._heart = HeartbeatSender(self._beats)

    def __exit__(self, *_: object) -> None:
        if self._heart.is_running:
            self._heart.stop()
        self._client.close()

    def activate(self) -> None:
        """Be there, anew if need be."""
        if self._node.node_id:
            with contextlib.suppress(httpx.HTTPError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        told = self._client.ActivateNode(
            ActivateNodeRequest(
                public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
            )
        )
        self._node = Node(node_id=told.node_id)
        if not self._heart.is_running:
            self._heart.start()

    def receive(self) -> tuple[Message, dict[str, Any], list[Question]] | None:
        """The coordinator's next turn, if there is one."""
        told = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not told.messages_list:
            return None
        run_id, tree = told.messages_list[0].metadata.run_id, told.message_object_trees[0]
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(self._client.PullObject, self._node, run_id),
            make_confirm_message_received_fn_protobuf(
                self._client.ConfirmMessageReceived, self._node, run_id
            ),
            return_type=Message,
            max_time=_PATIENCE,
            initial_backoff=0.01,
            backoff_cap=0.5,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        head, bodies = _unpacked(message)
        named = [(*name.partition("/")[::2], content) for name, content in bodies.items()]
        return message, head, [Question(n, site, told, head["most"]) for site, n, told in named]

    def reply(self, message: Message, told: Told) -> None:
        """Answer the coordinator's turn."""
        seconds = {f"{a.site}/{a.id}": round(a.seconds, 3) for a in told.answers}
        bodies = {f"{a.site}/{a.id}": a.content for a in told.answers}
        content = _packed({"seconds": seconds, "events": told.events}, bodies)
        answer = Message(content, reply_to=message)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        pushed = self._client.PushMessages(
            PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(answer))],
                message_object_trees=[get_object_tree(answer)],
                clientapp_runtime_list=[0.0],
            )
        )
        push_objects(
            get_all_nested_objects(answer),
            make_push_object_fn_protobuf(
                self._client.PushObject, self._node, answer.metadata.run_id, pushed.session_id
            ),
            object_ids_to_push=set(pushed.objects_to_push),
        )

    def _beats(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):  # who polls notices, and activates anew
            self._client.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(
                    node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
                )
            )
        return True


class _Signed:
    """Signs the front's requests as the SuperLink wants it."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, public: bytes) -> None:
        self._key, self._public = key, b64encode(public).decode()

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """As Flower's clients call it."""
        stamp = datetime.datetime.now(datetime.UTC).isoformat()
        signature = self._key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
        context.request.headers.update(
            {
                FLEET_HTTP_PUBLIC_KEY_HEADER: self._public,
                TIMESTAMP_HEADER: stamp,
                FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
            }
        )
        response: httpx.Response = call_next(context)
        return response


def _packed(head: dict[str, Any], bodies: dict[str, bytes]) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({"": json.dumps(head), **bodies})})


def _unpacked(message: Message) -> tuple[dict[str, Any], dict[str, bytes]]:
    if not message.has_content():  # Flower's own: the node went away
        raise httpx.ReadError("the SuperLink lost the message")
    record: dict[str, Any] = dict(message.content[_RECORD])
    return json.loads(record.pop("")), record


def _beats(grid: HttpGrid) -> bool:
    with contextlib.suppress(httpx.HTTPError):  # the engine notices that the server is gone
        grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    return True
