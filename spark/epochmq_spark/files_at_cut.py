# pure: present bytes to bytes at the cut
"""Computes what the files of a store held at a cut: leaves out newer bytes, and restores overwritten ones.

A cut is the consistent cut of an audit of a running group. Messages below its end offset were confirmed and
are never written again, so leaving out newer bytes gives a store like that of a broker which stopped at the
cut. Bytes that the broker has since overwritten in place are restored: the slots of an index file, the last
offset in its header, the checkpoint."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from epochmq_formats.dledger_log import INDEX_UNIT_SIZE
from epochmq_formats.dledger_peer_files import decode_properties, encode_properties
from epochmq_formats.index_file import ENTRY_BYTES, HEADER, HEADER_BYTES
from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_formats.store_checkpoint import CONFIRM_PHY_OFFSET_AT, FIELD
from epochmq_protocol import message
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.message_const import BLANK_MAGIC, MAGIC_V1, MAGIC_V2
from epochmq_protocol.record_layout import SIZE_AND_MAGIC
from epochmq_spark.decode.entry_units import ENTRY_UNIT
from epochmq_spark.decode.epoch_file import parse_epoch_text
from epochmq_spark.decode.index_entries import INDEX_ENTRY
from epochmq_spark.decode.queue_units import UNIT

Array = Any
MAGICS = (MAGIC_V1, MAGIC_V2, BLANK_MAGIC)  # of messages, and of the blank at the end of a segment
HEADS_BYTES = 1 << 20  # of a segment read at a time
RECORD_BYTES_MAX = 1 << 30


@dataclass(frozen=True)
class VolumeCut:
    """The cut of one replica. `end` is the offset up to which its log counts. `epochs` are the bytes of its
    epoch file when the cut was made; None if no copy was taken."""

    end: int
    epochs: bytes | None = None

    def document(self) -> dict[str, Any]:
        """The cut as JSON."""
        copy = None if self.epochs is None else base64.b64encode(self.epochs).decode()
        return {"end": self.end, "epochs": copy}

    @classmethod
    def of(cls, document: Any) -> VolumeCut:
        """Parses the JSON of a cut. Raises ValueError."""
        if not isinstance(document, dict) or type(document.get("end")) is not int or document["end"] < 0:
            raise ValueError("a cut: expected an object with end, an offset of the log")
        copy = document.get("epochs")
        if copy is not None and not isinstance(copy, str):
            raise ValueError("a cut: epochs: expected base64")
        return cls(document["end"], None if copy is None else base64.b64decode(copy, validate=True))


def last_record_end(file: BinaryIO, start: int, end: int) -> int:
    """The end of the last whole record at or below the offset `end`, by the file of the segment that begins
    at `start`. It is `end` itself if the segment's records do not lead there, or if no whole record extends
    beyond it."""
    at, base, head = 0, 0, b""
    while start + at < end:
        if not base <= at <= base + len(head) - 8:
            base = file.seek(at)
            head = file.read(HEADS_BYTES)
            if len(head) < 8:
                return end
        size, magic = SIZE_AND_MAGIC.unpack_from(head, at - base)
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
    """The bytes of a queue's file up to its last unit that points below `end`."""
    table = np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], UNIT)
    kept = np.flatnonzero((table["size"] > 0) & (table["physical"] < end))
    return (int(kept[-1]) + 1) * UNIT_BYTES if len(kept) else 0


def entry_units_below(data: bytes, end: int) -> int:
    """The bytes of an index file of DLedger up to its last unit of an entry that begins below `end`."""
    table = np.frombuffer(data[: len(data) - len(data) % INDEX_UNIT_SIZE], ENTRY_UNIT)
    kept = np.flatnonzero((table["magic"] != 0) & (table["position"] < end))
    return (int(kept[-1]) + 1) * INDEX_UNIT_SIZE if len(kept) else 0


def peer_checkpoint_at(data: bytes, index: int) -> bytes:
    """The checkpoint of a DLedger peer whose committed index is at most `index`. An invalid one stays as it
    is."""
    try:
        committed = int(decode_properties(data)["committedIndex"])
    except (KeyError, ValueError):
        return data
    return encode_properties({"endIndex": str(index), "committedIndex": str(min(committed, index))})


def unit_count(data: bytes) -> int:
    """The number of units that a queue's file has now."""
    table = np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], UNIT)
    used = np.flatnonzero(table["size"] > 0)
    return int(used[-1]) + 1 if len(used) else 0


def epoch_file_at(data: bytes, end: int) -> bytes:
    """An epoch file without the epochs that began beyond `end`. An invalid file stays as it is."""
    entries, fault = parse_epoch_text(data.decode("utf-8", "replace"))
    if fault is not None or all(start <= end for _, start in entries):
        return data
    body = "".join(f"{epoch}-{start}\n" for epoch, start in entries if start <= end)
    return f"{body.count('-')}\n{zlib.crc32(body.encode()) & 0x7FFFFFFF}\n{body}".encode()


def checkpoint_at(data: bytes, end: int) -> bytes:
    """A checkpoint whose confirm offset is at most `end`."""
    at, after = CONFIRM_PHY_OFFSET_AT, CONFIRM_PHY_OFFSET_AT + FIELD.size
    if len(data) < after:
        return data
    confirmed = min(FIELD.unpack_from(data, at)[0], end)
    return data[:at] + FIELD.pack(confirmed) + data[after:]


def index_at(
    header: bytes, heads: Array, entries: Callable[[], Iterable[bytes]], end: int
) -> tuple[bytes, int]:
    """Header and slots of an index file at the cut, and the number of its bytes that count.

    `heads` are the slots (big-endian int32), read before the entries. `entries` returns the bytes after them,
    beginning with the unused entry 0, in parts of whole entries; it is called twice. A slot that points
    beyond the cut pointed at the cut to the newest of its entries below `end` (`IndexFile`: the slot of an
    entry is its hash modulo the number of slots)."""
    last = last_physical = present = 0
    for first, part in _numbered(entries()):
        below = np.flatnonzero(part["physical"] < end)
        if len(below):
            last, last_physical = first + int(below[-1]), int(part["physical"][below[-1]])
        present = first + len(part)
    newest = heads.astype(np.int32)
    later = (newest > last) & (newest <= present)  # the header may not count the last entry yet
    if later.any():
        before = np.zeros(len(newest), np.int32)
        for first, part in _numbered(entries()):
            numbers = np.arange(max(first, 1), min(first + len(part), last + 1), dtype=np.int32)
            hashes = part["hash"][numbers - first].astype(np.int64)
            before[np.abs(hashes) % len(newest)] = numbers  # numpy keeps the last value for equal slots
        newest[later] = before[later]
    *begin, end_physical, used, _ = HEADER.unpack(header[:HEADER_BYTES])
    if last:  # the entry may be left of a truncated log; then the header names a lower offset
        end_physical = min(last_physical, end_physical)
    slots = newest.astype(">i4").tobytes()
    new_header = HEADER.pack(*begin, end_physical, used, last + 1)
    return new_header + slots, HEADER_BYTES + len(slots) + (last + 1) * ENTRY_BYTES


def _numbered(parts: Iterable[bytes]) -> Iterator[tuple[int, Array]]:
    """The parts as tables, each with the number of its first entry."""
    first = 0
    for part in parts:
        table = np.frombuffer(part[: len(part) - len(part) % ENTRY_BYTES], INDEX_ENTRY)
        yield first, table
        first += len(table)
