"""Curvature as a message: ∇²F_i at one of three resolutions, packed.

    diagonal   one number for each parameter
    blocks     a symmetric matrix for each output of the model (each class of softmax)
    full       the whole symmetric matrix

All three are symmetric blocks along the diagonal of ∇²F, of sizes 1, …, 1 or m, …, m or P. Messages
hold them as :func:`pack` returns them: the lower triangle of every block, row by row.

>>> pack(np.array([[1.0, 2.0], [2.0, 5.0]]), (2,))
array([1., 2., 5.])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.blas import dspmv, dtrsv, sspmv
from scipy.linalg.lapack import dtpttr

from dorfl.linear import kernels
from dorfl.support.types import Array

RESOLUTIONS = ("none", "diagonal", "blocks", "full")  # from coarse to fine
BUDGET = 32 * 2**20  # bytes that a client sends in a round, by default
_MEMORY = 2**30  # bytes of all clients' curvature that a server keeps
_COLLINEAR = 1e-9  # ridge against collinear columns, as a share of the diagonal
_LEAST = 1e-280  # least curvature, so that it can be divided by
_DOUBLE = 2**17  # numbers up to which they are sent in double precision

Sizes = tuple[int, ...]


class Shape(NamedTuple):
    """The layout of a model's parameters: `outputs` rows of `width`, then any others."""

    outputs: int
    width: int
    others: int = 0

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.outputs * self.width + self.others

    def sizes(self, resolution: str) -> Sizes:
        """Return the sizes of the blocks of a resolution."""
        if resolution == "diagonal":
            return (1,) * self.size
        if resolution == "blocks":
            return (self.width,) * self.outputs + (1,) * self.others
        if resolution == "full":
            return (self.size,)
        raise ValueError(f"curvature={resolution!r}: choose one of {', '.join(RESOLUTIONS)}")

    def numbers(self, resolution: str) -> int:
        """Return the number of numbers in a curvature of a resolution."""
        blocks = self.outputs * self.width * (self.width + 1) // 2 + self.others
        full = self.size * (self.size + 1) // 2
        return {"none": 0, "diagonal": self.size, "blocks": blocks, "full": full}[resolution]

    def bytes(self, resolution: str) -> int:
        """Return the bytes of a message with a curvature of a resolution."""
        numbers = self.numbers(resolution)
        return numbers * precision(numbers).itemsize

    def finest(self, budget: float, clients: int = 1, wish: str = "auto") -> str:
        """Return the finest resolution within a budget of bytes for each of the clients.

        All of them together send at most 1 GiB. `wish` is the finest one wanted, or "auto".

        >>> Shape(1, 109).finest(2**20), Shape(10, 785).finest(2**25), Shape(10, 785).finest(2**20)
        ('full', 'blocks', 'diagonal')
        """
        if wish != "auto" and wish not in RESOLUTIONS:
            self.sizes(wish)  # raises an error that lists the resolutions
        limit = min(budget, _MEMORY / clients)
        finest = RESOLUTIONS[-1] if wish == "auto" else wish
        for resolution in reversed(RESOLUTIONS[: RESOLUTIONS.index(finest) + 1]):
            if self.bytes(resolution) <= limit:
                return resolution
        return "none"

    def resolution(self, numbers: int) -> str | None:
        """Return the finest resolution with so many numbers, or None."""
        return _resolution(self, numbers)

    def sizes_of(self, packed: Array) -> Sizes:
        """Return the sizes of the blocks of a packed curvature (…, numbers)."""
        return self.sizes(self.resolution(packed.shape[-1]) or "")


@cache
def _resolution(shape: Shape, numbers: int) -> str | None:
    return next((r for r in reversed(RESOLUTIONS) if shape.numbers(r) == numbers), None)


def coarser(one: str, other: str) -> str:
    """Return the coarser of two resolutions.

    >>> coarser("full", "diagonal")
    'diagonal'
    """
    return min(one, other, key=RESOLUTIONS.index)


def count(sizes: Sizes) -> int:
    """Return the number of numbers in packed blocks of these sizes."""
    return sum(n * (n + 1) // 2 for n in sizes)


def precision(numbers: int) -> np.dtype[Any]:
    """Return the precision of so many numbers in messages: single if there are many."""
    return np.dtype(np.float64 if numbers <= _DOUBLE else np.float32)


def mix(packed: Array, lam: Array) -> Array:
    """Return Σ_i λ_i H_i of packed curvatures (K, numbers), in double precision."""
    some = np.flatnonzero(lam)
    if packed.dtype != np.float64 and len(some) > 1:  # one by one, to save memory
        out = np.zeros(packed.shape[1])
        for i in some:
            out += lam[i] * packed[i]
        return out
    if len(some) == 1 and lam[some[0]] == 1.0:
        return np.asarray(packed[some[0]], dtype=np.float64)
    return np.asarray(lam[some] @ packed[some] if len(some) < len(lam) else lam @ packed)


def pack(matrix: Array, sizes: Sizes) -> Array:
    """Return the packed blocks along the diagonal of a (P, P) matrix."""
    return np.concatenate(
        [matrix[k, at.start : k + 1] for at in _slices(sizes) for k in range(at.start, at.stop)]
    )


def outer(vectors: Array, weights: Array, sizes: Sizes) -> Array:
    """Return the packed blocks of Σ_i weights_i v_i v_iᵀ; vectors are (n, P)."""
    if max(sizes) == 1:
        return np.asarray(weights @ vectors**2)
    return np.concatenate(
        [
            pack((weights[:, None] * vectors[:, at]).T @ vectors[:, at], (at.stop - at.start,))
            for at in _slices(sizes)
        ]
    )


def diagonal(packed: Array, sizes: Sizes) -> Array:
    """Return the diagonal (…, P) of packed blocks (…, numbers)."""
    return np.asarray(packed[..., diagonal_places(sizes)])


def coarsen(packed: Array, fine: Sizes, coarse: Sizes) -> Array:
    """Return packed blocks (…, numbers) at a coarser resolution.

    >>> coarsen(np.array([[1.0, 2.0]]), (1, 1), (2,))
    array([[1., 0., 2.]])
    """
    if fine == coarse:
        return packed
    if max(coarse) == 1:
        return diagonal(packed, fine)
    if packed.ndim > 1:
        return np.array([coarsen(one, fine, coarse) for one in packed])
    whole = np.zeros((sum(fine), sum(fine)))
    for at, block in _lower_blocks(packed, fine):
        whole[at, at] = block
    return pack(whole, coarse)


def bordered(packed: Array, columns: Array, sizes: Sizes) -> Array:
    """Return packed curvatures (K, numbers) with one more parameter, whose columns are (K, P + 1).

    A single block grows by a row and a column. It stays positive semi-definite: the entries h
    beside the diagonal are scaled down to hᵀH⁻¹h ≤ h_last. With several blocks, the new parameter
    is a block of its own.

    >>> bordered(np.array([[1.0, 0.0, 2.0]]), np.array([[0.0, 2.0, 0.5]]), (2,)).round(3)
    array([[1. , 0. , 2. , 0. , 1. , 0.5]])
    """
    last = np.maximum(columns[:, -1:], 0.0)
    if len(sizes) == 1:
        beside = columns[:, :-1]
        each = zip(packed, beside, strict=True)
        with np.errstate(over="ignore"):  # zero off-diagonals beside a zero diagonal
            needs = [float(h @ base(one, sizes, _LEAST).solve(h)) for one, h in each]
        room = np.minimum(last[:, 0] / np.maximum(needs, 1e-300), 1.0)
        last = np.column_stack([np.sqrt(room)[:, None] * beside, last])
    whole = np.column_stack([packed, last])
    return whole.astype(precision(whole.shape[1]))


def is_plausible(packed: Array, sizes: Sizes) -> bool:
    """Return True if H_kl² ≤ H_kk H_ll for all entries of every block, up to rounding.

    That is necessary for a positive semi-definite matrix, not sufficient. Blocks with a negative
    eigenvalue get a ridge when they are factorised (:meth:`Base.solve`).
    """
    bend = diagonal(packed, sizes)
    if (bend < 0.0).any():
        return False
    if max(sizes) == 1:
        return True
    root = np.sqrt(bend.astype(np.float64))
    slack = 1e-3 * float(root.max())  # sums may have been in single precision
    return all(
        kernels.is_bounded(triangle, root[at] + slack) for at, triangle in _triangles(packed, sizes)
    )


def limited(packed: Array, sizes: Sizes, limit: float | Array) -> Array:
    """Return packed blocks with no diagonal entry above the limit (one for all, or for each).

    Rows and columns are scaled alike, D H D, so that blocks stay positive semi-definite. Rows with
    a diagonal within the limit keep their scale.

    >>> limited(np.array([16.0, 2.0, 1.0]), (2,), 4.0)
    array([4., 1., 1.])
    """
    if max(sizes) == 1:
        return np.asarray(np.minimum(packed, limit).astype(packed.dtype))
    bend = diagonal(packed, sizes).astype(np.float64)
    shrink = np.sqrt(limit / np.maximum(bend, limit))
    scaled = [
        pack(block * np.outer(shrink[at], shrink[at]), (len(block),))
        for at, block in _lower_blocks(packed, sizes)
    ]
    return np.concatenate(scaled).astype(packed.dtype)


def multiply(packed: Array, sizes: Sizes, vectors: Array) -> Array:
    """Return H v for a vector, or for every row of a matrix."""
    if max(sizes) == 1:
        return np.asarray(packed * vectors)
    table = np.atleast_2d(vectors)
    out = np.empty_like(table)
    symmetric = sspmv if packed.dtype == np.float32 else dspmv
    for at, triangle in _triangles(packed, sizes):
        for i, v in enumerate(table):
            out[i, at] = symmetric(at.stop - at.start, 1.0, triangle, v[at])
    return out.reshape(vectors.shape)


@dataclass(frozen=True, eq=False)
class Base:
    """D = scale · (H + diag(extra)), a positive definite matrix of packed blocks."""

    packed: Array
    sizes: Sizes
    extra: Array
    scale: float = 1.0

    def multiply(self, vectors: Array) -> Array:
        """Return D v for a vector, or for every row of a matrix."""
        product = multiply(self.packed, self.sizes, vectors) + self.extra * vectors
        return np.asarray(self.scale * product)

    def solve(self, vectors: Array) -> Array:
        """Return D⁻¹ v for a vector, or for every row of a matrix."""
        if max(self.sizes) == 1:
            return np.asarray(vectors / (self.scale * (self.packed + self.extra)))
        out = np.empty(vectors.shape)
        for at, root in self._factors:
            out[..., at] = _back_through(root, vectors[..., at].T).T / self.scale
        return out

    @cached_property
    def _factors(self) -> list[tuple[slice, Array]]:
        found = []
        for at, block in _lower_blocks(self.packed, self.sizes):
            block[np.diag_indices_from(block)] += self.extra[at]
            found.append((at, _factor(block.T)))  # columns lie together, as LAPACK wants them
        return found


def base(packed: Array, sizes: Sizes, floor: Array | float, scale: float = 1.0) -> Base:
    """Return D = scale · H, with a diagonal of at least the floor and a small ridge.

    If columns are collinear (all levels of a category and an intercept), H and the gradient vanish
    along a direction up to rounding. Without the ridge, their quotient would be arbitrary.
    """
    packed = np.asarray(packed, dtype=np.float64)
    bend = diagonal(packed, sizes)
    least = np.maximum(floor, bend)
    return Base(packed, sizes, least - bend + _COLLINEAR * least, scale)


def _factor(block: Array) -> Array:
    """Return the Cholesky factor of a block, from its upper triangle.

    An empty column, or two equal ones, leave the block singular. Then the least share of its
    diagonal, in powers of ten, is added that makes the factorisation succeed.
    """
    bend = np.diag(block).copy()
    ridge = 1e-13
    while True:
        block[np.diag_indices_from(block)] = bend * (1.0 + ridge)
        try:
            return np.asarray(cholesky(block, check_finite=False))
        except LinAlgError:
            ridge *= 10.0


def _back_through(root: Array, right: Array) -> Array:
    """Return (RᵀR)⁻¹ of every column; for one column, LAPACK takes four times as long."""
    if right.size > len(root):
        return np.asarray(cho_solve((root, False), right, check_finite=False))
    return np.asarray(dtrsv(root, dtrsv(root, right.ravel(), trans=1))).reshape(right.shape)


def _lower_blocks(packed: Array, sizes: Sizes) -> Iterator[tuple[slice, Array]]:
    """Yield the place and the lower triangle of every block, as a matrix in double precision."""
    for at, triangle in _triangles(packed, sizes):
        # A lower triangle by rows is an upper triangle by columns, as LAPACK packs it.
        yield at, dtpttr(at.stop - at.start, triangle, uplo="U")[0].T


def _triangles(packed: Array, sizes: Sizes) -> Iterator[tuple[slice, Array]]:
    """Yield the place of every block along the diagonal, and its numbers."""
    first = 0
    for at, n in zip(_slices(sizes), sizes, strict=True):
        yield at, packed[first : first + n * (n + 1) // 2]
        first += n * (n + 1) // 2


@cache
def _slices(sizes: Sizes) -> list[slice]:
    stops = np.cumsum(sizes).tolist()
    return [slice(stop - n, stop) for n, stop in zip(sizes, stops, strict=True)]


@cache
def diagonal_places(sizes: Sizes) -> Array:
    """Return the indices of the diagonal's entries in packed blocks."""
    places, first = [], 0
    for n in sizes:
        rank = np.arange(1, n + 1)
        places.append(first + rank * (rank + 1) // 2 - 1)
        first += n * (n + 1) // 2
    return np.concatenate(places)
