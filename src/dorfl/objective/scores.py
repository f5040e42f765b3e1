"""Outlier scores h(ξ): large where a row is suspect. Training is on l − h: suspects count less.

Only the score protects against outliers: with h = 0 the tilt makes the worst rows count *more*.
A quadratic score weighs a row by exp(−ρ₂‖ζ − ξ̄‖² / (β (ρ + 2ρ₂))).

>>> from dorfl import scores
>>> scores.quadratic(0.5, center=[0.0, 0.0]).weight
0.5
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dorfl.support.types import Array


@dataclass(frozen=True, eq=False)
class Quadratic:
    """h(x) = weight · (x − center)ᵀ V (x − center); see :func:`quadratic`."""

    weight: float
    center: str | Array | dict[str, Array] = "auto"
    matrix: Array | None = None

    def shape(self, dims: int) -> Array:
        """V for `dims` columns: its diagonal (dims,) or the whole (dims, dims)."""
        if self.matrix is None:
            return np.ones(dims)
        if self.matrix.shape[0] != dims:
            raise ValueError(
                f"quadratic(matrix=…): for {self.matrix.shape[0]} columns, the rows have {dims}"
            )
        return self.matrix

    def at(self, rows: Array, center: Array) -> Array:
        """h of every row."""
        offset = rows - center
        shape = self.shape(rows.shape[1])
        bent = offset * shape if shape.ndim == 1 else offset @ shape
        return np.asarray(self.weight * np.einsum("ij,ij->i", offset, bent))


@dataclass(frozen=True)
class Threshold:
    """h(x) = weight · σ((x_k − level) / softness) for one label; see :func:`threshold`."""

    weight: float
    column: int
    level: float
    softness: float
    label: Any

    def at(self, rows: Array, marked: Array) -> Array:
        """h of every row; `marked` says which rows carry the label."""
        z = (rows[:, self.column] - self.level) / self.softness
        return np.where(marked, self.weight * np.exp(-np.logaddexp(0.0, -z)), 0.0)

    def gradient(self, rows: Array, marked: Array) -> Array:
        """∇h of every row."""
        share = self.at(rows, marked) / self.weight
        out = np.zeros_like(rows)
        out[:, self.column] = self.weight / self.softness * share * (1.0 - share) * marked
        return out


@dataclass(frozen=True)
class Custom:
    """Any function of rows and labels; see :func:`custom`."""

    function: Callable[[Array, Array], Array]
    derivative: Callable[[Array, Array], Array] | None
    convex: bool

    def at(self, rows: Array, labels: Array) -> Array:
        """h of every row."""
        h = np.asarray(self.function(rows, labels), dtype=float)
        if h.shape != (len(rows),):
            raise ValueError(
                f"custom score: {len(rows)} rows gave an answer of shape {h.shape}; "
                "the function takes (rows, labels) and returns one number per row"
            )
        if not np.isfinite(h).all():
            raise ValueError("custom score: the function returned NaN or an infinity")
        return h

    def gradient(self, rows: Array, labels: Array) -> Array:
        """∇h of every row: as given, or by central differences."""
        if self.derivative is not None:
            return np.asarray(self.derivative(rows, labels), dtype=float)
        out = np.empty_like(rows)
        for k in range(rows.shape[1]):
            step = np.cbrt(np.finfo(float).eps) * np.maximum(1.0, np.abs(rows[:, k]))
            up, down = rows.copy(), rows.copy()
            up[:, k] += step
            down[:, k] -= step
            out[:, k] = (self.at(up, labels) - self.at(down, labels)) / (2.0 * step)
        return out


Score: TypeAlias = Quadratic | Threshold | Custom | None

none: Score = None
"""No score: no row is suspect."""


def quadratic(
    weight: float,
    center: str | Sequence[float] | Mapping[str, Sequence[float]] | Array = "auto",
    matrix: Sequence[float] | Array | None = None,
) -> Quadratic:
    """ρ₂ (x − ξ̄)ᵀ V (x − ξ̄), the paper's score for the synthetic study.

    `center` is ξ̄: a vector, a mapping of client name to vector, "auto" (one robust centre found
    federatedly) or "client" (each client finds its own). `matrix` is V: a diagonal, a full positive
    semi-definite matrix, or none for the identity.
    """
    if not (np.isfinite(weight) and weight >= 0):
        raise ValueError(f"quadratic(weight={weight}): must be a number ≥ 0")
    if isinstance(center, str):
        if center not in ("auto", "client"):
            raise ValueError(
                f"quadratic(center={center!r}): give a vector, a mapping of client name to vector, "
                '"auto" or "client"'
            )
        found: str | Array | dict[str, Array] = center
    elif isinstance(center, Mapping):
        found = {str(name): _vector(c) for name, c in center.items()}
    else:
        found = _vector(center)
    return Quadratic(float(weight), found, None if matrix is None else _shape_matrix(matrix))


def threshold(weight: float, column: int, level: float, softness: float, label: Any) -> Threshold:
    """ρ₂ σ((x_k − D)/s) for rows with `label`: the paper's score for Adult.

    Rows of that label whose column `column` exceeds `level` are suspect; `softness` is how sharply.
    """
    if not (np.isfinite(weight) and weight > 0):
        raise ValueError(f"threshold(weight={weight}): must be a positive number")
    if not (np.isfinite(softness) and softness > 0):
        raise ValueError(f"threshold(softness={softness}): must be a positive number")
    if not np.isfinite(level):
        raise ValueError(f"threshold(level={level}): must be a number")
    return Threshold(float(weight), int(column), float(level), float(softness), label)


def custom(
    function: Callable[[Array, Array], Array],
    derivative: Callable[[Array, Array], Array] | None = None,
    *,
    convex: bool = False,
) -> Custom:
    """A score of your own: `function(rows, labels)` returns h for every row.

    Without `derivative` it is differentiated numerically. The supremum is then found by gradient
    ascent; say `convex=True` if h is convex in the row, and the ascent can certify its accuracy.
    """
    if not callable(function):
        raise ValueError("custom(function=…): must be callable as function(rows, labels)")
    return Custom(function, derivative, convex)


def _vector(values: Any) -> Array:
    vector = np.array(values, dtype=float)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ValueError("quadratic(center=…): a centre is a vector of finite numbers")
    return vector


def _shape_matrix(matrix: Any) -> Array:
    v = np.array(matrix, dtype=float)
    if (
        v.ndim not in (1, 2)
        or (v.ndim == 2 and v.shape[0] != v.shape[1])
        or not np.isfinite(v).all()
    ):
        raise ValueError("quadratic(matrix=…): a diagonal or a square matrix of finite numbers")
    if v.ndim == 1:
        smallest = float(v.min())
    else:
        if not np.allclose(v, v.T):
            raise ValueError("quadratic(matrix=…): must be symmetric")
        smallest = float(np.linalg.eigvalsh(v).min())
    if smallest < -1e-10 * max(1.0, float(np.abs(v).max())):
        raise ValueError("quadratic(matrix=…): must have no negative eigenvalue")
    return v
