"""Encodes the messages of a DLedger leader as records for its peer.

A record gets its physical offset and its queue offset here. Its unit and its index entry are written when it
is committed, from the log, as on a follower. So queues end before the offsets that are already assigned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from epochmq_broker.membership.dledger.turn_batch import TurnBatch
from epochmq_dledger.store.entry_block import ENTRY_BYTES_MAX
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, FILLER_SIZE_MIN
from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_store import record
from epochmq_store.appending.appender import (
    Appender,
    AppendResult,
    BatchAppendResult,
    BatchMessage,
    too_large_status,
    with_host_flags,
)
from epochmq_store.index.key_index import KeyIndex
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.queue_extension import BitMapOf
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import StoreConfig


class LeaderAppender(Appender):
    """The appender of a broker in a DLedger group. `submit_soon` is called when the batch of this turn gets
    its first record."""

    __slots__ = ("_last_append_ms", "_offsets", "batch", "submit_soon")

    def __init__(
        self,
        *,
        log: CommitLog,
        index: KeyIndex,
        config: StoreConfig,
        store_host: bytes,
        bit_map: BitMapOf | None = None,
    ) -> None:
        self.batch = TurnBatch(config.mapped_file_size_commit_log)
        self.submit_soon: Callable[[], None] = lambda: None
        self._offsets: dict[ConsumeQueue, int] = {}
        """The next offset of each queue that has messages which are not committed."""
        self._last_append_ms = 0
        super().__init__(log=log, index=index, config=config, store_host=store_host, bit_map=bit_map)

    @property
    def end(self) -> int:
        return max(self.batch.end, self.log.max_offset)

    def configure(self, config: StoreConfig) -> None:
        super().configure(config)
        size_max = min(ENTRY_BYTES_MAX, config.mapped_file_size_commit_log - FILLER_SIZE_MIN)
        self._max_record = min(self._max_record, size_max - ENTRY_HEADER_SIZE)
        self._smallest_limit = min(self._smallest_limit, self._max_record)

    def next_offset(self, queue: ConsumeQueue) -> int:
        return self._offsets.get(queue, queue.max_offset)

    def takes_batch(self, queue: ConsumeQueue, size: int) -> bool:
        """Whether a batch is legal: each of its messages becomes an entry of its own."""
        return not isinstance(queue, BatchConsumeQueue)

    def forget_offsets(self) -> None:
        """Takes the next offsets from the queues again: everything that was appended is dispatched, or no
        longer this leader's."""
        self._offsets.clear()

    def append(
        self, queue: ConsumeQueue, *, body: bytes, properties: bytes, born_timestamp: int, born_host: bytes,
        flag: int = 0, sys_flag: int = 0, reconsume_times: int = 0, prepared_offset: int = 0,
        tags_code: int = 0, uniq_key: str | None = None, keys: str | None = None,
        store_host: bytes | None = None,
    ) -> AppendResult:  # fmt: skip
        """Adds one message to the batch of this turn. Its record is committed later, or never."""
        if self.rejection is not None:
            return self.rejection, -1, -1, 0
        store_host = store_host or self.store_host
        head = record_layout.HEADS[len(born_host), len(store_host)]
        size = queue.record_overhead + len(body) + len(properties) + head.size - record_layout.HEAD_V4.size
        if size > self._smallest_limit and (
            size > self._max_record
            or len(body) > self._max_body
            or len(properties) > const.PROPERTIES_BYTES_MAX
        ):
            return too_large_status(len(properties)), -1, -1, 0
        status, places, offset, size = self._append_all(
            queue, (BatchMessage(body, properties, flag),), (size,), head, born_timestamp, born_host,
            with_host_flags(sys_flag, born_host, store_host), reconsume_times, prepared_offset, store_host,
        )  # fmt: skip
        return status, places[0] if places else -1, offset, size

    def _append_all(
        self, queue: ConsumeQueue, messages: Sequence[BatchMessage], sizes: Sequence[int],
        head: struct.Struct, born_timestamp: int, born_host: bytes, sys_flag: int, reconsume_times: int,
        prepared_offset: int, store_host: bytes,
    ) -> BatchAppendResult:  # fmt: skip
        """Adds checked messages to the batch of this turn, all or none. Each becomes an entry of its own, as
        in RocketMQ. The size in the result reaches from the first record to the end of the last one."""
        if isinstance(queue, BatchConsumeQueue):
            return PutStatus.MESSAGE_ILLEGAL, [], -1, 0
        batch = self.batch
        if batch.is_full or queue in self._held:
            return PutStatus.OS_PAGE_CACHE_BUSY, [], -1, 0
        if not batch.records:
            self.submit_soon()
        now = self._last_append_ms = max(int(self._clock() * 1000), self._last_append_ms, self.last_timestamp)
        # Messages of the transaction types PREPARED and ROLLBACK get no unit, and offset 0.
        queued = not sys_flag & const.TRANSACTION_PREPARED_TYPE
        first = self._offsets.get(queue, queue.max_offset) if queued else 0
        offset = first
        places: list[int] = []
        for size, (body, properties, flag, *_) in zip(sizes, messages, strict=True):
            physical = batch.place(size)
            data = b"".join(
                (
                    head.pack(
                        size, queue.magic, crc32(body) & CRC_MASK, queue.queue_id, flag, offset,
                        physical, sys_flag, born_timestamp, born_host, now, store_host, reconsume_times,
                        prepared_offset, len(body),
                    ),
                    body,
                    queue.topic_field,
                    record_layout.LENGTH.pack(len(properties)),
                    properties,
                )
            )  # fmt: skip
            if self._property_crc:
                covered = data[: -record.CRC_PROPERTY_BYTES]
                data = covered + record.crc_property_of(covered)
            batch.add(physical, data)
            places.append(physical)
            if queued:
                offset += 1
        if queued:
            self._offsets[queue] = offset
        return PutStatus.PUT_OK, places, first, batch.end - places[0]
