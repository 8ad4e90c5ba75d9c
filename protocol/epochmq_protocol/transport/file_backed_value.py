"""Keeps a value that is made of files, and makes it again when they change. It checks the files when the
value is used, at most once per period."""

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
    """A value made of files. While the files are unusable (one is missing, or certificate and key do not
    match because they are being replaced), the previous value stays, and the log says so once."""

    def __init__(
        self,
        paths: Sequence[str],
        load: Callable[[], T],
        period_ms: int,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Loads the value. Raises ConfigError if that fails."""
        self._paths = [Path(path) for path in paths]
        self._load = load
        self._period_ns = period_ms * 1_000_000
        self._now_ns = now_ns
        self._loaded_identities = self._identities()
        self._checked_ns = now_ns()
        self.rejected = ""
        """Why the present files are not used; empty while they are."""
        self._value = load()

    @property
    def current(self) -> T:
        """The value as of the latest check."""
        now_ns = self._now_ns()
        if now_ns - self._checked_ns >= self._period_ns:
            self._checked_ns = now_ns
            self._refresh()
        return self._value

    def _refresh(self) -> None:
        identities = self._identities()
        if identities == self._loaded_identities:
            self.rejected = ""  # the former files may be back
            return
        try:
            self._value = self._load()
        except ConfigError as error:
            # Retry at the next check even if nothing changes: the read may have been between two writes.
            if str(error) != self.rejected:
                self.rejected = str(error)
                log.error("could not reload %s, the previous content stays in use: %s", self._names(), error)
            return
        self._loaded_identities, self.rejected = identities, ""
        log.info("reloaded %s", self._names())

    def _names(self) -> str:
        return ", ".join(map(str, self._paths))

    def _identities(self) -> tuple[object, ...]:
        return tuple(_identity(path) for path in self._paths)


def _identity(path: Path) -> object:
    """The attributes that change when a file is written or replaced. Follows links, as Kubernetes makes
    them."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
