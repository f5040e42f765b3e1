"""The robust risk of a client, F_i(θ) = ρβ log mean_i exp(f(θ, ζ)/ρβ), its gradient, its weights.

By Danskin ∇F_i(θ) = Σ_j p_j ∇_θ l(θ, z_j), with z_j the row at its worst and p = softmax(f/ρβ) the
sample weights: 1/n for an ordinary row, nearly 0 for a suspected outlier. Everything stays in the
log domain, so that nothing overflows.

A :class:`Group` holds the rows of the clients that live in this process, stacked once. A site of
its own is a group of one, and gets the same numbers to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.special import xlogy

from dorfl.objective.losses import decode, encode
from dorfl.objective.mixture import tilted_mean
from dorfl.objective.scores import Custom, Quadratic, Threshold
from dorfl.oracle import kernels
from dorfl.oracle.inner import apply, ascend, check_finite, is_concave
from dorfl.oracle.problem import Problem
from dorfl.support.threads import share
from dorfl.support.types import Array


class Risk(NamedTuple):
    """One client's robust risk: value F, gradient ∇F, sample weights p (they sum to 1)."""

    value: float
    gradient: Array
    sample_weights: Array


class Risks(NamedTuple):
    """The risks of a group of clients: values (clients,), gradients (clients, parameters)."""

    values: Array
    gradients: Array
    error: float = 0.0  # bound on what an approximate supremum may have missed


class Atoms(NamedTuple):
    """Every row at its worst: where it went, with which label, its f, and its sample weight."""

    rows: Array
    target: Array
    value: Array
    weights: Array
    slope: Array
    error: float


@dataclass(frozen=True, eq=False)
class Group:
    """Clients that live in one process: rows stacked, and what never changes computed once."""

    problem: Problem
    names: tuple[str, ...]
    rows: Array  # (n, d) float32 or float64, C order
    target: Array  # (n,) float64, as losses.encode gives it
    bounds: Array  # (clients + 1,) where each client's rows begin and end
    centers: Array  # (clients, d) ξ̄ of a quadratic score, else zeros
    penalty: Array = field(init=False)
    chunks: Array = field(init=False)
    epsilon: float = 0.0  # how far from its maximiser a row may be left (0: the exact solution)

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalty", self._penalty())
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
    def anchors(self) -> Array:
        """(I − A) ξ̄_i of each client."""
        return self.problem.geometry.anchor(self.centers)

    def _penalty(self) -> Array:
        problem, score = self.problem, self.problem.method.score
        rows = self.rows
        out = np.zeros(len(rows))
        if isinstance(score, Quadratic):
            blocks = [
                (slice(start, min(start + 65536, stop)), self.centers[i])
                for i, (first, stop) in enumerate(pairwise(self.bounds))
                for start in range(first, stop, 65536)
            ]

            def work(part: slice) -> None:
                for at, center in blocks[part]:
                    out[at] = problem.geometry.penalty(rows[at], center)

            share(work, len(blocks), rows.size)
        elif isinstance(score, Custom) and not problem.approximate:
            out = score.at(np.asarray(rows, dtype=np.float64), self._labels(self.target))
        return out

    def _labels(self, target: Array) -> Array:
        return np.asarray(decode(self.problem.loss, target, self.problem.classes))

    def _marked(self, target: Array) -> Array:
        score = self.problem.method.score
        assert isinstance(score, Threshold)
        return np.asarray(self._labels(target) == score.label)

    @cached_property
    def offsets(self) -> Array:
        """What is added to F_i so that mixtures compare losses alone; zero unless they should."""
        method = self.problem.method
        if method.mixture.by != "loss" or method.score is None:
            return np.zeros(len(self.names))
        score = method.score
        if isinstance(score, Threshold):
            level = score.at(self.rows, self._marked(self.target))
        elif isinstance(score, Custom):
            level = score.at(np.asarray(self.rows, np.float64), self._labels(self.target))
        else:
            level = self.penalty
        return -self.average(-level)

    def average(self, f: Array) -> Array:
        """ρβ log mean exp(f/ρβ) of each client."""
        tau = self.problem.method.temperature
        return np.array([tilted_mean(part, tau) for part in np.split(f, self.bounds[1:-1])])

    def take(self, indices: Sequence[Array]) -> Group:
        """The group with only the given rows of each client (minibatches)."""
        flat = np.concatenate(
            [first + part for first, part in zip(self.bounds, indices, strict=False)]
        )
        bounds = np.concatenate([[0], np.cumsum([len(part) for part in indices])])
        return replace(self, rows=self.rows[flat], target=self.target[flat], bounds=bounds)

    def select(self, clients: Sequence[int]) -> Group:
        """The group with only some of its clients (partial participation)."""
        if len(clients) == len(self.names):
            return self
        parts = [np.arange(self.bounds[i], self.bounds[i + 1]) for i in clients]
        flat = np.concatenate(parts)
        bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return replace(
            self,
            names=tuple(self.names[i] for i in clients),
            rows=self.rows[flat],
            target=self.target[flat],
            bounds=bounds,
            centers=self.centers[list(clients)],
        )

    def priced(self, rho: float) -> Group:
        """The same clients at another price ρ."""
        return replace(self, problem=self.problem.priced(rho))

    def at(self, theta: Array) -> tuple[Group, Array]:
        """The clients at the price that (θ, ρ) names in the constrained problem, and θ alone."""
        if self.problem.constrained and theta.size > self.problem.size:
            return self.priced(float(theta[-1])), theta[:-1]
        return self, theta

    def spent(self, atoms: Atoms) -> Array:
        """r̂_i = E_p[c(z, ζ)] + β KL(p‖P̂_i) = −∂F_i/∂ρ: how far each client's worst case is away."""
        cost = np.add.reduceat(atoms.weights * self.moved(atoms), self.bounds[:-1])
        beta = self.problem.method.beta
        if np.isinf(beta):
            return np.asarray(cost)
        relative = xlogy(atoms.weights, atoms.weights * np.repeat(self.counts, self.counts))
        return np.asarray(cost + beta * np.add.reduceat(relative, self.bounds[:-1]))

    def moved(self, atoms: Atoms) -> Array:
        """c(z, ζ) of every row."""
        method = self.problem.method
        weights = method.cost.weights(self.problem.dims)
        free = np.isfinite(weights)
        cost = 0.5 * ((atoms.rows - self.rows)[:, free] ** 2) @ weights[free]
        if np.isfinite(method.cost.label_price):
            cost = cost + np.where(atoms.target == self.target, 0.0, method.cost.label_price)
        return np.asarray(cost)

    def risks(self, theta: Array) -> Risks:
        """F_i and ∇F_i of every client at θ; in the constrained problem at (θ, ρ)."""
        group, alone = self.at(theta)
        if group is not self:
            plain, spent = group.risks(alone), group.spent(group.atoms(alone))
            return plain._replace(gradients=np.column_stack([plain.gradients, -spent]))
        if self.problem.approximate or self.epsilon > 0:
            return self._gather(self.atoms(theta))
        sums, _ = self._pass(theta, keep=False)
        return self._combine(theta, sums)

    def clipped(self, theta: Array, longest: float, values: tuple[float, float]) -> Risks:
        """F_i and ∇F_i with every row's f kept in `values`, its gradient no longer than given."""
        atoms = self.atoms(theta)
        value = np.clip(atoms.value, *values)
        place = np.sqrt(np.einsum("ij,ij->i", atoms.rows, atoms.rows) + self.problem.intercept)
        length = np.linalg.norm(atoms.slope, axis=1) * place
        slope = atoms.slope * (longest / np.maximum(length, longest))[:, None]
        return self._gather(
            atoms._replace(value=value, weights=self.weights_of(value), slope=slope)
        )

    def sample_weights(self, theta: Array) -> list[Array]:
        """p of every client at θ."""
        value, _, _ = self.values_and_slopes(theta)
        return np.split(self.weights_of(value), self.bounds[1:-1])

    # ── the exact path ──────────────────────────────────────────────────────────────────────────

    def _pass(self, theta: Array, *, keep: bool) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        problem, method, loss = self.problem, self.problem.method, self.problem.loss
        weights, intercept = problem.split(theta)
        shape = problem.geometry
        spread = shape.spread(weights)
        self._check_finite(weights)
        # θᵀm = (Aᵀθ)ᵀζ + θᵀ(I − A)ξ̄: the model meets the rows as they are.
        effective = apply(shape.shrink.T, weights).astype(self.rows.dtype)
        # Not by BLAS, whose rounding depends on how many clients there are.
        bias = intercept + np.einsum("id,od->io", self.anchors, weights)
        count, outputs, dims = len(self.chunks), problem.outputs, problem.dims
        sums = (
            np.empty(count),
            np.empty(count),
            np.zeros((count, outputs, dims)),
            np.zeros((count, outputs)),
            np.zeros((count, outputs, outputs)),
            np.empty(count),
        )
        n = len(self.rows) if keep else 0
        per_row = (np.empty(n), np.empty((n, outputs)), np.empty(n), np.empty(n))
        fixed = (
            np.ascontiguousarray(effective), np.ascontiguousarray(bias),
            np.ascontiguousarray(spread), 1.0 / method.temperature, loss.kind, loss.delta,
            self._label_price, is_concave(loss, spread), problem.threshold, keep,
        )  # fmt: skip

        def work(part: slice) -> None:
            kernels.one_pass(
                self.rows, self.target, self.penalty, self.chunks, part.start, part.stop, *fixed,
                *sums, *per_row,
            )  # fmt: skip

        share(work, count, self.rows.size, blas=outputs > 1)
        return sums, per_row

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

    def _combine(self, theta: Array, sums: tuple[Array, ...]) -> Risks:
        """Chunks into clients, in the chunks' order; then the chain rule from ζ back to θ."""
        problem, tau = self.problem, self.problem.method.temperature
        values, moment, slope, square, shift = kernels.combine(
            self.chunks, self.counts, 1.0 / tau, *sums
        )
        weights, _ = problem.split(theta)
        shape = problem.geometry
        gradient = apply(shape.shrink, moment)
        gradient += slope[:, :, None] * self.anchors[:, None, :]
        gradient += square @ apply(shape.inverse, weights)
        if isinstance(problem.method.score, Threshold):
            gradient[:, 0, problem.method.score.column] += shift
        return self._risks(values if np.isinf(tau) else tau * values, gradient, slope)

    def _risks(self, values: Array, gradient: Array, slope: Array, error: float = 0.0) -> Risks:
        if self.problem.intercept:
            gradient = np.concatenate([gradient, slope[:, :, None]], axis=2)
        return Risks(values + self.offsets, gradient.reshape(len(self.names), -1), error)

    # ── row by row ──────────────────────────────────────────────────────────────────────────────

    def atoms(self, theta: Array) -> Atoms:
        """Every row at its worst: the atoms of the worst-case distribution and their weights."""
        problem = self.problem
        if problem.approximate or self.epsilon > 0:
            value, rows, target, slope, error = self._ascend(theta)
        else:
            _, (value, slope, target, shift) = self._pass(theta, keep=True)
            weights, _ = problem.split(theta)
            shape, error = problem.geometry, 0.0
            rows = apply(shape.shrink, np.asarray(self.rows, np.float64))
            rows += np.repeat(self.anchors, self.counts, axis=0)
            rows += slope @ apply(shape.inverse, weights)
            if isinstance(problem.method.score, Threshold):
                rows[:, problem.method.score.column] += shift
        return Atoms(rows, target, value, self.weights_of(value), slope, error)

    def weights_of(self, value: Array) -> Array:
        """p of every row from its f: softmax(f/ρβ) over its client's rows."""
        tau = self.problem.method.temperature
        level = np.repeat(self.average(value), self.counts)
        tilt = np.zeros(len(value)) if np.isinf(tau) else (value - level) / tau
        return np.asarray(np.exp(tilt) / np.repeat(self.counts, self.counts))

    def values_and_slopes(self, theta: Array) -> tuple[Array, Array, Array]:
        """f, g and the label of every row at its worst, without its place."""
        if self.problem.approximate or self.epsilon > 0:
            atoms = self.atoms(theta)
            return atoms.value, atoms.slope, atoms.target
        _, (value, slope, target, _) = self._pass(theta, keep=True)
        return value, slope, target

    def _gather(self, atoms: Atoms) -> Risks:
        pushed = (atoms.weights[:, None] * atoms.slope)[:, :, None] * atoms.rows[:, None, :]
        gradient = np.add.reduceat(pushed, self.bounds[:-1])
        slope = np.add.reduceat(atoms.weights[:, None] * atoms.slope, self.bounds[:-1])
        return self._risks(self.average(atoms.value), gradient, slope, atoms.error)

    def _ascend(self, theta: Array) -> tuple[Array, Array, Array, Array, float]:
        """The supremum by ascent, over the labels too where they have a price."""
        problem, method = self.problem, self.problem.method
        weights, intercept = problem.split(theta)
        if np.isinf(method.rho):  # nothing moves: epsilon has nothing to leave unfinished
            return replace(self, epsilon=0.0)._resting(theta)
        self._check_finite(weights)
        stiffness = method.rho * method.cost.weights(problem.dims)
        centers = np.repeat(self.centers, self.counts, axis=0)
        rows = np.asarray(self.rows, np.float64)
        labels = [self.target]
        if np.isfinite(self._label_price):
            codes = encode(problem.loss, problem.classes, problem.classes)
            labels += [np.full_like(self.target, code) for code in codes]
        best: tuple[Array, Array, Array, Array, Array] | None = None
        for target in labels:
            h, dh, dent = self._score_functions(target, centers, stiffness)
            found = ascend(
                weights, intercept, rows, target, problem.loss, stiffness, h, dh,
                dent=dent, distance=self.epsilon,
            )  # fmt: skip
            toll = np.where(target == self.target, 0.0, self._label_price)
            value = found.value - toll
            candidate = (value, found.atoms, target, found.slope, found.error)
            if best is None:
                best = candidate
            else:
                wins = value > best[0]
                best = (
                    np.where(wins, value, best[0]),
                    np.where(wins[:, None], found.atoms, best[1]),
                    np.where(wins, target, best[2]),
                    np.where(wins[:, None], found.slope, best[3]),
                    np.maximum(found.error, best[4]),
                )
        assert best is not None
        return (*best[:4], float(best[4].max()))

    def _resting(self, theta: Array) -> tuple[Array, Array, Array, Array, float]:
        atoms = self.atoms(theta)
        return atoms.value, atoms.rows, atoms.target, atoms.slope, 0.0

    def _score_functions(self, target: Array, centers: Array, stiffness: Array) -> Any:
        """h and ∇h of the rows, and how far h is from convex in units of the cost."""
        score = self.problem.method.score
        if isinstance(score, Custom):
            labels = self._labels(target)
            dent = 0.0 if score.convex else np.inf
            return (lambda x: score.at(x, labels)), (lambda x: score.gradient(x, labels)), dent
        if isinstance(score, Threshold):
            marked = self._marked(target)
            # σ'' is never below −1/(6√3)
            dent = score.weight / score.softness**2 / (6 * np.sqrt(3)) / stiffness[score.column]
            return (lambda x: score.at(x, marked)), (lambda x: score.gradient(x, marked)), dent
        if isinstance(score, Quadratic):
            bend = 2.0 * score.weight * score.shape(self.problem.dims)
            return (lambda x: score.at(x, centers)), (lambda x: apply(bend, x - centers)), 0.0
        return (lambda x: np.zeros(len(x))), np.zeros_like, 0.0
