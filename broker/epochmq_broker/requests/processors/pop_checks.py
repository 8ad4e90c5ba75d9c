"""The checks that every POP request passes: permissions, topic, queue and group."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.config.capabilities import Capabilities
from epochmq_broker.requests.processors.slave_rejection import REMARK
from epochmq_broker.tables.subscription_groups import SubscriptionGroupTable
from epochmq_broker.tables.topics import TopicTable
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_base import Header
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import PERM_READ, TopicConfig
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler


def with_header_on_errors(handler: RequestHandler, header: Header) -> RequestHandler:
    """Wraps a handler: a rejection has the fields of an empty response. A Java client reads them whatever the
    code is."""

    def handle(
        connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        try:
            return handler(connection, command)
        except RequestError as error:
            return response(command, error.code, error.remark, header=header)

    return handle


class QueueRequest(Protocol):
    """The header of a request about a queue and a group."""

    @property
    def topic(self) -> str: ...
    @property
    def consumer_group(self) -> str: ...
    @property
    def queue_id(self) -> int: ...


DEFAULT_REMARK: Final = "not set any response code"
"""The remark of RocketMQ's responses whose processor sets none."""


def reject_pop_on_slave(allowed: Capabilities, checkpoints: MessageSink) -> None:
    """Raises RequestError SYSTEM_BUSY on a slave, which stores no checkpoints, unless it is an acting master
    whose checkpoints go to another group."""
    if not allowed.is_master and not checkpoints.is_remote:
        raise RequestError(ResponseCode.SYSTEM_BUSY, REMARK)


def check_broker_readable(config: BrokerConfig, what: str) -> None:
    """Raises RequestError NO_PERMISSION if the broker may not be read."""
    if not config.broker_permission & PERM_READ:
        raise RequestError(
            ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] {what} message is forbidden"
        )


def check_topic(topics: TopicTable, name: str) -> TopicConfig:
    """Returns the topic. Raises RequestError TOPIC_NOT_EXIST."""
    topic = topics.get(name)
    if topic is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! ")
    return topic


def check_queue_and_group(
    live: LiveConfig,
    topics: TopicTable,
    groups: SubscriptionGroupTable,
    request: QueueRequest,
    remote: str,
) -> tuple[TopicConfig, SubscriptionGroupConfig]:
    """Returns topic and group. A queue id below 0 stands for every queue. Raises RequestError."""
    topic = check_topic(topics, request.topic)
    if not topic.perm & PERM_READ:
        raise RequestError(
            ResponseCode.NO_PERMISSION, f"the topic[{request.topic}] peeking message is forbidden"
        )
    if request.queue_id >= topic.read_queue_nums:
        raise RequestError(ResponseCode.INVALID_PARAMETER, illegal_queue(request, topic, remote))
    group = groups.find(request.consumer_group)
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{request.consumer_group}] does not exist, ",
        )
    if not group.consume_enable:
        raise RequestError(
            ResponseCode.NO_PERMISSION, f"subscription group no permission, {request.consumer_group}"
        )
    return topic, group


def illegal_queue(request: QueueRequest, topic: TopicConfig, remote: str) -> str:
    """The remark about a queue id that the topic does not have."""
    return (
        f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{remote}]"
    )
