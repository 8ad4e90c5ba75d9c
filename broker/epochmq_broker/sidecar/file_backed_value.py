"""A value made of files, made anew when they change: looked at when it is used, at most once a period."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from epochmq_protocol.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")


class FileBackedValue(Generic[T]):
    """While the files cannot be used (one of them is gone, or a certificate and a key do not fit, in the
    middle of being replaced) the last value stays; the log says so once."""

    def __init__(
        self,
        paths: Sequence[str],
        load: Callable[[], T],
        period_ms: int,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Loads at once. ConfigError when that cannot be."""
        self._paths = [Path(path) for path in paths]
        self._load = load
        self._period_ns = period_ms * 1_000_000
        self._now_ns = now_ns
        self._seen = self._look()
        self._looked_ns = now_ns()
        self._complaint = ""
        self._value = load()

    @property
    def current(self) -> T:
        """The value as of the last look."""
        now_ns = self._now_ns()
        if now_ns - self._looked_ns >= self._period_ns:
            self._looked_ns = now_ns
            self._refresh()
        return self._value

    def _refresh(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        try:
            self._value = self._load()
        except ConfigError as error:
            # Tried again at the next look, changed or not: they may have been read between two writes.
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("the former one stays in use: %s", error)
            return
        self._seen, self._complaint = seen, ""
        log.info("read anew: %s", ", ".join(map(str, self._paths)))

    def _look(self) -> tuple[object, ...]:
        return tuple(_identity(path) for path in self._paths)


def _identity(path: Path) -> object:
    """What changes when a file is written or replaced; links, as Kubernetes makes them, are followed."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
