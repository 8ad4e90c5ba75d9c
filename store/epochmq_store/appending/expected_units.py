"""Collects the units that records of the log have in consume queues, to compare them with the queues' files
(`unit_check`). The records are parsed as the dispatcher parses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from epochmq_protocol.topics import LMQ_QUEUE_ID
from epochmq_store import record
from epochmq_store.queues.light_queues import light_queue_offsets


class ExpectedUnit(NamedTuple):
    """The unit of one record in one queue. `offset` is the queue offset that the record says."""

    offset: int
    physical: int
    size: int
    tags_code: int
    store_timestamp: int


class ExpectedUnits:
    """The units of the records of one range of the log, by (topic, queue id), in the order of the log."""

    def __init__(self, header_bytes: int, delays_ms: tuple[int, ...], *, light: bool) -> None:
        """`header_bytes` stand before each record. `light`: records have units in light queues, too."""
        self._header_bytes = header_bytes
        self._delays_ms = delays_ms
        self.light = light
        self.by_queue: dict[tuple[str, int], list[ExpectedUnit]] = {}

    def add(self, buffer: bytes, position: int, size: int, offset: int) -> None:
        """Adds the units of the whole record, with its header, at this position of the buffer and this offset
        of the log."""
        header = self._header_bytes
        at, end = position + header, position + size
        parsed = record.parse(buffer, at, end, offset + header, self._delays_ms, check_crc=False)
        if not isinstance(parsed, record.DispatchRequest):
            return
        properties = record.properties_at(buffer, at, parsed.size) if self.light else b""
        for topic, queue_id, queue_offset in places_of(parsed, properties):
            unit = ExpectedUnit(
                queue_offset, parsed.physical_offset, parsed.size, parsed.tags_code, parsed.store_timestamp
            )
            self.by_queue.setdefault((topic, queue_id), []).append(unit)


def places_of(message: record.DispatchRequest, properties: bytes) -> Iterator[tuple[str, int, int]]:
    """(topic, queue id, offset) of each unit of a record; of light queues only with its stored
    properties."""
    if not message.in_consume_queue:
        return
    yield message.topic, message.queue_id, message.queue_offset
    for name, offset in light_queue_offsets(message.topic, properties):
        yield name, LMQ_QUEUE_ID, offset
