"""The state after a round as a file, to go on from bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dorfl.federated.simulation import Round
from dorfl.networks import tensors
from dorfl.networks.client import Kept
from dorfl.networks.server import State
from dorfl.support import wire
from dorfl.support.files import write_whole

_TENSORS = ("theta", "mean", "controls")


class History(NamedTuple):
    """The rounds so far."""

    lines: tuple[Round, ...]


def write(file: Path, state: State, kept: Kept, history: list[Round], training: str) -> None:
    """Write the state, and what clients keep; `training` says what it is a state of."""
    named = {name: getattr(state, name) for name in _TENSORS} | kept._asdict()
    arrays = {name: tensor.numpy() for name, tensor in named.items() if tensor is not None}
    arrays |= {f"carried.{k}": tensor.numpy() for k, tensor in enumerate(state.carried)}
    arrays |= {name: getattr(state, name) for name in ("lam", "risks", "before")}
    words = {"training": training, "history": wire.encode(History(tuple(history))).decode()}
    write_whole(file, tensors.pack(arrays, words))


def read(file: Path, state: State, kept: Kept, training: str) -> tuple[State, Kept, list[Round]]:
    """What is in the file, in the place of `state` and `kept`, and the rounds that led there."""
    arrays, words = tensors.unpack(file.read_bytes())
    if words.get("training") != training:
        raise ValueError(f"{file}: is the checkpoint of another training; name another file")
    lines = wire.decode(words["history"].encode(), History, finite=False, limit=2**30).lines

    def tensor(name: str, like: torch.Tensor | None) -> torch.Tensor | None:
        if like is None:
            return None
        found = arrays.get(name)
        if found is None or found.shape != tuple(like.shape):
            raise ValueError(f"{file}: has no {name} of the shape that the training needs")
        return torch.from_numpy(np.array(found)).to(like.dtype)

    named: dict[str, Any] = {name: tensor(name, getattr(state, name)) for name in _TENSORS}
    own: Any = {name: tensor(name, like) for name, like in kept._asdict().items()}
    carried: Any = [tensor(f"carried.{k}", old) for k, old in enumerate(state.carried)]
    table: dict[str, Any] = {name: np.array(arrays[name]) for name in ("lam", "risks", "before")}
    after = replace(state, round=len(lines), carried=carried, **named, **table)
    return after, Kept(**own), list(lines)
