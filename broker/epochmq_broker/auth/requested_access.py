# pure: a request in, what it asks for out
"""Derives what a request asks for: on which resources, and one of which actions on each (RocketMQ's
DefaultAuthorizationContextBuilder).

Most requests say it in their header (`access_rules`). This module has the others: sends, pulls, heartbeats,
locks and offsets, where retry topics count as their group. A request without ext fields asks for nothing.

Two requests are checked here that RocketMQ lets pass: LITE_PULL_MESSAGE like PULL_MESSAGE, and
BATCH_ACK_MESSAGE like ACK_MESSAGE. Otherwise every user could read every topic. With aclStrict,
`strict_rules` derives what a request asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from epochmq_broker.auth.access_rules import ACCESS_RULES, AccessRule
from epochmq_broker.auth.acls import Action, Resource, ResourceType, group_resource, topic_resource
from epochmq_broker.auth.authorization import RequestedAccess
from epochmq_broker.auth.users import is_blank
from epochmq_protocol.bodies import (
    BatchAckMessageRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    from_json,
)
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.errors import BodyError
from epochmq_protocol.frame import Command
from epochmq_protocol.topics import is_retry_topic

PARSE_ERROR = "parse authorization context error."
"""RocketMQ's remark for a request whose body cannot be read."""

_PUB, _SUB = (Action.PUB,), (Action.SUB,)
_SUB_GET, _SUB_UPDATE = (Action.SUB, Action.GET), (Action.SUB, Action.UPDATE)
_PUB_SUB_GET = (Action.PUB, Action.SUB, Action.GET)


class UnreadableRequestError(Exception):
    """The body of a request does not say what the request asks for."""


def requested_access(command: Command, cluster: str) -> list[RequestedAccess]:
    """What the request asks of a broker of this cluster. Raises UnreadableRequestError."""
    fields = command.ext
    if not fields:
        return []
    derive = SPECIAL.get(command.code)
    if derive is not None:
        try:
            return derive(fields, command.body)
        except BodyError:
            raise UnreadableRequestError from None
    rule = ACCESS_RULES.get(command.code)
    return [] if rule is None else access_by_rule(rule, fields, cluster)


def access_by_rule(rule: AccessRule, fields: Mapping[str, str], cluster: str) -> list[RequestedAccess]:
    """What the header says by the rule for its code."""
    accesses: list[RequestedAccess] = []
    for field in rule.fields:
        value = fields.get(field.name)
        if value is None:
            continue
        names = [one for one in value.split(field.separator) if one] if field.separator else [value]
        for name in names:
            is_group = field.type is ResourceType.TOPIC and is_retry_topic(name)
            resource = group_resource(name) if is_group else Resource(field.type, name)
            accesses.append(RequestedAccess(resource, rule.actions))
    if not accesses and rule.of_cluster:
        accesses.append(RequestedAccess(Resource(ResourceType.CLUSTER, cluster), rule.actions))
    return accesses


_Fields = Mapping[str, str]
_Derive = Callable[[_Fields, bytes], list[RequestedAccess]]


def _topic(name: str | None, actions: tuple[Action, ...]) -> list[RequestedAccess]:
    return [RequestedAccess(topic_resource(name), actions)]


def _group(name: str | None, actions: tuple[Action, ...]) -> list[RequestedAccess]:
    return [RequestedAccess(group_resource(name), actions)]


def _topic_unless_retry(name: str | None, actions: tuple[Action, ...]) -> list[RequestedAccess]:
    """A consumer of a group may use the group's retry topic: the permission for the group decides."""
    return [] if name is not None and is_retry_topic(name) else _topic(name, actions)


def _route(fields: _Fields, body: bytes) -> list[RequestedAccess]:
    topic = fields.get("topic")
    if topic is not None and is_retry_topic(topic):
        return _group(topic, _SUB_GET)
    return _topic(topic, _PUB_SUB_GET)


def _send(topic_field: str) -> _Derive:
    """A send to a retry topic needs the right to consume as its group, whatever producer group the request
    names (apache/rocketmq 9911; 5.3.3 asks for that producer group instead)."""

    def derive(fields: _Fields, body: bytes) -> list[RequestedAccess]:
        topic = fields.get(topic_field)
        if topic is None or not is_retry_topic(topic):
            return _topic(topic, _PUB)
        return _group(topic, _SUB)

    return derive


def _end_transaction(fields: _Fields, body: bytes) -> list[RequestedAccess]:
    topic = fields.get("topic")
    return [] if is_blank(topic) else _topic(topic, _PUB)


def _pull(fields: _Fields, body: bytes) -> list[RequestedAccess]:
    return _topic_unless_retry(fields.get("topic"), _SUB) + _group(fields.get("consumerGroup"), _SUB)


def _unregister(fields: _Fields, body: bytes) -> list[RequestedAccess]:
    group = fields.get("consumerGroup")
    return [] if is_blank(group) else _group(group, _SUB)


def _offset(actions: tuple[Action, ...]) -> _Derive:
    def derive(fields: _Fields, body: bytes) -> list[RequestedAccess]:
        topics = _topic_unless_retry(fields.get("topic"), actions)
        return topics + _group(fields.get("consumerGroup"), actions)

    return derive


def _heartbeat(fields: _Fields, body: bytes) -> list[RequestedAccess]:
    found: list[RequestedAccess] = []
    for consumer in from_json(HeartbeatData, body).consumer_data_set:
        found += _group(consumer.group_name, _SUB)
        for subscription in consumer.subscription_data_set:
            found += _topic_unless_retry(subscription.topic, _SUB)
    return found


def _locks(fields: _Fields, body: bytes) -> list[RequestedAccess]:
    request = from_json(LockBatchRequestBody, body)
    found = _group(request.consumer_group, _SUB)
    for queue in request.mq_set:
        found += _topic_unless_retry(queue.topic, _SUB)
    return found


def _batch_ack(fields: _Fields, body: bytes) -> list[RequestedAccess]:
    found: dict[RequestedAccess, None] = {}
    for ack in from_json(BatchAckMessageRequestBody, body).acks:
        for one in _group(ack.consumer_group, _SUB) + _topic_unless_retry(ack.topic, _SUB):
            found[one] = None
    return list(found)


SPECIAL: dict[int, _Derive] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.SEND_MESSAGE: _send("topic"),
    RequestCode.SEND_MESSAGE_V2: _send("b"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b"),
    RequestCode.RECALL_MESSAGE: lambda fields, _: _topic(fields.get("topic"), _PUB),
    RequestCode.END_TRANSACTION: _end_transaction,
    RequestCode.CONSUMER_SEND_MSG_BACK: lambda fields, _: _group(fields.get("group"), _SUB),
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.QUERY_MESSAGE: lambda fields, _: _topic(fields.get("topic"), _SUB_GET),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda fields, _: _group(fields.get("consumerGroup"), _SUB_GET),
    RequestCode.QUERY_CONSUMER_OFFSET: _offset(_SUB_GET),
    RequestCode.UPDATE_CONSUMER_OFFSET: _offset(_SUB_UPDATE),
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
}
"""Request code → what a request with these ext fields and this body asks for."""
