# pure: copies of records of one block
"""The records of one block, as each replica has them: which differ, in what, and who is alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochmq_protocol import message
from epochmq_protocol.errors import EpochMQError
from epochmq_spark.findings import finding

Row = dict[str, Any]
LISTED_MAX = 200  # findings of one kind, block and replica that are written out

_FIELDS = (
    ("body", "body"), ("topic", "topic"), ("properties", "properties"), ("queue_id", "queue id"),
    ("flag", "flag"), ("queue_offset", "queue offset"), ("sys_flag", "sysFlag"),
    ("born_timestamp", "born time"), ("born_host", "born host"), ("store_timestamp", "store time"),
    ("store_host", "store host"), ("reconsume_times", "reconsume times"),
    ("prepared_transaction_offset", "prepared offset"), ("body_crc", "checksum"),
)  # fmt: skip


@dataclass(frozen=True)
class RecordCopy:
    """A record (or a blank) of one replica."""

    offset: int
    raw: bytes
    sound: bool  # its body fits its checksum
    blank: bool = False


@dataclass(frozen=True)
class BlockExtent:
    """Which of the block's offsets a replica must have, and from where on it is known to differ."""

    start: int
    end: int
    common: int
    leading: bool


def compare(
    group: str, copies: Mapping[str, Sequence[RecordCopy]], extents: Mapping[str, BlockExtent]
) -> list[Row]:
    """Findings for every place where replicas that must agree do not. What differs behind a replica's common
    end is its tail; a body that does not fit its checksum is reported elsewhere."""
    by_offset: dict[int, dict[str, RecordCopy]] = {}
    for name, records in copies.items():
        for copy in records:
            by_offset.setdefault(copy.offset, {})[name] = copy
    found: list[Row] = []
    listed: Counter[tuple[str, str]] = Counter()
    leading = next((name for name, extent in extents.items() if extent.leading), None)
    for offset in sorted(by_offset):
        here = by_offset[offset]
        covering = [name for name, extent in extents.items() if extent.start <= offset < extent.end]
        present = {name: here[name] for name in covering if name in here}
        alone = len(covering) == 1 and offset < extents[covering[0]].common
        if not present or alone:
            continue
        right = _right(present, leading)
        for name in covering:
            have = present.get(name)
            if have is not None and have.raw == right.raw and len(covering) > 1:
                continue
            for row in _finding(group, name, offset, have, right, extents[name]):
                listed[name, row["kind"]] += 1
                if listed[name, row["kind"]] <= LISTED_MAX:
                    found.append(row)
    for (name, kind), count in sorted(listed.items()):
        if count > LISTED_MAX:
            said = f"{count - LISTED_MAX} of {kind}"
            found.append(finding(group, name, "more", start_offset=min(by_offset), detail=said))
    return found


def _right(present: Mapping[str, RecordCopy], leading: str | None) -> RecordCopy:
    """What most have, of what is sound; among equals what the leading replica has."""
    votes = Counter(copy.raw for copy in present.values())
    ours = present.get(leading) if leading is not None else None
    return max(
        present.values(),
        key=lambda copy: (copy.sound, votes[copy.raw], ours is not None and copy.raw == ours.raw, copy.raw),
    )


def _finding(
    group: str, name: str, offset: int, copy: RecordCopy | None, right: RecordCopy, extent: BlockExtent
) -> list[Row]:
    place: dict[str, Any] = {"start_offset": offset, "end_offset": offset + len(right.raw)}
    if copy is None:
        if offset >= extent.common or right.blank:
            return []
        return [finding(group, name, "message.missing", **place, **columns_of_message(right))]
    if offset >= extent.common:
        place["end_offset"] = offset + len(copy.raw)
        return [finding(group, name, "log.tail-not-common", **place, **columns_of_message(copy))]
    if not copy.sound:
        return []
    said = difference(copy, right)
    return [finding(group, name, "log.diverged", **place, **columns_of_message(copy), detail=said)]


def difference(left: RecordCopy, right: RecordCopy) -> str:
    """Which fields differ."""
    if left.blank and right.blank:
        return "the filler at the end of a segment differs; no message is affected"
    if left.blank != right.blank:
        return "one has a message where the other's segment ends"
    try:
        one, other = message.decode_record(left.raw, 0, False), message.decode_record(right.raw, 0, False)
    except EpochMQError as error:
        return str(error)
    names = [title for name, title in _FIELDS if getattr(one, name) != getattr(other, name)]
    if one.topic != other.topic or one.queue_id != other.queue_id:
        names.append(f"it is message {other.queue_offset} of {other.topic}/{other.queue_id} elsewhere")
    return "other " + ", ".join(names)


def columns_of_message(copy: RecordCopy) -> dict[str, Any]:
    """The columns that name a message; none for a blank."""
    if copy.blank:
        return {}
    try:
        record = message.decode_record(copy.raw, 0, False)
    except EpochMQError:
        return {}
    properties = message.parse_properties(record.properties)
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "key": properties.get("KEYS") or None,
        "message_id": properties.get("UNIQ_KEY") or record.msg_id,
        "store_timestamp": record.store_timestamp,
    }
