"""Keeps the latest entries of a log in memory, so that pushing them to peers reads no disk."""

from __future__ import annotations

from collections import OrderedDict

from epochmq_protocol.dledger import DLedgerEntry

CACHE_BYTES_MAX = 8 << 20


class EntryCache:
    """Entries by index, at most `CACHE_BYTES_MAX` bytes of them."""

    def __init__(self) -> None:
        self.entries: OrderedDict[int, DLedgerEntry] = OrderedDict()
        self._bytes = 0

    def add(self, entry: DLedgerEntry) -> None:
        """Adds the newest entry, and drops the oldest ones beyond the limit."""
        self.entries[entry.index] = entry
        self._bytes += entry.size
        while self._bytes > CACHE_BYTES_MAX:
            _, oldest = self.entries.popitem(last=False)
            self._bytes -= oldest.size

    def remove(self, index: int) -> None:
        """Drops an entry, if it is there."""
        entry = self.entries.pop(index, None)
        if entry is not None:
            self._bytes -= entry.size

    def remove_before(self, index: int) -> None:
        """Drops all entries before `index`."""
        for dropped in [one for one in self.entries if one < index]:
            self.remove(dropped)

    def remove_after(self, index: int) -> None:
        """Drops all entries after `index`."""
        for dropped in [one for one in self.entries if one > index]:
            self.remove(dropped)

    def clear(self) -> None:
        """Drops all entries."""
        self.entries.clear()
        self._bytes = 0
