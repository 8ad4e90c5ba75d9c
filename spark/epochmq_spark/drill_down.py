"""Looking closely: the records of a block of the log, read again from each replica."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from epochmq_spark import files, store_layout
from epochmq_spark.checks.consume_queues import QueueLimits, QueueMessage, QueueUnit
from epochmq_spark.checks.consume_queues import compare as compare_queue
from epochmq_spark.checks.index_keys import KeyedMessage
from epochmq_spark.checks.index_keys import compare as compare_keys
from epochmq_spark.checks.record_copies import BlockExtent, RecordCopy, compare
from epochmq_spark.checks.resent_messages import SentMessage
from epochmq_spark.checks.resent_messages import find as find_duplicates
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.queue_units import UNIT_BYTES, entry_pairs, units
from epochmq_spark.decode.summary_rows import BLOCK_BITS, BUCKET_BITS, SCHEDULE_TOPIC, text_of
from epochmq_spark.findings import finding
from epochmq_spark.sources.file_ranges import FileRange
from epochmq_spark.sources.index import IndexFileScan
from epochmq_spark.sources.log_chunks import LogChunk, chunks

BLOCK_BYTES = 1 << BLOCK_BITS
SWITCH_BYTES = 8 * 1024 * 1024  # how much of the log is looked at on either side of a switch


@dataclass(frozen=True)
class ReplicaExtent:
    """A replica, and the extent of its log."""

    replica: store_layout.AuditedReplica
    start: int
    end: int
    common: int
    leading: bool


@lru_cache(maxsize=4096)
def _contents(place: str) -> store_layout.StoreContents:
    """Of a directory that had a log. Raises OSError when it has none by now."""
    found = store_layout.contents(place)
    if not found.log:
        raise OSError("; ".join(f"{one.place}: {one.detail}" for one in found.faults))
    return found


def forget() -> None:
    """Forgets what directories hold: another audit may find them changed."""
    _contents.cache_clear()
    _index_parts.cache_clear()


def read_log_range(replica: store_layout.AuditedReplica, start: int, end: int) -> Iterator[LogChunk]:
    """The records that start in [start, end). Raises OSError."""
    for file in _contents(replica.place).log:
        begin, stop = max(start - file.start, 0), min(end - file.start, file.size)
        if begin < stop:
            yield from chunks(
                FileRange(replica.group, replica.name, file.place, file.start, file.size, begin, stop)
            )


def copies(reach: ReplicaExtent, start: int, end: int) -> list[RecordCopy]:
    """One replica's records in a range, with their bytes."""
    found = []
    for chunk in read_log_range(reach.replica, max(start, reach.start), min(end, reach.end)):
        for row in chunk.rows:
            at = int(row[w.POSITION])
            raw = bytes(chunk.data[at : at + int(row[w.SIZE])])
            blank = bool(row[w.MAGIC] == w.BLANK)
            found.append(RecordCopy(chunk.base + at, raw, bool(row[w.CRC_OK]), blank))
    return found


def block(group: str, number: int, reaches: Sequence[ReplicaExtent]) -> list[dict[str, Any]]:
    """Findings of one block. Replicas whose files cannot be read are left out, and that is a finding."""
    start, end = number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES
    seen: dict[str, list[RecordCopy]] = {}
    extents: dict[str, BlockExtent] = {}
    unread = []
    for reach in reaches:
        name = reach.replica.name
        try:
            seen[name] = copies(reach, start, end)
        except OSError as error:
            unread.append(finding(group, name, "file.unreadable", detail=str(error)))
            continue
        extents[name] = BlockExtent(reach.start, reach.end, reach.common, reach.leading)
    return unread + compare(group, seen, extents)


@dataclass(frozen=True)
class QueueRange:
    """A bucket of queue offsets of one replica that wants a closer look, and where its messages are."""

    topic: str
    queue_id: int
    bucket: int
    places: Sequence[tuple[int, int]]  # first and last physical offset of parts of it
    queue_end: int


@dataclass(frozen=True)
class AuditedLog:
    """What the closer look must know of a replica."""

    reach: ReplicaExtent
    dispatched: int  # messages that end here or before are in their queues
    holes: tuple[tuple[int, int], ...]


def _text(chunk: LogChunk, row: Any, at: int) -> str | None:
    return text_of(chunk.data, int(row[at]), int(row[at + 1])) if row[at + 1] else None


def _rows(facts: AuditedLog, start: int, end: int) -> Iterator[tuple[LogChunk, Any]]:
    """Messages of the replica's log that start in a range."""
    reach = facts.reach
    for chunk in read_log_range(reach.replica, max(start, reach.start), min(end, reach.end)):
        for row in chunk.rows:
            if row[w.MAGIC] != w.BLANK:
                yield chunk, row


def queue(facts: AuditedLog, wanted: QueueRange) -> list[dict[str, Any]]:
    """Findings of one bucket of a consume queue. Raises OSError."""
    name = wanted.topic.encode()
    low, high = wanted.bucket << BUCKET_BITS, (wanted.bucket + 1) << BUCKET_BITS
    found: dict[int, QueueMessage] = {}
    for first, last in wanted.places:
        for chunk, row in _rows(facts, first, last + 1):
            flags = row[w.SYS_FLAG]
            right = row[w.QUEUE_ID] == wanted.queue_id and low <= row[w.QUEUE_OFFSET] < high
            if not right or flags & 0x4 or flags & 0x80:
                continue
            if bytes(chunk.data[row[w.TOPIC_AT] : row[w.TOPIC_AT] + row[w.TOPIC_SIZE]]) != name:
                continue
            at = chunk.base + int(row[w.POSITION])
            found[at] = QueueMessage(
                int(row[w.QUEUE_OFFSET]),
                at,
                int(row[w.SIZE]),
                int(row[w.TAGS_CODE]),
                _text(chunk, row, w.UNIQ_AT),
                _text(chunk, row, w.KEYS_AT),
                int(row[w.STORE_TIME]),
            )
    units = _units(facts.reach.replica, wanted, low, high)
    elsewhere = {
        unit.physical: said
        for unit in units.values()
        if unit.physical not in found and (said := _describe_record_at(facts, unit.physical))
    }
    limits = QueueLimits(
        facts.reach.start,
        facts.reach.end,
        facts.dispatched,
        wanted.queue_end,
        facts.holes,
        compare_tags=name != SCHEDULE_TOPIC,
    )
    who = facts.reach.replica.group, facts.reach.replica.name, wanted.topic, wanted.queue_id
    return compare_queue(who, list(found.values()), units, limits, elsewhere)


def _units(
    replica: store_layout.AuditedReplica, wanted: QueueRange, low: int, high: int
) -> dict[int, QueueUnit]:
    there = next(
        (
            one
            for one in _contents(replica.place).queues
            if one.topic == wanted.topic and one.queue_id == wanted.queue_id
        ),
        None,
    )
    found: dict[int, QueueUnit] = {}
    for file in there.files if there else ():
        begin = max(low * UNIT_BYTES - file.start, 0)
        end = min(high * UNIT_BYTES - file.start, file.size)
        if begin < end:
            part = units(files.window(file.place, begin, end), (file.start + begin) // UNIT_BYTES)
            for offset, physical, size, tags in zip(
                part.offsets.tolist(),
                part.physical.tolist(),
                part.sizes.tolist(),
                part.tags.tolist(),
                strict=True,
            ):
                found[offset] = QueueUnit(physical, size, tags)
    return found


def _describe_record_at(facts: AuditedLog, physical: int) -> str | None:
    """The message at a place of the log, in words; None when none starts there."""
    for chunk, row in _rows(facts, physical, physical + 1):
        if chunk.base + row[w.POSITION] == physical:
            topic = text_of(chunk.data, int(row[w.TOPIC_AT]), int(row[w.TOPIC_SIZE]))
            return f"message {row[w.QUEUE_OFFSET]} of {topic}/{row[w.QUEUE_ID]} is there"
    return None


@lru_cache(maxsize=256)
def _index_parts(place: str, size: int) -> tuple[tuple[int, int, int], ...]:
    """Of each part of an index file: the number of its first entry, the lowest and the highest physical
    offset. Raises OSError."""
    file, found = IndexFileScan(place, size), []
    for first in file.firsts():
        _, physical = entry_pairs(file.part(first))
        found.append((first, int(physical.min()), int(physical.max())))
    return tuple(found)


def read_index_entries(place: str, size: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(hash, physical offset) of an index file's entries that lead into [start, end). Raises OSError."""
    firsts = [first for first, low, high in _index_parts(place, size) if low < end and high >= start]
    if not firsts:
        return
    file = IndexFileScan(place, size)
    for first in firsts:
        hashes, physical = entry_pairs(file.part(first))
        inside = (physical >= start) & (physical < end)
        yield from zip(hashes[inside].tolist(), physical[inside].tolist(), strict=True)


@dataclass(frozen=True)
class IndexCoverage:
    """First and last physical offset that the indexes of a replica, and of its group, say they cover."""

    low: int
    high: int
    group_low: int
    group_high: int

    def of(self, *, stopped: bool) -> tuple[int, int]:
        """What is to be found in the replica's index. A broker that stopped has there what others have; one
        that goes on may be in the midst of its last message's keys, or of a further file."""
        return (self.group_low, self.group_high) if stopped else (self.low, self.high - 1)


def keys(facts: AuditedLog, number: int, covered: IndexCoverage) -> list[dict[str, Any]]:
    """Findings of the index's entries that lead into one block. Raises OSError."""
    there = _contents(facts.reach.replica.place)
    start, end = number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES
    messages = []
    for chunk, row in _rows(facts, start, end):
        if row[w.SYS_FLAG] & 0xC == 0xC or not (row[w.UNIQ_SIZE] or row[w.KEYS_SIZE]):
            continue
        messages.append(
            KeyedMessage(
                chunk.base + int(row[w.POSITION]),
                int(row[w.SIZE]),
                text_of(chunk.data, int(row[w.TOPIC_AT]), int(row[w.TOPIC_SIZE])),
                int(row[w.QUEUE_ID]),
                int(row[w.QUEUE_OFFSET]),
                _text(chunk, row, w.UNIQ_AT),
                _text(chunk, row, w.KEYS_AT),
                int(row[w.STORE_TIME]),
            )
        )
    entries: list[tuple[int, int]] = []
    for file in there.index:
        entries += read_index_entries(file.place, file.size, max(start, facts.reach.start), end)
    expected = covered.of(stopped=not there.aborted)
    return compare_keys(facts.reach.replica.group, facts.reach.replica.name, messages, entries, expected)


def store_time(facts: AuditedLog, offset: int) -> int | None:
    """When the message at an offset was stored, epoch ms; None when none starts there or can be read."""
    try:
        return next(
            (
                int(row[w.STORE_TIME])
                for chunk, row in _rows(facts, offset, offset + 1)
                if chunk.base + row[w.POSITION] == offset
            ),
            None,
        )
    except OSError:
        return None


def switch(facts: AuditedLog, switches: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Findings of the places where epochs start, which are near each other, ascending (epoch, start): a
    record that one starts in, and messages stored again behind it. Raises OSError."""
    who = facts.reach.replica.group, facts.reach.replica.name
    starts = [start for _, start in switches]
    sent: list[SentMessage] = []
    found = []
    for chunk, row in _rows(facts, starts[0] - SWITCH_BYTES, starts[-1] + SWITCH_BYTES):
        at = chunk.base + int(row[w.POSITION])
        size = int(row[w.SIZE])
        for epoch, start in switches[bisect_right(starts, at) : bisect_left(starts, at + size)]:
            said = f"the record is at {at}"
            found.append(finding(*who, "epoch.inside-record", epoch=epoch, start_offset=start, detail=said))
        if row[w.UNIQ_SIZE]:
            sent.append(
                SentMessage(
                    at,
                    size,
                    text_of(chunk.data, int(row[w.TOPIC_AT]), int(row[w.TOPIC_SIZE])),
                    int(row[w.QUEUE_ID]),
                    int(row[w.QUEUE_OFFSET]),
                    _text(chunk, row, w.UNIQ_AT) or "",
                    int(row[w.BODY_SIZE]),
                    int(row[w.STORE_TIME]),
                )
            )
    return found + find_duplicates(*who, switches, sent, SWITCH_BYTES)
