# pure: which messages of a log belong to a topic that was deleted
"""Tells messages of a topic that was deleted from messages whose consume queue is lost.

Deleting a topic removes its configuration and its queues; its messages stay in the log until their segments
expire. If it is made again, the offsets of its queues start at 0 again. So:

- messages of a topic that is in no table of topics need no unit, for there is no queue to be in;
- the first unit of a queue leads to the first message of the present topic; what lies before it in the log is
  of a former one, if the present one starts at queue offset 0, or if the topic is in no table;
- a queue without a unit begins with the last message in the log that has queue offset 0: a broker that was
  killed may not have written its units;
- a topic of which no replica that was stopped has a unit has got no message since it was made again. If some
  replicas have units of it, these may be those of the former one, which a slave keeps; or this replica has
  lost its queues. Nothing in the files tells which, so this is a warning.

A topic is known if the table of any replica lists it: a replica that has lost an entry has lost no topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from epochmq_protocol import fastjson
from epochmq_protocol.topics import is_system_topic
from epochmq_spark.findings import finding

Row = dict[str, Any]
ReplicaKey = tuple[str, str]  # group, replica
REPLICAS_MIN: Final = 2  # that must have no unit of a topic before it counts as one without a message
TOPICS_FILE: Final = "config/topics.json"


@dataclass(frozen=True)
class LoggedTopic:
    """The messages of one topic in a log: their number, and the physical offsets of the first and the
    last."""

    group: str
    replica: str
    topic: str
    count: int
    first: int
    last: int


def parse_topics(data: bytes) -> frozenset[str]:
    """The topics of a topics.json. Raises ValueError or EpochMQError."""
    parsed = fastjson.loads(data)
    table = parsed.get("topicConfigTable") if isinstance(parsed, dict) else None
    if not isinstance(table, dict):
        raise ValueError("no topicConfigTable")
    return frozenset(map(str, table))


def known_topics(tables: Mapping[str, frozenset[str]], replica: str) -> frozenset[str] | None:
    """The topics that the tables of a group list; None if that of this replica cannot be read."""
    return frozenset().union(*tables.values()) if replica in tables else None


def is_deleted(topic: str, known: frozenset[str] | None) -> bool:
    """Whether a topic with messages in the log exists no more. System topics cannot be deleted."""
    return known is not None and topic not in known and not is_system_topic(topic)


def topics_without_units(
    logged: Iterable[LoggedTopic],
    tables: Mapping[str, Mapping[str, frozenset[str]]],
    dispatched: Mapping[str, Mapping[str, int]],
) -> tuple[list[Row], list[tuple[str, str, str]]]:
    """A finding for each topic without a unit that was deleted, or may have been made again, and their keys:
    group, replica, topic. `logged` are all topics without a unit. `tables` and `dispatched` are by group and
    replica; the latter are, of replicas with consume queues, the physical offsets up to which messages must
    have units. What lies beyond is compared with the queues."""
    known: dict[ReplicaKey, frozenset[str] | None] = {}
    rows: list[Row] = []
    keys: list[tuple[str, str, str]] = []
    listed = list(logged)
    lacking = Counter((one.group, one.topic) for one in listed if _must_have_units(one, dispatched))
    for one in listed:
        key = one.group, one.replica
        if key not in known:
            known[key] = known_topics(tables.get(one.group, {}), one.replica)
        topics = known[key]
        if topics is None or is_system_topic(one.topic):
            continue
        if one.topic not in topics:
            kind = "topic.deleted"
        elif not _must_have_units(one, dispatched):
            continue
        else:
            everywhere = REPLICAS_MIN <= len(dispatched[one.group]) <= lacking[one.group, one.topic]
            kind = "topic.made-again" if everywhere else "topic.without-queues"
        keys.append((*key, one.topic))
        detail = f"{one.count} messages stay in the log until its segments expire"
        where: Row = {"topic": one.topic, "start_offset": one.first, "end_offset": one.last}
        rows.append(finding(*key, kind, **where, detail=detail))
    return rows, keys


def _must_have_units(topic: LoggedTopic, dispatched: Mapping[str, Mapping[str, int]]) -> bool:
    return topic.first < dispatched.get(topic.group, {}).get(topic.replica, 0)
