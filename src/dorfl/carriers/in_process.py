"""The carrier within one process: every request is answered before `exchange` returns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

from dorfl.carriers.driver import Exchanged, Incoming, Outgoing
from dorfl.carriers.envelope import Respond


class InProcess(AbstractContextManager["InProcess"]):
    """Carry envelopes to endpoints in this process.

    Parameters
    ----------
    endpoints
        What answers for each site, such as `SiteEndpoint.respond`. A site that has none is away.
    """

    rejoin_seconds = 0.0

    def __init__(self, endpoints: Mapping[str, Respond]) -> None:
        self._endpoints = endpoints
        self._open: dict[str, Outgoing] = {}

    def __exit__(self, *_: object) -> None:
        self._open.clear()

    def exchange(self, requests: list[Outgoing], awaited: set[str], patience: float) -> Exchanged:
        """Answer every open request whose site is there."""
        self._open.update({sent.id: sent for sent in requests})
        replies = list[Incoming]()
        for sent in list(self._open.values()):
            respond = self._endpoints.get(sent.site)
            if respond is None:
                continue
            began = time.monotonic()
            content = respond(sent.content)
            del self._open[sent.id]
            replies.append(Incoming(sent.id, sent.site, content, time.monotonic() - began))
        if not awaited & {reply.id for reply in replies}:
            time.sleep(min(patience, 0.05))
        return Exchanged(tuple(replies), ())
