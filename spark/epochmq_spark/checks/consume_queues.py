# pure: messages of a queue against its units
"""The messages of one queue against its consume queue, offset by offset (`ConsumeQueue`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from epochmq_spark.findings import finding

Row = dict[str, Any]
LISTED_MAX = 200
EXT_TAGS_MAX = -(1 << 31) - 1  # at and below it a tag code is the address of an extension


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
class QueueLimits:
    """What can be expected: of messages in [log_start, dispatched) outside the holes, and of units below
    `queue_end`."""

    log_start: int
    log_end: int
    dispatched: int
    queue_end: int
    holes: Sequence[tuple[int, int]] = ()
    compare_tags: bool = True


def compare(
    who: tuple[str, str, str, int],
    messages: Sequence[QueueMessage],
    units: Mapping[int, QueueUnit],
    limits: QueueLimits,
    elsewhere: Mapping[int, str],
) -> list[Row]:
    """Findings for a range of queue offsets. `who` is group, replica, topic and queue; `messages` are all
    messages of the log in that range, `units` by queue offset; `elsewhere` says what stands at the places in
    the log that units lead to and no message of the range does."""
    found: list[Row] = []
    if remains := _remains(messages, units, limits):
        said = f"{len(remains)} units; the log ends at {limits.log_end}"
        row = finding(who[0], who[1], "queue.remains", topic=who[2], queue_id=who[3], detail=said)
        found.append(row | {"queue_offset": min(remains)})
        units = {offset: unit for offset, unit in units.items() if offset not in remains}
        limits = replace(limits, queue_end=min(limits.queue_end, *remains))
    by_offset: dict[int, QueueMessage] = {}
    for one in sorted(messages, key=lambda one: one.physical):
        first = by_offset.setdefault(one.queue_offset, one)
        if first is not one:
            said = f"the other is at {first.physical} of the log"
            found.append(_of(who, "queue-offset.duplicate", one, detail=said))
    _skipped(who, by_offset, units, limits, found)
    by_place = {one.physical: one for one in messages}
    for offset, unit in sorted(units.items()):
        if unit.physical >= limits.log_start and not _in_hole(unit.physical, limits):
            _check_unit(who, offset, unit, by_offset, by_place, limits, elsewhere, found)
    behind = 0
    for offset, one in sorted(by_offset.items()):
        if offset in units:
            continue
        if offset >= limits.queue_end and one.physical + one.size > limits.dispatched:
            behind += 1
        else:
            found.append(_of(who, "queue.missing-unit", one))
    if behind:
        row = finding(
            who[0], who[1], "queue.behind", topic=who[2], queue_id=who[3], detail=f"{behind} messages"
        )
        found.append(row | {"queue_offset": limits.queue_end})
    if len(found) > LISTED_MAX:
        said = f"{len(found) - LISTED_MAX} of the queue"
        more = finding(who[0], who[1], "more", topic=who[2], queue_id=who[3], detail=said)
        found = [*found[:LISTED_MAX], more]
    return found


def _remains(
    messages: Sequence[QueueMessage], units: Mapping[int, QueueUnit], limits: QueueLimits
) -> frozenset[int]:
    """Offsets of units that a cut left behind the queue's end (RocketMQ moves positions only): where any
    leads behind the log's end, all that follow the last one that leads to its message."""
    if all(unit.physical < limits.log_end for unit in units.values()):
        return frozenset()
    places = {(one.queue_offset, one.physical) for one in messages}
    last = max((offset for offset, unit in units.items() if (offset, unit.physical) in places), default=-1)
    return frozenset(offset for offset in units if offset > last)


def _check_unit(
    who: tuple[str, str, str, int],
    offset: int,
    unit: QueueUnit,
    by_offset: Mapping[int, QueueMessage],
    by_place: Mapping[int, QueueMessage],
    limits: QueueLimits,
    elsewhere: Mapping[int, str],
    found: list[Row],
) -> None:
    there, due = by_place.get(unit.physical), by_offset.get(offset)
    if there is not None and there.queue_offset == offset:
        wrong = []
        if unit.size != there.size:
            wrong.append(f"size {unit.size}, the message has {there.size}")
        if limits.compare_tags and unit.tags_code > EXT_TAGS_MAX and unit.tags_code != there.tags_code:
            wrong.append(f"tag code {unit.tags_code}, the message has {there.tags_code}")
        if wrong:
            found.append(_of(who, "queue.wrong-unit", there, detail="; ".join(wrong)))
    elif there is not None:
        said = f"unit {offset} leads to a message that says it is {there.queue_offset}"
        found.append(_of(who, "queue.wrong-unit", there, detail=said) | {"queue_offset": offset})
    elif due is not None:
        said = f"leads to {unit.physical}, the message is at {due.physical}"
        found.append(_of(who, "queue.wrong-unit", due, detail=said))
    else:
        said = elsewhere.get(unit.physical, "no record starts there")
        if unit.physical >= limits.log_end:
            said = f"the log ends at {limits.log_end}"
        row = finding(who[0], who[1], "queue.no-record", topic=who[2], queue_id=who[3], detail=said)
        found.append(row | {"queue_offset": offset, "start_offset": unit.physical})


def _skipped(
    who: tuple[str, str, str, int],
    by_offset: Mapping[int, QueueMessage],
    units: Mapping[int, QueueUnit],
    limits: QueueLimits,
    found: list[Row],
) -> None:
    """Offsets between two messages that no message of the log has; a unit that leads into a hole says why."""
    if not by_offset:
        return
    for offset in range(min(by_offset) + 1, max(by_offset)):
        unit = units.get(offset)
        if offset in by_offset or (unit is not None and _in_hole(unit.physical, limits)):
            continue
        before = max((one for one in by_offset if one < offset), default=offset)
        after = min((one for one in by_offset if one > offset), default=offset)
        low, high = by_offset[before].physical, by_offset[after].physical
        if any(low < start < high for start, _ in limits.holes):
            continue
        row = finding(who[0], who[1], "queue-offset.skipped", topic=who[2], queue_id=who[3])
        found.append(row | {"queue_offset": offset, "start_offset": low, "end_offset": high})


def _in_hole(physical: int, limits: QueueLimits) -> bool:
    return any(start <= physical < end for start, end in limits.holes)


def _of(who: tuple[str, str, str, int], kind: str, one: QueueMessage, **more: Any) -> Row:
    return finding(
        who[0],
        who[1],
        kind,
        topic=who[2],
        queue_id=who[3],
        queue_offset=one.queue_offset,
        start_offset=one.physical,
        end_offset=one.physical + one.size,
        key=one.key,
        message_id=one.message_id,
        store_timestamp=one.store_time,
        **more,
    )
