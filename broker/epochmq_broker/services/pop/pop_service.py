"""Holds what the POP processors share, and runs what POP needs in the background.

`PopService` runs on the master only. It stores buffered checkpoints that are due, commits the offsets of what
has become safe, and wakes POPs when the lock of an orderly queue ends. It starts and stops the revive queues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.compaction.compacted_reads import CompactedReads
from epochmq_broker.services.pop.checkpoints import AckMsg
from epochmq_broker.services.pop.in_flight import InFlightCounter
from epochmq_broker.services.pop.order_info import ConsumerOrderInfoTable
from epochmq_broker.services.pop.pop_buffer import BufferSettings, PopBuffer, PopEntry, QueueKey
from epochmq_broker.services.pop.revive_log import ReviveLog
from epochmq_broker.services.pop.revive_service import PopReviveService
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.tables.metric_tables import Histogram
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_broker.writing.escape.remote_messages import RemoteMessageReader
from epochmq_store.state_files.state_file_io import read_state_file
from epochmq_store.statuses import PutStatus

log = logging.getLogger(__name__)

TICK_S: Final = 0.02
"""How often offsets are committed and buffered checkpoints stored, while there are any."""
STORED_PER_TICK_MAX: Final = 200
RETRY_MS: Final = 100
"""A checkpoint that could not be stored is tried again after this time."""
ORDER_FILE: Final = "consumerOrderInfo.json"
SCAN_BOUNDS_MS: Final = (1, 10, 100, 1000, 2000, 3000)
"""Upper bounds of the durations of scans of the buffer (PopMetricsManager.getMetricsView)."""


class PopService:
    """POP on one broker."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        sink: MessageSink,
        sink_of_queue: Callable[[int], MessageSink],
        remote: RemoteMessageReader,
        compacted: CompactedReads,
        timer_is_behind: Callable[[], bool],
    ) -> None:
        """Checkpoints and acknowledgements go to `sink`. `sink_of_queue`: revive queue → where its messages
        go that are handed out again. `timer_is_behind`: see `PopReviveService`."""
        live = context.live
        self.orders = ConsumerOrderInfoTable(now_ms, self._lock_changed)
        self.buffer = PopBuffer(self._commit)
        self.in_flight = InFlightCounter(now_ms())
        self.sink = sink
        self.compacted = compacted
        self.revive_log = ReviveLog(context, sink=sink)
        self.revives = PopReviveService(
            context,
            sink_of_queue=sink_of_queue,
            revive_log=self.revive_log,
            in_flight=self.in_flight,
            remote=remote,
            compacted=compacted,
            timer_is_behind=timer_is_behind,
        )
        self.scans_ms = Histogram(SCAN_BOUNDS_MS)
        """How long each scan of the buffer took."""
        self.on_free: list[Callable[[str, str, int], None]] = []
        """Called with (topic, group, queue id) of an orderly queue that the group may pop again."""
        self.on_stop: list[Callable[[], None]] = []
        """Called when this broker is the master no longer."""
        self._write_file = context.write_file
        self._live = live
        self._store = context.store
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._offsets = context.tables.offsets
        self._path = live.current.config_dir / ORDER_FILE
        self._written_changes = 0
        self._ticks: asyncio.TimerHandle | None = None
        self._locks: dict[QueueKey, asyncio.TimerHandle] = {}
        self._runs = False

    # the master's work

    def start(self) -> None:
        """Starts the work of the master; needs a running loop."""
        self._runs = True
        self.buffer.clear()
        self.revives.start()
        for topic, group, queue_id, free_at in self.orders.locks():
            self._lock_changed(topic, group, queue_id, free_at)

    def stop(self) -> None:
        """Stops the work of the master. Stores what is buffered, if this broker may still store messages;
        otherwise the group's offset does not advance, and another master hands these messages out again."""
        self.revives.stop()
        self.store_buffered()
        self.buffer.clear()
        self._runs = False
        for timer in (self._ticks, *self._locks.values()):
            if timer is not None:
                timer.cancel()
        self._ticks = None
        self._locks.clear()
        for listener in self.on_stop:
            listener()

    def store_buffered(self) -> None:
        """Stores the checkpoints that are in memory only, if this broker may store messages."""
        self.buffer.make_all_due(now_ms())
        self._store_due(self.buffer.checkpoints)
        self.commit_safe()

    def commit_safe(self) -> None:
        """Commits the groups' offsets up to the checkpoints that are safe by now."""
        self.buffer.advance(self.sink.safe_end())

    def _tick(self) -> None:
        self._ticks = None
        began = time.monotonic()
        self._store_due(STORED_PER_TICK_MAX)
        self.commit_safe()
        self.scans_ms.record(int((time.monotonic() - began) * 1000))
        self.wake()

    def wake(self) -> None:
        """Continues the background work if something is pending."""
        if self._ticks is None and self._runs and not self.buffer.is_empty:
            self._ticks = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    # checkpoints in memory

    @property
    def settings(self) -> BufferSettings:
        """The settings of the buffer that are in force."""
        config = self._live.current
        return BufferSettings(
            config.pop_ck_stay_buffer_time,
            config.pop_ck_stay_buffer_time_out,
            config.pop_ck_max_buffer_size,
            config.pop_ck_offset_max_queue_size,
        )

    def acknowledge_buffered(self, ack: AckMsg) -> bool:
        """Takes an acknowledgement whose checkpoint is in memory. Returns False if it has to be stored."""
        if not self._live.current.enable_pop_buffer_merge or not self._runs:
            return False
        return self.buffer.acknowledge(ack, self.settings, now_ms(), self.sink.safe_end())

    def _store_due(self, count_max: int) -> None:
        for entry in self.buffer.take_due(now_ms(), count_max):
            try:
                end = self._store_entry(entry)
            except Exception:  # the other checkpoints must be stored, and this one later
                log.exception("a buffered checkpoint could not be stored")
                end = None
            if end is None:
                self.buffer.postpone(entry, now_ms() + RETRY_MS)
            else:
                self.buffer.stored(entry, end, self.sink.safe_end())

    def _store_entry(self, entry: PopEntry) -> int | None:
        """Stores a checkpoint and the acknowledgements that are in memory. Returns the end of the log behind
        them; None if something could not be stored."""
        checkpoint = entry.checkpoint
        assert checkpoint is not None
        if entry.stored_end < 0:
            stored = self.revive_log.put_checkpoint(checkpoint, entry.revive_queue_id)
            if stored.status is not PutStatus.PUT_OK:
                return None
            entry.stored_end = stored.end
        indexes = entry.acks_to_store
        groups = (
            [indexes] if self._live.current.enable_pop_batch_ack and indexes else [[at] for at in indexes]
        )
        for group in groups:
            offsets = [checkpoint.offset_of(index) for index in group]
            ack = AckMsg(
                ack_offset=offsets[0],
                start_offset=checkpoint.start_offset,
                group=checkpoint.group or "",
                topic=checkpoint.topic or "",
                queue_id=checkpoint.queue_id,
                pop_time=checkpoint.pop_time,
                broker_name=checkpoint.broker_name,
            )
            if self._live.current.enable_pop_batch_ack:
                ack.ack_offset, ack.broker_name, ack.ack_offsets = 0, None, offsets
            unique_key = ack.batch_unique_key if ack.is_batch else ack.unique_key
            stored = self.revive_log.put_ack(ack, entry.revive_queue_id, checkpoint.revive_time, unique_key)
            if stored.status is not PutStatus.PUT_OK:
                return None
            for index in group:
                entry.stored_acks |= 1 << index
            entry.stored_end = stored.end
        return entry.stored_end

    def _commit(self, key: QueueKey, offset: int) -> None:
        topic, group, queue_id = key
        self._offsets.commit(group, topic, queue_id, offset)

    # orderly queues

    def _lock_changed(self, topic: str, group: str, queue_id: int, free_at: int) -> None:
        """Wakes a POP when the lock of a queue ends (ConsumerOrderInfoLockManager)."""
        if not self._runs or not self._live.current.enable_notify_after_pop_order_lock_release:
            return
        key = (topic, group, queue_id)
        before = self._locks.get(key)
        if before is not None:
            before.cancel()
        delay_s = max(0, free_at - now_ms()) / 1000
        self._locks[key] = asyncio.get_running_loop().call_later(delay_s, self._lock_ended, key)

    def _lock_ended(self, key: QueueKey) -> None:
        self._locks.pop(key, None)
        topic, group, queue_id = key
        queue = self._store.lookup.existing_queue(topic, queue_id)
        if queue is None:
            return
        committed = self._offsets.query(group, topic, queue_id)
        offset = max(-1 if committed is None else committed, self.buffer.latest_offset(key))
        if self._store.max_offset(queue) > offset:
            self.notify_free(topic, group, queue_id)

    def notify_free(self, topic: str, group: str, queue_id: int) -> None:
        """Wakes requests that wait for an orderly queue."""
        for wake in self.on_free:
            wake(topic, group, queue_id)

    # the file

    def load(self) -> None:
        """Reads consumerOrderInfo.json, or its backup. Raises if both are damaged."""
        data = read_state_file(self._path, lambda found: found)
        if data is not None:
            self.orders.restore(data)
        self._written_changes = self.orders.changes

    def persist(self) -> None:
        """Writes consumerOrderInfo.json if anything has changed. Raises OSError."""
        if self.orders.changes == self._written_changes:
            return
        self._written_changes = self.orders.changes

        def read_queues(topic: str) -> int | None:
            config = self._topics.get(topic)
            return None if config is None else config.read_queue_nums

        self.orders.clean(read_queues, lambda group: self._groups.get(group) is not None)
        self._write_file(self._path, self.orders.encode())

    def topics_changed(self, gone: set[str]) -> None:
        """Forgets deleted topics."""
        if gone:
            self.in_flight.forget(gone)
            self.buffer.forget_unknown(lambda topic, _group: topic not in gone)
