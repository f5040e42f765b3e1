"""What passes between server and clients. Down: θ, λ, the round. Up: F_i, ∇F_i or θ_i, n_i."""

from __future__ import annotations

from typing import NamedTuple

from dorfl.solvers.base import Task
from dorfl.types import Array


class Broadcast(NamedTuple):
    """Server to every client: the round and what to do in it."""

    round: int
    task: Task


class Report(NamedTuple):
    """A client's answer: d + O(1) numbers, and never a row."""

    client: str
    round: int
    rows: int
    value: float
    vector: Array
    curvature: Array | None = None
