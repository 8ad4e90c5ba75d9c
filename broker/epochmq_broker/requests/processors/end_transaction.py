"""Serves END_TRANSACTION: the producer commits a transaction or rolls it back (RocketMQ's
EndTransactionProcessor). Serves RESUME_CHECK_HALF_MESSAGE, by which an administrator brings a discarded half
message back.

A commit stores the message in its own topic. The response waits until that message is as safe as its sender
demands. Java clients send END_TRANSACTION one-way, and get no response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.config.refusals import SendRefusal
from epochmq_broker.requests.processors.held_queues import QueueHeldError, when_released
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.processors.send import STORED_CODES, put_rejection, refused
from epochmq_broker.requests.processors.send_checks import check_not_forbidden_topic, check_not_service_topic
from epochmq_broker.services.transactions import half_messages
from epochmq_broker.services.transactions.op_writer import count_put
from epochmq_broker.services.transactions.transaction_service import TransactionService
from epochmq_protocol import message as records
from epochmq_protocol import message_const as const
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RemoteProtocolError, RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_admin import ResumeCheckHalfMessageRequestHeader
from epochmq_protocol.headers_client import EndTransactionRequestHeader
from epochmq_protocol.message import MessageExt
from epochmq_protocol.transport.connection import OVERLOAD_REMARK, RemotingConnection, RequestHandler
from epochmq_store.statuses import PutStatus

NO_REMARK = "not set any response code"
"""The remark of RocketMQ's responses that set only a code."""
END_TYPES = (
    const.TRANSACTION_NOT_TYPE,
    const.TRANSACTION_COMMIT_TYPE,
    const.TRANSACTION_ROLLBACK_TYPE,
)


class EndTransactionProcessor:
    """Ends transactions."""

    def __init__(self, context: ProcessorContext, *, transactions: TransactionService) -> None:
        self._live = context.live
        self._store = context.store
        self._writer = context.writer
        self._stats = context.tables.stats
        self._transactions = transactions

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.END_TRANSACTION: self.end_transaction,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume_check,
        }

    def end_transaction(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        """Commits or rolls back one transaction. A producer that does not know the state yet gets no
        response, and is asked later."""
        try:
            return self._end(connection, command)
        except QueueHeldError as held:
            return when_released(self._end, connection, command, held)

    def _end(self, connection: RemotingConnection, command: Command) -> Command | None:
        """`end_transaction`, if the queue of the message is free. Raises QueueHeldError."""
        header = EndTransactionRequestHeader.decode(command.ext)
        kind = header.commit_or_rollback
        if kind not in END_TYPES:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback field wrong: EndTransactionRequestHeader.commitOrRollback={kind}: "
                "expected 0, 8 or 12",
            )
        if not self._live.standing.capabilities.is_master:
            raise RequestError(ResponseCode.SLAVE_NOT_AVAILABLE, NO_REMARK)
        if kind == const.TRANSACTION_NOT_TYPE:
            return None
        half = self._half_message(header.commit_log_offset)
        properties = records.parse_properties(half.properties)
        age_ms = now_ms() - half.born_timestamp
        timeout_ms = self._live.current.transaction_time_out
        if not header.from_transaction_check and half_messages.is_too_late(properties, age_ms, timeout_ms):
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, NO_REMARK)
        _check_names(half, properties, header)
        if kind == const.TRANSACTION_COMMIT_TYPE:
            return self._commit(connection, command, half, properties)
        self._transactions.ops.end(half.queue_id, half.queue_offset)
        topic = properties.get(const.PROPERTY_REAL_TOPIC, "")
        self._transactions.metrics.add(topic, -1)
        self._transactions.count_rollback(topic)
        return response(command, ResponseCode.SUCCESS, NO_REMARK)

    def _half_message(self, offset: int) -> MessageExt:
        """Reads the half message at a physical offset. RocketMQ accepts a record of any topic."""
        record = self._store.read(offset) if offset >= 0 else None
        if record is not None:
            try:
                half = records.decode_record(record)
            except RemoteProtocolError:
                pass
            else:
                if half.topic == half_messages.HALF_TOPIC:
                    return half
        raise RequestError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")

    def _commit(
        self, connection: RemotingConnection, command: Command, half: MessageExt, properties: dict[str, str]
    ) -> Command | None:
        writer = self._writer
        waits = writer.must_wait(properties) and not command.is_oneway
        if waits and not connection.can_defer:
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        try:
            message = half_messages.committed_message(half, properties)
        except (KeyError, ValueError) as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the half message names no topic or queue: {error}"
            ) from None
        check_not_forbidden_topic(message.topic)
        check_not_service_topic(self._live.current, message.topic)
        stored = writer.put(message)
        if stored.status not in STORED_CODES:
            if stored.status is PutStatus.OS_PAGE_CACHE_BUSY:
                QueueHeldError.check(writer.holds, stored)
            self._stats.put_failures += 1
            raise _commit_rejection(stored.status, self._live.current, self._live.standing.refusal())
        transactions = self._transactions
        transactions.ops.end(half.queue_id, half.queue_offset)
        transactions.metrics.add(stored.topic, -1)
        transactions.count_commit(stored.topic, now_ms() - half.born_timestamp)
        count_put(self._stats, stored)
        success = response(command, ResponseCode.SUCCESS)
        if not waits:
            return success
        connection.defer(command.opaque, command.code)

        def respond(status: PutStatus) -> None:
            if status not in STORED_CODES:
                success.code, success.remark = ResponseCode.SYSTEM_ERROR, status.value
            connection.respond(success)

        writer.when_safe(stored.end, respond)
        return None

    def resume_check(self, connection: RemotingConnection, command: Command) -> Command:
        """Stores a half message, usually one of the discard topic, in the half topic again. Its checks start
        anew."""
        header = ResumeCheckHalfMessageRequestHeader.decode(command.ext)
        failed = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."
        try:
            _, offset = records.parse_message_id(header.msg_id or "")
        except RequestError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{failed} {error.remark}") from None
        record = self._store.read(offset) if offset >= 0 else None
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{failed} No message has the id {header.msg_id}")
        try:
            message = half_messages.resumed_message(records.decode_record(record))
        except RemoteProtocolError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{failed} {error}") from None
        stored = self._writer.put(message)
        if stored.status is not PutStatus.PUT_OK:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
            )
        return response(command, ResponseCode.SUCCESS)


def _check_names(half: MessageExt, properties: dict[str, str], header: EndTransactionRequestHeader) -> None:
    """Rejects an END_TRANSACTION of another producer group, or with offsets or a transaction id other than
    the half message's (checkPrepareMessage). RocketMQ ignores the transaction id. With asynchronous
    replication, a failover may lose a half message, and another half message may get the same offsets. A
    request about the lost one must not end the other."""
    if properties.get(const.PROPERTY_PRODUCER_GROUP) != header.producer_group:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if half.physical_offset != header.commit_log_offset:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
    uniq_key = properties.get(const.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    if header.transaction_id and uniq_key and header.transaction_id != uniq_key:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction id wrong")


def _commit_rejection(status: PutStatus, config: BrokerConfig, refusal: SendRefusal | None) -> RequestError:
    """The response to a commit whose message was not stored (sendFinalMessage)."""
    match status:
        case PutStatus.CREATE_MAPPED_FILE_FAILED:
            return RequestError(ResponseCode.SYSTEM_ERROR, "Create mapped file failed.")
        case PutStatus.MESSAGE_ILLEGAL | PutStatus.PROPERTIES_SIZE_EXCEEDED:
            return RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "The message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {config.max_message_size}B, msg properties length limit 32KB.",
            )
        case PutStatus.SERVICE_NOT_AVAILABLE:
            why = "" if refusal is None else f" {refused(config, refusal)}"
            return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"Service not available now.{why}")
        case PutStatus.OS_PAGE_CACHE_BUSY:
            return RequestError(ResponseCode.SYSTEM_ERROR, "OS page cache busy, please try another machine")
        case _:  # the remarks for timer messages and replicas are those of sends
            return put_rejection(status, config, refusal)
