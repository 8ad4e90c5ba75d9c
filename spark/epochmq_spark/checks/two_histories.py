# pure: the logs of a group without epochs
"""Compares the logs of a master and its slaves in a group without controllers, and so without epochs.

Replication is asynchronous there, and no broker truncates its log. A master that lost the end of its log and
then accepted messages therefore leaves two histories: its slave has other messages at the same offsets. A
message that only one broker has is no damage of a file, but it is lost with that broker. Two different copies
of one message are damage; two messages at one offset are two histories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochmq_protocol import message
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.message_const import PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX
from epochmq_spark.checks.consume_queues import HoleRanges
from epochmq_spark.checks.log_extent import LogExtent
from epochmq_spark.checks.record_copies import RecordCopy, columns_of_message, compare_records
from epochmq_spark.findings import finding

Row = dict[str, Any]
LISTED_BYTES_MAX = 1 << 30
"""Of the log behind the end of the shortest one whose messages are named."""


@dataclass(frozen=True)
class OneSidedRange:
    """The messages of one replica that are in its history only."""

    group: str
    replica: str
    start: int  # physical offset of the first one
    end: int  # end of the last one
    count: int


def compare_histories(
    group: str,
    copies: Mapping[str, Sequence[RecordCopy]],
    extents: Mapping[str, LogExtent],
    holes: Mapping[str, Sequence[tuple[int, int]]],
) -> list[Row]:
    """Findings for the records of one audit block; all arguments are by replica. Every message that a replica
    lacks is a finding at each replica that has it."""
    by_offset: dict[int, dict[str, RecordCopy]] = {}
    for name, records in copies.items():
        for copy in records:
            by_offset.setdefault(copy.offset, {})[name] = copy
    of_hole = {name: HoleRanges(holes.get(name, ())) for name in extents}
    findings: list[Row] = []
    damaged: set[int] = set()
    for offset, copies_here in sorted(by_offset.items()):
        covering = [name for name, extent in extents.items() if extent.start <= offset < extent.end]
        present = {name: copies_here[name] for name in covering if name in copies_here}
        absent = [name for name in covering if name not in present]
        shorter = [name for name, extent in extents.items() if offset >= extent.possible_end]
        if any(of_hole[name].contain(offset) for name in absent) or _is_damage(present):
            damaged.add(offset)
            continue
        for name, copy in present.items():
            others = [one for one, other in present.items() if other.raw != copy.raw] + absent
            if copy.blank:
                continue
            if others:
                kind, detail = "message.one-sided", f"{', '.join(others)}: other messages at this offset"
            elif shorter:
                kind, detail = "message.not-copied", f"not on {', '.join(shorter)}"
            else:
                continue
            columns = {"start_offset": offset, "end_offset": offset + len(copy.raw), "detail": detail}
            findings.append(finding(group, name, kind, **columns, **columns_of_message(copy)))
    of_damage = {
        name: [copy for copy in records if copy.offset in damaged] for name, records in copies.items()
    }
    return findings + compare_records(group, of_damage, extents)


def describe_histories(ranges: Iterable[OneSidedRange]) -> list[Row]:
    """A finding for each replica that has a history of its own."""
    return [
        finding(
            one.group,
            one.replica,
            "log.two-histories",
            start_offset=one.start,
            end_offset=one.end,
            detail=f"{one.count} messages of this replica are not in the other history",
        )
        for one in ranges
    ]


def _is_damage(present: Mapping[str, RecordCopy]) -> bool:
    """Whether copies differ although all of them are the same message. A copy with a wrong checksum is
    damaged; another check reports it."""
    if len({copy.raw for copy in present.values()}) < 2:
        return False
    first, *others = present.values()
    return any(not copy.crc_ok for copy in present.values()) or all(
        _is_same_message(first, other) for other in others
    )


def _is_same_message(one: RecordCopy, other: RecordCopy) -> bool:
    """Whether two records were one message once. A producer that sends a message again keeps its key, and
    makes another born time, and the broker another store time."""
    if one.blank or other.blank:
        return one.blank and other.blank
    try:
        left, right = message.decode_record(one.raw, 0, False), message.decode_record(other.raw, 0, False)
    except EpochMQError:
        return False
    if left.born_timestamp != right.born_timestamp and left.store_timestamp != right.store_timestamp:
        return False
    keys = [
        message.parse_properties(record.properties).get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        for record in (left, right)
    ]
    if keys[0] and keys[1]:
        return keys[0] == keys[1]
    return (left.born_timestamp, left.queue_offset) == (right.born_timestamp, right.queue_offset)
