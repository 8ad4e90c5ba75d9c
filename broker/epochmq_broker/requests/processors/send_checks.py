"""Checks the header of a send or reply, in Java's order and with its codes (preSend and msgCheck of
RocketMQ's send processors)."""

from __future__ import annotations

import random
import time

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.tables.topics import SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB, TopicTable
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_client import SendMessageRequestHeader, SendMessageRequestHeaderV2
from epochmq_protocol.topics import (
    INNER_PRODUCER_GROUP_PREFIX,
    PERM_WRITE,
    TopicConfig,
    is_not_allowed_send_topic,
    is_retry_topic,
    is_service_topic,
    validate_topic,
)

_SHORT_FORM = frozenset(
    [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)


SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2
"""The long and the short form; they have the same attributes."""


def send_header(command: Command) -> SendHeader:
    """Decodes the header of a send or reply, in either form."""
    if command.code in _SHORT_FORM:
        return SendMessageRequestHeaderV2.decode(command.ext)
    return SendMessageRequestHeader.decode(command.ext)


class SendChecks:
    """The checks. They create a topic on its first message if that is allowed."""

    def __init__(self, live: LiveConfig, topics: TopicTable) -> None:
        self._live = live
        self._topics = topics

    def topic(self, header: SendHeader, remote: str, *, from_broker: bool = False) -> TopicConfig:
        """Returns the topic's configuration if the send is acceptable. `from_broker`: whether another broker
        sends it. Raises RequestError."""
        config = self._live.current
        topics = self._topics
        topic = header.topic
        opens_at = config.start_accept_send_request_time_stamp
        if opens_at and time.time() * 1000 < opens_at:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {opens_at}")
        if not config.broker_permission & PERM_WRITE and topics.is_order(topic):
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        fault = validate_topic(topic)
        if fault is not None:
            raise RequestError(ResponseCode.INVALID_PARAMETER, fault)
        check_not_forbidden_topic(topic)
        if not from_broker:
            check_not_service_topic(config, topic)
        found = topics.get(topic) or self._create(header)
        queues = max(found.write_queue_nums, found.read_queue_nums)
        if header.queue_id >= queues:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, topic[{topic}] has {queues} queues"
                f" Producer: {remote}",
            )
        return found

    def _create(self, header: SendHeader) -> TopicConfig:
        topic = header.topic
        retry = is_retry_topic(topic)
        sys_flag = 0
        if header.unit_mode:
            sys_flag = SYS_FLAG_UNIT_SUB if retry else SYS_FLAG_UNIT
        created = self._topics.create_in_send(
            topic, header.default_topic, header.default_topic_queue_nums, sys_flag=sys_flag
        )
        if created is None and retry:
            created = self._topics.create_in_send_back(topic, 1, sys_flag=sys_flag)
        if created is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        return created


def is_from_broker(header: SendHeader) -> bool:
    """Whether another broker sends the message: one that acts for its group's master sends timer messages,
    and checkpoints and acknowledgements of POPs. Its producer group says so, as in RocketMQ. Access control
    proves it."""
    return header.producer_group.startswith(INNER_PRODUCER_GROUP_PREFIX)


def check_not_forbidden_topic(topic: str) -> None:
    """Rejects sends to the topics that RocketMQ forbids to everybody
    (TopicValidator.isNotAllowedSendTopic)."""
    if is_not_allowed_send_topic(topic):
        raise RequestError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")


def check_not_service_topic(config: BrokerConfig, topic: str) -> None:
    """Raises RequestError if clients must not write to the topic, because a service of the broker reads
    it."""
    if config.reject_system_topic_sends and is_service_topic(topic):
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"Sending message to topic[{topic}] is forbidden: a service of the broker reads this topic, and "
            "only brokers write to it. To let clients write to it, set rejectSystemTopicSends=false on the "
            "broker.",
        )


def random_queue(topic: TopicConfig) -> int:
    """Chooses a queue for a message that leaves the choice to the broker."""
    if topic.write_queue_nums <= 0:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic[{topic.topic_name}] has no write queue")
    return random.randrange(topic.write_queue_nums)
