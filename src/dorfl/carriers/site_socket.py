"""A site's Unix socket: envelopes in, signed replies out, for a carrier on the same machine.

Flower's SuperNode executes the app that its SuperLink sends. The rows are therefore in a process of
another user, which code in the SuperNode reaches by this socket alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from dorfl.carriers import envelope
from dorfl.carriers.envelope import Respond
from dorfl.carriers.folders import short_path

MODE = 0o660  # the site's user, and the group that it shares with the SuperNode
READ_SECONDS = 60.0  # until a request has arrived, and until its reply is taken
MAX_REQUESTS = 4  # held in memory at once; further connections wait


async def attend_socket(
    path: Path, respond: Respond, note: Callable[[str], object] = lambda _: None
) -> None:
    """Answer requests on a Unix socket until this task is cancelled.

    A connection carries one request, which ends when the other side shuts down its writing half,
    and one reply. A connection that is too slow or too long is closed without a reply.

    Parameters
    ----------
    path
        Where to make the socket; an older one is replaced.
    respond
        Answers an envelope, one at a time.
    note : callable
        Called with lines for the site's log.
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
