"""Computes which bits of a filter bit map belong to a consumer group (RocketMQ's BloomFilter).

A bit map has the bits of every group whose expression selects the message. A group whose bits are not all set
need not read the message.
"""
# pure: functions over values

from __future__ import annotations

import math

import msgspec

from epochmq_protocol.integers import Int

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


class BloomFilterData(msgspec.Struct, frozen=True, rename="camel"):
    """The bits of one group in bit maps of `bit_num` bits."""

    bit_num: Int = 0
    bit_pos: tuple[Int, ...] | None = None


class BloomFilter:
    """A filter for `expected` groups, with `error_percent` of wrongly selected messages at that number.
    `bits` is the size of the bit map, a multiple of 8."""

    def __init__(self, error_percent: int, expected: int) -> None:
        rate = error_percent / 100.0
        self.hashes = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(expected * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2)))
        self.bits = 8 * math.ceil(bits / 8)

    def positions(self, text: str) -> BloomFilterData:
        """The bits of a text."""
        low, high = _signed(murmur3(text.encode())), 0
        high = _signed32(low >> 32)
        first = _signed32(low)
        found = []
        for i in range(1, self.hashes + 1):
            combined = _signed32(first + i * high)
            found.append((combined if combined >= 0 else ~combined) % self.bits)
        return BloomFilterData(self.bits, tuple(found))

    def is_valid(self, data: BloomFilterData | None) -> bool:
        """Whether the bits were computed with these sizes."""
        return (
            data is not None
            and data.bit_num == self.bits
            and data.bit_pos is not None
            and len(data.bit_pos) == self.hashes
        )


def set_bits(data: BloomFilterData, bit_map: bytearray) -> None:
    """Sets the bits in a bit map."""
    for position in data.bit_pos or ():
        bit_map[position >> 3] |= 1 << (position & 7)


def has_bits(data: BloomFilterData, bit_map: bytes) -> bool:
    """Whether all bits are set."""
    return all(bit_map[position >> 3] & 1 << (position & 7) for position in data.bit_pos or ())


def bits_as_text(bit_map: bytes) -> str:
    """A bit map as QUERY_CONSUME_QUEUE shows it: from the last byte to the first, each from its highest bit,
    with a line break after every eighth byte (BitsArray.toString)."""
    pieces = []
    for at in range(len(bit_map) - 1, -1, -1):
        pieces.append(f"{bit_map[at]:08b}")
        if at % 8 == 0:
            pieces.append("\n")
    return "".join(pieces)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def murmur3(data: bytes) -> int:
    """The first 64 bits of the 128-bit x64 Murmur3 hash with seed 0, unsigned."""
    first = two = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        low, high = (
            int.from_bytes(data[at : at + 8], "little"),
            int.from_bytes(data[at + 8 : at + 16], "little"),
        )
        first ^= _rotated(low * _C1 & _MASK, 31) * _C2 & _MASK
        first = ((_rotated(first, 27) + two) * 5 + 0x52DCE729) & _MASK
        two ^= _rotated(high * _C2 & _MASK, 33) * _C1 & _MASK
        two = ((_rotated(two, 31) + first) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    two ^= _rotated(int.from_bytes(tail[8:], "little") * _C2 & _MASK, 33) * _C1 & _MASK
    first ^= _rotated(int.from_bytes(tail[:8], "little") * _C1 & _MASK, 31) * _C2 & _MASK
    first ^= len(data)
    two ^= len(data)
    first = (first + two) & _MASK
    two = (two + first) & _MASK
    return (_mixed(first) + _mixed(two)) & _MASK
