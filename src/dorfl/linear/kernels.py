"""One pass over the rows: supremum, tilt and gradient together, each row read once.

A linear model sees a row only through its outputs t = W x, so the inner supremum

    f(ζ) = sup_x  l(W x, y) − h(x) − ρ c(x, ζ)

collapses to a problem in as many unknowns as the model has outputs. With a = W m the outputs at
the row's centre m and S = W K⁻¹ Wᵀ (see :mod:`dorfl.linear.inner` for m and K),

    f(ζ) = max_t  l(t, y) − ½ (t − a)ᵀ S⁻¹ (t − a)  −  penalty(ζ),       t − a = S g,  g = ∂l/∂t.

S = 0 is the plain loss: no transport is not a special case. Functions work on blocks of rows in
small arrays, so that rows stay in the cache and LLVM can vectorise. With several outputs BLAS
computes the products of a block, on one thread, since rounding depends on how a product is divided.
Blocks begin with a client's first row for the same reason. Sums are kept per chunk of rows and
combined in a fixed order, so that results do not depend on the number of threads.

All compiled functions live in this one file, because Numba's disk cache notices a change in the
file of a function and in no other. :mod:`dorfl.linear.simd` has the operations on vector registers;
`SIMD_DIGEST` makes a change of that file a change of this one.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from dorfl.linear.simd import (
    AT_ONCE,
    TILE,
    add_product,
    add_rows,
    borrowed,
    is_single,
    lane_count,
    load_lanes,
    max_of,
    multiply_rows,
    power_of_two,
    prefetch,
    store_lanes,
    sum_of,
    take_next,
    where_positive,
    zero_lanes,
)
from dorfl.support import compilation

SIMD_DIGEST = "f0e22f48b23c2b77"  # of simd.py, see tests/linear/test_kernels.py
LOGISTIC, SQUARED, HUBER = range(3)

BLOCK = 64  # rows of a block of several outputs, which stay in the first-level cache
_STAGED = 64  # rows of a block of one output at most: its sums have the precision of the rows
_LONG = 2048  # bytes of a row from which on rows are read one by one, without prefetching
CHUNK = 4096  # rows summed into one partial result; fixed, whatever the number of threads

_MAGIC = 6755399441055744.0  # 1.5 · 2⁵²: adding it rounds to an integer, kept in the low bits
# No reordering of sums: the same bits for any number of threads and clients.
_SCALAR: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
# A call for every block would cost more than the work of a short function.
_INSIDE: dict[str, Any] = {**_SCALAR, "forceinline": True}
_SETTLED = 1e-5  # a third-order step of this size leaves an error below 1e-15 …
_SETTLED_FLOAT32 = 2e-3  # … and of this size below 1e-9, the error of float32 products
_NARROW = 0.3  # spread up to which the first guess of a margin is within `_SETTLED_FLOAT32`
_CLIMBS = 500  # steps of an ascent at most; rows with nearly equal maxima take many

compilation.announce(__name__)


# ── elementary functions ────────────────────────────────────────────────────────────────────────


# Minimax polynomials, because calls of libm are not vectorised. They are exact to a unit in the
# last place or, if `like` has single precision, to 1e-10: less than the rounding of float32 rows.


@njit(nogil=True, cache=True, **_INSIDE)
def _powers(x, like):
    """Return 2ⁿ and e^r − 1 for x = n log 2 + r ≤ 700, so that e^x = 2ⁿ (1 + (e^r − 1))."""
    x = max(x, -708.0)
    shifted = x * 1.4426950408889634 + _MAGIC
    n = shifted - _MAGIC
    r = x - n * 0.6931471803691238 - n * 1.9082149292705877e-10
    if is_single(like):
        p = 1.9790344137542862e-4
        p = p * r + 1.3944659980605022e-3
        p = p * r + 8.333497071989018e-3
        p = p * r + 4.16662949414489e-2
        p = p * r + 0.16666665868934855
        p = p * r + 0.5000000067684198
    else:
        p = 2.50476263985009e-8
        p = p * r + 2.7631714206292945e-7
        p = p * r + 2.755743220130966e-6
        p = p * r + 2.480148845679556e-5
        p = p * r + 1.984126968485071e-4
        p = p * r + 1.3888888948839393e-3
        p = p * r + 8.33333333340851e-3
        p = p * r + 4.166666666650602e-2
        p = p * r + 0.16666666666666555
        p = p * r + 0.5000000000000014
    return power_of_two(shifted), (p * r + 1.0) * r


@njit(nogil=True, cache=True, **_INSIDE)
def _exp(x, like):
    """Return e^x for x ≤ 700."""
    power, rest = _powers(x, like)
    return power * rest + power


@njit(nogil=True, cache=True, **_INSIDE)
def _twice_artanh(r, like):
    """Return 2 artanh(r) for 0 ≤ r ≤ ⅓, which is log(1 + e) for r = e / (2 + e)."""
    z = r * r
    if is_single(like):
        p = 0.24289633576206973
        p = p * z + 0.2143072216992221
        p = p * z + 0.2861659830496284
        p = p * z + 0.3999888830327133
        p = p * z + 0.6666667550089522
    else:
        p = 0.17024754608891413
        p = p * z + 8.336024838854043e-2
        p = p * z + 0.12107240758172239
        p = p * z + 0.1330079045334644
        p = p * z + 0.15386577723625502
        p = p * z + 0.18181742835645684
        p = p * z + 0.2222222401119527
        p = p * z + 0.28571428546921396
        p = p * z + 0.4000000000016829
        p = p * z + 0.6666666666666625
    return (p * z + 2.0) * r


@njit(nogil=True, cache=True, **_SCALAR)
def _log(x):
    """Return log x for x ≥ 1."""
    bits = np.float64(x).view(np.int64)
    mantissa = np.int64((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    e = mantissa - 1.0
    return ((bits >> 52) - 1023) * 0.6931471805599453 + _twice_artanh(e / (2.0 + e), 0.0)


# ── logistic ────────────────────────────────────────────────────────────────────────────────────
# The margin u at the maximiser solves u = a − S σ(−u). With b = a − S/2 the *global* maximiser has
# sign(u) = sign(b) and |u| = t, the root of t = |b| + (S/2) tanh(t/2), for every S: also where the
# problem is not concave (S > 4) and has two local maxima.


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_start(b, spread):
    """Return an upper bound of the root, by tanh(t/2) ≤ 1 and, for S < 4, tanh(t/2) ≤ t/2.

    For S < 1, Halley's steps converge from any start, and a good guess is returned instead.
    """
    if spread < 1.0:
        return _margin_guess(b, spread)
    wide = abs(b) + 0.5 * spread
    return min(wide, abs(b) * (1.0 / (1.0 - 0.25 * spread))) if spread < 4.0 else wide


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_guess(b, spread):
    """Return the root for S < 1, with tanh(t/2) replaced by a polynomial that is exact to 0.006."""
    t = min(abs(b) * (1.0 / (1.0 - 0.25 * spread)), abs(b) + 0.5 * spread)
    t = min(t, 6.0)
    z = t * t
    p = 3.776e-7 * z - 3.8648e-5
    p = p * z + 1.53427e-3
    p = p * z - 3.16868e-2
    return abs(b) + 0.5 * spread * t * (p * z + 0.4879273)


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_step(t, b, spread, enough, like):
    """Return Halley's step for t − |b| − (S/2) tanh(t/2), e^−t after it, and a stopping criterion.

    With e = e^−t, tanh(t/2) is (1 − e)/(1 + e). All terms are multiplied by powers of 1 + e, which
    leaves one division. The criterion is negative after convergence. It compares the step with the
    slope: near S = 4, b = 0 the root is nearly triple, and steps shrink slowly.
    """
    e = _exp(-t, like)
    over, under = 1.0 - e, 1.0 + e
    residual = (t - abs(b)) * under - 0.5 * spread * over
    slope = under * under - spread * e
    step = 2.0 * residual * slope * under / (2.0 * slope * slope - residual * spread * e * over)
    tail = e * (1.0 + step * (1.0 + step * (0.5 + step * (1.0 / 6.0))))  # exact after convergence
    return step, tail, abs(step) * under * under - enough * abs(slope)


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_loss(e, like):
    """Return log(1 + e) and e / (1 + e), the loss and σ(−t) at t with e = e^−t."""
    one, two = 1.0 + e, 2.0 + e
    shared = e / (one * two)  # one division for e / (1 + e) and e / (2 + e)
    return _twice_artanh(shared * one, like), shared * two


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_nearer(t, loss, small, b, spread):
    """Return the root, and loss and σ there, from a t within 2e-3 of it.

    Chebyshev's step, of third order, and Taylor's series need one exponential. Rows need not wait
    for each other to converge.
    """
    bend, lean = small - small * small, 1.0 - 2.0 * small
    x = spread * bend  # ≤ 0.075, so that 1 / (1 − x) is (1 + x)(1 + x²)(1 + x⁴) to 1e-9
    square = x * x
    inverse = 1.0 + x
    inverse = inverse + inverse * square
    inverse = inverse + inverse * (square * square)
    step = (t - abs(b) - 0.5 * spread * lean) * inverse
    step = step + 0.5 * step * step * x * lean * inverse
    loss = loss + step * (small + 0.5 * step * bend)
    return t - step, loss, small + step * bend * (1.0 + 0.5 * step * lean)


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_value(t, loss, small, b, spread):
    """Return log(1 + e^−u) − ½ S s² and s = σ(−u), at u = sign(b) t, from loss and σ at t."""
    s = where_positive(b, small, 1.0 - small)
    return where_positive(b, loss, loss + t) - 0.5 * spread * s * s, s


@njit(nogil=True, cache=True, **_SCALAR)
def _logistic_point(margin, spread):
    """Return the logistic supremum at one margin: (value, s)."""
    b = margin - 0.5 * spread
    t = _margin_start(b, spread)
    for _ in range(60):
        step, e, off = _margin_step(t, b, spread, _SETTLED, 0.0)
        t -= step
        if off < 0.0 or t <= 0.0:
            break
    loss, small = _margin_loss(e, 0.0)
    return _margin_value(t, loss, small, b, spread)


@njit(nogil=True, cache=True, **_INSIDE)
def _logistic_block(output, label, count, spread, like, value, slope):
    """Compute the logistic supremum of a block; label is ±1, slope is ∂f/∂a = −y s."""
    enough = _SETTLED_FLOAT32 if is_single(like) else _SETTLED
    near = is_single(like) and 0.0 < spread <= _NARROW
    for j in range(0, count, AT_ONCE):
        y = load_lanes(label, j)
        b = y * load_lanes(output, j) - 0.5 * spread
        if near:
            t = _margin_guess(b, spread)
            loss, small = _margin_loss(_exp(-t, like), like)
            t, loss, small = _margin_nearer(t, loss, small, b, spread)
        else:
            t = _margin_start(b, spread) if spread > 0.0 else abs(b)
            e = _exp(-t, like)
            for _ in range(60 if spread > 0.0 else 0):
                step, e, off = _margin_step(t, b, spread, enough, like)
                t = t - step
                if max_of(off) < 0.0:
                    break
            loss, small = _margin_loss(e, like)
        loss, small = _margin_value(t, loss, small, b, spread)
        store_lanes(value, j, loss)
        store_lanes(slope, j, -y * small)


# ── squared and Huber ───────────────────────────────────────────────────────────────────────────


@njit(nogil=True, cache=True, **_INSIDE)
def _squared_block(output, label, count, spread, value, slope):
    """Compute ½ (a − y)² / (1 − S) of a block; the caller ensures S < 1."""
    gain = 1.0 / (1.0 - spread)
    for j in range(0, count, AT_ONCE):
        residual = load_lanes(output, j) - load_lanes(label, j)
        store_lanes(slope, j, gain * residual)
        store_lanes(value, j, 0.5 * gain * residual * residual)


@njit(nogil=True, cache=True, **_INSIDE)
def _huber_block(output, label, count, spread, delta, value, slope):
    """Compute the Huber supremum: the maximiser is in the quadratic part or in the linear one."""
    edge = delta * (1.0 - spread)
    gain = 1.0 / (1.0 - spread) if spread < 1.0 else 0.0
    for j in range(0, count, AT_ONCE):
        residual = load_lanes(output, j) - load_lanes(label, j)
        size = abs(residual)
        linear = delta * size + 0.5 * delta * delta * (spread - 1.0)
        inside = 0.5 * gain * residual * residual
        store_lanes(value, j, where_positive(size - edge, linear, inside))
        side = where_positive(residual, residual * 0.0 + delta, residual * 0.0 - delta)
        store_lanes(slope, j, where_positive(size - edge, side, gain * residual))


# ── softmax ─────────────────────────────────────────────────────────────────────────────────────
# The maximiser has t = a + S g and g = softmax(t) − e_y. With p for softmax(t) the problem is
#
#     max_p  entropy(p) + gᵀa + ½ gᵀSg,    g = p − e_y,  p in the simplex:
#
# a concave part and a convex one. So there is one maximum if S is small, and up to one near every
# vertex if S is large. Arrays are (classes, BLOCK): loops over a block's rows are innermost.


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_heights(a, label, g, pulled, p, residual, height, top, total):
    """Compute the objective log Σ exp(t) − t_y − ½ gᵀSg of g, at t = a + S g; `pulled` is S g.

    Also p = softmax(t) and the residual p − e_y − g, which is zero at a maximum.
    """
    classes = len(a)
    for j in range(BLOCK):
        top[j] = a[0, j] + pulled[0, j]
        height[j] = 0.0
        total[j] = 0.0
    for c in range(1, classes):
        for j in range(BLOCK):
            top[j] = max(top[j], a[c, j] + pulled[c, j])
    for c in range(classes):
        for j in range(BLOCK):
            t = a[c, j] + pulled[c, j] - top[j]
            p[c, j] = _exp(t, 0.0)
            total[j] += p[c, j]
            height[j] -= 0.5 * g[c, j] * pulled[c, j] + (t if label[j] == c else 0.0)
    for j in range(BLOCK):
        height[j] += _log(total[j])
        total[j] = 1.0 / total[j]
    for c in range(classes):
        for j in range(BLOCK):
            p[c, j] *= total[j]
            residual[c, j] = p[c, j] - (1.0 if label[j] == c else 0.0) - g[c, j]


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_newton(spread, accuracy, p, residual, start, step, pulled_step, left, room):
    """Compute Newton's step δ, with (I − D S) δ = residual and D = diag p − p pᵀ, and S δ.

    Conjugate gradients in the metric S, in which the matrix is self-adjoint, and positive definite
    if the problem is concave. Otherwise a row stops early, at worst with δ = residual, the step of
    the fixed-point iteration. Only S δ is iterated, because components in the null space of S would
    be rounding errors; then δ = residual + D S δ. Newton's error is about ½ |S δ|², so a residual
    of that size is accepted if it is above the accuracy. `start` is S residual, and `left` the
    squared norm of the residual of the linear system.
    """
    classes = len(p)
    (rest, pulled, way, pulled_way), (energy, mean, bend, length, alpha, goal) = room
    np.dot(spread, residual, start)
    energy[:] = 0.0
    left[:] = 0.0
    for c in range(classes):
        for j in range(BLOCK):
            rest[c, j] = way[c, j] = residual[c, j]
            pulled[c, j] = pulled_way[c, j] = start[c, j]
            pulled_step[c, j] = 0.0
            energy[j] += residual[c, j] * start[c, j]
            left[j] += start[c, j] * start[c, j]
    for j in range(BLOCK):
        goal[j] = max(0.5 * left[j], accuracy) ** 2
    for _ in range(classes):
        busy = 0.0
        for j in range(BLOCK):  # after its goal a row would iterate on rounding errors
            energy[j] = energy[j] if left[j] > goal[j] else 0.0
            busy = max(busy, energy[j])
        if busy <= 0.0:
            break
        mean[:] = 0.0
        length[:] = 0.0
        bend[:] = 0.0
        for c in range(classes):
            for j in range(BLOCK):
                mean[j] += p[c, j] * pulled_way[c, j]
        for c in range(classes):
            for j in range(BLOCK):
                straight = way[c, j] * pulled_way[c, j]
                length[j] += straight
                bend[j] += straight - p[c, j] * pulled_way[c, j] * (pulled_way[c, j] - mean[j])
        for j in range(BLOCK):
            energy[j] = energy[j] if bend[j] > 1e-6 * length[j] else 0.0
            alpha[j] = energy[j] / bend[j] if energy[j] > 0.0 else 0.0
        for c in range(classes):
            for j in range(BLOCK):
                pulled_step[c, j] += alpha[j] * pulled_way[c, j]
                turned = p[c, j] * (pulled_way[c, j] - mean[j])
                rest[c, j] -= alpha[j] * (way[c, j] - turned)
        np.dot(spread, rest, pulled)
        bend[:] = 0.0
        left[:] = 0.0
        for c in range(classes):
            for j in range(BLOCK):
                bend[j] += rest[c, j] * pulled[c, j]
                left[j] += pulled[c, j] * pulled[c, j]
        for j in range(BLOCK):
            alpha[j] = bend[j] / energy[j] if energy[j] > 0.0 else 0.0
            energy[j] = bend[j] if energy[j] > 0.0 else 0.0
        for c in range(classes):
            for j in range(BLOCK):
                way[c, j] = rest[c, j] + alpha[j] * way[c, j]
                pulled_way[c, j] = pulled[c, j] + alpha[j] * pulled_way[c, j]
    mean[:] = 0.0
    for c in range(classes):
        for j in range(BLOCK):
            mean[j] += p[c, j] * pulled_step[c, j]
    for c in range(classes):
        for j in range(BLOCK):
            step[c, j] = residual[c, j] + p[c, j] * (pulled_step[c, j] - mean[j])
            pulled_step[c, j] += pulled[c, j]


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_climb(a, label, count, spread, accuracy, g, pulled, value, room):
    """Ascend from the slopes g, with `pulled` = S g, to a point with g = softmax(a + S g) − e_y.

    The fixed-point step g ← softmax(a + S g) − e_y maximises the objective with its convex part
    linearised. It gains at least ½ rᵀSr, r the residual, and replaces a Newton step that gains
    less. A row is done if the error of Newton's step is below the accuracy. Its value then follows
    from the quadratic model, without another evaluation.
    """
    classes = len(a)
    newton_room, arrays, lanes = room
    p, residual, start, step, pulled_step, held, pulled_held = arrays
    left, height, top, total, floor, going, gain, rise, size = lanes
    for j in range(BLOCK):
        floor[j] = -np.inf
        going[j] = 1.0 if j < count else 0.0
    for trial in range(_CLIMBS):
        last = 1.0 if trial == _CLIMBS - 1 else 0.0  # no row moves in the last iteration
        _softmax_heights(a, label, g, pulled, p, residual, height, top, total)
        _softmax_newton(spread, accuracy, p, residual, start, step, pulled_step, left, newton_room)
        gain[:] = 0.0
        rise[:] = 0.0
        size[:] = 0.0
        for c in range(classes):
            for j in range(BLOCK):
                gain[j] += 0.5 * residual[c, j] * start[c, j]
                rise[j] += 0.5 * step[c, j] * start[c, j]
                size[j] += 0.5 * pulled_step[c, j] * pulled_step[c, j]
        for c in range(classes):
            for j in range(BLOCK):
                sure, moves = height[j] >= floor[j], going[j] > last
                old, pulled_old = g[c, j], pulled[c, j]
                back, pulled_back = held[c, j], pulled_held[c, j]
                on, pulled_on = old + step[c, j], pulled_old + pulled_step[c, j]
                on, pulled_on = (on if sure else back), (pulled_on if sure else pulled_back)
                g[c, j] = on if moves else old
                pulled[c, j] = pulled_on if moves else pulled_old
                held[c, j] = old + residual[c, j]
                pulled_held[c, j] = pulled_old + start[c, j]
        busy = 0.0
        for j in range(BLOCK):
            sure, moves = height[j] >= floor[j], going[j] > 0.0
            settled = sure and max(left[j], size[j] * size[j]) <= accuracy * accuracy
            attained = height[j] + (rise[j] if settled else 0.0)
            value[j] = attained if moves else value[j]
            floor[j] = height[j] + gain[j] - 1e-14 * (1.0 + height[j]) if sure else -np.inf
            going[j] = 0.0 if settled else going[j]
            busy += going[j]
        if busy == 0.0:
            break


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_bounds(a, label, chords, apart, w, reach, top, total):
    """Compute bounds of the maxima: top + log total, and top + log reach[c] if p_c ≥ ⅓ there.

    The problem is max_p entropy(p) + pᵀb − ¼ Σ p_c p_e s_ce, with s_ce = (e_c − e_e)ᵀS(e_c − e_e)
    and b_c = a_c − a_y + ½ s_cy. Without the last term it is log Σ exp(b). With p_c ≥ ⅓ the terms
    of c are kept, at least ⅙ p_e s_ce each: the weights of the other classes are multiplied by
    `apart` = exp(−⅙ s), and p_c = ⅓ is best unless c has a larger weight. With a third, maxima that
    two or three classes share are found too.
    """
    classes = len(a)
    for j in range(BLOCK):
        own = int(label[j])
        top[j] = -np.inf
        total[j] = 0.0
        for c in range(classes):
            w[c, j] = a[c, j] - a[own, j] + chords[c, own]
            top[j] = max(top[j], w[c, j])
    for c in range(classes):
        for j in range(BLOCK):
            w[c, j] = _exp(w[c, j] - top[j], 0.0)
            total[j] += w[c, j]
    np.dot(apart, w, reach)
    for c in range(classes):
        for j in range(BLOCK):
            one, others = w[c, j], reach[c, j]
            mixed = (6.75 * one * others * others) ** (1.0 / 3.0)
            reach[c, j] = mixed if 2.0 * one < others else one + others


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_start(spread, label, vertex, j, g, pulled):
    """Set row j to a vertex of the simplex."""
    own, c = int(label), int(vertex)
    for e in range(len(spread)):
        g[e, j] = (1.0 if e == c else 0.0) - (1.0 if e == own else 0.0)
        pulled[e, j] = spread[e, c] - spread[e, own]


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_try(queue, count, spread, accuracy, label, value, slope, room):
    """Ascend from all starts in the queue, and keep a result if it is better for its row."""
    (a, g, pulled), (row, climbing, paid, reached) = queue
    _softmax_climb(a, climbing, count, spread, accuracy, g, pulled, reached, room)
    for i in range(count):
        j = int(row[i])
        if reached[i] - paid[i] > value[j]:
            value[j] = reached[i] - paid[i]
            label[j] = climbing[i]
            slope[:, j] = g[:, i]


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_block(
    a, label, count, spread, chords, apart, concave, accuracy, price, marked, resting, value, slope,
    room,
):  # fmt: skip
    """Compute the softmax supremum of a block, over the labels too if they have a price.

    If the problem is not concave, it is the best of several ascents: from the vertex of the label,
    g = 0, and from all other vertices of the simplex whose bound is above the best value so far.
    """
    classes = len(a)
    climb_room, queue, (w, reach, pulled), (top, total, own, other) = room
    (some_a, some_g, some_pulled), (row, climbing, paid, _) = queue
    own[:] = label
    slope[:] = 0.0
    pulled[:] = 0.0
    _softmax_climb(a, own, count, spread, accuracy, slope, pulled, value, climb_room)
    for j in range(count):
        value[j] -= resting[j] if own[j] == marked else 0.0
    priced = price < np.inf
    if concave and not priced:
        return
    waiting = 0
    for changed in range(-1, classes if priced else 0):  # −1: every row keeps its label
        for j in range(BLOCK):
            other[j] = own[j] if changed < 0 else changed
        _softmax_bounds(a, other, chords, apart, w, reach, top, total)
        for j in range(count):
            if changed == own[j]:
                continue
            fee = (0.0 if changed < 0 else price) + (resting[j] if other[j] == marked else 0.0)
            line = math.exp(value[j] + fee - top[j]) * (1.0 + 1e-12)
            if total[j] <= line:
                continue
            for c in range(classes):
                if c == other[j]:
                    if changed < 0:
                        continue  # the first ascent
                else:
                    # At the vertex with w = 1 the height is `top` at least: others must beat it.
                    least = line if w[c, j] == 1.0 else max(line, 1.0)
                    if concave or reach[c, j] <= least:
                        continue
                row[waiting], climbing[waiting], paid[waiting] = j, other[j], fee
                some_a[:, waiting] = a[:, j]
                _softmax_start(spread, other[j], c, waiting, some_g, some_pulled)
                waiting += 1
                if waiting == BLOCK:
                    _softmax_try(queue, waiting, spread, accuracy, label, value, slope, climb_room)
                    waiting = 0
    if waiting > 0:
        _softmax_try(queue, waiting, spread, accuracy, label, value, slope, climb_room)


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_room(classes):
    """Return the working space of :func:`_softmax_block`, allocated once for all blocks."""
    c = np.zeros((17, classes, BLOCK))
    j = np.zeros((23, BLOCK))
    newton = (c[0], c[1], c[2], c[3]), (j[0], j[1], j[2], j[3], j[4], j[5])
    climb = (
        newton,
        (c[4], c[5], c[6], c[7], c[8], c[9], c[10]),
        (j[6], j[7], j[8], j[9], j[10], j[11], j[12], j[13], j[14]),
    )
    queue = (c[11], c[12], c[13]), (j[15], j[16], j[17], j[18])
    return climb, queue, (c[14], c[15], c[16]), (j[19], j[20], j[21], j[22])


# ── the threshold score ─────────────────────────────────────────────────────────────────────────
# h(x) = ω₂ σ((x_k − D)/s) for one label. For x_k = v held fixed the rest is the logistic supremum
# with the spread of the other coordinates, so the search is in v alone.


@njit(nogil=True, cache=True, **_SCALAR)
def _threshold_slope(v, row, score):
    """Return first and second derivative in v, value and σ(−u) of the supremum with x_k = v."""
    rest, label, theta, spread, origin = row
    stiffness, level, softness, weight = score
    value, s = _logistic_point(label * (rest + theta * v), spread)
    e = _exp(-abs(v - level) / softness, 0.0)
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
    """Return the maximiser between `low`, with a slope ≥ 0, and `high`, with a slope ≤ 0."""
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
    """Return (value, s, v) of a row to which the score applies; `plain` is its x_k without score.

    The score has a negative slope. If the problem is concave, every stationary point is left of the
    plain optimum, and if that is below the threshold, the function is concave in between: one
    bracketed root is the maximiser. Otherwise every local maximum is found from a grid as fine as
    the two sigmoids in the function, with a point on either side of its non-smooth point, where the
    supremum over the other coordinates changes sides.
    """
    stiffness, level, softness, weight = score
    other = max(spread - theta * theta / stiffness, 0.0)
    row = (output - theta * x, label, theta, other, x)
    low = x + (min(0.0, -label * theta) - 0.25 * weight / softness) / stiffness
    high = x + max(0.0, -label * theta) / stiffness
    if spread < 4.0 and plain <= level:
        best = _threshold_root(low, plain, plain, row, score)  # the score is often negligible there
    else:
        half = 97
        grid = np.empty(2 * half + 4)
        corner = (label * 0.5 * other - row[0]) / theta if theta != 0.0 else x
        for i in range(half):
            offset = 0.75 * (i - half // 2)
            grid[i] = level + softness * offset
            grid[half + i] = corner + offset / theta if theta != 0.0 else x
        beside = 1e-9 * (1.0 + abs(corner))
        grid[half + half // 2] = corner - beside
        grid[2 * half] = corner + beside
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
    """Return h of a row whose column cannot move."""
    e = _exp(-abs(x - level) / softness, 0.0)
    return weight * (e / (1.0 + e) if x < level else 1.0 / (1.0 + e))


# ── the pass ────────────────────────────────────────────────────────────────────────────────────


@njit(nogil=True, cache=True, **_INSIDE)
def _keep(arrays):
    """Keep borrowed arrays alive until here."""


@njit(nogil=True, cache=True, **_INSIDE)
def _tile_size(dims, width):
    """Return the lanes of a row in a tile: as few tiles as possible, of about equal size."""
    lanes = -(-dims // width)
    return -(-lanes // -(-lanes // TILE))


@njit(nogil=True, cache=True, **_SCALAR)
def _padded(weights):
    """Return weights by lanes: zero where the last lanes overlap others or the next row."""
    dims, width = weights.shape[1], lane_count(weights)
    found = np.zeros(dims + 2 * width, weights.dtype)
    for k in range(dims):
        found[_column(k, dims, width)] = weights[0, k]
    return found


@njit(nogil=True, cache=True, **_INSIDE)
def _column(k, dims, width):
    """Return the index of column k of a row by lanes."""
    whole = dims // width * width
    return k if k < whole else k - max(dims - width, 0) + whole


@njit(nogil=True, cache=True, **_INSIDE)
def _can_load(rows, stop):
    """Return True if the lanes of all rows before `stop` are inside the array."""
    return rows.shape[1] * (stop - 1) + lane_count(rows) <= rows.size


@njit(nogil=True, cache=True, **_SCALAR)
def _last_rows(rows, first, count):
    """Return rows of a block padded with zeros, so that lanes are inside the array."""
    dims = rows.shape[1]
    found = np.zeros((count, lane_count(rows)), rows.dtype)
    for j in range(count):
        for k in range(dims):
            found[j, k] = rows[first + j, k]
    return found


@njit(nogil=True, cache=True, **_INSIDE)
def _outputs(rows, first, count, weights, dims, bias, tile, ahead, out):
    """Compute out[j] = weights · row_j + bias for a block of rows; zero beyond the last.

    Suprema of a block's rows are iterated together, so rows beyond must not be another client's.
    """
    width, end = lane_count(rows), first + count - 1
    last = max(dims - width, 0)
    out[:] = bias
    if dims * rows.itemsize > _LONG:  # eight rows at once would be read from eight places
        for j in range(count):
            one = two = zero_lanes(rows.dtype.type(0))
            for k in range(0, dims, 2 * width):
                after = k + width
                one = add_product(rows, first + j, min(k, last), weights, k, one)
                two = add_product(rows, first + j, min(after, last), weights, after, two)
            out[j] += sum_of(one + two)
    else:
        k = 0
        while k < dims:
            size = min(tile, (dims - k + width - 1) // width)
            multiply_rows(rows, first, end, k, size, last, weights, ahead, out)
            k += tile * width
    out[count:] = 0.0


@njit(nogil=True, cache=True, **_INSIDE)
def _weighted_rows(rows, first, count, coefficient, dims, tile, ahead, total):
    """Add Σ_j coefficient_j row_j to the total, by lanes."""
    width = lane_count(rows)
    last, k = max(dims - width, 0), 0
    while k < dims:
        size = min(tile, (dims - k + width - 1) // width)
        add_rows(rows, first, count, k, size, last, coefficient, ahead, total)
        k += tile * width


@njit(nogil=True, cache=True, **_SCALAR)
def _bias(intercept, anchors, weights, client, c):
    """Return the part of output c that all rows of a client share: intercept and θᵀ(I − A)ξ̄."""
    total = intercept[c]
    for k in range(anchors.shape[1]):
        total += anchors[client, k] * weights[c, k]
    return total


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_outputs(rows, first, count, weights, bias, space, out):
    """Compute out[:, j] = weights row_j + bias for a block of rows (zero beyond the last one)."""
    outputs = len(weights)
    product = space[: outputs * count].reshape(outputs, count)
    np.dot(weights, rows[first : first + count].T, product)
    for c in range(outputs):
        for j in range(count):
            out[c, j] = product[c, j] + bias[c]
        for j in range(count, BLOCK):
            out[c, j] = 0.0


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_sums(rows, first, count, weight, slope, space, push, partial, square, sums):
    """Add Σ_j w_j g_j x_jᵀ, Σ_j w_j g_j and Σ_j w_j g_j g_jᵀ of a block to the sums."""
    moments, slopes, squares = sums
    outputs = len(slope)
    coefficient = space[: outputs * count].reshape(outputs, count)
    for c in range(outputs):
        for j in range(count):
            push[c, j] = weight[j] * slope[c, j]
        for j in range(count):
            coefficient[c, j] = push[c, j]
        for j in range(count, BLOCK):
            push[c, j] = 0.0
        for j in range(0, BLOCK, AT_ONCE):
            slopes[c] += sum_of(load_lanes(push[c], j))
    np.dot(push, slope.T, square)
    np.dot(coefficient, rows[first : first + count], partial)
    for c in range(outputs):
        for e in range(outputs):
            squares[c, e] += square[c, e]
        for k in range(rows.shape[1]):
            moments[c, k] += partial[c, k]


@njit(nogil=True, cache=True, **_INSIDE)
def _copy(source, first, count, out):
    """Copy the block's part of `source`; a slice avoids a test of every index for its sign."""
    part = source[first : first + count]
    for j in range(count):
        out[j] = part[j]


@njit(nogil=True, cache=True, **_INSIDE)
def _part(source, first, count, block, room, apart):
    """Return a block's part of `source`, copied to `room` if it is short or will be changed."""
    for k in range(0, block, lane_count(source)):
        prefetch(source, first + 2 * block + k)
    part = source[first : first + block]
    if apart or len(part) < block:
        _copy(source, first, count, room)
        return room
    return part


@njit(nogil=True, cache=True, **_INSIDE)
def _level(largest, scale, top):
    """Return a level that no f·scale exceeds by more than one: the former one, if possible.

    Then the next operations need not wait for the largest f.
    """
    return largest if (largest - top) * scale > 1.0 else top


@njit(nogil=True, cache=True, **_INSIDE)
def _tilt(f, scale, top, like):
    """Return weights w = exp((f − top)·scale) of some rows and w − 1; one and f without a tilt.

    Sums are those of w − 1, because ρβ log mean exp(f/ρβ) is a small difference of large numbers if
    ρβ is large.
    """
    if scale == 0.0:
        return f * 0.0 + 1.0, f
    power, rest = _powers((f - top) * scale, like)
    return power * rest + power, power * rest + (power - 1.0)


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
        e = _exp(min(plain - level, 0.0) / softness, 0.0)
        if weight * e <= 1e-10 * min(1.0, softness * stiffness):
            value[j] -= weight * e  # too faint to move the row: the optimum stays where it is
            continue
        score = (stiffness, level, softness, weight)
        value[j], s, v = _threshold_row(output[j], label[j], spread, x, theta, score, plain)
        slope[j] = -label[j] * s
        shift[j] = v - (x + slope[j] * theta / stiffness)


@njit(nogil=True, cache=True, **_SCALAR)
def _change_labels(
    rows, first, count, output, label, spread, like, weights, threshold, price, value, slope, shift,
    room,
):  # fmt: skip
    """Change labels of a logistic model if that raises the supremum by more than the price."""
    other, other_value, other_slope, other_shift = room
    for j in range(0, count, AT_ONCE):
        store_lanes(other, j, -load_lanes(label, j))
    _logistic_block(output, other, count, spread, like, other_value, other_slope)
    if threshold[4] > 0.0:
        _apply_threshold(
            rows, first, count, output, other, spread, weights, threshold, other_value,
            other_slope, other_shift,
        )  # fmt: skip
    for j in range(count):
        if other_value[j] - price > value[j]:
            value[j] = other_value[j] - price
            slope[j] = other_slope[j]
            shift[j] = other_shift[j]
            label[j] = other[j]


@njit(nogil=True, cache=True, **_SCALAR)
def one_pass(
    rows, target, penalty, chunks, taken, effective, weights, intercept, anchors, spread,
    scale, price, threshold, kind, delta, levels, moments, slopes, squares, keep, f, g, labels,
    moves,
):  # fmt: skip
    """Compute the sums of a model with one output over chunks = [(start, stop, client), …].

    Chunks are taken one by one until none is left: threads with the same `taken` share them. For
    each chunk, `levels` are the top of f·scale, Σ (w − 1) (Σ f for scale = 0, the plain mean) and
    Σ w g · shift, with w = exp(f·scale − top). Then come Σ w g xᵀ, Σ w g and Σ w g gᵀ. With `keep`,
    also for each row f, g, the label at the maximiser, and the move of the threshold's coordinate
    beyond that of the loss. `effective` are the weights A θ.
    """
    dims, width, like, S = rows.shape[1], lane_count(rows), rows.dtype.type(0), spread[0, 0]
    rows, target, penalty = borrowed(rows), borrowed(target), borrowed(penalty)
    tile, size = _tile_size(dims, width), dims * rows.itemsize
    # at most half of the first-level cache, beside which the next block is prefetched
    block = min(max(16_384 // size // AT_ONCE * AT_ONCE, AT_ONCE), _STAGED)
    ahead = block * dims if size <= _LONG else 0
    kept = (
        np.zeros((10, block)), _padded(effective), np.zeros(block, rows.dtype),
        np.empty(dims + width),
    )  # fmt: skip
    room, padded = borrowed(kept[0]), borrowed(kept[1])
    coefficient, sums = borrowed(kept[2]), borrowed(kept[3])
    output, value, slope, shift, copies = room[0], room[1], room[2], room[3], room[4:6]
    other = (room[6], room[7], room[8], room[9])
    own = effective[0]
    scored, priced = threshold[4] > 0.0, price < np.inf
    chunk = take_next(taken)
    while chunk < len(chunks):
        start, stop, client = chunks[chunk]
        moment, bias = moments[chunk, 0], _bias(intercept, anchors, weights, client, 0)
        top = -np.inf if scale > 0.0 else 0.0
        total = pushed = squared = moved = 0.0
        sums[:] = 0.0
        for first in range(start, stop, block):
            count = min(block, stop - first)
            whole = -(-count // AT_ONCE) * AT_ONCE
            table, at = rows, first
            if not _can_load(rows, first + count):
                table, at = _last_rows(rows, first, count), 0
            _outputs(table, at, count, padded, dims, bias, tile, ahead, output)
            label = _part(target, first, count, block, copies[0], priced)

            if kind == LOGISTIC:
                _logistic_block(output, label, count, S, like, value, slope)
                if scored:
                    _apply_threshold(
                        rows, first, count, output, label, S, own, threshold, value, slope, shift
                    )
                if priced:
                    _change_labels(
                        rows, first, count, output, label, S, like, own, threshold, price, value,
                        slope, shift, other,
                    )  # fmt: skip
            elif kind == SQUARED:
                _squared_block(output, label, count, S, value, slope)
            else:
                _huber_block(output, label, count, S, delta, value, slope)

            minus = _part(penalty, first, count, block, copies[1], False)
            for j in range(0, count, AT_ONCE):
                store_lanes(value, j, load_lanes(value, j) - load_lanes(minus, j))
            if keep:
                for j in range(count):
                    f[first + j] = value[j]
                    g[first + j, 0] = slope[j]
                    labels[first + j] = label[j]
                    moves[first + j] = shift[j]
            for j in range(count, whole):
                value[j], slope[j] = -np.inf, 0.0
            largest = load_lanes(value, 0)
            for j in range(AT_ONCE, count, AT_ONCE):
                largest = max(load_lanes(value, j), largest)
            risen = _level(max_of(largest), scale, top)
            if risen > top:
                shrink = math.exp((top - risen) * scale)
                total = total * shrink + (first - start) * math.expm1((top - risen) * scale)
                pushed, squared, moved = pushed * shrink, squared * shrink, moved * shrink
                for k in range(len(sums)):
                    sums[k] *= shrink
                top = risen
            for j in range(count, whole):
                value[j] = top  # a weight of one, so that w − 1 is zero
            for j in range(0, count, AT_ONCE):
                weight, gained = _tilt(load_lanes(value, j), scale, top, like)
                push = weight * load_lanes(slope, j)
                store_lanes(coefficient, j, push)
                total += sum_of(gained)
                pushed += sum_of(push)
                squared += sum_of(push * load_lanes(slope, j))
                moved += sum_of(push * load_lanes(shift, j)) if scored else 0.0
            _weighted_rows(table, at, count, coefficient, dims, tile, ahead, sums)
        for k in range(dims):
            moment[k] = sums[_column(k, dims, width)]
        levels[chunk, 0], levels[chunk, 1], levels[chunk, 2] = top * scale, total, moved
        slopes[chunk, 0], squares[chunk, 0, 0] = pushed, squared
        chunk = take_next(taken)
    _keep(kept)


@njit(nogil=True, cache=True, **_SCALAR)
def softmax_pass(
    rows, target, penalty, chunks, taken, effective, weights, intercept, anchors, spread,
    scale, price, threshold, concave, levels, moments, slopes, squares, keep, f, g, labels, moves,
):  # fmt: skip
    """Compute the sums of :func:`one_pass` for a softmax model, whose threshold column cannot move.

    `concave` is True if the supremum of every row is concave.
    """
    outputs, dims = effective.shape
    output, label = np.zeros((outputs, BLOCK)), np.ones(BLOCK)
    value, weight = np.empty(BLOCK), np.empty(BLOCK)
    slope, push = np.zeros((outputs, BLOCK)), np.empty((outputs, BLOCK))
    resting, bias = np.zeros(BLOCK), np.empty(outputs)
    coefficient = np.empty(outputs * BLOCK, rows.dtype)
    partial = np.empty((outputs, dims), rows.dtype)
    square, chords = np.empty((outputs, outputs)), np.empty((outputs, outputs))
    apart = np.zeros((outputs, outputs))
    for c in range(outputs):
        for e in range(outputs):
            chords[c, e] = 0.5 * (spread[c, c] + spread[e, e]) - spread[c, e]
            apart[c, e] = math.exp(-chords[c, e] / 3.0) if c != e else 0.0
    room = _softmax_room(outputs)
    accuracy = 1e-9 if rows.itemsize == 4 else 1e-13  # of g
    scored = threshold[4] > 0.0
    chunk = take_next(taken)
    while chunk < len(chunks):
        start, stop, client = chunks[chunk]
        for c in range(outputs):
            bias[c] = _bias(intercept, anchors, weights, client, c)
        top = -np.inf if scale > 0.0 else 0.0
        total = 0.0
        for first in range(start, stop, BLOCK):
            count = min(BLOCK, stop - first)
            _softmax_outputs(rows, first, count, effective, bias, coefficient, output)
            _copy(target, first, count, label)
            if scored:  # its column is frozen: otherwise the score is left to ascent
                for j in range(count):
                    x = float(rows[first + j, int(threshold[0])])
                    resting[j] = _resting_score(x, threshold[2], threshold[3], threshold[4])
            _softmax_block(
                output, label, count, spread, chords, apart, concave, accuracy, price,
                threshold[5] if scored else -1.0, resting, value, slope, room,
            )  # fmt: skip
            own = penalty[first : first + count]
            for j in range(count):
                value[j] -= own[j]
            if keep:
                for j in range(count):
                    f[first + j] = value[j]
                    labels[first + j] = label[j]
                    moves[first + j] = 0.0
                    for c in range(outputs):
                        g[first + j, c] = slope[c, j]
            risen = _level(value[:count].max(), scale, top)
            if risen > top:
                shrink = math.exp((top - risen) * scale)
                total = total * shrink + (first - start) * math.expm1((top - risen) * scale)
                moments[chunk] *= shrink
                slopes[chunk] *= shrink
                squares[chunk] *= shrink
                top = risen
            for j in range(count, BLOCK):
                value[j] = top  # a weight of one, so that w − 1 is zero
            for j in range(0, BLOCK, AT_ONCE):
                some, gained = _tilt(load_lanes(value, j), scale, top, 0.0)
                store_lanes(weight, j, some)
                total += sum_of(gained)
            _softmax_sums(
                rows, first, count, weight, slope, coefficient, push, partial, square,
                (moments[chunk], slopes[chunk], squares[chunk]),
            )  # fmt: skip
        levels[chunk, 0], levels[chunk, 1] = top * scale, total
        chunk = take_next(taken)


@njit(nogil=True, cache=True, **_SCALAR)
def combine(
    chunks, counts, tau, shrink, anchors, pulled, column, levels, moments, slopes, squares, values,
    gradients,
):  # fmt: skip
    """Compute F_i and ∇F_i of every client from the sums of :func:`one_pass`, in their order.

    See :func:`chain` for shrink, anchors, pulled and column.
    """
    clients, (_, outputs, dims) = len(counts), moments.shape
    moment, slope = np.zeros((clients, outputs, dims)), np.zeros((clients, outputs))
    square, shift = np.zeros((clients, outputs, outputs)), np.zeros(clients)
    top, beyond = np.full(clients, -np.inf), np.zeros(clients)
    values[:] = 0.0
    for chunk in range(len(chunks)):
        client = chunks[chunk, 2]
        top[client] = max(top[client], levels[chunk, 0])
    for chunk in range(len(chunks)):
        start, stop, client = chunks[chunk]
        if tau < np.inf:
            below = math.expm1(levels[chunk, 0] - top[client])
            some = levels[chunk, 1] * (below + 1.0) + (stop - start) * below
            beyond[client] += some  # Σ (w − 1)
        else:
            values[client] += levels[chunk, 1] / counts[client]
    for chunk in range(len(chunks)):
        client = chunks[chunk, 2]
        share = math.exp(levels[chunk, 0] - top[client]) / (counts[client] + beyond[client])
        for c in range(outputs):
            slope[client, c] += share * slopes[chunk, c]
            for k in range(dims):
                moment[client, c, k] += share * moments[chunk, c, k]
            for e in range(outputs):
                square[client, c, e] += share * squares[chunk, c, e]
        shift[client] += share * levels[chunk, 2]
    if tau < np.inf:
        for client in range(clients):
            values[client] = tau * (top[client] + math.log1p(beyond[client] / counts[client]))
    chain(moment, slope, square, shift, shrink, anchors, pulled, column, gradients)


@njit(nogil=True, cache=True, **_SCALAR)
def chain(moment, slope, square, shift, shrink, anchors, pulled, column, gradients):
    """Apply the chain rule from ζ to θ: ∇F = Σ p g zᵀ, from Σ p g ζᵀ, Σ p g, Σ p g gᵀ of a client.

    A row's maximiser is z = shrink ζ + anchor + Qᵀ g, with `pulled` Q = W K⁻¹. In `column` the
    threshold score moves it further, by the shift. The last column is the intercept's.
    """
    clients, outputs, dims = moment.shape
    for client in range(clients):
        for c in range(outputs):
            own, out = slope[client, c], gradients[client, c]
            for k in range(dims):
                out[k] = shrink[k] * moment[client, c, k] + own * anchors[client, k]
            for e in range(outputs):
                for k in range(dims):
                    out[k] += square[client, c, e] * pulled[e, k]
            for k in range(dims, len(out)):
                out[k] = own
        gradients[client, 0, column] += shift[client]


# ── curvature ───────────────────────────────────────────────────────────────────────────────────


@njit(nogil=True, cache=True, **_SCALAR)
def single(
    rows, bounds, begin, end, shrink, anchors, pull, slope, root, lean, twice, scale, packed
):
    """Compute ∇²F, packed, of every client in [begin, end) for a model with one output.

    A row's maximiser is z = shrink ζ + anchor + slope · pull, and its weight in the Gram matrix is
    root². lean[0] and lean[1] are p g and p g E, `twice` is Σ p g² E of every client.
    """
    width, dims, most = len(pull), rows.shape[1], 256
    place = np.ones((most, width), pull.dtype)
    square = np.empty((width, width), pull.dtype)
    leaning = np.empty((2, width), pull.dtype)
    for client in range(begin, end):
        total, sums = np.zeros((width, width)), np.zeros((2, width))
        for first in range(bounds[client], bounds[client + 1], most):
            count = min(most, bounds[client + 1] - first)
            for j in range(count):
                row, own, z = rows[first + j], slope[first + j], place[j]
                for k in range(dims):
                    z[k] = shrink[k] * row[k] + anchors[client, k] + own * pull[k]
                for k in range(dims, width):
                    z[k] = 1.0
            some = np.ascontiguousarray(lean[:, first : first + count])
            np.dot(some, place[:count], leaning)
            for j in range(count):
                for k in range(width):
                    place[j, k] *= root[first + j]
            np.dot(place[:count].T, place[:count], square)
            total += square
            sums += leaning
        at, out = 0, packed[client]
        for k in range(width):
            for l in range(k + 1):  # noqa: E741 - as in the formula
                out[at + l] = (
                    total[k, l] - scale * sums[0, k] * sums[0, l]
                    + pull[k] * sums[1, l] + sums[1, k] * pull[l]
                    + twice[client] * pull[k] * pull[l]
                )  # fmt: skip
            at += k + 1


@njit(nogil=True, cache=True, **_SCALAR)
def stretch(bend, spread):
    """Return E = D (I − S D)⁻¹ for every D; D if that is nearly singular or indefinite."""
    outputs, made = len(spread), bend.copy()
    table = np.empty((outputs, 2 * outputs))  # I − D S beside D, and in the end I beside E
    for j in range(len(bend)):
        for c in range(outputs):
            for e in range(outputs):
                table[c, e] = 1.0 if c == e else 0.0
                table[c, outputs + e] = bend[j, c, e]
            for b in range(outputs):
                for e in range(outputs):
                    table[c, e] -= bend[j, c, b] * spread[b, e]
        for k in range(outputs):
            pivot = k
            for c in range(k + 1, outputs):
                pivot = c if abs(table[c, k]) > abs(table[pivot, k]) else pivot
            largest = table[pivot, k]
            for e in range(k, 2 * outputs):
                moved = table[pivot, e] / largest
                table[pivot, e] = table[k, e]
                table[k, e] = moved
            for c in range(outputs):
                if c != k:
                    factor = table[c, k]
                    for e in range(k, 2 * outputs):
                        table[c, e] -= factor * table[k, e]
        plain = grown = 0.0
        for c in range(outputs):
            plain += bend[j, c, c]
            grown += table[c, outputs + c]
        if 0.99 * plain < grown < 10.0 * plain:  # never where a pivot was zero
            for c in range(outputs):
                for e in range(outputs):
                    made[j, c, e] = 0.5 * (table[c, outputs + e] + table[e, outputs + c])
    return made


@njit(nogil=True, cache=True, **_SCALAR)
def gram(place, weight, total):
    """Add Σ_j weight[j, q] z_jk z_jl to total[kl, q], for every pair k ≥ l of a packed triangle.

    Rows that are mostly zero, as after one-hot encoding, are added one by one by their non-zero
    entries. For others, BLAS multiplies the products of pairs.
    """
    count, width = place.shape
    filled = 0
    for j in range(count):
        for k in range(width):
            filled += 1 if place[j, k] != 0.0 else 0
    if 6 * filled * filled < (count * width) ** 2:
        _sparse_gram(place, weight, total)
    else:
        _dense_gram(place, weight, total)


@njit(nogil=True, cache=True, **_SCALAR)
def _sparse_gram(place, weight, total):
    columns = np.empty(place.shape[1], np.int64)
    for j in range(len(place)):
        row, own = place[j], weight[j]
        filled = 0
        for k in range(len(row)):
            if row[k] != 0.0:
                columns[filled] = k
                filled += 1
        for a in range(filled):
            k = columns[a]
            for b in range(a + 1):
                product = row[k] * row[columns[b]]
                out = total[k * (k + 1) // 2 + columns[b]]
                for q in range(len(own)):
                    out[q] += product * own[q]


@njit(nogil=True, cache=True, **_SCALAR)
def _dense_gram(place, weight, total):
    width = place.shape[1]
    tile, most = 512, 256  # pairs and rows at once: they stay in the second-level cache
    pairs = np.empty(most * tile, place.dtype)
    partial = np.empty((tile, weight.shape[1]), place.dtype)
    low = 0
    while low < width:  # columns whose pairs with those before them make up a tile
        high, begin = low + 1, low * (low + 1) // 2
        while high < width and (high + 1) * (high + 2) // 2 - begin <= tile:
            high += 1
        size = high * (high + 1) // 2 - begin
        if size > tile:
            tile = size
            pairs = np.empty(most * tile, place.dtype)
            partial = np.empty((tile, weight.shape[1]), place.dtype)
        for first in range(0, len(place), most):
            count = min(most, len(place) - first)
            table = pairs[: count * size].reshape(count, size)
            for j in range(count):
                row, out = place[first + j], table[j]
                for k in range(low, high):
                    at = out[k * (k + 1) // 2 - begin :]
                    for l in range(k + 1):  # noqa: E741 - as in the formula
                        at[l] = row[k] * row[l]
            np.dot(table.T, weight[first : first + count], partial[:size])
            for a in range(size):
                for q in range(weight.shape[1]):
                    total[begin + a, q] += partial[a, q]
        low = high


@njit(nogil=True, cache=True, **_SCALAR)
def unfold(triangles, width, packed):
    """Combine blocks (c, e), c ≥ e, symmetric and given as triangles, into one packed triangle."""
    outputs = int((math.sqrt(8.0 * len(triangles) + 1.0) - 0.5) / 2.0)
    at = 0
    for c in range(outputs):
        for k in range(width):
            for e in range(c + 1):
                block = triangles[c * (c + 1) // 2 + e]
                first = k * (k + 1) // 2
                for l in range(k + 1):  # noqa: E741 - as in the formula
                    packed[at + l] = block[first + l]
                at += k + 1
                if e < c:
                    for l in range(k + 1, width):  # noqa: E741
                        packed[at] = block[l * (l + 1) // 2 + k]
                        at += 1


@njit(nogil=True, cache=True, **_SCALAR)
def lean_on(pull, leaning, pushed, scale, packed):
    """Add QᵀA_ce + A_ecᵀQ − scale · s_c s_eᵀ to block (c, e), c ≥ e, with Q `pull`, s `pushed`.

    If rows move, A_ce = E_p[g_c E_e· z] + ½ E_p[g_c g_e E] Q. Q and A may have other rows, if QᵀA
    is the same.
    """
    outputs, width = pushed.shape
    turned = np.ascontiguousarray(pull.T)
    one, two = np.empty((width, width)), np.empty((width, width))
    for c in range(outputs):
        for e in range(c + 1):
            np.dot(turned, leaning[c, e], one)
            np.dot(turned, leaning[e, c], two)
            for k in range(width):
                row = c * width + k
                out = packed[row * (row + 1) // 2 + e * width :]
                push = scale * pushed[c, k]
                for l in range(width if e < c else k + 1):  # noqa: E741 - as in the formula
                    out[l] += one[k, l] + two[l, k] - push * pushed[e, l]


@njit(nogil=True, cache=True, **_SCALAR)
def is_bounded(packed, scale):
    """Return True if |H_kl| ≤ scale_k scale_l for every entry of a packed triangle."""
    at = 0
    for k in range(len(scale)):
        worst = 0
        for l in range(k + 1):  # noqa: E741 - as in the formula
            worst += 1 if abs(packed[at + l]) > scale[k] * scale[l] else 0
        if worst > 0:
            return False
        at += k + 1
    return True
