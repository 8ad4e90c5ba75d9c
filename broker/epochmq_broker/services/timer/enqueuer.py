"""Takes messages from the timer topic's queue into the wheel (TimerMessageStore.enqueue and doEnqueue).

The slot of a message follows from its record alone: from the time at which it is due, and, if that is beyond
the wheel's window, from the time at which it was stored. So the wheels of all replicas are equal. RocketMQ's
slave counts the window from when it adds the message. A message that its master has stored again since then
is delivered twice after a failover."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import lru_cache

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.services.safe_progress import SafeProgress
from epochmq_broker.services.timer.delivery import DeliveryResult, TimerDelivery
from epochmq_broker.services.timer.jobs import Pause, Wait, Work
from epochmq_broker.services.timer.plain_entries import PlainEntries
from epochmq_broker.services.timer.record_reader import RecordReader
from epochmq_broker.services.timer.records import NEVER_ENQUEUED, TimerRecord, read_timer_record, wheel_time
from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_broker.services.timer.timer_store import BLANK_SLOTS, TimerStore, timer_queue
from epochmq_broker.writing.quarantine import Origin, Quarantine, QuarantiningService, concerns_record
from epochmq_formats.timer_wheel import WINDOW_SLOTS
from epochmq_protocol.javahash import java_hash
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_store.files.mapped_file import DiskFullError
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

UNITS = 128
"""Messages that are taken without an interruption."""
PAUSE_AFTER_FAILURE_S = 1.0

_topic_hash = lru_cache(maxsize=4096)(java_hash)


class TimerEnqueuer:
    """Takes messages into the wheel of one broker. `progress` is the offset in the queue up to which messages
    are in the wheel, or delivered."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        store: MessageStore,
        timers: TimerStore,
        metrics: TimerMetrics,
        delivery: TimerDelivery,
        reader: RecordReader,
        quarantine: Quarantine,
        clock_ms: Callable[[], int],
    ) -> None:
        self.progress = SafeProgress(0)
        self.is_master = False
        self.stored_at_ms = 0
        """When the message that was taken last had been stored."""
        self.taken_at_ms = 0
        """When it was taken."""
        self.taken = 0
        self._live = live
        self._store = store
        self._timers = timers
        self._metrics = metrics
        self._delivery = delivery
        self._clock_ms = clock_ms
        self._reader = reader
        self._quarantine = quarantine
        self._plain = PlainEntries(store, timers, metrics)
        self._inherited = (0, 0)

    def become_master(self) -> None:
        """Continues as a master. The former master has delivered what the checkpoint says, of the messages
        that this broker has now: others may follow at the same offsets of the queue."""
        checkpoint = self._timers.checkpoint
        queue = timer_queue(self._store)
        end = 0 if queue is None else queue.max_offset
        self.is_master = True
        self._inherited = min(checkpoint.master_queue_offset, end), checkpoint.read_time_ms

    def become_replica(self) -> None:
        """Continues as a replica: only up to where the master's wheel is filled."""
        self.is_master = False

    @property
    def limit(self) -> int:
        """The offset in the queue up to which messages may be taken now."""
        queue = timer_queue(self._store)
        end = 0 if queue is None else queue.max_offset
        return end if self.is_master else min(end, self._timers.checkpoint.master_queue_offset)

    def work(self) -> Work:
        """Takes all present messages."""
        timers = self._timers
        while timers.queue_offset < self.limit:
            queue = timer_queue(self._store)
            assert queue is not None
            offset = max(timers.queue_offset, queue.min_offset)
            count = min(UNITS, self.limit - offset)
            if self._reader.residency is not None:
                try:
                    queue.require_resident(self._reader.residency, offset, count)
                except NotResidentError as missing:
                    yield missing
                    continue
            units = list(queue.units(offset, count))
            if not units:
                log.error("the queue of the timer topic has no unit at offset %d", offset)
                yield Pause(PAUSE_AFTER_FAILURE_S)
                continue
            yield from self._reader.warm([(physical, size) for physical, size, _ in units])
            at = 0
            while at < len(units):
                at += self._take_plain(offset + at, units[at:] if at else units)
                if at < len(units):
                    physical, size, _ = units[at]
                    yield from self._take(offset + at, physical, size)
                    at += 1
                    timers.queue_offset = offset + at
            yield None

    def _take_plain(self, offset: int, units: list[tuple[int, int, int]]) -> int:
        """Takes the first of these messages that are plain, and returns how many."""
        timers = self._timers
        if not self._reader.reads_all:
            return 0
        present_ms = self._clock_ms()
        timers.move_write_time(present_ms)
        not_before_ms = timers.write_time_ms if self.is_master else timers.read_time_ms
        taken = self._plain.take(units, not_before_ms, self._window_ms, counts=self.is_master)
        if taken:
            self.taken += taken
            self.stored_at_ms, self.taken_at_ms = self._plain.stored_at_ms, present_ms
            timers.queue_offset = offset + taken
            self.progress.advance(offset + taken, 0)
        return taken

    def _take(self, offset: int, physical: int, size: int) -> Work:
        found = self._store.log.files.find(physical)
        record = None
        reason: object = f"the {size} bytes at log offset {physical} are no timer message"
        if found is not None and physical + size <= found.end and self._reader.is_readable(physical):
            try:
                record = read_timer_record(found.map, physical - found.start, size, physical)
            except Exception as error:
                if not concerns_record(error):
                    raise
                reason = error
        if record is None:
            log_end = self._set_aside(offset, physical, size, reason)
        else:
            self.taken += 1
            self.stored_at_ms, self.taken_at_ms = record.store_timestamp, self._clock_ms()
            self._metrics.count_enqueued(record.real_topic, record.out_ms - record.born_timestamp)
            log_end = yield from self._enter(record, offset, physical, size)
        self.progress.advance(offset + 1, log_end)

    def _set_aside(self, offset: int, physical: int, size: int, reason: object) -> int:
        """Sets a record aside that is no timer message, on a master. Returns the end of the copy."""
        if not self.is_master:
            return 0
        data = self._store.read(physical, size) if self._reader.is_readable(physical) else None
        origin = Origin(TIMER_TOPIC, 0, offset)
        return self._quarantine.set_aside(QuarantiningService.TIMER, origin, data, reason)

    def _enter(
        self, record: TimerRecord, offset: int, physical: int, size: int
    ) -> Generator[Wait, None, int]:
        """Adds a message to the wheel, or delivers it at once if its slot may have been delivered already.
        Returns the end of the log after the delivery, 0 without one."""
        timers = self._timers
        timers.move_write_time(self._clock_ms())
        window_ms = self._window_ms
        time_ms, rolls = wheel_time(record.out_ms, timers.floor(record.store_timestamp), window_ms)
        if time_ms < (timers.write_time_ms if self.is_master else timers.read_time_ms):
            known_offset, known_time_ms = self._inherited
            if not self.is_master or (offset < known_offset and time_ms < known_time_ms):
                return 0  # the master has delivered it, or has stored it again
            time_ms, rolls = wheel_time(record.out_ms, timers.write_time_ms, window_ms)
            if time_ms < timers.write_time_ms:
                return (yield from self._deliver(physical, size))
        enter_ms = timers.write_time_ms
        while True:
            try:
                timers.add(
                    time_ms,
                    enter_ms,
                    physical,
                    size,
                    _topic_hash(record.real_topic),
                    rolls=rolls,
                    deletes=record.deletes,
                )
                break
            except (DiskFullError, OSError) as error:
                log.error("the timer log cannot be written: %s", error)
                yield Pause(PAUSE_AFTER_FAILURE_S)
        if self.is_master:
            self._metrics.add(record.real_topic, -1 if record.deletes else 1)
        return 0

    def _deliver(self, physical: int, size: int) -> Generator[Wait, None, int]:
        """Delivers a message that was due before it reached the wheel."""
        due = self._reader.read(physical, size)
        if due is None:
            return 0
        while self._delivery.put(due, NEVER_ENQUEUED, rolls=False) is DeliveryResult.RETRY:
            yield Pause(self._delivery.retry_s)
        return self._delivery.log_end

    @property
    def _window_ms(self) -> int:
        """How far ahead the wheel reaches (timerRollWindowSlot)."""
        slots = self._live.current.timer_roll_window_slot
        if not 2 <= slots <= WINDOW_SLOTS - BLANK_SLOTS:
            slots = WINDOW_SLOTS - BLANK_SLOTS
        return slots * self._timers.wheel.precision_ms
