"""The timer of one broker: fills the wheel on every role, delivers on the master, writes the files, and
follows the master's checkpoint on a slave (RocketMQ's TimerMessageStore and its services).

A message is delivered in the slot's interval after its time, so up to a second late, and never early. The
checkpoint says up to which time messages are delivered, and up to which offset of the timer topic's queue
they are in the wheel or delivered. Both move only when the delivered copies are as safe as acknowledged
messages, because replicas copy them: a new master begins there. (RocketMQ moves them at once.)"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.periodic_tasks import PeriodicTasks
from epochmq_broker.services.safe_progress import SafeProgress
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.services.timer.delivery import TimerDelivery
from epochmq_broker.services.timer.dequeuer import TimerDequeuer
from epochmq_broker.services.timer.enqueuer import TimerEnqueuer
from epochmq_broker.services.timer.jobs import TimerJob, Work
from epochmq_broker.services.timer.plain_delivery import PlainTimerDelivery
from epochmq_broker.services.timer.record_reader import RecordReader
from epochmq_broker.services.timer.recount import recount
from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_broker.services.timer.timer_store import TimerFlush, TimerStore, timer_queue
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_formats.timer_checkpoint import TimerCheckpoint
from epochmq_protocol.topics import LMQ_PREFIX, SYSTEM_TOPIC_PREFIX
from epochmq_store.files.mapped_file import as_disk_full
from epochmq_store.files.worker_thread import WorkerBusyError, WorkerThread
from epochmq_store.state_files.tail_state import CLEAN_TAIL

log = logging.getLogger(__name__)

ROUND_S: Final = 0.1
"""Seconds between two rounds, with a precision of one second. A round also begins with every slot, so that
its messages do not wait for the round."""
ROUND_BUDGET_S: Final = 0.004
"""How long one round may block the event loop."""
EXPIRY_INTERVAL_MS: Final = 30_000
METRICS_INTERVAL_MS: Final = 10_000
RATES_INTERVAL_MS: Final = 3000
BEHIND_MS: Final = 1000
EMPTY_SLOTS: Final = 2000
"""Empty slots that are passed without an interruption."""


class TimerService:
    """The timer of one broker. `load`, then `run`; `start` and `stop` when it becomes the master and ceases
    to be; `close` at the end."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        timers: TimerStore,
        sink: MessageSink,
        state_version: Callable[[], int],
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """Due messages go to `sink`. `state_version` returns the master epoch, 0 without controllers."""
        live, store, reads, stats = context.live, context.store, context.cold_reads, context.tables.stats
        config = live.current
        precision_ms = config.timer_precision
        self.timers = timers
        self.metrics = TimerMetrics(config.config_dir)
        self._write_file = context.write_file
        self.delivery = TimerDelivery(
            sink=sink,
            stats=stats,
            metrics=self.metrics,
            quarantine=context.quarantine,
            precision_ms=precision_ms,
        )
        self.enqueuer = TimerEnqueuer(
            live=live,
            store=store,
            timers=timers,
            metrics=self.metrics,
            delivery=self.delivery,
            reader=RecordReader(store),
            quarantine=context.quarantine,
            clock_ms=clock_ms,
        )
        self.read_progress = SafeProgress(0)
        self._dequeuer = TimerDequeuer(
            timers=timers,
            reader=RecordReader(store),
            metrics=self.metrics,
            delivery=self.delivery,
            plain=PlainTimerDelivery(
                store=store, sink=sink, stats=stats, metrics=self.metrics, delivery=self.delivery
            ),
        )
        self._live = live
        self._store = store
        self._sink = sink
        self._topics = context.tables.topics
        self._state_version = state_version
        self._clock_ms = clock_ms
        self._round_s = ROUND_S * precision_ms / 1000
        self._enqueue_job = TimerJob(
            name="the timer's enqueue", begin=self.enqueuer.work, reads=reads, wake=self._wake
        )
        self._dequeue_job = TimerJob(
            name="the timer's dequeue", begin=self._dequeue, reads=reads, wake=self._wake
        )
        self._recount_job = TimerJob(
            name="the timer's recount", begin=self._recount, reads=reads, wake=self._wake
        )
        self._recounts = False  # the metrics may have drifted, and are being corrected
        self._next_round: asyncio.TimerHandle | None = None
        self._periodic_tasks = PeriodicTasks()
        every = self._periodic_tasks.every
        every(lambda: live.current.timer_flush_interval_ms, "flush the timer's files", self._flush)
        every(lambda: EXPIRY_INTERVAL_MS, "expire the timer log", self._expire)
        every(lambda: RATES_INTERVAL_MS, "measure the timer's rates", self._measure_rates)
        every(lambda: METRICS_INTERVAL_MS, "write the timer's metrics", self._write_metrics)
        self._worker: WorkerThread | None = None
        self._flush_running = False
        self._written = b""
        self._loaded = False
        self._was_replica = live.current.broker_role == "SLAVE" or live.current.enable_controller_mode
        self.enqueue_tps = 0.0
        """Messages a second that entered the wheel, or were delivered at once, in the last seconds."""
        self.dequeue_tps = 0.0
        """Messages a second that were delivered in the last seconds."""
        self._counted = (0, 0)

    # Start and stop

    def load(self) -> None:
        """Opens and repairs the files; the store is recovered. Raises StoreDamagedError,
        StateFileDamagedError or OSError."""
        self.timers.load(self._store, self._clock_ms())
        self.metrics.load()
        self._loaded = True
        self._reset_progress()
        self._store.on_truncate.append(self._truncated)

    def run(self) -> None:
        """Starts to fill the wheel and to write the files, on the running event loop."""
        self._worker = WorkerThread("timer-flush")
        self._next_round = asyncio.get_running_loop().call_later(self._round_s, self._round)
        self._periodic_tasks.start()

    def start(self) -> None:
        """Starts to deliver: this broker became the master."""
        self._wait_idle()
        self._reset_jobs()
        timers = self.timers
        checkpoint = timers.checkpoint
        if timers.queue_offset > checkpoint.master_queue_offset:
            timers.remove_from_queue_offset(self._store, checkpoint.master_queue_offset)
        timers.set_read_time(checkpoint.read_time_ms, self._clock_ms())
        self.enqueuer.become_master()
        self._reset_progress()
        # A kill, here or of the former master, loses the latest changes of the metrics.
        self._recounts = self._was_replica or self._store.tail is not CLEAN_TAIL
        log.info(
            "timer messages are delivered from time %d on; %d are pending",
            timers.read_time_ms,
            timers.pending,
        )

    def stop(self) -> None:
        """Stops to deliver: another broker became the master, or this one stops."""
        self._settle()
        self._update_checkpoint()
        self._reset_jobs()
        self._recounts = False
        self._was_replica = True
        self.enqueuer.become_replica()
        self.timers.set_read_time(self.timers.checkpoint.read_time_ms, self._clock_ms())

    def close(self) -> None:
        """Writes and closes the files."""
        self._periodic_tasks.stop()
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None
        self._reset_jobs()
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
        if not self._loaded:
            return
        self._loaded = False
        self._store.on_truncate.remove(self._truncated)
        self._settle()
        self._update_checkpoint()
        flush = self.timers.prepare_flush()
        try:
            self.timers.write(flush)
        except OSError as error:
            log.error("the timer's files could not be written: %s", error)
        self._write_metrics()
        self.timers.close()

    @property
    def is_master(self) -> bool:
        """Whether this broker delivers timer messages."""
        return self.enqueuer.is_master

    # Rounds

    def _wake(self) -> None:
        """Begins the next round now."""
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = asyncio.get_running_loop().call_later(0, self._round)

    def _round(self) -> None:
        loop = asyncio.get_running_loop()
        config = self._live.current
        deadline = loop.time() + ROUND_BUDGET_S
        more = False
        try:
            self._settle()
            if self._recounts:
                more = self._recount_job.take_turn(deadline)
            if not config.timer_stop_enqueue:
                more |= self._enqueue_job.take_turn(deadline)
            if self.is_master and not config.timer_stop_dequeue:
                more |= self._dequeue_job.take_turn(max(deadline, loop.time() + ROUND_BUDGET_S / 2))
        finally:
            self._next_round = loop.call_later(0 if more else self._pause_s(), self._round)

    def _pause_s(self) -> float:
        """The time until the next round."""
        return min(self._round_s, slot_left_ms(self._clock_ms(), self.timers.wheel.precision_ms) / 1000)

    def _recount(self) -> Work:
        """Corrects the metrics once."""
        topics = list(self._topics)
        yield from recount(self.timers, self.metrics, topics, self._store.reader.residency)
        self._recounts = False

    def _dequeue(self) -> Work:
        """Delivers the slots whose time has come."""
        timers, progress, delivery = self.timers, self.read_progress, self.delivery
        timers.move_write_time(self._clock_ms())
        while timers.read_time_ms < timers.write_time_ms:
            time_ms = timers.read_time_ms
            used_ms = timers.wheel.next_used(time_ms, timers.write_time_ms, EMPTY_SLOTS)
            before = delivery.log_end
            if used_ms > time_ms:
                timers.read_time_ms = used_ms
            else:
                yield from self._dequeuer.work(time_ms)
                timers.pass_slot(time_ms)
            progress.advance(timers.read_time_ms, delivery.log_end if delivery.log_end != before else 0)
            yield None

    def _settle(self) -> None:
        """Moves the progress past deliveries that have become safe."""
        safe_end = self._sink.safe_end()
        for progress in (self.read_progress, self.enqueuer.progress):
            progress.settle(safe_end)
            if progress.is_full:
                progress.settle(self._sink.safe_end(acknowledged=True))

    # Role and checkpoint

    def checkpoint_body(self) -> bytes:
        """The checkpoint as slaves get it."""
        self._update_checkpoint()
        return self.timers.checkpoint.encode()

    def follow(self, master: TimerCheckpoint) -> None:
        """Makes the checkpoint a copy of the master's, on a slave; or of the acting master's, on a returning
        master. The metrics may have drifted since."""
        if self.is_master:
            return
        self._was_replica = True
        checkpoint = self.timers.checkpoint
        checkpoint.read_time_ms = master.read_time_ms
        checkpoint.master_queue_offset = master.master_queue_offset
        checkpoint.data_version = master.data_version
        self.timers.follow_read_time(master.read_time_ms, self._clock_ms())
        self.read_progress.reset(self.timers.read_time_ms)

    def _update_checkpoint(self) -> None:
        checkpoint = self.timers.checkpoint
        offset = self.enqueuer.progress.safe
        if self.is_master:
            changed = (self.read_progress.safe, offset)
            if (checkpoint.read_time_ms, checkpoint.master_queue_offset) != changed:
                checkpoint.read_time_ms, checkpoint.master_queue_offset = changed
                checkpoint.data_version = checkpoint.data_version.next(
                    self._clock_ms(), self._state_version()
                )
        checkpoint.queue_offset = min(offset, checkpoint.master_queue_offset)

    def _truncated(self, physical: int) -> None:
        """Takes back the messages whose records were truncated."""
        self._wait_idle()
        self._reset_jobs()
        timers = self.timers
        queue = timer_queue(self._store)
        timers.queue_offset = min(timers.queue_offset, 0 if queue is None else queue.max_offset)
        removed = timers.remove_from(physical)
        self.enqueuer.progress.reset(min(self.enqueuer.progress.safe, timers.queue_offset))
        if removed:
            log.warning("%d timer messages were truncated with the log, and left the wheel", removed)

    def _reset_jobs(self) -> None:
        self._recount_job.reset()
        self._enqueue_job.reset()
        self._dequeue_job.reset()

    def _reset_progress(self) -> None:
        self.read_progress.reset(self.timers.read_time_ms)
        self.enqueuer.progress.reset(self.timers.queue_offset)

    # Files

    def _flush(self) -> None:
        """Writes what has changed, on the worker thread."""
        if self._flush_running or self._worker is None:
            return
        self._update_checkpoint()
        flush = self.timers.prepare_flush()
        if not flush.files and not flush.pages and flush.checkpoint == self._written:
            return
        loop = asyncio.get_running_loop()

        def write() -> None:
            error: OSError | None = None
            try:
                self.timers.write(flush)
            except OSError as raised:
                error = raised
            loop.call_soon_threadsafe(self._flushed, flush, error)

        try:
            self._worker.submit(write)
            self._flush_running = True
        except WorkerBusyError:
            self.timers.not_flushed(flush)

    def _flushed(self, flush: TimerFlush, error: OSError | None) -> None:
        self._flush_running = False
        if error is None:
            self._written = flush.checkpoint
            self.timers.flushed(flush)
            return
        self.timers.not_flushed(flush)
        log.error("the timer's files could not be written: %s", error)
        if as_disk_full(error) is error:
            self._store.state.report_sync_error(error)

    def _expire(self) -> None:
        """Deletes files of the timer log whose records have expired, and forgets deleted topics."""
        for file in self.timers.log.take_expired(self._store.min_phy_offset):
            log.info("the file %s of the timer log has expired", file.path)
            if self._worker is not None:
                self._worker.submit(file.delete)
        for topic in [name for name in self.metrics.table if name not in self._topics]:
            if not topic.startswith((SYSTEM_TOPIC_PREFIX, LMQ_PREFIX)):
                self.metrics.remove(topic)

    def _measure_rates(self) -> None:
        taken, delivered = self._counted
        self._counted = self.enqueuer.taken, self.delivery.delivered
        self.enqueue_tps = (self.enqueuer.taken - taken) / (RATES_INTERVAL_MS / 1000)
        self.dequeue_tps = (self.delivery.delivered - delivered) / (RATES_INTERVAL_MS / 1000)

    def _write_metrics(self) -> None:
        self.metrics.persist(self._write_file)

    def _wait_idle(self) -> None:
        """Returns when no thread writes the files."""
        if self._worker is not None:
            self._worker.run_and_wait(lambda: None)

    # For tools

    def metric_values(self) -> dict[str, float]:
        """Metric name → value."""
        return {
            "broker_timer_pending": float(self.timers.pending),
            "broker_timer_read_behind_seconds": self.read_behind_ms / 1000,
            "broker_timer_offset_behind": float(self.offset_behind),
            "broker_timer_taken_total": float(self.enqueuer.taken),
            "broker_timer_delivered_total": float(self.delivery.delivered),
        }

    @property
    def read_behind_ms(self) -> int:
        """How far delivery lags (TimerMessageStore.getDequeueBehindMillis)."""
        return self._clock_ms() - self.timers.read_time_ms

    @property
    def enqueue_behind_ms(self) -> int:
        """How long ago the message was stored that was taken last, 0 if that was two seconds ago."""
        present_ms = self._clock_ms()
        if present_ms - self.enqueuer.taken_at_ms < 2000:
            return present_ms - self.enqueuer.stored_at_ms
        return 0

    @property
    def is_behind(self) -> bool:
        """Whether the timer holds back messages that have been due for a second or longer."""
        return self.read_behind_ms >= BEHIND_MS or self.enqueue_behind_ms >= BEHIND_MS

    @property
    def offset_behind(self) -> int:
        """How many messages of the timer topic are not in the wheel."""
        queue = timer_queue(self._store)
        return 0 if queue is None else queue.max_offset - self.timers.queue_offset


def slot_left_ms(present_ms: int, precision_ms: int) -> int:
    """The time until the next slot begins, at least 1 ms."""
    return precision_ms - present_ms % precision_ms
