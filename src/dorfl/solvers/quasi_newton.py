"""A BFGS model of the curvature of Σ_i λ_i F_i, for whatever λ is current.

Every message ever received is a secant for every mixture: with s = θ' − θ and Y the clients'
gradient differences, the secant of the mixture λ is (s, Yᵀλ). So the pairs are kept per client, and
the model is made anew when λ moves instead of carrying a history that belonged to other mixtures.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dorfl.types import Array

_DAMPED = 0.1  # a secant may lower the believed curvature along it to this share, not further
MEMORY = 60  # secants kept; sqp rarely makes half as many


class Secants(NamedTuple):
    """Steps (m, P) and what they did to each piece's gradient (m, K, P), oldest first."""

    steps: Array
    changes: Array

    def append(self, step: Array, change: Array) -> Secants:
        """One more, the oldest dropped when there are too many."""
        return Secants(
            np.concatenate([self.steps, step[None]])[-MEMORY:],
            np.concatenate([self.changes, change[None]])[-MEMORY:],
        )


def no_secants(count: int, size: int) -> Secants:
    """The empty history."""
    return Secants(np.empty((0, size)), np.empty((0, count, size)))


class Model(NamedTuple):
    """B as a diagonal and damped secant pairs; `products` are B_k s_k when pair k came."""

    diagonal: Array
    steps: Array
    changes: Array
    products: Array

    def multiply(self, vector: Array) -> Array:
        """B v: the BFGS formula unrolled."""
        gained = (self.changes @ vector) / np.einsum("mp,mp->m", self.changes, self.steps)
        lost = (self.products @ vector) / np.einsum("mp,mp->m", self.products, self.steps)
        return np.asarray(self.diagonal * vector + gained @ self.changes - lost @ self.products)

    def solve(self, vectors: Array) -> Array:
        """B⁻¹ v for every row v: the two-loop recursion on all of them at once."""
        q = np.array(vectors, dtype=float)
        inverse = 1.0 / np.einsum("mp,mp->m", self.changes, self.steps)
        alphas = []
        for k in reversed(range(len(inverse))):
            alpha = inverse[k] * (q @ self.steps[k])
            q -= alpha[..., None] * self.changes[k]
            alphas.append(alpha)
        q /= self.diagonal
        for k, alpha in zip(range(len(inverse)), reversed(alphas), strict=True):
            q += (alpha - inverse[k] * (q @ self.changes[k]))[..., None] * self.steps[k]
        return q


def model(secants: Secants, curvature: Array, lam: Array, shift: float = 0.0) -> Model:
    """The BFGS model for the mixture λ, started from the clients' curvature diagonals (K, P).

    Powell's damping keeps every pair's curvature within reach of what the model already believes.
    `shift` adds shift · I (the multiplier of a ball constraint).
    """
    # A column that only a client of little weight has must not look flat: that client would be
    # promised the moon there.
    diagonal = np.maximum(lam @ curvature, 1e-3 * curvature.max(axis=0)) + shift
    diagonal = np.maximum(diagonal, 1e-12 * max(float(diagonal.max()), 1e-300))
    steps, count = secants.steps, len(secants.steps)
    seen = np.einsum("k,mkp->mp", lam, secants.changes) + shift * steps
    if count:
        # Curvature falls as a classifier grows confident: scale the guess to what was last seen.
        last = float(steps[-1] @ seen[-1]) / float(steps[-1] @ (diagonal * steps[-1]))
        diagonal = diagonal * min(max(last, 1e-3), 1.0)
    changes, products = np.empty_like(steps), np.empty_like(steps)
    for k in range(count):
        bent = Model(diagonal, steps[:k], changes[:k], products[:k]).multiply(steps[k])
        curve, believed = float(steps[k] @ seen[k]), float(steps[k] @ bent)
        mix = 1.0
        if curve < _DAMPED * believed:
            mix = (1.0 - _DAMPED) * believed / (believed - curve)
        changes[k] = mix * seen[k] + (1.0 - mix) * bent
        products[k] = bent
    return Model(diagonal, steps, changes, products)
