"""A site's ledger: what it was asked, what it told, and what is left, over all runs and restarts.

Answers add up, whoever asks and under whatever name. So a site counts over its whole life: which
studies it saw and who approved them; which version of a column's statistics it told (two versions,
of other rows or in blocks of another size, would show single rows by their difference); how many
numbers its reports held, against the numbers its rows hold; ε and δ, composed by dp-accounting. The
same question again costs nothing: it gets the same answer.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dorfl.federated.privacy import Gaussian, composed
from dorfl.linear.group import Group
from dorfl.study.budget import ROUNDS, SPARE, TRIAL
from dorfl.study.limits import Limits
from dorfl.study.messages import Agreement
from dorfl.study.settings import Study
from dorfl.support import wire
from dorfl.support.files import write_whole
from dorfl.support.text import percent
from dorfl.support.types import Array

_ROOM = 10  # answers like the one refused
_FREELY = 20  # a curvature counts little that is less than such a part of what is left
_KEPT = 20_000_000  # numbers of earlier questions that new ones are compared with


@dataclass
class Ledger:
    """See the module's text. The file is the site's own and never leaves it."""

    file: Path | None = None
    studies: dict[str, dict[str, Any]] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)  # rows that a centre was the mean of
    questions: dict[str, dict[str, Any]] = field(default_factory=dict)
    private: dict[str, dict[str, float]] = field(default_factory=dict)
    agreed: set[str] = field(default_factory=set)  # studies approved, where there is no file
    written: ClassVar = ("studies", "columns", "kept", "questions", "private")
    _pulls: dict[str, list[Array]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            try:
                told = json.loads(self.file.read_text(encoding="utf-8"))
                for name in self.written:
                    setattr(self, name, told[name])
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"{self.file.name}: cannot be read. It counts what this site has told; "
                    "put back a copy, or remove it only if nothing told before matters"
                ) from None

    # ── studies ─────────────────────────────────────────────────────────────────────────────────

    def meet(self, study: Study, run: str, needs: Callable[[], float | None]) -> None:
        """Note that a study was seen, in which run, and the share of the numbers that it needs."""
        mark = mark_of(study)
        if mark not in self.studies:
            text = plain(study)
            self.studies[mark] = {"name": study.name, "first": _now(), "runs": [], "text": text}
        seen = self.studies[mark]
        if run not in seen["runs"]:
            seen["runs"].append(run)
            seen["needs"] = needs()
            self._keep()

    def foreseen(self, mark: str, most: float) -> str:
        """What a study that was seen will need, in words, and what is left of `most`."""
        needs = self.studies[mark].get("needs")
        asks = "what it needs is not known" if needs is None else f"needs about {percent(needs)}"
        left = percent(max(most - self.told, 0.0))
        return f"{asks} of the numbers in the rows, less if asked before; {left} are left"

    def approve(self, mark: str) -> None:
        """A person says yes to a study's text."""
        approved = self.approved | {mark}
        self.agreed = approved
        if self.file is not None:
            write_whole(self._approvals, json.dumps(sorted(approved)).encode())

    @property
    def approved(self) -> set[str]:
        """The marks of studies that a person said yes to; read anew, for another process may."""
        if self.file is None or not self._approvals.exists():
            return self.agreed
        return set(json.loads(self._approvals.read_text(encoding="utf-8")))

    def allows(self, study: Study, rules: tuple[str, ...]) -> bool:
        """Whether a person, or a rule on names such as "heart-*" set in advance, says yes.

        No rule on names says with whom to sum: that takes a person, who sees the others' keys.
        """
        by_rule = named(study.name, rules) and not study.privacy.secure_sum
        return by_rule or mark_of(study) in self.approved

    def permits(self, mark: str, seen: dict[str, Any], rules: tuple[str, ...]) -> bool:
        """The same, of a study as it is in :attr:`studies`."""
        secure = seen["text"].get("privacy", {}).get("secure_sum", False)
        return mark in self.approved or (named(seen["name"], rules) and not secure)

    @property
    def _approvals(self) -> Path:
        assert self.file is not None
        return self.file.with_name("approved.json")

    # ── columns ─────────────────────────────────────────────────────────────────────────────────

    def tell(self, names: tuple[str, ...], version: str, most: int) -> str | None:
        """Why these columns cannot be told of in this version, or nothing."""
        for name in names:
            known = self.columns.get(name, {}).get("versions", [])
            if version not in known and len(known) >= most:
                return (
                    f"column {name[:60]!r} has been told of before, for other rows, in blocks of "
                    "another size or with other cells missing; the difference would show single "
                    "rows (`least` and `missing` as then, or `versions` in site.toml)"
                )
        for name in names:
            entry = self.columns.setdefault(name, {"versions": [], "middles": []})
            if version not in entry["versions"]:
                entry["versions"].append(version)
                self._keep()
        return None

    def measure(self, given: dict[str, Any], most: int, what: str = "middles") -> str | None:
        """Why columns cannot be told of with these middles (or lists of classes), or nothing."""
        for name, value in given.items():
            known = self.columns.get(name, {}).get(what, [])
            if value not in known and len(known) >= most:
                limit = "middles" if what == "middles" else "versions"
                return (
                    f"column {name[:60]!r} has been told of with {most} {what}; more "
                    f"would show single rows (`{limit}` in site.toml)"
                )
        for name, value in given.items():
            entry = self.columns.setdefault(name, {"versions": [], "middles": []})
            if value not in entry.setdefault(what, []):
                entry[what].append(value)
                self._keep()
        return None

    def average(self, rows: str, mask: Array, least: int) -> str | None:
        """Why a mean of these rows cannot be told beside those told before, or nothing."""
        written, every = (
            f"{rows} {np.packbits(part).tobytes().hex()}" for part in (mask, np.ones_like(mask))
        )
        for other in (*self.kept, every):  # blocks of sorted values add up to all rows
            name, bits = other.split()
            if name == rows and other != written:
                before = _unpacked(bits, len(mask))
                if int((before != mask).sum()) < least:
                    return (
                        f"a mean of all rows but fewer than {least} others has been told before; "
                        "the difference would show them"
                    )
        if written not in self.kept:
            self.kept.append(written)
            self._keep()
        return None

    def judge(self, rows: str, asked: str, most: int) -> str | None:
        """Why one more trial cannot be judged, or nothing.

        Within many edges, or by many models, counts of rows show where single ones lie.
        """
        known = [other for other in self.kept if other.startswith(f"judged-{rows} ")]
        if f"judged-{rows} {asked}" in known:
            return None
        if len(known) >= most:
            return (
                f"{most} trials have been judged on rows held back; more would show where single "
                "rows lie (`judged` in site.toml)"
            )
        self.kept.append(f"judged-{rows} {asked}")
        self._keep()
        return None

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    @property
    def told(self) -> float:
        """The numbers in all reports so far, over those in the rows."""
        return float(sum(entry["share"] for entry in self.questions.values()))

    def affordable(self, marks: dict[str, str], about: str, group: Group, most: float) -> str:
        """The finest curvature to tell of those in `marks`, the questions by what they ask for.

        One asked before gets the answer it got. Else one that leaves enough of what may still be
        told for some rounds, once for each problem (`about`) unless it hardly counts: curvature
        saves rounds, but for a small site a second one costs more than the rounds it saves.
        """
        asked = {entry.get("asked") for entry in self.questions.values()}
        before = [finest for finest, mark in marks.items() if mark in asked]
        if before:
            return before[-1]
        shape, each = group.problem.layout, 1 + group.problem.layout.size
        left = (most - self.told) * group.rows.size
        rounds = [e["numbers"] for e in self.questions.values() if e.get("about") == about]
        few = max(rounds, default=0) > each or left < ROUNDS * each
        room = left / _FREELY if few else left - ROUNDS * each
        return next(r for r in reversed(marks) if r == "none" or shape.numbers(r) <= room)

    def reserve(self, agreement: Agreement, step: str) -> int:
        """The trainings that there has to be room for beside what can be done without.

        That is the certificate and the comparison of candidates. What has begun goes on.
        """
        if step == "certify":
            return SPARE
        rounds = [e for e in self.questions.values() if e["step"] == "round"]
        mine = {e.get("about") for e in rounds if e["run"] == agreement.run}
        if agreement.candidate is not None:
            return 1 if mine else TRIAL
        return 0

    def ask(self, mark: str, entry: dict[str, Any], most: float, ahead: float = 0.0) -> str | None:
        """Why an answer cannot be given any more, or nothing; given before, it costs nothing.

        Where rounds begin, there has to be room for those `ahead`, a share of the numbers too.

        >>> ledger = Ledger()
        >>> ledger.ask("a", {"step": "round", "share": 0.3}, most=0.5) is None
        True
        >>> ledger.ask("b", {"step": "round", "share": 0.3}, most=0.5)[:33]
        'this site has told what it tells;'
        """
        if mark in self.questions:
            return None
        left, about = most - self.told, entry.get("about")
        begins = all(known.get("about") != about for known in self.questions.values())
        share, ahead = entry["share"], ahead * begins
        if share + ahead > left:
            enough = math.ceil(100.0 * (self.told + _ROOM * share)) / 100.0
            more = f", the rounds after it at least {percent(ahead)}" if ahead else ""
            return (
                f"this site has told what it tells; what is left is {percent(max(left, 0.0))} "
                f"of the numbers in its rows, and the answer has {percent(share)}{more}. More "
                "rows, fewer "
                f"columns, or [limits] told = {enough:g} in site.toml would let "
                f"{_ROOM} more such answers through"
            )
        self.questions[mark] = {**entry, "time": _now()}
        self._keep()
        return None

    def update(self, run: str, study: Study, number: int, times: float) -> None:
        """Note a network's update, `times` as many numbers as the rows: allowed, so not counted."""
        new = {"run": run, "study": mark_of(study), "step": "network", "round": 0, "times": 0.0}
        entry = self.questions.setdefault(f"network {run}", {**new, "numbers": 0, "share": 0.0})
        if number > entry["round"]:
            entry |= {"round": number, "times": entry["times"] + times, "time": _now()}
            self._keep()

    def pulls(self, rows: str, shape: tuple[int, ...]) -> list[Array]:
        """What rows added in earlier questions about the same rows, the last first."""
        name = f"{rows[:16]}-{shape[1]}"
        if name not in self._pulls:
            file, found = self._pull_file(name), []
            if file is not None and file.exists():
                flat = np.fromfile(file)  # a site that was stopped may leave half of one
                whole = len(flat) // int(np.prod(shape)) * int(np.prod(shape))
                found = list(flat[:whole].reshape(-1, *shape))
            self._pulls[name] = found
        most = max(_KEPT // max(int(np.prod(shape)), 1), 1)
        return self._pulls[name][: -most - 1 : -1]

    def pulled(self, rows: str, pull: Array) -> None:
        """Remember what rows added in a question that is answered."""
        name = f"{rows[:16]}-{pull.shape[1]}"
        self._pulls.setdefault(name, []).append(pull)
        file = self._pull_file(name)
        if file is not None:
            with file.open("ab") as out:
                pull.astype(np.float64).tofile(out)

    def _pull_file(self, name: str) -> Path | None:
        return None if self.file is None else self.file.with_name(f"pulls-{name}.f8")

    # ── differential privacy ────────────────────────────────────────────────────────────────────

    def spend(self, run: str, noise: Gaussian, epsilon: float | None, limits: Limits) -> str | None:
        """Why a run's noise is too little beside that of all runs before, or nothing."""
        if run in self.private:
            return None
        entry = {
            "epsilon": noise.epsilon,
            "delta": noise.delta,
            "multiplier": noise.whole,
        }
        total = composed([*self.private.values(), entry], limits.delta)
        if epsilon is not None and total > epsilon * (1.0 + 1e-6):
            return (
                f"with this run, all runs together would come to ε = {total:.3g} at "
                f"δ = {limits.delta:g}; this site gives ε ≤ {epsilon:g}"
            )
        self.private[run] = entry
        self._keep()
        return None

    def spent(self, delta: float) -> float:
        """ε of all private runs together at this δ."""
        return composed(list(self.private.values()), delta)

    def _keep(self) -> None:
        if self.file is not None:
            content = {name: getattr(self, name) for name in self.written}
            write_whole(self.file, json.dumps(content).encode())


def named(study: str, rules: tuple[str, ...]) -> bool:
    """Whether a study's name is one of those approved in advance.

    >>> named("heart-2", ("heart-*",))
    True
    """
    return any(fnmatch.fnmatchcase(study, rule) for rule in rules)


def mark_of(value: Any) -> str:
    """What stands for a value of the wire in a ledger."""
    return hashlib.sha256(wire.encode(value)).hexdigest()


def plain(study: Study) -> Any:
    """A study's text as plain JSON."""
    return json.loads(wire.encode(study))


def _unpacked(bits: str, count: int) -> Array:
    packed = np.frombuffer(bytes.fromhex(bits), np.uint8)
    return np.unpackbits(packed, count=count).astype(bool)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
