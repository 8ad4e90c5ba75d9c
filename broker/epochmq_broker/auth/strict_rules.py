# pure: a request in, what it asks for out
"""Derives what a request asks for with aclStrict: every request code has a rule, and one without a rule
needs the right to change the cluster.

The rules are RocketMQ's (`access_rules`, `requested_access`), except where they leave a way round. The table
`STRICT` has the rules of requests that RocketMQ serves to every user who is authenticated. In the other
requests these are stricter:

- A request that leaves out the field by which RocketMQ finds the resource needs the right for the cluster.
- A retry topic belongs to its group. Only a request of that group itself, or of a group with the right to
  consume as that group, may use it.
- A send as `InnerProducerGroup_…`, which skips the checks of sends, needs the right to change the cluster.
- A send that names light queues (INNER_MULTI_DISPATCH) needs the right to publish to each.
- A send that deletes timer messages (TIMER_DEL_UNIQKEY) needs the right to publish to their topics.
- The answer to a check of a transaction names the topic of half messages. It needs the right for the
  message's own topic instead.
- A static topic's mapping names its topic in the body, too: both need the right.

What a request about a stored message needs depends on the message: `RECORD_CODES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from epochmq_broker.auth.access_rules import ACCESS_RULES
from epochmq_broker.auth.acls import Action, Resource, ResourceType, group_resource, topic_resource
from epochmq_broker.auth.authorization import RequestedAccess
from epochmq_broker.auth.requested_access import SPECIAL, UnreadableRequestError, access_by_rule
from epochmq_protocol.bodies import (
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    CreateTopicListRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    from_json,
)
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.errors import BodyError
from epochmq_protocol.frame import Command
from epochmq_protocol.message import parse_properties
from epochmq_protocol.message_const import PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_TIMER_DEL_UNIQKEY
from epochmq_protocol.topics import (
    INNER_PRODUCER_GROUP_PREFIX,
    RMQ_SYS_TRANS_HALF_TOPIC,
    TopicQueueMappingDetail,
    is_retry_topic,
    retry_topic,
)

_Fields = Mapping[str, str]
Derive = Callable[[_Fields, bytes, str], list[RequestedAccess]]
"""Ext fields, body and the broker's cluster → what the request asks for."""

RECORD_CODES: Final[dict[int, Action]] = {
    RequestCode.VIEW_MESSAGE_BY_ID: Action.GET,
    RequestCode.CONSUMER_SEND_MSG_BACK: Action.SUB,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Action.SUB,
    RequestCode.END_TRANSACTION: Action.PUB,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Action.UPDATE,
}
"""Requests that name a stored message by its place in the log → the action that they need on its topic, or on
its group for a message of a retry topic."""

_GET, _UPDATE, _CREATE = (Action.GET,), (Action.UPDATE,), (Action.CREATE,)
_PUB, _SUB = (Action.PUB,), (Action.SUB,)
_SUB_GET, _SUB_UPDATE = (Action.SUB, Action.GET), (Action.SUB, Action.UPDATE)


_DELETION: Final = re.compile(rf"{PROPERTY_TIMER_DEL_UNIQKEY}\x01([^\x01\x02+]*)\+".encode())
"""The property that deletes a timer message: the topic of that message, a plus sign, and its key."""
DELETED_TOPICS_MAX: Final = 64
"""Topics whose timer messages one batch may delete without the right for the cluster."""


def strict_access(command: Command, cluster: str) -> list[RequestedAccess]:
    """What the request asks of a broker of this cluster. Raises UnreadableRequestError."""
    fields = command.ext or {}
    code = command.code
    try:
        derive = STRICT.get(code)
        if derive is not None:
            return derive(fields, command.body, cluster)
        special = SPECIAL.get(code)
        if special is not None:
            return special(fields, command.body)
    except BodyError:
        raise UnreadableRequestError from None
    rule = ACCESS_RULES.get(code)
    if rule is None:
        return _cluster(cluster, _UPDATE)
    found = access_by_rule(rule, fields, cluster)
    return found or ([] if code in RECORD_CODES else _cluster(cluster, rule.actions))


def has_rule(code: int) -> bool:
    """Whether a rule says what requests of this code ask for."""
    return code in STRICT or code in SPECIAL or code in ACCESS_RULES


def _cluster(name: str, actions: tuple[Action, ...]) -> list[RequestedAccess]:
    return [RequestedAccess(Resource(ResourceType.CLUSTER, name), actions)]


def _of_cluster(*actions: Action) -> Derive:
    return lambda _fields, _body, cluster: _cluster(cluster, actions)


def _topics(names: Iterable[str | None], actions: tuple[Action, ...]) -> list[RequestedAccess]:
    """The topics of these names; a retry topic counts as its group."""
    found: dict[RequestedAccess, None] = {}
    for name in names:
        is_group = name is not None and is_retry_topic(name)
        resource = group_resource(name) if is_group else topic_resource(name)
        found[RequestedAccess(resource, actions)] = None
    return list(found)


def _groups(names: Iterable[str | None], actions: tuple[Action, ...]) -> list[RequestedAccess]:
    return list(dict.fromkeys(RequestedAccess(group_resource(name), actions) for name in names))


def _used_by(
    group: str | None, topics: Iterable[str | None], actions: tuple[Action, ...]
) -> list[RequestedAccess]:
    """The topics that a group uses, without its own retry topics: the right for the group decides there."""
    return _topics(
        (name for name in topics if group is None or not _is_own_retry_topic(name, group)), actions
    )


def _is_own_retry_topic(topic: str | None, group: str) -> bool:
    """Whether the topic is the group's retry topic, or holds its retries of POP in the form V2. No group's
    name has a plus sign. (A retry topic of POP in the form V1 may be the retry topic of another group.)"""
    own = retry_topic(group)
    return topic is not None and (topic == own or topic.startswith(f"{own}+"))


def _consume(actions: tuple[Action, ...]) -> Derive:
    def derive(fields: _Fields, _body: bytes, _cluster_name: str) -> list[RequestedAccess]:
        group = fields.get("consumerGroup")
        return _used_by(group, [fields.get("topic")], actions) + _groups([group], actions)

    return derive


def _heartbeat(_fields: _Fields, body: bytes, _cluster_name: str) -> list[RequestedAccess]:
    found: dict[RequestedAccess, None] = {}
    for consumer in from_json(HeartbeatData, body).consumer_data_set:
        group = consumer.group_name
        found |= dict.fromkeys(_groups([group], _SUB))
        found |= dict.fromkeys(_used_by(group, (one.topic for one in consumer.subscription_data_set), _SUB))
    return list(found)


def _locks(_fields: _Fields, body: bytes, _cluster_name: str) -> list[RequestedAccess]:
    request = from_json(LockBatchRequestBody, body)
    group = request.consumer_group
    return _groups([group], _SUB) + _used_by(group, (queue.topic for queue in request.mq_set), _SUB)


def _batch_ack(_fields: _Fields, body: bytes, cluster: str) -> list[RequestedAccess]:
    found: dict[RequestedAccess, None] = {}
    for ack in from_json(BatchAckMessageRequestBody, body).acks:
        group = ack.consumer_group
        found |= dict.fromkeys(_groups([group], _SUB) + _used_by(group, [ack.topic], _SUB))
    return list(found) or _cluster(cluster, _SUB)


def _end_transaction(fields: _Fields, body: bytes, _cluster_name: str) -> list[RequestedAccess]:
    """A producer that answers a check names the topic of half messages, because a broker asks in that
    name. The right for the message's own topic decides (`RECORD_CODES`)."""
    if fields.get("topic") == RMQ_SYS_TRANS_HALF_TOPIC:
        return []
    return SPECIAL[RequestCode.END_TRANSACTION](fields, body)


def _send(topic_field: str, group_field: str, properties_field: str, batch_field: str) -> Derive:
    def derive(fields: _Fields, body: bytes, cluster: str) -> list[RequestedAccess]:
        topic = fields.get(topic_field)
        retry = topic is not None and is_retry_topic(topic)
        found = _topics([topic], _SUB if retry else _PUB)
        if fields.get(group_field, "").startswith(INNER_PRODUCER_GROUP_PREFIX):
            found += _cluster(cluster, _UPDATE)
        properties = fields.get(properties_field, "")
        if PROPERTY_INNER_MULTI_DISPATCH in properties:
            queues = parse_properties(properties).get(PROPERTY_INNER_MULTI_DISPATCH, "")
            found += _topics((name for name in queues.split(",") if name), _PUB)
        if PROPERTY_TIMER_DEL_UNIQKEY in properties:
            found += _deletions(properties.encode("utf-8", "replace"), cluster)
        if fields.get(batch_field, "").strip().lower() == "true":
            found += _deletions(body, cluster)  # each message of a batch has properties of its own
        return found

    return derive


def _deletions(data: bytes, cluster: str) -> list[RequestedAccess]:
    """What the deletions of timer messages in these properties ask for."""
    names: set[str] = set()
    for match in _DELETION.finditer(data):
        names.add(match[1].decode("utf-8", "replace"))
        if len(names) > DELETED_TOPICS_MAX:
            return _cluster(cluster, _UPDATE)
    return _topics(sorted(names), _PUB)


def _topic_list(_fields: _Fields, body: bytes, cluster: str) -> list[RequestedAccess]:
    topics = from_json(CreateTopicListRequestBody, body).topic_config_list
    return _topics((one.topic_name for one in topics), _CREATE) or _cluster(cluster, _UPDATE)


def _static_topic(fields: _Fields, body: bytes, _cluster_name: str) -> list[RequestedAccess]:
    names = [fields.get("topic")]
    if body:
        names.append(from_json(TopicQueueMappingDetail, body).topic)
    return _topics(names, _CREATE)


def _group_config(_fields: _Fields, body: bytes, _cluster_name: str) -> list[RequestedAccess]:
    return _groups([from_json(SubscriptionGroupConfig, body).group_name], _CREATE)


def _group_list(_fields: _Fields, body: bytes, cluster: str) -> list[RequestedAccess]:
    groups = from_json(SubscriptionGroupList, body).group_config_list
    return _groups((one.group_name for one in groups), _CREATE) or _cluster(cluster, _UPDATE)


def _client_config(_fields: _Fields, body: bytes, _cluster_name: str) -> list[RequestedAccess]:
    return _groups([from_json(CheckClientRequestBody, body).group], _SUB)


def _assignment(_fields: _Fields, body: bytes, _cluster_name: str) -> list[RequestedAccess]:
    query = from_json(QueryAssignmentRequestBody, body)
    group = query.consumer_group
    return _used_by(group, [query.topic], _SUB_GET) + _groups([group], _SUB_GET)


def _request_mode(_fields: _Fields, body: bytes, _cluster_name: str) -> list[RequestedAccess]:
    mode = from_json(SetMessageRequestModeRequestBody, body)
    return _groups([mode.consumer_group], _UPDATE) + _topics([mode.topic], _SUB_UPDATE)


def _clone(fields: _Fields, _body: bytes, _cluster_name: str) -> list[RequestedAccess]:
    topic = fields.get("topic")
    return (
        _groups([fields.get("destGroup")], _UPDATE)
        + _groups([fields.get("srcGroup")], _GET)
        + ([] if topic is None else _topics([topic], _UPDATE))
    )


_READ, _CHANGE = _of_cluster(Action.GET), _of_cluster(Action.UPDATE)
_LONG_SEND = _send("topic", "producerGroup", "properties", "batch")
_SHORT_SEND = _send("b", "a", "i", "m")

STRICT: Final[dict[int, Derive]] = {
    RequestCode.SEND_MESSAGE: _LONG_SEND,
    RequestCode.SEND_MESSAGE_V2: _SHORT_SEND,
    RequestCode.SEND_BATCH_MESSAGE: _SHORT_SEND,
    RequestCode.SEND_REPLY_MESSAGE: _LONG_SEND,
    RequestCode.SEND_REPLY_MESSAGE_V2: _SHORT_SEND,
    RequestCode.END_TRANSACTION: _end_transaction,
    RequestCode.PULL_MESSAGE: _consume(_SUB),
    RequestCode.LITE_PULL_MESSAGE: _consume(_SUB),
    RequestCode.QUERY_CONSUMER_OFFSET: _consume(_SUB_GET),
    RequestCode.UPDATE_CONSUMER_OFFSET: _consume(_SUB_UPDATE),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
    RequestCode.CHECK_CLIENT_CONFIG: _client_config,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _request_mode,
    RequestCode.CLONE_GROUP_OFFSET: _clone,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _static_topic,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_config,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_list,
    RequestCode.UPDATE_BROKER_CONFIG: _CHANGE,
    RequestCode.GET_BROKER_CONFIG: _READ,
    RequestCode.GET_BROKER_RUNTIME_INFO: _READ,
    RequestCode.GET_ALL_TOPIC_CONFIG: _READ,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _READ,
    RequestCode.GET_ALL_DELAY_OFFSET: _READ,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _READ,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _READ,
    RequestCode.GET_TIMER_CHECK_POINT: _READ,
    RequestCode.GET_TIMER_METRICS: _READ,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _READ,
    RequestCode.GET_BROKER_HA_STATUS: _READ,
    RequestCode.GET_BROKER_EPOCH_CACHE: _READ,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _READ,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE,
    RequestCode.CLEAN_UNUSED_TOPIC: _CHANGE,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _CHANGE,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE,
    RequestCode.SET_COMMITLOG_READ_MODE: _CHANGE,
    RequestCode.POP_ROLLBACK: _CHANGE,
}
"""Request code → what a request asks for, where the strict rule is not RocketMQ's."""
