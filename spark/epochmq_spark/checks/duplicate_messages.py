# pure: messages on both sides of the start of an epoch
"""Finds duplicate messages at changes of the master: a producer that gets no response sends the message
again, and the new master stores it, too.

Duplicates are no errors, because RocketMQ delivers at least once. The messages of one batch share a unique
key; they have the same store time and are not taken for duplicates."""

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
    """A message with a unique key of its producer."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    uniq_key: str
    body_size: int
    store_time: int

    @property
    def identity(self) -> tuple[str, str, int]:
        """Equal for a message and its duplicates."""
        return self.topic, self.uniq_key, self.body_size


def find_duplicates(
    group: str,
    replica: str,
    epoch_starts: Iterable[tuple[int, int]],
    messages: Iterable[SentMessage],
    window_bytes: int,
) -> list[Row]:
    """Findings for messages that are both before and after the start of an epoch: at most `window_bytes` from
    its start offset, and one minute from the store time of its first message. `epoch_starts` are (epoch,
    start offset)."""
    ordered = sorted(messages, key=lambda sent: sent.physical_offset)
    offsets = [sent.physical_offset for sent in ordered]
    counts = Counter(sent.identity for sent in ordered)
    with_duplicates = [sent for sent in ordered if counts[sent.identity] > 1]
    findings = []
    for epoch, start in epoch_starts:
        at = bisect_left(offsets, start)
        if at < len(offsets) and offsets[at] < start + window_bytes:
            near = [
                sent
                for sent in with_duplicates
                if start - window_bytes <= sent.physical_offset < start + window_bytes
            ]
            findings += _duplicates_at((group, replica), epoch, start, ordered[at].store_time, near)
    return findings


def _duplicates_at(
    group_and_replica: tuple[str, str],
    epoch: int,
    start: int,
    epoch_time: int,
    messages: Iterable[SentMessage],
) -> list[Row]:
    """`epoch_time` is the store time of the epoch's first message, in ms. Messages are in the log's order."""
    before: dict[tuple[str, str, int], SentMessage] = {}
    findings = []
    for sent in messages:
        if sent.physical_offset < start:
            if sent.store_time >= epoch_time - WINDOW_MS:
                before[sent.identity] = sent
            continue
        first = before.get(sent.identity)
        if first is None or sent.store_time > epoch_time + WINDOW_MS or first.store_time == sent.store_time:
            continue
        detail = (
            f"first stored at {first.physical_offset}, message {first.queue_offset} of queue {first.queue_id}"
        )
        findings.append(
            finding(
                *group_and_replica,
                "message.duplicate",
                epoch=epoch,
                start_offset=sent.physical_offset,
                end_offset=sent.physical_offset + sent.size,
                topic=sent.topic,
                queue_id=sent.queue_id,
                queue_offset=sent.queue_offset,
                message_id=sent.uniq_key,
                store_timestamp=sent.store_time,
                detail=detail,
            )
        )
    return findings[:LISTED_MAX]
