"""Stores large batches in parts, each in a turn of the event loop, so that other requests need not wait for
the whole of one.

RocketMQ stores a batch under the lock of its log, all or nothing. Here everything that may make a batch
illegal is checked before its first part is stored. From then until its last part its queue is held: no other
message gets between its messages. Other queues go on. A store that stops accepting messages, for example
because another broker becomes the master, ends the hold and with it the batch. Then the first parts may be
stored, as after a crash of RocketMQ's broker in the middle of a batch, and the sender gets an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_protocol import message as records
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.message import BatchElement
from epochmq_protocol.message_const import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
)
from epochmq_protocol.transport.turns import Turns
from epochmq_store.appending.appender import BatchMessage
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.statuses import PutStatus

BATCH_AT_ONCE: Final = 256
"""A batch of so many messages is stored at once, a larger one in parts of at most so many."""
PART_BYTES: Final = 256 * 1024
"""A part ends behind the message with which its bodies and properties have so many bytes."""
DECODED_AT_A_TIME: Final = 64
BUSY_MAX_S: Final = 2.5
"""How long a batch waits for its queue, or for space in the log. A Java producer times out after 3 s."""


class QueueHolds:
    """The queues of a store that are held for large batches, each for one at a time."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._released: dict[ConsumeQueue, asyncio.Event] = {}
        self.waiting_bytes = 0
        """The bytes of the bodies of requests that wait until a queue is free."""

    def released(self, topic: str, queue_id: int) -> asyncio.Event | None:
        """Is set when the queue is free again; None for a queue that is not held."""
        if not self._released:
            return None
        queue = self._store.lookup.existing_queue(topic, queue_id)
        return None if queue is None else self._released.get(queue)

    def take(self, queue: ConsumeQueue) -> bool:
        """Holds a queue; False if it is held for another batch."""
        if queue in self._released:
            return False
        self._released[queue] = asyncio.Event()
        self._store.appender.hold(queue)
        return True

    def end(self, queue: ConsumeQueue) -> None:
        """Frees a queue."""
        self._store.appender.release(queue)
        self._released.pop(queue).set()


class BatchWriter(Protocol):
    """The part of `MessageWriter` that stores a large batch."""

    on_append: Callable[[], None] | None
    holds: QueueHolds

    def rejection(self, wait: str) -> PutStatus | None:
        """The status with which a message is rejected now, None if it is not."""
        ...

    def has_light_offsets(self, topic: str, messages: Sequence[BatchMessage]) -> bool:
        """Whether a message has offsets of light queues."""
        ...


class LargeBatch:
    """A batch that has passed the checks of its header, with its first messages. None is stored yet."""

    def __init__(
        self,
        writer: BatchWriter,
        store: MessageStore,
        message: InnerMessage,
        common: bytes,
        first: list[BatchMessage],
        at: int,
    ) -> None:
        """`common`: the properties that each message gets. `first`: the messages before byte `at`."""
        self._writer = writer
        self._store = store
        self._message = message
        self._common = common
        self._first = first
        self._at = at

    async def put(self, turns: Turns, on_part: Callable[[Sequence[int], int], None]) -> PutResult:
        """Stores all messages in the turns of a request. Calls `on_part` for each part that is stored: with
        the physical offsets of its messages, and the end of the last one. The result has the offsets of the
        first message, and the size of all. With another status than PUT_OK, no message is stored unless
        `on_part` was called. Raises RequestError MESSAGE_ILLEGAL for a malformed batch."""
        message = self._message
        queue = self._store.queue(message.topic, message.queue_id)
        parts = await self._parts(turns, queue)
        if isinstance(parts, PutStatus):
            return self._refused(parts)
        await turns.end()  # the first turn stores nothing: its request may still be rejected
        until_s = time.monotonic() + BUSY_MAX_S
        while not self._writer.holds.take(queue):
            if time.monotonic() > until_s:
                return self._refused(PutStatus.OS_PAGE_CACHE_BUSY)
            await turns.end()
        try:
            return await self._put_parts(turns, queue, parts, on_part)
        finally:
            self._writer.holds.end(queue)

    async def _parts(self, turns: Turns, queue: ConsumeQueue) -> list[list[BatchMessage]] | PutStatus:
        """The messages, in parts. MESSAGE_ILLEGAL or PROPERTIES_SIZE_EXCEEDED if RocketMQ would store
        none."""
        message, appender = self._message, self._store.appender
        parts: list[list[BatchMessage]] = []
        part: list[BatchMessage] = []
        total = part_bytes = 0
        some, number = self._first, len(self._first)
        while some:
            size = appender.batch_bytes(queue, some, message.born_host)
            if isinstance(size, PutStatus):
                return size
            total += size
            if self._writer.has_light_offsets(message.topic, some):
                return PutStatus.MESSAGE_ILLEGAL
            for one in some:
                part.append(one)
                part_bytes += len(one.body) + len(one.properties)
                if len(part) >= BATCH_AT_ONCE or part_bytes >= PART_BYTES:
                    parts.append(part)
                    part, part_bytes = [], 0
            if turns.is_long:
                await turns.end()
            items, self._at = records.decode_batch_part(message.body, self._at, DECODED_AT_A_TIME, number)
            number += len(items)
            some = [batch_message(item, self._common) for item in items]
        if part:
            parts.append(part)
        return parts if appender.takes_batch(queue, total) else PutStatus.MESSAGE_ILLEGAL

    async def _put_parts(
        self,
        turns: Turns,
        queue: ConsumeQueue,
        parts: list[list[BatchMessage]],
        on_part: Callable[[Sequence[int], int], None],
    ) -> PutResult:
        """Stores the parts in the held queue."""
        message = self._message
        wait = message.properties.get(PROPERTY_WAIT_STORE_MSG_OK, "true")
        refused = self._writer.rejection(wait)
        if refused is not None:
            return self._refused(refused)
        first = next_offset = self._store.appender.next_offset(queue)
        places: list[int] = []
        size = 0
        for part in parts:
            if turns.is_long:
                await turns.end()
            offsets = await self._put_part(turns, queue, part, next_offset)
            if isinstance(offsets, PutStatus):
                return self._refused(offsets)
            physical, part_size = offsets
            places += physical
            size += part_size
            next_offset += len(part)
            on_part(physical, physical[0] + part_size)
            if self._writer.on_append is not None:
                self._writer.on_append()
            await turns.end()
        return PutResult(
            PutStatus.PUT_OK,
            places[0],
            first,
            size,
            tuple(places),
            topic=message.topic,
            queue_id=message.queue_id,
        )

    async def _put_part(
        self, turns: Turns, queue: ConsumeQueue, part: list[BatchMessage], offset: int
    ) -> tuple[list[int], int] | PutStatus:
        """Stores one part, whose first message gets this offset. Returns the physical offsets of its messages
        and its size. Waits while the log has no space for it yet."""
        message, store = self._message, self._store
        until_s = time.monotonic() + BUSY_MAX_S
        while True:
            # The right to write is asked for each part. A loss of replicas only delays the acknowledgement.
            if self._writer.rejection("false") is PutStatus.SERVICE_NOT_AVAILABLE:
                return PutStatus.SERVICE_NOT_AVAILABLE
            if store.queue(message.topic, message.queue_id) is not queue:
                return PutStatus.SERVICE_NOT_AVAILABLE  # its topic was deleted
            if store.appender.next_offset(queue) != offset:
                return PutStatus.SERVICE_NOT_AVAILABLE  # its topic was deleted, or its log truncated
            status, places, _, size = store.appender.append_to_held(
                queue,
                part,
                sys_flag=message.sys_flag,
                born_timestamp=message.born_timestamp,
                born_host=message.born_host,
                reconsume_times=message.reconsume_times,
            )
            if status is PutStatus.PUT_OK:
                return places, size
            if status is not PutStatus.OS_PAGE_CACHE_BUSY or time.monotonic() > until_s:
                return status
            await turns.end()

    def _refused(self, status: PutStatus) -> PutResult:
        return PutResult(status, topic=self._message.topic, queue_id=self._message.queue_id)


def batch_message(item: BatchElement, common: bytes) -> BatchMessage:
    """Builds one message of a batch. The batch's own properties, `common`, follow the message's, so that they
    take precedence (MessageExtEncoder)."""
    own = item.properties
    separator = b"\x02" if own and common and not own.endswith(b"\x02") else b""
    stored = own + separator + common
    properties = records.parse_properties(stored)
    tags = properties.get(PROPERTY_TAGS)
    return BatchMessage(
        item.body,
        stored,
        item.flag,
        tags_code(tags) if tags else 0,
        properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
        properties.get(PROPERTY_KEYS),
    )
