"""Appends messages: each becomes a record in the log, a unit in its consume queue and an item of the index's
backlog.

Every send runs through this module, so it is written for speed. Attributes are bound once, a record is joined
from parts that the queue has prepared, and nothing is parsed that the caller knows. All failures (space,
files, sizes) occur before the first byte is written.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from epochmq_formats.queue_unit import UNIT, UNIT_BYTES
from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_store import record
from epochmq_store.files.mapped_file import DiskFullError, MappedFile, SpaceNotReadyError
from epochmq_store.index.key_index import BUILD_THRESHOLD, INDEX_BACKLOG_MAX, KeyIndex
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.queue_extension import BitMapOf
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import RECORD_OVERHEAD_BYTES, StoreConfig

# (status, physical offset, queue offset, size in bytes); the numbers are valid when the status is PUT_OK.
AppendResult = tuple[PutStatus, int, int, int]
# The same for a batch, with the physical offset of each message.
BatchAppendResult = tuple[PutStatus, list[int], int, int]
# Called with (queue, queue offset, tag code) when a unit has been added to a queue.
ArrivalListener = Callable[[ConsumeQueue, int, int], None]

INDEX_BACKLOG_PER_TICK: Final = 8192  # messages; after a failure each tick enters so many of the backlog

_OK: Final = PutStatus.PUT_OK
_HOST_BYTES: Final = record_layout.HOST_BYTES
_HEAD: Final = record_layout.HEAD_V4
_V6_FLAGS: Final = record_layout.HOSTS_V6
_PREPARED: Final = const.TRANSACTION_PREPARED_TYPE
_ROLLBACK: Final = const.TRANSACTION_ROLLBACK_TYPE
_PROPERTIES_MAX: Final = const.PROPERTIES_BYTES_MAX
_LENGTHS: Final = tuple(size.to_bytes(2, "big") for size in range(_PROPERTIES_MAX + 1))


class BatchMessage(NamedTuple):
    """One message of a batch. `properties` are complete and include those that the request's header adds. The
    other fields are derived from them (TAGS, UNIQ_KEY, KEYS)."""

    body: bytes
    properties: bytes
    flag: int = 0
    tags_code: int = 0
    uniq_key: str | None = None
    keys: str | None = None


class Appender:
    """Appends messages. `rejection` is the status with which it rejects all messages, None to accept them."""

    __slots__ = (
        "_add_to_index_backlog",
        "_bit_map",
        "_clock",
        "_delays_ms",
        "_held",
        "_index_backlog",
        "_index_enabled",
        "_max_body",
        "_max_record",
        "_on_append",
        "_on_failure",
        "_on_index_backlog",
        "_property_crc",
        "_smallest_limit",
        "index",
        "last_timestamp",
        "log",
        "rejection",
        "store_host",
    )

    def __init__(
        self,
        *,
        log: CommitLog,
        index: KeyIndex,
        config: StoreConfig,
        store_host: bytes,
        bit_map: BitMapOf | None = None,
    ) -> None:
        """`store_host` is this broker's encoded address and port; records contain it. `bit_map` computes the
        filter bit maps of queue extensions, None for none."""
        self.log = log
        self.index = index
        self.store_host = store_host
        self.rejection: PutStatus | None = None
        self._bit_map = bit_map
        self._held: set[ConsumeQueue] = set()
        """The queues in which a batch is being stored in parts. Each has the buffer limit 0, so that `append`
        need not ask."""
        self._on_append: ArrivalListener | None = None
        self._on_failure: Callable[[OSError | DiskFullError], None] | None = None
        self._on_index_backlog: Callable[[], None] | None = None
        self.last_timestamp = 0  # store time of the newest message, epoch ms; never decreases
        self._clock = time.time
        self._index_backlog = index.backlog
        self._add_to_index_backlog = index.backlog.append
        self.configure(config)

    def reject(self, status: PutStatus | None) -> None:
        """Rejects all messages with this status from now on; None accepts them. A rejection ends every hold
        of a queue."""
        self.rejection = status
        if status is not None:
            self._held.clear()

    def hold(self, queue: ConsumeQueue) -> None:
        """Keeps a queue for one batch, until `release` or until messages are rejected: other messages for it
        get OS_PAGE_CACHE_BUSY."""
        self._held.add(queue)
        queue.buffer_limit = 0

    def release(self, queue: ConsumeQueue) -> None:
        """Accepts other messages for a queue again."""
        self._held.discard(queue)

    def is_held(self, queue: ConsumeQueue) -> bool:
        """Whether a queue is kept for one batch."""
        return queue in self._held

    def next_offset(self, queue: ConsumeQueue) -> int:
        """The offset that the queue's next message gets."""
        return queue.max_offset

    def notify_appends(self, listener: ArrivalListener | None) -> None:
        """Calls this listener at every append from now on, in place of the previous one; None for no
        listener."""
        self._on_append = listener

    def report_failures(
        self,
        *,
        on_failure: Callable[[OSError | DiskFullError], None],
        on_index_backlog: Callable[[], None],
    ) -> None:
        """Calls `on_failure` when no space or file could be had for a message, and `on_index_backlog` when
        INDEX_BACKLOG_MAX messages are not in the index."""
        self._on_failure = on_failure
        self._on_index_backlog = on_index_backlog

    @property
    def end(self) -> int:
        """The offset after the last byte that was appended."""
        return self.log.max_offset

    def configure(self, config: StoreConfig) -> None:
        """Applies limits and switches."""
        self._max_body = config.max_message_size
        self._max_record = min(
            config.max_message_size + RECORD_OVERHEAD_BYTES,
            config.mapped_file_size_commit_log - record_layout.BLANK_BYTES,
        )
        self._smallest_limit = min(self._max_record, self._max_body, _PROPERTIES_MAX)
        self._index_enabled = config.message_index_enable
        self._delays_ms = config.delays_ms
        self._property_crc = config.enabled_append_prop_crc

    def append(
        self, queue: ConsumeQueue, *, body: bytes, properties: bytes, born_timestamp: int, born_host: bytes,
        flag: int = 0, sys_flag: int = 0, reconsume_times: int = 0, prepared_offset: int = 0,
        tags_code: int = 0, uniq_key: str | None = None, keys: str | None = None,
        store_host: bytes | None = None,
    ) -> AppendResult:  # fmt: skip
        """Stores one message (CommitLog.asyncPutMessage). The caller derives `tags_code`, `uniq_key` and
        `keys` from `properties` (TAGS, UNIQ_KEY, KEYS). Hosts are encoded addresses and ports; `store_host`
        is given for a message that keeps the host of an earlier record. Times are epoch ms. This is one long
        function because a call costs more than most of its lines."""
        if self.rejection is not None:
            return self.rejection, -1, -1, 0
        body_size = len(body)
        properties_size = len(properties)
        size = queue.record_overhead + body_size + properties_size
        if store_host is None:
            store_host = self.store_host
        head = _HEAD
        if len(born_host) != _HOST_BYTES or len(store_host) != _HOST_BYTES or sys_flag & _V6_FLAGS:
            head = record_layout.HEADS[len(born_host), len(store_host)]
            sys_flag = with_host_flags(sys_flag, born_host, store_host)
            size += head.size - _HEAD.size
        if size > self._smallest_limit and (
            size > self._max_record or body_size > self._max_body or properties_size > _PROPERTIES_MAX
        ):
            return too_large_status(properties_size), -1, -1, 0
        # Messages of the transaction types PREPARED and ROLLBACK get no unit, and offset 0.
        queued = not sys_flag & _PREPARED
        file = self.log.file
        if (
            file is None
            or file.wrote + size > file.unchecked_until
            or (queue.buffer_position >= queue.buffer_limit and queued)
        ):
            if queued and isinstance(queue, BatchConsumeQueue):  # its buffer is always empty
                message = BatchMessage(body, properties, flag, tags_code, uniq_key, keys)
                status, places, offset, size = self._append_all(
                    queue, (message,), (size,), head, born_timestamp, born_host, sys_flag,
                    reconsume_times, prepared_offset, store_host,
                )  # fmt: skip
                return status, places[0] if places else -1, offset, size
            made = self._make_room(queue if queued else None, size)
            if isinstance(made, PutStatus):
                return made, -1, -1, 0
            file = made
        now = int(self._clock() * 1000)
        if now < self.last_timestamp:
            now = self.last_timestamp
        self.last_timestamp = now
        at = file.wrote
        physical = file.start + at
        offset = queue.max_offset if queued else 0
        view = file.map
        head.pack_into(
            view, at, size, queue.magic, crc32(body) & CRC_MASK, queue.queue_id, flag, offset,
            physical, sys_flag, born_timestamp, born_host, now, store_host, reconsume_times,
            prepared_offset, body_size,
        )  # fmt: skip
        end = at + size
        view[at + head.size : end] = b"".join(
            (body, queue.topic_field, _LENGTHS[properties_size], properties)
        )
        if self._property_crc:
            before = end - record.CRC_PROPERTY_BYTES
            view[before:end] = record.crc_property_of(view[at:before])
        file.wrote = end
        if queued:
            code = tags_code
            if queue.has_special_codes:
                if queue.is_schedule:
                    code = tags_code = self._delivery_time(properties, now, tags_code)
                if queue.extension is not None:
                    bit_map = b"" if self._bit_map is None else self._bit_map(queue.topic, properties)
                    code = queue.extension.put(tags_code, now, bit_map)
            position = queue.buffer_position
            assert queue.buffer is not None
            UNIT.pack_into(queue.buffer, position, physical, size, code)
            queue.buffer_position = position + UNIT_BYTES
            queue.max_offset = offset + 1
            queue.max_physical = physical + size
        if (uniq_key or keys) and self._index_enabled and sys_flag & _ROLLBACK != _ROLLBACK:
            self._add_to_index_backlog((queue.hasher, uniq_key, keys, physical, now))
            if len(self._index_backlog) >= BUILD_THRESHOLD:
                self.build_index()
        if queued and self._on_append is not None:
            self._on_append(queue, offset, tags_code)
        return _OK, physical, offset, size

    def append_with_property_crc(
        self, queue: ConsumeQueue, *, body: bytes, properties: bytes, born_timestamp: int, born_host: bytes,
        flag: int = 0, sys_flag: int = 0, reconsume_times: int = 0, prepared_offset: int = 0,
        tags_code: int = 0, uniq_key: str | None = None, keys: str | None = None,
        store_host: bytes | None = None,
    ) -> AppendResult:  # fmt: skip
        """Stores one message as `append` does, with the property `__CRC32#` at the end
        (enabledAppendPropCRC). With that setting, `append` itself expects properties with the space for
        it."""
        return self.append(
            queue, body=body, properties=record.with_crc_space(properties), born_timestamp=born_timestamp,
            born_host=born_host, flag=flag, sys_flag=sys_flag, reconsume_times=reconsume_times,
            prepared_offset=prepared_offset, tags_code=tags_code, uniq_key=uniq_key, keys=keys,
            store_host=store_host,
        )  # fmt: skip

    def append_to_light_queues(
        self, queue: ConsumeQueue, light: Sequence[ConsumeQueue], *, body: bytes, properties: bytes,
        born_timestamp: int, born_host: bytes, flag: int = 0, sys_flag: int = 0, reconsume_times: int = 0,
        prepared_offset: int = 0, tags_code: int = 0, uniq_key: str | None = None, keys: str | None = None,
        store_host: bytes | None = None,
    ) -> AppendResult:  # fmt: skip
        """Stores one message as `append` does, with a unit in each of these light message queues. The units
        come first, because the disk may have no room for them. As in RocketMQ the whole record may have
        maxMessageSize bytes, not only its body."""
        if self.rejection is not None:
            return self.rejection, -1, -1, 0
        if self._property_crc:
            properties = record.with_crc_space(properties)
        hosts = record_layout.HEADS[len(born_host), len(store_host or self.store_host)]
        size = queue.record_overhead + len(body) + len(properties) + hosts.size - _HEAD.size
        if size > self._smallest_limit and (size > self._max_body or len(properties) > _PROPERTIES_MAX):
            return too_large_status(len(properties)), -1, -1, 0
        if not self._held.isdisjoint(light):
            return PutStatus.OS_PAGE_CACHE_BUSY, -1, -1, 0
        made = self._make_room(queue, size)
        if isinstance(made, PutStatus):
            return made, -1, -1, 0
        physical = made.end
        try:
            for each in light:
                each.put(each.max_offset, physical, size, tags_code)
            status, written, offset, written_size = self.append(
                queue, body=body, properties=properties, born_timestamp=born_timestamp, born_host=born_host,
                flag=flag, sys_flag=sys_flag, reconsume_times=reconsume_times,
                prepared_offset=prepared_offset, tags_code=tags_code, uniq_key=uniq_key, keys=keys,
                store_host=store_host,
            )  # fmt: skip
        except (DiskFullError, OSError) as error:
            status, written, offset, written_size = self._failed(error), -1, -1, 0
        if status is not _OK:
            for each in light:
                each.truncate(physical)
            return status, -1, -1, 0
        assert (written, written_size) == (physical, size)
        if self._on_append is not None:
            for each in light:
                self._on_append(each, each.max_offset - 1, tags_code)
        return status, written, offset, written_size

    def append_batch(
        self,
        queue: ConsumeQueue,
        messages: Sequence[BatchMessage],
        *,
        born_timestamp: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> BatchAppendResult:
        """Stores all messages of a batch or none (CommitLog.asyncPutMessages): in one file, with one store
        time and consecutive queue offsets. Transaction types are MESSAGE_ILLEGAL."""
        if self.rejection is not None:
            return self.rejection, [], -1, 0
        if sys_flag & const.TRANSACTION_ROLLBACK_TYPE or not messages:
            return PutStatus.MESSAGE_ILLEGAL, [], -1, 0
        if self._property_crc:
            messages = [
                message._replace(properties=record.with_crc_space(message.properties)) for message in messages
            ]
        store_host = self.store_host
        head = record_layout.HEADS[len(born_host), len(store_host)]
        sys_flag = with_host_flags(sys_flag, born_host, store_host)
        sizes = self._batch_sizes(queue, messages, head)
        if isinstance(sizes, PutStatus):
            return sizes, [], -1, 0
        return self._append_all(
            queue, messages, sizes, head, born_timestamp, born_host, sys_flag, reconsume_times, 0, store_host
        )

    def append_to_held(
        self, queue: ConsumeQueue, messages: Sequence[BatchMessage], *, born_timestamp: int,
        born_host: bytes, sys_flag: int = 0, reconsume_times: int = 0,
    ) -> BatchAppendResult:  # fmt: skip
        """Stores a part of the batch for which the queue is kept, as `append_batch` does. The status is
        SERVICE_NOT_AVAILABLE if the hold has ended."""
        if queue not in self._held:
            return self.rejection or PutStatus.SERVICE_NOT_AVAILABLE, [], -1, 0
        self._held.discard(queue)
        try:
            return self.append_batch(
                queue, messages, born_timestamp=born_timestamp, born_host=born_host, sys_flag=sys_flag,
                reconsume_times=reconsume_times,
            )  # fmt: skip
        finally:
            if self.rejection is None:
                self.hold(queue)

    def batch_bytes(
        self, queue: ConsumeQueue, messages: Sequence[BatchMessage], born_host: bytes
    ) -> int | PutStatus:
        """The bytes of these messages' records. The status of a batch that has a message which is too
        large."""
        if self._property_crc:
            messages = [
                message._replace(properties=record.with_crc_space(message.properties)) for message in messages
            ]
        head = record_layout.HEADS[len(born_host), len(self.store_host)]
        sizes = self._batch_sizes(queue, messages, head)
        return sizes if isinstance(sizes, PutStatus) else sum(sizes)

    def takes_batch(self, queue: ConsumeQueue, size: int) -> bool:
        """Whether a batch whose records have `size` bytes is legal: as in RocketMQ it fits into one file."""
        return size <= self.log.files.file_size - record_layout.BLANK_BYTES

    def _batch_sizes(
        self, queue: ConsumeQueue, messages: Sequence[BatchMessage], head: struct.Struct
    ) -> list[int] | PutStatus:
        """The sizes of the messages' records, or the status if one is too large."""
        overhead = queue.record_overhead + head.size - _HEAD.size
        sizes = [overhead + len(message.body) + len(message.properties) for message in messages]
        for size, message in zip(sizes, messages, strict=True):
            if size > self._max_record or len(message.properties) > _PROPERTIES_MAX:
                return too_large_status(len(message.properties))
        return sizes

    def _append_all(
        self, queue: ConsumeQueue, messages: Sequence[BatchMessage], sizes: Sequence[int],
        head: struct.Struct, born_timestamp: int, born_host: bytes, sys_flag: int, reconsume_times: int,
        prepared_offset: int, store_host: bytes,
    ) -> BatchAppendResult:  # fmt: skip
        """Stores checked messages, each as one record of these sizes."""
        total = sum(sizes)
        if total > self.log.files.file_size - record_layout.BLANK_BYTES:
            return PutStatus.MESSAGE_ILLEGAL, [], -1, 0
        if queue in self._held:
            return PutStatus.OS_PAGE_CACHE_BUSY, [], -1, 0
        made = self._make_room(None if isinstance(queue, BatchConsumeQueue) else queue, total)
        if isinstance(made, PutStatus):
            return made, [], -1, 0
        now = self.last_timestamp = max(int(self._clock() * 1000), self.last_timestamp)
        first = queue.max_offset
        offsets: list[int] = []
        parts: list[bytes] = []
        physical = made.end
        for offset, (size, (body, properties, flag, *_)) in enumerate(
            zip(sizes, messages, strict=True), first
        ):
            packed = head.pack(
                size, queue.magic, crc32(body) & CRC_MASK, queue.queue_id, flag, offset, physical,
                sys_flag, born_timestamp, born_host, now, store_host, reconsume_times,
                prepared_offset, len(body),
            )  # fmt: skip
            parts += (packed, body, queue.topic_field, _LENGTHS[len(properties)], properties)
            if self._property_crc:
                covered = b"".join(parts[-5:])[: -record.CRC_PROPERTY_BYTES]
                parts[-5:] = (covered, record.crc_property_of(covered))
            offsets.append(physical)
            physical += size
        failure = self._dispatch_batch(queue, messages, offsets, sizes, now)
        if failure is not None:
            return failure, [], -1, 0
        made.map[made.wrote : made.wrote + total] = b"".join(parts)
        made.wrote += total
        self._notify_batch(queue, messages, offsets, first, now)
        return _OK, offsets, first, total

    def _dispatch_batch(
        self,
        queue: ConsumeQueue,
        messages: Sequence[BatchMessage],
        offsets: list[int],
        sizes: Sequence[int],
        now: int,
    ) -> PutStatus | None:
        """Adds the batch's units before its records; on a full disk it removes them again."""
        try:
            for message, physical, size in zip(messages, offsets, sizes, strict=True):
                if isinstance(queue, BatchConsumeQueue):
                    stored, code = message.properties, message.tags_code
                    queue.put_record(stored, queue.max_offset, physical, size, code, now)
                    continue
                bit_map = b""
                if queue.extension is not None and self._bit_map is not None:
                    bit_map = self._bit_map(queue.topic, message.properties)
                queue.put(queue.max_offset, physical, size, message.tags_code, now, bit_map)
        except (DiskFullError, OSError) as error:
            queue.truncate(offsets[0])
            return self._failed(error)
        return None

    def _notify_batch(
        self, queue: ConsumeQueue, messages: Sequence[BatchMessage], offsets: list[int], first: int, now: int
    ) -> None:
        if self._index_enabled:
            for message, physical in zip(messages, offsets, strict=True):
                if message.uniq_key or message.keys:
                    self._add_to_index_backlog((queue.hasher, message.uniq_key, message.keys, physical, now))
            if len(self._index_backlog) >= BUILD_THRESHOLD:
                self.build_index()
        if self._on_append is not None:
            for offset, message in enumerate(messages, first):
                self._on_append(queue, offset, message.tags_code)

    def build_index(self, *, retry: bool = False) -> None:
        """Enters the backlog into the index. On a failure the backlog stays, and `on_failure` is called;
        later messages do not try again, ticks do by `retry`."""
        index = self.index
        if index.failing and not retry:
            if len(self._index_backlog) >= INDEX_BACKLOG_MAX and self._on_index_backlog is not None:
                self._on_index_backlog()
            return
        try:
            index.build(INDEX_BACKLOG_PER_TICK)
        except (DiskFullError, OSError) as error:
            self._failed(error)

    def _make_room(self, queue: ConsumeQueue | None, size: int) -> MappedFile | PutStatus:
        """Reserves space for a record or batch of `size` bytes, and for a unit if there is a queue."""
        if queue is not None and queue in self._held:
            return PutStatus.OS_PAGE_CACHE_BUSY
        try:
            if queue is not None and queue.buffer_position >= queue.buffer_limit:
                queue.make_room()
            file = self.log.file
            if file is not None and file.wrote + size <= file.unchecked_until:
                return file  # only the queue had no room
            return self.log.writable_file(size)
        except (DiskFullError, OSError) as error:
            return self._failed(error)

    def _failed(self, error: OSError | DiskFullError) -> PutStatus:
        """Reports a message that could not be stored, and returns its status."""
        if isinstance(error, SpaceNotReadyError):
            return PutStatus.OS_PAGE_CACHE_BUSY
        if self._on_failure is not None:
            self._on_failure(error)
        if isinstance(error, DiskFullError):
            return PutStatus.SERVICE_NOT_AVAILABLE
        return PutStatus.CREATE_MAPPED_FILE_FAILED

    def _delivery_time(self, properties: bytes, now: int, tags_code: int) -> int:
        """The tag code of a message in the schedule topic: its delivery time."""
        due = record.delay_tags_code(properties, now, self._delays_ms)
        return tags_code if due is None else due


def with_host_flags(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """Sets the two bits that tell the size of the hosts, whatever the sender set."""
    sys_flag &= ~_V6_FLAGS
    if len(born_host) == record_layout.HOST_V6_BYTES:
        sys_flag |= const.BORNHOST_V6_FLAG
    if len(store_host) == record_layout.HOST_V6_BYTES:
        sys_flag |= const.STOREHOSTADDRESS_V6_FLAG
    return sys_flag


def too_large_status(properties_size: int) -> PutStatus:
    """The status of a message that is too large, with properties of this size."""
    if properties_size > _PROPERTIES_MAX:
        return PutStatus.PROPERTIES_SIZE_EXCEEDED
    return PutStatus.MESSAGE_ILLEGAL
