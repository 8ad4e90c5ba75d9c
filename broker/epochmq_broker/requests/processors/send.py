"""Serves SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE in every case (RocketMQ's
SendMessageProcessor). `send_fast` serves plain messages.

A message of a transaction is stored as a half message (`transactions.half_messages`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.config.refusals import SendRefusal
from epochmq_broker.requests.processors.held_queues import QueueHeldError, when_released
from epochmq_broker.requests.processors.priorities import queue_by_priority
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.processors.send_checks import (
    SendChecks,
    SendHeader,
    is_from_broker,
    random_queue,
    send_header,
)
from epochmq_broker.requests.processors.slave_rejection import reject_send_on_slave
from epochmq_broker.requests.processors.static_topics import require_leader
from epochmq_broker.requests.uniq_key import UniqKeyGenerator
from epochmq_broker.services.timer.recall_handle import RecallHandle
from epochmq_broker.services.transactions.half_messages import is_transactional, make_half_message
from epochmq_broker.services.transactions.transaction_metrics import TransactionMetrics
from epochmq_broker.tables.attributes import is_batch_cq, is_compacted
from epochmq_broker.tables.static_topics.queue_items import QueueContext, logical_offset_within
from epochmq_broker.writing.batches import LargeBatch
from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_client import SendMessageResponseHeader
from epochmq_protocol.message_const import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_POP_CK,
    PROPERTY_PRIORITY,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from epochmq_protocol.topics import (
    RETRY_GROUP_TOPIC_PREFIX,
    TopicConfig,
    TopicFilterType,
    dlq_topic,
    is_retry_topic,
)
from epochmq_protocol.transport.connection import OVERLOAD_REMARK, RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import Turns, in_ordered_turns
from epochmq_store.statuses import PutStatus

V3_4_9 = 121
"""From this version on, a client's own maxReconsumeTimes applies (MQVersion)."""
DLQ_QUEUES = 1
_BATCH = RequestCode.SEND_BATCH_MESSAGE

STORED_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
"""The statuses with which a message is in the log; responses with them have the full header."""


def put_rejection(status: PutStatus, config: BrokerConfig, refusal: SendRefusal | None) -> RequestError:
    """The response to a message that was not stored. `refusal`: why this broker stores no messages now, if it
    does not."""
    match status:
        case PutStatus.WHEEL_TIMER_MSG_ILLEGAL:
            return RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{config.timer_max_delay_sec * 1000}ms; or if set del msg, the delay time should be bigger "
                "than the current time",
            )
        case PutStatus.WHEEL_TIMER_FLOW_CONTROL:
            limit = config.timer_congest_num_each_slot
            return RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {limit * 2} or the current value is "
                f"greater than {limit} and less than {limit * 2}, trigger random flow control",
            )
        case PutStatus.WHEEL_TIMER_NOT_ENABLE:
            enabled = str(config.timer_wheel_enable).lower()
            return RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"accurate timer message is not enabled, timerWheelEnable is {enabled}",
            )
        case PutStatus.MESSAGE_ILLEGAL | PutStatus.PROPERTIES_SIZE_EXCEEDED:
            return RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {config.max_message_size}B, msg properties length limit 32KB.",
            )
        case PutStatus.SERVICE_NOT_AVAILABLE if refusal is not None and not refusal.is_expected:
            return RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now. {refused(config, refusal)}"
            )
        case PutStatus.SERVICE_NOT_AVAILABLE:
            why = "" if refusal is None else f" {refused(config, refusal)}"
            return RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "service not available now. It may be caused by one of the following reasons: "
                "the broker's disk is full, messages are put to the slave, "
                f"message store has been shut down, etc.{why}",
            )
        case PutStatus.OS_PAGE_CACHE_BUSY:
            return RequestError(
                ResponseCode.SYSTEM_BUSY, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
            )
        case PutStatus.CREATE_MAPPED_FILE_FAILED:
            return RequestError(
                ResponseCode.SYSTEM_ERROR, "create mapped file failed, server is busy or broken."
            )
        case PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
            return RequestError(
                ResponseCode.SYSTEM_ERROR,
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
                "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w.",
            )
        case PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
            why = "" if refusal is None else f". {refused(config, refusal)}"
            return RequestError(ResponseCode.SYSTEM_ERROR, f"in-sync replicas not enough{why}")
        case _:
            return RequestError(ResponseCode.SYSTEM_ERROR, status.value)


def refused(config: BrokerConfig, refusal: SendRefusal) -> str:
    """Which broker stores no messages, why, and the next command."""
    return f"Broker {config.broker_name} at {config.broker_addr}: {refusal}"


def response_ext(config: BrokerConfig) -> dict[str, str]:
    """The ext fields of every response to a send, rejections included."""
    return {
        PROPERTY_MSG_REGION: config.region_id,
        PROPERTY_TRACE_SWITCH: "true" if config.trace_on else "false",
    }


class _LargeSend(NamedTuple):
    """The send of a large batch, with what its response needs."""

    connection: RemotingConnection
    command: Command
    message: InnerMessage
    queue_id: int
    logical: QueueContext | None
    kind: str


class PartsSafety:
    """Combines the results of a batch's parts, each of which waits for the disk and for replicas, into one:
    PUT_OK if all are, else the first one that says that a part may not be in the log, else the first one."""

    def __init__(self) -> None:
        self.parts = 0
        self._open = 0
        self._status = PutStatus.PUT_OK
        self._done: Callable[[PutStatus], None] | None = None

    def begin_part(self) -> Callable[[PutStatus], None]:
        """The function to call with the result of one more part."""
        self.parts += 1
        self._open += 1
        return self._end_part

    def when_safe(self, done: Callable[[PutStatus], None]) -> None:
        """Calls `done` once with the result of all parts. No part may follow."""
        self._done = done
        self._finish()

    def _end_part(self, status: PutStatus) -> None:
        self._open -= 1
        if self._status is PutStatus.PUT_OK or (self._status in STORED_CODES and status not in STORED_CODES):
            self._status = status
        self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._open:
            done, self._done = self._done, None
            done(self._status)


class SendProcessor:
    """Stores messages of producers, and responds when they are as safe as the producer demands."""

    def __init__(
        self,
        context: ProcessorContext,
        *,
        uniq_keys: UniqKeyGenerator,
        transaction_metrics: TransactionMetrics,
    ) -> None:
        self._static = context.tables.static_topics
        self._live = context.live
        self._writer = context.writer
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._locks = context.tables.locks
        self._stats = context.tables.stats
        self._store_host = context.store_host
        self._uniq_keys = uniq_keys
        self._transaction_metrics = transaction_metrics
        self._checks = SendChecks(context.live, context.tables.topics)

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def send(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        """Stores one message, or one batch of messages."""
        try:
            return self._send(connection, command)
        except QueueHeldError as held:
            return when_released(self._send, connection, command, held)

    def _send(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        """`send`, if the queue is free. Raises QueueHeldError."""
        reject_send_on_slave(self._live.standing)
        header = send_header(command)
        logical = self._translate(header) if self._static.table else None
        if not command.body:
            # RocketMQ fails on the missing body before it checks anything else.
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the message has no body")
        try:
            topic = self._checks.topic(header, connection.remote, from_broker=is_from_broker(header))
            queue_id = header.queue_id if header.queue_id >= 0 else random_queue(topic)
            message = self._message(connection, command.body, header, topic, queue_id)
            if PROPERTY_PRIORITY in message.properties and not header.batch and logical is None:
                queue_id = message.queue_id = queue_by_priority(message.properties, topic, queue_id)
            kind = message_type(message.properties)
            if self._writer.must_wait(message.properties) and not (command.is_oneway or connection.can_defer):
                # Reject before storing: a client sends a rejected message again.
                raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
            if header.batch:
                self._check_batch(header)
                if is_batch_cq(topic) and message.uniq_key:
                    make_inner_batch(message)
                    stored = self._writer.put(message)
                else:
                    batch = self._writer.put_batch(message)
                    if isinstance(batch, LargeBatch):
                        sent = _LargeSend(connection, command, message, queue_id, logical, kind)
                        return in_ordered_turns(self._send_large(sent, batch, Turns()), connection)
                    stored = batch
            else:
                self._divert_retry(command, header, message)
                self._check_message(topic, message)
                stored = self._put(message)
            if stored.status not in STORED_CODES:
                if stored.status is PutStatus.OS_PAGE_CACHE_BUSY:
                    QueueHeldError.check(self._writer.holds, stored)
                self._stats.put_failures += 1
                raise put_rejection(stored.status, self._live.current, self._live.standing.refusal())
        except RequestError as error:
            return response(command, error.code, error.remark, ext=self._ext())
        if kind != NORMAL:
            self._stats.count_type(stored.topic, kind, stored.count, stored.size)
        self._stats.put_traffic(stored.topic, stored.queue_id).receive(stored.count, stored.size)
        ids = [records.message_id(self._store_host, offset) for offset in stored.physical_offsets]
        success = self._success(command, message, stored, ids, queue_id, logical)
        if not self._writer.must_wait(message.properties):
            return success
        if command.is_oneway:
            return None
        connection.defer(command.opaque, command.code)
        self._writer.when_safe(stored.end, partial(self._respond, connection, command, success))
        return None

    async def _send_large(self, sent: _LargeSend, batch: LargeBatch, turns: Turns) -> Command | None:
        """Stores a large batch in parts. The response follows once each part is as safe as it must be."""
        writer, command = self._writer, sent.command
        ids: list[str] = []
        safety = PartsSafety()

        def on_part(offsets: Sequence[int], end: int) -> None:
            ids.extend(records.message_id(self._store_host, offset) for offset in offsets)
            if writer.must_wait(sent.message.properties) and not command.is_oneway:
                writer.when_safe(end, safety.begin_part())

        try:
            stored = await batch.put(turns, on_part)
            if stored.status not in STORED_CODES:
                self._stats.put_failures += 1
                raise put_rejection(stored.status, self._live.current, self._live.standing.refusal())
        except RequestError as error:
            return response(command, error.code, error.remark, ext=self._ext())
        await turns.end()
        if sent.kind != NORMAL:
            self._stats.count_type(stored.topic, sent.kind, stored.count, stored.size)
        self._stats.put_traffic(stored.topic, stored.queue_id).receive(stored.count, stored.size)
        success = self._success(command, sent.message, stored, ids, sent.queue_id, sent.logical)
        if safety.parts and not command.is_oneway:
            sent.connection.defer(command.opaque, command.code)
            safety.when_safe(partial(self._respond, sent.connection, command, success))
            return None
        return success

    def _translate(self, header: SendHeader) -> QueueContext | None:
        """Replaces the logical queue of a static topic by the physical one, and returns its mapping. None for
        other topics. Raises RequestError NOT_LEADER_FOR_QUEUE."""
        if header.lo is False:
            return None
        context = self._static.context(header.topic, header.queue_id, choose=True)
        if context is not None:
            require_leader(context)
            header.queue_id = context.items[-1].queue_id
        return context

    def _put(self, message: InnerMessage) -> PutResult:
        """Stores one message, as a half message if it belongs to a transaction."""
        if not is_transactional(message):
            return self._writer.put(message)
        make_half_message(message)
        stored = self._writer.put(message)
        if stored.status in STORED_CODES:
            self._transaction_metrics.add(message.properties[PROPERTY_REAL_TOPIC], 1)
        return stored

    def _message(
        self,
        connection: RemotingConnection,
        body: bytes,
        header: SendHeader,
        topic: TopicConfig,
        queue_id: int,
    ) -> InnerMessage:
        """Builds the message to be stored, before a retry or a delay changes it."""
        config = self._live.current
        properties = records.parse_properties(header.properties or "")
        properties.pop(PROPERTY_POP_CK, None)
        properties[PROPERTY_MSG_REGION] = config.region_id
        properties[PROPERTY_TRACE_SWITCH] = "true" if config.trace_on else "false"
        if not header.batch and not properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX):
            properties[PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = self._uniq_keys.next(now_ms())
        properties[PROPERTY_CLUSTER] = config.broker_cluster_name
        sys_flag = header.sys_flag
        if topic.topic_filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= records.MULTI_TAGS_FLAG
        return InnerMessage(
            topic=header.topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            flag=header.flag,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=connection.remote_host,
            reconsume_times=header.reconsume_times or 0,
        )

    def _check_batch(self, header: SendHeader) -> None:
        if is_retry_topic(header.topic):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}"
            )

    def _divert_retry(self, command: Command, header: SendHeader, message: InnerMessage) -> None:
        """Moves a message for a retry topic to the dead-letter topic if it was tried too often, or if its
        group consumes in order. A client sends to its group's retry topic itself if it could not send a
        message back (handleRetryAndDLQ)."""
        if not is_retry_topic(header.topic):
            return
        group = group_of_retry_topic(header.topic)
        config = self._groups.find(group)
        if config is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        times_max = config.retry_max_times
        if command.version >= V3_4_9 and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        ordered = not self._locks.all_expired(group, now_ms())
        if message.reconsume_times <= times_max and not ordered:
            return
        dead = self._topics.create_in_send_back(dlq_topic(group), DLQ_QUEUES)
        message.properties[PROPERTY_DELAY_TIME_LEVEL] = "-1"
        message.topic = dead.topic_name
        message.queue_id = 0
        if dead.topic_filter_type is TopicFilterType.MULTI_TAG:
            message.sys_flag |= records.MULTI_TAGS_FLAG
        else:
            message.sys_flag = header.sys_flag

    def _check_message(self, topic: TopicConfig, message: InnerMessage) -> None:
        properties = message.properties
        if is_compacted(topic) and not (properties.get(PROPERTY_KEYS) or "").strip():
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
        if self._live.current.reject_transaction_message and is_transactional(message):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._live.current.broker_ip1}] sending transaction message is forbidden",
            )

    def _success(
        self,
        command: Command,
        message: InnerMessage,
        stored: PutResult,
        ids: Sequence[str],
        queue_id: int,
        logical: QueueContext | None,
    ) -> Command:
        """The response to a send whose messages are stored, with these ids."""
        queue_offset = stored.queue_offset
        if logical is not None:
            queue_id, queue_offset = logical.queue_id, logical_offset_within(logical.items[-1], queue_offset)
        return response(
            command,
            STORED_CODES[stored.status],
            header=SendMessageResponseHeader(
                msg_id=",".join(ids),
                queue_id=queue_id,
                queue_offset=queue_offset,
                transaction_id=message.uniq_key,
                batch_uniq_id=message.uniq_key if stored.messages else None,
                recall_handle=None if command.code == _BATCH else self._recall_handle(message),
            ),
            ext=self._ext(),
        )

    def _respond(
        self, connection: RemotingConnection, command: Command, success: Command, status: PutStatus
    ) -> None:
        """Responds to a deferred send."""
        if status in STORED_CODES:
            success.code = STORED_CODES[status]
            connection.respond(success)
            return
        error = put_rejection(status, self._live.current, self._live.standing.refusal())
        connection.respond(response(command, error.code, error.remark, ext=self._ext()))

    def _recall_handle(self, message: InnerMessage) -> str | None:
        """The handle by which the producer can recall a timer message (attachRecallHandle)."""
        out_ms, topic = (
            message.properties.get(PROPERTY_TIMER_OUT_MS),
            message.properties.get(PROPERTY_REAL_TOPIC),
        )
        if out_ms is None or topic is None or is_retry_topic(topic) or not out_ms.isdigit():
            return None
        name = self._live.current.broker_name
        # The time was rounded down, and may have passed when it is exactly the present time.
        return RecallHandle(topic, name, str(int(out_ms) + 1), message.uniq_key or "null").encode()

    def _ext(self) -> dict[str, str]:
        return response_ext(self._live.current)


def group_of_retry_topic(topic: str) -> str:
    """The group of a retry topic; of a version-2 pop retry topic, the part before the `+` (KeyBuilder)."""
    return topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX).split("+", 1)[0]


def make_inner_batch(message: InnerMessage) -> None:
    """Makes a batch for a topic of type BatchCQ one message, an inner batch, whose body are the messages.
    Raises RequestError MESSAGE_ILLEGAL if the batch is malformed."""
    message.sys_flag |= records.NEED_UNWRAP_FLAG | records.INNER_BATCH_FLAG
    message.properties[PROPERTY_INNER_NUM] = str(len(records.decode_batch(message.body)))


NORMAL, FIFO, DELAY, TRANSACTION = "normal", "fifo", "delay", "transaction"
_DELAYS = (
    "__STARTDELIVERTIME",
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELAY_MS,
)


def message_type(properties: Mapping[str, str | None]) -> str:
    """The type under which a message is counted (BrokerMetricsManager.getMessageType)."""
    if (properties.get(PROPERTY_TRANSACTION_PREPARED) or "").lower() == "true":
        return TRANSACTION
    if PROPERTY_SHARDING_KEY in properties:
        return FIFO
    if any(properties.get(name) is not None for name in _DELAYS):
        return DELAY
    return NORMAL
