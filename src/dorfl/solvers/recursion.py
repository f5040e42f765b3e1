"""The loops of :mod:`dorfl.solvers.quasi_newton`, compiled: pairs depend on those before."""

from __future__ import annotations

import numpy as np
from numba import njit

from dorfl.support.types import Array

_DAMPED = 0.1  # a secant may lower the believed curvature along it to this share, not further


@njit(cache=True, error_model="numpy")
def pairs(bases: Array, steps: Array, seen: Array) -> tuple[Array, Array, Array]:
    """The vectors of :class:`Model`, pair by pair; `bases` has D s of every step."""
    units, changes, products = np.empty_like(steps), np.empty_like(steps), np.empty_like(steps)
    for k in range(len(steps)):
        step = steps[k]
        bent = bases[k].copy()
        for i in range(k):
            bent += (changes[i] @ step) * changes[i] - (products[i] @ step) * products[i]
        curve, believed = step @ seen[k], step @ bent
        mix = 1.0
        if curve < _DAMPED * believed:
            mix = (1.0 - _DAMPED) * believed / (believed - curve)
        change = mix * seen[k] + (1.0 - mix) * bent
        root = np.sqrt(step @ change)
        units[k], changes[k], products[k] = step / root, change / root, bent / np.sqrt(believed)
    return units, changes, products


@njit(cache=True, error_model="numpy")
def backward(steps: Array, changes: Array, vectors: Array) -> Array:
    """The first loop, in place of every row of `vectors`; what it took off is returned."""
    kept = np.empty((len(vectors), len(steps)))
    for row in range(len(vectors)):
        for k in range(len(steps) - 1, -1, -1):
            kept[row, k] = steps[k] @ vectors[row]
            vectors[row] -= kept[row, k] * changes[k]
    return kept


@njit(cache=True, error_model="numpy")
def forward(steps: Array, changes: Array, kept: Array, vectors: Array) -> None:
    """The second loop, in place of every row of `vectors`."""
    for row in range(len(vectors)):
        for k in range(len(steps)):
            vectors[row] += (kept[row, k] - changes[k] @ vectors[row]) * steps[k]
