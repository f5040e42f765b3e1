"""What passes between server and clients. Down: θ, λ, the round. Up: F_i, ∇F_i or θ_i, n_i."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dorfl.solvers.base import Task
from dorfl.support.types import Array


class Broadcast(NamedTuple):
    """Server to every client: the round and what to do in it."""

    round: int
    task: Task

    @property
    def bytes(self) -> int:
        """What its numbers weigh: θ and λ."""
        return self.task.theta.nbytes + self.task.lam.nbytes


class Report(NamedTuple):
    """A client's answer: d + O(1) numbers, and never a row."""

    client: str
    round: int
    rows: int
    value: float
    vector: Array
    curvature: Array | None = None

    @property
    def bytes(self) -> int:
        """What its numbers weigh: F_i, ∇F_i and n_i, and now and then ∇²F_i."""
        bends: Any = self.curvature  # where none was asked for, nobody has looked what it is
        return 16 + self.vector.nbytes + (bends.nbytes if isinstance(bends, np.ndarray) else 0)
