"""Solvers: each turns clients' messages into the next θ and λ, and sees nothing else.

Your own solver is an object with a name, `needs`, `init`, `ask` and `update` (see
:mod:`dorfl.solvers.base`). Pass it as `dorfl.train(…, solver=Mine())`. Register it to let a study
choose it by name:

    dorfl.solvers.register(Mine)
"""

from __future__ import annotations

from collections.abc import Callable

from dorfl.solvers.base import Needs, Solver
from dorfl.solvers.concomitant import Radius, Scale
from dorfl.solvers.descent import Noisy, Paper
from dorfl.solvers.optimistic import Optimistic
from dorfl.solvers.sqp import Sqp

__all__ = ["Needs", "Noisy", "Optimistic", "Paper", "Radius", "Scale", "Solver", "Sqp"]
__all__ += ["names", "register", "resolve"]

_NAMED: dict[str, Callable[[], Solver]] = {}


def register(make: Callable[[], Solver]) -> None:
    """Register the solver that `make()` returns, under its name."""
    _NAMED[make().name] = make


def names() -> tuple[str, ...]:
    """Return the names a study can use: "auto" and solvers that end at a tolerance."""
    return ("auto", *(name for name, make in _NAMED.items() if make().needs.reports_gap))


def resolve(solver: str | Solver, *, whole: bool = True) -> Solver:
    """Return a solver by its name; a solver is returned as it is.

    Parameters
    ----------
    solver : str or Solver
        A solver, the name of a registered one, or "auto".
    whole : bool
        True if all clients reply in every round with all rows. Then "auto" is `sqp`.

    Raises
    ------
    ValueError
        If no solver of that name is registered.

    >>> resolve("auto").name, resolve("auto", whole=False).name
    ('sqp', 'optimistic')
    """
    if not isinstance(solver, str):
        return solver
    if solver == "auto":
        solver = "sqp" if whole else "optimistic"
    if solver not in _NAMED:
        listed = ", ".join(_NAMED)
        raise ValueError(f'solver={solver!r} is unknown; choose "auto" or one of {listed}')
    return _NAMED[solver]()


for _make in (Sqp, Optimistic, Paper):
    register(_make)
