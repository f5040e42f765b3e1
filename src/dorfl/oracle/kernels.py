"""One pass over the rows: supremum, tilt and gradient together, each row read once.

A linear model sees a row only through its outputs t = W x, so the inner supremum

    f(ζ) = sup_x  l(W x, y) − h(x) − ρ c(x, ζ)

collapses to a problem in as many unknowns as the model has outputs. With a = W m the outputs at
the row's centre m and S = W K⁻¹ Wᵀ (see :mod:`dorfl.oracle.inner` for m and K),

    f(ζ) = max_t  l(t, y) − ½ (t − a)ᵀ S⁻¹ (t − a)  −  penalty(ζ),       t − a = S g,  g = ∂l/∂t.

S = 0 is the plain loss: no transport is not a special case. Every function here works on a block of
rows staged in small arrays, because that is what lets LLVM vectorise it; with several outputs the
products of a block are BLAS's, which the caller keeps to one thread, because rounding depends on
how a product is shared out; blocks begin where a client's rows do for the same reason. Sums are
kept per chunk of rows and combined in a fixed order, so that the answer does not depend on the
number of threads.

All compiled code lives in this one file: Numba's disk cache notices a change in the file a function
is written in, and in no other.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from dorfl.support import compiling

LOGISTIC, SQUARED, HUBER, SOFTMAX = range(4)

BLOCK = 64  # rows staged at once: their values stay in the first-level cache between the stages
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
_SETTLED = 1e-5  # a third-order step of this size leaves an error below 1e-15 …
_SETTLED_FLOAT32 = 2e-3  # … and of this size below 1e-9: the products of float32 know no better
_CLIMBS = 500  # steps of a climb; rows on a tie crawl

compiling.tell(__name__)


# ── lanes ───────────────────────────────────────────────────────────────────────────────────────
# Left to itself LLVM takes four registers of a row at a time and what remains, up to sixty columns,
# one by one; and how it shares a sum out changes with what it has inlined. Here it is told: 64
# bytes at a time, of any kind of processor's registers, always summed in the same order.

_WIDE = 64  # bytes


class _Lanes(types.Type):
    """As many numbers as 64 bytes hold."""

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.count = dtype, 8 * _WIDE // dtype.bitwidth
        super().__init__(name=f"Lanes({dtype})")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        number = manager.lookup(kind.dtype).get_value_type()
        super().__init__(manager, kind, ir.VectorType(number, kind.count))


def _place(context, builder, kind, array, indices):
    made = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, made, indices, wraparound=False)


def _places(numbers):
    return ir.Constant(ir.VectorType(ir.IntType(32), len(numbers)), list(numbers))


@intrinsic
def _load(_, array, i, k):
    """The lanes from rows[i, k] on, whether aligned or not."""
    lanes = _Lanes(array.dtype)

    def generate(context, builder, _signature, args):
        at = _place(context, builder, array, args[0], args[1:])
        at = builder.bitcast(at, context.get_value_type(lanes).as_pointer())
        return builder.load(at, align=array.dtype.bitwidth // 8)

    return lanes(array, i, k), generate


@intrinsic
def _store(_, array, k, lanes):
    """Write lanes to array[k] and what follows it."""

    def generate(context, builder, _signature, args):
        at = _place(context, builder, array, args[0], args[1:2])
        at = builder.bitcast(at, context.get_value_type(lanes).as_pointer())
        builder.store(args[2], at, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, k, lanes), generate


@intrinsic
def _spread_out(_, number):
    """The same number in every lane."""
    lanes = _Lanes(number)

    def generate(context, builder, _signature, args):
        empty = ir.Constant(context.get_value_type(lanes), ir.Undefined)
        first = builder.insert_element(empty, args[0], ir.IntType(32)(0))
        return builder.shuffle_vector(first, empty, _places([0] * lanes.count))

    return lanes(number), generate


@intrinsic
def _add_product(_, a, b, total):
    """The sum total + a b, rounded once where the processor can."""

    def generate(_context, builder, _signature, args):
        product = builder.fmul(args[0], args[1], flags=("contract",))
        return builder.fadd(product, args[2], flags=("contract",))

    return total(a, b, total), generate


@intrinsic
def _sum_of(_, lanes):
    """The sum of the lanes, the upper half added to the lower one until one is left."""

    def generate(_context, builder, _signature, args):
        found, half = args[0], lanes.count // 2
        while half > 0:
            empty = ir.Constant(found.type, ir.Undefined)
            low = builder.shuffle_vector(found, empty, _places(range(half)))
            high = builder.shuffle_vector(found, empty, _places(range(half, 2 * half)))
            found, half = builder.fadd(low, high), half // 2
        return builder.extract_element(found, ir.IntType(32)(0))

    return lanes.dtype(lanes), generate


# ── elementary functions ────────────────────────────────────────────────────────────────────────


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
    """log(1 + e) for 0 ≤ e ≤ 1."""
    return _twice_artanh(e / (2.0 + e))


@njit(nogil=True, cache=True, **_SCALAR)
def _twice_artanh(r):
    """2 artanh(r) for 0 ≤ r ≤ ⅓: log(1 + e) where r = e / (2 + e)."""
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
    """An upper bound of the root: tanh(t/2) ≤ 1 and, where it helps, tanh(t/2) ≤ t/2.

    Below S = 1 the steps need no bound to be safe: there a guess, tanh by its continued fraction.
    """
    wide = abs(b) + 0.5 * spread
    if spread < 1.0:
        t = min(wide, abs(b) / (1.0 - 0.25 * spread))
        z = 0.25 * t * t
        return min(wide, abs(b) + 0.25 * spread * t * (15.0 + z) / (15.0 + 6.0 * z))
    return min(wide, abs(b) / (1.0 - 0.25 * spread)) if spread < 4.0 else wide


@njit(nogil=True, cache=True, **_SCALAR)
def _margin_step(t, b, spread, enough):
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
    return step, tail, abs(step) * under * under - enough * abs(slope)


@njit(nogil=True, cache=True, **_SCALAR)
def _margin_value(t, e, b, spread):
    """log(1 + e^−u) − ½ S s² and s = σ(−u), at u = sign(b) t with e = e^−t."""
    one, two = 1.0 + e, 2.0 + e
    shared = e / (one * two)  # one division for e / (1 + e) and e / (2 + e)
    small = shared * two
    s = small if b >= 0.0 else 1.0 - small
    value = _twice_artanh(shared * one) + (0.0 if b >= 0.0 else t) - 0.5 * spread * s * s
    return value, s


@njit(nogil=True, cache=True, **_SCALAR)
def _logistic_point(margin, spread):
    """The logistic supremum at one margin: (value, s)."""
    b = margin - 0.5 * spread
    t = _margin_start(b, spread)
    for _ in range(60):
        step, e, off = _margin_step(t, b, spread, _SETTLED)
        t -= step
        if off < 0.0 or t <= 0.0:
            break
    return _margin_value(t, e, b, spread)


@njit(nogil=True, cache=True, **_SCALAR)
def _logistic_block(output, label, spread, enough, t, tail, value, slope):
    """The logistic supremum of a block; label is ±1, slope is ∂f/∂a = −y s."""
    half = 0.5 * spread
    for j in range(BLOCK):
        t[j] = _margin_start(label[j] * output[j] - half, spread)
    if spread > 0.0:
        for _ in range(60):
            for j in range(BLOCK):
                b = label[j] * output[j] - half
                step, tail[j], value[j] = _margin_step(t[j], b, spread, enough)
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
# The maximiser has t = a + S g and g = softmax(t) − e_y. With p for softmax(t) the problem is
#
#     max_p  entropy(p) + gᵀa + ½ gᵀSg,    g = p − e_y,  p in the simplex:
#
# a concave part and a convex one, so one maximum where S is small, and perhaps one near every
# vertex where it is not. Arrays are (classes, BLOCK): a lane is a row.


@njit(nogil=True, cache=True, **_SCALAR)
def _log(x):
    """log x for x ≥ 1. A call of libm's would not be vectorised."""
    bits = np.float64(x).view(np.int64)
    mantissa = np.int64((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    return ((bits >> 52) - 1023) * 0.6931471805599453 + _log1p(mantissa - 1.0)


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_heights(a, label, g, pulled, p, residual, height, top, total):
    """The height log Σ exp(t) − t_y − ½ gᵀSg of g, at t = a + S g; `pulled` is S g.

    Also p = softmax(t) and the residual p − e_y − g, which is zero where the climb ends.
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
            p[c, j] = _exp(t)
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
    """Newton's step δ, with (I − D S) δ = residual and D = diag p − p pᵀ, and S δ.

    By conjugate gradients in the metric S, in which the matrix is self-adjoint, and positive where
    the problem is concave. Where it is not, a lane stops, at worst with δ = residual, the step of
    the fixed-point iteration. Only S δ is iterated, for what S does not see would be left to
    rounding; then δ = residual + D S δ. Newton neglects about ½ |S δ|², so that much may be left
    over where it is above the accuracy. `start` is S residual, `left` the square of what is left.
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
        for j in range(BLOCK):  # a lane that went on after its goal would feed on rounding
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
    """Climb from the slopes g, with `pulled` = S g, to where g = softmax(a + S g) − e_y.

    The fixed-point step g ← softmax(a + S g) − e_y maximises the height with its convex part
    linearised; it gains at least ½ rᵀSr, r the residual. Newton's step is taken back for it if it
    gains less. A lane is done when all that Newton's step neglects is below the accuracy; its value
    then follows from the quadratic model, without another look.
    """
    classes = len(a)
    newton_room, arrays, lanes = room
    p, residual, start, step, pulled_step, held, pulled_held = arrays
    left, height, top, total, floor, going, gain, rise, size = lanes
    for j in range(BLOCK):
        floor[j] = -np.inf
        going[j] = 1.0 if j < count else 0.0
    for trial in range(_CLIMBS):
        last = 1.0 if trial == _CLIMBS - 1 else 0.0  # where a lane then is, it stays
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
    """What no maximum can exceed: top + log total, and top + log reach[c] if it has p_c ≥ ⅓.

    The problem is max_p entropy(p) + pᵀb − ¼ Σ p_c p_e s_ce, with s_ce = (e_c − e_e)ᵀS(e_c − e_e)
    and b_c = a_c − a_y + ½ s_cy. Without the last term it is log Σ exp(b). With p_c ≥ ⅓ the terms
    of c are kept, at least ⅙ p_e s_ce each: the other classes weigh `apart` = exp(−⅙ s) as much,
    and p_c = ⅓ is best unless c weighs more. A third, because maxima that two or three classes
    share are then not passed over either.
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
            w[c, j] = _exp(w[c, j] - top[j])
            total[j] += w[c, j]
    np.dot(apart, w, reach)
    for c in range(classes):
        for j in range(BLOCK):
            one, others = w[c, j], reach[c, j]
            mixed = (6.75 * one * others * others) ** (1.0 / 3.0)
            reach[c, j] = mixed if 2.0 * one < others else one + others


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_start(spread, label, vertex, j, g, pulled):
    """Start lane j at a vertex of the simplex."""
    own, c = int(label), int(vertex)
    for e in range(len(spread)):
        g[e, j] = (1.0 if e == c else 0.0) - (1.0 if e == own else 0.0)
        pulled[e, j] = spread[e, c] - spread[e, own]


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_try(queue, count, spread, accuracy, label, value, slope, room):
    """Climb in the lanes of the queue, and keep what gets higher than its row did before."""
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
    """The softmax supremum of a block, over the labels too where they have a price.

    Where it is not concave it is the best of several climbs: from the vertex of the label, g = 0,
    and from all other vertices of the simplex that have a chance to be near something higher.
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
                        continue  # climbed from already
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
    """Working space of :func:`_softmax_block`, taken once: its functions run for microseconds."""
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
        best = _threshold_root(low, plain, plain, row, score)  # the score is often negligible there
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


@njit(nogil=True, cache=True, **_SCALAR)
def _padded(weights):
    """Weights as :func:`_outputs` takes them: followed by those of a row's last lanes, with zeros
    where these overlap the ones before or, of a short row, the row that follows.
    """
    dims, lanes = weights.shape[1], _WIDE // weights.itemsize
    found = np.zeros((1, dims + lanes), weights.dtype)
    found[0, :dims] = weights[0]
    for k in range(dims // lanes * lanes, dims):
        found[0, min(dims, lanes) + k] = weights[0, k]
    return found


@njit(nogil=True, cache=True, **_SCALAR)
def _within(rows, first, count):
    """How many rows of a block can be read by the lanes without leaving the array."""
    lanes, dims = _WIDE // rows.itemsize, rows.shape[1]
    if dims >= lanes:
        return count
    return min(max((rows.size - lanes) // dims + 1 - first, 0), count)


@njit(nogil=True, cache=True, **_SCALAR)
def _last_rows(rows, first, count):
    """Rows of a block as they are but for zeros behind them, so that lanes can be loaded there."""
    lanes, dims = _WIDE // rows.itemsize, rows.shape[1]
    found = np.zeros((count, max(lanes, dims)), rows.dtype)
    for j in range(count):
        for k in range(dims):
            found[j, k] = rows[first + j, k]
    return found


@njit(nogil=True, cache=True, **_SCALAR)
def _outputs(rows, first, count, weights, bias, out):
    """out[j] = weights · row_j + bias for a block of rows (zero beyond the last one)."""
    within = _within(rows, first, count)
    _products(rows, first, within, weights, bias, rows.shape[1], out)
    if within < count:
        some = _last_rows(rows, first + within, count - within)
        _products(some, 0, count - within, weights, bias, rows.shape[1], out[within:])
    for j in range(count, BLOCK):
        out[j] = 0.0


@njit(nogil=True, cache=True, **_SCALAR)
def _products(rows, first, count, weights, bias, dims, out):
    lanes = _WIDE // rows.itemsize
    none, whole, last = _spread_out(rows.dtype.type(0)), dims // lanes * lanes, max(dims - lanes, 0)
    for j in range(count):
        total = none
        for k in range(0, whole, lanes):
            total = _add_product(_load(rows, first + j, k), _load(weights, 0, k), total)
        if whole < dims:
            total = _add_product(_load(rows, first + j, last), _load(weights, 0, dims), total)
        out[j] = _sum_of(total) + bias


@njit(nogil=True, cache=True, **_SCALAR)
def _weighted_rows(rows, first, count, coefficient, total):
    """total = Σ_j coefficient_j row_j, four lanes at a time so that they stay in registers.

    The last lanes of a row may overlap the ones before: what both sum is the same to the last bit.
    """
    dims, lanes = rows.shape[1], _WIDE // rows.itemsize
    none, last = _spread_out(rows.dtype.type(0)), max(dims - lanes, 0)
    within = _within(rows, first, count)
    for k in range(0, dims, 4 * lanes):
        k0, k1 = min(k, last), min(k + lanes, last)
        k2, k3 = min(k + 2 * lanes, last), min(k + 3 * lanes, last)
        a0 = a1 = a2 = a3 = none
        if k1 > k0:
            for j in range(count):
                i, c = first + j, _spread_out(coefficient[j])
                a0 = _add_product(_load(rows, i, k0), c, a0)
                a1 = _add_product(_load(rows, i, k1), c, a1)
                a2 = _add_product(_load(rows, i, k2), c, a2)
                a3 = _add_product(_load(rows, i, k3), c, a3)
            _store(total, k3, a3)
            _store(total, k2, a2)
            _store(total, k1, a1)
        else:
            for j in range(within):
                a0 = _add_product(_load(rows, first + j, k0), _spread_out(coefficient[j]), a0)
            if within < count:
                some = _last_rows(rows, first + within, count - within)
                for j in range(within, count):
                    c = _spread_out(coefficient[j])
                    a0 = _add_product(_load(some, j - within, 0), c, a0)
        _store(total, k0, a0)


@njit(nogil=True, cache=True, **_SCALAR)
def _softmax_outputs(rows, first, count, weights, bias, space, out):
    """out[:, j] = weights row_j + bias for a block of rows (zero beyond the last one)."""
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
        slopes[c] += _sum(push[c], count, 0.0)
    np.dot(push, slope.T, square)
    np.dot(coefficient, rows[first : first + count], partial)
    for c in range(outputs):
        for e in range(outputs):
            squares[c, e] += square[c, e]
        for k in range(rows.shape[1]):
            moments[c, k] += partial[c, k]


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
    push, tail, resting = np.empty((outputs, BLOCK)), np.empty(BLOCK), np.zeros(BLOCK)
    coefficient = np.empty(outputs * BLOCK, rows.dtype)
    partial = np.empty((outputs, dims), rows.dtype)
    square, chords = np.empty((outputs, outputs)), np.empty((outputs, outputs))
    apart = np.zeros((outputs, outputs))
    for c in range(outputs):
        for e in range(outputs):
            chords[c, e] = 0.5 * (spread[c, c] + spread[e, e]) - spread[c, e]
            apart[c, e] = math.exp(-chords[c, e] / 3.0) if c != e else 0.0
    room = _softmax_room(outputs if kind == SOFTMAX else 0)
    short = rows.itemsize == 4
    accuracy, enough = (1e-9, _SETTLED_FLOAT32) if short else (1e-13, _SETTLED)  # of softmax's g
    padded = _padded(weights)
    scored = threshold[4] > 0.0
    priced = price < np.inf
    # One output's: a view taken in the loop would count who refers to it, at every block.
    output0, slope0, other_slope0, push0 = output[0], slope[0], other_slope[0], push[0]
    weights0, total0 = weights[0], np.empty(max(dims, _WIDE // rows.itemsize), rows.dtype)
    for chunk in range(begin, end):
        start, stop, client = chunks[chunk]
        top = -np.inf if scale > 0.0 else 0.0
        total = 0.0
        moved = 0.0
        for first in range(start, stop, BLOCK):
            count = min(BLOCK, stop - first)
            if kind == SOFTMAX:
                _softmax_outputs(rows, first, count, weights, bias[client], coefficient, output)
            else:
                _outputs(rows, first, count, padded, bias[client, 0], output0)
            _copy(target, first, count, label)

            if kind == LOGISTIC:
                _logistic_block(output0, label, spread[0, 0], enough, root, tail, value, slope0)
                if scored:
                    _apply_threshold(
                        rows, first, count, output0, label, spread[0, 0], weights0, threshold,
                        value, slope0, shift,
                    )  # fmt: skip
                if priced:
                    for j in range(count):
                        other_label[j] = -label[j]
                    _logistic_block(
                        output0, other_label, spread[0, 0], enough, root, tail, other_value,
                        other_slope0,
                    )  # fmt: skip
                    if scored:
                        _apply_threshold(
                            rows, first, count, output0, other_label, spread[0, 0], weights0,
                            threshold, other_value, other_slope0, other_shift,
                        )  # fmt: skip
                    for j in range(count):
                        if other_value[j] - price > value[j]:
                            value[j] = other_value[j] - price
                            slope[0, j] = other_slope[0, j]
                            shift[j] = other_shift[j]
                            label[j] = other_label[j]
            elif kind == SQUARED:
                _squared_block(output0, label, spread[0, 0], value, slope0)
            elif kind == HUBER:
                _huber_block(output0, label, spread[0, 0], delta, value, slope0)
            else:
                if scored:  # its column is frozen: otherwise the score is left to ascent
                    for j in range(count):
                        x = float(rows[first + j, int(threshold[0])])
                        resting[j] = _resting_score(x, threshold[2], threshold[3], threshold[4])
                _softmax_block(
                    output, label, count, spread, chords, apart, concave, accuracy, price,
                    threshold[5] if scored else -1.0, resting, value, slope, room,
                )  # fmt: skip

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
            if kind == SOFTMAX:
                _softmax_sums(
                    rows, first, count, weight, slope, coefficient, push, partial, square,
                    (moments[chunk], slopes[chunk], squares[chunk]),
                )  # fmt: skip
            else:
                _push(weight, slope0, count, push0, coefficient)
                slopes[chunk, 0] += _sum(push0, count, 0.0)
                squares[chunk, 0, 0] += _dot(push0, slope0, count)
                _weighted_rows(rows, first, count, coefficient, total0)
                for k in range(dims):
                    moments[chunk, 0, k] += total0[k]
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
def combine(
    chunks, counts, tau, shrink, anchors, pulled, column, tops, totals, moments, slopes, squares,
    shifts, values, gradients,
):  # fmt: skip
    """F_i and ∇F_i of every client from the sums of :func:`one_pass`, chunks in their order.

    See :func:`chain` for shrink, anchors, pulled and column.
    """
    clients, (_, outputs, dims) = len(counts), moments.shape
    moment, slope = np.zeros((clients, outputs, dims)), np.zeros((clients, outputs))
    square, shift = np.zeros((clients, outputs, outputs)), np.zeros(clients)
    top, beyond = np.full(clients, -np.inf), np.zeros(clients)
    values[:] = 0.0
    for chunk in range(len(chunks)):
        client = chunks[chunk, 2]
        top[client] = max(top[client], tops[chunk])
    for chunk in range(len(chunks)):
        start, stop, client = chunks[chunk]
        if tau < np.inf:
            below = math.expm1(tops[chunk] - top[client])
            beyond[client] += totals[chunk] * (below + 1.0) + (stop - start) * below  # Σ (w − 1)
        else:
            values[client] += totals[chunk] / counts[client]
    for chunk in range(len(chunks)):
        client = chunks[chunk, 2]
        share = math.exp(tops[chunk] - top[client]) / (counts[client] + beyond[client])
        for c in range(outputs):
            slope[client, c] += share * slopes[chunk, c]
            for k in range(dims):
                moment[client, c, k] += share * moments[chunk, c, k]
            for e in range(outputs):
                square[client, c, e] += share * squares[chunk, c, e]
        shift[client] += share * shifts[chunk]
    if tau < np.inf:
        for client in range(clients):
            values[client] = tau * (top[client] + math.log1p(beyond[client] / counts[client]))
    chain(moment, slope, square, shift, shrink, anchors, pulled, column, gradients)


@njit(nogil=True, cache=True, **_SCALAR)
def chain(moment, slope, square, shift, shrink, anchors, pulled, column, gradients):
    """The chain rule from ζ back to θ: ∇F = Σ p g zᵀ, from Σ p g ζᵀ, Σ p g, Σ p g gᵀ of a client.

    A row stands at z = shrink ζ + anchor + Qᵀ g, `pulled` is Q = W K⁻¹, and `column` where the
    threshold score moves it by the shift beyond that. A last column is the intercept's.
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
    """∇²F, packed, of every client in [begin, end) where the model has one output.

    A row stands at z = shrink ζ + anchor + slope · pull and has the weight root² in the Gram
    matrix; lean[0] and lean[1] are p g and p g E, `twice` is Σ p g² E of every client.
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
def gram(place, weight, total):
    """total[kl, q] += Σ_j weight[j, q] z_jk z_jl, for every pair k ≥ l in the order of a triangle.

    Rows that are mostly zero, as one-hot encoding leaves them, are taken one by one, at the price
    of what is not zero in them; others some at a time, their pairs multiplied by BLAS.
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
    """Blocks (c, e), c ≥ e, each symmetric and given by its triangle, as one packed triangle."""
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
    """Add to block (c, e), c ≥ e: QᵀA_ce + A_ecᵀQ − scale · s_c s_eᵀ, Q the pull, s what is pushed.

    Where rows move, A_ce = E_p[g_c E_e· z] + ½ E_p[g_c g_e E] Q.
    """
    outputs, width = pull.shape
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
    """Whether |H_kl| ≤ scale_k scale_l for every entry of a packed triangle."""
    at = 0
    for k in range(len(scale)):
        worst = 0
        for l in range(k + 1):  # noqa: E741 - as in the formula
            worst += 1 if abs(packed[at + l]) > scale[k] * scale[l] else 0
        if worst > 0:
            return False
        at += k + 1
    return True
