"""Checks the state files of a store: their values, the headers of its index files, and what its features have
saved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from epochmq_formats.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT_BYTES
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.integers import INT_MAX
from epochmq_spark import files
from epochmq_spark.decode.index_entries import FIRST_TIMED, slot_count
from epochmq_spark.decode.state_tables import STATE_FILES, StateEntry
from epochmq_spark.decode.state_values import STATE_VALUES, index_header_faults
from epochmq_spark.features.replica_reader import QueueReader, ReplicaReader
from epochmq_spark.store_layout import DataFile
from epochmq_spark.volume_client import is_remote

_ORDER_FILE = "config/consumerOrderInfo.json"


def check_state_files(reader: ReplicaReader) -> None:
    """Reports files that cannot be read, values that no broker writes, entries that contradict themselves,
    and offsets of ordered POP beyond the end of a queue. Raises OSError."""
    _check_values(reader)
    _check_index_headers(reader)
    for name, parse in STATE_FILES.items():
        data = reader.small_file(name) if name not in STATE_VALUES else None
        if data is None:
            continue
        try:
            entries = parse(data)
        except (EpochMQError, ValueError, TypeError, AttributeError) as error:
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


def _check_values(reader: ReplicaReader) -> None:
    now_ms = int(time.time() * 1000)
    for name, check in STATE_VALUES.items():
        data = reader.small_file(name)
        if data is None:
            continue
        try:
            faults = check(data, now_ms)
        except (EpochMQError, ValueError, TypeError) as error:
            faults = [str(error)]
        if faults:
            detail = f"{name}: {'; '.join(faults)}"
            reader.report("state.unreadable", file=reader.path(name), detail=detail)


def _check_index_headers(reader: ReplicaReader) -> None:
    """Checks the headers of the index files. The newest one of a broker that was killed may be torn: its
    start makes it anew."""
    now_ms = int(time.time() * 1000)
    for file in reader.contents.index[: -1 if reader.contents.aborted else None]:
        slots = slot_count(file.size)
        if slots is None:
            continue  # the pass over the index files reports it
        header = bytes(files.read_range(file.location, 0, HEADER_BYTES))
        faults = index_header_faults(header, file.size, slots, now_ms)
        if not faults and not is_remote(reader.location):
            faults = list(_contradictions(reader, file, header, slots))
        if faults:
            reader.report("index.broken-header", file=file.location, detail="; ".join(faults))


def _contradictions(reader: ReplicaReader, file: DataFile, header: bytes, slots: int) -> Iterator[str]:
    """What contradicts the header of an index file that has entries: its first and its last entry, and the
    store times of their messages. The time of a message may be wrong itself, so the beginning must be after
    both."""
    begin_ms, end_ms, first_at, last_at, _, count = HEADER.unpack(header)
    if count <= 1:
        return
    first, last = (_entry(file, slots, number) for number in (1, count - 1))
    if first.physical != first_at:
        yield f"it begins with the message at {first_at}, its first entry is for the one at {first.physical}"
    if last.physical != last_at:
        yield f"it ends with the message at {last_at}, its last entry is for the one at {last.physical}"
    seconds = min(max((end_ms - begin_ms) // 1000, 0), INT_MAX)
    if count > FIRST_TIMED + 1 and begin_ms > 0 and last.seconds != seconds:
        yield f"it covers {begin_ms} to {end_ms} ms, its last entry is {last.seconds} s after its beginning"
    times = [one.store_timestamp for one in map(reader.message_at, (first.physical, last.physical)) if one]
    if len(times) == 2 and begin_ms > max(times):
        yield f"it begins at {begin_ms} ms, its first message was stored at {times[0]}"


class _Entry(NamedTuple):
    hash: int
    physical: int
    seconds: int
    previous: int


def _entry(file: DataFile, slots: int, number: int) -> _Entry:
    at = HEADER_BYTES + slots * SLOT_BYTES + number * ENTRY_BYTES
    return _Entry._make(ENTRY.unpack(bytes(files.read_range(file.location, at, at + ENTRY_BYTES))))


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
