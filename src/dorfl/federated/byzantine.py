"""Detection of Byzantine clients by their gradients: a leave-group-out random-effects outlier test.

Consistent reports can still be false: flipped labels, or an invented convex risk. To move the
model, such clients need gradients that the others do not have. For a candidate set A let δ be the
Newton step to the minimum of the others' mean risk, H the curvature of that risk, and B the mean
curvature of all clients. After the step a client has the gradient g_i = ∇F_i + ∇²F_i δ. It would
move the others by B⁻¹ g_i, which costs them ½ d_i² with d_i = ‖B⁻¹ g_i‖_H. If all rows have one
distribution, d_i² ≈ P / n_i; differences between clients add h², estimated as the mean over the m
clients that are not in A (the between-study variance of DerSimonian and Laird [1]_). The clients in
A are outliers [2]_ if

    d_i² > 9 (1 + 3/m) (P / n_i + h²)     for every i in A,

where 1 + 3/m allows for the error of h² with few clients. Candidates are sets of clients with
similar gradients, large sets first. A set that reaches half of the limit is tested: training goes
on without it, and its clients are used again if they then are no outliers. Diagonals of curvatures
are limited to three times that of a client that must be honest, because a large curvature would
hide a gradient.

A Byzantine client that is not detected moves the model by its share λ_i: the others' risk rises by
about ½ λ_i² d_i².

References
----------
.. [1] R. DerSimonian and N. Laird, *Meta-analysis in clinical trials*, 1986.
.. [2] W. Viechtbauer and M. Cheung, *Outlier and influence diagnostics for meta-analysis*, 2010.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

import numpy as np

from dorfl.federated.options import Options
from dorfl.linear import curvature
from dorfl.linear.curvature import Base, Shape
from dorfl.objective.mixture import Mixture
from dorfl.support.types import Array

_CUTOFF = 3.0  # standard deviations of d_i beyond which a client is an outlier
_MAX_CURVATURE = 3.0  # times the curvature of a client that must be honest
_STARTS = 32  # clients around which candidate sets are formed


class Detection(NamedTuple):
    """State of the detection."""

    most: int = 0  # largest number of Byzantine clients
    leave: bool = False  # whether training goes on without them, or only names them at the end
    outlying: Mapping[str, str] = {}  # clients that are outliers at present, with the reason
    # sets of clients that were tested and are no outliers
    cleared: tuple[tuple[str, ...], ...] = ()

    def clear(self) -> Detection:
        """Return the detection without outlying clients; those there were are not tested again."""
        return self._replace(outlying={}, cleared=(*self.cleared, tuple(self.outlying)))


def plan_exclusion(options: Options, mixture: Mixture, count: int) -> Detection:
    """Return the detection that the options ask for; raise a ValueError if it is impossible."""
    if options.liars > 0.0 and mixture.adversarial:
        raise ValueError(
            "liars: under an agnostic mixture one client can decide alone, and a high risk looks "
            'like a false one; use mixture="fixed", or a cap and trim'
        )
    if options.liars > 0.0 and not _comparable(options):
        raise ValueError("liars: detection needs reports of all clients on all rows, without noise")
    return Detection(int(options.liars * count + 1e-9), leave=True)


def plan_naming(options: Options, mixture: Mixture, count: int) -> Detection:
    """Return a detection that names up to a quarter of the clients, if possible."""
    can = _comparable(options) and not mixture.adversarial
    return Detection(count // 4 if can else 0)


def _comparable(options: Options) -> bool:
    return options.all_answer and options.privacy is None


class Outlying(NamedTuple):
    """Result of the test for a set of clients."""

    clients: tuple[int, ...] = ()  # indices of the clients
    times: tuple[float, ...] = ()  # for each, d_i over its standard deviation
    sure: bool = False  # whether all of them are outliers
    harm: float = 0.0  # by how much the others' mean risk would fall without them, to second order


class Gradients(NamedTuple):
    """Gradients and curvatures of all clients, penalties included, where training would end."""

    vectors: Array  # (N, P) ∇F_i
    curvatures: Array  # (N, numbers) packed and limited ∇²F_i
    sizes: tuple[int, ...]
    rows: Array  # (N,) numbers of rows
    metric: Base

    def without(self, suspects: tuple[int, ...]) -> Outlying:
        """Test the clients `suspects` against the others."""
        others = np.delete(np.arange(len(self.rows)), suspects)
        share = self.rows[others] / self.rows[others].sum()
        theirs, gradient = (
            curvature.mix(self.curvatures[others], share),
            share @ self.vectors[others],
        )
        move = -curvature.base(theirs, self.sizes, self.metric.extra).solve(gradient)
        there = self.vectors + [
            curvature.multiply(own, self.sizes, move) for own in self.curvatures
        ]
        leads = self.metric.solve(there)
        squared = (leads * curvature.multiply(theirs, self.sizes, leads)).sum(axis=1)
        noise = self.vectors.shape[1] / self.rows
        differ = np.maximum(squared - noise, 0.0)[others].mean()
        times = np.sqrt(squared / (noise + differ))[list(suspects)]
        sure = bool(times.min() > _CUTOFF * np.sqrt(1.0 + 3.0 / len(others)))
        return Outlying(suspects, tuple(times.tolist()), sure, -0.5 * float(gradient @ move))

    def suspects(self, most: int) -> list[tuple[int, ...]]:
        """Return sets of clients with similar gradients, of at most `most` clients, large first."""
        products = self.metric.solve(self.vectors) @ self.vectors.T
        distance = np.diag(products)[:, None] + np.diag(products) - 2.0 * products
        starts = np.argsort(-distance.sum(axis=1), kind="stable")[:_STARTS]
        nearest = np.argsort(distance[starts], axis=1, kind="stable")
        sets = [tuple(sorted(row[:n].tolist())) for n in range(most, 0, -1) for row in nearest]
        return list(dict.fromkeys(sets))


def gradients_of(
    vectors: Array, curvatures: Array | None, shape: Shape, rows: Array, most: int
) -> Gradients:
    """Return the clients' gradients and limited curvatures.

    Of the reports, `most` may be false. Without curvature all clients get the same.

    >>> vectors = np.array([[0.1, 0.0], [0.0, 0.1], [-0.1, 0.0], [0.0, -0.1], [3.0, 0.0]])
    >>> found = gradients_of(vectors, None, Shape(1, 2), np.full(5, 1000), 1)
    >>> found.without((4,)).sure, found.without((0,)).sure
    (True, False)
    """
    if curvatures is None:
        curvatures = np.ones((len(vectors), shape.size))
    sizes, curvatures = shape.sizes_of(curvatures), _limited(curvatures, shape, most)
    floor = np.full(shape.size, 1e-9 * max(float(curvatures.max()), 1e-300))
    metric = curvature.base(curvatures.mean(axis=0), sizes, floor)
    return Gradients(vectors, curvatures, sizes, rows, metric)


def find(gradients: Gradients, most: int, cleared: Container[tuple[int, ...]] = ()) -> Outlying:
    """Return the largest set of clients that reaches half of the limit, and of these the worst."""
    best = Outlying()
    for suspects in gradients.suspects(most):
        if len(suspects) < len(best.clients):
            break
        if suspects not in cleared:
            found = gradients.without(suspects)
            far = 0.5 * _CUTOFF * np.sqrt(1.0 + 3.0 / (len(gradients.rows) - len(suspects)))
            best = max(best, found, key=lambda one: min(one.times, default=far))
    return best


def _limited(curvatures: Array, shape: Shape, most: int) -> Array:
    """Limit the diagonals of curvatures, of which `most` may be false."""
    sizes = shape.sizes_of(curvatures)
    honest = np.sort(curvature.diagonal(curvatures, sizes).astype(np.float64), axis=0)[-most - 1]
    limit = _MAX_CURVATURE * np.maximum(honest, 1e-9 * max(float(honest.max()), 1e-300))
    return np.array([curvature.limited(one, sizes, limit) for one in curvatures])
