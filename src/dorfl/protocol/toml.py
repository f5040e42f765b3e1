"""A study as people write it: TOML with a comment on every entry, and errors that help.

>>> study = parse('''
... sites = ["north", "south"]
... [data]
... label = "stroke"
... [method]
... name = "gdrfl"
... rho = 20
... ''')
>>> study.method.rho, study.absent.then, study.training.tol
(20.0, 'wait', 0.0001)
>>> parse(to_toml(study)) == study
True
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from dorfl.protocol.checks import check
from dorfl.protocol.settings import Study, settings_of
from dorfl.support import wire

_RENAMED = {  # names of 0.1, for errors
    "tolerance": "tol",
    "rounds": "max_rounds",
    "rho2": "score_weight",
    "least": "[privacy] minimum_rows",
    "secure_sum": 'reports = "summed"',
}
_KINDS = {str: "text in quotes", float: "a number", int: "a whole number", bool: "true or false"}


def read(path: str | Path) -> Study:
    """Read a study from its file; the path of the data is relative to it."""
    path = Path(path)
    try:
        study = parse(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: is no text") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return study.changed(data_file=study.data.file and str(path.parent / study.data.file))


def parse(text: str) -> Study:
    """Read a study from TOML; an error about an unknown name has the nearest known one."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is no TOML: {error}") from None
    except RecursionError:
        raise ValueError("is no study: lists or tables are nested too deeply") from None
    sections, given = wire.hints(Study), dict[str, Any]()
    for key in table:
        if key not in sections:
            what = (
                f"[{key}] is no section" if isinstance(table[key], dict) else f"{key!r} is unknown"
            )
            raise ValueError(what + _nearest(key, list(sections)))
    for key, kind in sections.items():
        if wire.is_record(kind):
            section = table.get(key, {})
            if not isinstance(section, dict):
                raise ValueError(f"{key}: must be a section, [{key}]")
            given[key] = read_record(kind, section, f"[{key}]")
        elif key in table:
            given[key] = _typed(table[key], kind, key)
    study = Study(**given)
    check(study)
    return study


def to_toml(study: Study, notes: dict[str, str] | None = None) -> str:
    """Write a study with a comment on every entry; entries that are None become comments."""
    lines = ["# A study for dorfl: `dorfl train study.toml`, or `dorfl run fed/ study.toml`", ""]
    lines += [f"name = {_toml(study.name)}"]
    if study.sites:
        lines += [f"sites = {_toml(study.sites)}"]
    for section, kind in wire.hints(Study).items():
        if not wire.is_record(kind):
            continue
        lines += ["", f"[{section}]"]
        for name, setting in settings_of(kind).items():
            line = entry(name, getattr(getattr(study, section), name))
            lines.append(f"{line}  # {(notes or {}).get(name) or setting.text}")
    return "\n".join(lines) + "\n"


def entry(name: str, value: Any) -> str:
    """Return a setting as a line of TOML; None becomes a comment."""
    return f"# {name} = …" if value is None else f"{name} = {_toml(value)}"


def read_record(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """Read a record from a TOML table; unknown keys are refused, missing ones have defaults."""
    known, values = settings_of(kind), dict(kind._field_defaults)
    for key, value in table.items():
        if key not in known:
            raise ValueError(f"{where} has no {key!r}{_nearest(key, list(known))}")
        values[key] = _typed(value, known[key].kind, f"{where} {key}")
    missing = next((key for key in known if key not in values), None)
    if missing:
        raise ValueError(f"{where} {missing} is missing")
    return kind(**values)


def _typed(value: Any, kind: Any, where: str) -> Any:
    if get_origin(kind) is dict:
        if not isinstance(value, dict) or not all(
            isinstance(of, list) and of for of in value.values()
        ):
            raise ValueError(f"{where}: must say of each column what is known, {{age = [0, 120]}}")
        each = get_args(get_args(kind)[1])[0]
        return {
            name: tuple(_typed(part, each, f"{where}.{name}") for part in of)
            for name, of in value.items()
        }
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ValueError(f"{where}: must be a list of names in quotes")
        return tuple(value)
    allowed = [t for t in (get_args(kind) or (kind,)) if t is not type(None)]
    if float in allowed and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(f"{where}: is too large a number") from None
    if type(value) not in allowed:
        raise ValueError(f"{where}: must be {_KINDS[allowed[0]]}")
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{where}: NaN is no setting")
    return value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        entries = (
            f"{json.dumps(name, ensure_ascii=False)} = {_toml(of)}" for name, of in value.items()
        )
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # its strings and numbers are TOML's too


def _nearest(word: str, known: list[str]) -> str:
    if word in _RENAMED:
        return f"; it is now {_RENAMED[word]}"
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
