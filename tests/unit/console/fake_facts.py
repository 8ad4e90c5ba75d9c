"""A fake source of facts: one topic and one consumer group with names and contents as odd as they come."""

from __future__ import annotations

from epochmq.client import ReceivedMessage
from epochmq.console.cluster_facts import TOPIC_COLUMNS
from epochmq.console.page_views import GroupCard, OverviewView, Tone, view_of
from epochmq.verbs import cluster, group, topic
from epochmq.verbs.message import MessageRange
from epochmq.verbs.output import OutputTable, VerbResult
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
        document = {"queues": queues, "members": members, "consumption": None, "model": ODD}
        return VerbResult(document, tables)
