"""Checks requests that name a stored message by its place in the log: whether a message starts there, and
whether the sender may do to its topic what the request does (aclStrict).

The topic in the header of such a request is the sender's claim. RocketMQ believes it, and reads whatever
bytes are at the place. Here the queue of the message must name the same place. Bytes that look like a
message, such as the body of another one, have no entry in a queue.

A message that waits (of a delay level, a timer, a transaction) belongs to the topic that it will go to. A
message of a retry topic belongs to its group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final

from epochmq_broker.auth.access_control import AccessControl
from epochmq_broker.auth.acls import group_resource, topic_resource
from epochmq_broker.auth.authorization import RequestedAccess
from epochmq_broker.auth.strict_rules import RECORD_CODES
from epochmq_broker.services.transactions.half_messages import DISCARD_TOPIC, HALF_TOPIC
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RemoteProtocolError, RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from epochmq_protocol.headers_client import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    ViewMessageRequestHeader,
)
from epochmq_protocol.message import MessageExt
from epochmq_protocol.message_const import PROPERTY_REAL_TOPIC
from epochmq_protocol.topics import (
    RMQ_SYS_SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_retry_topic,
    retry_topic,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_store.message_store import MessageStore

WAITING_TOPICS: Final = frozenset({RMQ_SYS_SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, DISCARD_TOPIC})
"""Topics whose messages wait for their own topic, which the property REAL_TOPIC names."""


class RecordAccess:
    """The check of one broker."""

    def __init__(self, store: MessageStore, access: AccessControl) -> None:
        self._store = store
        self._access = access

    def guard(self, handlers: Mapping[int, RequestHandler]) -> dict[int, RequestHandler]:
        """The handlers, each behind the check; the same handlers while it is not enabled."""
        if not self._access.checks_records:
            return dict(handlers)
        return {code: self._guarded(handler) for code, handler in handlers.items()}

    def _guarded(self, handler: RequestHandler) -> RequestHandler:
        def guarded(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            if self._access.is_restricted(command):
                self._check(connection, command)
            return handler(connection, command)

        return guarded

    def _check(self, connection: RemotingConnection, command: Command) -> None:
        offset, group = _named(command)
        found = self._message_at(offset)
        if found is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no message starts at the offset {offset}")
        if command.code == RequestCode.RESUME_CHECK_HALF_MESSAGE and found.topic != DISCARD_TOPIC:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the message at the offset {offset} has the topic {found.topic}: "
                f"expected {DISCARD_TOPIC}, the topic of half messages whose checks have ended",
            )
        topic = owning_topic(found)
        if group is not None and topic == retry_topic(group):
            return  # the right for the group was checked
        resource = group_resource(topic) if is_retry_topic(topic) else topic_resource(topic)
        self._access.require(connection, command, [RequestedAccess(resource, (RECORD_CODES[command.code],))])

    def _message_at(self, offset: int) -> MessageExt | None:
        """The message that starts at a place of the log; None if none does."""
        store = self._store
        record = store.reader.read(offset) if offset >= 0 else None
        if record is None:
            return None
        try:
            found = records.decode_record(record)
        except RemoteProtocolError:
            return None
        place = store.lookup.physical_offset(found.topic, found.queue_id, found.queue_offset)
        return found if place == offset else None


def owning_topic(message: MessageExt) -> str:
    """The topic whose readers and writers a message concerns."""
    if message.topic not in WAITING_TOPICS:
        return message.topic
    return records.parse_properties(message.properties).get(PROPERTY_REAL_TOPIC, message.topic)


def _named(command: Command) -> tuple[int, str | None]:
    """The place in the log that a request names, and its consumer group. Raises RequestError."""
    ext = command.ext
    match command.code:
        case RequestCode.VIEW_MESSAGE_BY_ID:
            return ViewMessageRequestHeader.decode(ext).offset, None
        case RequestCode.CONSUMER_SEND_MSG_BACK:
            back = ConsumerSendMsgBackRequestHeader.decode(ext)
            return back.offset, back.group
        case RequestCode.END_TRANSACTION:
            return EndTransactionRequestHeader.decode(ext).commit_log_offset, None
        case RequestCode.CONSUME_MESSAGE_DIRECTLY:
            directly = ConsumeMessageDirectlyResultRequestHeader.decode(ext)
            return records.parse_message_id(directly.msg_id or "")[1], directly.consumer_group
        case _:
            resumed = ResumeCheckHalfMessageRequestHeader.decode(ext)
            return records.parse_message_id(resumed.msg_id or "")[1], None
