"""Messages between server and clients: θ, λ and the round down; F_i, ∇F_i or θ_i, n_i up."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dorfl.solvers.base import Task
from dorfl.support.types import Array


class Broadcast(NamedTuple):
    """Request of the server to every client: the round, and the task."""

    round: int
    task: Task

    @property
    def bytes(self) -> int:
        """Return the size of θ and λ in bytes."""
        return self.task.theta.nbytes + self.task.lam.nbytes


class Report(NamedTuple):
    """Report of a client: d + O(1) numbers, never a row.

    Attributes
    ----------
    client : str
        Name of the client.
    round : int
        Round of the request.
    rows : int
        Number of rows n_i.
    value : float
        Risk F_i.
    vector : Array
        Gradient ∇F_i, or parameters θ_i after local steps.
    curvature : Array, optional
        Packed Hessian ∇²F_i.
    """

    client: str
    round: int
    rows: int
    value: float
    vector: Array
    curvature: Array | None = None

    @property
    def bytes(self) -> int:
        """Return the size of F_i, ∇F_i, n_i and ∇²F_i in bytes."""
        bends: Any = self.curvature  # unchecked if no curvature was requested
        return 16 + self.vector.nbytes + (bends.nbytes if isinstance(bends, np.ndarray) else 0)
