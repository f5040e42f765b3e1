"""Is the vector layer of the kernels worth it? A pass in plain Numba, beside dorfl's: one thread.

`plain_pass` has the blocks, formulas and precision of :func:`dorfl.linear.kernels.one_pass` for the
logistic loss, and no operation on vector registers: LLVM vectorises its loops, and may reorder the
sums of the two products, which dorfl's kernels do not. Candidates take turns (`rounds.py`), in
processor time. The layer stays if it gains a factor of 1.25 at two of three sizes.

    PYTHONPATH=. python benchmarks/plain.py
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import dorfl
from dorfl.federated.training import prepare
from dorfl.linear import kernels
from dorfl.linear.group import NO_ROOM, Group
from dorfl.linear.kernels import (
    _NARROW,
    CHUNK,
    _exp,
    _margin_guess,
    _margin_loss,
    _margin_nearer,
    _margin_start,
    _margin_step,
    _margin_value,
    _tilt,
)
from rounds import METHOD, SIZES, fastest, problem

WORTH = 1.25  # gain from which on the layer is kept
BLOCK = 64  # rows of a block, as in the kernels
LEVEL = 2e-3  # Halley's last step, as in the kernels for single precision
LANES: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}, "nogil": True}
SUMS: dict[str, Any] = {**LANES, "fastmath": {"contract", "reassoc", "nsz"}}
Array = NDArray[Any]


@njit(**SUMS)
def outputs(rows: Array, first: int, count: int, weights: Array, bias: float, out: Array) -> None:
    """Compute weights · row + bias of a block."""
    for j in range(count):
        row, total = rows[first + j], rows.dtype.type(0)
        for k in range(len(weights)):
            total += row[k] * weights[k]
        out[j] = bias + total


@njit(**SUMS)
def weighted_rows(rows: Array, first: int, count: int, factor: Array, part: Array) -> None:
    """Add Σ_j factor_j row_j of a block, eight rows at a time."""
    whole = count // 8 * 8
    for j in range(0, whole, 8):
        some, own = rows[first + j : first + j + 8], factor[j : j + 8]
        for k in range(len(part)):
            part[k] += (
                own[0] * some[0, k] + own[1] * some[1, k] + own[2] * some[2, k]
                + own[3] * some[3, k] + own[4] * some[4, k] + own[5] * some[5, k]
                + own[6] * some[6, k] + own[7] * some[7, k]
            )  # fmt: skip
    for j in range(whole, count):
        for k in range(len(part)):
            part[k] += factor[j] * rows[first + j, k]


@njit(**LANES)
def suprema(
    output: Array, label: Array, spread: float, like: Any, value: Array, slope: Array, room: Array
) -> None:
    """Compute the logistic supremum of the rows of a block."""
    t, e, off = room
    if 0.0 < spread <= _NARROW:
        for j in range(BLOCK):
            b = label[j] * output[j] - 0.5 * spread
            u = _margin_guess(b, spread)
            loss, small = _margin_loss(_exp(-u, like), like)
            u, loss, small = _margin_nearer(u, loss, small, b, spread)
            value[j], s = _margin_value(u, loss, small, b, spread)
            slope[j] = -label[j] * s
        return
    for j in range(BLOCK):
        b = label[j] * output[j] - 0.5 * spread
        t[j] = _margin_start(b, spread) if spread > 0.0 else abs(b)
        e[j] = _exp(-t[j], like)
    for _ in range(60 if spread > 0.0 else 0):
        for j in range(BLOCK):
            b = label[j] * output[j] - 0.5 * spread
            step, e[j], off[j] = _margin_step(t[j], b, spread, LEVEL, like)
            t[j] -= step
        if off.max() < 0.0:
            break
    for j in range(BLOCK):
        b = label[j] * output[j] - 0.5 * spread
        loss, small = _margin_loss(e[j], like)
        value[j], s = _margin_value(t[j], loss, small, b, spread)
        slope[j] = -label[j] * s


@njit(**SUMS)
def tilts(
    value: Array, slope: Array, scale: float, top: float, like: Any, factor: Array
) -> tuple[float, float, float]:
    """Compute the weights of a block's rows, and the sums of w − 1, w g and w g²."""
    total = pushed = squared = 0.0
    for j in range(BLOCK):
        weight, gained = _tilt(value[j], scale, top, like)
        push = weight * slope[j]
        factor[j] = push
        value[j] = gained
        slope[j] *= push
    for j in range(BLOCK):
        total += value[j]
        squared += slope[j]
        pushed += factor[j]
    return total, pushed, squared


@njit(**LANES)
def plain_pass(
    rows: Array, target: Array, penalty: Array, chunks: Array, effective: Array, intercept: Array,
    anchors: Array, weights: Array, spread: Array, scale: float, levels: Array, moments: Array,
    slopes: Array, squares: Array,
) -> None:  # fmt: skip
    """Compute what :func:`dorfl.linear.kernels.one_pass` computes."""
    dims, like = rows.shape[1], rows.dtype.type(0)
    output, label, value, slope = np.zeros((4, BLOCK))
    room, factor = np.zeros((3, BLOCK)), np.zeros(BLOCK, rows.dtype)
    part = np.zeros(dims, rows.dtype)
    for chunk in range(len(chunks)):
        start, stop, client = chunks[chunk]
        bias = intercept[0]
        for k in range(anchors.shape[1]):
            bias += anchors[client, k] * weights[0, k]
        moment = moments[chunk, 0]
        top = -np.inf if scale > 0.0 else 0.0
        total = pushed = squared = 0.0
        for first in range(start, stop, BLOCK):
            count = min(BLOCK, stop - first)
            outputs(rows, first, count, effective[0], bias, output)
            for j in range(count):
                label[j] = target[first + j]
            suprema(output, label, spread[0, 0], like, value, slope, room)
            largest = -np.inf
            for j in range(count):
                value[j] -= penalty[first + j]
                largest = max(largest, value[j])
            if (largest - top) * scale > 1.0:
                shrink = math.exp((top - largest) * scale)
                grown = math.expm1((top - largest) * scale)
                total = total * shrink + (first - start) * grown
                pushed, squared = pushed * shrink, squared * shrink
                moment *= shrink
                top = largest
            value[count:], slope[count:] = top, 0.0
            gained, push, square = tilts(value, slope, scale, top, like, factor)
            total, pushed, squared = total + gained, pushed + push, squared + square
            part[:] = 0.0
            weighted_rows(rows, first, count, factor, part)
            for k in range(dims):
                moment[k] += part[k]
        levels[chunk, 0], levels[chunk, 1] = top * scale, total
        slopes[chunk, 0], squares[chunk, 0, 0] = pushed, squared


def passes(group: Group, theta: Array) -> tuple[Any, Any, Any]:
    """Return both passes over the rows of a group, and a check that they agree."""
    ready, count, dims = group._ready(theta), len(group.chunks), group.rows.shape[1]
    shapes = ((count, 3), (count, 1, dims), (count, 1), (count, 1, 1))
    ours, plain = ([np.zeros(shape) for shape in shapes] for _ in range(2))
    scale = group._method[0]

    def layered() -> None:
        ours[1][:] = 0.0
        kernels.one_pass(
            group.standing, group.target, group.penalty, group.chunks, np.zeros(1, np.int64),
            ready.effective, ready.weights, ready.intercept, group.anchors, ready.spread,
            *group._method, *group._closed, *ours, False, *NO_ROOM,
        )  # fmt: skip

    def without() -> None:
        plain[1][:] = 0.0
        plain_pass(
            group.standing, group.target, group.penalty, group.chunks, ready.effective,
            ready.intercept, group.anchors, ready.weights, ready.spread, scale, *plain,
        )  # fmt: skip

    def check() -> None:
        """Compare sums in the same unit: each pass weights rows relative to a level of its own."""
        sizes = np.diff(group.chunks[:, :2]).ravel()
        found = []
        for levels, moments, *_ in (ours, plain):
            unit = np.exp(levels[:, 0])
            found.append((levels[:, 1], moments))
            if scale > 0.0:
                found[-1] = (unit * (sizes + levels[:, 1]), unit[:, None, None] * moments)
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * CHUNK)

    return layered, without, check


def main() -> None:
    table = Table("n", "d", "method", "kernels ms", "plain ms", "plain ÷ kernels")
    gains: dict[str, list[float]] = {"DOR-FL": [], "ERM": []}
    for n, d in SIZES:
        ours = prepare(problem(n, d), METHOD, intercept=False)
        erm = replace(prepare(problem(n, d), dorfl.methods.erm(), intercept=False), rows=ours.rows)
        theta = np.random.default_rng(0).standard_normal(d) / np.sqrt(d)
        for name, group in (("DOR-FL", ours), ("ERM", erm)):
            layered, without, check = passes(group, theta)
            best = fastest({"kernels": layered, "plain": without}, 3.0, 1)
            check()
            gains[name].append(best["plain"] / best["kernels"])
            times = [f"{1e3 * best[one]:.3f}" for one in ("kernels", "plain")]
            table.add_row(f"{n:,}", str(d), name, *times, f"{gains[name][-1]:.2f}")
    console = Console(width=120)
    console.print(table)
    enough = sum(gain >= WORTH for gain in gains["DOR-FL"])
    console.print(f"DOR-FL: at least {WORTH} at {enough} of {len(SIZES)} sizes (kept from two on)")


if __name__ == "__main__":
    main()
