"""Checks batch consume queues: every unit must lead to its record, and follow the unit before it, and a queue
must not end before those of the other replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from epochmq_formats.batch_unit import END_UNIT, UNIT, UNIT_BYTES, BatchUnit
from epochmq_protocol.message import MessageExt, parse_properties
from epochmq_protocol.message_const import PROPERTY_INNER_BASE, PROPERTY_INNER_NUM
from epochmq_spark import files, topic_tables
from epochmq_spark.checks.former_topics import is_deleted
from epochmq_spark.drill_down import scan_store
from epochmq_spark.features.replica_reader import ReplicaReader
from epochmq_spark.store_layout import ConsumeQueueFiles, DataFile

_BLOCK_BYTES: Final = UNIT_BYTES << 14
_GAP_BYTES: Final = UNIT_BYTES << 10
"""How far behind the last unit of a file another one is looked for."""


def check_batch_queues(reader: ReplicaReader) -> None:
    """Reports units of the queues of topics of type BatchCQ that point to no record or to another one, and
    units that do not follow their predecessor. Units of expired records are not compared. After a clean stop
    also records without a unit, if the unit is behind a gap, or in another replica. Raises OSError."""
    queues = reader.contents.batch_queues
    last = {(queue.topic, queue.queue_id): _check_queue(reader, queue) for queue in queues}
    if reader.stopped and queues:
        _compare_ends(reader, last)


def used_units(file: DataFile) -> Iterator[BatchUnit]:
    """The units of a file, up to its end mark or the first unused unit. Raises OSError."""
    for at in range(0, file.size, _BLOCK_BYTES):
        data = bytes(files.read_range(file.location, at, min(at + _BLOCK_BYTES, file.size)))
        for unit in map(BatchUnit._make, UNIT.iter_unpack(data[: len(data) - len(data) % UNIT_BYTES])):
            if not unit.follows(None):
                return
            yield unit


def _check_queue(reader: ReplicaReader, queue: ConsumeQueueFiles) -> BatchUnit | None:
    """Checks one queue; its last unit."""
    extent = reader.log.extent
    before: BatchUnit | None = None
    for file in sorted(queue.files, key=lambda one: one.start):
        used = 0
        for unit in used_units(file):
            used += 1
            where = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": unit.base}
            where |= {"start_offset": unit.physical}
            if before is not None and (unit.base != before.end or unit.physical <= before.physical):
                detail = f"it has {unit.base} at {unit.physical}, the unit before it ends at {before.end}"
                reader.report("batch-queue.wrong-unit", **where, detail=detail)
            before = unit
            if unit.physical < extent.start or (not reader.stopped and unit.physical >= extent.end):
                continue
            message = reader.message(unit.physical, unit.size, check_crc=False)
            if message is None:
                reader.report("batch-queue.no-record", **where, detail=f"{unit.size} bytes")
            elif wrong := _contradiction(queue, unit, message):
                reader.report("batch-queue.wrong-unit", **where, detail=wrong)
        at = used * UNIT_BYTES
        if reader.stopped and _has_unit_behind(reader, queue, file, at, before):
            where = {"topic": queue.topic, "queue_id": queue.queue_id, "file": file.location}
            where |= {"queue_offset": 0 if before is None else before.end}
            reader.report("batch-queue.missing-unit", **where, detail=f"units follow the gap at {at}")
        rest = bytes(files.read_range(file.location, at, min(at + UNIT_BYTES, file.size)))
        if any(rest) and rest != END_UNIT[: len(rest)]:
            where = {"topic": queue.topic, "queue_id": queue.queue_id, "file": file.location}
            reader.report("batch-queue.no-record", **where, detail=f"the bytes at {at} are no unit")
    return before


def _has_unit_behind(
    reader: ReplicaReader, queue: ConsumeQueueFiles, file: DataFile, at: int, before: BatchUnit | None
) -> bool:
    """Whether a unit behind the gap at this position of a file leads to its record. Units that a truncation
    has left do not."""
    data = bytes(files.read_range(file.location, at, min(at + _GAP_BYTES, file.size)))
    if not any(data):
        return False
    units = map(BatchUnit._make, UNIT.iter_unpack(data[: len(data) - len(data) % UNIT_BYTES]))
    return any(unit.follows(before) and _leads_to_record(reader, queue, unit) for unit in units)


def _leads_to_record(reader: ReplicaReader, queue: ConsumeQueueFiles, unit: BatchUnit) -> bool:
    message = reader.message(unit.physical, unit.size, check_crc=False)
    return message is not None and not _contradiction(queue, unit, message)


def _compare_ends(reader: ReplicaReader, last: Mapping[tuple[str, int], BatchUnit | None]) -> None:
    """Reports queues that end before a unit of another replica whose record is in this log, too. A topic of
    which this replica has no unit was made again, or its queues are lost."""
    known = topic_tables.topic_table(reader.location)
    with_units = {topic for (topic, _), unit in last.items() if unit is not None}
    furthest: dict[tuple[str, int], BatchUnit] = {}
    for other in reader.others:
        for queue in scan_store(other.replica.location).batch_queues:
            key = queue.topic, queue.queue_id
            unit = _last_unit(queue)
            if unit is None or is_deleted(queue.topic, known) or not _leads_to_record(reader, queue, unit):
                continue
            if unit.physical + unit.size <= reader.log.dispatched_end:
                furthest[key] = max(furthest.get(key, unit), unit)
    for (topic, queue_id), unit in sorted(furthest.items()):
        own = last.get((topic, queue_id))
        if own is not None and own.physical >= unit.physical:
            continue
        kind = "batch-queue.missing-unit" if topic in with_units else "topic.without-queues"
        where = {"topic": topic, "queue_id": queue_id, "queue_offset": 0 if own is None else own.end}
        detail = f"the queue of another replica ends at {unit.end}, and the record of its last unit is here"
        reader.report(kind, **where, start_offset=unit.physical, detail=detail)


def _last_unit(queue: ConsumeQueueFiles) -> BatchUnit | None:
    """The last used unit of a queue, found by bisection. Raises OSError."""
    for file in sorted(queue.files, key=lambda one: one.start, reverse=True):
        low, high = -1, file.size // UNIT_BYTES  # `low` is used, `high` is not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _unit_at(file, middle) is not None else (low, middle)
        if low >= 0:
            return _unit_at(file, low)
    return None


def _unit_at(file: DataFile, number: int) -> BatchUnit | None:
    data = bytes(files.read_range(file.location, number * UNIT_BYTES, (number + 1) * UNIT_BYTES))
    if len(data) < UNIT_BYTES:
        return None
    unit = BatchUnit._make(UNIT.unpack(data))
    return unit if unit.follows(None) else None


def _contradiction(queue: ConsumeQueueFiles, unit: BatchUnit, message: MessageExt) -> str:
    if (message.topic, message.queue_id) != (queue.topic, queue.queue_id):
        return f"the record is of {message.topic}/{message.queue_id}"
    properties = parse_properties(message.properties)
    base = _number(properties.get(PROPERTY_INNER_BASE), message.queue_offset)
    messages = _number(properties.get(PROPERTY_INNER_NUM), 1)
    if (unit.base, unit.messages) != (base, messages):
        return f"it has {unit.messages} messages at {unit.base}, the record {messages} at {base}"
    if unit.store_timestamp != message.store_timestamp:
        return f"store time {unit.store_timestamp}, the record has {message.store_timestamp}"
    return ""


def _number(text: str | None, without: int) -> int:
    return int(text) if text is not None and text.isdecimal() else without
