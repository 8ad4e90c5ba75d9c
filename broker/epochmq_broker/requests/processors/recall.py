"""Serves RECALL_MESSAGE (370): a producer takes back a timer message that is not due yet (RocketMQ's
RecallMessageProcessor).

The recall is a timer message itself. It is due at the same time as the recalled one, and names it in
TIMER_DEL_UNIQKEY; when both are due, the timer delivers neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.processors.send import STORED_CODES
from epochmq_broker.services.timer.recall_handle import RecallHandle
from epochmq_broker.services.timer.records import DELETE_KEY, delete_key
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_client import RecallMessageRequestHeader, RecallMessageResponseHeader
from epochmq_protocol.message_const import (
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_MSG_REGION,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from epochmq_protocol.topics import PERM_WRITE
from epochmq_protocol.transport.connection import OVERLOAD_REMARK, RemotingConnection, RequestHandler
from epochmq_store.statuses import PutStatus

RECALL_TAG: Final = "_RECALL_TAG_"
NOT_AVAILABLE: Final = "recall failed, broker service not available"
FAILED: Final = "recall failed, execute error"

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


class RecallProcessor:
    """Stores recalls."""

    def __init__(self, context: ProcessorContext) -> None:
        self._live = context.live
        self._writer = context.writer
        self._topics = context.tables.topics
        self._stats = context.tables.stats

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, connection: RemotingConnection, command: Command) -> Command | None:
        """Stores the recall of one message."""
        header = RecallMessageRequestHeader.decode(command.ext)
        ext = {PROPERTY_MSG_REGION: self._live.current.region_id}
        try:
            self._check_broker()
            if self._topics.get(header.topic) is None:
                raise RequestError(
                    ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
                )
            handle = self._handle(header)
            message = _recall(connection, header.producer_group, handle)
            if self._writer.must_wait(message.properties) and not (command.is_oneway or connection.can_defer):
                raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
            stored = self._writer.put(message)
            if stored.status not in STORED_CODES:
                raise RequestError(ResponseCode.SYSTEM_ERROR, FAILED)
        except RequestError as error:
            return response(command, error.code, error.remark, ext=ext)
        traffic = self._stats.put_traffic(stored.topic, stored.queue_id)
        traffic.messages += 1
        traffic.bytes += stored.size
        traffic.requests += 1
        result = RecallMessageResponseHeader(msg_id=handle.uniq_key)
        success = response(command, ResponseCode.SUCCESS, header=result, ext=ext)
        if not self._writer.must_wait(message.properties):
            return success
        if command.is_oneway:
            return None
        connection.defer(command.opaque, command.code)

        def respond(status: PutStatus) -> None:
            if status not in STORED_CODES:
                success.code, success.remark = ResponseCode.SYSTEM_ERROR, FAILED
            connection.respond(success)

        self._writer.when_safe(stored.end, respond)
        return None

    def _check_broker(self) -> None:
        config = self._live.current
        if not config.recall_message_enable:
            raise RequestError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if not self._live.standing.capabilities.is_master:
            raise RequestError(ResponseCode.SLAVE_NOT_AVAILABLE, NOT_AVAILABLE)
        writable = config.broker_permission & PERM_WRITE or config.allow_recall_when_broker_not_writeable
        if now_ms() < config.start_accept_send_request_time_stamp or not writable:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_AVAILABLE)

    def _handle(self, header: RecallMessageRequestHeader) -> RecallHandle:
        config = self._live.current
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except ValueError as error:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if handle.topic != header.topic:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, NOT_AVAILABLE)
        due_ms = int(handle.timestamp) if _NUMBER.fullmatch(handle.timestamp) else -1
        if not 0 < due_ms - now_ms() < config.timer_max_delay_sec * 1000:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle


def _recall(connection: RemotingConnection, group: str | None, handle: RecallHandle) -> InnerMessage:
    """The message that deletes the one with this handle."""
    present_ms = now_ms()
    properties = {
        PROPERTY_TAGS: RECALL_TAG,
        DELETE_KEY: delete_key(handle.topic, handle.uniq_key),
        PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: handle.uniq_key,
        PROPERTY_TIMER_DELIVER_MS: handle.timestamp,
        PROPERTY_BORN_TIMESTAMP: str(present_ms),
        PROPERTY_TRACE_CONTEXT: "",
    }
    if group is not None:
        properties[PROPERTY_PRODUCER_GROUP] = group
    return InnerMessage(
        topic=handle.topic,
        queue_id=0,
        body=b"0",
        properties=properties,
        born_timestamp=present_ms,
        born_host=connection.remote_host,
    )
