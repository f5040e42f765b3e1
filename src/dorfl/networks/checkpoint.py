"""The state after a round as a file, to go on from bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dorfl.federated.simulation import Round
from dorfl.networks import tensors
from dorfl.networks.client import Kept
from dorfl.networks.device import array
from dorfl.networks.device import tensor as placed
from dorfl.networks.evaluation import RoundEvaluation, read_evaluations
from dorfl.networks.identity import differing
from dorfl.networks.server import State
from dorfl.support import wire
from dorfl.support.files import write_whole

_TENSORS = ("theta", "mean", "controls")


class History(NamedTuple):
    """The rounds so far."""

    lines: tuple[Round, ...]


class Course(NamedTuple):
    """How a training went so far.

    Attributes
    ----------
    history
        Rounds.
    evaluations
        Held-out rows after some of them.
    best
        θ with the lowest loss on held-out rows; the first, before they were evaluated.
    """

    history: list[Round]
    evaluations: list[RoundEvaluation]
    best: torch.Tensor

    def after(
        self, line: Round, found: RoundEvaluation | None, theta: torch.Tensor, *, worst: bool
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
    file: Path, state: State, kept: Kept, course: Course, training: Mapping[str, str]
) -> None:
    """Write the state, and what clients keep; `training` says what it is a state of."""
    named = {name: getattr(state, name) for name in _TENSORS} | kept._asdict()
    arrays = {name: array(value) for name, value in named.items() if value is not None}
    arrays |= {f"carried.{k}": array(value) for k, value in enumerate(state.carried)}
    arrays |= {name: getattr(state, name) for name in ("lam", "risks", "before")}
    arrays["best"] = array(course.best)
    words = {
        "training": json.dumps(dict(training)),
        "history": wire.encode(History(tuple(course.history))).decode(),
        "evaluations": json.dumps({e.round: e.clients for e in course.evaluations}),
    }
    write_whole(file, tensors.pack(arrays, words))


def read(
    file: Path, state: State, kept: Kept, training: Mapping[str, str]
) -> tuple[State, Kept, Course]:
    """What is in the file, in the place of `state` and `kept`, and what led there."""
    arrays, words = tensors.unpack(file.read_bytes())
    others = differing(training, json.loads(words.get("training", "{}")))
    if others:
        raise ValueError(
            f"{file}: is the checkpoint of another training, with other {', '.join(others)}; name "
            "another file"
        )
    lines = wire.decode(words["history"].encode(), History, finite=False, limit=2**30).lines

    def tensor(name: str, like: torch.Tensor | None) -> torch.Tensor | None:
        if like is None:
            return None
        found = arrays.get(name)
        if found is None or found.shape != tuple(like.shape):
            raise ValueError(f"{file}: has no {name} of the shape that the training needs")
        return placed(np.array(found), like)

    named: dict[str, Any] = {name: tensor(name, getattr(state, name)) for name in _TENSORS}
    own: Any = {name: tensor(name, like) for name, like in kept._asdict().items()}
    carried: Any = [tensor(f"carried.{k}", old) for k, old in enumerate(state.carried)]
    table: dict[str, Any] = {name: np.array(arrays[name]) for name in ("lam", "risks", "before")}
    after = replace(state, round=len(lines), carried=carried, **named, **table)
    evaluations = read_evaluations(json.loads(words["evaluations"]))
    best = placed(np.array(arrays["best"]), state.theta)
    return after, Kept(**own), Course(list(lines), evaluations, best)
