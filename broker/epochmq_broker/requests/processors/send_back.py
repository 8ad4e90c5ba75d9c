"""Serves CONSUMER_SEND_MSG_BACK: a consumer could not handle a message and wants it again later (RocketMQ's
AbstractSendMessageProcessor.consumerSendMsgBack).

The message goes to the group's retry topic, delayed by a level, or to the dead-letter topic after too many
attempts. On success the consumer considers the message handled. So the response waits until the stored
message is as safe as one that was sent; RocketMQ responds at once.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.processors.send import DLQ_QUEUES, V3_4_9
from epochmq_broker.requests.processors.slave_rejection import reject_send_on_slave
from epochmq_broker.tables.stats import SNDBCK2DLQ_TIMES, SNDBCK_PUT_NUMS
from epochmq_broker.tables.topics import SYS_FLAG_UNIT_SUB
from epochmq_broker.writing.inner_message import InnerMessage, next_attempt
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_client import ConsumerSendMsgBackRequestHeader
from epochmq_protocol.message import MessageExt
from epochmq_protocol.message_const import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT_STORE_MSG_OK,
)
from epochmq_protocol.topics import PERM_WRITE, dlq_topic, retry_topic
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_store.statuses import PutStatus

MASTER_ID = 0
FIRST_RETRY_LEVEL = 3
"""The delay level of the first retry: 10 s with RocketMQ's levels."""


class SendBackProcessor:
    """Stores messages that consumers send back."""

    def __init__(self, context: ProcessorContext) -> None:
        self._live = context.live
        self._store = context.store
        self._writer = context.writer
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._stats = context.tables.stats

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, connection: RemotingConnection, command: Command) -> Command | None:
        """Takes one message back, named by its commit-log offset."""
        config = self._live.current
        reject_send_on_slave(self._live.standing)
        if config.broker_id != MASTER_ID:
            # A Java consumer then sends the message to the retry topic itself, on another broker.
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"no master available along with {config.broker_ip1}"
            )
        header = ConsumerSendMsgBackRequestHeader.decode(command.ext)
        group = self._groups.find(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not config.broker_permission & PERM_WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return response(command, ResponseCode.SUCCESS)
        retry = self._topics.create_in_send_back(
            retry_topic(header.group),
            group.retry_queue_nums,
            sys_flag=SYS_FLAG_UNIT_SUB if header.unit_mode else 0,
        )
        if not retry.perm & PERM_WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{retry.topic_name}] sending message is forbidden"
            )
        record = self._store.read(header.offset)
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        original = records.decode_record(record)
        times_max = group.retry_max_times
        if command.version >= V3_4_9 and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        message = self._retry_message(original, retry.topic_name, random.randrange(group.retry_queue_nums))
        dead = original.reconsume_times >= times_max or header.delay_level < 0
        if dead:
            message.topic = self._topics.create_in_send_back(dlq_topic(header.group), DLQ_QUEUES).topic_name
            message.queue_id = 0
            level = 0
        else:
            level = header.delay_level or FIRST_RETRY_LEVEL + original.reconsume_times
        message.properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)
        stored = self._writer.put(message)
        if stored.status is not PutStatus.PUT_OK:
            raise RequestError(ResponseCode.SYSTEM_ERROR, stored.status.value)
        traffic = self._stats.put_traffic(stored.topic, stored.queue_id)
        traffic.messages += 1
        traffic.bytes += stored.size
        traffic.requests += 1
        self._stats.add(SNDBCK_PUT_NUMS, f"{message.properties[PROPERTY_RETRY_TOPIC]}@{header.group}")
        if dead:
            self._stats.add(SNDBCK2DLQ_TIMES, f"{header.origin_topic}@{header.group}")
        success = response(command, ResponseCode.SUCCESS)
        if not self._writer.sends_wait or command.is_oneway:
            return success
        connection.defer(command.opaque, command.code)

        def respond(status: PutStatus) -> None:
            if status is not PutStatus.PUT_OK:
                success.code, success.remark = ResponseCode.SYSTEM_ERROR, status.value
            connection.respond(success)

        self._writer.when_safe(stored.end, respond)
        return None

    def _retry_message(self, original: MessageExt, topic: str, queue_id: int) -> InnerMessage:
        """Builds the retry: same content and birth time, one more attempt, with the original topic and id in
        its properties."""
        properties = records.parse_properties(original.properties)
        properties.setdefault(PROPERTY_RETRY_TOPIC, original.topic)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, original.msg_id)
        properties[PROPERTY_WAIT_STORE_MSG_OK] = "false"
        return InnerMessage(
            topic=topic,
            queue_id=queue_id,
            body=original.body,
            properties=properties,
            flag=original.flag,
            sys_flag=original.sys_flag,
            born_timestamp=original.born_timestamp,
            born_host=original.born_host,
            reconsume_times=next_attempt(original.reconsume_times),
        )
