"""The public door: TLS, through which only a registered site's fleet traffic gets to the SuperLink.

Everything else the SuperLink serves on its port (registering keys, listing nodes, starting runs)
stays on the coordinator's machine. A request that is turned away is told why.
"""

from __future__ import annotations

import binascii
import datetime
import ssl
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SITE_HEADER = "x-dorfl-site"
REFUSAL_HEADER = "x-dorfl-refusal"
HELLO = "/v1/dorfl/hello"
# Not among them: registering and unregistering, which is the coordinator's business, and fetching
# runs and apps, for which a site that runs no foreign code has no use.
_FLEET = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages",
    "pull-object", "push-object", "confirm-message-received",
)  # fmt: skip
_ALLOWED = frozenset(f"/v1/fleet/{name}" for name in _FLEET)
_DROPPED = frozenset({"host", "content-length", "connection", "transfer-encoding", "keep-alive"})
_LIMIT = 80 * 2**20  # bytes in a request
_CLOCKS = 60.0  # seconds that two clocks, and a request's way, may differ


def front(
    upstream: str,
    ca: Path,
    sites: Callable[[], dict[str, bytes]],
    told: Callable[[str], dict[str, Any]],
) -> Starlette:
    """The application: `sites()` are the registered keys, `told(site)` what a site may know."""
    trusted = ssl.create_default_context(cafile=str(ca))
    client = httpx.AsyncClient(base_url=upstream, verify=trusted, timeout=60.0, trust_env=False)

    async def hello(request: Request) -> Response:
        name, refusal = _who(request, sites())
        if refusal is not None:
            return refusal
        return JSONResponse(await run_in_threadpool(told, name))

    async def forward(request: Request) -> Response:
        _, refusal = _who(request, sites())
        if refusal is not None:
            return refusal
        if int(request.headers.get("content-length") or 0) > _LIMIT:
            return _refuse(413, "the request is too large")
        content = bytearray()
        try:
            async for chunk in request.stream():
                content += chunk
                if len(content) > _LIMIT:
                    return _refuse(413, "the request is too large")
        except ClientDisconnect:
            return Response(status_code=400)
        kept = {k: v for k, v in request.headers.items() if k.lower() not in _DROPPED}
        try:
            answer = await client.post(request.url.path, content=bytes(content), headers=kept)
        except httpx.TransportError:
            return JSONResponse({"error": "the coordinator's server is not up"}, status_code=503)
        headers = {k: v for k, v in answer.headers.items() if k.lower() == "content-type"}
        return Response(answer.content, answer.status_code, headers)

    async def elsewhere(request: Request) -> Response:
        return _refuse(
            403,
            f"{request.url.path} is not for sites: only fleet traffic passes here; keys are "
            "registered and runs started on the coordinator's own machine",
        )

    every = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    routes = [Route(path, forward, methods=["POST"]) for path in sorted(_ALLOWED)]
    routes.append(Route(HELLO, hello, methods=["POST"]))
    routes.append(Route("/{path:path}", elsewhere, methods=every))
    return Starlette(routes=routes)


def _who(request: Request, sites: dict[str, bytes]) -> tuple[str, Response | None]:
    """The site whose key signed the request, or why it is turned away."""
    try:
        key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(request.headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        stamp = request.headers[TIMESTAMP_HEADER]
        signed = datetime.datetime.fromisoformat(stamp)
    except (KeyError, ValueError, binascii.Error):
        return "", _refuse(401, "the request is not signed with a site's key")
    names = [name for name, known in sites.items() if known == key]
    if not names:
        return "", _refuse(
            401, "this site's key is not registered; the coordinator does so with `dorfl server "
            "add-site`",
        )  # fmt: skip
    if not _signed(key, signature, stamp.encode()):
        return "", _refuse(401, "the signature does not fit the key")
    if signed.tzinfo is None:
        return "", _refuse(401, "the signature's time has no time zone")
    age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
    if abs(age) > _CLOCKS:
        return "", _refuse(401, f"the signature is {abs(age):.0f} s off; set the site's clock")
    claimed = request.headers.get(SITE_HEADER, names[0])
    if claimed != names[0]:
        return "", _refuse(
            403, f"this key is registered for site {names[0]!r}, not for {claimed[:60]!r}"
        )
    return names[0], None


def _signed(key: bytes, signature: bytes, content: bytes) -> bool:
    try:
        public = serialization.load_pem_public_key(key)
        assert isinstance(public, ec.EllipticCurvePublicKey)
        public.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, UnsupportedAlgorithm, AssertionError):
        return False
    return True


def _refuse(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status_code=status, headers={REFUSAL_HEADER: "1"})
