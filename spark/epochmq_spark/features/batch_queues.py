"""Checks batch consume queues: every unit must lead to its record, and follow the unit before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from epochmq_formats.batch_unit import END_UNIT, UNIT, UNIT_BYTES, BatchUnit
from epochmq_protocol.message import MessageExt, parse_properties
from epochmq_protocol.message_const import PROPERTY_INNER_BASE, PROPERTY_INNER_NUM
from epochmq_spark import files
from epochmq_spark.features.replica_reader import ReplicaReader
from epochmq_spark.store_layout import ConsumeQueueFiles, DataFile

_BLOCK_BYTES: Final = UNIT_BYTES << 14


def check_batch_queues(reader: ReplicaReader) -> None:
    """Reports units of the queues of topics of type BatchCQ that point to no record or to another one, and
    units that do not follow their predecessor. Units of expired records are not compared. Raises OSError."""
    for queue in reader.contents.batch_queues:
        _check_queue(reader, queue)


def used_units(file: DataFile) -> Iterator[BatchUnit]:
    """The units of a file, up to its end mark or the first unused unit. Raises OSError."""
    for at in range(0, file.size, _BLOCK_BYTES):
        data = bytes(files.read_range(file.location, at, min(at + _BLOCK_BYTES, file.size)))
        for unit in map(BatchUnit._make, UNIT.iter_unpack(data[: len(data) - len(data) % UNIT_BYTES])):
            if not unit.follows(None):
                return
            yield unit


def _check_queue(reader: ReplicaReader, queue: ConsumeQueueFiles) -> None:
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
        rest = bytes(files.read_range(file.location, at, min(at + UNIT_BYTES, file.size)))
        if any(rest) and rest != END_UNIT[: len(rest)]:
            where = {"topic": queue.topic, "queue_id": queue.queue_id, "file": file.location}
            reader.report("batch-queue.no-record", **where, detail=f"the bytes at {at} are no unit")


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
