"""Selects records of a queue by their stored properties: the loop of gets with an expression.

Most examined messages are not selected, so the loop is written for speed. It reads nothing of a record but
the length of its body and its properties, straight from the mapped file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from epochmq_formats.queue_unit import PRE_BLANK_SIZE
from epochmq_protocol.record_layout import BODY_SIZE, HOSTS_V6, MAGIC, SYS_FLAG, fields_of_head
from epochmq_protocol.topics import is_lmq
from epochmq_store import record
from epochmq_store.files.mapped_file import MappedFileQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.reading.selections import PROPERTY_END, Select, SelectByProperty
from epochmq_store.statuses import GetStatus

NO_ROOM: Final = -(1 << 62)
"""Bytes: no further record fits, whatever size its unit states."""

_HEAD: Final = fields_of_head(MAGIC, SYS_FLAG, BODY_SIZE)


class SelectedRecords(NamedTuple):
    """The records that were selected among the first `examined` units, as views of the mapped files.
    `status` is that of the last unit that was not selected."""

    pieces: list[memoryview]
    places: list[tuple[int, int]]
    """Physical offset and size of each piece."""
    size: int
    """The bytes of all pieces."""
    examined: int
    physical_end: int
    status: GetStatus


def select_records(
    files: MappedFileQueue,
    log_min: int,
    queue: ConsumeQueue,
    units: Iterable[tuple[int, int, int]],
    select: Select,
    *,
    excluded: frozenset[int],
    count_max: int,
    bytes_max: int,
    had: bool,
) -> SelectedRecords:
    """Selects up to `count_max` records of `bytes_max` bytes among these units of the queue. The first is
    selected whatever its size, unless the caller `had` one already. Records at the physical offsets
    `excluded` are not read."""
    head_size, read_head, v6_flags = _HEAD.size, _HEAD.unpack_from, HOSTS_V6
    properties_after_body = queue.record_overhead
    # The records of a light message queue have another topic.
    magic_wanted = 0 if is_lmq(queue.topic) else queue.magic
    mark: bytes | None = None
    results: Mapping[bytes, bool] = {}
    if isinstance(select, SelectByProperty):
        mark, results, select = select.mark, select.results, select.test
    pieces: list[memoryview] = []
    places: list[tuple[int, int]] = []
    total = count = examined = 0
    physical_end = -1
    status = GetStatus.NO_MATCHED_MESSAGE
    room = bytes_max if count_max > 0 else NO_ROOM
    start = length = 0  # of the file
    for physical, size, _ in units:
        if total + size > room and (count or had):
            break
        examined += 1
        physical_end = physical
        if excluded and physical in excluded:
            status = GetStatus.NO_MATCHED_MESSAGE
            continue
        at = physical - start
        if not 0 <= at < length:
            file = files.find(physical)
            if file is None or physical < log_min:
                status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            start, length = file.start, file.size
            log, view = file.map, memoryview(file.map)
            at = physical - start
        end = at + size
        if size > head_size and end <= length:
            magic, flags, body_size = read_head(log, at)
            if magic == magic_wanted and 0 <= body_size < size and not flags & v6_flags:
                stored = log[at + body_size + properties_after_body : end]
            else:
                stored = record.properties_at(log, at, size)
        elif size == PRE_BLANK_SIZE:
            status = GetStatus.MESSAGE_WAS_REMOVING
            continue
        else:
            stored = b""
        value = b""
        if mark is not None:
            found = stored.rpartition(mark)
            if found[1]:
                value = found[2].partition(PROPERTY_END)[0]
        is_selected = results[value] if value else select(stored)
        if is_selected:
            pieces.append(view[at:end])
            places.append((physical, size))
            total += size
            count += 1
            if count >= count_max:
                room = NO_ROOM
        else:
            status = GetStatus.NO_MATCHED_MESSAGE
    return SelectedRecords(pieces, places, total, examined, physical_end, status)
