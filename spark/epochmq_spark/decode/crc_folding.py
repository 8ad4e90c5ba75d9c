# pure: carry-less products over a byte array
"""Folds bytes for CRC-32 by carry-less multiplication, 64 bytes a step, on x86 with PCLMULQDQ; with
VPCLMULQDQ and AVX-512 by one instruction where the former needs four.

Method: V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"
(Intel, 2009). Four 128-bit lanes are folded forward by 512 bits, then into one lane, which is congruent to
all bytes read. The caller looks its 16 bytes up in the CRC table, so that no reduction is needed here."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen, config
from numba.extending import intrinsic


def _features() -> frozenset[str]:
    """The features of the processor for which numba compiles."""
    try:
        text = codegen.get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    except RuntimeError:  # LLVM does not know the features of this host
        return frozenset()
    return frozenset(name[1:] for name in text.split(",") if name.startswith("+"))


_FEATURES: Final = _features()
AVAILABLE: Final = "pclmul" in _FEATURES
"""Whether this machine has the instruction. Without it no `fold` may be called."""
WIDE_AVAILABLE: Final = AVAILABLE and {"vpclmulqdq", "avx512f"} <= _FEATURES
"""Whether `fold_wide` may be called."""
STEP: Final = 64
"""Bytes of one step."""

_I64 = ir.IntType(64)
_LANE = ir.VectorType(_I64, 2)
_WIDE = ir.VectorType(_I64, 8)
# x^(512+64), x^512 (by four lanes), x^(128+64), x^128 (by one), bit-reflected, modulo the polynomial.
_FOUR = (0x154442BD4, 0x1C6E41596)
_BY_FOUR = ir.Constant(_LANE, [*_FOUR])
_BY_ONE = ir.Constant(_LANE, [0x1751997D0, 0x0CCAA009E])
_WIDE_BY_FOUR = ir.Constant(_WIDE, [*_FOUR * 4])


def _multiply(builder: Any, left: Any, right: Any, halves: int) -> Any:
    name = "llvm.x86.pclmulqdq" if left.type == _LANE else "llvm.x86.pclmulqdq.512"
    kind = ir.FunctionType(left.type, [left.type, left.type, ir.IntType(8)])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [left, right, ir.Constant(ir.IntType(8), halves)])


def _fold(builder: Any, lane: Any, by: Any) -> Any:
    return builder.xor(_multiply(builder, lane, by, 0x00), _multiply(builder, lane, by, 0x11))


def _fold_steps(builder: Any, load: Any, kind: Any, number: int, by: Any, count: Any, seed: Any) -> list[Any]:
    """Folds `count` steps of 64 bytes into `number` vectors of a type. `load(step, index)` is a vector of a
    step, `seed` is added to the first one."""
    vectors = [cgutils.alloca_once(builder, kind) for _ in range(number)]
    zero = ir.Constant(_I64, 0)
    first = builder.insert_element(ir.Constant(kind, [0] * kind.count), seed, ir.Constant(ir.IntType(32), 0))
    builder.store(builder.xor(load(zero, 0), first), vectors[0])
    for index in range(1, number):
        builder.store(load(zero, index), vectors[index])
    with cgutils.for_range(builder, builder.sub(count, ir.Constant(_I64, 1))) as loop:
        step = builder.add(loop.index, ir.Constant(_I64, 1))
        for index, vector in enumerate(vectors):
            folded = _fold(builder, builder.load(vector), by)
            builder.store(builder.xor(folded, load(step, index)), vector)
    return [builder.load(vector) for vector in vectors]


def _lanes(builder: Any, wide: Any) -> list[Any]:
    """The four 128-bit lanes of a vector of 512 bits."""
    halves = ir.VectorType(ir.IntType(32), 2)
    undefined = ir.Constant(_WIDE, ir.Undefined)
    return [
        builder.shuffle_vector(wide, undefined, ir.Constant(halves, [2 * number, 2 * number + 1]))
        for number in range(4)
    ]


def _fold_intrinsic(kind: Any, by: Any) -> Any:
    """The intrinsic that folds by vectors of a type."""
    number, size = STEP * 8 // (64 * kind.count), 8 * kind.count

    def fold(typing_context: Any, data: Any, at: Any, steps: Any, crc: Any) -> Any:
        pair = types.UniTuple(types.uint64, 2)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
            start, count, seed = arguments[1:]

            def load(step: Any, index: int) -> Any:
                byte = builder.add(start, builder.mul(step, ir.Constant(_I64, STEP)))
                where = builder.add(byte, ir.Constant(_I64, size * index))
                place = builder.gep(array.data, [where], source_etype=ir.IntType(8))
                return builder.load(place, typ=kind, align=1)

            lanes = _fold_steps(builder, load, kind, number, by, count, seed)
            if kind is _WIDE:
                lanes = _lanes(builder, lanes[0])
            total = lanes[0]
            for lane in lanes[1:]:
                total = builder.xor(_fold(builder, total, _BY_ONE), lane)
            low = builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
            high = builder.extract_element(total, ir.Constant(ir.IntType(32), 1))
            return context.make_tuple(builder, pair, [low, high])

        return pair(data, types.int64, types.int64, types.uint64), generate

    return intrinsic(fold)


fold = _fold_intrinsic(_LANE, _BY_FOUR)
"""Folds `steps` (1 or more) times 64 bytes from `at` on into 128 bits, as (low, high) uint64. `crc` is the
CRC so far (a uint64 below 2³²)."""
fold_wide = _fold_intrinsic(_WIDE, _WIDE_BY_FOUR)
"""The same as `fold`, by AVX-512."""
