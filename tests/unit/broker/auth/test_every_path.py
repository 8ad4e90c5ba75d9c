"""Every request that the broker serves is rejected with RocketMQ's code for a wrong signature, an unknown
user, a user without permission and a foreign topic; as a one-way request, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from epochmq_broker.auth.access_rules import ACCESS_RULES
from epochmq_broker.auth.acls import ResourceType
from epochmq_broker.requests.fast_handler import Port
from epochmq_protocol.bodies import (
    BatchAck,
    BatchAckMessageRequestBody,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionData,
    UnlockBatchRequestBody,
    to_json,
)
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import FLAG_ONEWAY, Command
from epochmq_protocol.signatures import SessionCredentials
from epochmq_protocol.topics import TopicConfig
from tests.unit.broker.auth.kit import ENABLED, ROOT, allow, signed
from tests.unit.broker.kit import Bench, command, running

DENIED = ResponseCode.NO_PERMISSION
OWN, FOREIGN = "own", "foreign"
WRONG = SessionCredentials("root", "wrong")
UNKNOWN = SessionCredentials("eve", "secret")

Build = Callable[[str, str], Command]


def _fields(code: int, **names: str) -> Build:
    """A request whose ext fields hold the topic ("topic") or the group ("group")."""

    def build(topic: str, group: str) -> Command:
        return command(
            code, **{field: {"topic": topic, "group": group}[what] for field, what in names.items()}
        )

    return build


def _heartbeat(topic: str, group: str) -> Command:
    subscription = SubscriptionData(topic=topic, sub_string="*")
    consumer = ConsumerData(group_name=group, subscription_data_set=[subscription])
    return command(
        RequestCode.HEART_BEAT, None, to_json(HeartbeatData(client_id="c", consumer_data_set=[consumer]))
    )


def _lock(topic: str, group: str) -> Command:
    queues = [MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)]
    body = LockBatchRequestBody(consumer_group=group, client_id="c", mq_set=queues)
    return command(RequestCode.LOCK_BATCH_MQ, None, to_json(body))


def _unlock(topic: str, group: str) -> Command:
    queues = [MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)]
    body = UnlockBatchRequestBody(consumer_group=group, client_id="c", mq_set=queues)
    return command(RequestCode.UNLOCK_BATCH_MQ, None, to_json(body))


def _batch_ack(topic: str, group: str) -> Command:
    body = BatchAckMessageRequestBody(
        broker_name="broker-a", acks=[BatchAck(consumer_group=group, topic=topic, queue_id=0, bit_set=b"\1")]
    )
    return command(RequestCode.BATCH_ACK_MESSAGE, None, to_json(body))


SPECIAL: Final[dict[int, Build]] = {
    RequestCode.SEND_MESSAGE: _fields(RequestCode.SEND_MESSAGE, topic="topic", producerGroup="group"),
    RequestCode.SEND_MESSAGE_V2: _fields(RequestCode.SEND_MESSAGE_V2, b="topic", a="group"),
    RequestCode.SEND_BATCH_MESSAGE: _fields(RequestCode.SEND_BATCH_MESSAGE, b="topic", a="group"),
    RequestCode.RECALL_MESSAGE: _fields(RequestCode.RECALL_MESSAGE, topic="topic"),
    RequestCode.END_TRANSACTION: _fields(RequestCode.END_TRANSACTION, topic="topic", producerGroup="group"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _fields(RequestCode.CONSUMER_SEND_MSG_BACK, group="group"),
    RequestCode.PULL_MESSAGE: _fields(RequestCode.PULL_MESSAGE, topic="topic", consumerGroup="group"),
    RequestCode.LITE_PULL_MESSAGE: _fields(
        RequestCode.LITE_PULL_MESSAGE, topic="topic", consumerGroup="group"
    ),
    RequestCode.QUERY_MESSAGE: _fields(RequestCode.QUERY_MESSAGE, topic="topic"),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _fields(RequestCode.UNREGISTER_CLIENT, consumerGroup="group"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _fields(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="group"
    ),
    RequestCode.QUERY_CONSUMER_OFFSET: _fields(
        RequestCode.QUERY_CONSUMER_OFFSET, topic="topic", consumerGroup="group"
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: _fields(
        RequestCode.UPDATE_CONSUMER_OFFSET, topic="topic", consumerGroup="group"
    ),
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _unlock,
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
}
"""Requests whose permission does not follow from one rule for their header."""

GROUP_ONLY: Final = frozenset(
    {
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    }
)


def by_rule(code: int) -> Build:
    """A request with the fields that the rule for its code reads."""

    def build(topic: str, group: str) -> Command:
        kinds: Mapping[ResourceType, str] = {
            ResourceType.TOPIC: topic,
            ResourceType.GROUP: group,
            ResourceType.CLUSTER: "TestCluster",
        }
        ext = {field.name: kinds[field.type] for field in ACCESS_RULES[code].fields}
        return command(code, **(ext or {"any": "field"}))

    return build


UNCHECKED: Final = frozenset(
    {RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE}
)
"""RocketMQ's controllers and nameservers do not sign them. A broker asks these what is true."""


def paths(bench: Bench) -> dict[int, tuple[Build, bool]]:
    """(builder, whether a permission is needed) of every request that the broker serves and checks."""
    found: dict[int, tuple[Build, bool]] = {}
    for code in bench.broker.pipeline.handlers(Port.MAIN):
        if code in UNCHECKED:
            continue
        if code in SPECIAL:
            found[code] = SPECIAL[code], True
        elif code in ACCESS_RULES:
            found[code] = by_rule(code), True
        else:
            found[code] = _fields(code, any="topic"), False
    return found


def foreign(code: int, build: Build) -> Command:
    """A request about a foreign topic in the user's own group; about a foreign group if it names no topic."""
    rule = ACCESS_RULES.get(code)
    names_topic = code not in GROUP_ONLY
    if code not in SPECIAL and rule is not None:
        names_topic = any(field.type is ResourceType.TOPIC for field in rule.fields)
    return build(FOREIGN, OWN) if names_topic else build(FOREIGN, FOREIGN)


@pytest.mark.parametrize(
    ("who", "remark"),
    [
        pytest.param(None, "username cannot be null.", id="unsigned"),
        pytest.param(WRONG, "check signature failed.", id="wrong signature"),
        pytest.param(UNKNOWN, "User:eve is not found.", id="unknown user"),
    ],
)
async def test_no_request_is_served_without_a_valid_signature(
    tmp_path: Path, who: SessionCredentials | None, remark: str
) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        every = paths(bench)
        assert every.keys() >= SPECIAL.keys()
        for code, (build, _) in every.items():
            request = build(OWN, OWN)
            answer = peer.call(signed(request, who) if who is not None else request)
            assert (answer.code, answer.remark) == (DENIED, remark), code
        assert bench.broker.access.unauthenticated == len(every)


BY_BODY: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    }
)
"""Requests whose body names what they ask for. One without a body is rejected."""


@pytest.mark.parametrize("strict", [True, False])
async def test_a_user_without_permission_is_rejected_wherever_one_is_needed(
    tmp_path: Path, strict: bool
) -> None:
    async with running(tmp_path, ENABLED | {"aclStrict": str(strict).lower()}) as bench:
        peer = bench.peer()
        nobody = allow(peer, "nobody", {})
        owner = allow(peer, "owner", {f"Topic:{OWN}": ["All"], f"Group:{OWN}": ["All"]})
        host = peer.wire.peer[0]
        for code, (build, needs_permission) in paths(bench).items():
            if not needs_permission and not strict:
                continue
            if strict and code in BY_BODY:
                answer = peer.call(signed(build(OWN, OWN), nobody))
                assert (answer.code, answer.remark) == (DENIED, "parse authorization context error."), code
                continue
            for user, request in (
                (nobody, build(OWN, OWN)),
                (owner, foreign(code, build)),
            ):
                answer = peer.call(signed(request, user))
                assert answer.code == DENIED, (code, user.access_key, answer.remark)
                assert answer.remark is not None
                assert answer.remark.startswith(f"User:{user.access_key} has no permission to access "), code
                assert f" from {host}, no matched policies." in answer.remark
                if user is owner:
                    assert any(
                        named in answer.remark for named in (FOREIGN, "Cluster:TestCluster", ":null")
                    ), (code, answer.remark)


async def test_the_owner_and_the_super_user_are_let_through(tmp_path: Path) -> None:
    """Otherwise the rejections above would prove nothing. What the requests lack besides is rejected with
    other codes."""
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        bench.broker.topics.put(TopicConfig(topic_name=OWN))
        owner = allow(peer, "owner", {f"Topic:{OWN}": ["All"], f"Group:{OWN}": ["All"]})
        for code, build in SPECIAL.items():
            for user in (owner, ROOT):
                answer = await peer.answer(peer.send(signed(build(OWN, OWN), user)))
                assert "permission" not in (answer.remark or ""), (code, answer.remark)


async def test_rejected_one_way_requests_have_no_response_and_no_effect(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        bench.broker.topics.put(TopicConfig(topic_name=OWN))
        nobody = allow(peer, "nobody", {})
        end = bench.broker.store.max_phy_offset
        groups, topics = set(bench.broker.groups.table), set(bench.broker.topics.table)
        every = paths(bench)
        needing = 0
        for build, _ in every.values():
            needing += 1
            requests = [signed(build(OWN, OWN), WRONG), signed(build(OWN, OWN), nobody)]
            for request in requests:
                request.flag |= FLAG_ONEWAY
                peer.send(request)
        peer.collect()
        assert peer.answers == {}
        assert bench.broker.access.unauthenticated == len(every)
        assert bench.broker.access.unauthorized == needing
        assert bench.broker.store.max_phy_offset == end
        assert (set(bench.broker.groups.table), set(bench.broker.topics.table)) == (groups, topics)
