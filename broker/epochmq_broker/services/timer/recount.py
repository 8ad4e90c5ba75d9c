"""Counts the pending messages of each topic anew, from the timer log
(TimerMessageStore.checkAndReviseMetrics).

The numbers drift when the broker is killed, because their file is some seconds old. RocketMQ corrects the
small ones once a day, in the hour of timerCheckMetricsWhen. Here they are corrected when a broker becomes the
master, unless it stopped cleanly before."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from epochmq_broker.services.timer.jobs import Wait
from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_broker.services.timer.timer_store import TimerStore
from epochmq_formats.timer_log import UNIT_BYTES
from epochmq_protocol.javahash import java_hash
from epochmq_store.files.page_residency import NotResidentError, PageResidency

STEP_UNITS = 256
"""Units that are counted without an interruption."""


def recount(
    timers: TimerStore, metrics: TimerMetrics, topics: Iterable[str], residency: PageResidency | None
) -> Generator[Wait, None, None]:
    """Sets the number of each topic to the number of its units that are due at the present read time or
    later, plus what has changed while they were counted. `topics` are those of the broker: after a kill the
    metrics may lack some of them. Topics with equal hash codes keep their numbers."""
    read_time_ms, end, position = timers.read_time_ms, timers.log.end, timers.log.first
    before = {topic: metrics.count(topic) for topic in {*topics, *metrics.table}}
    counted: dict[int, int] = {}
    while position < end:
        for _ in range(STEP_UNITS):
            try:
                unit = timers.log.unit(position, residency)
            except NotResidentError as missing:
                yield missing
                continue
            if unit is None:
                # The blank at the end of a file.
                position = timers.log.next_file(position)
            else:
                if unit.time_ms >= read_time_ms:
                    counted[unit.topic_hash] = counted.get(unit.topic_hash, 0) + unit.weight
                position += UNIT_BYTES
            if position >= end:
                break
        yield None
    by_hash: dict[int, list[str]] = {}
    for number, topic in enumerate(before, 1):
        by_hash.setdefault(java_hash(topic), []).append(topic)
        if not number % STEP_UNITS:
            yield None
    for code, names in by_hash.items():
        if len(names) == 1:
            difference = counted.get(code, 0) - before[names[0]]
            if difference:
                metrics.add(names[0], difference)
