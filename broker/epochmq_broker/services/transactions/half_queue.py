"""Gives a round of checks access to one half queue, its op queue and the producers (RocketMQ's
TransactionalMessageBridge and AbstractTransactionalMessageCheckListener).

Reads that need the disk run on the threads of `cold_reads`. A round blocks the event loop for
`TURN_BUDGET_S` at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.services.transactions import half_messages
from epochmq_broker.services.transactions.check_round import QueueRead, ReadStatus
from epochmq_broker.services.transactions.op_writer import OpMessageWriter, count_put
from epochmq_broker.services.transactions.transaction_metrics import TransactionMetrics
from epochmq_broker.tables.clients import Channel
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_broker.writing.quarantine import Origin, QuarantiningService, concerns_record
from epochmq_protocol import message as records
from epochmq_protocol.errors import ConnectionClosedError, EpochMQError, RemoteProtocolError, RequestError
from epochmq_protocol.message import MessageExt
from epochmq_protocol.message_const import PROPERTY_PRODUCER_GROUP, PROPERTY_REAL_TOPIC
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.statuses import GetResult, GetStatus, PutStatus, StoreReadError

log = logging.getLogger(__name__)

TURN_BUDGET_S = 0.004
"""How long a round may block the event loop."""
COLD_READS_MAX = 8
"""Reads from the disk for one message."""
UNSENT_MAX = 4 << 20
"""Bytes that may wait to be sent to a producer; with more it is not asked."""

_NO_NEW = frozenset({GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.OFFSET_OVERFLOW_ONE})


MayPublish = Callable[[Channel, str], bool]
"""Whether the producer on a connection may publish to a topic."""


class StoredHalfQueue:
    """A half queue in the store of this broker (`check_round.HalfQueue`)."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        sink: MessageSink,
        metrics: TransactionMetrics,
        ops: OpMessageWriter,
        queue_id: int,
        may_publish: MayPublish,
    ) -> None:
        self.unreachable = 0
        """Half messages whose producer group had no open connection that may publish to their topic."""
        self._context = context
        self._sink = sink
        self._metrics = metrics
        self._ops = ops
        self._queue_id = queue_id
        self._may_publish = may_publish
        self._turn_ends_s = 0.0

    def now_ms(self) -> int:
        """See `HalfQueue`."""
        return now_ms()

    @property
    def half_end(self) -> int:
        """See `HalfQueue`."""
        queue = self._context.store.lookup.existing_queue(half_messages.HALF_TOPIC, self._queue_id)
        return 0 if queue is None else queue.max_offset

    def set_aside(self, record: MessageExt, reason: object) -> bool:
        """See `HalfQueue`."""
        if isinstance(reason, Exception) and not concerns_record(reason):
            return False
        origin = Origin(record.topic, record.queue_id, record.queue_offset)
        self._context.quarantine.set_aside(QuarantiningService.TRANSACTION, origin, record, reason)
        return True

    async def read_half(self, offset: int) -> QueueRead:
        """See `HalfQueue`."""
        return await self._read(half_messages.HALF_TOPIC, offset, 1)

    async def read_ops(self, offset: int, count: int) -> QueueRead:
        """See `HalfQueue`."""
        return await self._read(half_messages.OP_TOPIC, offset, count)

    @property
    def is_remote(self) -> bool:
        """See `HalfQueue`."""
        return self._sink.is_remote

    def put(self, message: InnerMessage) -> PutResult:
        """See `HalfQueue`."""
        stored = self._store(message)
        if stored.status is PutStatus.PUT_OK and not stored.is_remote:
            count_put(self._context.tables.stats, stored)
        return stored

    def discard(self, message: InnerMessage, real_topic: str) -> PutResult:
        """See `HalfQueue`."""
        self._context.tables.topics.create_in_send_back(half_messages.DISCARD_TOPIC, 1)
        stored = self._store(message)
        if stored.status is PutStatus.PUT_OK:
            self._metrics.add(real_topic, -1)
        return stored

    def replaced(self, half: MessageExt) -> None:
        """See `HalfQueue`."""
        self._ops.remove(half.queue_id, half.queue_offset)

    def ask_producer(self, half: MessageExt, properties: dict[str, str], stored: PutResult) -> None:
        """See `HalfQueue`. Without a connection to the group, a later round asks again."""
        group = properties.get(PROPERTY_PRODUCER_GROUP, "")
        try:
            command = half_messages.check_request(
                half,
                properties,
                stored.queue_offset,
                stored.physical_offset,
                self._context.live.current.broker_name,
            )
        except (KeyError, ValueError, EpochMQError) as error:
            log.error("half message %d cannot be checked: %s", half.queue_offset, error)
            return
        topic = properties.get(PROPERTY_REAL_TOPIC, "")
        found = self._context.tables.clients.any_producer(group, lambda one: self._may_publish(one, topic))
        channel = cast(RemotingConnection | None, found)
        if channel is None or channel.unsent_bytes > UNSENT_MAX:
            self.unreachable += 1
            log.warning(
                "no producer of group %s can be asked about half message %d", group, half.queue_offset
            )
            return
        try:
            channel.oneway(command)
        except ConnectionClosedError:
            self.unreachable += 1

    async def pause(self, ms: int) -> None:
        """See `HalfQueue`."""
        await asyncio.sleep(ms / 1000)

    async def take_turn(self) -> None:
        """See `HalfQueue`."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._turn_ends_s:
            await asyncio.sleep(0)
            self._turn_ends_s = loop.time() + TURN_BUDGET_S

    def _store(self, message: InnerMessage) -> PutResult:
        """Stores a message. One that this broker does not support must not end the round."""
        try:
            return self._sink.put(message)
        except RequestError as error:
            log.error("a half message of topic %s cannot be stored again: %s", message.topic, error.remark)
            return PutResult(PutStatus.MESSAGE_ILLEGAL)

    async def _read(self, topic: str, offset: int, count: int) -> QueueRead:
        store = self._context.store
        queue = store.lookup.existing_queue(topic, self._queue_id)
        if queue is None:
            return QueueRead(ReadStatus.NO_NEW_MESSAGE, 0)
        for _ in range(COLD_READS_MAX):
            try:
                return self._queue_read(topic, offset, store.reader.get_resident(queue, offset, count))
            except NotResidentError as missing:
                await self._context.cold_reads.read(self, missing)
        raise StoreReadError(f"{topic}: message {offset} does not stay in memory")

    def _queue_read(self, topic: str, offset: int, result: GetResult) -> QueueRead:
        """The read of a round from that of the store. Damaged records are set aside."""
        if result.status in _NO_NEW:
            return QueueRead(ReadStatus.NO_NEW_MESSAGE, result.next_offset)
        if result.status is not GetStatus.FOUND:
            return QueueRead(ReadStatus.ILLEGAL_OFFSET, result.next_offset)
        messages: list[MessageExt] = []
        body, at = result.body, 0
        while at < len(body):
            size = int.from_bytes(body[at : at + 4], "big", signed=True)
            if not 0 < size <= len(body) - at:
                size = len(body) - at
            try:
                messages.append(records.decode_record(body, at))
                offset = messages[-1].queue_offset
            except RemoteProtocolError as error:
                origin = Origin(topic, self._queue_id, offset)
                self._context.quarantine.set_aside(
                    QuarantiningService.TRANSACTION, origin, body[at : at + size], error
                )
            at += size
            offset += 1
        return QueueRead(ReadStatus.FOUND, result.next_offset, messages)
