"""A BFGS model of the curvature of Σ_i λ_i F_i, for whatever λ is current.

Every message ever received is a secant for every mixture: with s = θ' − θ and Y the clients'
gradient differences, the secant of the mixture λ is (s, Yᵀλ). So the pairs are kept per client, and
the model is made anew when λ moves instead of carrying a history that belonged to other mixtures.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dorfl.linear import curvature as packing
from dorfl.linear.curvature import Base, Sizes
from dorfl.support.lazy import LazyModule
from dorfl.support.types import Array

_loops = LazyModule("dorfl.solvers.recursion")
MEMORY = 60  # secants kept; sqp rarely makes half as many


class Secants(NamedTuple):
    """Steps (m, P) and what they did to each piece's gradient (m, K, P), oldest first."""

    steps: Array
    changes: Array

    def append(self, step: Array, change: Array) -> Secants:
        """One more, the oldest dropped when there are too many; no step at all shows nothing."""
        if float(step @ step) < 1e-250:
            return self
        return Secants(
            np.concatenate([self.steps, step[None]])[-MEMORY:],
            np.concatenate([self.changes, change[None]])[-MEMORY:],
        )


def no_secants(count: int, size: int) -> Secants:
    """The empty history."""
    return Secants(np.empty((0, size)), np.empty((0, count, size)))


class Model(NamedTuple):
    """B = D + Σ_k c_k c_kᵀ − Σ_k p_k p_kᵀ, and what its inverse needs: s_kᵀc_k = 1.

    Of the BFGS pair (s, y) at which B was B_k: c = y/√yᵀs, p = B_k s/√sᵀB_k s, and s/√yᵀs is kept.
    """

    base: Base
    steps: Array
    changes: Array
    products: Array

    def multiply(self, vectors: Array) -> Array:
        """B v, for every row v where there are several."""
        gained = (vectors @ self.changes.T) @ self.changes
        lost = (vectors @ self.products.T) @ self.products
        return np.asarray(self.base.multiply(vectors) + gained - lost)

    def solve(self, vectors: Array) -> Array:
        """B⁻¹ v, for every row v where there are several: the two-loop recursion."""
        table = np.array(vectors, dtype=float, ndmin=2)
        kept = _loops.backward(self.steps, self.changes, table)
        table = self.base.solve(table)
        _loops.forward(self.steps, self.changes, kept, table)
        return np.asarray(table.reshape(vectors.shape))


def model(packed: Array, sizes: Sizes, floor: Array, steps: Array, changes: Array) -> Model:
    """The BFGS model of one function, from its packed curvature and its secants, oldest first.

    Powell's damping keeps every pair's curvature within reach of what the model already believes.
    `floor` is the least that the curvature's diagonal is taken for.
    """
    scale = 1.0
    if len(steps) and max(sizes) == 1:
        # Curvature falls as a classifier grows confident: scale the guess to what was last seen.
        guess = np.maximum(packed, floor)
        last = float(steps[-1] @ changes[-1]) / float(steps[-1] @ (guess * steps[-1]))
        scale = min(max(last, 1e-3), 1.0)
    start = packing.base(packed, sizes, floor, scale)
    return Model(start, *_loops.pairs(start.multiply(steps), steps, changes))
