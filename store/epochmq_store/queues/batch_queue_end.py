"""Reads units of a batch consume queue without mapping its files: to find the end of the queue when the store
is opened (BatchConsumeQueue.recover), and to find what has expired.

After a clean stop of this store only zeros follow the last unit, and bisection finds it with a few reads.
Otherwise the units of the last files are read one by one. A torn unit, or one that an earlier truncation has
left, is where their numbers do not rise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from epochmq_formats.batch_unit import UNIT, UNIT_BYTES, BatchUnit
from epochmq_store.files.queue_files import QueueFile, QueueFiles

FILES_MAX: Final = 3  # so many of the last files are read
READ_BYTES: Final = 1400 * UNIT_BYTES


def read_unit(files: QueueFiles, number: int) -> BatchUnit:
    """A written unit, not read through a mapping. Raises OSError."""
    at = number * UNIT_BYTES
    file = files.find(at)
    if file is None:
        raise OSError(f"unit {number} of the batch consume queue in {files.directory} is missing")
    return BatchUnit._make(UNIT.unpack(file.pread(at - file.start, UNIT_BYTES)))


def bisect_end(file: QueueFile) -> int:
    """Number of bytes of units in a file in which only zeros follow them. Raises OSError."""
    low, high = 0, file.size // UNIT_BYTES
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        middle = 0  # most queues are short
        while low < high:
            place = os.pread(fd, UNIT_BYTES, middle * UNIT_BYTES)
            if BatchUnit._make(UNIT.unpack(place)).follows(None):
                low = middle + 1
            else:
                high = middle
            middle = min((low + high) // 2, low * 2)
    finally:
        os.close(fd)
    return low * UNIT_BYTES


def scan_end(files: Sequence[QueueFile]) -> int:
    """The byte of the queue at which the last files have no valid unit any more. Raises OSError."""
    last: BatchUnit | None = None
    end = 0
    for file in files[-FILES_MAX:]:
        found = 0
        while found < file.size:
            for fields in UNIT.iter_unpack(file.pread(found, min(READ_BYTES, file.size - found))):
                unit = BatchUnit._make(fields)
                if not unit.follows(last):
                    return file.start + found
                last = unit
                found += UNIT_BYTES
        end = file.start + found
    return end
