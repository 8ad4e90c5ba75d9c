"""Keeps the encoded entries of a table, so that encoding the whole table costs as much as its changes, and a
copy of the bytes.

The tables replace values instead of modifying them, so an entry is encoded again only if its value is another
object. After the first time, `changed` says which entries to look at.
"""
# pure: values only

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping

ENTRIES_AT_A_TIME = 4
"""Entries that `refresh` encodes between two of its steps: about 0.1 ms."""


class RenderedTable:
    """The entries of one table in the order of their names, each as `encode` writes it."""

    def __init__(self, encode: Callable[[str, object], bytes]) -> None:
        self._encode = encode
        self._names: list[str] = []
        self._pieces: list[bytes] = []
        self._values: dict[str, object] = {}
        self._due: dict[str, None] | None = None  # None: any entry may have changed

    def changed(self, names: Iterable[str]) -> None:
        """These entries have been created, changed or deleted."""
        if self._due is not None:
            self._due |= dict.fromkeys(names)

    def changed_everywhere(self) -> None:
        """Any entry may have changed."""
        self._due = None

    def refresh(self, table: Mapping[str, object]) -> Generator[None, None, None]:
        """Encodes what has changed. The table may change between two steps; `changed` is called then, as
        always."""
        if self._due is None:
            self._forget_missing(table)
            self._due = {name: None for name, value in table.items() if self._values.get(name) is not value}
        due = self._due
        while due:
            for _ in range(min(ENTRIES_AT_A_TIME, len(due))):
                name, _ = due.popitem()
                self._update(name, table.get(name))
            if due:
                yield
            if self._due is not due:  # changed everywhere meanwhile
                yield from self.refresh(table)
                return

    def join(self, table: Mapping[str, object]) -> bytes:
        """The entries of the whole table, separated by commas."""
        for _ in self.refresh(table):
            pass
        return b",".join(self._pieces)

    def _forget_missing(self, table: Mapping[str, object]) -> None:
        if not self._values.keys() <= table.keys():
            kept = [at for at, name in enumerate(self._names) if name in table]
            self._names = [self._names[at] for at in kept]
            self._pieces = [self._pieces[at] for at in kept]
            self._values = {name: self._values[name] for name in self._names}

    def _update(self, name: str, value: object | None) -> None:
        known = self._values.get(name)
        if value is known:
            return
        at = bisect_left(self._names, name)
        if value is None:
            del self._values[name], self._names[at], self._pieces[at]
            return
        self._values[name] = value
        piece = self._encode(name, value)
        if known is not None:
            self._pieces[at] = piece
        else:
            self._names.insert(at, name)
            self._pieces.insert(at, piece)
