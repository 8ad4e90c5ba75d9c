# pure: integers of a byte array
"""Reads integers from a byte array in compiled code (numba): one load instruction each, at any alignment.

The functions take `data`, a C-contiguous uint8 array, and a position. They do not check bounds; the caller
must."""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("the audit runs on little-endian machines only")


def _loader(bits: int, swap: bool, result: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
        number = ir.IntType(bits)
        place = builder.gep(array.data, [arguments[1]], source_etype=ir.IntType(8))
        loaded = builder.load(place, typ=number, align=1)
        if swap:
            loaded = builder.bswap(loaded)
        if result.bitwidth > bits:
            loaded = builder.zext(loaded, ir.IntType(result.bitwidth))
        return loaded

    def load(typing_context: Any, data: Any, at: Any) -> Any:
        return result(data, types.int64), codegen

    return intrinsic(load)


little_u64 = _loader(64, False, types.uint64)
"""Eight bytes, little endian, unsigned."""
little_u32 = _loader(32, False, types.uint32)
"""Four bytes, little endian, unsigned."""
big_u32 = _loader(32, True, types.int64)
"""Four bytes, big endian, unsigned, as int64."""
big_i64 = _loader(64, True, types.int64)
"""Eight bytes, big endian, signed."""
