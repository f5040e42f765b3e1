"""A coordinator's state in a file: written whole, summed up, and read back to the last bit.

What follows from the study (the solver, its setting) is not written but made anew; what training
has found is. The file before the last is kept: a study resumed from it only asks again what it
asked before, and ends in the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from dorfl.federation.server import Server
from dorfl.study.coordinator import State, new_server
from dorfl.support import wire
from dorfl.support.files import write_whole

_FORMAT = {"format": "dorfl.checkpoint", "version": 1}
_MADE_ANEW = ("rows", "solver", "solving", "defence")


def save(path: Path, state: State) -> None:
    """Replace the checkpoint at `path`; the one before becomes `path` with `.before` added."""
    body = wire.encode({"state": state._replace(server=None), "server": _pack(state.server)})
    head = json.dumps({**_FORMAT, "sha256": hashlib.sha256(body).hexdigest()}).encode()
    if path.exists():
        os.replace(path, _before(path))
    write_whole(path, head + b"\n" + body)


def load(path: Path) -> State:
    """The last state kept; a file that is damaged or cut short is never used."""
    reasons = []
    for candidate in (path, _before(path)):
        try:
            return _load(candidate)
        except FileNotFoundError:
            reasons.append(f"{candidate.name} is not there")
        except ValueError as error:
            reasons.append(f"{candidate.name}: {error}")
    raise ValueError("no checkpoint can be read: " + "; ".join(reasons))


def _load(path: Path) -> State:
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        told = json.loads(head)
        same = {key: told.get(key) for key in _FORMAT} == _FORMAT
    except (ValueError, AttributeError):
        raise ValueError("is not a checkpoint") from None
    if not same:
        raise ValueError("was written by another version of dorfl")
    if told.get("sha256") != hashlib.sha256(body).hexdigest():
        raise ValueError("is damaged or cut short")
    plain = json.loads(body)
    state: State = wire.read(plain["state"], State, "state", finite=False)
    if plain["server"] is None:
        return state
    return state._replace(server=_unpack(plain["server"], new_server(state)))


def _pack(server: Server | None) -> Any:
    if server is None:
        return None
    kept = {name: getattr(server, name) for name in Server._fields if name not in _MADE_ANEW}
    solving = {n: v for n, v in server.solving._asdict().items() if n != "setting"}
    return {**kept, "solving": solving}


def _unpack(plain: dict[str, Any], fresh: Server) -> Server:
    def fields(kind: Any, table: dict[str, Any], leave: tuple[str, ...]) -> dict[str, Any]:
        return {
            name: wire.read(table[name], hint, name, finite=False)
            for name, hint in wire.hints(kind).items()
            if name not in leave
        }

    solving = fields(type(fresh.solving), plain["solving"], ("setting",))
    kept = fields(Server, plain, _MADE_ANEW)
    return fresh._replace(**kept, solving=fresh.solving._replace(**solving))


def _before(path: Path) -> Path:
    return path.with_name(path.name + ".before")
