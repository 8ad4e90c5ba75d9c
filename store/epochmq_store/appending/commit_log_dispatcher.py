"""Dispatches records of the log to consume queues and index by parsing them (ReputMessageService). It is used
for replicated records and at recovery, and writes the same bytes as the append path."""

from __future__ import annotations

from collections.abc import Callable, Set

from epochmq_protocol import message_const as const
from epochmq_protocol.topics import is_lmq
from epochmq_store import record
from epochmq_store.index.key_index import KeyIndex
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import ConsumeQueues
from epochmq_store.queues.light_queues import LightQueues, light_queue_offsets
from epochmq_store.queues.queue_extension import BitMapOf


class CommitLogDispatcher:
    """Follows the log. Everything before the physical offset `position` is dispatched."""

    __slots__ = (
        "_bit_map",
        "_blank",
        "_delays_ms",
        "_index",
        "_light_queues",
        "_log",
        "_on_append",
        "_queues",
        "last_timestamp",
        "position",
        "repairing",
    )

    def __init__(
        self,
        *,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex | None,
        delays_ms: tuple[int, ...],
        bit_map: BitMapOf | None = None,
        light_queues: LightQueues | None = None,
    ) -> None:
        """`index` is None without an index, `light_queues` without enableLmq. `bit_map` computes the filter
        bit maps of queue extensions, None for none."""
        self._log = log
        self._queues = queues
        self._index = index
        self._delays_ms = delays_ms
        self.position = 0
        self._blank = -1, -1  # start of the last blank record, and of the file after it
        self.repairing = False  # existing units are compared with the log, and repaired
        self.last_timestamp = 0  # store time of the newest dispatched message, epoch ms
        self._on_append: Callable[[ConsumeQueue, int, int], None] | None = None
        self._bit_map = bit_map
        self._light_queues = light_queues

    @property
    def records_end(self) -> int:
        """The end of the last dispatched record that is not blank."""
        start, following = self._blank
        return start if self.position == following else self.position

    def notify_appends(self, listener: Callable[[ConsumeQueue, int, int], None] | None) -> None:
        """Calls this listener for every new unit from now on, in place of the previous one; None for no
        listener."""
        self._on_append = listener

    def dispatch(self, message: record.DispatchRequest) -> None:
        """Dispatches one message; a repetition changes nothing. Raises DiskFullError or OSError."""
        if message.in_consume_queue:
            queue = self._queues.get((message.topic, message.queue_id))
            is_batch = message.sys_flag & const.INNER_BATCH_FLAG != 0
            if queue is None or is_batch:
                queue = self._queues.for_record(message.topic, message.queue_id, is_inner_batch=is_batch)
            if queue is not None:
                self._put_unit(queue, message)
                if self._light_queues is not None and not isinstance(queue, BatchConsumeQueue):
                    self._put_light_units(self._light_queues, message)
        if self._index is not None:
            self._index.dispatch(message)
        self.last_timestamp = max(self.last_timestamp, message.store_timestamp)

    def dispatch_to(self, message: record.DispatchRequest, queues: Set[ConsumeQueue]) -> None:
        """Adds the units of a message to these queues only, and nothing to the index; a repetition changes
        nothing. Raises DiskFullError or OSError."""
        if not message.in_consume_queue:
            return
        queue = self._queues.get((message.topic, message.queue_id))
        if queue is not None and queue in queues:
            self._put_unit(queue, message)
        if self._light_queues is not None and not isinstance(queue, BatchConsumeQueue):
            self._put_light_units(self._light_queues, message, queues)

    def _put_unit(self, queue: ConsumeQueue, message: record.DispatchRequest) -> None:
        _, _, offset, physical, size, tags_code, *_ = message
        if isinstance(queue, BatchConsumeQueue):
            stored = self._properties(physical, size)
            is_new = queue.put_record(stored, offset, physical, size, tags_code, message.store_timestamp)
            if is_new and self._on_append is not None:
                self._on_append(queue, offset, tags_code)
            return
        if queue.extension is None:
            is_new = queue.put(offset, physical, size, tags_code)
        else:
            bit_map = b""
            if self._bit_map is not None:
                bit_map = self._bit_map(queue.topic, self._properties(physical, size))
            is_new = queue.put(offset, physical, size, tags_code, message.store_timestamp, bit_map)
        self._after_put(queue, offset, message, is_new=is_new)

    def _put_light_units(
        self, light: LightQueues, message: record.DispatchRequest, only: Set[ConsumeQueue] | None = None
    ) -> None:
        _, _, _, physical, size, tags_code, *_ = message
        for queue, offset in light.of_record(message.topic, self._properties(physical, size)):
            if only is not None and queue not in only:
                continue
            is_new = queue.put(offset, physical, size, tags_code)
            self._after_put(queue, offset, message, is_new=is_new)

    def _after_put(
        self, queue: ConsumeQueue, offset: int, message: record.DispatchRequest, *, is_new: bool
    ) -> None:
        if is_new:
            if self._on_append is not None:
                self._on_append(queue, queue.max_offset - 1, message.tags_code)
        elif self.repairing:
            queue.repair(offset, message.physical_offset, message.size, message.tags_code)

    def _properties(self, physical: int, size: int) -> bytes:
        """The stored properties of the record at this offset of the log."""
        file = self._log.files.find(physical)
        return b"" if file is None else record.properties_at(file.map, physical - file.start, size)

    def is_in_queue(self, queue: ConsumeQueue, message: record.DispatchRequest) -> bool:
        """Whether the record belongs into this queue: the queue of its topic, or a light queue."""
        if (message.topic, message.queue_id) == (queue.topic, queue.queue_id):
            return True
        if self._light_queues is None or not is_lmq(queue.topic):
            return False
        properties = self._properties(message.physical_offset, message.size)
        return any(name == queue.topic for name, _ in light_queue_offsets(message.topic, properties))

    def catch_up(self, limit: int | None = None, max_records: int | None = None) -> int:
        """Dispatches the whole records from `position` on, at most `max_records` and none that ends after
        `limit`; returns their number. Stops at a torn record, which later data may complete. After
        DiskFullError or OSError `position` is at the failed message."""
        count = 0
        end = self._log.max_offset
        if limit is not None and limit < end:
            end = limit
        file = None
        while self.position < end and count != max_records:
            if file is None or self.position >= file.start + file.size:
                file = self._log.files.find(self.position)
                if file is None:
                    break
            parsed = self._log.parse_next(file, self.position - file.start, self._delays_ms, check_crc=False)
            if isinstance(parsed, record.DispatchRequest):
                after = parsed.physical_offset + parsed.size
                if after > end:
                    break
                self.dispatch(parsed)
                self.position = after
                count += 1
            elif parsed == record.BLANK:
                following = self._log.roll_next_file(self.position)
                self._blank = self.position, following
                self.position = following
            else:
                break
        return count
