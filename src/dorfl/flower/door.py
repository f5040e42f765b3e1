"""The socket sites connect to: so many connections, from so many at one address, for so long.

Counting starts when a connection is accepted, before TLS and before a request: one that does not
come to a signed request in time is closed, whatever it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE = 15.0  # seconds until a connection that has brought no signed request is closed
_KNOWN = 600.0  # … and one that has, after its last
_SPARE = 128  # descriptors for everything else


class Held(socket.socket):
    """A connection that its door knows of until it is closed."""

    door: Door | None = None
    peer: tuple[str, int] = ("", 0)

    def close(self) -> None:
        """As any socket, and the door has room for another."""
        if self.door is not None:
            self.door.gone(self)
        super().close()


class Door(socket.socket):
    """A listening socket with limits; see the module."""

    left: Callable[[tuple[str, int]], object] = staticmethod(lambda _: None)  # who has left

    def __init__(self, address: str, port: int, per_address: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__(family, socket.SOCK_STREAM)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind((address, port))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        self._most = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE, 1)
        self._per_address = per_address
        self._held: dict[tuple[str, int], Held] = {}
        self._idle: dict[tuple[str, int], float] = {}  # since when nothing is asked
        self._count: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection there is room for; asyncio comes back after one that is not."""
        plain, address = super().accept()
        peer = (address[0], address[1])
        if self._count[peer[0]] >= self._per_address or len(self._held) >= self._most:
            plain.close()
            raise ConnectionAbortedError
        held = Held(plain.family, plain.type, plain.proto, fileno=plain.detach())
        held.door, held.peer = self, peer
        self._held[peer], self._idle[peer] = held, time.monotonic()
        self._count[peer[0]] += 1
        return held, address

    def gone(self, held: Held) -> None:
        """Forget a connection."""
        if self._held.get(held.peer) is held:
            del self._held[held.peer]
            self._idle.pop(held.peer, None)
            self._count[held.peer[0]] -= 1
            self._count += Counter()  # drops addresses nobody is connected from
            self.left(held.peer)

    @contextlib.contextmanager
    def serving(self, peer: tuple[str, int]) -> Iterator[None]:
        """A signed request of `peer` is being answered: it may take its time."""
        self._idle.pop(peer, None)
        try:
            yield
        finally:
            if peer in self._held:
                self._idle[peer] = time.monotonic() + _KNOWN - PATIENCE

    async def sweep(self) -> None:
        """Close, for ever, what has been idle for too long."""
        while True:
            await asyncio.sleep(1.0)
            late = time.monotonic() - PATIENCE
            for peer in [peer for peer, since in self._idle.items() if since < late]:
                with contextlib.suppress(OSError):
                    self._held[peer].shutdown(socket.SHUT_RDWR)  # asyncio closes it then
