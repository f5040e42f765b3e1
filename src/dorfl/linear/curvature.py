"""Curvature as a message: ∇²F_i at the resolution that a problem deserves and a budget admits.

    diagonal   one number a parameter
    blocks     a symmetric matrix for each of the model's outputs (each class of softmax)
    full       the whole symmetric matrix

All three are a row of symmetric blocks along the diagonal of ∇²F, of sizes 1, …, 1 or m, …, m or P,
and travel as what :func:`pack` makes of them: every block's lower triangle, row by row.

>>> pack(np.array([[1.0, 2.0], [2.0, 5.0]]), (2,))
array([1., 2., 5.])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.blas import dspmv, dtrsv, sspmv, strsv
from scipy.linalg.lapack import dtpttr, stpttr

from dorfl.linear import kernels
from dorfl.support.types import Array

RESOLUTIONS = ("none", "diagonal", "blocks", "full")  # from coarse to fine
BUDGET = 32 * 2**20  # bytes a client sends in a round, where nobody says otherwise
_MEMORY = 2**30  # bytes of all clients' curvature that a server keeps
_COLLINEAR = 1e-9  # of the diagonal
_LEAST = 1e-280  # curvature that can be divided by
_ROUGH = 1e-4  # squared, what single precision may lose of a solution before double has to do
_DOUBLE = 2**17  # numbers up to which they travel in double precision

Sizes = tuple[int, ...]


class Shape(NamedTuple):
    """How a model's parameters are laid out: `outputs` rows of `width`, then any others."""

    outputs: int
    width: int
    others: int = 0

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return self.outputs * self.width + self.others

    def sizes(self, resolution: str) -> Sizes:
        """The blocks of that resolution."""
        if resolution == "diagonal":
            return (1,) * self.size
        if resolution == "blocks":
            return (self.width,) * self.outputs + (1,) * self.others
        if resolution == "full":
            return (self.size,)
        raise ValueError(f"curvature={resolution!r}: choose one of {', '.join(RESOLUTIONS)}")

    def numbers(self, resolution: str) -> int:
        """How many numbers a curvature of that resolution has."""
        blocks = self.outputs * self.width * (self.width + 1) // 2 + self.others
        full = self.size * (self.size + 1) // 2
        return {"none": 0, "diagonal": self.size, "blocks": blocks, "full": full}[resolution]

    def bytes(self, resolution: str) -> int:
        """How many bytes it takes to send one."""
        numbers = self.numbers(resolution)
        return numbers * precision(numbers).itemsize

    def finest(self, budget: float, clients: int = 1, wish: str = "auto") -> str:
        """The finest resolution whose bytes fit the budget of a client and a round.

        >>> Shape(1, 109).finest(2**20), Shape(10, 785).finest(2**25), Shape(10, 785).finest(2**20)
        ('full', 'blocks', 'diagonal')
        """
        if wish != "auto" and wish not in RESOLUTIONS:
            self.sizes(wish)  # says what there is
        limit = min(budget, _MEMORY / clients)
        finest = RESOLUTIONS[-1] if wish == "auto" else wish
        for resolution in reversed(RESOLUTIONS[: RESOLUTIONS.index(finest) + 1]):
            if self.bytes(resolution) <= limit:
                return resolution
        return "none"

    def resolution(self, numbers: int) -> str | None:
        """Which resolution has so many numbers, the finest first; nothing if none has."""
        return _resolution(self, numbers)

    def sizes_of(self, packed: Array) -> Sizes:
        """The blocks of a packed curvature (…, numbers), from how many numbers it has."""
        return self.sizes(self.resolution(packed.shape[-1]) or "")


@cache
def _resolution(shape: Shape, numbers: int) -> str | None:
    return next((r for r in reversed(RESOLUTIONS) if shape.numbers(r) == numbers), None)


def coarser(one: str, other: str) -> str:
    """The coarser of two resolutions.

    >>> coarser("full", "diagonal")
    'diagonal'
    """
    return min(one, other, key=RESOLUTIONS.index)


def count(sizes: Sizes) -> int:
    """How many numbers packed blocks of these sizes have."""
    return sum(n * (n + 1) // 2 for n in sizes)


def precision(numbers: int) -> np.dtype[Any]:
    """What so many numbers are kept and sent in: a model of F can do with single precision."""
    return np.dtype(np.float64 if numbers <= _DOUBLE else np.float32)


def mix(packed: Array, lam: Array) -> Array:
    """Σ_i λ_i H_i of packed curvatures (K, numbers), in double precision; one is not copied."""
    some = np.flatnonzero(lam)
    if packed.dtype != np.float64 and len(some) > 1:  # one by one, for there may be many numbers
        out = np.zeros(packed.shape[1])
        for i in some:
            out += lam[i] * packed[i]
        return out
    if len(some) == 1 and lam[some[0]] == 1.0:
        return np.asarray(packed[some[0]], dtype=np.float64)
    return np.asarray(lam[some] @ packed[some] if len(some) < len(lam) else lam @ packed)


def pack(matrix: Array, sizes: Sizes) -> Array:
    """The blocks along the diagonal of a (P, P) matrix."""
    return np.concatenate(
        [matrix[k, at.start : k + 1] for at in _slices(sizes) for k in range(at.start, at.stop)]
    )


def outer(vectors: Array, weights: Array, sizes: Sizes) -> Array:
    """The blocks of Σ_i weights_i v_i v_iᵀ, packed; vectors are (n, P)."""
    if max(sizes) == 1:
        return np.asarray(weights @ vectors**2)
    return np.concatenate(
        [
            pack((weights[:, None] * vectors[:, at]).T @ vectors[:, at], (at.stop - at.start,))
            for at in _slices(sizes)
        ]
    )


def diagonal(packed: Array, sizes: Sizes) -> Array:
    """The diagonal (…, P) of packed blocks (…, numbers)."""
    return np.asarray(packed[..., diagonal_places(sizes)])


def coarsen(packed: Array, fine: Sizes, coarse: Sizes) -> Array:
    """Packed blocks (…, numbers) at another resolution: what couples blocks apart is left out.

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
    """Packed curvatures (K, numbers) with one more parameter, whose columns are (K, P + 1).

    Where there is one block, a matrix, it grows: positive semi-definite, since what a column says
    beside its last entry is scaled down to what the matrix admits, hᵀH⁻¹h ≤ h_last. Otherwise the
    new parameter is a block of its own.

    >>> bordered(np.array([[1.0, 0.0, 2.0]]), np.array([[0.0, 2.0, 0.5]]), (2,)).round(3)
    array([[1. , 0. , 2. , 0. , 1. , 0.5]])
    """
    last = np.maximum(columns[:, -1:], 0.0)
    if len(sizes) == 1:
        beside = columns[:, :-1]
        each = zip(packed, beside, strict=True)
        with np.errstate(over="ignore"):  # nothing is beside what does not bend
            needs = [float(h @ base(one, sizes, _LEAST).solve(h)) for one, h in each]
        room = np.minimum(last[:, 0] / np.maximum(needs, 1e-300), 1.0)
        last = np.column_stack([np.sqrt(room)[:, None] * beside, last])
    whole = np.column_stack([packed, last])
    return whole.astype(precision(whole.shape[1]))


def is_plausible(packed: Array, sizes: Sizes) -> bool:
    """Whether every block can be positive semi-definite: H_kl² ≤ H_kk H_ll, up to rounding.

    That bounds what a block can do by its diagonal. Blocks that pass and still have a negative
    direction are mended where they are used (:meth:`Base.solve`).
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
    """Packed blocks with no entry of their diagonal above the limit, or above its own.

    Rows and columns are scaled alike, D H D: what is beyond the limit is cut to it, what is not
    stays, and the blocks remain as definite as they were.

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
    """H v, for every row v where there are several."""
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
    """D = scale · (H + diag(extra)): a positive definite matrix of packed blocks."""

    packed: Array
    sizes: Sizes
    extra: Array
    scale: float = 1.0

    def multiply(self, vectors: Array) -> Array:
        """D v, for every row v where there are several."""
        product = multiply(self.packed, self.sizes, vectors) + self.extra * vectors
        return np.asarray(self.scale * product)

    def solve(self, vectors: Array) -> Array:
        """D⁻¹ v, for every row v where there are several."""
        if max(self.sizes) == 1:
            return np.asarray(vectors / (self.scale * (self.packed + self.extra)))
        found = self._back(vectors)
        if self._factors[0][1].dtype == np.float64:
            return found
        left = vectors - self.multiply(found)  # single precision lost some digits
        more = self._back(left)
        if ((left * more).sum(axis=-1) > _ROUGH * (vectors * found).sum(axis=-1)).any():
            vars(self)["_factors"] = _factors(self, np.dtype(np.float64))  # … or too many
            return self._back(vectors)
        return np.asarray(found + more)

    def _back(self, vectors: Array) -> Array:
        out = np.empty(vectors.shape)
        for at, root in self._factors:
            most = np.abs(vectors[..., at]).max(initial=1e-300)
            part = (vectors[..., at].T / most).astype(root.dtype)
            out[..., at] = _back_through(root, part).T * (most / self.scale)
        return out

    @cached_property
    def _factors(self) -> list[tuple[slice, Array]]:
        return _remembered(self.packed, self.extra) or _factors(self, self.packed.dtype)


_recent: tuple[Any, ...] = ()  # the last packed blocks factorised: whose, where, with what, factors


def _remembered(packed: Array, extra: Array) -> list[tuple[slice, Array]] | None:
    """The factors of blocks that were the last to be factorised, if they are the same ones.

    Rounds that get no new curvature ask for the old one's again. Arrays are never changed in place.
    """
    if not _recent:
        return None
    owner, place, added, found = _recent
    same = owner() is _owner(packed) and place == (packed.ctypes.data, packed.size)
    return found if same and np.array_equal(added, extra) else None


def _factors(matrix: Base, precision: np.dtype[Any]) -> list[tuple[slice, Array]]:
    global _recent
    found, packed = [], matrix.packed
    for at, block in _lower_blocks(packed, matrix.sizes, precision):
        block[np.diag_indices_from(block)] += matrix.extra[at]
        try:
            found.append((at, _factor(block.T)))  # columns lie together, as LAPACK wants them
        except LinAlgError:
            return _factors(matrix, np.dtype(np.float64))
    _recent = (ref(_owner(packed), _forget), (packed.ctypes.data, packed.size), matrix.extra, found)
    return found


def _forget(owner: Any) -> None:
    """No factors outlive their matrix."""
    global _recent
    if _recent and _recent[0] is owner:
        _recent = ()


def _owner(packed: Array) -> Array:
    """The array whose memory it is."""
    return packed if packed.base is None else packed.base


def base(packed: Array, sizes: Sizes, floor: Array | float, scale: float = 1.0) -> Base:
    """D = scale · H, with no entry of its diagonal below the floor, and a little added to all.

    Where columns are collinear (all levels of a category and an intercept), H is zero along a
    direction but for rounding, and so is a gradient: their quotient would be a step to anywhere.
    """
    bend = diagonal(packed, sizes)
    least = np.maximum(floor, bend)
    return Base(packed, sizes, least - bend + _COLLINEAR * least, scale)


def _factor(block: Array) -> Array:
    """The Cholesky factor of a block of which only what is above the diagonal is looked at.

    A column that no row has, or two that are the same, leave it singular; what is added then is a
    little of its diagonal, as little as makes the factorisation go through.
    """
    bend = np.diag(block).copy()
    ridge = 1e-13
    while True:
        block[np.diag_indices_from(block)] = bend * (1.0 + ridge)
        try:
            return np.asarray(cholesky(block, check_finite=False))
        except LinAlgError:
            if block.dtype != np.float64:
                raise  # double precision may do
            ridge *= 10.0


def _back_through(root: Array, right: Array) -> Array:
    """(RᵀR)⁻¹ of every column; LAPACK takes four times as long where there is one."""
    if right.size > len(root):
        return np.asarray(cho_solve((root, False), right, check_finite=False))
    solve = strsv if root.dtype == np.float32 else dtrsv
    return np.asarray(solve(root, solve(root, right.ravel(), trans=1))).reshape(right.shape)


def _lower_blocks(
    packed: Array, sizes: Sizes, precision: Any = np.float64
) -> Iterator[tuple[slice, Array]]:
    """Every block with what is above its diagonal left zero: a factorisation needs no more."""
    unpack = dtpttr if precision == np.float64 else stpttr
    for at, triangle in _triangles(packed, sizes):
        # Row by row below the diagonal is column by column above it, which LAPACK unpacks.
        yield at, unpack(at.stop - at.start, triangle.astype(precision), uplo="U")[0].T


def _triangles(packed: Array, sizes: Sizes) -> Iterator[tuple[slice, Array]]:
    """Every block's place along the diagonal, and its numbers."""
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
    """Where the diagonal's entries are in packed blocks."""
    places, first = [], 0
    for n in sizes:
        rank = np.arange(1, n + 1)
        places.append(first + rank * (rank + 1) // 2 - 1)
        first += n * (n + 1) // 2
    return np.concatenate(places)
