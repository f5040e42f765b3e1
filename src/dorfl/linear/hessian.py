"""∇²F_i, the curvature of a client's robust risk, as :mod:`dorfl.linear.curvature` packs it.

A row's supremum f(W) = max_x l(W x) − ½ (x − m)ᵀ K (x − m) has, at its maximiser z and with
g = ∂l/∂t, D = ∂²l/∂t² there, Q = W K⁻¹ and S = Q Wᵀ (m, K: see :mod:`dorfl.linear.inner`),

    ∇²f = E ⊗ z zᵀ + (g ⊗ Qᵀ E)(· ⊗ zᵀ) + (· ⊗ z)(g ⊗ Qᵀ E)ᵀ + g gᵀ ⊗ (K⁻¹ + Qᵀ E Q),
    E = (D⁻¹ − S)⁻¹,

in which the middle terms read g_c (Qᵀ E)_{k c'} z_l + g_c' (Qᵀ E)_{l c} z_k. The tilt adds the
covariance of the rows' gradients: ∇²F = E_p[∇²f] + Cov_p(g ⊗ z) / ρβ. So ∇²F consists of weighted
Gram matrices of the rows z and of weighted sums of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dorfl.linear import curvature as packing
from dorfl.linear import kernels, rowwise
from dorfl.linear.inner import apply
from dorfl.support.threads import share
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.linear.base import Kept
    from dorfl.linear.group import Group

_PIECE = 4096  # rows that are moved and weighted together, at most …
_NUMBERS = 1_000_000  # … and their numbers, at most: they stay in the second-level cache
_SMALL = 512  # parameters up to which double precision costs little
_RANK = 1e-12  # times the largest eigenvalue of S: smaller ones are rounding errors


class _Rows(NamedTuple):
    """Some rows of one client at θ."""

    place: Array  # z, with a last 1 for an intercept (n, width)
    share: Array  # p (n,)
    slope: Array  # g (n, outputs)
    bend: Array  # E (n, outputs, outputs)


class _Model(NamedTuple):
    """What the curvature depends on besides the rows."""

    pull: Array  # Q, with a last 0 for an intercept (outputs, width)
    spread: Array  # S (outputs, outputs)
    tau: float
    moves: bool  # whether rows move


def curvature(group: Group, theta: Array, resolution: str, kept: Kept | None = None) -> Array:
    """Return ∇²F_i of every client at θ, packed: (clients, numbers). `kept` saves a pass.

    >>> import dorfl
    >>> from dorfl.federated.training import prepare
    >>> group = prepare([([[1.0], [-2.0]], [0, 1])], dorfl.methods.erm(), intercept=False)
    >>> curvature(group, np.zeros(1), "full")           # mean of σ'(0) x² = (1 + 4) / 2 / 4
    array([[0.625]])
    """
    problem = group.problem
    value, slope, target = kept or group.kept(theta)
    model, level = _model(group, theta), value + group.penalty
    weight = group.weights_of(value)
    numbers = packing.Shape(*model.pull.shape).numbers(resolution)
    out = np.empty((len(group.names), numbers), dtype=packing.precision(numbers))
    if problem.outputs == 1 and resolution == "full":
        resolution = "blocks"  # the one block is the full matrix
    alone = problem.outputs == 1 and resolution == "blocks"
    if alone and not group.sparse and problem.size <= _SMALL:
        plain = problem.loss.hessian(slope, target, level)
        _single(group, model, weight, slope[:, 0], plain, out)
        return out
    make = {"full": _full, "blocks": _blocks, "diagonal": _diagonal}[resolution]

    def work(part: slice) -> None:
        for i in range(len(out))[part]:
            make(group, model, _pieces(group, i, model, weight, slope, level, target), out[i])

    share(work, len(out), group.rows.size * problem.size, blas=True)
    return out


def heaviest(group: Group, theta: Array, kept: Kept | None = None) -> Array:
    """Return the largest share of one row in the curvature of an output, for every client.

    The share of a row is that of its weight p (E + g²/ρβ) in the sum over all rows. If it is nearly
    one, ∇²F is the outer product of that row with itself.

    >>> import dorfl
    >>> from dorfl.federated.training import prepare
    >>> group = prepare([([[0.0], [9.0], [9.0]], [0, 1, 1])], dorfl.methods.erm(), intercept=False)
    >>> heaviest(group, np.array([2.0])).round(6)      # of the other rows the model is certain
    array([1.])
    """
    value, slope, target = kept or group.kept(theta)
    model, share = _model(group, theta), group.weights_of(value)
    level, loss = value + group.penalty, group.problem.loss
    most = np.zeros(len(group.names))
    for i in range(len(most)):
        first, stop = group.bounds[i : i + 2]
        total, top = np.zeros(slope.shape[1]), np.zeros(slope.shape[1])
        step = _step(group)
        for start in range(first, stop, step):
            at = slice(start, min(start + step, stop))
            bend = _stretched(loss.hessian(slope[at], target[at], level[at]), model.spread)
            bend = np.einsum("ncc->nc", bend)
            weight = _weight(share[at, None], slope[at], bend, model.tau)
            total, top = total + weight.sum(axis=0), np.maximum(top, weight.max(axis=0))
        most[i] = np.divide(top, total, out=np.zeros_like(top), where=total > 0.0).max()
    return most


def _model(group: Group, theta: Array) -> _Model:
    problem = group.problem
    weights, _ = problem.split(theta)
    pull = np.zeros((problem.outputs, problem.dims + problem.intercept))
    pull[:, : problem.dims] = apply(problem.geometry.inverse, weights)
    spread, tau = problem.geometry.spread(weights), problem.method.temperature
    return _Model(pull, spread, tau, bool(pull.any()))


def _weight(p: Array, g: Array, bend: Array, tau: float) -> Array:
    """Return the weights of rows in the Gram matrix of an output; `bend` is the diagonal of E."""
    return np.asarray(np.maximum(p * (bend + g * g / tau), 0.0))


def _single(group: Group, model: _Model, p: Array, g: Array, plain: Array, out: Array) -> None:
    """Compute the full matrix of a model with one output, for all clients in one compiled loop."""
    precision, shape, dims = _precision(group), group.problem.geometry, group.problem.dims
    bend = _stretched(plain, model.spread)[:, 0, 0]
    root = np.sqrt(_weight(p, g, bend, model.tau)).astype(precision)
    lean, first, push = np.empty((2, len(p)), dtype=precision), group.bounds[:-1], p * g
    lean[0], lean[1] = push, push * bend
    push *= g  # in place: there may be many rows
    turns = np.add.reduceat(push, first)
    push *= bend
    twice = np.add.reduceat(push, first)
    del push, bend
    rows, shrink = group.standing, shape.shrink
    if shrink.ndim == 2:  # client by client, or BLAS would round by how many there are
        ends = zip(first, group.bounds[1:], strict=True)
        rows = np.concatenate([apply(shrink, rows[a:b]) for a, b in ends])
        shrink = np.ones(dims)
    pull = model.pull[0].astype(precision)

    def work(part: slice) -> None:
        kernels.single(
            rows, group.bounds, part.start, part.stop, shrink, group.anchors, pull, g, root, lean,
            twice, 1.0 / model.tau, out,
        )  # fmt: skip

    share(work, len(out), rows.size * dims, blas=True)
    places = packing.diagonal_places((len(pull),))
    if np.isfinite(group.problem.method.rho):
        if shape.inverse.ndim == 1:
            out[:, places[:dims]] += turns[:, None] * shape.inverse
        else:  # the intercept is the last row of the triangle
            triangle = packing.pack(shape.inverse, (dims,))
            out[:, : len(triangle)] += turns[:, None] * triangle
    out[:, places] = np.maximum(out[:, places], 0.0)


def _full(group: Group, model: _Model, parts: Iterator[_Rows], packed: Array) -> None:
    """Compute the full matrix of a model with several outputs."""
    outputs, width = model.pull.shape
    upper, lower = np.tril_indices(outputs)
    grams = np.zeros((width * (width + 1) // 2, len(upper)))  # a triangle for every two outputs
    pushed, turns = np.zeros((outputs, width)), np.zeros((outputs, outputs))
    tilted, priced = np.isfinite(model.tau), np.isfinite(group.problem.method.rho)
    moved = _Moves(model)
    for part in parts:
        p, g, place = part.share[:, None], part.slope, part.place
        bend = np.ascontiguousarray(part.bend[:, upper, lower])
        weight = p * (bend + g[:, upper] * g[:, lower] / model.tau) if tilted else p * bend
        _add_grams(place, np.ascontiguousarray(weight, dtype=place.dtype), grams)
        if tilted or priced:
            pushed += (p * g).T @ place
            turns += (p * g).T @ g
        if model.moves:
            moved.add(part)
    kernels.unfold(np.ascontiguousarray(grams.T), width, packed)
    if model.moves or tilted:
        kernels.lean_on(*moved.sums(), pushed, 1.0 / model.tau, packed)
    # F does not depend on a vector added to all classes: curvature there makes ∇²F definite.
    size, common = outputs * width, _pairs_of_outputs(outputs, width)
    places = packing.diagonal_places((size,))
    level = packed[places].reshape(outputs, width).sum(axis=0) / outputs**2
    inverse, dims = group.problem.geometry.inverse, group.problem.dims
    if priced and inverse.ndim == 1:  # as `_soften`, for every two outputs at once
        packed[common[:, :dims]] += turns[upper, lower][:, None] * inverse
    elif priced:
        soft = np.zeros((outputs, width, outputs, width))
        soft[:, :dims, :, :dims] = turns[:, None, :, None] * inverse[:, None]
        packed += packing.pack(soft.reshape(size, size), (size,)).astype(packed.dtype)
    if outputs > 1:
        packed[common] += level
    packed[places] = np.maximum(packed[places], 0.0)


class _Moves:
    """The terms of moving rows for every two outputs.

    The middle terms and the last one of ∇²f are QᵀA_ce + A_ecᵀQ in block (c, e), with
    A_ce = E_p[g_c E_e· zᵀ] + ½ E_p[g_c g_e E] Q. With Q = L R and L of r columns, all sums are of
    LᵀE and LᵀE L. If r columns move, fewer than there are outputs, L are those columns of Q: with
    44 classes and 5 columns a fortieth of the work. Otherwise L = I.
    """

    def __init__(self, model: _Model) -> None:
        outputs, width = model.pull.shape
        free = _moving_columns(model.pull)
        if len(free) < outputs:
            self.columns, self.rows = model.pull[:, free], np.eye(width)[free]
        else:  # L = I
            self.columns, self.rows = np.eye(outputs), model.pull
        rank = self.columns.shape[1]
        self.pairs = np.tril_indices(outputs)
        self.lean = np.zeros((outputs * width, outputs * rank))  # E_p[g_c z (EL)_e]
        self.twice = np.zeros((len(self.pairs[0]), rank**2))  # E_p[g_c g_e LᵀE L]

    def add(self, part: _Rows) -> None:
        """Add some rows."""
        g, place, (upper, lower) = part.slope, part.place, self.pairs
        count = len(g)
        turned = both = part.bend
        if self.columns.shape[1] < len(self.columns):
            turned = _times(part.bend, self.columns)
            both = self.columns.T @ turned
        push = part.share[:, None] * g
        beside = push.astype(place.dtype)[:, :, None] * place[:, None, :]
        flat = turned.reshape(count, -1).astype(place.dtype)
        self.lean += beside.reshape(count, -1).T @ flat
        square = (push[:, upper] * g[:, lower]).astype(place.dtype)
        self.twice += square.T @ both.reshape(count, -1).astype(place.dtype)

    def sums(self) -> tuple[Array, Array]:
        """Return R and its part of QᵀA (outputs, outputs, r, width)."""
        (outputs, rank), width = self.columns.shape, self.rows.shape[1]
        twice = np.empty((outputs, outputs, rank, rank))
        upper, lower = self.pairs
        twice[upper, lower] = twice[lower, upper] = self.twice.reshape(len(upper), rank, rank)
        lean = self.lean.reshape(outputs, width, outputs, rank).transpose(0, 2, 3, 1)
        return self.rows, np.ascontiguousarray(lean + 0.5 * (twice @ self.rows))


def _moving_columns(pull: Array) -> Array:
    """Return the indices of the columns in which rows move."""
    return np.flatnonzero(pull.any(axis=0))


def _times(bend: Array, columns: Array) -> Array:
    """Return the product of every row's matrix (n, outputs, outputs) and columns, by one call."""
    count, outputs, _ = bend.shape
    return np.asarray((bend.reshape(-1, outputs) @ columns).reshape(count, outputs, -1))


def _add_grams(place: Array, weight: Array, grams: Array) -> None:
    """Add Σ_j w_jq z_j z_jᵀ for every q; one product if all rows have the same weights (θ = 0)."""
    if (weight == weight[0]).all():
        once = np.zeros((len(grams), 1))
        kernels.gram(place, np.ones((len(place), 1), dtype=place.dtype), once)
        grams += once * weight[0]
    else:
        kernels.gram(place, weight, grams)


@cache
def _pairs_of_outputs(outputs: int, width: int) -> Array:
    """Return the indices of the entries ((c, k), (e, k)), c ≥ e, when packed: (pairs, width)."""
    upper, lower = np.tril_indices(outputs)
    rank = upper[:, None] * width + np.arange(width)
    return np.asarray(rank * (rank + 1) // 2 + lower[:, None] * width + np.arange(width))


def _blocks(group: Group, model: _Model, parts: Iterator[_Rows], packed: Array) -> None:
    """Compute one block for each output."""
    outputs, width = model.pull.shape
    total, sums = np.zeros((outputs, width, width)), _Sums(model)
    for part in parts:
        weight = sums.add(part)
        for c in range(outputs):
            total[c] += _square(part.place, weight[:, c])
    for c in range(outputs):
        total[c] += sums.rest(c, np.multiply.outer)
        _soften(group, total[c], sums.turns[c])
        np.einsum("kk->k", total[c])[:] = np.maximum(np.einsum("kk->k", total[c]), 0.0)
    packed[:] = np.concatenate([packing.pack(block, (width,)) for block in total])


def _diagonal(group: Group, model: _Model, parts: Iterator[_Rows], packed: Array) -> None:
    """Compute one number for each parameter."""
    total, sums = np.zeros(model.pull.shape), _Sums(model)
    for part in parts:
        total += sums.add(part).T @ np.square(part.place, dtype=np.float64)
    for c in range(len(total)):
        total[c] += sums.rest(c, np.multiply)
        _soften(group, total[c], sums.turns[c])
    packed[:] = np.maximum(total, 0.0).ravel()


class _Sums:
    """The terms of one output's block beside its Gram matrix."""

    def __init__(self, model: _Model) -> None:
        outputs, width = model.pull.shape
        self.model = model
        self.lean = np.zeros((outputs, outputs, width))  # E_p[g_c E_bc z]
        self.twice = np.zeros((outputs, outputs, outputs))  # E_p[g_c² E_ab]
        self.pushed, self.turns = np.zeros((outputs, width)), np.zeros(outputs)

    def add(self, part: _Rows) -> Array:
        """Add some rows and return their weights in the Gram matrices (n, outputs)."""
        p, g = part.share[:, None], part.slope
        self.pushed += (p * g).T @ part.place
        self.turns += (p * g * g).sum(axis=0)
        if self.model.moves:
            pairs = ((p * g)[:, :, None] * part.bend.transpose(0, 2, 1)).reshape(len(g), -1)
            self.lean += (pairs.T @ part.place).reshape(self.lean.shape)
            self.twice += np.tensordot(p * g * g, part.bend, axes=(0, 0))
        return _weight(p, g, np.einsum("ncc->nc", part.bend), self.model.tau)

    def rest(self, c: int, product: Callable[[Array, Array], Array]) -> Array:
        """Return the terms of output c beside the Gram matrix; `product` is outer, or plain."""
        pull, made = self.model.pull, -product(self.pushed[c], self.pushed[c]) / self.model.tau
        if self.model.moves:
            for b, q in enumerate(pull):
                made = made + product(q, self.lean[c, b]) + product(self.lean[c, b], q)
                made += product(q, self.twice[c, b] @ pull)
        return made


def _pieces(
    group: Group, i: int, model: _Model, share: Array, slope: Array, level: Array, target: Array
) -> Iterator[_Rows]:
    """Yield the client's rows at their maximisers, some at a time."""
    problem = group.problem
    precision = _precision(group)
    shrink, pull = problem.geometry.shrink.astype(precision), model.pull.astype(precision)
    anchor, dims = group.anchors[i].astype(precision), problem.dims
    first, stop = group.bounds[i : i + 2].tolist()
    step = _step(group)
    for start in range(first, stop, step):
        at = slice(start, min(start + step, stop))
        place = np.ones((at.stop - at.start, dims + problem.intercept), dtype=precision)
        np.add(apply(shrink, rowwise.dense(group.standing[at])), anchor, out=place[:, :dims])
        if model.moves:
            place[:, :dims] += slope[at].astype(precision) @ pull[:, :dims]
        bend = problem.loss.hessian(slope[at], target[at], level[at])
        bend = _stretched(bend, model.spread)
        yield _Rows(place, share[at], slope[at], bend)


def _step(group: Group) -> int:
    """Return the number of rows of a piece, limited by their columns and pairs of outputs."""
    widest = max(group.problem.dims, group.problem.outputs**2)
    return max(min(_PIECE, _NUMBERS // widest), 1)


def _precision(group: Group) -> np.dtype[Any]:
    return np.dtype(np.float64 if group.problem.size <= _SMALL else np.float32)


def _stretched(bend: Array, spread: Array) -> Array:
    """Return E = D (I − S D)⁻¹; D if that is nearly singular or indefinite."""
    if not spread.any():
        return bend
    if len(spread) == 1:
        return np.asarray(bend / np.maximum(1.0 - spread * bend, 0.1))
    values, vectors = np.linalg.eigh(spread)
    large = values > _RANK * values[-1]
    if 2 * int(large.sum()) >= len(spread):
        return np.asarray(kernels.stretch(np.ascontiguousarray(bend), spread))
    # With S = B Bᵀ of low rank, E = D + D B (I − BᵀD B)⁻¹ BᵀD.
    root = vectors[:, large] * np.sqrt(values[large])
    turned = _times(bend, root)
    core = np.eye(root.shape[1]) - root.T @ turned
    core[np.linalg.det(core) == 0.0] = np.eye(root.shape[1])
    solved = np.linalg.solve(core, turned.swapaxes(1, 2))
    plain, added = np.einsum("ncc->n", bend), np.einsum("ncr,nrc->n", turned, solved)
    good = (-0.01 * plain < added) & (added < 9.0 * plain)
    return np.asarray(bend + turned @ np.where(good[:, None, None], solved, 0.0))


def _square(place: Array, weight: Array) -> Array:
    """Return Σ_j w_j z_j z_jᵀ, for weights of at least 0."""
    weighted = place * np.sqrt(np.maximum(weight, 0.0)).astype(place.dtype)[:, None]
    return np.asarray(weighted.T @ weighted)


def _soften(group: Group, block: Array, amount: float) -> None:
    """Add `amount` · K⁻¹, by which the move of rows grows with θ, to a block or its diagonal."""
    inverse, dims = group.problem.geometry.inverse, group.problem.dims
    if np.isinf(group.problem.method.rho):
        return
    if block.ndim == 1:
        block[:dims] += amount * (inverse if inverse.ndim == 1 else np.diag(inverse))
    elif inverse.ndim == 1:
        np.einsum("kk->k", block)[:dims] += amount * inverse
    else:
        block[:dims, :dims] += amount * inverse
