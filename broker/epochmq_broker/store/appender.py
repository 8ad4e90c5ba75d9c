"""The append path: a message becomes a record in the log, a unit in its consume queue and a note for the
index.

This is what every send goes through, so it is written for speed: attributes are bound once, a record is put
together from parts that the queue has ready, nothing is parsed that is in hand. Everything that can fail
(space, files, sizes) is checked before the first byte is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from epochmq_broker.store import record
from epochmq_broker.store.commit_log import CommitLog
from epochmq_broker.store.consume_queue import UNIT, ConsumeQueue
from epochmq_broker.store.key_index import BUILD_THRESHOLD, INDEX_BACKLOG_MAX, KeyIndex
from epochmq_broker.store.mapped_file import DiskFullError, MappedFile, SpaceNotReadyError
from epochmq_broker.store.statuses import PutStatus
from epochmq_broker.store.store_config import (
    CONSUME_QUEUE_UNIT_BYTES,
    END_OF_FILE_BYTES,
    RECORD_OVERHEAD_BYTES,
    StoreConfig,
)

# (status, physical offset, queue offset, size in bytes); the numbers mean something when the status is
# PUT_OK.
AppendResult = tuple[PutStatus, int, int, int]
# The same for a batch, with the physical offset of every element.
BatchAppendResult = tuple[PutStatus, list[int], int, int]
# Called with (queue, queue offset, tag code) when a unit has been added to a queue.
ArrivalListener = Callable[[ConsumeQueue, int, int], None]

INDEX_BACKLOG_PER_TICK: Final = 8192  # after a failure the backlog is entered in steps, a step a tick

_OK: Final = PutStatus.PUT_OK
_HEAD: Final = record.HEAD_V4
_V6_FLAGS: Final = record.BORN_HOST_V6 | record.STORE_HOST_V6
_PROPERTIES_MAX: Final = record.PROPERTIES_MAX_BYTES
_LENGTHS: Final = tuple(size.to_bytes(2, "big") for size in range(_PROPERTIES_MAX + 1))


class BatchMessage(NamedTuple):
    """One message of a batch. `properties` are complete: what the request's header adds is appended
    already; the other fields are what they say (TAGS, UNIQ_KEY, KEYS)."""

    body: bytes
    properties: bytes
    flag: int = 0
    tags_code: int = 0
    uniq_key: str | None = None
    keys: str | None = None


class Appender:
    """Appends messages. `refuse` says why nothing may be written, None when all is well."""

    __slots__ = (
        "_clock",
        "_delays_ms",
        "_index_enabled",
        "_max_body",
        "_max_record",
        "_note",
        "_unlimited",
        "_waiting",
        "index",
        "last_timestamp",
        "log",
        "on_append",
        "on_failure",
        "on_index_backlog",
        "refuse",
        "store_host",
    )

    def __init__(self, log: CommitLog, index: KeyIndex, config: StoreConfig, store_host: bytes) -> None:
        """`store_host` is this broker's address and port, encoded; records carry it."""
        self.log = log
        self.index = index
        self.store_host = store_host
        self.refuse: PutStatus | None = None
        self.on_append: ArrivalListener | None = None
        self.on_failure: Callable[[OSError | DiskFullError], None] | None = None
        self.on_index_backlog: Callable[[], None] | None = (
            None  # INDEX_BACKLOG_MAX messages wait for the index
        )
        self.last_timestamp = 0  # store time of the newest message, epoch ms; never goes back
        self._clock = time.time
        self._waiting = index.waiting
        self._note = index.waiting.append
        self.configure(config)

    def configure(self, config: StoreConfig) -> None:
        """Takes over limits and switches."""
        self._max_body = config.max_message_size
        self._max_record = min(
            config.max_message_size + RECORD_OVERHEAD_BYTES,
            config.mapped_file_size_commit_log - END_OF_FILE_BYTES,
        )
        self._unlimited = min(
            self._max_record, self._max_body, _PROPERTIES_MAX
        )  # no limit is below this size
        self._index_enabled = config.message_index_enable
        self._delays_ms = config.delays_ms

    def append(
        self, queue: ConsumeQueue, *, body: bytes, properties: bytes, born_timestamp: int, born_host: bytes,
        flag: int = 0, sys_flag: int = 0, reconsume_times: int = 0, prepared_offset: int = 0,
        tags_code: int = 0, uniq_key: str | None = None, keys: str | None = None,
        store_host: bytes | None = None,
    ) -> AppendResult:  # fmt: skip
        """Stores one message (CommitLog.asyncPutMessage). `tags_code`, `uniq_key` and `keys` are what
        `properties` say (TAGS, UNIQ_KEY, KEYS); they are not parsed again. Hosts are address and port,
        encoded; `store_host` is this broker's unless the message keeps that of an earlier record. Times are
        epoch ms. One function however long: a call costs more than most of its lines."""
        if self.refuse is not None:
            return self.refuse, -1, -1, 0
        body_size = len(body)
        properties_size = len(properties)
        size = queue.overhead + body_size + properties_size
        if store_host is None:
            store_host = self.store_host
        head = _HEAD
        if len(born_host) != 8 or len(store_host) != 8 or sys_flag & _V6_FLAGS:
            head = record.HEADS[len(born_host), len(store_host)]
            sys_flag = _with_host_flags(sys_flag, born_host, store_host)
            size += head.size - _HEAD.size
        if size > self._unlimited and (
            size > self._max_record or body_size > self._max_body or properties_size > _PROPERTIES_MAX
        ):
            return _too_large(properties_size), -1, -1, 0
        # Half and rolled back messages of a transaction (as types) have no place in a queue, and offset 0.
        queued = not sys_flag & 4
        file = self.log.file
        if (
            file is None
            or file.wrote + size > file.unchecked_until
            or (queue.position >= queue.room and queued)
        ):
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
            view, at, size, queue.magic, crc32(body) & 0x7FFFFFFF, queue.queue_id, flag, offset,
            physical, sys_flag, born_timestamp, born_host, now, store_host, reconsume_times,
            prepared_offset, body_size,
        )  # fmt: skip
        end = at + size
        view[at + head.size : end] = b"".join(
            (body, queue.topic_field, _LENGTHS[properties_size], properties)
        )
        file.wrote = end
        if queued:
            if queue.schedule:
                tags_code = self._delivery_time(properties, now, tags_code)
            position = queue.position
            assert queue.map is not None
            UNIT.pack_into(queue.map, position, physical, size, tags_code)
            queue.position = position + CONSUME_QUEUE_UNIT_BYTES
            queue.max_offset = offset + 1
            queue.max_physical = physical + size
        if (uniq_key or keys) and self._index_enabled and sys_flag & 12 != 12:
            self._note((queue.hasher, uniq_key, keys, physical, now))
            if len(self._waiting) >= BUILD_THRESHOLD:
                self.build_index()
        if queued and self.on_append is not None:
            self.on_append(queue, offset, tags_code)
        return _OK, physical, offset, size

    def append_batch(
        self,
        queue: ConsumeQueue,
        elements: Sequence[BatchMessage],
        *,
        born_timestamp: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> BatchAppendResult:
        """Stores the elements of a batch in one file under one store time with consecutive queue offsets,
        all or none (CommitLog.asyncPutMessages). Transaction types are MESSAGE_ILLEGAL."""
        if self.refuse is not None:
            return self.refuse, [], -1, 0
        if sys_flag & record.TRANSACTION_MASK or not elements:
            return PutStatus.MESSAGE_ILLEGAL, [], -1, 0
        store_host = self.store_host
        head = record.HEADS[len(born_host), len(store_host)]
        sys_flag = _with_host_flags(sys_flag, born_host, store_host)
        overhead = queue.overhead + head.size - _HEAD.size
        sizes = [overhead + len(element.body) + len(element.properties) for element in elements]
        for size, element in zip(sizes, elements, strict=True):
            if size > self._max_record or len(element.properties) > _PROPERTIES_MAX:
                return _too_large(len(element.properties)), [], -1, 0
        total = sum(sizes)
        if total > self.log.files.file_size - END_OF_FILE_BYTES:
            return PutStatus.MESSAGE_ILLEGAL, [], -1, 0
        made = self._make_room(queue, total)
        if isinstance(made, PutStatus):
            return made, [], -1, 0
        now = self.last_timestamp = max(int(self._clock() * 1000), self.last_timestamp)
        first = queue.max_offset
        places: list[int] = []
        parts: list[bytes] = []
        physical = made.end
        for offset, (size, (body, properties, flag, *_)) in enumerate(
            zip(sizes, elements, strict=True), first
        ):
            parts.append(
                head.pack(
                    size, queue.magic, crc32(body) & 0x7FFFFFFF, queue.queue_id, flag, offset, physical,
                    sys_flag, born_timestamp, born_host, now, store_host, reconsume_times, 0, len(body),
                )
            )  # fmt: skip
            parts += (body, queue.topic_field, _LENGTHS[len(properties)], properties)
            places.append(physical)
            physical += size
        failure = self._dispatch_batch(queue, elements, places, sizes)
        if failure is not None:
            return failure, [], -1, 0
        made.map[made.wrote : made.wrote + total] = b"".join(parts)
        made.wrote += total
        self._announce_batch(queue, elements, places, first, now)
        return _OK, places, first, total

    def _dispatch_batch(
        self, queue: ConsumeQueue, elements: Sequence[BatchMessage], places: list[int], sizes: list[int]
    ) -> PutStatus | None:
        """Adds the batch's units, ahead of its records; on a full disk none of them stays."""
        try:
            for element, physical, size in zip(elements, places, sizes, strict=True):
                queue.put(queue.max_offset, physical, size, element.tags_code)
        except (DiskFullError, OSError) as error:
            queue.truncate(places[0])
            return self._failed(error)
        return None

    def _announce_batch(
        self, queue: ConsumeQueue, elements: Sequence[BatchMessage], places: list[int], first: int, now: int
    ) -> None:
        if self._index_enabled:
            for element, physical in zip(elements, places, strict=True):
                if element.uniq_key or element.keys:
                    self._note((queue.hasher, element.uniq_key, element.keys, physical, now))
            if len(self._waiting) >= BUILD_THRESHOLD:
                self.build_index()
        if self.on_append is not None:
            for offset, element in enumerate(elements, first):
                self.on_append(queue, offset, element.tags_code)

    def build_index(self, *, again: bool = False) -> None:
        """Enters what waits for the index. When that fails, it goes on waiting, and the store is told; a tick
        tries `again`, the messages in between do not."""
        index = self.index
        if index.failing and not again:
            if len(self._waiting) >= INDEX_BACKLOG_MAX and self.on_index_backlog is not None:
                self.on_index_backlog()
            return
        try:
            index.build(INDEX_BACKLOG_PER_TICK)
        except (DiskFullError, OSError) as error:
            self._failed(error)

    def _make_room(self, queue: ConsumeQueue | None, size: int) -> MappedFile | PutStatus:
        """Space for a record (or batch) of `size` bytes and, if it is queued, a unit."""
        try:
            if queue is not None and queue.position >= queue.room:
                queue.make_room()
            return self.log.room(size)
        except (DiskFullError, OSError) as error:
            return self._failed(error)

    def _failed(self, error: OSError | DiskFullError) -> PutStatus:
        """A put that found no space: the message is not stored, and the store says so until there is space
        again."""
        if isinstance(error, SpaceNotReadyError):
            return PutStatus.OS_PAGE_CACHE_BUSY
        if self.on_failure is not None:
            self.on_failure(error)
        if isinstance(error, DiskFullError):
            return PutStatus.SERVICE_NOT_AVAILABLE
        return PutStatus.CREATE_MAPPED_FILE_FAILED

    def _delivery_time(self, properties: bytes, now: int, tags_code: int) -> int:
        """In the schedule topic the tag code is when the message is due."""
        due = record.delay_tags_code(properties, now, self._delays_ms)
        return tags_code if due is None else due


def _with_host_flags(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """The two bits that say how long the hosts are, whatever the sender put there."""
    sys_flag &= ~_V6_FLAGS
    if len(born_host) == 20:
        sys_flag |= record.BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= record.STORE_HOST_V6
    return sys_flag


def _too_large(properties_size: int) -> PutStatus:
    if properties_size > _PROPERTIES_MAX:
        return PutStatus.PROPERTIES_SIZE_EXCEEDED
    return PutStatus.MESSAGE_ILLEGAL
