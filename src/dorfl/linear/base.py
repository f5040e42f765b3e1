"""The interface of an oracle: the clients in one process, which evaluate F_i and ∇F_i at any θ.

The `problem` of an oracle is what server and clients agree on before the first round; it holds no
data. The oracle of linear models is :class:`dorfl.linear.group.Group`. Solvers, server and engines
use this interface alone, and `dorfl.train(oracle)` trains any object that has it.
`tests/linear/test_own_oracle.py` has a complete example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dorfl.linear import curvature as packing
from dorfl.linear.curvature import RESOLUTIONS, Shape, coarser
from dorfl.objective.methods import Method
from dorfl.support.types import Array

_RELATIVE_STEP = 1e-6  # of ρ, for forward differences of the gradient


class Kept(NamedTuple):
    """The maximiser of each row as a pass over the rows keeps it: f, ∂l/∂t and the label there."""

    value: Array
    slope: Array
    target: Array


class Evaluation(NamedTuple):
    """The clients' robust risks at a θ, and what was requested with them."""

    values: Array  # (clients,) F_i
    gradients: Array  # (clients, parameters) ∇F_i
    error: float = 0.0  # a bound on what an approximate supremum may have missed
    curvature: Array | None = None  # (clients, numbers) ∇²F_i, as oracle.curvature packs it
    weights: list[Array] | None = None  # p of every client's rows
    heaviest: Array | None = None  # (clients,) the largest share of one row in ∇²F_i
    spent: Array | None = None  # (clients,) r̂_i = −∂F_i/∂ρ, if the method has a radius
    kept: Kept | None = None  # of every row, if requested


class ChunkSums(NamedTuple):
    """Sums over the rows of each chunk; see :func:`dorfl.linear.kernels.one_pass`."""

    level: Array  # (chunks, 3): the top of f/ρβ, Σ (w − 1) or Σ f, Σ w g · shift
    moment: Array
    slope: Array
    square: Array


def room(n: int, outputs: int) -> tuple[Array, ...]:
    """Return empty arrays for f, g, labels and shifts of n rows."""
    return np.empty(n), np.empty((n, outputs)), np.empty(n), np.empty(n)


NO_ROOM = room(0, 1)


class Ready(NamedTuple):
    """θ in the form that a pass over the rows needs."""

    effective: Array  # W A, in the rows' precision
    weights: Array  # W
    intercept: Array
    spread: Array  # S
    pulled: Array  # Q = W K⁻¹


class Atoms(NamedTuple):
    """The worst-case distribution: each row at its maximiser, its label, f and sample weight."""

    rows: Array
    target: Array
    value: Array
    weights: Array
    slope: Array
    error: float


class Agreed:
    """What server and clients agree on; the defaults are those of a plain parameter vector."""

    method: Method

    @property
    def size(self) -> int:
        """The number of parameters."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape users see θ in."""
        return (self.size,)

    @cached_property
    def layout(self) -> Shape:
        """The layout of the parameters in a curvature: one block, or one for each output."""
        return Shape(1, self.size, self.others)

    @property
    def finest(self) -> str:
        """The finest curvature that clients can compute, whatever its size in bytes."""
        return RESOLUTIONS[-1]

    @property
    def penalised(self) -> Array:
        """The share of `l2` that each parameter gets."""
        return np.ones(self.size)

    @property
    def start(self) -> Array:
        """Where training starts."""
        return np.zeros(self.size)

    @property
    def unbounded(self) -> bool:
        """True if the objective has no finite minimiser for separable rows."""
        return False

    @property
    def smooth(self) -> bool:
        """True if no risk has a non-smooth point."""
        return False

    @property
    def covered(self) -> bool:
        """True if the reported curvature may be that of a parabola above the risk."""
        return False

    @property
    def constrained(self) -> bool:
        """True if ρ is an unknown too, the last entry of θ in messages."""
        return self.method.radius is not None

    @property
    def estimates_scale(self) -> bool:
        """True if the scale σ of residuals is an unknown too, the last entry of θ in messages."""
        return False

    @property
    def others(self) -> int:
        """The number of unknowns that follow θ in messages."""
        return int(self.constrained or self.estimates_scale)

    def is_finite(self, theta: Array) -> bool:
        """Return True if every risk is finite at θ."""
        return True

    def predict(self, theta: Array, rows: Array) -> Array:
        """Return the model's outputs for rows."""
        raise NotImplementedError("this model's outputs are known to its oracle alone")


@dataclass(frozen=True, eq=False)
class Terms(Agreed):
    """A method and the first θ, which is all that most oracles need.

    >>> from dorfl import methods
    >>> Terms(methods.afl(), np.zeros(3)).size
    3
    """

    method: Method
    initial: Array

    @property
    def size(self) -> int:
        """The number of parameters."""
        return len(self.initial)

    @property
    def start(self) -> Array:
        """Where training starts."""
        return self.initial


class Oracle(Protocol):
    """Clients that are evaluated together, in one pass over their rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names."""
        ...

    @property
    def counts(self) -> Array:
        """n_i, the number of rows of each client."""
        ...

    @property
    def problem(self) -> Any:
        """What is agreed on: an :class:`Agreed`."""
        ...

    def evaluate(self, theta: Array, curvature: str = "none", *, rows: bool = False) -> Evaluation:
        """Return F_i and ∇F_i of every client at θ.

        Parameters
        ----------
        theta : array
            θ, followed by ρ or σ if that is an unknown too.
        curvature : str
            Resolution of ∇²F_i, one of :data:`~dorfl.linear.curvature.RESOLUTIONS`. Ignored if the
            loss has no Hessian.
        rows : bool
            Also return the weights p of the rows and, with a curvature, the largest share of one
            row in it.
        """
        ...

    def take(self, indices: Sequence[Array]) -> Oracle:
        """Return the clients with only the given rows of each (minibatches)."""
        ...

    def select(self, clients: Sequence[int]) -> Oracle:
        """Return only some of the clients (partial participation)."""
        ...


class Extended:
    """Clients that are evaluated at θ and one more unknown, the last entry of what is asked."""

    def __init__(self, oracle: Any) -> None:
        self.oracle = oracle
        self.names, self.counts, self.problem = oracle.names, oracle.counts, oracle.problem

    def take(self, indices: Sequence[Array]) -> Self:
        """Return the clients with only the given rows of each."""
        return type(self)(self.oracle.take(indices))

    def select(self, clients: Sequence[int]) -> Self:
        """Return only some of the clients."""
        return type(self)(self.oracle.select(clients))

    def bordered(self, found: Evaluation, columns: Array, curvature: str) -> Array:
        """Return the curvature of an evaluation with one more parameter's columns."""
        assert found.curvature is not None
        shape = self.problem.layout._replace(others=0)
        made = coarser(curvature, shape.resolution(found.curvature.shape[1]) or curvature)
        return packing.bordered(found.curvature, columns, shape.sizes(made))


class Priced(Extended):
    """Clients that are evaluated at (θ, ρ): the price of transport is the last unknown.

    The oracle needs a method `priced(rho)`, and its evaluations r̂_i = −∂F_i/∂ρ.
    """

    def evaluate(self, theta: Array, curvature: str = "none", *, rows: bool = False) -> Evaluation:
        """Return F_i, its gradient in (θ, ρ) and its curvature, with ρ in units of itself.

        Forward differences give the change of the gradient with ρ, by another pass over the rows.
        A single row may dominate that change, so it is zero with `rows`, as sites ask for it.
        """
        point, rho = theta[:-1], float(theta[-1])
        clients = self.oracle.priced(rho)
        found: Evaluation = clients.evaluate(point, curvature, rows=rows)
        assert found.spent is not None
        found = found._replace(gradients=np.column_stack([found.gradients, -found.spent]))
        if found.curvature is None:
            return found
        change = np.zeros_like(found.gradients)
        if not rows:
            more: Evaluation = self.oracle.priced(rho * (1.0 + _RELATIVE_STEP)).evaluate(point)
            assert more.spent is not None
            after = np.column_stack([more.gradients, -more.spent])
            change = (after - found.gradients) / _RELATIVE_STEP
            change[:, -1] *= rho
        return found._replace(curvature=self.bordered(found, change, curvature))
