"""The public door: TLS, behind which a site can fetch its questions and answer them. No more.

Three paths, each for a registered site's signed request: `hello`, `next` (waits for a question) and
`answer/QUESTION`. What a site sends becomes a message only here, under the name its key is
registered for and as the answer to what it was asked, so it can speak for nobody else. The
SuperLink is not reachable from outside. A request that is turned away is told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dorfl.flower.desk import Desk
from dorfl.flower.door import Door
from dorfl.flower.fleet import ANSWER, HELLO, NEXT, QUESTION_HEADER
from dorfl.flower.signing import Caller, Judge, Turned
from dorfl.support import wire

HEADERS = 16 * 1024  # bytes of a request's head at most
_SLOWEST = 32 * 1024  # bytes a second that a body has to come with
_PAUSE = 20.0  # seconds that any body may take


def front(
    desk: Desk,
    door: Door,
    sites: Callable[[], dict[str, bytes]],
    told: Callable[[str], dict[str, Any]],
    *work: Callable[[], Any],
) -> Starlette:
    """The application: `sites()` are the registered keys, `told(site)` what a site may know.

    `work` are coroutine functions that run beside it.
    """
    judge = Judge(sites)

    async def hello(request: Request, caller: Caller) -> Response:
        await _body(request, caller, 0)
        return JSONResponse({**await run_in_threadpool(told, caller.site), "time": time.time()})

    async def next_(request: Request, caller: Caller) -> Response:
        await _body(request, caller, 0)
        desk.claim(caller.site, caller.session, _peer(request))
        found = await _unless_gone(request, desk.next(caller.site))
        if found is None:
            return Response(status_code=204)
        return Response(found.content, headers={QUESTION_HEADER: found.id})

    async def answer(request: Request, caller: Caller) -> Response:
        question = request.path_params["question"]
        desk.claim(caller.site, caller.session, _peer(request))
        desk.expects(caller.site, question, _length(request, wire.LIMIT))
        try:
            content = await _body(request, caller, wire.LIMIT)
        finally:
            desk.stopped(caller.site)
        desk.answer(caller.site, question, content)
        return Response(status_code=204)

    def signed(handle: Any) -> Any:
        async def judged(request: Request) -> Response:
            try:
                caller = judge.who(request.method, _target(request), request.headers)
                with door.serving(_peer(request)):
                    return await handle(request, caller)  # type: ignore[no-any-return]
            except Turned as turned:
                return _refusal(turned.status, turned.reason)
            except (ClientDisconnect, TimeoutError):
                return _refusal(408, "the request did not come in time")

        return judged

    async def elsewhere(request: Request, _: Exception | None = None) -> Response:
        return _refusal(
            403,
            f"{_target(request)[:80]} is not for sites: only their questions and answers pass "
            "here; keys are registered and runs started on the coordinator's own machine",
        )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(made()) for made in (door.sweep, *work)]
        yield
        for task in tasks:
            task.cancel()

    door.left = desk.gone
    routes = [
        Route(HELLO, signed(hello), methods=["POST"]),
        Route(NEXT, signed(next_), methods=["POST"]),
        Route(ANSWER + "{question}", signed(answer), methods=["POST"]),
    ]
    odd = dict.fromkeys((404, 405), elsewhere)  # other paths, methods, and what is no path at all
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=odd)


def _peer(request: Request) -> tuple[str, int]:
    return (request.client.host, request.client.port) if request.client else ("", 0)


def _target(request: Request) -> str:
    """What is asked for as it was sent: two ways of writing a path are two paths."""
    path, query = request.scope["raw_path"], request.scope["query_string"]
    return (path + b"?" * bool(query) + query).decode("latin-1")  # type: ignore[no-any-return]


def _length(request: Request, most: int) -> int:
    """How long the body is said to be; no more than `most`."""
    text = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers or not (text.isascii() and text.isdigit()):
        raise Turned(411, "the length of the request is not said")
    if len(text) > 12 or int(text) > most:
        raise Turned(413, f"the request is longer than {most} bytes")
    return int(text)


async def _body(request: Request, caller: Caller, most: int) -> bytes:
    """The body that was signed; read only now that its length and who sends it are known."""
    size, content = _length(request, most), bytearray()
    async with asyncio.timeout(_PAUSE + size / _SLOWEST):
        async for chunk in request.stream():
            content += chunk
            if len(content) > most:
                raise Turned(413, f"the request is longer than {most} bytes")
    if hashlib.sha256(content).hexdigest() != caller.digest:
        raise Turned(401, "the body is not the one that was signed")
    return bytes(content)


async def _unless_gone(request: Request, waiting: Any) -> Any:
    """What is waited for, unless the caller hangs up first: then nothing."""
    wanted = asyncio.ensure_future(waiting)
    hung_up = asyncio.ensure_future(request.receive())  # the body has been read: it is the end
    try:
        await asyncio.wait({wanted, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        return wanted.result() if wanted.done() else None
    finally:
        wanted.cancel()
        hung_up.cancel()


def _refusal(status: int, reason: str) -> Response:
    """Said to the caller, and nothing more of what it sends is read."""
    return JSONResponse(
        {"error": reason, "time": time.time()}, status_code=status, headers={"connection": "close"}
    )
