"""A carrier of your own: requests and replies are files in a folder that all sites can write.

FOLDER/requests/SITE/ID   FOLDER/replies/SITE/ID
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from dorfl.carriers.driver import Exchanged, Incoming, Outgoing
from dorfl.carriers.envelope import Respond

POLL_SECONDS = 0.005  # pause before the folder is read again


class FolderCarrier(AbstractContextManager["FolderCarrier"]):
    """Carry envelopes as files.

    Parameters
    ----------
    folder
        A folder that the coordinator and all sites can write. Files of an earlier run are deleted.
    """

    rejoin_seconds = 0.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, tuple[Outgoing, float]] = {}  # by id, with the time of writing
        for file in folder.glob("re*/*/*"):  # the coordinator was killed, and asks again
            file.unlink()

    def __exit__(self, *_: object) -> None:
        for sent, _began in self._open.values():
            self._place("requests", sent).unlink(missing_ok=True)

    def exchange(self, requests: list[Outgoing], awaited: set[str], patience: float) -> Exchanged:
        """Write the requests and read the replies that are there."""
        for sent in requests:
            write(self._place("requests", sent), sent.content)
            self._open[sent.id] = sent, time.monotonic()
        until = time.monotonic() + patience
        while True:
            replies = self._replies()
            if awaited & {reply.id for reply in replies} or time.monotonic() > until:
                return Exchanged(tuple(replies), ())
            time.sleep(POLL_SECONDS)

    def _replies(self) -> list[Incoming]:
        """Read and remove the replies to open requests."""
        found = []
        for sent, began in list(self._open.values()):
            file = self._place("replies", sent)
            if file.exists():
                with file.open("rb") as stream:
                    content = stream.read(sent.limit + 1)  # the driver refuses what is longer
                file.unlink()
                del self._open[sent.id]
                found.append(Incoming(sent.id, sent.site, content, time.monotonic() - began))
        return found

    def _place(self, kind: str, sent: Outgoing) -> Path:
        return self._folder / kind / sent.site / sent.id


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
        with suppress(FileNotFoundError):  # the run ended in the meantime
            write(folder / "replies" / site / file.name, respond(file.read_bytes()))
            file.unlink()


def write(file: Path, content: bytes) -> None:
    """Write a file that readers see only when it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}")
    draft.write_bytes(content)
    draft.replace(file)
