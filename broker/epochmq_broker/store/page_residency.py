"""Tells whether bytes of a mapped file are in memory, so that the event loop never waits for the disk in a
page fault.

A page fault on a page that is not in the page cache blocks the whole process, the interpreter's lock held; on
an unreadable sector it ends it by SIGBUS. So whoever reads on the loop asks first, and gets
`NotResidentError` when the disk would have to be read: `warm` does that on another thread, and raises what
goes wrong.

`mincore` answers for a whole block at a time, and a block found in memory is believed to be there for a
second.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from mmap import mmap
from typing import Final

from epochmq_broker.store.consume_queue import ConsumeQueue
from epochmq_broker.store.mapped_file import PAGE_BYTES, MappedFile
from epochmq_broker.store.queue_files import QueueFile
from epochmq_broker.store.statuses import StoreReadError
from epochmq_broker.store.store_config import CONSUME_QUEUE_UNIT_BYTES as UNIT_BYTES

BLOCK_BITS: Final = 18
BLOCK_BYTES: Final = 1 << BLOCK_BITS
"""What is looked at, and read from the disk, at a time."""
_READ_BYTES: Final = 1 << 20

_mincore = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
if _mincore is not None:
    _mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class NotResidentError(Exception):
    """Bytes [at, at + size) of a file would have to come from the disk."""

    def __init__(self, file: MappedFile | QueueFile, at: int, size: int) -> None:
        super().__init__(f"{file.path} at {at}: {size} bytes are not in memory")
        self.file = file
        self.at = at
        self.size = size
        self.others: list[NotResidentError] = []
        """More that is missing, to be read with it."""


class PageResidency:
    """What is known to be in memory. `forget` must be called about once a second."""

    def __init__(self) -> None:
        self._known: set[tuple[MappedFile | QueueFile, int]] = set()
        self._addresses: dict[mmap, int] = {}
        self._vector = ctypes.create_string_buffer(BLOCK_BYTES // PAGE_BYTES + 1)
        self._vector_at = ctypes.addressof(self._vector)

    def forget(self) -> None:
        """Has everything looked at anew."""
        self._known.clear()
        self._addresses.clear()

    def require(self, file: MappedFile | QueueFile, at: int, size: int) -> None:
        """Raises NotResidentError unless these bytes are in memory."""
        known = self._known
        end = at + size - 1
        for block in range(at >> BLOCK_BITS, (end >> BLOCK_BITS) + 1):
            if (file, block) not in known:
                self._look(file, block, at, at + size)

    def require_all(self, file: MappedFile, pieces: Iterable[tuple[int, int]]) -> None:
        """The same of several (position, size) of a file; whatever is missing is told at once."""
        missing: NotResidentError | None = None
        for at, size in pieces:
            try:
                self.require(file, at, size)
            except NotResidentError as error:
                if missing is None:
                    missing = error
                elif error.at >> BLOCK_BITS != missing.at >> BLOCK_BITS:
                    missing.others.append(error)
        if missing is not None:
            raise missing

    def require_units(self, queue: ConsumeQueue, offset: int, count: int) -> None:
        """The same of units of a queue. A file that is not mapped would have to be opened, which may wait
        too."""
        start = offset * UNIT_BYTES
        if queue.map is not None and start >= queue.base:
            return
        file = queue.files.find(start)
        if file is None:
            return
        at = start - file.start
        size = min(count * UNIT_BYTES, file.wrote - at)
        if size <= 0:
            return
        if file.mapping is None:
            raise NotResidentError(file, at, size)
        self.require(file, at, size)

    def _look(self, file: MappedFile | QueueFile, block: int, at: int, end: int) -> None:
        start = block << BLOCK_BITS
        stop = min(start + BLOCK_BYTES, max(file.wrote, end))
        if self._is_resident(file.map, start, stop):
            self._known.add((file, block))
            return
        at, end = max(at, start), min(end, stop)
        if not self._is_resident(file.map, at, end):
            raise NotResidentError(file, at, end - at)

    def _is_resident(self, mapping: mmap, start: int, stop: int) -> bool:
        if _mincore is None:
            return True
        base = self._addresses.get(mapping)
        if base is None:
            # Exporting the buffer for longer would keep the mapping from being closed.
            base = self._addresses[mapping] = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        start -= start % PAGE_BYTES
        pages = -(-(stop - start) // PAGE_BYTES)
        if _mincore(base + start, stop - start, self._vector_at) != 0:
            return True
        # The lowest bit is what counts; Linux sets no other.
        return self._vector.raw.find(b"\0", 0, pages) < 0


def warm(missing: NotResidentError) -> None:
    """Reads the blocks that hold the missing bytes from the disk, on a worker thread. A file that has been
    removed meanwhile is no error. Raises StoreReadError."""
    for one in (missing, *missing.others):
        _warm(one)


def _warm(missing: NotResidentError) -> None:
    file = missing.file
    start = missing.at - missing.at % BLOCK_BYTES
    stop = min(-(-(missing.at + missing.size) // BLOCK_BYTES) * BLOCK_BYTES, file.size)
    try:
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreReadError(f"{file.path} cannot be opened: {error}") from error
    try:
        while start < stop:
            count = len(os.pread(fd, min(stop - start, _READ_BYTES), start))
            if not count:
                return
            start += count
        if isinstance(file, QueueFile):
            file.prepare()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreReadError(f"{file.path} cannot be read at {start}: {error}") from error
    finally:
        os.close(fd)
