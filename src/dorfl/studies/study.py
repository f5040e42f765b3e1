"""What a study asks for, on the command line or written down as `study.toml`: the same either way.

>>> study = Study(data="wards.csv", label="ill", client="ward", outliers=0.05)
>>> written = to_toml(study)
>>> 'label = "ill"' in written, from_toml(written).outliers
(True, 0.05)
"""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

METHODS = ("erm", "afl", "wafl", "gdrfl", "dorfl")
TASKS = ("auto", "classification", "regression")
MIXTURES = ("fixed", "agnostic")
SMALL = ("refuse", "drop", "merge")
SOLVERS = ("auto", "sqp", "optimistic")
SCALINGS = ("robust", "standard", "none")


def _entry(section: str, about: str, default: Any = MISSING, key: str = "") -> Any:
    return field(default=default, metadata={"section": section, "about": about, "key": key})


@dataclass(frozen=True)
class Study:
    """Everything a training depends on; fields that are None are found or chosen by dorfl."""

    data: str = _entry("data", "the table: CSV (also .gz) or Parquet", key="file")
    label: str = _entry("data", "the column to predict")
    client: str | None = _entry("data", "the column that says whose row it is", None)
    task: str = _entry("data", "auto, classification or regression", "auto")
    small: str = _entry("data", "clients with too few rows: refuse, drop or merge", "refuse")
    least: int = _entry("data", "how many rows a client needs", 10)
    numeric: tuple[str, ...] = _entry("columns", "columns to read as numbers", ())
    category: tuple[str, ...] = _entry("columns", "columns to read as categories", ())
    ignore: tuple[str, ...] = _entry("columns", "columns to leave out", ())
    scaling: str = _entry("columns", "robust (median, MAD), standard or none", "robust")
    method: str = _entry("method", "dorfl, gdrfl, wafl, afl or erm", "dorfl", key="name")
    outliers: float = _entry("method", "the share of rows that may be wrong", 0.1)
    shift: float = _entry("method", "how far rows may drift, in standard deviations", 0.25)
    rho: float | None = _entry("method", "the price of moving a row, instead of shift", None)
    beta: float | None = _entry("method", "the price of reweighting rows", None)
    score_weight: float | None = _entry("method", "ρ₂, the weight of the outlier score", None)
    mixture: str | None = _entry("method", "fixed (by size) or agnostic (the worst)", None)
    l2: float | None = _entry("training", "adds ½ l2 ‖θ‖²; by default 1 / rows", None)
    solver: str = _entry("training", "auto, sqp or optimistic", "auto")
    tolerance: float = _entry("training", "stop at a gap of this share of the objective", 1e-4)
    rounds: int | None = _entry("training", "at most so many exchanges of messages", None)
    seed: int = _entry("training", "where random streams begin", 0)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("method", METHODS), ("task", TASKS), ("small", SMALL), ("scaling", SCALINGS),
            ("mixture", MIXTURES), ("solver", SOLVERS),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise ValueError(f"{name}: {value!r} is none of {', '.join(allowed)}")
        for name, fine, need in (
            ("outliers", 0 <= self.outliers <= 0.4, "a share from 0 to 0.4"),
            ("shift", 0 <= self.shift < float("inf"), "a number ≥ 0"),
            ("least", self.least >= 1, "at least 1"),
            ("tolerance", self.tolerance > 0, "positive"),
            ("rounds", self.rounds is None or self.rounds >= 1, "at least 1"),
            ("l2", self.l2 is None or 0 <= self.l2 < float("inf"), "a number ≥ 0"),
        ):
            if not fine:
                raise ValueError(f"{name}={getattr(self, name)}: must be {need}")
        for name in ("rho", "beta", "score_weight"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name}={value}: must be a positive number")

    def changed(self, **given: Any) -> Study:
        """The study with the values that are given, None meaning not given."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    @property
    def kinds(self) -> dict[str, str]:
        """What is said of columns, as preprocessing takes it."""
        return {
            **dict.fromkeys(self.numeric, "numeric"),
            **dict.fromkeys(self.category, "category"),
            **dict.fromkeys(self.ignore, "ignore"),
        }

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; of the data's place only the file's name."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {
            "data": Path(self.data).name
        }


def read(path: str | Path) -> Study:
    """A study from its file; the data's place is relative to it."""
    path = Path(path)
    try:
        study = from_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: is no text") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return replace(study, data=str(path.parent / study.data))


def from_toml(text: str) -> Study:
    """A study from TOML; what it does not know is answered with the nearest it does."""
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is no TOML: {error}") from None
    known = {(f.metadata["section"], f.metadata["key"] or f.name): f.name for f in fields(Study)}
    sections = list(dict.fromkeys(section for section, _ in known))
    kinds = get_type_hints(Study)
    given: dict[str, Any] = {}
    for section, entries in written.items():
        if section not in sections or not isinstance(entries, dict):
            raise ValueError(f"[{section}] is no section{_nearest(section, sections)}")
        for key, value in entries.items():
            name = known.get((section, key))
            if name is None:
                keys = [k for s, k in known if s == section]
                raise ValueError(f"[{section}] has no {key!r}{_nearest(key, keys)}")
            given[name] = _typed(value, kinds[name], f"[{section}] {key}")
    for f in fields(Study):
        if f.default is MISSING and f.name not in given:
            raise ValueError(f"[{f.metadata['section']}] {f.metadata['key'] or f.name} is missing")
    return Study(**given)


def to_toml(study: Study, notes: dict[str, str] | None = None) -> str:
    """The study with a comment on every entry; those that are None stand as comments."""
    lines: list[str] = ["# A study for dorfl: dorfl train study.toml", ""]
    section = ""
    for f in fields(study):
        if f.metadata["section"] != section:
            section = f.metadata["section"]
            lines += ["", f"[{section}]"] if lines[-1] else [f"[{section}]"]
        value = getattr(study, f.name)
        about = (notes or {}).get(f.name) or f.metadata["about"]
        key = f.metadata["key"] or f.name
        if value is None:
            lines.append(f"# {key} = …  # {about}")
        else:
            lines.append(f"{key} = {_toml(value)}  # {about}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # its strings and numbers are TOML's too


def _typed(value: Any, kind: Any, where: str) -> Any:
    allowed = [t for t in (get_args(kind) or (kind,)) if t is not type(None)]
    if kind == tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ValueError(f"{where}: must be a list of names in quotes")
        return tuple(value)
    if float in allowed and type(value) is int:
        return float(value)
    if type(value) not in allowed:
        words = {str: "text in quotes", float: "a number", int: "a whole number"}
        raise ValueError(f"{where}: must be {words[allowed[0]]}")
    return value


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
