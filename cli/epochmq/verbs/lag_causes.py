"""Names the causes of a consumer group's lag, from what its brokers say of the group.

The rules follow RocketMQ's clients: a queue has one member of a group at a time
(AllocateMessageQueueStrategy), and only a topic that the members subscribe to is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from epochmq_protocol.topics import retry_topic

QUEUES_NAMED_MAX = 5
"""How many queues a cause names."""

Row = Mapping[str, Any]


def causes_of_lag(document: Mapping[str, Any]) -> list[str]:
    """The causes that the facts allow, each in a sentence with the next step; none for a group that has read
    everything. `document` is what `epochmq group describe -o json` prints."""
    behind = [row for row in document["queues"] if row["lag"] > 0]
    if not behind:
        return []
    closed = [row["broker"] for row in document["settings"] if not row["consumeEnable"]]
    causes = [
        f"broker {broker} gives this group no messages: its settings have consumeEnable=false"
        for broker in closed
    ]
    if not document["members"]:
        causes.append(
            f"no member is connected to read the {_total(behind)} messages: start the application, "
            "or see who is connected with: epochmq client list"
        )
        return causes
    return [*causes, *_unread_topics(document, behind), *_causes_with_members(document, behind)]


def _unread_topics(document: Mapping[str, Any], behind: Sequence[Row]) -> list[str]:
    """Topics that no member subscribes to any more. The group's own retry topic needs no subscription."""
    subscribed = {one["topic"] for one in document["subscriptions"]} | {retry_topic(document["group"])}
    unread = sorted({row["topic"] for row in behind} - subscribed)
    return [
        f"topic {topic}: no member subscribes to it, so its {_total(_of(behind, topic))} messages stay unread"
        for topic in unread
        if document["subscriptions"]
    ]


def _causes_with_members(document: Mapping[str, Any], behind: Sequence[Row]) -> list[str]:
    """What holds up members that are connected, for each topic that they read."""
    subscribed = {one["topic"] for one in document["subscriptions"]}
    causes = []
    for topic in sorted({row["topic"] for row in behind} & subscribed):
        queues, late = _of(document["queues"], topic), _of(behind, topic)
        idle = [row for row in late if row["inFlight"] == 0]
        if len(idle) < len(late) or not idle:
            pulled = sum(row["inFlight"] for row in late)
            causes.append(
                f"topic {topic}: the members have pulled {pulled} messages that they have not acknowledged: "
                "they are slow, or fail at these messages; see the application's log"
            )
        if idle:
            causes.append(
                f"topic {topic}: no message of {_names(idle)} is in flight: no member has "
                f"{'this queue' if len(idle) == 1 else 'these queues'}, or its pulls fail; "
                f"look at the next message with: epochmq message peek {topic} --queue "
                f"{idle[0]['broker']}:{idle[0]['queue']} --offset {idle[0]['consumed']}"
            )
        if 2 * len(late) <= len(queues):
            causes.append(
                f"topic {topic}: the whole lag is in {len(late)} of {len(queues)} queues: one message holds "
                "up its queue, or the producers do not use all queues"
            )
        elif len(document["members"]) >= len(queues) and document["model"] != "BROADCASTING":
            causes.append(
                f"topic {topic}: it has {len(queues)} queues for {len(document['members'])} members; further "
                f"members would get none, more queues do: epochmq topic alter {topic} --queues N"
            )
    return causes


def _of(rows: Sequence[Row], topic: str) -> list[Row]:
    return [row for row in rows if row["topic"] == topic]


def _total(rows: Sequence[Row]) -> int:
    return sum(row["lag"] for row in rows)


def _names(rows: Sequence[Row]) -> str:
    """The first queues by name, and how many more there are."""
    names = ", ".join(f"{row['broker']}:{row['queue']}" for row in rows[:QUEUES_NAMED_MAX])
    more = len(rows) - QUEUES_NAMED_MAX
    return f"{names} and {more} more" if more > 0 else names
