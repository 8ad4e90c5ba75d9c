"""Reads messages by queue offset, by time and by key (DefaultMessageStore.getMessage,
ConsumeQueue.getOffsetInQueueByTime, queryMessage)."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Final

from epochmq_formats.extension_unit import ADDRESS_MAX, ExtensionUnit
from epochmq_formats.queue_unit import PRE_BLANK_SIZE, UNIT_BYTES
from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_protocol.memory_limit import memory_bytes
from epochmq_store import record
from epochmq_store.files.page_residency import NotResidentError, PageResidency
from epochmq_store.index.key_index import KeyIndex
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.reading import batch_reads
from epochmq_store.reading.batch_reads import BatchGet
from epochmq_store.reading.matching_counts import Count, count_tagged
from epochmq_store.reading.selected_records import select_records
from epochmq_store.statuses import GetResult, GetStatus, QueryResult
from epochmq_store.store_config import StoreConfig

PULL_MAX_BYTES: Final = 128 << 20  # DefaultMessageStore.MAX_PULL_MSG_SIZE
PULL_MIN_BYTES: Final = 100
MESSAGES_MAX: Final = (1 << 31) - 1
LOG_BYTES_MAX: Final = 1 << 62
FAST_GET_MAX: Final = 1024
"""Messages; RocketMQ's clients get 32 at a time."""
QUERY_BYTES_MAX: Final = (16 << 20) - (64 << 10)
"""Records in the response to a query by key. A client accepts frames of 16 MiB (frameMaxLength)."""
# Smaller tag codes are addresses in the extension of the consume queue. If the extension does not exist,
# clients filter such messages themselves.
EXTENSION_BELOW: Final = ADDRESS_MAX + 1

_HEAD_BYTES: Final = 256
_TAIL_BYTES: Final = const.PROPERTIES_BYTES_MAX + 512


def _ends(unit: tuple[int, int, int]) -> tuple[tuple[int, int], ...]:
    """The (physical offset, size) of the beginning and the end of a record, between which lies its body."""
    physical, size, _ = unit
    if size <= _HEAD_BYTES + _TAIL_BYTES:
        return ((physical, size),)
    return ((physical, _HEAD_BYTES), (physical + size - _TAIL_BYTES, _TAIL_BYTES))


class _ResidentReads:
    """The `resident` of one reader. It must not be entered twice at a time."""

    __slots__ = ("_reader",)

    def __init__(self, reader: MessageReader) -> None:
        self._reader = reader

    def __enter__(self) -> None:
        self._reader.resident_only = self._reader.residency

    def __exit__(self, *_: object) -> None:
        self._reader.resident_only = None


class MessageReader:
    """Reads a log through its queues and index. Readers see messages that end at or before the physical
    offset `visible_end`, None for all. It is the end of what is flushed (sync flush) or on enough
    replicas."""

    __slots__ = (
        "_config",
        "_index",
        "_log",
        "_memory",
        "residency",
        "resident",
        "resident_only",
        "visible_end",
    )

    def __init__(self, log: CommitLog, index: KeyIndex, config: StoreConfig) -> None:
        self._log = log
        self._index = index
        self.visible_end: int | None = None
        self.residency: PageResidency | None = None  # while the store runs
        self.resident = _ResidentReads(self)
        """`with reader.resident:` reads raise NotResidentError instead of waiting for the disk."""
        self.resident_only: PageResidency | None = None
        """Not None inside of `resident`."""
        self.configure(config)

    def configure(self, config: StoreConfig) -> None:
        """Applies limits."""
        self._config = config
        self._memory = memory_bytes() * config.access_message_in_memory_max_ratio // 100

    def use_residency(self, residency: PageResidency | None) -> None:
        """Asks `residency` from now on which pages are in memory; None: all are taken to be."""
        self.residency = residency

    def max_offset(self, queue: ConsumeQueue) -> int:
        """Queue offset after the last visible message."""
        limit = self.visible_end
        if limit is None or queue.max_physical <= limit:
            return queue.max_offset
        return queue.first_ending_after(limit, queue.min_offset, queue.max_offset)

    def get(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int = PULL_MAX_BYTES,
        tags: Container[int] | None = None,
    ) -> GetResult:
        """Up to `max_count` messages from `offset` on; with `tags` only those with one of these tag codes.
        The first message is returned whatever its size. Adjacent records of the log are read in one piece."""
        minimum = queue.min_offset
        maximum = queue.max_offset if self.visible_end is None else self.max_offset(queue)
        if maximum == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, minimum, maximum)
        if offset < minimum:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
        if offset >= maximum:
            status = GetStatus.OFFSET_OVERFLOW_ONE if offset == maximum else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(status, maximum, minimum, maximum)
        if tags is None:
            found = self._get_fast(queue, offset, minimum, maximum, max_count, max_bytes, self.resident_only)
            if found is not None:
                return found
        if self.resident_only is not None:
            queue.require_resident(self.resident_only, offset, min(max_count, maximum - offset))
        return self._get_by_scan(queue, offset, minimum, maximum, max_count, max_bytes, tags)

    def _get_fast(
        self,
        queue: ConsumeQueue,
        offset: int,
        minimum: int,
        maximum: int,
        max_count: int,
        max_bytes: int,
        guard: PageResidency | None,
    ) -> GetResult | None:
        """The result of `_get_by_scan` for the common get: no filter, all records in memory and in one file
        of the log. None for any other get. Copies nothing; takes a third of the time of `_get_by_scan`. With
        a `guard` raises NotResidentError."""
        config = self._config
        count = min(max_count, config.max_transfer_count_on_message_in_memory, maximum - offset)
        if count > FAST_GET_MAX:
            return None
        units = queue.positions_and_sizes(offset, count, guard)
        if not units:
            return None
        positions, sizes = units[::2], units[1::2]
        first, last = positions[0], positions[-1]
        file = self._log.files.find(first)
        if file is None or self._log.max_offset - first > self._memory:
            return None
        start = file.start
        end = last + sizes[-1]
        # Positions rise from unit to unit, so the last one has the end of all. Only the first can be blank.
        if end > start + file.size or sizes[0] == PRE_BLANK_SIZE:
            return None
        size = sum(sizes)
        if size > min(max(max_bytes, PULL_MIN_BYTES), config.max_transfer_bytes_on_message_in_memory):
            return None
        if guard is not None and not guard.knows(file, first - start, end - start):
            if size == end - first:
                guard.require(file, first - start, size)
            else:
                guard.require_all(
                    file, [(at - start, length) for at, length in zip(positions, sizes, strict=True)]
                )
        records = memoryview(file.map)
        if size == end - first:
            pieces = [records[first - start : end - start]]
        else:
            pieces = [
                records[(begin := at - start) : begin + length]
                for at, length in zip(positions, sizes, strict=True)
            ]
        found = len(sizes)
        return GetResult(GetStatus.FOUND, offset + found, minimum, maximum, pieces, size, found, last)

    def _get_by_scan(
        self,
        queue: ConsumeQueue,
        offset: int,
        minimum: int,
        maximum: int,
        max_count: int,
        max_bytes: int,
        tags: Container[int] | None,
    ) -> GetResult:
        config = self._config
        if isinstance(queue, BatchConsumeQueue):
            return self._batch_get(queue, offset, maximum, max_count, max_bytes, self.resident_only).run(tags)
        scan = min(max(config.max_filter_message_size // UNIT_BYTES, max_count), maximum - offset)
        guard = self.resident_only
        if guard is not None:
            queue.require_resident(guard, offset, scan)
            if tags is not None and queue.extension is not None:
                self._require_extension(guard, queue, list(queue.units(offset, scan)))
        next_offset = offset
        count = total = 0
        physical_end = -1
        log_min = self._log.min_offset
        count_max, bytes_max = self._limits(queue, offset, max_count, max_bytes)
        status = GetStatus.NO_MATCHED_MESSAGE
        pieces: list[tuple[int, int]] = []  # (physical offset, bytes) of what is read in one piece
        start = end = -1
        for physical, size, code in queue.units(offset, scan):
            if count and (count >= count_max or total + size > bytes_max):
                break
            next_offset += 1
            physical_end = physical
            if tags is not None and code not in tags:
                if code >= EXTENSION_BELOW:
                    continue
                extended = queue.extension_unit(code)
                if extended is not None and extended.tags_code not in tags:
                    continue
            if physical < log_min or size == PRE_BLANK_SIZE:
                if not count:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            if physical != end:  # always so at a new file, because a blank record lies in between
                if start >= 0:
                    pieces.append((start, end - start))
                start = physical
            end = physical + size
            count += 1
            total += size
        if not count:
            if next_offset == offset:
                status = GetStatus.OFFSET_FOUND_NULL
                next_offset = queue.roll_next_file(offset)
            return GetResult(status, next_offset, minimum, maximum, physical_end=physical_end)
        pieces.append((start, end - start))
        if guard is not None:
            for at, size in pieces:
                self._require(at, size)
        body = self._log.read_pieces(pieces)
        return GetResult(
            GetStatus.FOUND, next_offset, minimum, maximum, (body,), len(body), count, physical_end
        )

    def get_selected(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        select: Callable[[bytes], bool],
        *,
        examine_max: int,
        excludes: Callable[[ExtensionUnit], bool] | None = None,
        had: tuple[int, int] = (0, 0),
        resident: bool = True,
    ) -> GetResult:
        """Up to `max_count` messages from `offset` on whose stored properties `select` accepts, among the
        next `examine_max` messages. `excludes` says by a unit of the queue's extension that the properties
        need not be read. `had`: the messages and bytes that the caller has already, which count for the
        limits of a get. Raises NotResidentError, unless `resident` is false."""
        minimum, maximum = queue.min_offset, self.max_offset(queue)
        if maximum == 0 or not minimum <= offset < maximum:
            return self.get(queue, offset, max_count)
        guard = self.residency if resident else None
        if isinstance(queue, BatchConsumeQueue):
            get = self._batch_get(queue, offset, maximum, max_count, PULL_MAX_BYTES, guard)
            return get.run_selected(select, examine_max, had)
        if guard is not None:
            queue.require_resident(guard, offset, min(examine_max, maximum - offset))
        units = list(queue.units(offset, min(examine_max, maximum - offset)))
        excluded = self._excluded(queue, units, excludes, guard)
        log_min = self._log.min_offset
        is_resident = guard is None
        if guard is not None:
            wanted = units
            if excluded or (units and units[0][0] < log_min):
                wanted = [unit for unit in units if unit[0] >= log_min and unit[0] not in excluded]
            is_resident = self._knows_all(guard, wanted)
            if not is_resident:
                self._require_all(guard, [piece for unit in wanted for piece in _ends(unit)])
        count_max, bytes_max = self._limits(queue, offset, max_count, PULL_MAX_BYTES)
        count, size = had
        selected = select_records(
            self._log.files,
            log_min,
            queue,
            units,
            select,
            excluded=excluded,
            count_max=count_max - count,
            bytes_max=bytes_max - size,
            had=count > 0,
        )
        next_offset, status, physical_end = offset + selected.examined, selected.status, selected.physical_end
        if not units:
            next_offset, status = queue.roll_next_file(offset), GetStatus.OFFSET_FOUND_NULL
        if not selected.pieces:
            return GetResult(status, next_offset, minimum, maximum, physical_end=physical_end)
        if guard is not None and not is_resident:
            self._require_all(guard, selected.places)
        pieces, count = selected.pieces, len(selected.pieces)
        return GetResult(
            GetStatus.FOUND, next_offset, minimum, maximum, pieces, selected.size, count, physical_end
        )

    def _excluded(
        self,
        queue: ConsumeQueue,
        units: list[tuple[int, int, int]],
        excludes: Callable[[ExtensionUnit], bool] | None,
        guard: PageResidency | None,
    ) -> frozenset[int]:
        """The physical offsets of those of these units that the queue's extension excludes. With a `guard`
        raises NotResidentError."""
        if excludes is None or queue.extension is None:
            return frozenset()
        if guard is not None:
            self._require_extension(guard, queue, units)
        extended = ((physical, queue.extension_unit(code)) for physical, _, code in units)
        return frozenset(physical for physical, unit in extended if unit is not None and excludes(unit))

    def count_tagged(
        self, queue: ConsumeQueue, start: int, end: int, tags: Container[int], matched_max: int
    ) -> Count:
        """Counts the messages at the offsets [start, end) with one of these tag codes, until more than
        `matched_max` match. Raises NotResidentError."""
        return count_tagged(queue, start, end, tags, matched_max=matched_max, guard=self.residency)

    def count_selected(
        self,
        queue: ConsumeQueue,
        start: int,
        end: int,
        select: Callable[[bytes], bool],
        excludes: Callable[[ExtensionUnit], bool] | None = None,
    ) -> Count:
        """Counts the messages at the offsets [start, end) that `select` accepts; `excludes` as for
        `get_selected`. Ends early at the end of a queue's file. Examines no inner batch. Raises
        NotResidentError."""
        if isinstance(queue, BatchConsumeQueue):
            return Count(0, 0)
        guard = self.residency
        if guard is not None:
            queue.require_resident(guard, start, end - start)
        units = list(queue.units(start, end - start))
        excluded = self._excluded(queue, units, excludes, guard)
        if guard is not None:
            wanted = [unit for unit in units if unit[0] >= self._log.min_offset and unit[0] not in excluded]
            self._require_all(guard, [piece for unit in wanted for piece in _ends(unit)])
        found = select_records(
            self._log.files,
            self._log.min_offset,
            queue,
            units,
            select,
            excluded=excluded,
            count_max=len(units) + 1,
            bytes_max=LOG_BYTES_MAX,
            had=False,
        )
        return Count(len(found.pieces), found.examined)

    def _batch_get(
        self,
        queue: BatchConsumeQueue,
        offset: int,
        maximum: int,
        max_count: int,
        max_bytes: int,
        guard: PageResidency | None,
    ) -> BatchGet:
        """A get from a queue of inner batches. With a `guard` raises NotResidentError."""
        if guard is not None:
            queue.require_resident(guard, offset, 1)
        transfer_max, bytes_max = self._limits(queue, offset, MESSAGES_MAX, max_bytes)
        require = None if guard is None else partial(self._require_all, guard)
        return BatchGet(
            self._log,
            queue,
            offset,
            maximum,
            self._config,
            max_count,
            transfer_max,
            bytes_max,
            guard,
            require,
        )

    @staticmethod
    def _require_extension(
        guard: PageResidency, queue: ConsumeQueue, units: list[tuple[int, int, int]]
    ) -> None:
        if queue.extension is not None:
            addresses = [code for _, _, code in units if code < EXTENSION_BELOW]
            queue.extension.require_resident(guard, addresses)

    def _knows_all(self, guard: PageResidency, records: Sequence[tuple[int, ...]]) -> bool:
        """Whether all bytes from the first to the last of these records are in one file and known to be in
        memory. Each begins with physical offset and size, and their offsets rise."""
        if not records:
            return True
        first, last = records[0][0], records[-1]
        file = self._log.files.find(first)
        end = last[0] + last[1]
        if file is None or not first < end <= file.end:
            return False
        return guard.knows(file, first - file.start, end - file.start)

    def _require_all(self, guard: PageResidency, pieces: list[tuple[int, int]]) -> None:
        """Raises one NotResidentError for all of these (physical offset, size) that are not in memory."""
        missing: NotResidentError | None = None
        for physical, size in pieces:
            file = self._log.files.find(physical)
            if file is None:
                continue
            at = physical - file.start
            try:
                guard.require(file, at, min(size, max(file.wrote - at, 1)))
            except NotResidentError as error:
                if missing is None:
                    missing = error
                else:
                    missing.others.append(error)
        if missing is not None:
            raise missing

    def get_resident(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int = PULL_MAX_BYTES,
        tags: Container[int] | None = None,
    ) -> GetResult:
        """`get` without reads from the disk. Raises NotResidentError."""
        maximum, minimum = queue.max_offset, queue.min_offset
        if tags is None and self.visible_end is None and minimum <= offset < maximum:
            found = self._get_fast(queue, offset, minimum, maximum, max_count, max_bytes, self.residency)
            if found is not None:
                return found
        with self.resident:
            return self.get(queue, offset, max_count, max_bytes, tags)

    def read(self, offset: int, size: int | None = None) -> bytes | None:
        """See `CommitLog.read`."""
        if self.resident_only is not None:
            self._require(offset, size)
        return self._log.read(offset, size)

    def read_resident(self, offset: int) -> bytes | None:
        """`read` of the record at `offset` without reads from the disk. Raises NotResidentError."""
        with self.resident:
            return self.read(offset)

    def _require(self, offset: int, size: int | None) -> None:
        """Raises NotResidentError unless these bytes of the log are in memory; without `size`, those of the
        record at `offset`."""
        guard = self.resident_only
        file = self._log.files.find(offset)
        if guard is None or file is None:
            return
        at = offset - file.start
        if size is None:
            if at + record_layout.SIZE_AND_MAGIC.size > file.wrote:
                return
            guard.require(file, at, record_layout.SIZE_AND_MAGIC.size)
            size, magic = record_layout.SIZE_AND_MAGIC.unpack_from(file.map, at)
            if magic not in (const.MAGIC_V1, const.MAGIC_V2):
                return
        size = min(size, file.wrote - at)
        if size > 0:
            guard.require(file, at, size)

    def unit(self, queue: ConsumeQueue, offset: int) -> tuple[int, int, int] | None:
        """See `ConsumeQueue.unit`."""
        if self.resident_only is not None:
            queue.require_resident(self.resident_only, offset, 1)
        return queue.unit(offset)

    def _stored_at(self, physical: int) -> int:
        """Store time, epoch ms, of the record at this physical offset, -1 when the log does not have it."""
        if self.resident_only is not None:
            self._require(physical, record_layout.HEAD_V4.size)
        return self._log.store_timestamp(physical)

    def _limits(self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int) -> tuple[int, int]:
        """The maximum number of messages and bytes of one get, smaller if they come from the disk
        (isTheBatchFull)."""
        config = self._config
        first = self.unit(queue, offset)
        in_memory = first is None or self._log.max_offset - first[0] <= self._memory
        if in_memory:
            count = config.max_transfer_count_on_message_in_memory
            size = config.max_transfer_bytes_on_message_in_memory
        else:
            count = config.max_transfer_count_on_message_in_disk
            size = config.max_transfer_bytes_on_message_in_disk
        return min(max_count, count), min(max(max_bytes, PULL_MIN_BYTES), PULL_MAX_BYTES, size)

    # By time

    def store_timestamp(self, queue: ConsumeQueue, offset: int) -> int:
        """Store time, epoch ms, of a queue's message, -1 without one."""
        unit = self.unit(queue, offset)
        return -1 if unit is None else self._stored_at(unit[0])

    def offset_by_time(self, queue: ConsumeQueue, timestamp: int, *, upper: bool = False) -> int:
        """The queue offset for a time in epoch ms, within [min, max]: of the first message stored at or after
        it, or, with `upper`, of the last message stored at or before it (BoundaryType,
        binarySearchInQueueByTime)."""
        minimum = queue.min_offset
        maximum = self.max_offset(queue)
        if isinstance(queue, BatchConsumeQueue):
            return batch_reads.offset_by_time(
                queue, timestamp, maximum, self.visible_end, upper=upper, guard=self.resident_only
            )
        if minimum >= maximum:
            return maximum
        first = self._first_stored(queue, timestamp + 1 if upper else timestamp, minimum, maximum)
        if not upper:
            return first
        return max(first - 1, minimum)

    def _first_stored(self, queue: ConsumeQueue, timestamp: int, low: int, high: int) -> int:
        """Smallest offset in [low, high) stored at or after `timestamp`, `high` without one."""
        while low < high:
            middle = (low + high) // 2
            if self.store_timestamp(queue, middle) < timestamp:
                low = middle + 1
            else:
                high = middle
        return low

    def earliest_timestamp(self, queue: ConsumeQueue | None = None) -> int:
        """Store time, epoch ms, of the first message of a queue, or of the log; -1 without one."""
        if queue is not None:
            return self.store_timestamp(queue, queue.min_offset)
        return self._stored_at(self._log.min_offset) if self._log.max_offset else -1

    # By key

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """The topic's messages with this key or unique key stored in [begin_ms, end_ms], oldest first. Other
        keys may have the same hash; the client compares keys, as RocketMQ's clients do. Messages of other
        topics, whose hash may be the same, too, are left out; RocketMQ returns them. So are messages beyond
        `QUERY_BYTES_MAX` but the first: a client could not receive them."""
        limit = min(max_count, self._config.max_msgs_num_batch)
        if len(key) > const.PROPERTIES_BYTES_MAX:  # no message has it, and hashing it would take long
            limit = 0
        found = self._index.find(topic, key, limit, begin_ms, end_ms, self.resident_only) if limit else []
        records: list[tuple[int, int]] = []
        total = 0
        for physical in sorted(found):
            self._require(physical, None)
            message = self._log.parse(physical, (), check_crc=False)
            if (
                isinstance(message, record.DispatchRequest)
                and message.topic == topic
                and self._visible(physical + message.size)
            ):
                total += message.size
                if records and total > QUERY_BYTES_MAX:
                    break
                records.append((physical, message.size))
        newest = self._index.files[-1] if self._index.files else None
        return QueryResult(
            self._log.read_pieces(records) if records else b"",
            len(records),
            newest.end_timestamp if newest else 0,
            newest.end_physical if newest else 0,
        )

    def _visible(self, end: int) -> bool:
        return self.visible_end is None or end <= self.visible_end
