"""A BFGS model of the curvature of Σ_i λ_i F_i, for whatever λ is current.

Every report is a secant for every mixture: with s = θ' − θ and Y the clients' gradient differences,
the secant of the mixture λ is (s, Yᵀλ). Pairs are kept per client, and the model is made anew when
λ moves. It starts from the curvature that clients reported, and Powell's damping keeps it positive
definite (J. Nocedal and S. Wright, *Numerical Optimization*, 2006, procedure 18.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dorfl.linear import curvature as packing
from dorfl.linear.curvature import Base, Sizes
from dorfl.support.types import Array

MEMORY = 60  # secants kept; trainings rarely make half as many
DAMPED = 0.1  # share of its curvature that a step keeps at least (Nocedal and Wright: 0.2)
SLACK = 1e-3  # least factor that the last secant scales a diagonal curvature by


class Secants(NamedTuple):
    """Steps and the changes of every piece's gradient along them, oldest first."""

    steps: Array  # (m, P)
    changes: Array  # (m, K, P)

    def append(self, step: Array, change: Array) -> Secants:
        """Return the secants with one more, without the oldest if there are too many."""
        if float(step @ step) < 1e-250:  # no step shows nothing
            return self
        return Secants(
            np.concatenate([self.steps, step[None]])[-MEMORY:],
            np.concatenate([self.changes, change[None]])[-MEMORY:],
        )


def no_secants(count: int, size: int) -> Secants:
    """Return an empty history of `count` pieces with `size` parameters."""
    return Secants(np.empty((0, size)), np.empty((0, count, size)))


class Model(NamedTuple):
    """B = D + Σ_k c_k c_kᵀ − Σ_k p_k p_kᵀ and the steps s_k of its inverse, with s_kᵀc_k = 1.

    With B_k what B was at the pair (s, y): c = y/√yᵀs, p = B_k s/√sᵀB_k s and s_k = s/√yᵀs.
    """

    base: Base
    steps: Array  # (m, P) s_k
    changes: Array  # (m, P) c_k
    products: Array  # (m, P) p_k

    def multiply(self, vectors: Array) -> Array:
        """Return B v of every row v."""
        gained = (vectors @ self.changes.T) @ self.changes
        lost = (vectors @ self.products.T) @ self.products
        return np.asarray(self.base.multiply(vectors) + gained - lost)

    def solve(self, vectors: Array) -> Array:
        """Return B⁻¹ v of every row v, by the two-loop recursion (algorithm 7.4, ibid.)."""
        table, kept = np.array(vectors, dtype=float, ndmin=2), []
        for step, change in zip(self.steps[::-1], self.changes[::-1], strict=True):
            kept.append(table @ step)
            table -= np.outer(kept[-1], change)
        table = self.base.solve(table)
        for step, change in zip(self.steps, self.changes, strict=True):
            table += np.outer(kept.pop() - table @ change, step)
        return np.asarray(table.reshape(vectors.shape))


def model(packed: Array, sizes: Sizes, steps: Array, changes: Array, damping: float = 1.0) -> Model:
    """Return the BFGS model, times the damping, of a packed curvature and its secants (m, P)."""
    scale = 1.0
    if len(steps) and max(sizes) == 1:
        # Curvature falls as a classifier grows confident: scale the guess to the last secant.
        last = float(steps[-1] @ changes[-1]) / float(steps[-1] @ (packed * steps[-1]))
        scale = min(max(last, SLACK), 1.0)
    base = packing.base(packed, sizes, 0.0, damping * scale)
    found = Model(base, *(np.empty((0, steps.shape[1])) for _ in range(3)))
    for step, seen, start in zip(steps, damping * changes, base.multiply(steps), strict=True):
        bent = start + (found.changes @ step) @ found.changes
        bent -= (found.products @ step) @ found.products
        curve, believed, mix = float(step @ seen), float(step @ bent), 1.0
        if curve < DAMPED * believed:
            mix = (1.0 - DAMPED) * believed / (believed - curve)
        change = mix * seen + (1.0 - mix) * bent
        root = np.sqrt(step @ change)
        rows = step / root, change / root, bent / np.sqrt(believed)
        found = Model(base, *(np.vstack(pair) for pair in zip(found[1:], rows, strict=True)))
    return found
