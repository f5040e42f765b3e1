"""A carrier of your own: requests and replies are files in a folder that all sites can write.

FOLDER/requests/SITE/ID   FOLDER/replies/SITE/ID
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dorfl.carriers.driver import Carrier, Exchanged, Outgoing
from dorfl.carriers.envelope import Respond

POLL_SECONDS = 0.005  # pause before the folder is read again


class FolderCarrier(Carrier):
    """Carry envelopes as files, in a folder that the coordinator and all sites can write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def exchange(self, requests: Sequence[Outgoing], patience: float) -> Exchanged:
        """Write the requests that are not there, and read the replies that are."""
        for kind in ("requests", "replies"):  # in this order: nothing is answered twice
            for file in self._folder.glob(f"{kind}/*/[!.]*"):
                if file.name not in {sent.id for sent in requests}:
                    file.unlink()
        for sent in requests:
            if not (file := self._folder / "requests" / sent.site / sent.id).exists():
                write(file, sent.content)
        end = time.monotonic() + patience
        while not (replies := self._replies(requests)) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        return Exchanged(replies)

    def _replies(self, requests: Sequence[Outgoing]) -> dict[str, bytes]:
        found = {}
        for sent in requests:
            file = self._folder / "replies" / sent.site / sent.id
            if file.exists():
                with file.open("rb") as stream:
                    found[sent.id] = stream.read(sent.limit + 1)  # the driver refuses longer ones
        return found


def answer(folder: Path, site: str, respond: Respond) -> None:
    """Answer the requests to a site that are in the folder; a site repeats this call.

    Parameters
    ----------
    folder
        The folder of the carrier.
    site
        Name of the site.
    respond
        The site's `SiteEndpoint.respond`.
    """
    for file in (folder / "requests" / site).glob("[!.]*"):
        reply = folder / "replies" / site / file.name
        if not reply.exists():
            with suppress(FileNotFoundError):  # the request is withdrawn
                write(reply, respond(file.read_bytes()))


def write(file: Path, content: bytes) -> None:
    """Write a file that readers see only when it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}")
    draft.write_bytes(content)
    draft.replace(file)
