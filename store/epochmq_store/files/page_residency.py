"""Checks whether bytes of a mapped file are in memory, so that the event loop never waits for the disk in a
page fault.

A page fault on a page outside the page cache blocks the whole process, because it holds the interpreter lock.
On an unreadable sector it kills the process by SIGBUS. So a read on the event loop is preceded by `require`,
which raises NotResidentError if the disk would have to be read. `warm` then reads the pages on another thread
and raises the disk's errors.

`mincore` is called for a whole block at a time. A resident block counts as resident while the kernel reclaims
no pages, and for half a minute at most; while it reclaims pages, for about a second.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Final

from epochmq_store.files.mapped_file import PAGE_BYTES, MappedFile
from epochmq_store.files.queue_files import QueueFile
from epochmq_store.statuses import StoreReadError

BLOCK_BITS: Final = 18
BLOCK_BYTES: Final = 1 << BLOCK_BITS
"""Size of the pieces that are checked, and read from the disk, at a time."""
SPAN_BLOCKS_MAX: Final = 16
"""Larger ranges are checked record by record."""
KNOWN_BLOCKS_MAX: Final = 1 << 16
"""Blocks that are known at a time: those of 16 GB of files, in about 5 MB."""
EXPIRIES_MAX: Final = 30
"""After so many calls of `expire` every block is checked again, whatever the kernel's counters say."""
_READ_BYTES: Final = 1 << 20
_NO_BLOCKS: Final[frozenset[int]] = frozenset()

_mincore = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
if _mincore is not None:
    _mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class NotResidentError(Exception):
    """Bytes [at, at + size) of a file are not in memory."""

    def __init__(self, file: MappedFile | QueueFile, at: int, size: int) -> None:
        super().__init__(f"{size} bytes of {file.path} at {at} are not in memory")
        self.file = file
        self.at = at
        self.size = size
        self.others: list[NotResidentError] = []
        """Further missing bytes, to be read together with these."""

    def load(self) -> None:
        """Reads the blocks with the missing bytes, on a worker thread. Raises StoreReadError."""
        _read_blocks(self)

    def blocks(self) -> set[tuple[object, int]]:
        """The blocks with missing bytes, these and the further ones, as file and number."""
        return {block for one in (self, *self.others) for block in one.own_blocks()}

    def own_blocks(self) -> set[tuple[object, int]]:
        """The blocks of the bytes that this error names."""
        first, last = self.at >> BLOCK_BITS, self.at + self.size - 1 >> BLOCK_BITS
        return {(self.file, block) for block in range(first, last + 1)}


class DamagedBytesError(NotResidentError):
    """Bytes [at, at + size) of a file are known to be damaged. A read of them fails as one of an unreadable
    sector does."""

    def __init__(self, file: MappedFile | QueueFile, at: int, size: int, fault: str) -> None:
        super().__init__(file, at, size)
        self._fault = fault

    def load(self) -> None:
        """Raises StoreReadError."""
        raise StoreReadError(f"{self.file.path} is damaged near {self.at}: {self._fault}")


class PageResidency:
    """The blocks known to be in memory. The owner calls `expire` about once a second. `pages_reclaimed` tells
    whether the kernel may have removed pages from memory since its last call."""

    def __init__(self, pages_reclaimed: Callable[[], bool] = lambda: True) -> None:
        self._pages_reclaimed = pages_reclaimed
        self.fault_in: Callable[[MappedFile | QueueFile, int, int], str] = lambda _file, _start, _stop: ""
        """What is damaged in the bytes [start, stop) of a file; empty if nothing is known to be. After a
        change `clear` makes the next reads ask again."""
        self._count = 0  # of known blocks
        self._expiries = 0  # calls of `expire` since the last `clear`
        self._known: dict[MappedFile | QueueFile, set[int]] = {}  # the numbers of the blocks, by file
        self._addresses: dict[mmap, int] = {}
        self._vector = ctypes.create_string_buffer(BLOCK_BYTES // PAGE_BYTES + 1)
        self._vector_at = ctypes.addressof(self._vector)

    def clear(self) -> None:
        """Clears what is known; the next `require` checks again."""
        self._known.clear()
        self._addresses.clear()
        self._count = self._expiries = 0

    def expire(self) -> None:
        """Clears what is known if that may have changed since the last call."""
        self._expiries += 1
        if self._pages_reclaimed() or self._expiries >= EXPIRIES_MAX:
            self.clear()

    def require(self, file: MappedFile | QueueFile, at: int, size: int) -> None:
        """Raises NotResidentError unless these bytes are in memory."""
        known = self._known.get(file, _NO_BLOCKS)
        first, last = at >> BLOCK_BITS, (at + size - 1) >> BLOCK_BITS
        if first == last and first in known:
            return
        for block in range(first, last + 1):
            if block not in known:
                self._check_block(file, block, at, at + size)

    def knows(self, file: MappedFile, at: int, end: int) -> bool:
        """Whether all bytes [at, end) are in blocks known to be in memory; checks no block. False for a range
        of more than SPAN_BLOCKS_MAX blocks."""
        first, last = at >> BLOCK_BITS, (end - 1) >> BLOCK_BITS
        known = self._known.get(file, _NO_BLOCKS)
        if first not in known or last not in known:
            return False
        return last - first < 2 or (
            last - first < SPAN_BLOCKS_MAX and known.issuperset(range(first, last + 1))
        )

    def require_all(self, file: MappedFile, pieces: Sequence[tuple[int, int]]) -> None:
        """Raises one NotResidentError for all of these (position, size) of a file that are not in memory."""
        known = self._known.get(file, _NO_BLOCKS)
        starts = {at >> BLOCK_BITS for at, _ in pieces}
        if known >= starts and all(
            size <= BLOCK_BYTES and (at + size - 1) >> BLOCK_BITS in known for at, size in pieces
        ):
            return
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

    def _check_block(self, file: MappedFile | QueueFile, block: int, at: int, end: int) -> None:
        start = block << BLOCK_BITS
        stop = min(start + BLOCK_BYTES, max(file.wrote, end))
        is_whole = not self.fault_in(file, start, stop)
        if not is_whole and (fault := self.fault_in(file, max(at, start), min(end, stop))):
            raise DamagedBytesError(file, at, end - at, fault)
        if is_whole and self._is_resident(file.map, start, stop):
            if self._count >= KNOWN_BLOCKS_MAX:
                self.clear()
            self._known.setdefault(file, set()).add(block)
            self._count += 1
            return
        at, end = max(at, start), min(end, stop)
        if not self._is_resident(file.map, at, end):
            raise NotResidentError(file, at, end - at)

    def _is_resident(self, mapping: mmap, start: int, stop: int) -> bool:
        if _mincore is None:
            return True
        base = self._addresses.get(mapping)
        if base is None:
            # An export of the buffer that lasts longer would prevent the mapping from being closed.
            base = self._addresses[mapping] = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        start -= start % PAGE_BYTES
        pages = -(-(stop - start) // PAGE_BYTES)
        if _mincore(base + start, stop - start, self._vector_at) != 0:
            return True
        # The lowest bit says whether the page is resident; Linux sets no other bit.
        return self._vector.raw.find(b"\0", 0, pages) < 0


def resident_pages(file: MappedFile) -> bytes:
    """One byte for each page of a file: 0 if the page is not in memory. For worker threads."""
    pages = -(-file.size // PAGE_BYTES)
    vector = ctypes.create_string_buffer(pages)
    try:
        base = ctypes.addressof(ctypes.c_char.from_buffer(file.map))
    except ValueError:  # the file was closed meanwhile
        return b"\1" * pages
    if _mincore is None or _mincore(base, file.size, ctypes.addressof(vector)) != 0:
        return b"\1" * pages
    return vector.raw


def warm(missing: NotResidentError) -> None:
    """Reads the blocks with the missing bytes from the disk, on a worker thread; of a file without read-ahead
    only the missing pages. Files that were deleted meanwhile are skipped. Raises StoreReadError."""
    for one in (missing, *missing.others):
        one.load()


def _read_blocks(missing: NotResidentError) -> None:
    file = missing.file
    is_random = isinstance(file, MappedFile) and not file.read_ahead
    unit = PAGE_BYTES if is_random else BLOCK_BYTES
    start = missing.at - missing.at % unit
    stop = min(-(-(missing.at + missing.size) // unit) * unit, file.size)
    try:
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreReadError(f"{file.path} cannot be opened: {error}") from error
    try:
        if is_random:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
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
