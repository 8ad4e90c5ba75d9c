"""The rules by which messages leave for other groups (RocketMQ's EscapeBridge, TopicPublishInfo and
BrokerOuterAPI).

1. On the master, and without enableSlaveActingMaster, a message is stored here. An acting master with
   enableRemoteEscape sends it to the master of another group. Otherwise it is rejected.
2. Its topic's route gives the queues: of each group with a master and with write permission, in the order of
   the groups' names. This broker's own group is left out.
3. Delayed messages, timer messages and half messages take the queues in turn (selectOneMessageQueue).
   Checkpoints, acknowledgements and revived messages of POPs take the same queue as long as the route does
   not change, so that a checkpoint and its acknowledgements meet in one revive queue
   (putMessageToSpecificQueue).
   While no other group has the retry topic of a revived message, one that has the message's own topic gets
   it, and creates the retry topic. RocketMQ's revive fails then.
4. A message is sent with the properties that it would be stored with, but waits until the other group has
   made it as safe as a client's message: after the response it is forgotten here. A half message is sent as
   its producer has sent it: the other group stores and checks it as its own.

For rule 3 RocketMQ hashes the store host. A checkpoint of the failed master and an acknowledgement that the
acting master takes have different ones, and RocketMQ's timer sends both to any queue. They do not meet, and
the acknowledged message is handed out again. Here the group's name is hashed.

For rule 4 RocketMQ sends WAIT=false, and counts checkpoints, acknowledgements and revived messages as sent
when one page cache has them.
"""
# pure: values in, values out

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs

from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_protocol import message as records
from epochmq_protocol import message_const as const
from epochmq_protocol.bodies import MessageQueue
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import SendMessageRequestHeaderV2
from epochmq_protocol.javahash import java_hash
from epochmq_protocol.route import MASTER_ID, QueueData, TopicRouteData
from epochmq_protocol.topics import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    RMQ_SYS_TRANS_HALF_TOPIC,
    is_service_topic,
    is_writeable,
)

NEW_TOPIC_QUEUES: Final = 8
"""Queues of a topic that the other group creates for a message, as in RocketMQ."""
NEW_RETRY_QUEUES: Final = 1
"""Queues of a retry topic that the other group creates."""
INDEX_MASK: Final = 0x7FFFFFFF
MESSAGE_QUEUES_MAX: Final = 65_536
"""Queues of a route that are considered."""


class EscapeKind(enum.Enum):
    """The kind of a message that leaves for another group."""

    DELAY = "delay"
    TIMER = "timer"
    CHECKPOINT = "checkpoint"
    """A checkpoint or an acknowledgement of a POP."""
    RETRY = "retry"
    """A popped message that is handed out again, or the checkpoint for another attempt at it."""
    TRANSACTION = "transaction"


class Destination(enum.Enum):
    """Where messages of the special services go."""

    LOCAL = "local"
    REMOTE = "remote"
    NONE = "none"


class PublishRoute(Struct, frozen=True):
    """Where messages of a topic may be sent: queues, and the masters' addresses by the names of their
    groups."""

    queues: tuple[MessageQueue, ...] = ()
    masters: Mapping[str, str] = {}


def publish_route(topic: str, route: TopicRouteData, own_name: str) -> PublishRoute:
    """Applies rule 2 (MQClientInstance.topicRouteData2TopicPublishInfo). A static topic has no queues:
    RocketMQ finds no address for its logical queues."""
    masters = {
        data.broker_name: data.broker_addrs[MASTER_ID]
        for data in route.broker_datas
        if MASTER_ID in data.broker_addrs and data.broker_name != own_name
    }
    if route.order_topic_conf:
        queues = _ordered_queues(topic, route.order_topic_conf, masters)
    elif route.order_topic_conf is None and route.topic_queue_mapping_by_broker:
        queues = []
    else:
        queues = [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in sorted(route.queue_datas, key=_name)
            if is_writeable(data.perm) and data.broker_name in masters
            for queue_id in range(data.write_queue_nums)
        ]
    return PublishRoute(tuple(queues[:MESSAGE_QUEUES_MAX]), masters)


def _name(data: QueueData) -> str:
    return data.broker_name


def _ordered_queues(topic: str, conf: str, masters: Mapping[str, str]) -> list[MessageQueue]:
    """The queues of an ordered topic, from `broker-a:4;broker-b:4`."""
    found: list[MessageQueue] = []
    for entry in conf.split(";"):
        name, _, count = entry.partition(":")
        if name in masters and count.isdigit():
            queues = range(min(int(count), MESSAGE_QUEUES_MAX))
            found += [MessageQueue(topic, name, queue_id) for queue_id in queues]
    return found


def new_topic_route(route: PublishRoute) -> PublishRoute:
    """The route of a topic that each of these groups creates for a message: one queue for each."""
    names = dict.fromkeys(queue.broker_name for queue in route.queues)
    return PublishRoute(tuple(MessageQueue("", name, 0) for name in names), route.masters)


def next_queue(route: PublishRoute, index: int) -> MessageQueue:
    """The queue of the message with this number (ThreadLocalIndex). The route has queues."""
    return route.queues[(index & INDEX_MASK) % len(route.queues)]


def specific_queue(route: PublishRoute, topic: str, own_name: str) -> MessageQueue:
    """The queue of all messages of this topic from this group. The route has queues."""
    return route.queues[java_hash(topic + own_name) % len(route.queues)]


def takes_specific_queue(kind: EscapeKind, topic: str, revive_topic: str) -> bool:
    """Whether a message takes the queue of rule 3 that is always the same."""
    return kind in (EscapeKind.CHECKPOINT, EscapeKind.RETRY) or topic == revive_topic


def remote_form(message: InnerMessage) -> InnerMessage:
    """The message in the form in which the other group gets it
    (TransactionalMessageUtil.buildTransactionalMessageFromHalfMessage). Raises KeyError for a half message
    that does not name its topic."""
    properties = {**message.properties, const.PROPERTY_WAIT_STORE_MSG_OK: "true"}
    if message.topic != RMQ_SYS_TRANS_HALF_TOPIC:
        return structs.replace(message, properties=properties, rendered=None)
    properties[const.PROPERTY_TRANSACTION_PREPARED] = "true"
    properties.pop(const.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, None)
    properties.pop(const.PROPERTY_REAL_QUEUE_ID, None)
    return structs.replace(
        message,
        topic=properties[const.PROPERTY_REAL_TOPIC],
        properties=properties,
        rendered=None,
        sys_flag=message.sys_flag | const.TRANSACTION_PREPARED_TYPE,
        reconsume_times=0,
    )


def send_request(
    message: InnerMessage, queue_id: int, producer_group: str, new_queues: int = NEW_TOPIC_QUEUES
) -> Command:
    """Builds the SEND_MESSAGE_V2 request for a message in its remote form
    (BrokerOuterAPI.buildSendMessageRequest). `producer_group` is used if the message names none, and for
    topics to which only brokers write; `new_queues` if the other group creates the topic. Raises
    LocalProtocolError for properties that cannot be sent."""
    properties = message.properties
    named = properties.get(const.PROPERTY_PRODUCER_GROUP)
    header = SendMessageRequestHeaderV2(
        producer_group=producer_group if is_service_topic(message.topic) else named or producer_group,
        topic=message.topic,
        default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
        default_topic_queue_nums=new_queues,
        queue_id=queue_id,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=records.format_properties(properties).decode(),
        reconsume_times=message.reconsume_times,
        unit_mode=False,
        batch=False,
    )
    return request(RequestCode.SEND_MESSAGE_V2, header, message.body)


def is_escaped(code: int) -> bool:
    """Whether a message with this response code is not sent again. A message that is stored but not yet safe
    (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE) is: the next master of the other group may
    lack it, and nobody would send it again then."""
    return code == ResponseCode.SUCCESS
