"""Save a coordinator's state in a file with a checksum, and read it back to the last bit.

The solver and its setting follow from the study and are made anew; what training found is saved.
The file before the last is kept: a study that is resumed from it sends the same requests again, and
ends in the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from dorfl.federated.server import Server
from dorfl.protocol.state import State
from dorfl.protocol.training import new_server
from dorfl.support import wire
from dorfl.support.files import write_whole

_FORMAT = {"format": "dorfl.checkpoint", "version": 1}
_MADE_ANEW = ("rows", "solver", "solving", "defence")


def save(path: Path, state: State) -> None:
    """Replace the checkpoint at `path`; the one before becomes `path` with `.before` added."""
    servers = {str(k): _pack(server) for k, server in enumerate(state.selection.servers) if server}
    bare = state.selection._replace(servers=(None,) * len(state.selection.servers))
    carried = state._replace(server=None, selection=bare)
    body = wire.encode({"state": carried, "server": _pack(state.server), "servers": servers})
    head = json.dumps({**_FORMAT, "sha256": hashlib.sha256(body).hexdigest()}).encode()
    if path.exists():
        os.replace(path, _before(path))
    write_whole(path, head + b"\n" + body)


def load(path: Path) -> State:
    """Return the last state; ValueError if no file is whole."""
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
        written = json.loads(head)
        same = {key: written.get(key) for key in _FORMAT} == _FORMAT
    except (ValueError, AttributeError):
        raise ValueError("is not a checkpoint") from None
    if not same:
        raise ValueError("was written by another version of dorfl")
    if written.get("sha256") != hashlib.sha256(body).hexdigest():
        raise ValueError("is damaged or cut short")
    plain = json.loads(body)
    state: State = wire.read(plain["state"], State, "state", finite=False)
    servers = list(state.selection.servers)
    for place, packed in plain["servers"].items():
        candidate = state.selection.candidates[int(place)]
        servers[int(place)] = _unpack(packed, new_server(state.agree(candidate=candidate)))
    state = state._replace(selection=state.selection._replace(servers=tuple(servers)))
    if plain["server"] is None:
        return state
    fresh = new_server(state.agree(scatter=None))  # as training began: with the scale unknown
    return state._replace(server=_unpack(plain["server"], fresh))


def _pack(server: Server | None) -> Any:
    if server is None:
        return None
    kept = {name: getattr(server, name) for name in Server._fields if name not in _MADE_ANEW}
    return {**kept, "solving": _pack_state(server.solving)}


def _pack_state(state: Any) -> dict[str, Any]:
    """Return a solver's state without its setting, which is made anew; so for a state inside it."""
    return {
        name: _pack_state(value) if hasattr(value, "setting") else value
        for name, value in state._asdict().items()
        if name != "setting"
    }


def _unpack(plain: dict[str, Any], fresh: Server) -> Server:
    kept = _read_fields(Server, plain, _MADE_ANEW)
    return fresh._replace(**kept, solving=_unpack_state(plain["solving"], fresh.solving))


def _unpack_state(plain: dict[str, Any], fresh: Any) -> Any:
    inner = [n for n, value in fresh._asdict().items() if hasattr(value, "setting")]
    kept = _read_fields(type(fresh), plain, ("setting", *inner))
    inside = {name: _unpack_state(plain[name], getattr(fresh, name)) for name in inner}
    return fresh._replace(**kept, **inside)


def _read_fields(kind: Any, table: dict[str, Any], leave: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: wire.read(table[name], hint, name, finite=False)
        for name, hint in wire.hints(kind).items()
        if name not in leave
    }


def _before(path: Path) -> Path:
    return path.with_name(path.name + ".before")
