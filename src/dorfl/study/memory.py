"""What a site remembers of every run, so that no run can ask it for one thing twice over.

Answers to slightly different questions, taken together, tell more than each alone: the noise of
differential privacy could be solved for, a block of five rows be compared with one of six. So what
a run once said stays said: the study, what was agreed at every step, each round's question. A file
keeps it from one start of the site to the next.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dorfl.federated.messages import Broadcast
from dorfl.study.messages import Agreement
from dorfl.support import wire
from dorfl.support.files import write_whole


@dataclass
class Memory:
    """By run: the marks of what was agreed, and of each round's question."""

    file: Path | None = None
    runs: dict[str, dict[str, str]] = field(default_factory=dict)
    data: str = ""  # the mark of the table that answers are made of; it stays here

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            try:
                self.runs = json.loads(self.file.read_text(encoding="utf-8"))
            except ValueError:
                raise ValueError(
                    f"{self.file.name}: cannot be read. It keeps questions from being asked twice; "
                    "remove it only if no run of before will go on"
                ) from None

    def agreed(self, step: str, agreement: Agreement) -> str | None:
        """Why this cannot be of the same run, or nothing: one question for every step."""
        phase = _phase(agreement)
        marks = {"study": _mark(agreement.study), f"step {phase}{step}": _mark(agreement)}
        if self.data:
            marks = {"table": self.data, **marks}
        odd = self.same(agreement.run, marks)
        if odd == "table":
            return "this site's table has changed since the run began"
        return odd and f"the {odd} is not what this run said before"

    def asked(self, run: str, sent: Broadcast, what: str = "round") -> str | None:
        """Why a round's question cannot be part of the training, or nothing."""
        known = self.runs.get(run, {})
        rounds = [int(name.split()[1]) for name in known if name.startswith(f"{what} ")]
        name = f"{what} {sent.round}"
        if name not in known and rounds and sent.round < max(rounds):
            return f"{name} comes after {what} {max(rounds)}"
        odd = self.same(run, {name: _mark(sent), f"model {_mark(sent.task.theta)}": ""})
        return odd and f"{name} was asked before, with another question"

    def knows(self, run: str, theta: Any) -> bool:
        """Whether a round of this run asked about θ."""
        return f"model {_mark(theta)}" in self.runs.get(run, {})

    def finished(self, run: str, outcome: Any) -> str | None:
        """Whether the run has ended before, with another model."""
        return self.same(run, {"outcome": _mark(outcome)})

    def changes(self, run: str, number: int, listed: str) -> int:
        """How often the sites in a run's sums changed from one round to the next, with this one."""
        known = self.runs.get(run, {})
        among = {int(n.split()[1]): m for n, m in known.items() if n.endswith(" among")
                 and n.startswith("round ")}  # fmt: skip
        sets = [mark for _, mark in sorted({**among, number: listed}.items())]
        return sum(one != two for one, two in pairwise(sets))

    def has(self, run: str, marks: dict[str, str]) -> bool:
        """Whether the run has these marks."""
        known = self.runs.get(run, {})
        return all(known.get(name) == mark for name, mark in marks.items())

    def same(self, run: str, marks: dict[str, str]) -> str | None:
        """Set marks of a run, unless one has been set otherwise before: that is returned."""
        known = self.runs.setdefault(run, {})
        for name, mark in marks.items():
            if known.get(name, mark) != mark:
                return name
        if not set(marks) <= set(known):
            known.update(marks)
            if self.file is not None:
                write_whole(self.file, json.dumps(self.runs).encode())
        return None


def _phase(agreement: Agreement) -> str:
    """What sets steps of a run apart that are about another problem."""
    by = "" if agreement.reference is None else "by labels "
    candidate = agreement.candidate
    return by if candidate is None else f"candidate {candidate.share:g} {by}"


def _mark(value: Any) -> str:
    return hashlib.sha256(wire.encode(value)).hexdigest()
