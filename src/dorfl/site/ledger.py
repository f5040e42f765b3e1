"""A site's ledger: the studies it was asked for, who approved them, their runs, and ε spent."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dorfl.federated.privacy import Gaussian, composed
from dorfl.protocol.settings import Study
from dorfl.site.policy import Policy
from dorfl.support import wire
from dorfl.support.files import write_whole


@dataclass
class Ledger:
    """The record of all studies, over all runs and restarts.

    Attributes
    ----------
    file
        Where it is kept; never sent. None keeps it in memory.
    studies
        By mark (a digest of the text): name, time of the first request, runs, text, and what a
        person reads before approving.
    private
        By run, the noise of a private study.
    readings
        In which ways cells and labels were read: texts of studies, no content.
    """

    file: Path | None = None
    studies: dict[str, dict[str, Any]] = field(default_factory=dict)
    private: dict[str, dict[str, float]] = field(default_factory=dict)
    readings: dict[str, list[str]] = field(default_factory=dict)
    agreed: set[str] = field(default_factory=set)  # studies approved, if there is no file
    written: ClassVar = ("studies", "private", "readings")

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            try:
                written = json.loads(self.file.read_text(encoding="utf-8"))
                for name in self.written:
                    setattr(self, name, written[name])
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"{self.file.name}: cannot be read. It counts the runs of this site; "
                    "put back a copy, or remove it only if no earlier run matters"
                ) from None

    def meet(self, study: Study, summary: str) -> None:
        """Note that a study was asked for, with the text that a person reads."""
        mark = mark_of(study)
        if mark not in self.studies:
            self.studies[mark] = {
                "name": study.name,
                "first": _now(),
                "runs": [],
                "text": json.loads(wire.encode(study)),
                "summary": summary,
            }
            self._keep()

    def approve(self, mark: str) -> None:
        """Approve a study's text, on behalf of a person."""
        approved = self.approved | {mark}
        self.agreed = approved
        if self.file is not None:
            write_whole(self._approvals, json.dumps(sorted(approved)).encode())

    @property
    def approved(self) -> set[str]:
        """The marks of approved studies; read anew, because another process may approve."""
        if self.file is None or not self._approvals.exists():
            return self.agreed
        return set(json.loads(self._approvals.read_text(encoding="utf-8")))

    def allows(self, study: Study, patterns: tuple[str, ...]) -> bool:
        """Return whether a person approved the study, or a pattern of names set in advance.

        A study that sums names the keys of the sites to sum with, and always takes a person.
        """
        by_name = named(study.name, patterns) and not study.privacy.summed
        return by_name or mark_of(study) in self.approved

    def permits(self, mark: str, seen: dict[str, Any], patterns: tuple[str, ...]) -> bool:
        """Like :meth:`allows`, for an entry of :attr:`studies`."""
        summed = seen["text"].get("privacy", {}).get("reports") == "summed"
        return mark in self.approved or (named(seen["name"], patterns) and not summed)

    @property
    def runs(self) -> int:
        """How many runs used the table."""
        return sum(len(seen["runs"]) for seen in self.studies.values())

    def begin(self, study: Study, run: str, policy: Policy) -> str | None:
        """Count a run of an approved study, or return why it cannot begin.

        Both rules go by the texts of studies, so a refusal shows nothing of rows.
        """
        runs = self.studies[mark_of(study)]["runs"]
        if run in runs:
            return None
        if self.runs >= policy.max_runs:
            return (
                f"repeated use: {self.runs} runs have used this site's table, as many as it "
                "allows; a person there may raise max_runs in site.toml"
            )
        cells = json.dumps([study.privacy.least, sorted(study.columns.missing)])
        classes = json.dumps(sorted(study.data.classes))
        for what, reading in (("cells", cells), (f"label {study.data.label}", classes)):
            known = self.readings.setdefault(what, [])
            if reading not in known and len(known) >= policy.max_readings:
                return (
                    "differencing rule: an earlier study read the rows otherwise, and the "
                    "difference would show single ones; keep least, missing and classes as then, "
                    "or a person there raises max_readings in site.toml"
                )
            if reading not in known:
                known.append(reading)
        runs.append(run)
        self._keep()
        return None

    def spend(self, run: str, noise: Gaussian, epsilon: float | None, delta: float) -> str | None:
        """Return why a run's noise is too little beside that of all runs before, or None."""
        if run in self.private:
            return None
        entry = {"epsilon": noise.epsilon, "delta": noise.delta, "multiplier": noise.whole}
        total = composed([*self.private.values(), entry], delta)
        if epsilon is not None and total > epsilon * (1.0 + 1e-6):
            return (
                f"with this run, all runs together would come to ε = {total:.3g} at "
                f"δ = {delta:g}; this site gives ε ≤ {epsilon:g}"
            )
        self.private[run] = entry
        self._keep()
        return None

    def spent(self, delta: float) -> float:
        """Return ε of all private runs together at this δ."""
        return composed(list(self.private.values()), delta)

    @property
    def _approvals(self) -> Path:
        assert self.file is not None
        return self.file.with_name("approved.json")

    def _keep(self) -> None:
        if self.file is not None:
            content = {name: getattr(self, name) for name in self.written}
            write_whole(self.file, json.dumps(content).encode())


def named(study: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a study's name matches a pattern.

    >>> named("heart-2", ("heart-*",))
    True
    """
    return any(fnmatch.fnmatchcase(study, pattern) for pattern in patterns)


def mark_of(value: Any) -> str:
    """Return the digest of a value as it is written on the wire."""
    return hashlib.sha256(wire.encode(value)).hexdigest()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
