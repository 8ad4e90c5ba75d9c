"""Delivers the messages of a slot when its time has come (TimerMessageStore.dequeue).

The units of a slot are linked from the last to the first, and are delivered from the first to the last. So
the links are followed once to find where pieces of the chain begin, and every piece is read again when its
messages are delivered: memory is bounded for any number of messages in a slot. Messages that delete others
are read first."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator
from itertools import takewhile

from epochmq_broker.services.timer.delivery import DeliveryResult, TimerDelivery
from epochmq_broker.services.timer.jobs import Pause, Wait, Work
from epochmq_broker.services.timer.plain_delivery import PlainTimerDelivery
from epochmq_broker.services.timer.record_reader import RecordReader
from epochmq_broker.services.timer.records import DueMessage
from epochmq_broker.services.timer.timer_log import Unit
from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_broker.services.timer.timer_store import TimerStore
from epochmq_formats.timer_log import NO_UNIT
from epochmq_store.files.page_residency import NotResidentError

log = logging.getLogger(__name__)

PIECE_UNITS = 512
BATCH_UNITS = 64
"""Messages that are delivered without an interruption."""


class TimerDequeuer:
    """Delivers the slots of one wheel."""

    def __init__(
        self,
        *,
        timers: TimerStore,
        reader: RecordReader,
        metrics: TimerMetrics,
        delivery: TimerDelivery,
        plain: PlainTimerDelivery,
    ) -> None:
        self._timers = timers
        self._reader = reader
        self._metrics = metrics
        self._delivery = delivery
        self._plain = plain

    def work(self, time_ms: int) -> Work:
        """Delivers the messages of the slot of this time."""
        slot = self._timers.wheel.slot(time_ms)
        if slot is None:
            return
        starts, deletions = yield from self._survey(time_ms, slot.last)
        uncounted: Counter[str] = Counter()
        deletes = yield from self._deletions(deletions, uncounted)
        for start, count in reversed(starts):
            units = yield from self._piece(start, count)
            for first in range(0, len(units), BATCH_UNITS):
                yield from self._deliver(units[first : first + BATCH_UNITS], deletes, uncounted)
                yield None
        # Each deletion counted -1. More than one may be for the same message, or for none.
        for topic, count in uncounted.items():
            if count:
                self._metrics.add(topic, count)

    def _survey(
        self, time_ms: int, last: int
    ) -> Generator[Wait, None, tuple[list[tuple[int, int]], list[Unit]]]:
        """Follows the links from the last unit. Returns where pieces of the chain start and how many units
        they have, and the units of messages that delete others."""
        starts: list[tuple[int, int]] = []
        deletions: list[Unit] = []
        position = last
        while position != NO_UNIT:
            units = yield from self._units(position, PIECE_UNITS)
            if not units and position < self._timers.log.first:
                break  # the unit has expired
            valid = list(takewhile(lambda unit: self._belongs(unit, time_ms), units))
            if valid:
                starts.append((position, len(valid)))
                deletions += [unit for unit in valid if unit.deletes]
            if not valid or len(valid) < len(units):
                lost = units[len(valid)].position if units else position
                log.error("the timer log has no unit of the time %d at %d", time_ms, lost)
                break
            position = valid[-1].previous
            yield None
        return starts, deletions

    def _belongs(self, unit: Unit, time_ms: int) -> bool:
        """Whether the slot of this time may contain the unit."""
        return self._timers.floor(unit.time_ms) == time_ms and unit.previous < unit.position

    def _piece(self, start: int, count: int) -> Generator[Wait, None, list[Unit]]:
        """The units of a piece that are to be delivered, the first one first."""
        units: list[Unit] = []
        while len(units) < count:
            position = units[-1].previous if units else start
            more = yield from self._units(position, count - len(units))
            assert more
            units += more
        return [unit for unit in reversed(units) if not unit.deletes]

    def _units(self, position: int, count: int) -> Generator[Wait, None, list[Unit]]:
        """See `TimerLog.chain`."""
        while True:
            try:
                return self._timers.log.chain(position, count, self._reader.residency)
            except NotResidentError as missing:
                yield missing

    def _deletions(self, units: list[Unit], uncounted: Counter[str]) -> Generator[Wait, None, frozenset[str]]:
        """The keys of the messages to delete. Adds the deletions to `uncounted`, by topic."""
        keys: set[str] = set()
        for first in range(0, len(units), BATCH_UNITS):
            batch = units[first : first + BATCH_UNITS]
            yield from self._reader.warm([(unit.offset, unit.size) for unit in batch])
            for unit in batch:
                due = self._read(unit)
                if due is not None and due.deletes is not None:
                    keys.add(due.deletes)
                    uncounted[due.real_topic] += 1
            yield None
        return frozenset(keys)

    def _deliver(self, units: list[Unit], deletes: frozenset[str], uncounted: Counter[str]) -> Work:
        yield from self._reader.warm([(unit.offset, unit.size) for unit in units])
        at = 0
        while at < len(units):
            if not deletes and self._reader.reads_all:
                at += self._plain.put(units[at:])
            if at < len(units):
                yield from self._deliver_one(units[at], deletes, uncounted)
                at += 1

    def _deliver_one(self, unit: Unit, deletes: frozenset[str], uncounted: Counter[str]) -> Work:
        due = self._read(unit)
        if due is None:
            return
        key = due.key if deletes else None
        if key is not None and key in deletes:
            uncounted[due.real_topic] -= 1
            return
        while self._delivery.put(due, unit.write_time_ms, rolls=unit.rolls) is DeliveryResult.RETRY:
            yield Pause(self._delivery.retry_s)

    def _read(self, unit: Unit) -> DueMessage | None:
        """The message of a unit; None if the record at its offset is not the one that it was made for."""
        due = self._reader.read(unit.offset, unit.size)
        if due is None:
            return None
        expected = due.out_ms > unit.time_ms if unit.rolls else due.out_ms == unit.time_ms
        if not expected:
            log.error(
                "a unit of the timer log is skipped: its time is %d, but the record at log offset %d is due "
                "at %d",
                unit.time_ms,
                unit.offset,
                due.out_ms,
            )
            return None
        return due
