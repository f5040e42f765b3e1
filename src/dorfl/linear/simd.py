"""Vector registers for Numba: the only code of dorfl that writes processor instructions.

A processor computes with 4 to 16 numbers in one instruction if the compiler puts them into a vector
register. LLVM, the compiler behind Numba, does that by itself for simple loops, and
:mod:`dorfl.linear.kernels` leaves all simple loops to it. The two products of a pass, rows times θ
and weights times rows, are different: left alone, LLVM computes the last columns of a row one by
one, fetches no row from memory before its turn, and sums in an order that depends on the code
around. So this file adds a type to Numba, :class:`Lanes`: a fixed number of numbers to which +, −,
·, /, min, max and abs apply at once. An `@intrinsic` is a function whose LLVM instructions are
written by hand, one for each operation on lanes. The kernels call these like any other function. A
sum over lanes always has the same order, on every processor.

The layer is here because it is worth it: in plain Numba with the same blocks and formulas a pass
takes 1.9 to 4.0 times as long, at every one of three sizes (`benchmarks/plain.py`, figures in
`benchmarks/README.md`). Below a factor of 1.25 at two of the sizes it would go.

Numba's disk cache does not see changes of this file. The kernels hold a digest of it, which a test
compares: with the digest, :mod:`dorfl.linear.kernels` changes and is compiled again.
"""

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast, models, register_model

AT_ONCE = 32  # rows in the lanes of a formula; blocks of one output are multiples of that
TILE = 7  # registers' worth of columns that a product takes at once
_WIDE = 64  # bytes of a register at most (AVX-512); narrower processors use several
_ROWS = 8  # rows that a product takes at once


class Lanes(types.Type):
    """A fixed number of numbers, by default as many as 64 bytes hold."""

    def __init__(self, dtype: Any, count: int = 0) -> None:
        self.dtype, self.count = dtype, count or 8 * _WIDE // dtype.bitwidth
        super().__init__(name=f"Lanes({dtype}, {self.count})")


@register_model(Lanes)
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
def lane_count(_, array):
    """Return how many of an array's numbers 64 bytes hold, a compile-time constant."""
    count = Lanes(array.dtype).count
    return types.intp(array), lambda context, *_: context.get_constant(types.intp, count)


@intrinsic
def is_single(_, number):
    """Return True if a number has single precision, a compile-time constant."""
    short = number == types.float32
    return types.boolean(number), lambda context, *_: context.get_constant(types.boolean, short)


@intrinsic
def take_next(_, taken):
    """Return taken[0] and increase it by one, atomically, so that threads get different numbers."""

    def generate(context, builder, _signature, args):
        place = _place(context, builder, taken, args[0], [ir.IntType(64)(0)])
        return builder.atomic_rmw("add", place, ir.IntType(64)(1), "monotonic")

    return types.int64(taken), generate


@intrinsic
def borrowed(_, array):
    """Return the array without reference counting: its owner has to keep it alive.

    Reference counts are atomic operations, which delay all other access to memory. Without this,
    every block had about ten of them.
    """

    def generate(context, builder, _signature, args):
        made = context.make_array(array)(context, builder, args[0])
        made.meminfo = made.meminfo.type(None)
        return made._getvalue()

    return array(array), generate


def _pointer(context, builder, array, value, indices, count=0):
    at = _place(context, builder, array, value, indices)
    return builder.bitcast(at, context.get_value_type(Lanes(array.dtype, count)).as_pointer())


def _loaded(context, builder, array, value, indices, count=0):
    """Return lanes from a place in an array on, which need not be aligned."""
    at = _pointer(context, builder, array, value, indices, count)
    return builder.load(at, align=array.dtype.bitwidth // 8)


def _larger(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _multiply_add(builder, a, b, total):
    """Return total + a b, rounded once if the processor has such an instruction."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), total, flags=("contract",))


def _halves(builder, a, b, length):
    """Return the lower and the upper halves of all parts of a and b, each of `length` lanes."""
    starts, half = range(0, 2 * a.type.count if a is not b else a.type.count, length), length // 2
    return (
        builder.shuffle_vector(a, b, _places([at + k for at in starts for k in part]))
        for part in (range(half), range(half, length))
    )


def _folded(builder, vectors, join):
    """Return one number for each vector: halves of its lanes are joined until one is left."""
    length = vectors[0].type.count
    while length > 1:
        pairs = list(zip(vectors[::2], vectors[1::2], strict=False)) or [(vectors[0], vectors[0])]
        vectors = [join(*_halves(builder, a, b, length)) for a, b in pairs]
        length //= 2
    if len(vectors) > 1:  # two, of a number for each of half the vectors
        return builder.shuffle_vector(*vectors, _places(range(2 * vectors[0].type.count)))
    return vectors[0]


@intrinsic
def sum_of(_, lanes):
    """Return the sum of the lanes: the upper half is added to the lower one until one is left."""

    def generate(_context, builder, _signature, args):
        return builder.extract_element(_folded(builder, args, builder.fadd), ir.IntType(32)(0))

    return lanes.dtype(lanes), generate


@intrinsic
def max_of(_, lanes):
    """Return the largest of the lanes."""

    def generate(_context, builder, _signature, args):
        found = _folded(builder, args, lambda low, high: _larger(builder, high, low))
        return builder.extract_element(found, ir.IntType(32)(0))

    return lanes.dtype(lanes), generate


# A formula of the kernels is written once, for one number and for the lanes of a block's rows. The
# lanes of 32 rows fill several registers, so that operations need not wait for each other.


def _bits(builder, change, number, with_what):
    """Return a number, or lanes, with its 64 bits combined with those of an integer."""
    kind, one = number.type, ir.IntType(64)
    if isinstance(kind, ir.VectorType):
        one = ir.VectorType(one, kind.count)
        with_what = [with_what] * kind.count
    changed = change(builder.bitcast(number, one), ir.Constant(one, with_what))
    return builder.bitcast(changed, kind)


class _Formula(AbstractTemplate):
    """The type of an operation on lanes; a number among the arguments is repeated in all lanes."""

    def generic(self, args, _kws):
        own = next((kind for kind in args if isinstance(kind, Lanes)), None)
        return own and signature(own, *[own] * len(args))


def _teach(formula, count, emit):
    """Define a Python operation for lanes: its type, and its LLVM instruction `emit`."""
    infer_global(formula)(type("_Formula", (_Formula,), {"key": formula}))
    kinds = [Lanes] * count
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
    """Return lanes that all have the same number."""
    first = builder.insert_element(kind(ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, _places([0] * kind.count))


@lower_cast(types.Float, Lanes)
def _repeat(context, builder, given, lanes, number):
    number = context.cast(builder, number, given, lanes.dtype)
    return _alike(builder, number, context.get_value_type(lanes))


@intrinsic
def load_lanes(_, array, k):
    """Return the lanes of a block's rows from array[k] on."""

    def generate(context, builder, _signature, args):
        return _loaded(context, builder, array, args[0], args[1:], AT_ONCE)

    return Lanes(array.dtype, AT_ONCE)(array, k), generate


@intrinsic
def store_lanes(_, array, k, lanes):
    """Write lanes to array[k] and after, in the array's precision."""

    def generate(context, builder, _signature, args):
        at = _pointer(context, builder, array, args[0], args[1:2], lanes.count)
        kind = context.get_value_type(Lanes(array.dtype, lanes.count))
        value = args[2] if args[2].type == kind else builder.fptrunc(args[2], kind)
        builder.store(value, at, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, k, lanes), generate


@intrinsic
def where_positive(_, b, one, other):
    """Return `one` in lanes with b ≥ 0 and `other` elsewhere."""

    def generate(_context, builder, _signature, args):
        return builder.select(builder.fcmp_ordered(">=", args[0], args[0].type(None)), *args[1:])

    return b(b, one, other), generate


@intrinsic
def power_of_two(_, shifted):
    """Return 2ⁿ for the n in the low bits of a number."""

    def generate(_context, builder, _signature, args):
        power = _bits(builder, builder.shl, args[0], 52)
        return _bits(builder, builder.add, power, 1023 << 52)

    return shifted(shifted), generate


# Products take up to seven lanes of a row at a time, a tile: with θ or the sums they fill the
# registers of most processors. The last lanes end with the row, so they may overlap those before.
# θ is zero in the overlap, and sums there are not used. Each product prefetches half of the row one
# block further on, so that memory is never idle.


def _least(builder, a, b):
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _tile(context, builder, array, value, indices, count, last=None):
    """Yield `count` lanes from a place in an array on, the last of them not after column `last`.

    Lanes are loaded by halves: fewer of them cross a cache line.
    """
    *row, k = indices
    half = Lanes(array.dtype).count // 2
    for c in range(count):
        at = builder.add(k, k.type(2 * c * half))
        if last is not None and c == count - 1:
            at = _least(builder, at, last)
        for place in (at, builder.add(at, k.type(half))):
            yield _loaded(context, builder, array, value, [*row, place], half)


def _by_size(builder, size, emit):
    """Emit code for tiles of 1 to `TILE` lanes, and a switch that selects one by `size`."""
    done = builder.append_basic_block()
    cases = [builder.append_basic_block() for _ in range(TILE)]
    choice = builder.switch(size, cases[-1])
    for count, case in enumerate(cases, 1):
        choice.add_case(size.type(count), case)
        builder.position_at_end(case)
        emit(count)
        builder.branch(done)
    builder.position_at_end(done)


def _ask(context, builder, array, value, indices, ahead, lanes):
    """Prefetch lanes `ahead` numbers after a place in an array into the second-level cache.

    The address may be beyond the array.
    """
    at = builder.gep(_place(context, builder, array, value, indices), [ahead])
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for c in lanes:
        line = builder.gep(at, [flag(c * Lanes(array.dtype).count)])
        builder.call(ask, [builder.bitcast(line, byte), flag(0), flag(2), flag(1)])


@intrinsic
def prefetch(_, array, k):
    """Prefetch the lanes from array[k] on into the second-level cache."""

    def generate(context, builder, _signature, args):
        _ask(context, builder, array, args[0], args[1:], ir.IntType(64)(0), range(1))
        return context.get_dummy_value()

    return types.void(array, k), generate


@intrinsic
def multiply_rows(_, rows, i, end, k, size, last, weights, ahead, out):
    """Add to `out` the product of a tile of every row from i to `end` with the weights.

    Rows are taken eight at a time; beyond the last row, that row is repeated.
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
                    parts = [own[0].type(None)] * 2  # two chains of dependent additions
                    for c, (lanes, weight) in enumerate(zip(some, own, strict=True)):
                        at = c // 2 % 2
                        parts[at] = _multiply_add(builder, lanes, weight, parts[at])
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
def add_product(_, rows, i, k, weights, c, total):
    """Return the total plus the lanes of row i from column k on times the weights from c on."""

    def generate(context, builder, _signature, args):
        table, i, k, vector, c, found = args
        lanes = _loaded(context, builder, rows, table, [i, k])
        return _multiply_add(builder, lanes, _loaded(context, builder, weights, vector, [c]), found)

    return total(rows, i, k, weights, c, total), generate


@intrinsic
def zero_lanes(_, number):
    """Return lanes of zeros."""
    kind = Lanes(number)
    return kind(number), lambda context, *_: context.get_value_type(kind)(None)


@intrinsic
def add_rows(_, rows, i, several, k, size, last, coefficients, ahead, total):
    """Add to a tile of the total the sum of `several` rows from i on times their coefficients."""

    def generate(context, builder, _signature, args):
        table, i, several, k, size, last, given, ahead, vector = args
        lanes = context.get_value_type(Lanes(rows.dtype, Lanes(rows.dtype).count // 2))

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
                    builder.store(_multiply_add(builder, found, own, builder.load(some)), some)
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
