"""Notifies the listeners of a table of its changes, also of many changes at once.

A listener may do work that grows with the table: it encodes and writes the whole table, for example. A
request that changes many entries joins its changes, so that this work is done once."""
# pure: calls functions

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ChangeListeners(list[Callable[[tuple[str, ...]], None]]):
    """The listeners of one table. Each is called with the names of the entries that changed."""

    def __init__(self) -> None:
        super().__init__()
        self._joined: dict[str, None] | None = None

    def notify(self, names: tuple[str, ...]) -> None:
        """Calls the listeners, now or at the end of `joined`."""
        if self._joined is not None:
            self._joined |= dict.fromkeys(names)
            return
        for listener in self:
            listener(names)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Joins the changes of a block: the listeners are called once, at its end, also if it raises."""
        if self._joined is not None:
            yield
            return
        self._joined = {}
        try:
            yield
        finally:
            names, self._joined = tuple(self._joined), None
            if names:
                self.notify(names)
