"""The answers of a site in each run, so that no step of a run is answered twice in two ways.

Two answers at one step show more than each alone: in a summed study the masks would cancel, and in
a private one the noise. To the same request again, a site sends the same bytes.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dorfl.protocol.messages import Refused


class Entry(NamedTuple):
    """An answer: what it depends on, the digest of the table, and its bytes if they are kept."""

    mark: str
    table: str
    reply: bytes = b""


@dataclass
class Journal:
    """Answers by run and place.

    Attributes
    ----------
    folder
        Has one file for each run. None keeps answers in memory, for tests and examples.
    table
        Digest of the table that answers are made of.
    """

    folder: Path | None = None
    table: str = ""
    _runs: dict[str, dict[str, Entry]] = field(default_factory=dict, repr=False)

    def recall(self, run: str, place: str, mark: str) -> bytes | None:
        """Return the reply given at `place`, or None if there is none yet.

        Refused if it had another mark, or if the table has changed since the run began.
        """
        known = self._entries(run)
        if any(entry.table != self.table for entry in known.values()):
            raise Refused("this site's table has changed since the run began")
        if place not in known:
            return None
        if known[place].mark != mark:
            raise Refused(f"{place} was asked before, with another question")
        return known[place].reply

    def record(self, run: str, place: str, mark: str, reply: bytes = b"") -> None:
        """Keep an answer before it is sent."""
        entry = Entry(mark, self.table, reply)
        self._entries(run)[place] = entry
        if self.folder is not None:
            self.folder.mkdir(exist_ok=True)
            line = {"place": place, **entry._asdict(), "reply": b64encode(reply).decode()}
            with (self.folder / f"{run}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _entries(self, run: str) -> dict[str, Entry]:
        if run not in self._runs:
            self._runs[run] = self._read(run)
        return self._runs[run]

    def _read(self, run: str) -> dict[str, Entry]:
        if self.folder is None or not (self.folder / f"{run}.jsonl").exists():
            return {}
        found, file = dict[str, Entry](), self.folder / f"{run}.jsonl"
        lines = file.read_bytes().split(b"\n")
        for line in lines[:-1]:  # the last was cut short by a crash, before anything was sent
            try:
                written = json.loads(line)
                found[written["place"]] = Entry(
                    written["mark"], written["table"], b64decode(written["reply"], validate=True)
                )
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"{file}: cannot be read. It keeps questions from being asked twice; remove it "
                    "only if this run will not go on"
                ) from None
        if lines[-1]:
            file.write_bytes(b"".join(line + b"\n" for line in lines[:-1]))
        return found
