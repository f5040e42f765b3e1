"""Checkpoints: the state after a round as a file, from which training goes on bit for bit.

A file also describes what is trained (:func:`describe`), so that it is not used for another
training and the difference is named. Flower's clients and servers compare the same descriptions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from dorfl.federated.simulation import Round
from dorfl.networks import tensors
from dorfl.networks.device import array
from dorfl.networks.device import tensor as placed
from dorfl.networks.evaluation import RoundEvaluation
from dorfl.networks.server import ServerState
from dorfl.support import wire
from dorfl.support.files import write_whole


class History(NamedTuple):
    """Rounds and evaluations so far, as they are written."""

    rounds: tuple[Round, ...]
    evaluations: tuple[RoundEvaluation, ...]


class Course(NamedTuple):
    """The course of a training so far."""

    history: list[Round]  # Rounds
    evaluations: list[RoundEvaluation]  # Held-out rows after some of them
    best: Tensor  # θ with the lowest loss on held-out rows; the first, before they were evaluated

    def after(
        self, line: Round, found: RoundEvaluation | None, theta: Tensor, *, worst: bool
    ) -> Course:
        """Return the course with one more round."""
        history = [*self.history, line]
        if found is None:
            return self._replace(history=history)
        lowest = min((e.objective(worst=worst) for e in self.evaluations), default=np.inf)
        best = theta if found.objective(worst=worst) < lowest else self.best
        return Course(history, [*self.evaluations, found], best)

    def best_round(self, *, worst: bool) -> int:
        """Return the round with the lowest loss on held-out rows."""
        return min(self.evaluations, key=lambda e: e.objective(worst=worst)).round

    def exhausted(self, patience: int | None, *, worst: bool) -> bool:
        """Return whether the last `patience` evaluations found no lower loss."""
        if patience is None or not self.evaluations:
            return False
        best = self.best_round(worst=worst)
        return sum(one.round > best for one in self.evaluations) >= patience


def write(
    file: Path, state: ServerState, means: Tensor, course: Course, training: Mapping[str, str]
) -> None:
    """Write the state and the clients' running means; `training` describes the training."""
    arrays = {"theta": array(state.theta), "mean": array(state.mean), "means": array(means)}
    arrays |= {f"carried.{k}": array(value) for k, value in enumerate(state.carried)}
    arrays |= {"lam": state.lam, "risks": state.risks, "best": array(course.best)}
    texts = {
        "training": json.dumps(dict(training)),
        "history": wire.encode(History(tuple(course.history), tuple(course.evaluations))).decode(),
    }
    write_whole(file, tensors.pack(arrays, texts))


def read(
    file: Path, state: ServerState, means: Tensor, training: Mapping[str, str]
) -> tuple[ServerState, Tensor, Course]:
    """Return state, running means and course from a file; ValueError for another training."""
    arrays, texts = tensors.unpack(file.read_bytes())
    others = differences(training, json.loads(texts.get("training", "{}")))
    if others:
        raise ValueError(
            f"{file}: is the checkpoint of another training, with other {', '.join(others)}; name "
            "another file"
        )
    history = wire.decode(texts["history"].encode(), History, finite=False, limit=2**30)

    def tensor(name: str, like: Tensor) -> Tensor:
        found = arrays.get(name)
        if found is None or found.shape != tuple(like.shape):
            raise ValueError(f"{file}: has no {name} of the shape that the training needs")
        return placed(np.array(found), like)

    after = ServerState(
        round=len(history.rounds),
        theta=tensor("theta", state.theta),
        mean=tensor("mean", state.mean),
        carried=[tensor(f"carried.{k}", old) for k, old in enumerate(state.carried)],
        lam=np.array(arrays["lam"]),
        risks=np.array(arrays["risks"]),
    )
    course = Course([*history.rounds], [*history.evaluations], tensor("best", state.theta))
    return after, tensor("means", means), course


def describe(value: Any) -> str:
    """Return the same text for equal values in any process: no addresses, all of an array.

    >>> describe(lambda x: x + 1) == describe(lambda x: x + 2)
    False
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}:{_digest(np.ascontiguousarray(value).tobytes())}"
    if isinstance(value, nn.Module):
        return f"{value}{describe(dict(value.state_dict()))}"
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(describe, value)) + ")"
    if isinstance(value, FunctionType):
        cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        given = (value.__defaults__ or (), cells)
        return f"{value.__qualname__}:{_digest(_code(value.__code__).encode())}{describe(given)}"
    if is_dataclass(value):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        return type(value).__qualname__ + describe(parts)
    if "__repr__" not in {name for kind in type(value).__mro__[:-1] for name in vars(kind)}:
        return type(value).__qualname__ + describe(getattr(value, "__dict__", {}))
    return repr(value)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return the names of parts that differ."""
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def _code(code: CodeType) -> str:
    """Return what a function does, without where it is written."""
    inner = [_code(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return f"{code.co_code.hex()}{inner}{code.co_names}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
