"""What a federation asks of its clients, whatever their model is: an oracle.

An oracle stands for the clients that live in one process. Its `problem` is what server and clients
agree on before the first round, and has no data in it. Linear models are
:class:`dorfl.linear.group.Group`. Solvers, server and engines know only what is written here, and
`dorfl.train(oracle)` trains whatever has it: `tests/linear/test_own_oracle.py` has a whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from dorfl.linear import curvature as packing
from dorfl.linear.curvature import RESOLUTIONS, Shape, coarser
from dorfl.objective.methods import Method
from dorfl.support.types import Array

_MORE = 1e-6  # of ρ: what it is changed by to see what that does


class Kept(NamedTuple):
    """What a pass keeps of every row at its worst: its f, ∂l/∂t there, its label."""

    value: Array
    slope: Array
    target: Array


class Evaluation(NamedTuple):
    """What clients have to say of a θ: their robust risks, and what was asked for beside them."""

    values: Array  # (clients,) F_i
    gradients: Array  # (clients, parameters) ∇F_i
    error: float = 0.0  # a bound on what an approximate supremum may have missed
    curvature: Array | None = None  # (clients, numbers) ∇²F_i, as oracle.curvature packs it
    weights: list[Array] | None = None  # p of every client's rows
    heaviest: Array | None = None  # (clients,) the largest share of one row in ∇²F_i
    spent: Array | None = None  # (clients,) r̂_i = −∂F_i/∂ρ, where the method has a radius
    kept: Kept | None = None  # of every row, where its place is not needed


class ChunkSums(NamedTuple):
    """What a pass sums up in every chunk of rows; see :func:`dorfl.linear.kernels.one_pass`."""

    level: Array  # (chunks, 3): the top of f/ρβ, Σ (w − 1) or Σ f, Σ w g · shift
    moment: Array
    slope: Array
    square: Array


def room(n: int, outputs: int) -> tuple[Array, ...]:
    """Where a pass keeps f, g, labels and shifts of n rows."""
    return np.empty(n), np.empty((n, outputs)), np.empty(n), np.empty(n)


NO_ROOM = room(0, 1)


class Ready(NamedTuple):
    """θ as the rows meet it."""

    effective: Array  # W A, in the rows' precision
    weights: Array  # W
    intercept: Array
    spread: Array  # S
    pulled: Array  # Q = W K⁻¹


class Atoms(NamedTuple):
    """Every row at its worst: where it went, with which label, its f, and its sample weight."""

    rows: Array
    target: Array
    value: Array
    weights: Array
    slope: Array
    error: float


class Agreed:
    """What server and clients agree on; the answers here hold for a plain vector of parameters."""

    method: Method

    @property
    def size(self) -> int:
        """How many parameters there are."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape users see θ in."""
        return (self.size,)

    @cached_property
    def layout(self) -> Shape:
        """How parameters are laid out in a curvature: as one block, or one for each output."""
        return Shape(1, self.size, self.others)

    @property
    def finest(self) -> str:
        """The finest curvature that clients can make, whatever bytes it takes."""
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
        """Whether separable rows would leave the objective without a finite minimiser."""
        return False

    @property
    def smooth(self) -> bool:
        """Whether it is known that no risk has a kink."""
        return False

    @property
    def covered(self) -> bool:
        """Whether a curvature may be that of a parabola above the risk and not the risk's own."""
        return False

    @property
    def constrained(self) -> bool:
        """Whether ρ is an unknown too: the last entry of what server and clients exchange."""
        return self.method.radius is not None

    @property
    def estimates_scale(self) -> bool:
        """Whether the scale σ of residuals is an unknown too, the last entry that is exchanged."""
        return False

    @property
    def others(self) -> int:
        """How many unknowns follow θ in what server and clients exchange."""
        return int(self.constrained or self.estimates_scale)

    def is_finite(self, theta: Array) -> bool:
        """Whether every risk is finite at θ."""
        return True

    def predict(self, theta: Array, rows: Array) -> Array:
        """The model's outputs for rows."""
        raise NotImplementedError("this model's outputs are known to its oracle alone")


@dataclass(frozen=True, eq=False)
class Terms(Agreed):
    """A method and where θ starts: all there is to agree on for most oracles.

    >>> from dorfl import methods
    >>> Terms(methods.afl(), np.zeros(3)).size
    3
    """

    method: Method
    initial: Array

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return len(self.initial)

    @property
    def start(self) -> Array:
        """Where training starts."""
        return self.initial


class Oracle(Protocol):
    """Clients that answer together, in one pass over their rows."""

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
        """F_i and ∇F_i of every client at θ.

        `curvature` is one of :data:`~dorfl.linear.curvature.RESOLUTIONS`: ∇²F_i as fine as that, or
        none where there is none to tell. With `rows` also the weights p of the rows and, with a
        curvature, the largest share that one row has in it.
        """
        ...

    def take(self, indices: Sequence[Array]) -> Oracle:
        """The same clients with only the given rows of each (minibatches)."""
        ...

    def select(self, clients: Sequence[int]) -> Oracle:
        """Only some of the clients (partial participation)."""
        ...


class Priced:
    """Clients that are asked at (θ, ρ): the price of transport is one more unknown, the last.

    It needs of an oracle that it has `priced(rho)` and tells r̂_i, which is −∂F_i/∂ρ.
    """

    def __init__(self, oracle: Any) -> None:
        self.oracle = oracle
        self.names, self.counts, self.problem = oracle.names, oracle.counts, oracle.problem

    def evaluate(self, theta: Array, curvature: str = "none", *, rows: bool = False) -> Evaluation:
        """F_i, its gradient in (θ, ρ) and its curvature, where ρ is counted in units of itself.

        How the gradient changes with ρ is found by a little more of it, in another pass over the
        rows. It may rest on few of them: with `rows`, which is how a site looks after its own,
        nothing is told of it.
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
            more: Evaluation = self.oracle.priced(rho * (1.0 + _MORE)).evaluate(point)
            assert more.spent is not None
            after = np.column_stack([more.gradients, -more.spent])
            change = (after - found.gradients) / _MORE
            change[:, -1] *= rho
        shape = self.problem.layout._replace(others=0)
        told = coarser(curvature, shape.resolution(found.curvature.shape[1]) or curvature)
        packed = packing.bordered(found.curvature, change, shape.sizes(told))
        return found._replace(curvature=packed)

    def take(self, indices: Sequence[Array]) -> Priced:
        """The same clients with only the given rows of each."""
        return Priced(self.oracle.take(indices))

    def select(self, clients: Sequence[int]) -> Priced:
        """Only some of the clients."""
        return Priced(self.oracle.select(clients))
