# pure: messages on both sides of a switch
"""Messages that were stored again after a switch of masters: a producer that got no answer sends once more.

No fault: RocketMQ delivers at least once. Elements of one batch share a unique key; they stand in one queue
side by side with one store time, and are not taken for repetitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from epochmq_spark.findings import finding

Row = dict[str, Any]
WINDOW_MS = 60_000
LISTED_MAX = 200


@dataclass(frozen=True)
class Sent:
    """A message that a producer named."""

    physical: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    uniq_key: str
    body_size: int
    store_time: int


def find(group: str, replica: str, epoch: int, start: int, messages: Iterable[Sent]) -> list[Row]:
    """Messages behind `start`, where an epoch begins, that stand in front of it too, both within a minute of
    the switch."""
    ordered = sorted(messages, key=lambda one: one.physical)
    behind = [one for one in ordered if one.physical >= start]
    if not behind:
        return []
    switched = behind[0].store_time
    before = {
        (one.topic, one.uniq_key, one.body_size): one
        for one in ordered
        if one.physical < start and one.store_time >= switched - WINDOW_MS
    }
    found = []
    for one in behind:
        first = before.get((one.topic, one.uniq_key, one.body_size))
        if first is None or one.store_time > switched + WINDOW_MS or first.store_time == one.store_time:
            continue
        said = f"also message {first.queue_offset} of queue {first.queue_id}, at {first.physical}"
        found.append(
            finding(
                group,
                replica,
                "message.duplicate",
                epoch=epoch,
                start_offset=one.physical,
                end_offset=one.physical + one.size,
                topic=one.topic,
                queue_id=one.queue_id,
                queue_offset=one.queue_offset,
                message_id=one.uniq_key,
                store_timestamp=one.store_time,
                detail=said,
            )
        )
    return found[:LISTED_MAX]
