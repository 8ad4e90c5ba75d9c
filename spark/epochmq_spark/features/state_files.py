"""Checks the state files of POP, filters, request modes, static topics, access control and the timer."""

from __future__ import annotations

from epochmq_protocol.errors import EpochMQError
from epochmq_spark.decode.state_tables import STATE_FILES, StateEntry
from epochmq_spark.features.replica_reader import QueueReader, ReplicaReader

_ORDER_FILE = "config/consumerOrderInfo.json"


def check_state_files(reader: ReplicaReader) -> None:
    """Reports files that cannot be read, entries that contradict themselves, and offsets of ordered POP
    beyond the end of a queue. Raises OSError."""
    for name, parse in STATE_FILES.items():
        data = reader.small_file(name)
        if data is None:
            continue
        try:
            entries = parse(data)
        except (EpochMQError, ValueError, TypeError) as error:
            reader.report("state.unreadable", file=reader.path(name), detail=f"{name}: {error}")
            continue
        for entry in entries:
            for kind, detail in entry.problems:
                reader.report(
                    kind,
                    file=reader.path(name),
                    topic=entry.topic,
                    queue_id=entry.queue_id,
                    key=entry.consumer_group,
                    detail=detail,
                )
        if name == _ORDER_FILE:
            _check_order_offsets(reader, entries)


def _check_order_offsets(reader: ReplicaReader, entries: list[StateEntry]) -> None:
    ends: dict[tuple[str, int], QueueReader | None] = {}
    for entry in entries:
        if entry.problems or entry.topic is None or entry.queue_id is None or entry.offset is None:
            continue
        key = entry.topic, entry.queue_id
        if key not in ends:
            ends[key] = reader.queue(*key)
        queue = ends[key]
        if queue is not None and reader.stopped and entry.offset >= queue.end:
            reader.report(
                "pop.order-ahead",
                file=reader.path(_ORDER_FILE),
                topic=entry.topic,
                queue_id=entry.queue_id,
                queue_offset=entry.offset,
                detail=f"group {entry.consumer_group} received it, the queue ends at {queue.end}",
            )
