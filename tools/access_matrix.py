"""Writes docs/develop/access-matrix.md: for each request code of each port, who may make the request.

    .venv/bin/python -m tools.access_matrix

The rights at a broker are those that the rules derive from an example of each request: its fields have their
own names as values. So the page cannot differ from the rules, and a code without a rule has no row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from epochmq_broker.auth.access_rules import ACCESS_RULES
from epochmq_broker.auth.authorization import RequestedAccess
from epochmq_broker.auth.requested_access import SPECIAL, requested_access
from epochmq_broker.auth.strict_rules import RECORD_CODES, STRICT, strict_access
from epochmq_controller.port_rules import CONTROLLER_RULES, NAMESERVER_RULES, Sender
from epochmq_protocol.bodies import (
    BatchAck,
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    ConsumerData,
    CreateTopicListRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    to_json,
)
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.dledger import DLedgerRequestCode
from epochmq_protocol.frame import Command
from epochmq_protocol.member_requests import BROKER_REQUESTS, MemberCode
from epochmq_protocol.replica_control import ReplicaControlCode
from epochmq_protocol.topics import TopicConfig, TopicQueueMappingDetail

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "develop" / "access-matrix.md"
CLUSTER: Final = "CLUSTER"
_TOPIC, _GROUP = "topic in the body", "group in the body"
_LOCK = to_json(
    LockBatchRequestBody(consumer_group=_GROUP, client_id="c", mq_set={MessageQueue(_TOPIC, "b", 0)})
)
_GROUP_CONFIG = SubscriptionGroupConfig(group_name=_GROUP)
BODIES: Final[dict[int, bytes]] = {
    RequestCode.HEART_BEAT: to_json(
        HeartbeatData(
            client_id="c",
            consumer_data_set=[
                ConsumerData(group_name=_GROUP, subscription_data_set=[SubscriptionData(topic=_TOPIC)])
            ],
        )
    ),
    RequestCode.LOCK_BATCH_MQ: _LOCK,
    RequestCode.UNLOCK_BATCH_MQ: _LOCK,
    RequestCode.BATCH_ACK_MESSAGE: to_json(
        BatchAckMessageRequestBody(
            broker_name="b",
            acks=[BatchAck(consumer_group=_GROUP, topic=_TOPIC, queue_id=0, bit_set=b"\1")],
        )
    ),
    RequestCode.CHECK_CLIENT_CONFIG: to_json(CheckClientRequestBody(group=_GROUP)),
    RequestCode.QUERY_ASSIGNMENT: to_json(QueryAssignmentRequestBody(topic=_TOPIC, consumer_group=_GROUP)),
    RequestCode.SET_MESSAGE_REQUEST_MODE: to_json(
        SetMessageRequestModeRequestBody(topic=_TOPIC, consumer_group=_GROUP)
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: to_json(
        CreateTopicListRequestBody(topic_config_list=[TopicConfig(topic_name=_TOPIC)])
    ),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: to_json(TopicQueueMappingDetail(topic=_TOPIC)),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: to_json(_GROUP_CONFIG),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: to_json(
        SubscriptionGroupList(group_config_list=[_GROUP_CONFIG])
    ),
}
"""Examples of the bodies that say what their request asks for."""
TO_CLIENTS: Final = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)
"""What brokers send to clients."""
ELSEWHERE: Final = (
    frozenset(NAMESERVER_RULES)
    | frozenset(CONTROLLER_RULES)
    | TO_CLIENTS
    | {RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER}
)
"""Codes that no broker serves, although RocketMQ's headers have annotations of access control for some."""


class _OwnNames(dict[str, str]):
    """Ext fields that all exist, each with its own name as its value."""

    def get(self, key: str, default: object = None) -> str:
        """The name of the field."""
        return key

    def __bool__(self) -> bool:
        return True


def example(code: int) -> Command:
    """A request with every field, and a body if the rule reads one."""
    return Command(code=code, ext=_OwnNames(), body=BODIES.get(code, b""))


def name_of(code: int) -> str:
    """The name of a request code."""
    for names in (RequestCode, ReplicaControlCode, MemberCode, DLedgerRequestCode):
        if code in set(map(int, names)):
            return str(names(code).name)
    raise ValueError(f"request code {code} has no name")


def rights(derive: Callable[[Command, str], Iterable[RequestedAccess]], code: int) -> str:
    """The rights that a request needs, as text."""
    words = [
        f"{' or '.join(action.value for action in one.actions)} on {one.resource.key.replace(':', ' `')}`"
        for one in derive(example(code), CLUSTER)
    ]
    return ", ".join(words)


def broker_rows(served: Iterable[int]) -> list[str]:
    """A row for each code that a broker serves."""
    rows = []
    for code in sorted(served):
        strict = rights(strict_access, code)
        if code in RECORD_CODES:
            action = RECORD_CODES[code].value
            strict = ", ".join(filter(None, (strict, f"{action} on the topic of the message that it names")))
        lax = rights(requested_access, code)
        who = "members" if code in BROKER_REQUESTS else ""
        rows.append(f"| {code} | `{name_of(code)}` | {who} | {strict or '–'} | {lax or '–'} |")
    return rows


def port_rows(rules: Mapping[int, Sender]) -> list[str]:
    """A row for each code of a nameserver or a controller."""
    return [f"| {code} | `{name_of(code)}` | {rules[code].value} |" for code in sorted(rules)]


def served_by_brokers() -> frozenset[int]:
    """The codes with a rule of a broker."""
    ruled = {*STRICT, *SPECIAL, *ACCESS_RULES}
    return frozenset(int(code) for code in ruled if int(code) not in ELSEWHERE)


def page(served: Iterable[int]) -> str:
    """The page."""
    return _PAGE.format(
        brokers="\n".join(broker_rows(served)),
        nameservers="\n".join(port_rows(NAMESERVER_RULES)),
        controllers="\n".join(port_rows(CONTROLLER_RULES)),
    )


_PAGE: Final = """\
# Who may make which request

For developers. After this page you know what each request code of each port needs. The page is written by
`.venv/bin/python -m tools.access_matrix` from the rules.

## Brokers

With [access control](../access-control.md) a request needs a valid signature, and one of the actions on each
resource of its row. A super user needs the signature only. A word such as `topic` stands for the value of
that field of the request. A retry topic counts as its group. The last column is the rule without `aclStrict`,
which is RocketMQ's. A request of members needs a
[proof of membership](../security.md#members-prove-what-they-are) where brokers have a secret.

| code | name | only from | right | without `aclStrict` |
|---|---|---|---|---|
{brokers}

A send as `InnerProducerGroup_…` also needs Update on the cluster. A send to light queues needs Pub on each of
them, and one that deletes timer messages Pub on their topics. A code without a row needs Update on the
cluster.

## Nameservers

| code | name | from |
|---|---|---|
{nameservers}

## Controllers

A broker on a DLedger log serves the codes from 50000 on, too, at the port of its peers.

| code | name | from |
|---|---|---|
{controllers}
"""


if __name__ == "__main__":
    PAGE.write_text(page(served_by_brokers()), encoding="utf-8")
