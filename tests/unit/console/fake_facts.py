"""A fake source of facts: one object of each kind, with names and contents as odd as they come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochmq.client import ReceivedMessage
from epochmq.console.audit_results import AuditResults
from epochmq.console.cluster_facts import TOPIC_COLUMNS, AccessFacts, BrokerFacts
from epochmq.console.page_views import GroupCard, OverviewView, Tone, view_of
from epochmq.console.rate_samples import SeriesName
from epochmq.verbs import acl, cluster, dead_letters, group, topic, user
from epochmq.verbs import client as client_verb
from epochmq.verbs.message import MessageRange
from epochmq.verbs.offset_reset import ResetPoint
from epochmq.verbs.output import Column, OutputTable, VerbResult
from epochmq.verbs.topic import TopicChange
from epochmq_protocol import message
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError

ODD = "<img src=x onerror=alert(1)>\"'&{{ 1 }}"
"""What would be markup, or a template, if a page did not escape it."""


def received(
    body: bytes, properties: dict[str, str] | None = None, *, queue_id: int = 0, offset: int = 0
) -> ReceivedMessage:
    """A message as a broker would return it."""
    record = message.MessageExt(ODD, body, b"", queue_id, queue_offset=offset, physical_offset=offset)
    record.store_host = record.born_host = message.encode_host("127.0.0.1", 10911)
    return ReceivedMessage(MessageQueue(ODD, ODD, queue_id), record, body, properties or {})


class FakeFacts:
    """`error` is raised by every method while it is set. `asked` are the searches for messages."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.found: list[ReceivedMessage] = [received(ODD.encode(), {"TAGS": ODD, ODD: ODD})]
        self.asked: list[tuple[str, MessageRange, str | None, int]] = []
        self.topic_count = 1
        self.audits_of: Path | None = None
        self.planned: list[tuple[str, str, ResetPoint]] = []
        self.changed: list[tuple[object, ...]] = []

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    async def overview(self) -> OverviewView:
        self._check()
        row = {"cluster": ODD, "broker": ODD, "id": 0, "role": "master", "state": f"Unready ({ODD})"}
        card = GroupCard(ODD, "Degraded", Tone.BAD, [("master", ODD)])
        table = view_of(OutputTable(cluster.BROKER_COLUMNS, [row], "Brokers"))
        return OverviewView(ODD, [card], [table], [ODD])

    async def topics(self, *, everything: bool, find: str, page: int) -> tuple[OutputTable, int]:
        self._check()
        rows = [{"topic": ODD, "brokers": [ODD], "state": "serves", "inRate": 1.25, "messages": 7}]
        return OutputTable(TOPIC_COLUMNS, rows if self.topic_count else []), self.topic_count

    async def topic(self, name: str) -> VerbResult:
        self._check()
        if name != ODD:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic {name} does not exist")
        configs = [{"broker": ODD, "readQueues": 1, "attributes": {ODD: ODD}}]
        queues = [{"broker": ODD, "queue": 0, "minOffset": 0, "maxOffset": 1, "messages": 1, "lastStored": 0}]
        tables = [
            OutputTable(topic.CONFIG_COLUMNS, configs, "Topic"),
            OutputTable(topic.QUEUE_COLUMNS, queues, "Queues"),
        ]
        return VerbResult({}, tables)

    async def messages(
        self, name: str, span: MessageRange, *, key: str | None, count: int
    ) -> list[ReceivedMessage]:
        self._check()
        self.asked.append((name, span, key, count))
        return self.found

    async def message_with_id(self, name: str, message_id: str) -> ReceivedMessage:
        self._check()
        return self.found[0]

    async def groups(self, *, everything: bool) -> VerbResult:
        self._check()
        return VerbResult([], [OutputTable(group.LIST_COLUMNS, [{"group": ODD, "members": 1, "lag": 3}])])

    async def group(self, name: str) -> VerbResult:
        self._check()
        queues = [{"topic": ODD, "broker": ODD, "queue": 0, "maxOffset": 9, "consumed": 4, "lag": 5}]
        members = [{"clientId": ODD, "address": ODD, "language": "JAVA"}]
        tables = [
            OutputTable(group.SETTING_COLUMNS, [{"broker": ODD}], "Group"),
            OutputTable(group.MEMBER_COLUMNS, members, "Members"),
            OutputTable(group.SUBSCRIPTION_COLUMNS, [], "Subscriptions"),
            OutputTable(group.LAG_COLUMNS, queues, "Progress"),
        ]
        document = {"queues": queues, "members": members, "consumption": None, "model": ODD, "causes": [ODD]}
        return VerbResult(document, tables)

    async def brokers(self) -> list[dict[str, Any]]:
        self._check()
        row = {"broker": ODD, "id": 0, "role": "master", "state": "serves", "address": ODD, "inRate": 1.5}
        return [row, {"broker": ODD, "id": 1, "role": "slave", "state": ODD, "bytesBehind": 7}]

    async def broker(self, name: str) -> BrokerFacts:
        self._check()
        return BrokerFacts(
            await self.brokers(),
            [
                OutputTable(
                    [Column("KEY", "key"), Column("VALUE", "value")], [{"key": ODD, "value": ODD}], ODD
                )
            ],
        )

    async def controllers(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        self._check()
        members = [{"id": ODD, "address": ODD, "role": "leader", "term": 3}]
        refused = [{"brokerId": 2, "address": ODD, "reason": ODD}]
        return members, [{"broker": ODD, "masterId": 1, "masterEpoch": 4, "refused": refused}]

    async def clients(self, *, everything: bool) -> VerbResult:
        self._check()
        row = {"group": ODD, "kind": "producer", "clientId": ODD, "address": ODD, "brokers": [ODD]}
        return VerbResult([row], [OutputTable(client_verb.COLUMNS, [row])])

    async def dead_letters(self) -> VerbResult:
        self._check()
        return VerbResult(
            [], [OutputTable(dead_letters.COLUMNS, [{"group": ODD, "messages": 2, "newest": 1}])]
        )

    async def dead_letters_of(self, name: str, count: int) -> list[ReceivedMessage]:
        self._check()
        return self.found[:count]

    async def access(self) -> AccessFacts:
        self._check()
        users = [{"user": ODD, "type": "Super", "status": "enable"}]
        entries = [{"user": ODD, "resource": ODD, "actions": [ODD], "decision": "Deny"}]
        return AccessFacts(OutputTable(user.COLUMNS, users), OutputTable(acl.COLUMNS, entries), [ODD])

    @property
    def audits(self) -> AuditResults:
        return AuditResults(self.audits_of)

    async def sample(self) -> Mapping[SeriesName, float]:
        self._check()
        return {SeriesName("lag", ODD): 3.0}

    async def planned_reset(self, name: str, topic_name: str, point: ResetPoint) -> list[dict[str, Any]]:
        self._check()
        self.planned.append((name, topic_name, point))
        return [{"topic": topic_name, "broker": ODD, "queue": 0, "consumed": 9, "newOffset": 4, "change": -5}]

    async def reset(self, name: str, topic_name: str, point: ResetPoint) -> list[dict[str, Any]]:
        self.changed.append((name, topic_name, point))
        return await self.planned_reset(name, topic_name, point)

    async def resend(
        self, name: str, message_id: str | None, count: int, *, to_topic: bool
    ) -> list[dict[str, Any]]:
        self.changed.append((name, message_id, count, to_topic))
        return [{"status": "SEND_OK", "topic": ODD, "brokerName": ODD, "queueId": 0, "msgId": "X"}]

    def is_run(self) -> bool:
        return True

    async def replicas(self, broker_name: str) -> list[str]:
        return [f"{ODD}/0", f"{ODD}/1"]

    async def support_bundle(self) -> bytes:
        self._check()
        return b"bundle"

    async def create_topic(self, name: str, change: TopicChange, *, dry_run: bool) -> OutputTable:
        self._check()
        if not dry_run:
            self.changed.append((name, change))
        return OutputTable(topic.CONFIG_COLUMNS, [{"broker": ODD, "readQueues": change.read_queues}])

    async def promote(self, replica: str) -> str:
        self.changed.append((replica,))
        return f"{replica} is the master of epoch 2"

    async def set_password(self, name: str, password: str) -> list[dict[str, Any]]:
        self.changed.append((name, password))
        return [{"broker": ODD, "result": "changed"}]
