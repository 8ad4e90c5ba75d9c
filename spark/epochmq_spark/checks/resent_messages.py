# pure: messages on both sides of a switch
"""Messages that were stored again after a switch of masters: a producer that got no answer sends once more.

No fault: RocketMQ delivers at least once. Elements of one batch share a unique key; they stand in one queue
side by side with one store time, and are not taken for repetitions."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from epochmq_spark.findings import finding

Row = dict[str, Any]
WINDOW_MS = 60_000
LISTED_MAX = 200


@dataclass(frozen=True)
class SentMessage:
    """A message that a producer named."""

    physical: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    uniq_key: str
    body_size: int
    store_time: int

    @property
    def named(self) -> tuple[str, str, int]:
        """What copies of it have in common."""
        return self.topic, self.uniq_key, self.body_size


def find(
    group: str, replica: str, switches: Iterable[tuple[int, int]], messages: Iterable[SentMessage], reach: int
) -> list[Row]:
    """Messages behind a switch that stand in front of it too, both at most `reach` bytes and a minute from
    it. `switches` are epochs and where they start."""
    ordered = sorted(messages, key=lambda one: one.physical)
    places = [one.physical for one in ordered]
    counts = Counter(one.named for one in ordered)
    repeated = [one for one in ordered if counts[one.named] > 1]
    found = []
    for epoch, start in switches:
        at = bisect_left(places, start)
        if at < len(places) and places[at] < start + reach:
            near = [one for one in repeated if start - reach <= one.physical < start + reach]
            found += _of_switch((group, replica), epoch, start, ordered[at].store_time, near)
    return found


def _of_switch(
    who: tuple[str, str], epoch: int, start: int, switched: int, messages: Iterable[SentMessage]
) -> list[Row]:
    """`switched`: when the epoch's first message was stored, ms. Messages are in the order of the log."""
    before: dict[tuple[str, str, int], SentMessage] = {}
    found = []
    for one in messages:
        if one.physical < start:
            if one.store_time >= switched - WINDOW_MS:
                before[one.named] = one
            continue
        first = before.get(one.named)
        if first is None or one.store_time > switched + WINDOW_MS or first.store_time == one.store_time:
            continue
        said = f"also message {first.queue_offset} of queue {first.queue_id}, at {first.physical}"
        found.append(
            finding(
                *who,
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
