"""Reads batch consume queues: messages by offset, and the offset for a time (DefaultMessageStore.getMessage,
BatchConsumeQueue.getOffsetInQueueByTime).

A get returns whole inner batches, the first one also if it begins before the wanted offset. Limits count
messages, and clients take the batches apart. A filter sees an inner batch as one message.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from itertools import takewhile

from epochmq_formats.batch_unit import UNIT_BYTES, BatchUnit
from epochmq_store import record
from epochmq_store.files.page_residency import PageResidency
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.statuses import GetResult, GetStatus
from epochmq_store.store_config import StoreConfig

RequireRecords = Callable[[list[tuple[int, int]]], None]
"""Raises NotResidentError unless these (physical offset, bytes) of the log are in memory."""


@dataclass(frozen=True)
class BatchGet:
    """One get from a queue of inner batches: from `offset` on, of those that begin before `maximum`."""

    log: CommitLog
    queue: BatchConsumeQueue
    offset: int
    maximum: int
    config: StoreConfig
    messages_max: int  # what the consumer asks for
    transfer_max: int  # messages; no further inner batch once there are so many
    bytes_max: int
    guard: PageResidency | None
    """With it, NotResidentError is raised instead of waiting for the disk: for units, and by `require` for
    records."""
    require: RequireRecords | None

    def run(self, tags: Container[int] | None) -> GetResult:
        """The inner batches, with `tags` only those with one of these tag codes."""
        scanned = max(self.config.max_filter_message_size, self.messages_max * UNIT_BYTES)
        units = self._units(-(-scanned // UNIT_BYTES))
        return self._take(units, lambda unit: tags is None or unit.tags_code in tags, (0, 0))

    def run_selected(
        self, select: Callable[[bytes], bool], examine_max: int, had: tuple[int, int]
    ) -> GetResult:
        """The inner batches whose stored properties `select` accepts, among those of the next `examine_max`
        messages. `had`: the messages and bytes that the caller has already."""
        units = self._units(examine_max)
        log = self.log
        if self.require is not None:
            self.require([(unit.physical, unit.size) for unit in units if unit.physical >= log.min_offset])

        def selects(unit: BatchUnit) -> bool:
            file = log.files.find(unit.physical)
            assert file is not None
            return select(record.properties_at(file.map, unit.physical - file.start, unit.size))

        return self._take(units, selects, had)

    def _units(self, messages_max: int) -> list[BatchUnit]:
        """The units that begin among the next `messages_max` messages."""
        end = min(self.maximum, self.offset + messages_max)
        if self.guard is not None:
            self.queue.require_resident(self.guard, self.offset, end - self.offset + 1)
        return list(takewhile(lambda unit: unit.base < end, self.queue.batch_units(self.offset)))

    def _is_full(self, count: int, size: int, unit: BatchUnit) -> bool:
        """Whether a get with `count` messages of `size` bytes ends before this unit (isTheBatchFull). The
        first inner batch is returned whatever its size."""
        return size > 0 and (
            count + unit.messages > self.messages_max
            or count >= self.transfer_max
            or size + unit.size > self.bytes_max
        )

    def _take(
        self, units: list[BatchUnit], selects: Callable[[BatchUnit], bool], had: tuple[int, int]
    ) -> GetResult:
        log_min, minimum, maximum = self.log.min_offset, self.queue.min_offset, self.maximum
        count, size = had
        next_offset, physical_end = self.offset, -1
        status = GetStatus.NO_MATCHED_MESSAGE
        pieces: list[tuple[int, int]] = []
        for unit in units:
            if self._is_full(count, size, unit):
                break
            next_offset, physical_end = unit.end, unit.physical
            if unit.physical < log_min:
                status = GetStatus.MESSAGE_WAS_REMOVING
            elif not selects(unit):
                status = GetStatus.NO_MATCHED_MESSAGE
            else:
                pieces.append((unit.physical, unit.size))
                count += unit.messages
                size += unit.size
        if not units:
            next_offset, status = self.queue.roll_next_file(self.offset), GetStatus.OFFSET_FOUND_NULL
        if not pieces:
            return GetResult(status, next_offset, minimum, maximum, physical_end=physical_end)
        if self.require is not None:
            self.require(pieces)
        body = self.log.read_pieces(pieces)
        found = count - had[0]
        return GetResult(
            GetStatus.FOUND, next_offset, minimum, maximum, (body,), len(body), found, physical_end
        )


def offset_by_time(
    queue: BatchConsumeQueue,
    timestamp: int,
    maximum: int,
    visible_end: int | None,
    *,
    upper: bool = False,
    guard: PageResidency | None = None,
) -> int:
    """The queue offset of the inner batch for a time in epoch ms, within [min_offset, maximum]: of the first
    one stored at or after the time, or of the last one for any later time. Only those that end before the
    physical offset `visible_end` count. With `upper` it may be another one of several stored at that time; as
    in RocketMQ, for some times between those of two inner batches the search finds none, and the result is
    the minimum. Raises NotResidentError with a `guard`."""
    end = queue.end_number if visible_end is None else queue.number_ending_after(visible_end)
    if end <= queue.first_number:
        return max(maximum, 0)
    left = queue.start_of_file(end - 1)
    right = end - 1
    while left > queue.first_number and queue.head(left, guard).store_timestamp > timestamp:
        right = left - 1
        left = queue.start_of_file(right)
    searched = range(left, right + 1)

    def stored(number: int) -> int:
        return queue.unit_at(number, guard, searched).store_timestamp

    number = right if timestamp >= stored(right) else _search(stored, left, right, timestamp, upper=upper)
    found = -1 if number < 0 else queue.unit_at(number, guard).base
    return min(max(found, queue.min_offset), maximum)


def _search(stored: Callable[[int], int], left: int, right: int, timestamp: int, *, upper: bool) -> int:
    """The steps of RocketMQ's search in [left, right] (binarySearchRight); -1 where it finds nothing."""
    while left <= right:
        middle = (left + right) // 2
        time = stored(middle)
        if middle == right:
            return middle if time >= timestamp else -1
        if middle == left:
            if time >= timestamp:
                return middle
            left = middle + 1
        elif upper:
            if time <= timestamp:
                left = middle
            else:
                right = middle - 1
        elif time < timestamp:
            left = middle + 1
        else:
            right = middle
    return -1
