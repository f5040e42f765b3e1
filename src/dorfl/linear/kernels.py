"""One pass over the rows: supremum, tilt and gradient together, each row read once.

A linear model sees a row only through its outputs t = W x, so the inner supremum

    f(ζ) = sup_x  l(W x, y) − h(x) − ρ c(x, ζ)

collapses to a problem in as many unknowns as the model has outputs. With a = W m the outputs at
the row's centre m and S = W K⁻¹ Wᵀ (see :mod:`dorfl.linear.inner` for m and K),

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
import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast, models, register_model

from dorfl.support import compilation

LOGISTIC, SQUARED, HUBER = range(3)

BLOCK = 64  # rows of several outputs staged at once, which stay in the first-level cache meanwhile
_AT_ONCE = 32  # rows computed with at once; blocks of one output are so many, or some times that
_STAGED = 64  # at most: sums of a block are in the precision of its rows
CHUNK = 4096  # rows summed into one partial result; fixed, whatever the number of threads

_MAGIC = 6755399441055744.0  # 1.5 · 2⁵²: adding it rounds to an integer, kept in the low bits
_SCALAR: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"contract"},
}  # no reordering: exact to the last bits
_INSIDE: dict[str, Any] = {
    **_SCALAR,
    "forceinline": True,
}  # a call for every block would cost more than some of what is called
_SETTLED = 1e-5  # a third-order step of this size leaves an error below 1e-15 …
_SETTLED_FLOAT32 = 2e-3  # … and of this size below 1e-9: the products of float32 know no better
_NARROW = 0.3  # spread up to which a margin's start is as near as that
_CLIMBS = 500  # steps of a climb; rows on a tie crawl

compilation.announce(__name__)


# ── lanes ───────────────────────────────────────────────────────────────────────────────────────
# Left to itself LLVM takes four registers of a row at a time and what remains, up to sixty columns,
# one by one; and how it shares a sum out changes with what it has inlined. Here it is told: 64
# bytes at a time, of any kind of processor's registers, always summed in the same order.

_WIDE = 64  # bytes


class _Lanes(types.Type):
    """Numbers that are computed with at once: as many as 64 bytes hold, or as are said."""

    def __init__(self, dtype: Any, count: int = 0) -> None:
        self.dtype, self.count = dtype, count or 8 * _WIDE // dtype.bitwidth
        super().__init__(name=f"Lanes({dtype}, {self.count})")


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
def _lanes(_, array):
    """How many of an array's numbers 64 bytes hold, known when code is compiled."""
    count = _Lanes(array.dtype).count
    return types.intp(array), lambda context, *_: context.get_constant(types.intp, count)


@intrinsic
def _is_short(_, number):
    """Whether a number has single precision, known when code is compiled."""
    short = number == types.float32
    return types.boolean(number), lambda context, *_: context.get_constant(types.boolean, short)


@intrinsic
def _take(_, taken):
    """The number in taken[0], which no other thread gets: it is one more from then on."""

    def generate(context, builder, _signature, args):
        place = _place(context, builder, taken, args[0], [ir.IntType(64)(0)])
        return builder.atomic_rmw("add", place, ir.IntType(64)(1), "monotonic")

    return types.int64(taken), generate


@intrinsic
def _borrowed(_, array):
    """The array, and nobody counts who refers to it: its owner has to :func:`_keep` it.

    Counting is an atomic operation, which all other access to memory waits for, and some ten of
    them came with every block. Arguments are kept by whoever calls.
    """

    def generate(context, builder, _signature, args):
        made = context.make_array(array)(context, builder, args[0])
        made.meminfo = made.meminfo.type(None)
        return made._getvalue()

    return array(array), generate


@njit(nogil=True, cache=True, **_INSIDE)
def _keep(arrays):
    """Have arrays that are borrowed last until here."""


def _pointer(context, builder, array, value, indices, count=0):
    at = _place(context, builder, array, value, indices)
    return builder.bitcast(at, context.get_value_type(_Lanes(array.dtype, count)).as_pointer())


def _loaded(context, builder, array, value, indices, count=0):
    """Lanes from a place in an array on, whether aligned or not."""
    at = _pointer(context, builder, array, value, indices, count)
    return builder.load(at, align=array.dtype.bitwidth // 8)


def _larger(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _add_product(builder, a, b, total):
    """The sum total + a b, rounded once where the processor can."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), total, flags=("contract",))


def _halves(builder, a, b, length):
    """Of a and b, parts of so many lanes each, the lower halves of the parts and the upper ones."""
    starts, half = range(0, 2 * a.type.count if a is not b else a.type.count, length), length // 2
    return (
        builder.shuffle_vector(a, b, _places([at + k for at in starts for k in part]))
        for part in (range(half), range(half, length))
    )


def _folded(builder, vectors, join):
    """One number of each vector: the halves of its lanes joined until one is left."""
    length = vectors[0].type.count
    while length > 1:
        pairs = list(zip(vectors[::2], vectors[1::2], strict=False)) or [(vectors[0], vectors[0])]
        vectors = [join(*_halves(builder, a, b, length)) for a, b in pairs]
        length //= 2
    if len(vectors) > 1:  # two, of a number for each of half the vectors
        return builder.shuffle_vector(*vectors, _places(range(2 * vectors[0].type.count)))
    return vectors[0]


@intrinsic
def _sum_of(_, lanes):
    """The sum of the lanes, the upper half added to the lower one until one is left."""

    def generate(_context, builder, _signature, args):
        return builder.extract_element(_folded(builder, args, builder.fadd), ir.IntType(32)(0))

    return lanes.dtype(lanes), generate


@intrinsic
def _max_of(_, lanes):
    """The largest of the lanes."""

    def generate(_context, builder, _signature, args):
        found = _folded(builder, args, lambda low, high: _larger(builder, high, low))
        return builder.extract_element(found, ir.IntType(32)(0))

    return lanes.dtype(lanes), generate


# Formulas are written once, for one number and for the lanes of a block's rows. These fill several
# registers: while an operation waits for one of them, it can go on with another.


def _bits(builder, change, number, with_what):
    """A number, or lanes, after its 64 bits were changed with those of a whole number."""
    kind, one = number.type, ir.IntType(64)
    if isinstance(kind, ir.VectorType):
        one = ir.VectorType(one, kind.count)
        with_what = [with_what] * kind.count
    changed = change(builder.bitcast(number, one), ir.Constant(one, with_what))
    return builder.bitcast(changed, kind)


class _Formula(AbstractTemplate):
    """An operation on lanes; a number among them stands for lanes that are all alike."""

    def generic(self, args, _kws):
        own = next((kind for kind in args if isinstance(kind, _Lanes)), None)
        return own and signature(own, *[own] * len(args))


def _teach(formula, count, emit):
    infer_global(formula)(type("_Formula", (_Formula,), {"key": formula}))
    kinds = [_Lanes] * count
    lower_builtin(formula, *kinds)(lambda _context, builder, _signature, args: emit(builder, *args))


_teach(operator.add, 2, lambda builder, a, b: builder.fadd(a, b, flags=("contract",)))
_teach(operator.sub, 2, lambda builder, a, b: builder.fsub(a, b, flags=("contract",)))
_teach(operator.mul, 2, lambda builder, a, b: builder.fmul(a, b, flags=("contract",)))
_teach(operator.truediv, 2, lambda builder, a, b: builder.fdiv(a, b))
_teach(operator.neg, 1, lambda builder, a: builder.fneg(a))
_teach(abs, 1, lambda builder, a: _bits(builder, builder.and_, a, (1 << 63) - 1))
_teach(max, 2, _larger)
_teach(min, 2, lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))


def _alike(builder, number, kind):
    """Lanes of one number."""
    first = builder.insert_element(kind(ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, _places([0] * kind.count))


@lower_cast(types.Float, _Lanes)
def _repeat(context, builder, given, lanes, number):
    number = context.cast(builder, number, given, lanes.dtype)
    return _alike(builder, number, context.get_value_type(lanes))


@intrinsic
def _some(_, array, k):
    """The lanes of a block's rows from array[k] on."""

    def generate(context, builder, _signature, args):
        return _loaded(context, builder, array, args[0], args[1:], _AT_ONCE)

    return _Lanes(array.dtype, _AT_ONCE)(array, k), generate


@intrinsic
def _put(_, array, k, lanes):
    """Set the numbers from array[k] on to those lanes, in the array's precision."""

    def generate(context, builder, _signature, args):
        at = _pointer(context, builder, array, args[0], args[1:2], lanes.count)
        kind = context.get_value_type(_Lanes(array.dtype, lanes.count))
        value = args[2] if args[2].type == kind else builder.fptrunc(args[2], kind)
        builder.store(value, at, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, k, lanes), generate


@intrinsic
def _where_positive(_, b, one, other):
    """The one where b ≥ 0, else the other."""

    def generate(_context, builder, _signature, args):
        return builder.select(builder.fcmp_ordered(">=", args[0], args[0].type(None)), *args[1:])

    return b(b, one, other), generate


@intrinsic
def _two_to(_, shifted):
    """2ⁿ for the n in the low bits of a number."""

    def generate(_context, builder, _signature, args):
        power = _bits(builder, builder.shl, args[0], 52)
        return _bits(builder, builder.add, power, 1023 << 52)

    return shifted(shifted), generate


# A block's rows are taken up to seven lanes at a time, a tile: with what these are multiplied by or
# added to they fill the registers of most processors. The last lanes of a row begin where they end
# with it, and so may overlap the ones before; θ is zero there, and sums are not taken from there.
# Of every row the one a block further on is asked for, half of it during each product: memory would
# idle otherwise until its turn comes.

_ROWS, _TILE = 8, 7
_LONG = 2048  # bytes of a row from which on it streams in by itself


def _least(builder, a, b):
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _tile(context, builder, array, value, indices, count, last=None):
    """So many lanes from a place in an array on; the last not after the last column.

    By halves, of which fewer cross a line of the cache.
    """
    *row, k = indices
    half = _Lanes(array.dtype).count // 2
    for c in range(count):
        at = builder.add(k, k.type(2 * c * half))
        if last is not None and c == count - 1:
            at = _least(builder, at, last)
        for place in (at, builder.add(at, k.type(half))):
            yield _loaded(context, builder, array, value, [*row, place], half)


def _by_size(builder, size, emit):
    """Have `emit` make code for tiles of every number of lanes, of which one runs."""
    done = builder.append_basic_block()
    cases = [builder.append_basic_block() for _ in range(_TILE)]
    choice = builder.switch(size, cases[-1])
    for count, case in enumerate(cases, 1):
        choice.add_case(size.type(count), case)
        builder.position_at_end(case)
        emit(count)
        builder.branch(done)
    builder.position_at_end(done)


def _ask(context, builder, array, value, indices, ahead, lanes):
    """Have lanes so many numbers after a place in an array brought into the second-level cache.

    Such a place need not be.
    """
    at = builder.gep(_place(context, builder, array, value, indices), [ahead])
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for c in lanes:
        line = builder.gep(at, [flag(c * _Lanes(array.dtype).count)])
        builder.call(ask, [builder.bitcast(line, byte), flag(0), flag(2), flag(1)])


@intrinsic
def _prefetch(_, array, k):
    """Have the lanes from an array's number k on brought into the second-level cache."""

    def generate(context, builder, _signature, args):
        _ask(context, builder, array, args[0], args[1:], ir.IntType(64)(0), range(1))
        return context.get_dummy_value()

    return types.void(array, k), generate


@intrinsic
def _multiply(_, rows, i, end, k, size, last, weights, ahead, out):
    """Add to out, for every row from i to `end`, a tile of the row times the weights there.

    Eight rows at a time, of which the last one stands for those after it.
    """

    def generate(context, builder, _signature, args):
        table, i, end, k, size, last, vector, ahead, found = args
        kind = ir.VectorType(ir.DoubleType(), _ROWS)

        def emit(count):
            own = list(_tile(context, builder, weights, vector, [k], count))
            after = builder.add(end, end.type(1))
            with cgutils.for_range_slice(builder, i, after, i.type(_ROWS)) as (first, _):
                sums = []
                for q in range(_ROWS):
                    row = _least(builder, builder.add(first, i.type(q)), end)
                    some = _tile(context, builder, rows, table, [row, k], count, last)
                    parts = [own[0].type(None)] * 2  # an addition waits for the one before
                    for c, (lanes, weight) in enumerate(zip(some, own, strict=True)):
                        at = c // 2 % 2
                        parts[at] = _add_product(builder, lanes, weight, parts[at])
                    sums.append(builder.fadd(*parts))
                    _ask(context, builder, rows, table, [row, k], ahead, range(count // 2))
                total, j = _folded(builder, sums, builder.fadd), builder.sub(first, i)
                total = total if total.type == kind else builder.fpext(total, kind)
                place = _place(context, builder, out, found, [j])
                place = builder.bitcast(place, kind.as_pointer())
                builder.store(builder.fadd(builder.load(place, align=8), total), place, align=8)

        _by_size(builder, size, emit)
        return context.get_dummy_value()

    return types.void(rows, i, end, k, size, last, weights, ahead, out), generate


@intrinsic
def _add_product_at(_, rows, i, k, weights, c, total):
    """The sum of the total and the lanes of row i from column k on times the weights from c on."""

    def generate(context, builder, _signature, args):
        table, i, k, vector, c, found = args
        lanes = _loaded(context, builder, rows, table, [i, k])
        return _add_product(builder, lanes, _loaded(context, builder, weights, vector, [c]), found)

    return total(rows, i, k, weights, c, total), generate


@intrinsic
def _nothing(_, number):
    """Lanes of zeros, where a sum begins."""
    kind = _Lanes(number)
    return kind(number), lambda context, *_: context.get_value_type(kind)(None)


@intrinsic
def _add_rows(_, rows, i, several, k, size, last, coefficients, ahead, total):
    """Add to a tile of the total: so many rows from i on times their coefficients."""

    def generate(context, builder, _signature, args):
        table, i, several, k, size, last, given, ahead, vector = args
        lanes = context.get_value_type(_Lanes(rows.dtype, _Lanes(rows.dtype).count // 2))

        def emit(count):
            sums = [cgutils.alloca_once(builder, lanes) for _ in range(2 * count)]
            for some in sums:
                builder.store(lanes(None), some)
            with cgutils.for_range(builder, several) as loop:
                j = loop.index
                number = builder.load(_place(context, builder, coefficients, given, [j]))
                own = _alike(builder, number, lanes)
                row = [builder.add(i, j), k]
                lot = _tile(context, builder, rows, table, row, count, last)
                for found, some in zip(lot, sums, strict=True):
                    builder.store(_add_product(builder, found, own, builder.load(some)), some)
                with builder.if_then(builder.icmp_signed(">", ahead, ahead.type(0))):
                    _ask(context, builder, rows, table, row, ahead, range(count // 2, count))
            kind = ir.VectorType(ir.DoubleType(), lanes.count)
            for c, some in enumerate(sums):
                at = builder.add(k, k.type(c * lanes.count))
                at = _place(context, builder, total, vector, [at])
                at, found = builder.bitcast(at, kind.as_pointer()), builder.load(some)
                found = found if found.type == kind else builder.fpext(found, kind)
                builder.store(builder.fadd(builder.load(at, align=8), found), at, align=8)

        _by_size(builder, size, emit)
        return context.get_dummy_value()

    return types.void(rows, i, several, k, size, last, coefficients, ahead, total), generate


# ── elementary functions ────────────────────────────────────────────────────────────────────────


# Polynomials of least largest error, for a call of libm's would not be vectorised: exact to a unit
# in the last place or, where `like` has single precision, to 1e-10: rows of float32 know no better.


@njit(nogil=True, cache=True, **_INSIDE)
def _powers(x, like):
    """2ⁿ and e^r − 1 for x = n log 2 + r ≤ 700: e^x is the one times one more than the other."""
    x = max(x, -708.0)
    shifted = x * 1.4426950408889634 + _MAGIC
    n = shifted - _MAGIC
    r = x - n * 0.6931471803691238 - n * 1.9082149292705877e-10
    if _is_short(like):
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
    return _two_to(shifted), (p * r + 1.0) * r


@njit(nogil=True, cache=True, **_INSIDE)
def _exp(x, like):
    """e^x for x ≤ 700."""
    power, rest = _powers(x, like)
    return power * rest + power


@njit(nogil=True, cache=True, **_INSIDE)
def _twice_artanh(r, like):
    """2 artanh(r) for 0 ≤ r ≤ ⅓: log(1 + e) where r = e / (2 + e)."""
    z = r * r
    if _is_short(like):
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
    """log x for x ≥ 1."""
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
    """An upper bound of the root: tanh(t/2) ≤ 1 and, where it helps, tanh(t/2) ≤ t/2.

    Below S = 1 the steps need no bound to be safe.
    """
    if spread < 1.0:
        return _margin_guess(b, spread)
    wide = abs(b) + 0.5 * spread
    return min(wide, abs(b) * (1.0 / (1.0 - 0.25 * spread))) if spread < 4.0 else wide


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_guess(b, spread):
    """The root with tanh(t/2) to 0.006, for S < 1."""
    t = min(abs(b) * (1.0 / (1.0 - 0.25 * spread)), abs(b) + 0.5 * spread)
    t = min(t, 6.0)
    z = t * t
    p = 3.776e-7 * z - 3.8648e-5
    p = p * z + 1.53427e-3
    p = p * z - 3.16868e-2
    return abs(b) + 0.5 * spread * t * (p * z + 0.4879273)


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_step(t, b, spread, enough, like):
    """Halley's step for t − |b| − (S/2) tanh(t/2), e^−t after it, and how far t was from settled.

    With e = e^−t, tanh(t/2) is (1 − e)/(1 + e); all is multiplied by powers of 1 + e, which leaves
    one division. Near S = 4, b = 0 the root is nearly triple and steps shrink slowly: comparing
    them with the slope keeps the iteration going there. Settled is what is below zero.
    """
    e = _exp(-t, like)
    over, under = 1.0 - e, 1.0 + e
    residual = (t - abs(b)) * under - 0.5 * spread * over
    slope = under * under - spread * e
    step = 2.0 * residual * slope * under / (2.0 * slope * slope - residual * spread * e * over)
    tail = e * (1.0 + step * (1.0 + step * (0.5 + step * (1.0 / 6.0))))  # for a settled step exact
    return step, tail, abs(step) * under * under - enough * abs(slope)


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_loss(e, like):
    """log(1 + e) and e / (1 + e), the loss and σ(−t) at t with e = e^−t."""
    one, two = 1.0 + e, 2.0 + e
    shared = e / (one * two)  # one division for e / (1 + e) and e / (2 + e)
    return _twice_artanh(shared * one, like), shared * two


@njit(nogil=True, cache=True, **_INSIDE)
def _margin_nearer(t, loss, small, b, spread):
    """The root, and loss and σ there, from a t within 2e-3 of it: a narrow spread's start.

    By Chebyshev's step, of third order, and Taylor's series: one exponential is enough, and no row
    waits for another to settle.
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
    """log(1 + e^−u) − ½ S s² and s = σ(−u), at u = sign(b) t, from loss and σ at t."""
    s = _where_positive(b, small, 1.0 - small)
    return _where_positive(b, loss, loss + t) - 0.5 * spread * s * s, s


@njit(nogil=True, cache=True, **_SCALAR)
def _logistic_point(margin, spread):
    """The logistic supremum at one margin: (value, s)."""
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
    """The logistic supremum of a block; label is ±1, slope is ∂f/∂a = −y s."""
    enough = _SETTLED_FLOAT32 if _is_short(like) else _SETTLED
    near = _is_short(like) and 0.0 < spread <= _NARROW
    for j in range(0, count, _AT_ONCE):
        y = _some(label, j)
        b = y * _some(output, j) - 0.5 * spread
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
                if _max_of(off) < 0.0:
                    break
            loss, small = _margin_loss(e, like)
        loss, small = _margin_value(t, loss, small, b, spread)
        _put(value, j, loss)
        _put(slope, j, -y * small)


# ── squared and Huber ───────────────────────────────────────────────────────────────────────────


@njit(nogil=True, cache=True, **_INSIDE)
def _squared_block(output, label, count, spread, value, slope):
    """½ (a − y)² / (1 − S); the caller has made sure that S < 1."""
    gain = 1.0 / (1.0 - spread)
    for j in range(0, count, _AT_ONCE):
        residual = _some(output, j) - _some(label, j)
        _put(slope, j, gain * residual)
        _put(value, j, 0.5 * gain * residual * residual)


@njit(nogil=True, cache=True, **_INSIDE)
def _huber_block(output, label, count, spread, delta, value, slope):
    """Two branches: the row stays in the quadratic part, or is carried into the linear one."""
    edge = delta * (1.0 - spread)
    gain = 1.0 / (1.0 - spread) if spread < 1.0 else 0.0
    for j in range(0, count, _AT_ONCE):
        residual = _some(output, j) - _some(label, j)
        size = abs(residual)
        linear = delta * size + 0.5 * delta * delta * (spread - 1.0)
        inside = 0.5 * gain * residual * residual
        _put(value, j, _where_positive(size - edge, linear, inside))
        side = _where_positive(residual, residual * 0.0 + delta, residual * 0.0 - delta)
        _put(slope, j, _where_positive(size - edge, side, gain * residual))


# ── softmax ─────────────────────────────────────────────────────────────────────────────────────
# The maximiser has t = a + S g and g = softmax(t) − e_y. With p for softmax(t) the problem is
#
#     max_p  entropy(p) + gᵀa + ½ gᵀSg,    g = p − e_y,  p in the simplex:
#
# a concave part and a convex one, so one maximum where S is small, and perhaps one near every
# vertex where it is not. Arrays are (classes, BLOCK): a lane is a row.


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
    e = _exp(-abs(x - level) / softness, 0.0)
    return weight * (e / (1.0 + e) if x < level else 1.0 / (1.0 + e))


# ── the pass ────────────────────────────────────────────────────────────────────────────────────


@njit(nogil=True, cache=True, **_INSIDE)
def _tile_size(dims, width):
    """How many lanes of a row a tile takes: tiles are as few as can be, and about alike."""
    lanes = -(-dims // width)
    return -(-lanes // -(-lanes // _TILE))


@njit(nogil=True, cache=True, **_SCALAR)
def _padded(weights):
    """Weights by lanes: zero where the last overlap those before, or a short row's the next row."""
    dims, width = weights.shape[1], _lanes(weights)
    found = np.zeros(dims + 2 * width, weights.dtype)
    for k in range(dims):
        found[_column(k, dims, width)] = weights[0, k]
    return found


@njit(nogil=True, cache=True, **_INSIDE)
def _column(k, dims, width):
    """Where column k of a row is by lanes."""
    whole = dims // width * width
    return k if k < whole else k - max(dims - width, 0) + whole


@njit(nogil=True, cache=True, **_INSIDE)
def _can_load(rows, stop):
    """Whether the lanes of all rows before `stop` are in the array; a short row's may not be."""
    return rows.shape[1] * (stop - 1) + _lanes(rows) <= rows.size


@njit(nogil=True, cache=True, **_SCALAR)
def _last_rows(rows, first, count):
    """Rows of a block as they are but for zeros behind them, so that lanes can be loaded there."""
    dims = rows.shape[1]
    found = np.zeros((count, _lanes(rows)), rows.dtype)
    for j in range(count):
        for k in range(dims):
            found[j, k] = rows[first + j, k]
    return found


@njit(nogil=True, cache=True, **_INSIDE)
def _outputs(rows, first, count, weights, dims, bias, tile, ahead, out):
    """out[j] = weights · row_j + bias for a block of rows; zero beyond the last.

    Rows are climbed together, so what is beyond must not be somebody else's.
    """
    width, end = _lanes(rows), first + count - 1
    last = max(dims - width, 0)
    out[:] = bias
    if dims * rows.itemsize > _LONG:  # one after the other: eight would be as many places in memory
        for j in range(count):
            one = two = _nothing(rows.dtype.type(0))
            for k in range(0, dims, 2 * width):
                after = k + width
                one = _add_product_at(rows, first + j, min(k, last), weights, k, one)
                two = _add_product_at(rows, first + j, min(after, last), weights, after, two)
            out[j] += _sum_of(one + two)
    else:
        k = 0
        while k < dims:
            size = min(tile, (dims - k + width - 1) // width)
            _multiply(rows, first, end, k, size, last, weights, ahead, out)
            k += tile * width
    out[count:] = 0.0


@njit(nogil=True, cache=True, **_INSIDE)
def _weighted_rows(rows, first, count, coefficient, dims, tile, ahead, total):
    """Add Σ_j coefficient_j row_j to the total, by lanes."""
    width = _lanes(rows)
    last, k = max(dims - width, 0), 0
    while k < dims:
        size = min(tile, (dims - k + width - 1) // width)
        _add_rows(rows, first, count, k, size, last, coefficient, ahead, total)
        k += tile * width


@njit(nogil=True, cache=True, **_SCALAR)
def _bias(intercept, anchors, weights, client, c):
    """What a client's rows all get of output c: its intercept, and θᵀ(I − A)ξ̄."""
    total = intercept[c]
    for k in range(anchors.shape[1]):
        total += anchors[client, k] * weights[c, k]
    return total


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
        for j in range(0, BLOCK, _AT_ONCE):
            slopes[c] += _sum_of(_some(push[c], j))
    np.dot(push, slope.T, square)
    np.dot(coefficient, rows[first : first + count], partial)
    for c in range(outputs):
        for e in range(outputs):
            squares[c, e] += square[c, e]
        for k in range(rows.shape[1]):
            moments[c, k] += partial[c, k]


@njit(nogil=True, cache=True, **_INSIDE)
def _copy(source, first, count, out):
    """The block's part of `source`; a slice spares a check of every index for its sign."""
    part = source[first : first + count]
    for j in range(count):
        out[j] = part[j]


@njit(nogil=True, cache=True, **_INSIDE)
def _part(source, first, count, block, room, apart):
    """Where a block's part of `source` is: there, or in the room if it ends early or is changed."""
    for k in range(0, block, _lanes(source)):  # too seldom read to stream in by itself
        _prefetch(source, first + 2 * block + k)
    part = source[first : first + block]
    if apart or len(part) < block:
        _copy(source, first, count, room)
        return room
    return part


@njit(nogil=True, cache=True, **_INSIDE)
def _level(largest, scale, top):
    """A level that no f·scale is above by more than one: the former one, if that will do.

    Then what comes next need not wait for the largest f.
    """
    return largest if (largest - top) * scale > 1.0 else top


@njit(nogil=True, cache=True, **_INSIDE)
def _tilt(f, scale, top, like):
    """Weights w = exp((f − top)·scale) of some rows and w − 1; one and f where there is no tilt.

    The sum is that of expm1 and not of exp, because ρβ log mean exp(f/ρβ) is a small difference of
    large numbers where ρβ is large.
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
    """Give rows of a logistic model the other label where that is worse by more than its price."""
    other, other_value, other_slope, other_shift = room
    for j in range(0, count, _AT_ONCE):
        _put(other, j, -_some(label, j))
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
    """Everything the risks need from the rows in chunks = [(start, stop, client), …].

    Chunks are taken one by one, until none is left: threads that share `taken` share them out.
    Per chunk: levels are the top of f·scale, Σ (w − 1) (or Σ f where scale = 0, the plain mean) and
    Σ w g · shift, with w = exp(f·scale − top); then Σ w g xᵀ, Σ w g and Σ w g gᵀ. With `keep`, also
    per row: f, g, the label at the maximiser, and how far the threshold's coordinate moves beyond
    the loss. Rows meet the weights A θ, `effective`, and θᵀ(I − A)ξ̄ of their client.

    This is for models of one output; those of several are :func:`softmax_pass`'s.
    """
    dims, width, like, S = rows.shape[1], _lanes(rows), rows.dtype.type(0), spread[0, 0]
    rows, target, penalty = _borrowed(rows), _borrowed(target), _borrowed(penalty)
    tile, size = _tile_size(dims, width), dims * rows.itemsize
    # half of the first-level cache: the next block is on its way meanwhile
    block = min(max(16_384 // size // _AT_ONCE * _AT_ONCE, _AT_ONCE), _STAGED)
    ahead = block * dims if size <= _LONG else 0
    kept = (
        np.zeros((10, block)), _padded(effective), np.zeros(block, rows.dtype),
        np.empty(dims + width),
    )  # fmt: skip
    room, padded = _borrowed(kept[0]), _borrowed(kept[1])
    coefficient, sums = _borrowed(kept[2]), _borrowed(kept[3])
    output, value, slope, shift, copies = room[0], room[1], room[2], room[3], room[4:6]
    other = (room[6], room[7], room[8], room[9])
    own = effective[0]
    scored, priced = threshold[4] > 0.0, price < np.inf
    chunk = _take(taken)
    while chunk < len(chunks):
        start, stop, client = chunks[chunk]
        moment, bias = moments[chunk, 0], _bias(intercept, anchors, weights, client, 0)
        top = -np.inf if scale > 0.0 else 0.0
        total = pushed = squared = moved = 0.0
        sums[:] = 0.0
        for first in range(start, stop, block):
            count = min(block, stop - first)
            whole = -(-count // _AT_ONCE) * _AT_ONCE
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
            for j in range(0, count, _AT_ONCE):
                _put(value, j, _some(value, j) - _some(minus, j))
            if keep:
                for j in range(count):
                    f[first + j] = value[j]
                    g[first + j, 0] = slope[j]
                    labels[first + j] = label[j]
                    moves[first + j] = shift[j]
            for j in range(count, whole):
                value[j], slope[j] = -np.inf, 0.0
            largest = _some(value, 0)
            for j in range(_AT_ONCE, count, _AT_ONCE):
                largest = max(_some(value, j), largest)
            risen = _level(_max_of(largest), scale, top)
            if risen > top:
                shrink = math.exp((top - risen) * scale)
                total = total * shrink + (first - start) * math.expm1((top - risen) * scale)
                pushed, squared, moved = pushed * shrink, squared * shrink, moved * shrink
                for k in range(len(sums)):
                    sums[k] *= shrink
                top = risen
            for j in range(count, whole):
                value[j] = top  # with a weight of one, which adds nothing
            for j in range(0, count, _AT_ONCE):
                weight, gained = _tilt(_some(value, j), scale, top, like)
                push = weight * _some(slope, j)
                _put(coefficient, j, push)
                total += _sum_of(gained)
                pushed += _sum_of(push)
                squared += _sum_of(push * _some(slope, j))
                moved += _sum_of(push * _some(shift, j)) if scored else 0.0
            _weighted_rows(table, at, count, coefficient, dims, tile, ahead, sums)
        for k in range(dims):
            moment[k] = sums[_column(k, dims, width)]
        levels[chunk, 0], levels[chunk, 1], levels[chunk, 2] = top * scale, total, moved
        slopes[chunk, 0], squares[chunk, 0, 0] = pushed, squared
        chunk = _take(taken)
    _keep(kept)


@njit(nogil=True, cache=True, **_SCALAR)
def softmax_pass(
    rows, target, penalty, chunks, taken, effective, weights, intercept, anchors, spread,
    scale, price, threshold, concave, levels, moments, slopes, squares, keep, f, g, labels, moves,
):  # fmt: skip
    """What :func:`one_pass` finds, of a softmax model. Shifts are zero: thresholds' columns rest.

    `concave` says whether every row's supremum is.
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
    chunk = _take(taken)
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
                value[j] = top  # with a weight of one, which adds nothing
            for j in range(0, BLOCK, _AT_ONCE):
                some, gained = _tilt(_some(value, j), scale, top, 0.0)
                _put(weight, j, some)
                total += _sum_of(gained)
            _softmax_sums(
                rows, first, count, weight, slope, coefficient, push, partial, square,
                (moments[chunk], slopes[chunk], squares[chunk]),
            )  # fmt: skip
        levels[chunk, 0], levels[chunk, 1] = top * scale, total
        chunk = _take(taken)


@njit(nogil=True, cache=True, **_SCALAR)
def combine(
    chunks, counts, tau, shrink, anchors, pulled, column, levels, moments, slopes, squares, values,
    gradients,
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
def stretch(bend, spread):
    """E = D (I − S D)⁻¹ for every D; where that is nearly singular, or no more a maximum's, D."""
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
