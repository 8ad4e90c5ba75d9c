# pure: carry-less products over a byte array
"""Folds bytes for CRC-32 by carry-less multiplication, 64 bytes a step, on x86 with PCLMULQDQ.

Method: V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"
(Intel, 2009). Four 128-bit lanes are folded forward by 512 bits, then into one lane, which is congruent to
all bytes read. The caller looks its 16 bytes up in the CRC table, so that no reduction is needed here."""

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _has_clmul() -> bool:
    try:
        return bool(llvm.get_host_cpu_features().get("pclmul", False))
    except RuntimeError:  # LLVM does not know the features of this host
        return False


AVAILABLE: Final = _has_clmul()
"""Whether this machine has the instruction. Without it `fold` must not be called."""
STEP: Final = 64
"""Bytes of one step."""

_I64 = ir.IntType(64)
_LANE = ir.VectorType(_I64, 2)
# x^(512+64), x^512 (by four lanes), x^(128+64), x^128 (by one), bit-reflected, modulo the polynomial.
_BY_FOUR = ir.Constant(_LANE, [0x154442BD4, 0x1C6E41596])
_BY_ONE = ir.Constant(_LANE, [0x1751997D0, 0x0CCAA009E])


def _multiply(builder: Any, left: Any, right: Any, halves: int) -> Any:
    kind = ir.FunctionType(_LANE, [_LANE, _LANE, ir.IntType(8)])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.pclmulqdq")
    return builder.call(function, [left, right, ir.Constant(ir.IntType(8), halves)])


def _fold(builder: Any, lane: Any, by: Any) -> Any:
    return builder.xor(_multiply(builder, lane, by, 0x00), _multiply(builder, lane, by, 0x11))


@intrinsic
def fold(typing_context: Any, data: Any, at: Any, steps: Any, crc: Any) -> Any:
    """Folds `steps` (1 or more) times 64 bytes from `at` on into 128 bits, as (low, high) uint64. `crc` is
    the CRC so far (a uint64 below 2³²)."""
    pair = types.UniTuple(types.uint64, 2)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
        start, count, seed = arguments[1:]

        def load(byte: Any, number: int) -> Any:
            where = builder.add(byte, ir.Constant(_I64, 16 * number))
            place = builder.gep(array.data, [where], source_etype=ir.IntType(8))
            return builder.load(place, typ=_LANE, align=1)

        lanes = [cgutils.alloca_once(builder, _LANE) for _ in range(4)]
        first = ir.Constant(_LANE, [0, 0])
        first = builder.insert_element(first, seed, ir.Constant(ir.IntType(32), 0))
        builder.store(builder.xor(load(start, 0), first), lanes[0])
        for number in range(1, 4):
            builder.store(load(start, number), lanes[number])
        further_steps = builder.sub(count, ir.Constant(_I64, 1))
        with cgutils.for_range(builder, further_steps) as loop:
            step = builder.add(loop.index, ir.Constant(_I64, 1))
            byte = builder.add(start, builder.mul(step, ir.Constant(_I64, STEP)))
            for number, lane in enumerate(lanes):
                folded = _fold(builder, builder.load(lane), _BY_FOUR)
                builder.store(builder.xor(folded, load(byte, number)), lane)
        total = builder.load(lanes[0])
        for lane in lanes[1:]:
            total = builder.xor(_fold(builder, total, _BY_ONE), builder.load(lane))
        low = builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
        high = builder.extract_element(total, ir.Constant(ir.IntType(32), 1))
        return context.make_tuple(builder, pair, [low, high])

    return pair(data, types.int64, types.int64, types.uint64), codegen
