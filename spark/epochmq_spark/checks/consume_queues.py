# pure: messages of a queue against its units
"""Compares the messages of one queue with its consume queue, offset by offset (`ConsumeQueue`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Any

from epochmq_spark.findings import finding

Row = dict[str, Any]
QueueKey = tuple[str, str, str, int]  # group, replica, topic, queue id
LISTED_MAX = 200
EXT_TAGS_MAX = -(1 << 31) - 1  # a tag code of this value or below is the address of an extension unit


@dataclass(frozen=True)
class QueueMessage:
    """A message of the queue, as the log has it."""

    queue_offset: int
    physical: int
    size: int
    tags_code: int
    message_id: str | None
    key: str | None
    store_time: int


@dataclass(frozen=True)
class QueueUnit:
    """A unit of the queue."""

    physical: int
    size: int
    tags_code: int


@dataclass(frozen=True)
class HoleRanges:
    """The ranges of a log without a valid record: (start, end), in any order."""

    holes: Sequence[tuple[int, int]] = ()

    @cached_property
    def _joined(self) -> list[tuple[int, int]]:
        """The holes in ascending order, without overlaps."""
        joined: list[tuple[int, int]] = []
        for start, end in sorted(self.holes):
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], end)
            else:
                joined.append((start, end))
        return joined

    def contain(self, physical: int) -> bool:
        """Whether a physical offset lies in a hole."""
        at = bisect_right(self._joined, physical, key=itemgetter(0)) - 1
        return at >= 0 and physical < self._joined[at][1]

    def any_between(self, low: int, high: int) -> bool:
        """Whether a hole starts between two physical offsets."""
        at = bisect_right(self._joined, low, key=itemgetter(0))
        return at < len(self._joined) and self._joined[at][0] < high


@dataclass(frozen=True)
class QueueLimits:
    """What to expect. Messages in [log_start, dispatched) outside the holes must have units, and units must
    exist at queue offsets below `queue_end`."""

    log_start: int
    log_end: int
    dispatched: int
    queue_end: int
    holes: HoleRanges = HoleRanges()
    compare_tags: bool = True
    former_end: int = 0
    """Messages before this physical offset are of a topic of the same name that was deleted."""
    former_kind: str = "topic.made-again"
    claimed: int = 0
    """Messages before this physical offset are in the queues, says the broker that was killed."""


def compare_queue(
    queue: QueueKey,
    messages: Sequence[QueueMessage],
    units: Mapping[int, QueueUnit],
    limits: QueueLimits,
    elsewhere: Mapping[int, str],
) -> list[Row]:
    """Findings for a range of queue offsets. `messages` are all messages of the log in that range, `units`
    are by queue offset. `elsewhere` describes the records at physical offsets that units point to although no
    message of the range lies there."""
    findings: list[Row] = []
    if former := [one for one in messages if one.physical < limits.former_end]:
        detail = f"{len(former)} messages stay in the log until its segments expire"
        where = {"start_offset": min(one.physical for one in former)}
        where |= {"end_offset": max(one.physical for one in former)}
        where |= {"queue_offset": min(one.queue_offset for one in former)}
        findings.append(_of_queue(queue, limits.former_kind, **where, detail=detail))
        messages = [one for one in messages if one.physical >= limits.former_end]
    if remains := _remains(messages, units, limits):
        detail = f"{len(remains)} units; the log ends at {limits.log_end}"
        findings.append(_of_queue(queue, "queue.remains", queue_offset=min(remains), detail=detail))
        units = {offset: unit for offset, unit in units.items() if offset not in remains}
        limits = replace(limits, queue_end=min(limits.queue_end, *remains))
    by_offset: dict[int, QueueMessage] = {}
    for message in sorted(messages, key=lambda message: message.physical):
        first = by_offset.setdefault(message.queue_offset, message)
        if first is not message:
            detail = f"the other message is at physical offset {first.physical}"
            findings.append(_of_message(queue, "queue-offset.duplicate", message, detail=detail))
    findings += _skipped_offsets(queue, by_offset, units, limits)
    by_physical = {message.physical: message for message in messages}
    for offset, unit in sorted(units.items()):
        if unit.physical >= limits.log_start and not limits.holes.contain(unit.physical):
            findings += _check_unit(queue, offset, unit, by_offset, by_physical, limits, elsewhere)
    behind = claimed = 0
    for offset, message in sorted(by_offset.items()):
        if offset in units:
            continue
        if offset >= limits.queue_end and message.physical + message.size > limits.dispatched:
            behind += 1
            claimed += message.physical < limits.claimed
        else:
            findings.append(_of_message(queue, "queue.missing-unit", message))
    if claimed:
        detail = f"{claimed} messages before {limits.claimed}, up to which queues are whole by its file abort"
        findings.append(_of_queue(queue, "queue.not-repaired", queue_offset=limits.queue_end, detail=detail))
        behind -= claimed
    if behind:
        detail = f"{behind} messages"
        findings.append(_of_queue(queue, "queue.behind", queue_offset=limits.queue_end, detail=detail))
    if len(findings) > LISTED_MAX:
        detail = f"{len(findings) - LISTED_MAX} of the queue"
        findings = [*findings[:LISTED_MAX], _of_queue(queue, "more", detail=detail)]
    return findings


def _remains(
    messages: Sequence[QueueMessage], units: Mapping[int, QueueUnit], limits: QueueLimits
) -> frozenset[int]:
    """Offsets of units that a truncation left beyond the queue's end (RocketMQ moves only positions). If any
    unit points beyond the log's end, these are all units after the last one that points to its message."""
    if all(unit.physical < limits.log_end for unit in units.values()):
        return frozenset()
    positions = {(message.queue_offset, message.physical) for message in messages}
    last = max((offset for offset, unit in units.items() if (offset, unit.physical) in positions), default=-1)
    return frozenset(offset for offset in units if offset > last)


def _check_unit(
    queue: QueueKey,
    offset: int,
    unit: QueueUnit,
    by_offset: Mapping[int, QueueMessage],
    by_physical: Mapping[int, QueueMessage],
    limits: QueueLimits,
    elsewhere: Mapping[int, str],
) -> list[Row]:
    target, expected = by_physical.get(unit.physical), by_offset.get(offset)
    if target is not None and target.queue_offset == offset:
        wrong = []
        if unit.size != target.size:
            wrong.append(f"size {unit.size}, the message has {target.size}")
        if limits.compare_tags and unit.tags_code > EXT_TAGS_MAX and unit.tags_code != target.tags_code:
            wrong.append(f"tag code {unit.tags_code}, the message has {target.tags_code}")
        return [_of_message(queue, "queue.wrong-unit", target, detail="; ".join(wrong))] if wrong else []
    if target is not None:
        detail = f"unit {offset} points to a message whose queue offset is {target.queue_offset}"
        return [_of_message(queue, "queue.wrong-unit", target, detail=detail) | {"queue_offset": offset}]
    if expected is not None:
        detail = f"points to {unit.physical}, the message is at {expected.physical}"
        return [_of_message(queue, "queue.wrong-unit", expected, detail=detail)]
    detail = elsewhere.get(unit.physical, "no record starts there")
    if unit.physical >= limits.log_end:
        detail = f"the log ends at {limits.log_end}"
    columns = {"queue_offset": offset, "start_offset": unit.physical}
    return [_of_queue(queue, "queue.no-record", **columns, detail=detail)]


def _skipped_offsets(
    queue: QueueKey,
    by_offset: Mapping[int, QueueMessage],
    units: Mapping[int, QueueUnit],
    limits: QueueLimits,
) -> list[Row]:
    """Offsets between two messages at which the log has no message. An offset whose unit points into a hole
    is explained by the hole."""
    findings: list[Row] = []
    if not by_offset:
        return findings
    for before, after in pairwise(sorted(by_offset)):
        low, high = by_offset[before].physical, by_offset[after].physical
        if after == before + 1 or limits.holes.any_between(low, high):
            continue
        columns = {"start_offset": low, "end_offset": high}
        for offset in range(before + 1, after):
            unit = units.get(offset)
            if unit is None or not limits.holes.contain(unit.physical):
                findings.append(_of_queue(queue, "queue-offset.skipped", queue_offset=offset, **columns))
    return findings


def _of_queue(queue: QueueKey, kind: str, **more: Any) -> Row:
    return finding(queue[0], queue[1], kind, topic=queue[2], queue_id=queue[3], **more)


def _of_message(queue: QueueKey, kind: str, message: QueueMessage, **more: Any) -> Row:
    return _of_queue(
        queue,
        kind,
        queue_offset=message.queue_offset,
        start_offset=message.physical,
        end_offset=message.physical + message.size,
        key=message.key,
        message_id=message.message_id,
        store_timestamp=message.store_time,
        **more,
    )
