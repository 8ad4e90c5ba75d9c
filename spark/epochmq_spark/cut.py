# pure: bytes as they are, to bytes as they were
"""A replica's directory as it was at a moment, made of the directory as it is: what a broker wrote since is
left out, so that a volume in use looks like that of a broker which stopped then.

`end` is the offset up to which the log counts: everything below was confirmed, and is never written again.
What was written in place since is put back: slots of an index, the end that its header gives, the
checkpoint."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from epochmq_protocol import message
from epochmq_protocol.errors import EpochMQError
from epochmq_spark.decode.epoch_file import parse
from epochmq_spark.decode.queue_units import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    UNIT,
    UNIT_BYTES,
    index_header,
)

Array = Any
_HEAD = struct.Struct(">iI")
MAGICS = (0xDAA320A7, 0xDAA320AB, 0xCBD43194)  # of messages, and of what fills a segment
HEADS_BYTES = 1 << 20  # of a segment are read at a time
RECORD_BYTES_MAX = 1 << 30
CONFIRMED_AT = 32  # in a checkpoint (`StoreCheckpoint`: a long)


@dataclass(frozen=True)
class VolumeCut:
    """`epochs` are the bytes of the epoch file when the cut was made, None where only the file is known."""

    end: int
    epochs: bytes | None = None

    def document(self) -> dict[str, Any]:
        """As JSON carries it."""
        copy = None if self.epochs is None else base64.b64encode(self.epochs).decode()
        return {"end": self.end, "epochs": copy}

    @classmethod
    def of(cls, document: Any) -> VolumeCut:
        """From JSON. Raises ValueError."""
        if not isinstance(document, dict) or type(document.get("end")) is not int or document["end"] < 0:
            raise ValueError("a cut: expected an object with end, an offset of the log")
        copy = document.get("epochs")
        if copy is not None and not isinstance(copy, str):
            raise ValueError("a cut: epochs: expected base64")
        return cls(document["end"], None if copy is None else base64.b64decode(copy, validate=True))


def last_record_end(file: BinaryIO, start: int, end: int) -> int:
    """Where the last record of a log ends that does so at the offset `end` or before it, by the file of the
    segment that begins at `start`; `end` where records do not lead there, or no whole one goes beyond it."""
    at, base, head = 0, 0, b""
    while start + at < end:
        if not base <= at <= base + len(head) - 8:
            base = file.seek(at)
            head = file.read(HEADS_BYTES)
            if len(head) < 8:
                return end
        size, magic = _HEAD.unpack_from(head, at - base)
        if magic not in MAGICS or not 8 <= size <= RECORD_BYTES_MAX:
            return end
        if start + at + size > end:
            file.seek(at)
            return start + at if _is_record(file.read(size), start + at) else end
        at += size
    return end


def _is_record(data: bytes, offset: int) -> bool:
    try:
        return message.decode_record(data, 0, False).physical_offset == offset
    except EpochMQError:
        return False


def queue_bytes_below(data: bytes, end: int) -> int:
    """How many bytes of a queue's file count: up to its last unit that leads below `end`."""
    table = np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], UNIT)
    kept = np.flatnonzero((table["size"] > 0) & (table["physical"] < end))
    return (int(kept[-1]) + 1) * UNIT_BYTES if len(kept) else 0


def queue_end(data: bytes) -> int:
    """How many units a queue's file has, as it is."""
    table = np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], UNIT)
    used = np.flatnonzero(table["size"] > 0)
    return int(used[-1]) + 1 if len(used) else 0


def epochs(data: bytes, end: int) -> bytes:
    """An epoch file without what began behind the end; one that is not sound stays as it is."""
    entries, fault = parse(data.decode("utf-8", "replace"))
    if fault is not None or all(start <= end for _, start in entries):
        return data
    body = "".join(f"{epoch}-{start}\n" for epoch, start in entries if start <= end)
    return f"{body.count('-')}\n{zlib.crc32(body.encode()) & 0x7FFFFFFF}\n{body}".encode()


def checkpoint(data: bytes, end: int) -> bytes:
    """A checkpoint that confirms nothing behind the end."""
    if len(data) < CONFIRMED_AT + 8:
        return data
    confirmed = min(struct.unpack_from(">q", data, CONFIRMED_AT)[0], end)
    return data[:CONFIRMED_AT] + struct.pack(">q", confirmed) + data[CONFIRMED_AT + 8 :]


def index(header: bytes, heads: Array, entries: Callable[[], Iterable[bytes]], end: int) -> tuple[bytes, int]:
    """Header and slots of an index file as they were, and how many bytes of the file count. `heads` are its
    slots (big-endian int32), read before the entries; `entries` gives the bytes behind them, entry 0, which
    is none, first, in parts of whole entries; it is called twice. A slot that leads behind the end led to the
    newest of its entries below it (`IndexFile`: an entry's slot is its hash modulo their number)."""
    last = place = there = 0
    for first, part in _numbered(entries()):
        below = np.flatnonzero(part["physical"] < end)
        if len(below):
            last, place = first + int(below[-1]), int(part["physical"][below[-1]])
        there = first + len(part)
    newest = heads.astype(np.int32)
    later = (newest > last) & (newest <= there)  # the last of them may not be counted yet
    if later.any():
        before = np.zeros(len(newest), np.int32)
        for first, part in _numbered(entries()):
            numbers = np.arange(max(first, 1), min(first + len(part), last + 1), dtype=np.int32)
            hashes = part["hash"][numbers - first].astype(np.int64)
            before[np.abs(hashes) % len(newest)] = numbers  # where slots are equal the last one stays
        newest[later] = before[later]
    made = bytearray(header[:INDEX_HEADER_BYTES])
    if last:  # its entry may be left of a log that was cut: then the header says less
        struct.pack_into(">q", made, 24, min(place, index_header(header)[1]))
    struct.pack_into(">i", made, 36, last + 1)
    slots = newest.astype(">i4").tobytes()
    return bytes(made) + slots, INDEX_HEADER_BYTES + len(slots) + (last + 1) * INDEX_ENTRY_BYTES


def _numbered(parts: Iterable[bytes]) -> Iterator[tuple[int, Array]]:
    """Entries, and the number of the first of each part."""
    first = 0
    for part in parts:
        table = np.frombuffer(part[: len(part) - len(part) % INDEX_ENTRY_BYTES], INDEX_ENTRY)
        yield first, table
        first += len(table)
