# pure: messages on both sides of the start of an epoch
"""Finds messages that were stored again after a change of master: a producer that gets no response sends the
message again.

That is no error, because RocketMQ delivers at least once. The messages of one batch share a unique key; they
lie side by side in one queue with the same store time and are not taken for repetitions."""

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

    physical: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    uniq_key: str
    body_size: int
    store_time: int

    @property
    def identity(self) -> tuple[str, str, int]:
        """Equal for all copies of the message."""
        return self.topic, self.uniq_key, self.body_size


def find_resent(
    group: str,
    replica: str,
    epoch_starts: Iterable[tuple[int, int]],
    messages: Iterable[SentMessage],
    window_bytes: int,
) -> list[Row]:
    """Findings for messages that lie both before and after the start of an epoch, at most `window_bytes` and
    one minute from it. `epoch_starts` are (epoch, start offset)."""
    ordered = sorted(messages, key=lambda sent: sent.physical)
    offsets = [sent.physical for sent in ordered]
    counts = Counter(sent.identity for sent in ordered)
    repeated = [sent for sent in ordered if counts[sent.identity] > 1]
    findings = []
    for epoch, start in epoch_starts:
        first = bisect_left(offsets, start)
        if first < len(offsets) and offsets[first] < start + window_bytes:
            near = [sent for sent in repeated if start - window_bytes <= sent.physical < start + window_bytes]
            findings += _resent_at((group, replica), epoch, start, ordered[first].store_time, near)
    return findings


def _resent_at(
    who: tuple[str, str], epoch: int, start: int, epoch_time: int, messages: Iterable[SentMessage]
) -> list[Row]:
    """`epoch_time` is the store time of the epoch's first message, in ms. Messages are in the log's order."""
    before: dict[tuple[str, str, int], SentMessage] = {}
    findings = []
    for sent in messages:
        if sent.physical < start:
            if sent.store_time >= epoch_time - WINDOW_MS:
                before[sent.identity] = sent
            continue
        first = before.get(sent.identity)
        if first is None or sent.store_time > epoch_time + WINDOW_MS or first.store_time == sent.store_time:
            continue
        detail = f"first stored at {first.physical}, message {first.queue_offset} of queue {first.queue_id}"
        findings.append(
            finding(
                *who,
                "message.duplicate",
                epoch=epoch,
                start_offset=sent.physical,
                end_offset=sent.physical + sent.size,
                topic=sent.topic,
                queue_id=sent.queue_id,
                queue_offset=sent.queue_offset,
                message_id=sent.uniq_key,
                store_timestamp=sent.store_time,
                detail=detail,
            )
        )
    return findings[:LISTED_MAX]
