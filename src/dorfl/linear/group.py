"""The robust risk of a client, F_i(θ) = ρβ log mean_i exp(f(θ, ζ)/ρβ), its gradient, its weights.

By Danskin's theorem ∇F_i(θ) = Σ_j p_j ∇_θ l(θ, z_j), with z_j the maximiser of row j and
p = softmax(f/ρβ) the sample weights: 1/n for an ordinary row, nearly 0 for an outlier. Sums are in
the log domain and cannot overflow.

A :class:`Group` holds the stacked rows of all clients in this process. A site is a group of one
client, and its results are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import xlogy

from dorfl.linear import hessian, kernels, rowwise
from dorfl.linear.base import NO_ROOM, Atoms, ChunkSums, Evaluation, Kept, Ready, room
from dorfl.linear.inner import apply, check_finite, is_concave
from dorfl.linear.problem import Problem
from dorfl.objective.losses import HuberInUnit
from dorfl.objective.mixture import tilted_mean
from dorfl.support.threads import together
from dorfl.support.types import Array

_BATCH = 100_000  # rows of clients that are processed together, about: limits the memory


class Risk(NamedTuple):
    """Robust risk of one client.

    Attributes
    ----------
    value : float
        F.
    gradient : Array
        ∇F, in the shape of θ.
    sample_weights : Array
        (n,) weights p of the rows; they sum to 1.
    """

    value: float
    gradient: Array
    sample_weights: Array


@dataclass(frozen=True, eq=False)
class Group:
    """Clients in one process: their stacked rows, and all that does not depend on θ."""

    problem: Problem
    names: tuple[str, ...]
    rows: Array  # (n, d) float32 or float64, C order; or a sparse array (CSR)
    target: Array  # (n,) float64, as the loss encodes it
    bounds: Array  # (clients + 1,) where each client's rows begin and end
    centers: Array  # ξ̄ of a quadratic score, else zeros: (clients, d), or (clients, classes, d)
    penalty: Array = field(init=False)
    chunks: Array = field(init=False)
    tolerance: float = 0.0  # the largest distance of a row from its maximiser (0: exact)
    mass: Array | None = None  # (n,) the weight of each row in P̂_i, in any unit; None: equal
    own: Array | None = None  # (clients,) F_i*, if clients are compared by regret

    def __post_init__(self) -> None:
        if self.sparse and (self._ascends or any(self.problem.threshold)):
            raise ValueError(
                "sparse rows: the supremum needs a closed form and no threshold score; give rows "
                "as an array (`.toarray()`)"
            )
        if self.centers.ndim == 3 and (self.sparse or np.isfinite(self._label_price)):
            raise ValueError(
                "centres by class: rows have to be an array, and labels cannot change (label_price)"
            )
        object.__setattr__(self, "penalty", rowwise.penalty(self))
        table = [
            (start, min(start + kernels.CHUNK, stop), i)
            for i, (first, stop) in enumerate(pairwise(self.bounds))
            for start in range(first, stop, kernels.CHUNK)
        ]
        object.__setattr__(self, "chunks", np.array(table, dtype=np.int64).reshape(-1, 3))

    @cached_property
    def counts(self) -> Array:
        """n_i, the number of rows of each client."""
        return np.diff(self.bounds)

    @cached_property
    def sizes(self) -> Array:
        """The size of each client: its rows, or their masses in units of the smallest."""
        if self.mass is None:
            return self.counts
        return np.asarray(np.add.reduceat(self.mass, self.bounds[:-1]) / self.mass.min())

    @cached_property
    def lots(self) -> Array:
        """1 / P̂_i of every row: n_i if all rows have the same mass."""
        if self.mass is None:
            return np.repeat(self.counts, self.counts)
        return np.repeat(np.add.reduceat(self.mass, self.bounds[:-1]), self.counts) / self.mass

    @cached_property
    def sparse(self) -> bool:
        """True if rows are sparse."""
        return bool(sparse.issparse(self.rows))

    @cached_property
    def _apart(self) -> bool:
        """True if sums over rows are computed outside the compiled pass."""
        return self.mass is not None or self.sparse

    @cached_property
    def anchors(self) -> Array:
        """(I − A) ξ̄_i of each client; the centre m of a `standing` row ζ is A ζ plus this."""
        own = self.centers if self.centers.ndim == 2 else np.zeros_like(self.centers[:, 0])
        return self.problem.geometry.anchor(own)

    @cached_property
    def standing(self) -> Array:
        """The rows that a pass reads: ζ, or ζ shifted by ξ̄ of their class if classes have one."""
        one = self.centers.ndim == 2 or not self.problem.geometry.bowl.any()
        return self.rows if one else rowwise.standing(self)

    def center_of(self, client: int, at: slice) -> Array:
        """Return ξ̄ of some rows of a client: (d,), or (n, d) if each class has its own."""
        own = self.centers[client]
        return own if own.ndim == 1 else np.asarray(own[self.problem.places(self.target[at])])

    def scored(self, rows: Array, target: Array) -> Array:
        """Return h of rows that take the places of the group's rows, in their order."""
        labels, score = self.problem.decode(target), self.problem.score
        parts = [slice(first, stop) for first, stop in pairwise(self.bounds)]
        return np.concatenate(
            [score.at(rows[at], self.center_of(i, at), labels[at]) for i, at in enumerate(parts)]
        )

    @cached_property
    def offsets(self) -> Array:
        """The terms added to F_i so that mixtures compare losses or regrets; zero by default."""
        method = self.problem.method
        if self.own is not None:
            return -self.own
        if method.mixture.by != "loss" or method.score is None:
            return np.zeros(len(self.names))
        quadratic = self.problem.score.hessian(self.problem.dims) is not None
        level = self.penalty if quadratic else self.scored(self.rows, self.target)
        return -self.average(-level)

    def average(self, f: Array) -> Array:
        """Return ρβ log mean exp(f/ρβ) of each client."""
        tau, ends = self.problem.method.temperature, self.bounds[1:-1]
        parts = np.split(f, ends)
        each = repeat(None) if self.mass is None else np.split(self.mass, ends)
        return np.array([tilted_mean(part, tau, w) for part, w in zip(parts, each, strict=False)])

    def batches(self) -> Iterator[range]:
        """Yield ranges of consecutive clients with about `_BATCH` rows each."""
        first, bounds = 0, self.bounds.tolist()
        for stop in range(1, len(bounds)):
            if bounds[stop] - bounds[first] >= _BATCH or stop == len(bounds) - 1:
                yield range(first, stop)
                first = stop

    def take(self, indices: Sequence[Array]) -> Group:
        """Return the group with only the given rows of each client (minibatches)."""
        flat = np.concatenate(
            [first + part for first, part in zip(self.bounds, indices, strict=False)]
        )
        bounds = np.concatenate([[0], np.cumsum([len(part) for part in indices])])
        return replace(self, **self._rows(flat), bounds=bounds)

    def select(self, clients: Sequence[int]) -> Group:
        """Return the group with only some of its clients (partial participation)."""
        if len(clients) == len(self.names):
            return self
        parts = [np.arange(self.bounds[i], self.bounds[i + 1]) for i in clients]
        flat = np.concatenate(parts)
        bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return replace(
            self,
            names=tuple(self.names[i] for i in clients),
            **self._rows(flat),
            bounds=bounds,
            centers=self.centers[list(clients)],
            own=None if self.own is None else self.own[list(clients)],
        )

    def _rows(self, flat: Array) -> dict[str, Any]:
        mass = None if self.mass is None else self.mass[flat]
        return {"rows": self.rows[flat], "target": self.target[flat], "mass": mass}

    def priced(self, rho: float) -> Group:
        """Return the clients at another price ρ."""
        return replace(self, problem=self.problem.priced(rho))

    def at_scale(self, scale: float) -> Group:
        """Return the clients with Huber's loss for a fixed scale σ, labels in units of √σ.

        See :mod:`dorfl.linear.scale`. All that depends on neither loss nor labels is shared.
        """
        root = float(np.sqrt(scale))
        _ = self.anchors, self.standing, self.offsets, self.problem.geometry, self.problem.threshold
        problem, group = copy(self.problem), copy(self)  # with all that is cached
        vars(problem).update(loss=HuberInUnit(self.problem.loss.parameter * root, root))
        vars(problem).pop("layout", None)
        vars(group).update(problem=problem, target=self.target / root)
        vars(group).pop("_closed", None)
        return group

    def spent(self, atoms: Atoms) -> Array:
        """Return r̂_i = E_p[c(z, ζ)] + β KL(p‖P̂_i) = −∂F_i/∂ρ, the distance of the worst case."""
        cost = np.add.reduceat(atoms.weights * self.moved(atoms), self.bounds[:-1])
        beta = self.problem.method.beta
        if np.isinf(beta):
            return np.asarray(cost)
        relative = xlogy(atoms.weights, atoms.weights * self.lots)
        return np.asarray(cost + beta * np.add.reduceat(relative, self.bounds[:-1]))

    def moved(self, atoms: Atoms) -> Array:
        """Return c(z, ζ) of every row."""
        method = self.problem.method
        weights = method.cost.weights(self.problem.dims)
        free = np.isfinite(weights)
        cost = 0.5 * ((atoms.rows - self.rows)[:, free] ** 2) @ weights[free]
        if np.isfinite(method.cost.label_price):
            cost = cost + np.where(atoms.target == self.target, 0.0, method.cost.label_price)
        return np.asarray(cost)

    def evaluate(
        self, theta: Array, curvature: str = "none", *, rows: bool = False, keep: bool = False
    ) -> Evaluation:
        """Return F_i and ∇F_i of every client at θ, in one pass over the rows.

        See :meth:`dorfl.linear.base.Oracle.evaluate`. With `keep`, also f, ∂l/∂t and the label of
        every row.

        >>> import dorfl
        >>> from dorfl.federated.training import prepare
        >>> group = prepare([([[1.0], [-2.0]], [1, 0])], dorfl.methods.erm(), intercept=False)
        >>> found = group.evaluate(np.zeros(1), "full", rows=True)
        >>> found.values.round(6), found.gradients, found.curvature, found.weights
        (array([0.693147]), array([[-0.75]]), array([[0.625]]), [array([0.5, 0.5])])
        """
        bends = curvature != "none" and self.problem.bends
        priced, atoms = self.problem.constrained, None
        per_row: tuple[Array, ...] = ()
        if self._ascends:
            atoms = self._ascend(theta)
            found, kept = self._gather(atoms), Kept(atoms.value, atoms.slope, atoms.target)
        else:
            needed = rows or keep or bends or priced or self._apart
            ready, sums, per_row = self._pass(theta, keep=needed)
            found, kept = self._combine(ready, sums, per_row), Kept(*per_row[:3])
        if priced:
            found = found._replace(spent=self.spent(atoms or self._placed(theta, *per_row)))
        if rows or keep:
            found = found._replace(kept=kept)
        if rows:
            weights = np.split(self.weights_of(kept.value), self.bounds[1:-1])
            found = found._replace(weights=weights)
        if bends:
            found = found._replace(curvature=hessian.curvature(self, theta, curvature, kept))
        if bends and rows:
            found = found._replace(heaviest=hessian.heaviest(self, theta, kept))
        return found

    def clipped(self, theta: Array, longest: float, values: tuple[float, float]) -> Evaluation:
        """Return F_i and ∇F_i with f of every row clipped to `values` and its gradient clipped."""
        atoms = self.atoms(theta)
        value = np.clip(atoms.value, *values)
        place = np.sqrt(np.einsum("ij,ij->i", atoms.rows, atoms.rows) + self.problem.intercept)
        length = np.linalg.norm(atoms.slope, axis=1) * place
        slope = atoms.slope * (longest / np.maximum(length, longest))[:, None]
        return self._gather(
            atoms._replace(value=value, weights=self.weights_of(value), slope=slope)
        )

    def sample_weights(self, theta: Array) -> list[Array]:
        """Return p of every client at θ."""
        return np.split(self.weights_of(self.kept(theta).value), self.bounds[1:-1])

    # ── the exact path ──────────────────────────────────────────────────────────────────────────

    def _pass(self, theta: Array, *, keep: bool) -> tuple[Ready, ChunkSums, tuple[Array, ...]]:
        ready, problem = self._ready(theta), self.problem
        effective, rows = ready.effective, self.standing
        if self.sparse:  # the supremum needs the outputs alone
            rows = np.asarray(rows @ effective.T, dtype=np.float64, order="C")
            effective = np.eye(problem.outputs)
        count, (outputs, dims) = len(self.chunks), effective.shape
        sums = ChunkSums(
            np.zeros((count, 3)), np.zeros((count, outputs, dims)), np.zeros((count, outputs)),
            np.zeros((count, outputs, outputs)),
        )  # fmt: skip
        per_row = room(len(rows), outputs) if keep else NO_ROOM
        fixed = (effective, ready.weights, ready.intercept, self.anchors, ready.spread)
        kernel: Any = kernels.one_pass if outputs == 1 else kernels.softmax_pass
        own = self._closed if outputs == 1 else (is_concave(problem.loss, ready.spread),)

        taken = np.zeros(1, dtype=np.int64)  # chunks, by whichever thread is free

        def work() -> None:
            kernel(
                rows, self.target, self.penalty, self.chunks, taken, *fixed, *self._method, *own,
                *sums, keep, *per_row,
            )  # fmt: skip

        together(work, count, rows.size, blas=outputs > 1)
        return ready, sums, per_row

    def _ready(self, theta: Array) -> Ready:
        """Return θ in the form of a pass: θᵀm = (Aᵀθ)ᵀζ + θᵀ(I − A)ξ̄."""
        shape = self.problem.geometry
        weights, intercept = self.problem.split(theta)
        pulled = apply(shape.inverse, weights)
        self._check_finite(weights)
        effective = apply(shape.shrink.T, weights).astype(self.rows.dtype, order="C")
        return Ready(effective, weights, intercept, pulled @ weights.T, pulled)

    @cached_property
    def _method(self) -> tuple[float, float, tuple[float, ...]]:
        """The arguments of every kernel that describe the method."""
        return 1.0 / self.problem.method.temperature, self._label_price, self.problem.threshold

    @cached_property
    def _closed(self) -> tuple[float, ...]:
        """The kernel's code of the loss with one output, and the parameter of the loss."""
        loss = self.problem.loss
        return getattr(kernels, loss.supremum.upper()), loss.parameter

    def _check_finite(self, weights: Array) -> None:
        problem = self.problem
        check_finite(
            problem.loss,
            problem.method.rho,
            lambda rho: problem.priced(rho).geometry.spread(weights),
        )

    @cached_property
    def _label_price(self) -> float:
        method = self.problem.method
        price = method.cost.label_price
        if np.isinf(price) or np.isinf(method.rho):
            return np.inf
        return float(method.rho * price)

    def _combine(self, ready: Ready, sums: ChunkSums, per_row: tuple[Array, ...]) -> Evaluation:
        """Combine chunks into clients, in their order, and apply the chain rule from ζ to θ."""
        problem, clients = self.problem, len(self.names)
        shrink, column = problem.geometry.shrink, int(problem.threshold[0])
        values = np.empty(clients)
        gradient = np.empty((clients, problem.outputs, problem.dims + problem.intercept))
        found = rowwise.sums(self, per_row[0], per_row[1], per_row[3]) if self._apart else None
        if shrink.ndim == 2:
            moments = apply(shrink, (found or sums).moment)
            found, sums = found and found._replace(moment=moments), sums._replace(moment=moments)
            shrink = np.ones(problem.dims)
        back = (shrink, self.anchors, ready.pulled, column)
        if found is not None:
            values, *rest = found
            kernels.chain(*rest, *back, gradient)
        else:
            tau = problem.method.temperature
            kernels.combine(self.chunks, self.counts, tau, *back, *sums, values, gradient)
        return self._evaluation(values, gradient)

    def _evaluation(self, values: Array, gradient: Array, error: float = 0.0) -> Evaluation:
        return Evaluation(values + self.offsets, gradient.reshape(len(self.names), -1), error)

    # ── row by row ──────────────────────────────────────────────────────────────────────────────

    def atoms(self, theta: Array) -> Atoms:
        """Return the atoms of the worst-case distribution and their weights."""
        if self._ascends:
            return self._ascend(theta)
        return self._placed(theta, *self._pass(theta, keep=True)[2])

    @cached_property
    def _ascends(self) -> bool:
        """True if maximisers are found by ascent rather than in closed form."""
        moves = bool(np.isfinite(self.problem.method.rho))
        return self.problem.approximate or (moves and self.tolerance > 0)

    def _placed(
        self, theta: Array, value: Array, slope: Array, target: Array, shift: Array
    ) -> Atoms:
        """Return the maximisers of the rows from the results of a pass."""
        problem, shape = self.problem, self.problem.geometry
        if self.sparse:
            raise ValueError("sparse rows: where each goes is a dense table; give `.toarray()`")
        weights, _ = problem.split(theta)
        rows = apply(shape.shrink, np.asarray(self.standing, np.float64))
        rows += np.repeat(self.anchors, self.counts, axis=0)
        rows += slope @ apply(shape.inverse, weights)
        if any(problem.threshold):
            rows[:, int(problem.threshold[0])] += shift
        return Atoms(rows, target, value, self.weights_of(value), slope, 0.0)

    def weights_of(self, value: Array) -> Array:
        """Return p of every row from its f: softmax(f/ρβ) over the rows of its client."""
        tau = self.problem.method.temperature
        if np.isinf(tau):
            return np.asarray(1.0 / self.lots)
        out = np.repeat(self.average(value), self.counts)
        np.subtract(value, out, out=out)  # in place: there may be many rows
        out /= tau
        np.exp(out, out=out)
        out /= self.lots
        return out

    def kept(self, theta: Array) -> Kept:
        """Return f, ∂l/∂t and the label of every row at its maximiser."""
        if self._ascends:
            atoms = self._ascend(theta)
            return Kept(atoms.value, atoms.slope, atoms.target)
        return Kept(*self._pass(theta, keep=True)[2][:3])

    def _gather(self, atoms: Atoms) -> Evaluation:
        pushed = (atoms.weights[:, None] * atoms.slope)[:, :, None] * atoms.rows[:, None, :]
        gradient = np.add.reduceat(pushed, self.bounds[:-1])
        if self.problem.intercept:
            slope = np.add.reduceat(atoms.weights[:, None] * atoms.slope, self.bounds[:-1])
            gradient = np.concatenate([gradient, slope[:, :, None]], axis=2)
        return self._evaluation(self.average(atoms.value), gradient, atoms.error)

    def _ascend(self, theta: Array) -> Atoms:
        self._check_finite(self.problem.split(theta)[0])
        return rowwise.climb(self, theta, self._label_price)
