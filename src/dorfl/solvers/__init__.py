"""Solvers: each turns clients' messages into the next θ and λ, and sees nothing else."""

from __future__ import annotations

from dorfl.solvers.base import Solver
from dorfl.solvers.noisy import Noisy
from dorfl.solvers.optimistic import Optimistic
from dorfl.solvers.paper import Paper
from dorfl.solvers.radius import Radius
from dorfl.solvers.sqp import Sqp

__all__ = ["Noisy", "Optimistic", "Paper", "Radius", "Solver", "Sqp", "resolve"]

_NAMED = {"sqp": Sqp, "optimistic": Optimistic, "paper": Paper}


def resolve(solver: str | Solver, *, full: bool = True, batch: int | None = None) -> Solver:
    """The solver itself, or the one of that name; "auto" is `sqp` where everyone answers fully."""
    if not isinstance(solver, str):
        return solver
    if solver == "auto":
        solver = "sqp" if full and batch is None else "optimistic"
    if solver not in _NAMED:
        raise ValueError(
            f'solver={solver!r} is unknown; choose "auto" or one of {", ".join(_NAMED)}'
        )
    if solver == "optimistic":
        return Optimistic(batch=batch)
    if solver == "paper":
        return Paper() if batch is None else Paper(batch=batch)
    if batch is not None:
        raise ValueError(
            "solver 'sqp' needs all rows every round; use 'optimistic' for minibatches"
        )
    return Sqp()
