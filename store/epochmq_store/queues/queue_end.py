"""Finds the end of a consume queue in its files when the store is opened (ConsumeQueue.recover).

After a clean stop of this store only zeros follow the last unit, and bisection finds it with a few reads.
Otherwise the units of the last files are read one by one: physical offsets rise from unit to unit, and where
they do not, an earlier truncation has left a stale unit. All reads are `pread`, so that no file is mapped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from epochmq_formats.queue_unit import POSITION_AND_SIZE, PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from epochmq_store.files.mapped_file import PAGE_BYTES
from epochmq_store.files.queue_files import QueueFile

READ_BYTES: Final = 3200 * UNIT_BYTES  # most queues are short, and their file is a hole
FILES_MAX: Final = 3  # so many of the last files are read


class QueueEnd(NamedTuple):
    """The end of a queue."""

    position: int  # the byte of the queue after its last unit
    max_physical: int  # the end of the last message in the log, -1 without one


def bisect_end(file: QueueFile) -> QueueEnd | None:
    """Finds the end of the queue in its last file by bisection; only zeros follow the units. None when that
    file has no unit. Raises OSError."""
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Most queues are short: the first page contains all their units.
        head = os.pread(fd, min(PAGE_BYTES, file.size), 0)
        in_head = len(head) // UNIT_BYTES
        low, high, last = 0, file.size // UNIT_BYTES, (-1, 0)
        middle = max(in_head - 1, 0)
        while low < high:
            at = middle * UNIT_BYTES
            place = head[at : at + UNIT_BYTES] if middle < in_head else os.pread(fd, UNIT_BYTES, at)
            if any(place):  # not the size alone, of which a bit may have flipped
                low, last = middle + 1, POSITION_AND_SIZE.unpack_from(place)
            else:
                high = middle
            middle = (low + high) // 2
    finally:
        os.close(fd)
    if not low:
        return None
    return QueueEnd(file.start + low * UNIT_BYTES, last[0] + last[1] if last[1] != PRE_BLANK_SIZE else -1)


def scan_end(files: Sequence[QueueFile]) -> QueueEnd:
    """Finds the first place in the last files without a valid unit. Raises OSError."""
    end = 0
    last = max_physical = -1
    for file in files[-FILES_MAX:]:
        found = _valid_bytes(file, last)
        end = file.start + found
        if found:
            physical, size = POSITION_AND_SIZE.unpack(file.pread(found - UNIT_BYTES, POSITION_AND_SIZE.size))
            if size != PRE_BLANK_SIZE:
                last = physical
                max_physical = physical + size
        if found != file.size:
            break
    return QueueEnd(end, max_physical)


def goes_on_behind(files: Sequence[QueueFile], end: int) -> bool:
    """Whether one of the next two units behind the end of a queue has any byte but zero: a bit of a unit has
    flipped, or units are stale. Raises OSError."""
    file = next((one for one in files if one.start <= end < one.start + one.size), None)
    if file is None:
        return False
    at = end - file.start
    return any(file.pread(at, min(2 * UNIT_BYTES, file.size - at)))


def _valid_bytes(file: QueueFile, last: int) -> int:
    """Number of bytes of valid units at the start of a file; all must lie after physical offset `last`."""
    at = 0
    whole = file.size - file.size % UNIT_BYTES
    while at < whole:
        for physical, size, _ in UNIT.iter_unpack(file.pread(at, min(READ_BYTES, whole - at))):
            if size <= 0 or physical < 0 or (physical <= last and size != PRE_BLANK_SIZE):
                return at
            if size != PRE_BLANK_SIZE:
                last = physical
            at += UNIT_BYTES
    return at
