"""Outlier scores h(ξ), large for outliers. Training is on l − h, so outliers get less weight.

Only the score protects against outliers: with h = 0 the tilt gives rows with a large loss *more*
weight. A quadratic score gives a row the weight exp(−ρ₂‖ζ − ξ̄‖² / (β (ρ + 2ρ₂))).

>>> from dorfl import scores
>>> scores.quadratic(0.5, center=[0.0, 0.0]).weight
0.5
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dorfl.objective.base import Score
from dorfl.support.types import Array
from dorfl.support.wire import number, whole


@dataclass(frozen=True, eq=False)
class Nothing(Score):
    """Score h = 0, used for None: no row is an outlier."""

    def at(self, rows: Array, center: Array, labels: Array) -> Array:
        return np.zeros(len(rows))

    def gradient(self, rows: Array, center: Array, labels: Array) -> Array:
        return np.zeros_like(rows)

    def scaled(self, unit: float) -> Nothing:
        return self

    def parts(self, rows: Array, center: Array) -> Array:
        return np.zeros_like(rows)

    def nonconvexity(self, stiffness: Array) -> float:
        return 0.0

    def has_closed_form(self, stiffness: Array, outputs: int) -> bool:
        return True

    def bounds(self, bowl: Array, nearest: float, farthest: float) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True, eq=False)
class Quadratic(Score):
    """Score h(x) = weight · (x − center)ᵀ V (x − center); see :func:`quadratic`."""

    name = "quadratic"
    weight: float
    center: str | Array | dict[str, Array] = "auto"
    matrix: Array | None = None

    @classmethod
    def from_json(cls, written: Any) -> Quadratic:
        return quadratic(number(written["weight"]), written["center"], written["matrix"])

    def scaled(self, unit: float) -> Quadratic:
        return replace(self, weight=unit * self.weight)

    def shape(self, dims: int) -> Array:
        """Return V as its diagonal (dims,) or whole (dims, dims)."""
        if self.matrix is None:
            return np.ones(dims)
        if self.matrix.shape[0] != dims:
            raise ValueError(
                f"quadratic(matrix=…): for {self.matrix.shape[0]} columns, the rows have {dims}"
            )
        return self.matrix

    def at(self, rows: Array, center: Array, labels: Array | None = None) -> Array:
        return np.asarray(self.weight * np.einsum("ij,ij->i", *self._pair(rows, center)))

    def parts(self, rows: Array, center: Array) -> Array:
        offset, bent = self._pair(rows, center)
        return np.asarray(offset * bent)

    def _pair(self, rows: Array, center: Array) -> tuple[Array, Array]:
        offset = np.asarray(rows, dtype=np.float64) - center
        shape = self.shape(rows.shape[1])
        return offset, offset * shape if shape.ndim == 1 else offset @ shape

    def gradient(self, rows: Array, center: Array, labels: Array) -> Array:
        bend, offset = self.hessian(rows.shape[1]), rows - center
        return np.asarray(offset * bend if bend.ndim == 1 else offset @ bend.T)

    def nonconvexity(self, stiffness: Array) -> float:
        return 0.0

    def check(self, dims: int, classes: Array) -> None:
        """Raise a ValueError if V is for another number of columns."""
        self.shape(dims)

    def has_closed_form(self, stiffness: Array, outputs: int) -> bool:
        """Return True: with the transport cost it is one quadratic."""
        return True

    def hessian(self, dims: int) -> Array:
        return np.asarray(2.0 * self.weight * self.shape(dims))

    def bounds(self, bowl: Array, nearest: float, farthest: float) -> tuple[float, float]:
        bends = bowl if bowl.ndim == 1 else np.linalg.eigvalsh(bowl)
        return float(max(bends.min(), 0.0) * nearest**2), float(bends.max() * farthest**2)


@dataclass(frozen=True)
class Threshold(Score):
    """Score h(x) = weight · σ((x_k − level) / softness) for one label; see :func:`threshold`."""

    name = "threshold"
    weight: float
    column: int
    level: float
    softness: float
    label: Any

    @classmethod
    def from_json(cls, written: Any) -> Threshold:
        weight, level, softness = (number(written[k]) for k in ("weight", "level", "softness"))
        return threshold(weight, whole(written["column"]), level, softness, written["label"])

    def scaled(self, unit: float) -> Threshold:
        return replace(self, weight=unit * self.weight)

    def at(self, rows: Array, center: Array, labels: Array) -> Array:
        z = (rows[:, self.column] - self.level) / self.softness
        return np.where(labels == self.label, self.weight * np.exp(-np.logaddexp(0.0, -z)), 0.0)

    def gradient(self, rows: Array, center: Array, labels: Array) -> Array:
        share = self.at(rows, center, labels) / self.weight
        out = np.zeros_like(rows)
        out[:, self.column] = self.weight / self.softness * share * (1.0 - share)
        return out

    def nonconvexity(self, stiffness: Array) -> float:
        """Return the non-convexity; σ'' is never below −1/(6√3)."""
        bent = self.weight / self.softness**2 / (6 * np.sqrt(3))
        return float(bent / stiffness[self.column])

    def check(self, dims: int, classes: Array) -> None:
        """Raise a ValueError if there is no such column or label."""
        if not len(classes):
            raise ValueError("threshold score: a regression has no classes")
        if not 0 <= self.column < dims:
            raise ValueError(f"threshold(column={self.column}): there are columns 0 to {dims - 1}")
        if self.label not in classes:
            known = ", ".join(map(repr, classes.tolist()))
            raise ValueError(f"threshold(label={self.label!r}): y only has {known}")

    def has_closed_form(self, stiffness: Array, outputs: int) -> bool:
        """Return whether the supremum is a search in one coordinate, or h does not change."""
        return outputs == 1 or bool(np.isinf(stiffness[self.column]))

    def threshold_form(self, stiffness: Array) -> tuple[tuple[float, ...], Any]:
        stiff = float(stiffness[self.column])
        return (float(self.column), stiff, self.level, self.softness, self.weight), self.label

    def bounds(self, bowl: Array, nearest: float, farthest: float) -> tuple[float, float]:
        """Return 0 and the weight: σ is between 0 and 1."""
        return 0.0, self.weight

    def max_shift(self, stiffness: Array) -> float:
        """Return the largest move; σ' is at most ¼."""
        return float(self.weight / (4.0 * self.softness * stiffness[self.column]))


@dataclass(frozen=True)
class Custom(Score):
    """Score from a function of rows and labels; see :func:`custom`."""

    function: Callable[[Array, Array], Array]
    derivative: Callable[[Array, Array], Array] | None
    convex: bool

    def scaled(self, unit: float) -> Custom:
        h, slope = self.function, self.derivative
        return Custom(
            lambda rows, labels: unit * np.asarray(h(rows, labels)),
            slope and (lambda rows, labels: unit * np.asarray(slope(rows, labels))),
            self.convex,
        )

    def at(self, rows: Array, center: Array, labels: Array) -> Array:
        h = np.asarray(self.function(np.asarray(rows, dtype=np.float64), labels), dtype=float)
        if h.shape != (len(rows),):
            raise ValueError(
                f"custom score: {len(rows)} rows gave an answer of shape {h.shape}; "
                "the function takes (rows, labels) and returns one number per row"
            )
        if not np.isfinite(h).all():
            raise ValueError("custom score: the function returned NaN or an infinity")
        return h

    def gradient(self, rows: Array, center: Array, labels: Array) -> Array:
        if self.derivative is None:
            return super().gradient(rows, center, labels)
        return np.asarray(self.derivative(rows, labels), dtype=float)

    def nonconvexity(self, stiffness: Array) -> float:
        """Return 0 if the user declared h convex, else infinity."""
        return 0.0 if self.convex else np.inf


KINDS: dict[str, type[Score]] = {
    kind.name: kind for kind in (Quadratic, Threshold)
}  # names that files can hold

none = None
"""No score: no row is an outlier."""


def quadratic(
    weight: float,
    center: str | Sequence[float] | Mapping[str, Sequence[float]] | Array = "auto",
    matrix: Sequence[float] | Array | None = None,
) -> Quadratic:
    """Return the score ρ₂ (x − ξ̄)ᵀ V (x − ξ̄), which the paper uses in its synthetic study.

    Parameters
    ----------
    weight
        ρ₂, at least 0.
    center
        ξ̄: a vector (d,), a mapping of client name to vector, "auto" (one robust centre of all
        clients) or "client" (a robust centre of each). A vector may be replaced by one for each
        class (classes, d).
    matrix
        V: a diagonal (d,), a positive semi-definite matrix (d, d), or None for the identity.

    Returns
    -------
    Quadratic
        The score, for :mod:`dorfl.methods`.

    Raises
    ------
    ValueError
        If an argument is out of range.
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
    """Return the score ρ₂ σ((x_k − D)/s) of rows with `label`, which the paper uses for Adult.

    Parameters
    ----------
    weight
        ρ₂, positive.
    column
        Index k of the column.
    level
        D: rows whose column exceeds it are outliers.
    softness
        s: width of the transition.
    label
        Label of the rows that can be outliers.

    Returns
    -------
    Threshold
        The score, for :mod:`dorfl.methods`.

    Raises
    ------
    ValueError
        If an argument is out of range.
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
    """Return a score defined by a function; the supremum is found by gradient ascent.

    Parameters
    ----------
    function
        `function(rows, labels)` returns h (n,) of rows (n, d).
    derivative
        `derivative(rows, labels)` returns ∇h (n, d); by default computed numerically.
    convex
        Whether h is convex in the row, so that the accuracy of the ascent can be certified.

    Returns
    -------
    Custom
        The score, for :mod:`dorfl.methods`.

    Raises
    ------
    ValueError
        If `function` is not callable.
    """
    if not callable(function):
        raise ValueError("custom(function=…): must be callable as function(rows, labels)")
    return Custom(function, derivative, convex)


def _vector(values: Any) -> Array:
    vector = np.array(values, dtype=float)
    if vector.ndim not in (1, 2) or not np.isfinite(vector).all():
        raise ValueError(
            "quadratic(center=…): a centre is a vector of finite numbers, or one a class"
        )
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
