"""Collects RocketMQ's metrics of transactions, timer messages and POP under its names and labels
(BrokerMetricsManager, DefaultStoreMetricsManager, PopMetricsManager)."""

from __future__ import annotations

from collections.abc import Iterator

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.services.timer.timer_metrics import DISTRIBUTION_BOUNDS_S
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_broker.services.transactions.transaction_service import TransactionService
from epochmq_broker.tables.metric_tables import HISTOGRAMS_MAX, Sample

SLOTS_PER_STEP = 4096
"""Slots of the timer wheel that are read without a pause: about half a millisecond."""
_STORAGE = {"storage_type": "local", "storage_medium": "disk"}


def service_samples(
    transactions: TransactionService, pop: PopService, timer: TimerService | None
) -> Iterator[Sample | None]:
    """The samples of all three, and None where the caller should pause for other work. Without a timer wheel
    there are none of timer messages, as in RocketMQ."""
    yield from _transactions(transactions)
    yield from _pop(pop)
    if timer is not None:
        yield from _timer(timer)


def _transactions(transactions: TransactionService) -> Iterator[Sample]:
    for topic, half in list(transactions.metrics.counts.items()):
        yield "half_messages", half.count, {"topic": topic}
    for topic, ended in list(transactions.ended.items()):
        if ended.committed:
            yield "commit_messages_total", ended.committed, {"topic": topic}
        if ended.rolled_back:
            yield "rollback_messages_total", ended.rolled_back, {"topic": topic}
    histograms = [(topic, ended.ages_s) for topic, ended in transactions.ended.items() if ended.committed]
    for topic, ages_s in histograms[:HISTOGRAMS_MAX]:
        yield from ages_s.samples("finish_message_latency_milliseconds", {"topic": topic})


def _pop(pop: PopService) -> Iterator[Sample]:
    yield "pop_offset_buffer_size", pop.buffer.pending_offsets, {}
    yield "pop_checkpoint_buffer_size", pop.buffer.checkpoints, {}
    for queue_id, (messages, age_ms) in enumerate(pop.revives.behind()):
        labels = {"queue_id": str(queue_id)}
        yield "pop_revive_lag_milliseconds", messages, labels
        yield "pop_revive_latency_milliseconds", age_ms, labels
    yield from pop.scans_ms.samples("pop_buffer_scan_time_consume_milliseconds", {})
    yield from pop.revive_log.puts.samples("pop_revive_in_message_total")
    yield from pop.revives.records.samples("pop_revive_out_message_total")
    yield from pop.revives.retries.samples("pop_revive_retry_messages_total")


def _timer(timer: TimerService) -> Iterator[Sample | None]:
    yield "timer_enqueue_lag", timer.offset_behind, _STORAGE
    yield "timer_enqueue_latency_milliseconds", timer.enqueue_behind_ms, _STORAGE
    yield "timer_dequeue_lag", timer.timers.pending, _STORAGE
    # RocketMQ gives this one in whole seconds, whatever its name says.
    yield "timer_dequeue_latency_milliseconds", timer.read_behind_ms // 1000, _STORAGE
    for topic, entry in list(timer.metrics.table.items()):
        yield "timing_messages", max(entry.count, 0), {"topic": topic, **_STORAGE}
    for topic, traffic in list(timer.metrics.traffic.items()):
        labels = {"topic": topic, **_STORAGE}
        if traffic.enqueued:
            yield "timer_enqueue_total", traffic.enqueued, labels
        if traffic.dequeued:
            yield "timer_dequeue_total", traffic.dequeued, labels
        if any(traffic.delays_s.counts):
            yield from traffic.delays_s.samples("delay_message_latency_seconds", labels)
    yield from _distribution(timer)


def _distribution(timer: TimerService) -> Iterator[Sample | None]:
    """The pending messages by how soon they are due: in at most 5 s, in 5 s to a minute, and so on."""
    wheel = timer.timers.wheel
    step_ms = SLOTS_PER_STEP * wheel.precision_ms
    start_ms = at_ms = now_ms() // wheel.precision_ms * wheel.precision_ms
    for bound_s in DISTRIBUTION_BOUNDS_S:
        count, end_ms = 0, start_ms + bound_s * 1000
        while at_ms < end_ms:
            count += wheel.num_between(at_ms, min(at_ms + step_ms, end_ms))
            at_ms = min(at_ms + step_ms, end_ms)
            yield None
        yield "timer_message_snapshot", count, {"timer_bound_s": str(bound_s), **_STORAGE}
