"""Logs of a few records, as bytes, and stores with them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

MAGIC = 0xDAA320A7
BLANK = 0xCBD43194
_HEAD = struct.Struct(">IIIIIqqIq8sq8sIqI")
SEGMENT = 4096


def record(offset: int, stored_ms: int, body: bytes, topic: bytes = b"t") -> bytes:
    """A record of the log."""
    size = _HEAD.size + len(body) + 1 + len(topic) + 3
    crc = zlib.crc32(body) & 0x7FFFFFFF
    host = bytes(8)
    head = _HEAD.pack(size, MAGIC, crc, 0, 0, 0, offset, 0, stored_ms, host, stored_ms, host, 0, 0, len(body))
    return head + body + bytes([len(topic)]) + topic + b"\0\1p"


def log(bodies: list[tuple[int, bytes]], segment: int = SEGMENT) -> bytes:
    """A log with a record for each (store time, body), in files of `segment` bytes."""
    data = b""
    for stored_ms, body in bodies:
        one = record(len(data), stored_ms, body)
        left = segment - len(data) % segment
        if len(one) + 8 > left:
            data += struct.pack(">II", left, BLANK).ljust(left, b"\0")
            one = record(len(data), stored_ms, body)
        data += one
    return data


def write_store(
    store: Path, data: bytes, segment: int = SEGMENT, *, config: dict[str, bytes] | None = None
) -> None:
    """A store with this log, and these files in `config`."""
    (store / "commitlog").mkdir(parents=True, exist_ok=True)
    (store / "config").mkdir(exist_ok=True)
    for start in range(0, max(len(data), 1), segment):
        (store / "commitlog" / f"{start:020}").write_bytes(
            data[start : start + segment].ljust(segment, b"\0")
        )
    for name, content in (config or {}).items():
        (store / "config" / name).write_bytes(content)
