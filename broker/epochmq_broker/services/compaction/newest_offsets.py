"""Maps keys to the queue offsets of their newest messages, in a table of bounded size
(CompactionLog.OffsetMap).

A key is represented by its MD5 sum, as in RocketMQ: an entry takes 24 bytes, however long the key is. The
memory is reserved when it is first used, page by page.
"""

from __future__ import annotations

import hashlib
import struct
from mmap import mmap
from typing import Final

_ENTRY: Final = struct.Struct(">16sq")
ENTRY_BYTES: Final = _ENTRY.size
ENTRIES_MIN: Final = 100
_FILL_RATIO: Final = 0.75
"""Of the entries so many are used at most: probes of a fuller table take long."""
_EMPTY: Final = bytes(16)


class NewestOffsets:
    """The table. Offsets rise from `put` to `put`."""

    def __init__(self, memory_bytes: int) -> None:
        self._slots = max(memory_bytes // ENTRY_BYTES, ENTRIES_MIN)
        self._table = mmap(-1, self._slots * ENTRY_BYTES)
        self._room = int(self._slots * _FILL_RATIO)
        self.last_offset = -1
        """The offset of the last `put`."""

    def put(self, key: bytes, offset: int) -> bool:
        """Stores the offset as the newest one of the key. False, without a change, if the key is new and the
        table is full."""
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        at = self._find(digest)
        if self._table[at : at + 16] == _EMPTY:
            if not self._room:
                return False
            self._room -= 1
        _ENTRY.pack_into(self._table, at, digest, offset)
        self.last_offset = offset
        return True

    def get(self, key: bytes) -> int:
        """The newest offset of the key, -1 for a key that the table does not have."""
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        found, offset = _ENTRY.unpack_from(self._table, self._find(digest))
        return offset if found == digest else -1

    def _find(self, digest: bytes) -> int:
        """The position of the entry with this sum, or of the empty entry where it belongs."""
        slot = int.from_bytes(digest[:8], "big") % self._slots
        table = self._table
        while True:
            at = slot * ENTRY_BYTES
            found = table[at : at + 16]
            if found in (digest, _EMPTY):
                return at
            slot = (slot + 1) % self._slots
