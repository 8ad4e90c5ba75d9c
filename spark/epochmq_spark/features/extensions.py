"""Checks the extensions of consume queues: the units that hold tag codes and filter bit maps
(ConsumeQueueExt)."""

from __future__ import annotations

from typing import Final

import numpy as np

from epochmq_formats.extension_unit import (
    ADDRESS_MAX,
    ADDRESS_ZERO,
    END_MARK,
    HEAD,
    UNIT_BYTES_MAX,
    ExtensionUnit,
    decode_unit,
)
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.message import parse_properties
from epochmq_protocol.message_const import PROPERTY_TAGS
from epochmq_protocol.topics import RMQ_SYS_SCHEDULE_TOPIC
from epochmq_spark.decode.state_tables import filter_bits
from epochmq_spark.features.replica_reader import FileWindow, QueueReader, ReplicaReader

_FILTERS: Final = "config/consumerFilter.json"


def check_extensions(reader: ReplicaReader) -> None:
    """Reports units that are damaged, or do not match their message. Units that a crash has lost are notes:
    brokers do without them. Raises OSError."""
    bits = _filter_bits(reader)
    for extension in reader.contents.extensions:
        queue = reader.queue(extension.topic, extension.queue_id)
        if queue is not None:
            _check_queue(reader, queue, FileWindow(extension.files), bits)


def _check_queue(reader: ReplicaReader, queue: QueueReader, units: FileWindow, bits: int | None) -> None:
    lost = other_size = 0
    for block in queue.units():
        for index in np.flatnonzero(block.tags <= ADDRESS_MAX).tolist():
            offset, physical = int(block.offsets[index]), int(block.physical[index])
            where = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": offset}
            where |= {"start_offset": physical}
            address = int(block.tags[index]) - ADDRESS_ZERO
            try:
                unit = _unit_at(units, address)
            except ValueError as error:
                reader.report("extension.broken-unit", **where, detail=f"unit at {address}: {error}")
                continue
            if unit is None:
                lost += 1
                continue
            if unit.bit_map and bits is not None and len(unit.bit_map) != (bits + 7) // 8:
                other_size += 1
            wrong = _contradiction(reader, queue.topic, physical, int(block.sizes[index]), unit)
            if wrong:
                reader.report("extension.wrong-unit", **where, detail=f"unit at {address}: {wrong}")
    of_queue = {"topic": queue.topic, "queue_id": queue.queue_id}
    if lost:
        reader.report("extension.missing-unit", **of_queue, detail=f"{lost} units")
    if other_size:
        detail = f"{other_size} bit maps are not of {bits} bits, the size in {_FILTERS}"
        reader.report("extension.other-bit-map", **of_queue, detail=detail)


def _unit_at(units: FileWindow, address: int) -> ExtensionUnit | None:
    """The unit at an offset of the extension; None if it is lost. Raises ValueError or OSError."""
    data = units.read(address, UNIT_BYTES_MAX)
    if data is None:
        return None
    if data.startswith(END_MARK):
        raise ValueError("the units of its file end before it")
    if len(data) < HEAD.size:
        return None
    return decode_unit(data)


def _contradiction(reader: ReplicaReader, topic: str, physical: int, size: int, unit: ExtensionUnit) -> str:
    message = reader.message(physical, size)
    if message is None:
        return ""
    wrong = []
    if unit.store_timestamp != message.store_timestamp:
        wrong.append(f"store time {unit.store_timestamp}, the message has {message.store_timestamp}")
    tags = parse_properties(message.properties).get(PROPERTY_TAGS, "")
    expected = tags_code(tags) if tags else 0
    if topic != RMQ_SYS_SCHEDULE_TOPIC and unit.tags_code != expected:
        wrong.append(f"tag code {unit.tags_code}, the message has {expected}")
    return "; ".join(wrong)


def _filter_bits(reader: ReplicaReader) -> int | None:
    """The size of the bit maps of the registered filters; None without one, or if the file is damaged."""
    try:
        return filter_bits(reader.small_file(_FILTERS) or b"")
    except (EpochMQError, ValueError, TypeError):
        return None
