"""Counts the messages of a queue that a filter matches, in a sample of bounded size
(ConsumeQueue.estimateMessageCount)."""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

from epochmq_formats.extension_unit import ADDRESS_MAX
from epochmq_store.files.page_residency import PageResidency
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue

STEP: Final = 1000
"""Units that are counted before the next look at the limits."""


class Count(NamedTuple):
    """How many of the first `examined` messages match."""

    matched: int
    examined: int

    def estimate(self, messages: int) -> int:
        """How many of so many messages match, if all are like those that were examined."""
        if self.examined >= messages:
            return self.matched
        return self.matched * messages // self.examined if self.examined else messages


def count_tagged(
    queue: ConsumeQueue,
    start: int,
    end: int,
    tags: Container[int],
    *,
    matched_max: int,
    guard: PageResidency | None,
) -> Count:
    """Counts the messages at the offsets [start, end) with one of these tag codes, until more than
    `matched_max` match. With a `guard` raises NotResidentError."""
    matched, at = 0, start
    while at < end and matched <= matched_max:
        count = min(STEP, end - at)
        if guard is not None:
            queue.require_resident(guard, at, count)
        if isinstance(queue, BatchConsumeQueue):
            found, after = _batch_step(queue, at, at + count, tags)
        else:
            found, after = _step(queue, at, count, tags, guard)
        if after <= at:  # the next unit is in the next file, or lost
            after = queue.roll_next_file(at)
            if not at < after < end:
                break
        matched += found
        at = after
    return Count(matched, min(at, end) - start)


def _step(
    queue: ConsumeQueue, at: int, count: int, tags: Container[int], guard: PageResidency | None
) -> tuple[int, int]:
    """How many of the next units match, and the offset behind them."""
    codes = [code for _, _, code in queue.units(at, count)]
    if queue.extension is not None:
        if guard is not None:
            queue.extension.require_resident(guard, [code for code in codes if code <= ADDRESS_MAX])
        units = [queue.extension_unit(code) for code in codes]
        codes = [code if unit is None else unit.tags_code for code, unit in zip(codes, units, strict=True)]
    return sum(map(tags.__contains__, codes)), at + len(codes)


def _batch_step(queue: BatchConsumeQueue, at: int, end: int, tags: Container[int]) -> tuple[int, int]:
    """The same for inner batches, whose messages have one tag code."""
    matched, after = 0, at
    for unit in queue.batch_units(at):
        if unit.base >= end:
            break
        first, after = max(unit.base, at), min(unit.end, end)
        if unit.tags_code in tags:
            matched += after - first
    return matched, after
