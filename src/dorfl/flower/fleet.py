"""A site's connection: Flower's fleet protocol over TLS, signed with the site's own key."""

from __future__ import annotations

import contextlib
import datetime
import logging
import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, TIMESTAMP_HEADER
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient

from dorfl.flower import keys
from dorfl.flower.front import HELLO, REFUSAL_HEADER, SITE_HEADER
from dorfl.flower.superlink import RECORD

logging.getLogger("flwr").setLevel(logging.ERROR)

_PATIENCE = 30.0  # seconds that a message's content may come after its announcement


class Rejected(ValueError):  # noqa: N818 - it is the server's doing, not an error of ours
    """The server, or its certificate, will not do, and trying again will not help."""


class Hello(NamedTuple):
    """What the server says to a site it knows."""

    site: str
    node: int
    study: str | None  # the study that runs, as JSON


class Connection(contextlib.AbstractContextManager["Connection"]):
    """One site's line to its coordinator; every failure names its cause."""

    def __init__(self, server: str, ca: Path, key: ec.EllipticCurvePrivateKey, site: str) -> None:
        self.server, self._site = _address(server), site
        self._public = keys.public_bytes(key.public_key())
        try:
            trusted = ca.read_bytes()
            self._trusted = ssl.create_default_context(cadata=trusted.decode("ascii"))
        except FileNotFoundError:
            raise ValueError(f"--ca {ca.name}: there is no such file") from None
        except (ssl.SSLError, UnicodeDecodeError):
            raise ValueError(f"--ca {ca.name}: is not a certificate") from None
        self._client = FleetHttpClient.from_server_address(
            self.server,
            False,
            trusted,
            [RuntimeVersionHttpInterceptor(component_name="SuperNode"), _Signed(key, site)],
        )
        self._sign = _Signed(key, site).headers
        self._node = Node()

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def hello(self) -> Hello:
        """Whether the server knows this site, and what it plans; changes nothing."""
        with self._explained():
            answer = httpx.post(
                f"https://{self.server}{HELLO}", headers=self._sign(), verify=self._trusted
            )
            answer.raise_for_status()
        told = answer.json()
        return Hello(told["site"], told["node"], told["study"])

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Send heartbeats until the end of the block; then say goodbye."""
        heart = HeartbeatSender(self._beats)
        heart.start()
        try:
            yield
        finally:
            heart.stop()
            with contextlib.suppress(httpx.HTTPError):
                self._deactivate(self._node.node_id)

    def activate(self) -> None:
        """Say that the site is here; again after it, or the server, has restarted."""
        request = ActivateNodeRequest(
            public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        with self._explained():
            try:
                told = self._client.ActivateNode(request)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.PRECONDITION_FAILED:
                    raise
                # The site died without a goodbye, and the server has not noticed yet.
                self._deactivate(self.hello().node)
                told = self._client.ActivateNode(request)
        self._node = Node(node_id=told.node_id)

    def _deactivate(self, node_id: int) -> None:
        self._client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))

    def receive(self) -> Message | None:
        """The next message for this site, if there is one."""
        with self._explained():
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
                initial_backoff=0.05,
                backoff_cap=1.0,
            )
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def reply(self, message: Message, content: bytes) -> None:
        """Answer a message."""
        answer = Message(RecordDict({RECORD: ConfigRecord({"body": content})}), reply_to=message)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        with self._explained():
            told = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(answer))],
                    message_object_trees=[get_object_tree(answer)],
                    clientapp_runtime_list=[0.0],
                )
            )
            run_id = answer.metadata.run_id
            push_objects(
                get_all_nested_objects(answer),
                make_push_object_fn_protobuf(
                    self._client.PushObject, self._node, run_id, told.session_id
                ),
                object_ids_to_push=set(told.objects_to_push),
            )

    def _beats(self) -> bool:
        if not self._node.node_id:
            return True
        with contextlib.suppress(httpx.HTTPError):  # who polls notices, and activates the site anew
            self._client.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(
                    node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
                )
            )
        return True

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Failures that trying again cannot mend, in words."""
        try:
            yield
        except httpx.HTTPStatusError as error:
            if REFUSAL_HEADER in error.response.headers:
                raise Rejected(error.response.json()["error"]) from None
            raise
        except httpx.ConnectError as error:
            reason = _tls_failure(error)
            if reason is None:
                raise
            raise Rejected(f"{self.server}: {reason}") from None


class _Signed:
    """Signs every request with the site's key, and says the name the site goes by."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, site: str) -> None:
        self._key, self._site = key, site
        self._public = b64encode(keys.public_bytes(key.public_key())).decode()

    def headers(self) -> dict[str, str]:
        """What is added: key, time, signature of the time, name."""
        stamp = datetime.datetime.now(datetime.UTC).isoformat()
        signature = self._key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER: self._public,
            TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
            SITE_HEADER: self._site,
        }

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """As Flower's clients call it."""
        context.request.headers.update(self.headers())
        response: httpx.Response = call_next(context)
        return response


def _address(server: str) -> str:
    """host:port from what people type."""
    if server.startswith("http://"):
        raise Rejected(f"{server}: plaintext is refused; the server speaks TLS, give host:port")
    plain = server.removeprefix("https://").rstrip("/")
    host, _, port = plain.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--server {server}: give it as host:port, such as fl.example.org:443")
    return plain


def _tls_failure(error: BaseException) -> str | None:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        if "mismatch" in text or "doesn't match" in text or "not valid for" in text:
            return "the server's certificate is for another host than this address"
        if "expired" in text or "not yet valid" in text:
            return "the server's certificate has expired, or a clock is wrong"
        return (
            "the server's certificate was not signed by the authority in --ca: "
            "the wrong file, or not your coordinator's server"
        )
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER" in text or "HTTP_REQUEST" in text:
        return "what answers there does not speak TLS; plaintext is refused"
    return None
