# pure: sums over bytes
"""Computes CRC-32 and XXH64 of a slice of a byte array, in compiled code.

CRC-32 is zlib's: by carry-less multiplication where the processor has it, else by tables (slicing by 16).
XXH64 is the published function; two records count as equal if their XXH64 and their sizes are equal. `mix`
spreads the bits of a number, so that the combined digests of different sets do not cancel out."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from epochmq_spark.decode import crc_folding
from epochmq_spark.decode.memory_loads import little_u32, little_u64

Bytes = Any  # a C-contiguous uint8 array; numba compiles by the real type


def _crc_table() -> np.ndarray[Any, Any]:
    table = np.zeros((16, 256), np.uint32)
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        table[0, value] = crc
    for row in range(1, 16):
        before = table[row - 1]
        table[row] = (before >> np.uint32(8)) ^ table[0][before & np.uint32(255)]
    return table


CRC_TABLE = _crc_table()

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_FF = np.uint64(255)


@nb.njit(nogil=True, cache=True, inline="always")
def _sixteen(low: Any, high: Any) -> Any:
    """The CRC of 16 bytes (slicing by 16). The CRC of the bytes before them is already in `low`."""
    table = CRC_TABLE
    return (
        table[15, low & _FF]
        ^ table[14, (low >> np.uint64(8)) & _FF]
        ^ table[13, (low >> np.uint64(16)) & _FF]
        ^ table[12, (low >> np.uint64(24)) & _FF]
        ^ table[11, (low >> np.uint64(32)) & _FF]
        ^ table[10, (low >> np.uint64(40)) & _FF]
        ^ table[9, (low >> np.uint64(48)) & _FF]
        ^ table[8, low >> np.uint64(56)]
        ^ table[7, high & _FF]
        ^ table[6, (high >> np.uint64(8)) & _FF]
        ^ table[5, (high >> np.uint64(16)) & _FF]
        ^ table[4, (high >> np.uint64(24)) & _FF]
        ^ table[3, (high >> np.uint64(32)) & _FF]
        ^ table[2, (high >> np.uint64(40)) & _FF]
        ^ table[1, (high >> np.uint64(48)) & _FF]
        ^ table[0, high >> np.uint64(56)]
    )


@nb.njit(nogil=True, cache=True)
def _by_table(data: Bytes, at: int, end: int, crc: Any) -> Any:
    """The CRC `crc`, continued over data[at:end]."""
    while end - at >= 16:
        crc = _sixteen(little_u64(data, at) ^ np.uint64(crc), little_u64(data, at + 8))
        at += 16
    while at < end:
        crc = (crc >> np.uint32(8)) ^ CRC_TABLE[0, np.uint64((crc ^ np.uint32(data[at])) & np.uint32(255))]
        at += 1
    return crc


@nb.njit(nogil=True, cache=True)
def _crc32_by_table(data: Bytes, start: int, end: int) -> Any:
    return _by_table(data, np.int64(start), np.int64(end), np.uint32(0xFFFFFFFF)) ^ np.uint32(0xFFFFFFFF)


if crc_folding.AVAILABLE:
    _fold = crc_folding.fold_wide if crc_folding.WIDE_AVAILABLE else crc_folding.fold

    @nb.njit(nogil=True, cache=True)
    def crc32(data: Bytes, start: int, end: int) -> Any:
        """zlib.crc32(data[start:end]), as uint32."""
        at = np.int64(start)
        crc = np.uint32(0xFFFFFFFF)
        steps = (np.int64(end) - at) // 64
        if steps > 0:
            low, high = _fold(data, at, steps, np.uint64(crc))
            crc = _sixteen(low, high)
            at += steps * 64
        return _by_table(data, at, np.int64(end), crc) ^ np.uint32(0xFFFFFFFF)

else:
    crc32 = _crc32_by_table


@nb.njit(nogil=True, cache=True, inline="always")
def _rotate(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@nb.njit(nogil=True, cache=True, inline="always")
def _round(lane: Any, word: Any) -> Any:
    return _rotate(lane + word * _P2, 31) * _P1


@nb.njit(nogil=True, cache=True)
def xxh64(data: Bytes, start: int, end: int, seed: Any) -> Any:
    """XXH64 of data[start:end], as uint64. `seed` is a uint64."""
    size = end - start
    at = np.int64(start)
    if size >= 32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while end - at >= 32:
            a = _round(a, little_u64(data, at))
            b = _round(b, little_u64(data, at + 8))
            c = _round(c, little_u64(data, at + 16))
            d = _round(d, little_u64(data, at + 24))
            at += 32
        total = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        for lane in (a, b, c, d):
            total = (total ^ _round(np.uint64(0), lane)) * _P1 + _P4
    else:
        total = seed + _P5
    total += np.uint64(size)
    while end - at >= 8:
        total = _rotate(total ^ _round(np.uint64(0), little_u64(data, at)), 27) * _P1 + _P4
        at += 8
    if end - at >= 4:
        half = np.uint64(little_u32(data, at))
        total = _rotate(total ^ (half * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        total = _rotate(total ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    total = (total ^ (total >> np.uint64(33))) * _P2
    total = (total ^ (total >> np.uint64(29))) * _P3
    return total ^ (total >> np.uint64(32))


@nb.njit(nogil=True, cache=True, inline="always")
def mix(value: Any) -> Any:
    """A uint64 spread over all its bits (splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
