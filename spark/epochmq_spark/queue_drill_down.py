"""Compares buckets of consume queues with their messages, by reading units and messages again.

A bucket whose units explain what the log has there is not read from the log. The messages of the others are
read together (`read_wanted`): a part of the log is read once, however many queues have messages in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_spark import files, former_queues
from epochmq_spark.checks.consume_queues import (
    LISTED_MAX,
    HoleRanges,
    QueueLimits,
    QueueMessage,
    QueueUnit,
    compare_queue,
)
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.log_digests import BUCKET_BITS, SCHEDULE_TOPIC, topic_hash
from epochmq_spark.decode.summary_rows import text_of
from epochmq_spark.decode.unit_columns import decode_units
from epochmq_spark.drill_down import (
    AuditedLog,
    messages_between,
    queue_files_of,
    read_log,
    scan_store,
    text_in,
)
from epochmq_spark.sources.log_chunks import LogChunk

# Odd numbers that spread queue ids and buckets over 64 bits, so that few rows are looked at in vain.
_QUEUE_FACTOR, _BUCKET_FACTOR = np.array([-0x61C8864680B583EB, -0x3D4D51C2D82B14B1], np.int64)
_NOT_IN_QUEUES = 0x84  # flags of a message that was prepared or rolled back, or that is of a batch

Row = dict[str, Any]
QueueUnits = Mapping[int, QueueUnit]
"""The units of a bucket, by queue offset."""


@dataclass(frozen=True)
class BucketPart:
    """The messages of a bucket of queue offsets in one range of the log: the physical offsets of the first
    and the last one, their number, and the digest of the units that they should have. If the digest is None,
    it is not known."""

    first: int
    last: int
    count: int = 0
    digest: int | None = None


@dataclass(frozen=True)
class QueueRange:
    """A bucket of queue offsets of one replica, and where its messages lie in the log."""

    topic: str
    queue_id: int
    bucket: int
    parts: Sequence[BucketPart]
    queue_end: int
    is_of_new_topic: bool = False
    """Another queue of the topic starts anew behind older messages."""


@dataclass(frozen=True)
class WantedMessages:
    """The messages of a bucket of queue offsets with physical offsets from `first` to `last`."""

    topic: str
    queue_id: int
    bucket: int
    first: int
    last: int


def compare_queue_range(log: AuditedLog, queue: QueueRange, group: Sequence[AuditedLog] = ()) -> list[Row]:
    """Findings of one bucket of a consume queue; none for a batch consume queue. `group` are the logs of the
    replica's group. Raises OSError."""
    messages = [message for _, message in read_wanted(log, wanted_messages(log, queue))]
    return compare_messages(log, queue, messages, group)


def wanted_messages(log: AuditedLog, queue: QueueRange) -> list[WantedMessages]:
    """Which messages of a bucket must be read from the log, because its units do not describe them. Raises
    OSError."""
    if queue.topic in scan_store(log.replica.location).batch_topics:
        return []
    units = _read_units(log, queue)
    return [
        WantedMessages(queue.topic, queue.queue_id, queue.bucket, part.first, part.last)
        for part in queue.parts
        if _described_by_units(log, queue, part, units) is None
    ]


def read_wanted(
    log: AuditedLog, wanted: Sequence[WantedMessages]
) -> Iterator[tuple[WantedMessages, QueueMessage]]:
    """The wanted messages, each with what wants it. Ranges of the log that overlap are read once. Raises
    OSError."""
    together: list[WantedMessages] = []
    last = -1
    for one in sorted(wanted, key=attrgetter("first")):
        if together and one.first > last:
            yield from _read_together(log, together, last)
            together = []
        together.append(one)
        last = max(last, one.last)
    if together:
        yield from _read_together(log, together, last)


def _read_together(
    log: AuditedLog, wanted: Sequence[WantedMessages], last: int
) -> Iterator[tuple[WantedMessages, QueueMessage]]:
    """Reads the range from the first of the `wanted`, which are in order, to `last`."""
    hashes = {topic: _hash_of(topic) for topic in {one.topic for one in wanted}}
    columns = np.array([(hashes[one.topic], one.queue_id, one.bucket) for one in wanted], np.int64).T
    by_key: dict[int, list[WantedMessages]] = defaultdict(list)
    for key, one in zip(_keys(*columns).tolist(), wanted, strict=True):
        by_key[key].append(one)
    keys = np.unique(np.fromiter(by_key, np.int64, len(by_key)))
    for chunk in read_log(log, wanted[0].first, last + 1):
        rows = chunk.rows
        of_rows = _keys(rows[:, w.TOPIC_HASH], rows[:, w.QUEUE_ID], rows[:, w.QUEUE_OFFSET] >> BUCKET_BITS)
        in_queues = (rows[:, w.MAGIC] != w.BLANK) & (rows[:, w.SYS_FLAG] & _NOT_IN_QUEUES == 0)
        chosen = np.flatnonzero(np.isin(of_rows, keys) & in_queues)
        for key, row in zip(of_rows[chosen].tolist(), rows[chosen], strict=True):
            physical = chunk.base + int(row[w.POSITION])
            for one in by_key[key]:
                if one.first <= physical <= one.last and _is_of(chunk, row, one):
                    yield one, _queue_message(chunk, row)


def _hash_of(topic: str) -> int:
    return int(topic_hash(np.frombuffer(topic.encode(), np.uint8)))


def _keys(hashes: Any, queue_ids: Any, buckets: Any) -> Any:
    """A number for each bucket; two buckets may have the same one."""
    return hashes + queue_ids * _QUEUE_FACTOR + buckets * _BUCKET_FACTOR


def _is_of(chunk: LogChunk, row: Any, wanted: WantedMessages) -> bool:
    topic = chunk.data[row[w.TOPIC_AT] : row[w.TOPIC_AT] + row[w.TOPIC_SIZE]]
    is_of_queue = row[w.QUEUE_ID] == wanted.queue_id and bytes(topic) == wanted.topic.encode()
    return bool(is_of_queue and row[w.QUEUE_OFFSET] >> BUCKET_BITS == wanted.bucket)


def compare_messages(
    log: AuditedLog, queue: QueueRange, messages: Iterable[QueueMessage], group: Sequence[AuditedLog] = ()
) -> list[Row]:
    """Findings of one bucket of a consume queue. `messages` are those of `wanted_messages`, `group` the logs
    of the replica's group. Raises OSError."""
    if queue.topic in scan_store(log.replica.location).batch_topics:
        return []
    units = _read_units(log, queue)
    known = {one.physical: one for one in messages}
    for part in queue.parts:
        known |= _described_by_units(log, queue, part, units) or {}
    _describe_duplicates(log, known)
    name = former_queues.QueueName(queue.topic, queue.queue_id, queue.is_of_new_topic)
    former = former_queues.former_messages(log, group, name, known.values())
    limits = QueueLimits(
        log.extent.start,
        log.extent.end,
        log.dispatched_end,
        queue.queue_end,
        HoleRanges(log.holes),
        compare_tags=queue.topic.encode() != SCHEDULE_TOPIC,
        former_end=former.end,
        former_kind=former.kind,
        claimed=log.claimed_end,
    )
    lost = [
        unit.physical
        for _, unit in sorted(units.items())
        if unit.physical not in known and not limits.holes.contain(unit.physical)
    ]
    elsewhere = {
        physical: text for physical in lost[:LISTED_MAX] if (text := _describe_record_at(log, physical))
    }
    key = log.replica.group, log.replica.name, queue.topic, queue.queue_id
    return compare_queue(key, list(known.values()), units, limits, elsewhere)


def _described_by_units(
    log: AuditedLog, queue: QueueRange, part: BucketPart, units: QueueUnits
) -> dict[int, QueueMessage] | None:
    """The messages of a part, by physical offset, as the consume queue describes them, without their ids;
    None if the units do not have the digest of the part. So the messages of a slow queue, which lie far
    apart, are not all read again."""
    if part.digest is None or part.first < log.extent.start or part.last >= log.extent.end:
        return None
    inside = [(offset, one) for offset, one in units.items() if part.first <= one.physical <= part.last]
    if len(inside) != part.count:
        return None
    is_scheduled = queue.topic.encode() == SCHEDULE_TOPIC
    columns = np.array(
        [(offset, one.physical, one.size, 0 if is_scheduled else one.tags_code) for offset, one in inside],
        np.int64,
    ).T.copy()
    sums = np.empty(len(inside), np.int64)
    w.unit_digests(*columns, sums)
    if int(np.bitwise_xor.reduce(sums)) != part.digest:
        return None
    return {
        one.physical: QueueMessage(offset, one.physical, one.size, one.tags_code, None, None, 0)
        for offset, one in inside
    }


def _describe_duplicates(log: AuditedLog, messages: dict[int, QueueMessage]) -> None:
    """Reads the messages whose queue offset another message has, too, if only their units are known."""
    counts = Counter(one.queue_offset for one in messages.values())
    alike = [one for one in messages.values() if counts[one.queue_offset] > 1 and one.store_time == 0]
    for one in alike[:LISTED_MAX]:
        for chunk, row in messages_between(log, one.physical, one.physical + 1):
            messages[one.physical] = _queue_message(chunk, row)


def _queue_message(chunk: LogChunk, row: Any) -> QueueMessage:
    return QueueMessage(
        int(row[w.QUEUE_OFFSET]),
        chunk.base + int(row[w.POSITION]),
        int(row[w.SIZE]),
        int(row[w.TAGS_CODE]),
        text_in(chunk, row, w.UNIQ_AT),
        text_in(chunk, row, w.KEYS_AT),
        int(row[w.STORE_TIME]),
    )


def _read_units(log: AuditedLog, queue: QueueRange) -> dict[int, QueueUnit]:
    """The units of a bucket, by queue offset. Raises OSError."""
    low, high = queue.bucket << BUCKET_BITS, (queue.bucket + 1) << BUCKET_BITS
    units: dict[int, QueueUnit] = {}
    for file in queue_files_of(log.replica.location).get((queue.topic, queue.queue_id), ()):
        begin = max(low * UNIT_BYTES - file.start, 0)
        end = min(high * UNIT_BYTES - file.start, file.size)
        if begin < end:
            data = files.read_range(file.location, begin, end)
            part = decode_units(data, (file.start + begin) // UNIT_BYTES)
            columns = (part.offsets, part.physical, part.sizes, part.tags)
            for offset, *unit in zip(*(column.tolist() for column in columns), strict=True):
                units[offset] = QueueUnit(*unit)
    return units


def _describe_record_at(log: AuditedLog, physical: int) -> str | None:
    """A description of the message that starts at an offset; None if there is none."""
    for chunk, row in messages_between(log, physical, physical + 1):
        if chunk.base + row[w.POSITION] == physical:
            topic = text_of(chunk.data, int(row[w.TOPIC_AT]), int(row[w.TOPIC_SIZE]))
            return f"message {row[w.QUEUE_OFFSET]} of {topic}/{row[w.QUEUE_ID]} starts there"
    return None
