"""Computes the hashes that Java stores on disk: String.hashCode, tag codes and index keys.

The hash runs over UTF-16 units: h = 31·h + unit mod 2³², signed. A character outside the basic plane has two
units."""

from __future__ import annotations

from functools import lru_cache
from operator import mul
from typing import Final

_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
_WRAP: Final = 0x1_0000_0000
_POWERS_MAX: Final = 512

# Powers of 31 mod 2^32, descending: _POWERS[-n:] are the factors for a text of n units.
_POWERS: Final[list[int]] = [pow(31, _POWERS_MAX - 1 - at, _WRAP) for at in range(_POWERS_MAX)]
_SLICES: Final[list[list[int]]] = [_POWERS[_POWERS_MAX - size :] for size in range(65)]


def utf16_units(text: str | bytes) -> bytes | list[int]:
    """The UTF-16 units of a text. Bytes are read as UTF-8; as in Java, an invalid sequence becomes U+FFFD."""
    if isinstance(text, bytes):
        if text.isascii():
            return text
        text = text.decode("utf-8", "replace")
    elif text.isascii():
        return text.encode("ascii")
    raw = text.encode("utf-16-be", "surrogatepass")
    return [raw[at] << 8 | raw[at + 1] for at in range(0, len(raw), 2)]


def unsigned_hash(text: str | bytes, seed: int = 0) -> int:
    """The hash as an unsigned 32-bit number. `seed`: the unsigned hash of the preceding text."""
    sequence = utf16_units(text)
    size = len(sequence)
    if size <= 64:
        power: int = pow(31, size, _WRAP)
        total: int = sum(map(mul, sequence, _SLICES[size])) + seed * power
        return total & _MASK
    for at in range(0, size, _POWERS_MAX):
        part = sequence[at : at + _POWERS_MAX]
        seed = (
            sum(map(mul, part, _POWERS[_POWERS_MAX - len(part) :])) + seed * pow(31, len(part), _WRAP)
        ) & _MASK
    return seed


def java_hash(text: str | bytes) -> int:
    """String.hashCode(): signed 32-bit."""
    value = unsigned_hash(text)
    return value - _WRAP if value & _SIGN else value


@lru_cache(maxsize=4096)
def tags_code(tags: str | bytes | None) -> int:
    """The consume queue's tag code (MessageExtBrokerInner.tagsString2tagsCode): the hash of the whole TAGS
    value, 0 without tags. Signed; on disk it is sign-extended to 64 bits."""
    return java_hash(tags) if tags else 0


def index_hash(signed: int) -> int:
    """IndexFile.indexKeyHashMethod of a hash: its absolute value, and 0 where Java's abs overflows."""
    if signed == -_SIGN:
        return 0
    return -signed if signed < 0 else signed


def key_hash(topic: str | bytes, key: str | bytes) -> int:
    """The index file's hash of `topic#key`: 0 to 2³¹−1."""
    value = unsigned_hash(key, topic_seed(topic))
    return index_hash(value - _WRAP if value & _SIGN else value)


@lru_cache(maxsize=4096)
def topic_seed(topic: str | bytes) -> int:
    """The unsigned hash of `topic#`, the seed for all index keys of a topic."""
    return unsigned_hash((topic + b"#") if isinstance(topic, bytes) else topic + "#")
