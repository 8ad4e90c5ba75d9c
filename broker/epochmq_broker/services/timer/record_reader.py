"""Reads records of the timer topic for the event loop: what is not in memory is read on another thread
first."""

from __future__ import annotations

import logging
from collections.abc import Generator

from epochmq_broker.services.timer.jobs import Pause, Wait, Work
from epochmq_broker.services.timer.records import DueMessage
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_store.files.page_residency import NotResidentError, PageResidency
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import StoreReadError

log = logging.getLogger(__name__)

TRIES_MAX = 6
"""How often missing pages are read. If the disk fails each time, the record counts as lost."""
PAUSE_AFTER_FAILURE_S = 0.5


class RecordReader:
    """Reads records of one store, for one job."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._unreadable: set[int] = set()

    @property
    def residency(self) -> PageResidency | None:
        """Knows which pages are in memory; None while the store is not started."""
        return self._store.reader.residency

    def warm(self, records: list[tuple[int, int]]) -> Work:
        """Waits until the records, (physical offset, size), are in memory. `read` must follow."""
        self._unreadable.clear()
        failed = yield from self._warm(records)
        if failed and len(records) == 1:
            self._unreadable.add(records[0][0])
        elif failed:
            for physical, size in records:
                if (yield from self._warm([(physical, size)])):
                    self._unreadable.add(physical)

    def _warm(self, records: list[tuple[int, int]]) -> Generator[Wait, None, bool]:
        """Returns whether the disk failed to read one of the records."""
        failed = False
        for _ in range(TRIES_MAX):
            missing = self._missing(records)
            if missing is None:
                return False
            try:
                yield missing
                failed = False
            except StoreReadError:
                failed = True
                yield Pause(PAUSE_AFTER_FAILURE_S)
        # Otherwise the kernel does not keep the pages: the event loop reads them.
        return failed

    def _missing(self, records: list[tuple[int, int]]) -> NotResidentError | None:
        residency = self.residency
        missing: NotResidentError | None = None
        if residency is None or not records:
            return None
        first, end = records[0][0], sum(records[-1])  # the offsets rise
        file = self._store.log.files.find(first)
        if (
            file is not None
            and first < end <= file.end
            and residency.knows(file, first - file.start, end - file.start)
        ):
            return None
        for physical, size in records:
            file = self._store.log.files.find(physical)
            if file is None or physical + size > file.end:
                continue
            try:
                residency.require(file, physical - file.start, size)
            except NotResidentError as error:
                if missing is None:
                    missing = error
                else:
                    missing.others.append(error)
        return missing

    def read(self, physical: int, size: int) -> DueMessage | None:
        """The timer message whose record is at this physical offset. None if there is none: it has expired,
        is damaged, or another record has replaced it."""
        data = None if physical in self._unreadable else self._store.read(physical, size)
        if data is None:
            state = "has expired" if physical < self._store.min_phy_offset else "cannot be read"
            log.error("a timer message is skipped: its record at log offset %d %s", physical, state)
            return None
        try:
            return DueMessage.decode(data)
        except (RemoteProtocolError, ValueError) as error:
            log.error(
                "a timer message is skipped: %d bytes at log offset %d (%s: %s). Run `epochmq audit` on the "
                "store directory; other replicas may have the message",
                size,
                physical,
                type(error).__name__,
                error,
            )
            return None

    @property
    def reads_all(self) -> bool:
        """Whether `warm` has read all records without an error."""
        return not self._unreadable

    def is_readable(self, physical: int) -> bool:
        """Whether `warm` has read the record at this offset without an error."""
        return physical not in self._unreadable
