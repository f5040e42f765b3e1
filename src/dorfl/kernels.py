"""One pass over the rows: supremum, tilt and gradient together, each row read once.

A linear model sees a row only through its outputs t = W x, so the inner supremum

    f(ζ) = sup_x  l(W x, y) − h(x) − ρ c(x, ζ)

collapses to a problem in as many unknowns as the model has outputs. With a = W m the outputs at
the row's centre m and S = W K⁻¹ Wᵀ (see :mod:`dorfl.inner` for m and K),

    f(ζ) = max_t  l(t, y) − ½ (t − a)ᵀ S⁻¹ (t − a)  −  penalty(ζ),       t − a = S g,  g = ∂l/∂t.

S = 0 is the plain loss: no transport is not a special case. Every function here works on a block of
rows staged in small arrays, because that is what lets LLVM vectorise it; sums are kept per chunk of
rows and combined in a fixed order, so that the answer does not depend on the number of threads.

All compiled code lives in this one file: Numba's disk cache notices a change in the file a function
is written in, and in no other.
"""

import math
from typing import Any

import numpy as np
from numba import njit

LOGISTIC, SQUARED, HUBER, SOFTMAX = range(4)

BLOCK = 64  # rows staged at once: their values stay in the first-level cache between the stages
QUARTER = BLOCK // 4
CHUNK = 4096  # rows summed into one partial result; fixed, whatever the number of threads

_MAGIC = 6755399441055744.0  # 1.5 · 2⁵²: adding it rounds to an integer, kept in the low bits
_SCALAR: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"contract"},
}  # no reordering: exact to the last bits
_SUMS: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc", "nsz"},
}  # reductions in lanes
_SETTLED = 1e-5  # a third-order step of this size leaves an error below 1e-15


@njit(nogil=True, cache=True, **_SCALAR)
def _exp(x):
    """e^x for x ≤ 0, to a unit in the last place. A call of libm's would not be vectorised."""
    x = max(x, -708.0)
    shifted = x * 1.4426950408889634 + _MAGIC
    n = shifted - _MAGIC
    r = x - n * 0.6931471803691238 - n * 1.9082149292705877e-10
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    bits = np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)
    return np.int64(bits).view(np.float64)


@njit(nogil=True, cache=True, **_SCALAR)
def _log1p(e):
    """log(1 + e) for 0 ≤ e ≤ 1, as 2 artanh(e / (2 + e))."""
    r = e / (2.0 + e)
    z = r * r
    p = 2.0 / 31.0
    p = p * z + 2.0 / 29.0
    p = p * z + 2.0 / 27.0
    p = p * z + 2.0 / 25.0
    p = p * z + 2.0 / 23.0
    p = p * z + 2.0 / 21.0
    p = p * z + 2.0 / 19.0
    p = p * z + 2.0 / 17.0
    p = p * z + 2.0 / 15.0
    p = p * z + 2.0 / 13.0
    p = p * z + 2.0 / 11.0
    p = p * z + 2.0 / 9.0
    p = p * z + 2.0 / 7.0
    p = p * z + 2.0 / 5.0
    p = p * z + 2.0 / 3.0
    p = p * z + 2.0
    return p * r


# ── logistic ────────────────────────────────────────────────────────────────────────────────────
# The margin u at the maximiser solves u = a − S σ(−u). With b = a − S/2 the *global* maximiser has
# sign(u) = sign(b) and |u| = t, the root of t = |b| + (S/2) tanh(t/2), for every S: also where the
# problem is not concave (S > 4) and has two local maxima.


@njit(nogil=True, cache=True, **_SCALAR)
def _margin_start(b, spread):
    """An upper bound of the root: tanh(t/2) ≤ 1 and, where it helps, tanh(t/2) ≤ t/2."""
    wide = abs(b) + 0.5 * spread
    return min(wide, abs(b) / (1.0 - 0.25 * spread)) if spread < 4.0 else wide


@njit(nogil=True, cache=True, **_SCALAR)
def _margin_step(t, b, spread):
    """Halley's step for t − |b| − (S/2) tanh(t/2), e^−t after it, and how far t was from settled.

    With e = e^−t, tanh(t/2) is (1 − e)/(1 + e); all is multiplied by powers of 1 + e, which leaves
    one division. Near S = 4, b = 0 the root is nearly triple and steps shrink slowly: comparing
    them with the slope keeps the iteration going there. Settled is what is below zero.
    """
    e = _exp(-t)
    over, under = 1.0 - e, 1.0 + e
    residual = (t - abs(b)) * under - 0.5 * spread * over
    slope = under * under - spread * e
    step = 2.0 * residual * slope * under / (2.0 * slope * slope - residual * spread * e * over)
    tail = e * (1.0 + step * (1.0 + step * (0.5 + step * (1.0 / 6.0))))  # for a settled step exact
    return step, tail, abs(step) * under * under - _SETTLED * abs(slope)


@njit(nogil=True, cache=True, **_SCALAR)
def _margin_value(t, e, b, spread):
    """log(1 + e^−u) − ½ S s² and s = σ(−u), at u = sign(b) t with e = e^−t."""
    small = e / (1.0 + e)
    s = small if b >= 0.0 else 1.0 - small
    value = _log1p(e) + (0.0 if b >= 0.0 else t) - 0.5 * spread * s * s
    return value, s


@njit(nogil=True, cache=True, **_SCALAR)
def _logistic_point(margin, spread):
    """The logistic supremum at one margin: (value, s)."""
    b = margin - 0.5 * spread
    t = _margin_start(b, spread)
    for _ in range(60):
        step, e, off = _margin_step(t, b, spread)
        t -= step
        if off < 0.0 or t <= 0.0:
            break
    return _margin_value(t, e, b, spread)


@njit(nogil=True, cache=True, **_SCALAR)
def _logistic_block(output, label, spread, t, tail, value, slope):
    """The logistic supremum of a block; label is ±1, slope is ∂f/∂a = −y s."""
    half = 0.5 * spread
    for j in range(BLOCK):
        t[j] = _margin_start(label[j] * output[j] - half, spread)
    if spread > 0.0:
        for _ in range(60):
            for j in range(BLOCK):
                step, tail[j], value[j] = _margin_step(t[j], label[j] * output[j] - half, spread)
                t[j] -= step
            worst = -1.0
            for j in range(BLOCK):
                worst = max(worst, value[j])
            if worst < 0.0:
                break
    else:
        for j in range(BLOCK):
            tail[j] = _exp(-t[j])
    for j in range(BLOCK):
        v, s = _margin_value(t[j], tail[j], label[j] * output[j] - half, spread)
        value[j] = v
        slope[j] = -label[j] * s


# ── squared and Huber ───────────────────────────────────────────────────────────────────────────


@njit(nogil=True, cache=True, **_SCALAR)
def _squared_block(output, label, spread, value, slope):
    """½ (a − y)² / (1 − S); the caller has made sure that S < 1."""
    gain = 1.0 / (1.0 - spread)
    for j in range(BLOCK):
        residual = output[j] - label[j]
        slope[j] = gain * residual
        value[j] = 0.5 * gain * residual * residual


@njit(nogil=True, cache=True, **_SCALAR)
def _huber_block(output, label, spread, delta, value, slope):
    """Two branches: the row stays in the quadratic part, or is carried into the linear one."""
    edge = delta * (1.0 - spread)
    gain = 1.0 / (1.0 - spread) if spread < 1.0 else 0.0
    for j in range(BLOCK):
        residual = output[j] - label[j]
        if abs(residual) < edge:
            slope[j] = gain * residual
            value[j] = 0.5 * gain * residual * residual
        else:
            slope[j] = delta if residual >= 0.0 else -delta
            value[j] = delta * abs(residual) + 0.5 * delta * delta * (spread - 1.0)


# ── softmax ─────────────────────────────────────────────────────────────────────────────────────


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax(t, out):
    """softmax(t) into `out`; returns log Σ exp(t)."""
    top = t.max()
    total = 0.0
    for c in range(t.size):
        out[c] = math.exp(t[c] - top)
        total += out[c]
    for c in range(t.size):
        out[c] /= total
    return top + math.log(total)


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_height(a, label, spread, g, t, p):
    """The objective attained by moving the row with slope g; t = a + S g and p = softmax(t)."""
    t[:] = a + spread @ g
    return _softmax(t, p) - t[label] - 0.5 * (g @ (t - a))


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_climb(a, label, spread, g):
    """Climb from slope `g` to where g = softmax(a + S g) − e_y; returns the height reached.

    The fixed-point step maximises the objective with its convex part linearised, so it never goes
    down. Newton's step replaces it wherever it gets higher, which near the end is always.
    """
    classes = a.size
    t, p = np.empty(classes), np.empty(classes)
    newton, jacobian = np.empty(classes), np.empty((classes, classes))
    height = _softmax_height(a, label, spread, g, t, p)
    for _ in range(500):
        p[label] -= 1.0
        residual = p - g
        if np.abs(residual).max() <= 1e-14:
            break
        p[label] += 1.0
        for c in range(classes):
            for e in range(classes):
                jacobian[c, e] = 1.0 if c == e else 0.0
                for i in range(classes):
                    bend = p[c] * ((1.0 if c == i else 0.0) - p[i])
                    jacobian[c, e] -= bend * spread[i, e]
        newton[:] = g + np.linalg.solve(jacobian, residual)
        g += residual
        risen = _softmax_height(a, label, spread, g, t, p)
        better = _softmax_height(a, label, spread, newton, t, p)
        if better >= risen:
            g[:] = newton
            risen = better
        else:
            _softmax_height(a, label, spread, g, t, p)
        if risen <= height and np.abs(residual).max() < 1e-9:
            break  # nothing left to gain but rounding
        height = risen
    return height


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_row(a, label, spread, concave, slope):
    """The softmax supremum of one row; where it is not concave, the best of a climb per class."""
    g = np.zeros(a.size)
    best = _softmax_climb(a, label, spread, g)
    slope[:] = g
    if not concave:
        for c in range(a.size):
            if c != label:
                g[:] = 0.0
                g[c], g[label] = 1.0, -1.0
                value = _softmax_climb(a, label, spread, g)
                if value > best:
                    best = value
                    slope[:] = g
    return best


# ── the threshold score ─────────────────────────────────────────────────────────────────────────
# h(x) = ω₂ σ((x_k − D)/s) for one label. For x_k = v held fixed the rest is the logistic supremum
# with the spread of the other coordinates, so the search is in v alone.


@njit(nogil=True, cache=True, **_SCALAR)
def _threshold_slope(v, row, score):
    """First and second derivative in v, value and σ(−u) of the supremum with x_k = v."""
    rest, label, theta, spread, origin = row
    stiffness, level, softness, weight = score
    value, s = _logistic_point(label * (rest + theta * v), spread)
    e = _exp(-abs(v - level) / softness)
    small = e / (1.0 + e)
    sigmoid = small if v < level else 1.0 - small
    bell = small * (1.0 - small)
    curve = s * (1.0 - s)
    bend = theta * theta * curve / max(1.0 - spread * curve, 1e-300)
    first = -s * label * theta - stiffness * (v - origin) - weight / softness * bell
    second = bend - stiffness - weight / softness**2 * bell * (1.0 - 2.0 * sigmoid)
    return first, second, value - 0.5 * stiffness * (v - origin) ** 2 - weight * sigmoid, s


@njit(nogil=True, cache=True, **_SCALAR)
def _threshold_root(low, high, v, row, score):
    """The maximiser between `low`, where the slope is ≥ 0, and `high`, where it is ≤ 0, from v."""
    for _ in range(200):
        first, second, _value, _s = _threshold_slope(v, row, score)
        if first >= 0.0:
            low = v
        else:
            high = v
        newton = v - first / second if second < 0.0 else np.inf
        following = newton if low < newton < high else 0.5 * (low + high)
        if min(abs(newton - v), abs(following - v)) <= 1e-15 * (1.0 + abs(v)):
            break
        v = following
    return v


@njit(nogil=True, cache=True, **_SCALAR)
def _threshold_row(output, label, spread, x, theta, score, plain):
    """(value, s, v) of a row the score applies to; `plain` is its x_k without the score.

    The score only pushes down. Where the problem is concave every stationary point lies left of the
    plain optimum, and if that is below the threshold the function is concave from there on: one
    bracketed root is the answer. Otherwise every local maximum is found from a grid as fine as the
    two sigmoids that shape the function, with a point on either side of the kink that the supremum
    over the other coordinates has where it changes sides.
    """
    stiffness, level, softness, weight = score
    other = max(spread - theta * theta / stiffness, 0.0)
    row = (output - theta * x, label, theta, other, x)
    low = x + (min(0.0, -label * theta) - 0.25 * weight / softness) / stiffness
    high = x + max(0.0, -label * theta) / stiffness
    if spread < 4.0 and plain <= level:
        best = _threshold_root(
            low, plain, plain, row, score
        )  # the score is often a mere whiff there
    else:
        half = 97
        grid = np.empty(2 * half + 4)
        kink = (label * 0.5 * other - row[0]) / theta if theta != 0.0 else x
        for i in range(half):
            offset = 0.75 * (i - half // 2)
            grid[i] = level + softness * offset
            grid[half + i] = kink + offset / theta if theta != 0.0 else x
        beside = 1e-9 * (1.0 + abs(kink))
        grid[half + half // 2] = kink - beside
        grid[2 * half] = kink + beside
        grid[2 * half + 1], grid[2 * half + 2], grid[2 * half + 3] = low, high, plain
        for i in range(grid.size):
            grid[i] = min(max(grid[i], low), high)
        grid.sort()
        best, top, before = low, -np.inf, 1.0
        for i in range(grid.size):
            first, _second, value, _s = _threshold_slope(grid[i], row, score)
            if value > top:
                best, top = grid[i], value
            if i > 0 and before > 0.0 and first <= 0.0 and grid[i] > grid[i - 1]:
                middle = 0.5 * (grid[i - 1] + grid[i])
                v = _threshold_root(grid[i - 1], grid[i], middle, row, score)
                _first, _second, value, _s = _threshold_slope(v, row, score)
                if value > top:
                    best, top = v, value
            before = first
    _first, _second, value, s = _threshold_slope(best, row, score)
    return value, s, best


@njit(nogil=True, cache=True, **_SCALAR)
def _resting_score(x, level, softness, weight):
    """h of a row whose column cannot move."""
    e = _exp(-abs(x - level) / softness)
    return weight * (e / (1.0 + e) if x < level else 1.0 / (1.0 + e))


# ── the pass ────────────────────────────────────────────────────────────────────────────────────


@njit(nogil=True, cache=True, **_SUMS)
def _outputs(rows, first, count, weights, bias, out):
    """out[j] = weights · row_j + bias for a block of rows (zero beyond the last one)."""
    if count == BLOCK:  # four rows a quarter of a block apart: as many streams for the prefetcher
        for j in range(QUARTER):
            i = first + j
            a0 = a1 = a2 = a3 = rows.dtype.type(0)
            for k in range(rows.shape[1]):
                a0 += rows[i, k] * weights[k]
                a1 += rows[i + QUARTER, k] * weights[k]
                a2 += rows[i + 2 * QUARTER, k] * weights[k]
                a3 += rows[i + 3 * QUARTER, k] * weights[k]
            out[j] = a0 + bias
            out[j + QUARTER] = a1 + bias
            out[j + 2 * QUARTER] = a2 + bias
            out[j + 3 * QUARTER] = a3 + bias
        return
    for j in range(count):
        total = rows.dtype.type(0)
        for k in range(rows.shape[1]):
            total += rows[first + j, k] * weights[k]
        out[j] = total + bias
    for j in range(count, BLOCK):
        out[j] = 0.0


@njit(nogil=True, cache=True, **_SUMS)
def _weighted_rows(rows, first, count, coefficient, total):
    """total += Σ_j coefficient_j row_j, four rows at a time so that `total` stays in registers."""
    j = 0
    while j + 4 <= count:
        c0, c1, c2, c3 = coefficient[j], coefficient[j + 1], coefficient[j + 2], coefficient[j + 3]
        for k in range(rows.shape[1]):
            total[k] += (
                c0 * rows[first + j, k]
                + c1 * rows[first + j + 1, k]
                + c2 * rows[first + j + 2, k]
                + c3 * rows[first + j + 3, k]
            )
        j += 4
    while j < count:
        c0 = coefficient[j]
        for k in range(rows.shape[1]):
            total[k] += c0 * rows[first + j, k]
        j += 1


@njit(nogil=True, cache=True, **_SCALAR)
def _copy(source, first, count, out):
    """The block's part of `source`; a slice spares a check of every index for its sign."""
    part = source[first : first + count]
    for j in range(count):
        out[j] = part[j]


@njit(nogil=True, cache=True, **_SCALAR)
def _subtract(source, first, count, out):
    """Take the block's part of `source` from `out`."""
    part = source[first : first + count]
    for j in range(count):
        out[j] -= part[j]


@njit(nogil=True, cache=True, **_SCALAR)
def _push(weight, slope, count, push, coefficient):
    """The product w g, and the same in the rows' own precision."""
    for j in range(count):
        push[j] = weight[j] * slope[j]
    for j in range(count):
        coefficient[j] = push[j]


@njit(nogil=True, cache=True, **_SUMS)
def _sum(a, count, less):
    """Σ_j (a_j − less)."""
    total = 0.0
    for j in range(count):
        total += a[j] - less
    return total


@njit(nogil=True, cache=True, **_SUMS)
def _dot(a, b, count):
    """Σ_j a_j b_j."""
    total = 0.0
    for j in range(count):
        total += a[j] * b[j]
    return total


@njit(nogil=True, cache=True, **_SCALAR)
def _tilt(value, count, scale, top, weight):
    """weight_j = exp(value_j · scale − new top); returns the new top and Σ (weight_j − 1).

    The sum is that of expm1 and not of exp, because ρβ log mean exp(f/ρβ) is a small difference of
    large numbers where ρβ is large.
    """
    for j in range(count):
        weight[j] = value[j] * scale
    for j in range(count):
        top = max(top, weight[j])
    lowest = 0.0
    for j in range(count):
        weight[j] -= top
        lowest = min(lowest, weight[j])
    total = 0.0
    if lowest > -1e-3:
        for j in range(count):
            x = weight[j]
            total += x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0))))
            weight[j] = _exp(x)
    else:
        for j in range(count):
            weight[j] = _exp(weight[j])
        total = _sum(weight, count, 1.0)
    return top, total


@njit(nogil=True, cache=True, **_SCALAR)
def _apply_threshold(
    rows, first, count, output, label, spread, weights, threshold, value, slope, shift
):
    """Replace value and slope of the rows the threshold score applies to; shift is x_k's move."""
    coordinate, stiffness, level, softness, weight, marked = threshold
    k = int(coordinate)
    theta = float(weights[k])
    for j in range(count):
        shift[j] = 0.0
        if label[j] != marked:
            continue
        x = float(rows[first + j, k])
        if stiffness == np.inf:
            value[j] -= _resting_score(x, level, softness, weight)
            continue
        plain = x + slope[j] * theta / stiffness
        e = _exp(min(plain - level, 0.0) / softness)
        if weight * e <= 1e-10 * min(1.0, softness * stiffness):
            value[j] -= weight * e  # too faint to move the row: the optimum stays where it is
            continue
        score = (stiffness, level, softness, weight)
        value[j], s, v = _threshold_row(output[j], label[j], spread, x, theta, score, plain)
        slope[j] = -label[j] * s
        shift[j] = v - (x + slope[j] * theta / stiffness)


@njit(nogil=True, cache=True, **_SCALAR)
def one_pass(
    rows, target, penalty, chunks, begin, end, weights, bias, spread, scale, kind, delta, price,
    concave, threshold, keep, tops, totals, moments, slopes, squares, shifts, f, g, labels, moves,
):  # fmt: skip
    """Everything the risks need from the rows in chunks[begin:end] = [(start, stop, client), …].

    Per chunk: the top of f·scale, Σ (w − 1) (or Σ f where scale = 0, the plain mean), Σ w g xᵀ,
    Σ w g, Σ w g gᵀ and Σ w g · shift, with w = exp(f·scale − top). With `keep`, also per row: f, g,
    the label at the maximiser, and how far the threshold's coordinate moves beyond the loss.
    """
    outputs, dims = weights.shape
    output = np.zeros((outputs, BLOCK))
    label = np.ones(BLOCK)
    value, other_value = np.empty(BLOCK), np.empty(BLOCK)
    slope, other_slope = np.zeros((outputs, BLOCK)), np.zeros((outputs, BLOCK))
    shift, other_shift = np.zeros(BLOCK), np.zeros(BLOCK)
    weight, root, other_label = np.ones(BLOCK), np.empty(BLOCK), np.ones(BLOCK)
    push, tail = np.empty(BLOCK), np.empty(BLOCK)
    coefficient = np.empty(BLOCK, rows.dtype)
    partial = np.empty(dims, rows.dtype)
    row_output, row_slope, row_best = np.empty(outputs), np.empty(outputs), np.empty(outputs)
    scored = threshold[4] > 0.0
    priced = price < np.inf
    for chunk in range(begin, end):
        start, stop, client = chunks[chunk]
        top = -np.inf if scale > 0.0 else 0.0
        total = 0.0
        moved = 0.0
        for first in range(start, stop, BLOCK):
            count = min(BLOCK, stop - first)
            for c in range(outputs):
                _outputs(rows, first, count, weights[c], bias[client, c], output[c])
            _copy(target, first, count, label)

            if kind == LOGISTIC:
                _logistic_block(output[0], label, spread[0, 0], root, tail, value, slope[0])
                if scored:
                    _apply_threshold(
                        rows, first, count, output[0], label, spread[0, 0], weights[0], threshold,
                        value, slope[0], shift,
                    )  # fmt: skip
                if priced:
                    for j in range(count):
                        other_label[j] = -label[j]
                    _logistic_block(
                        output[0], other_label, spread[0, 0], root, tail, other_value,
                        other_slope[0],
                    )  # fmt: skip
                    if scored:
                        _apply_threshold(
                            rows, first, count, output[0], other_label, spread[0, 0], weights[0],
                            threshold, other_value, other_slope[0], other_shift,
                        )  # fmt: skip
                    for j in range(count):
                        if other_value[j] - price > value[j]:
                            value[j] = other_value[j] - price
                            slope[0, j] = other_slope[0, j]
                            shift[j] = other_shift[j]
                            label[j] = other_label[j]
            elif kind == SQUARED:
                _squared_block(output[0], label, spread[0, 0], value, slope[0])
            elif kind == HUBER:
                _huber_block(output[0], label, spread[0, 0], delta, value, slope[0])
            else:
                for j in range(count):
                    for c in range(outputs):
                        row_output[c] = output[c, j]
                    own, marked, resting = int(label[j]), -1, 0.0
                    if scored:  # its column is frozen: otherwise the score is left to ascent
                        marked = int(threshold[5])
                        x = float(rows[first + j, int(threshold[0])])
                        resting = _resting_score(x, threshold[2], threshold[3], threshold[4])
                    value[j] = _softmax_row(row_output, own, spread, concave, row_best)
                    value[j] -= resting if own == marked else 0.0
                    if priced:
                        for c in range(outputs):
                            if c != own:
                                v = _softmax_row(row_output, c, spread, concave, row_slope) - price
                                v -= resting if c == marked else 0.0
                                if v > value[j]:
                                    value[j] = v
                                    label[j] = c
                                    row_best[:] = row_slope
                    for c in range(outputs):
                        slope[c, j] = row_best[c]

            _subtract(penalty, first, count, value)
            if scale > 0.0:
                risen, gained = _tilt(value, count, scale, top, weight)
                if risen > top:
                    shrink = math.exp(top - risen)
                    total = total * shrink + (first - start) * math.expm1(top - risen)
                    moved *= shrink
                    moments[chunk] *= shrink
                    slopes[chunk] *= shrink
                    squares[chunk] *= shrink
                    top = risen
                total += gained
            else:
                total += _sum(value, count, 0.0)
            for c in range(outputs):
                _push(weight, slope[c], count, push, coefficient)
                slopes[chunk, c] += _sum(push, count, 0.0)
                for e in range(outputs):
                    squares[chunk, c, e] += _dot(push, slope[e], count)
                partial[:] = 0
                _weighted_rows(rows, first, count, coefficient, partial)
                for k in range(dims):
                    moments[chunk, c, k] += partial[k]
            if scored:
                for j in range(count):
                    moved += weight[j] * slope[0, j] * shift[j]
            if keep:
                for j in range(count):
                    f[first + j] = value[j]
                    labels[first + j] = label[j]
                    moves[first + j] = shift[j]
                    for c in range(outputs):
                        g[first + j, c] = slope[c, j]
        tops[chunk] = top
        totals[chunk] = total
        shifts[chunk] = moved


@njit(nogil=True, cache=True, **_SCALAR)
def combine(chunks, counts, scale, tops, totals, moments, slopes, squares, shifts):
    """The sums of :func:`one_pass` by client, chunks in their order, with p for w.

    Per client: scale · F (or F where scale = 0), Σ p g xᵀ, Σ p g, Σ p g gᵀ and Σ p g · shift.
    """
    clients, (_, outputs, dims) = len(counts), moments.shape
    moment, slope = np.zeros((clients, outputs, dims)), np.zeros((clients, outputs))
    square, shift = np.zeros((clients, outputs, outputs)), np.zeros(clients)
    values, top, beyond = np.zeros(clients), np.full(clients, -np.inf), np.zeros(clients)
    for chunk in range(len(chunks)):
        client = chunks[chunk, 2]
        top[client] = max(top[client], tops[chunk])
    for chunk in range(len(chunks)):
        start, stop, client = chunks[chunk]
        if scale > 0.0:
            below = math.expm1(tops[chunk] - top[client])
            beyond[client] += totals[chunk] * (below + 1.0) + (stop - start) * below  # Σ (w − 1)
        else:
            values[client] += totals[chunk] / counts[client]
    for chunk in range(len(chunks)):
        client = chunks[chunk, 2]
        share = math.exp(tops[chunk] - top[client]) / (counts[client] + beyond[client])
        moment[client] += share * moments[chunk]
        slope[client] += share * slopes[chunk]
        square[client] += share * squares[chunk]
        shift[client] += share * shifts[chunk]
    if scale > 0.0:
        for client in range(clients):
            values[client] = top[client] + math.log1p(beyond[client] / counts[client])
    return values, moment, slope, square, shift
