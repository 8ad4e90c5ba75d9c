# pure: copies of the records of one audit block
"""Compares the replicas' copies of the records of one audit block, field by field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochmq_formats.dledger_log import ENTRY_FIELDS, ENTRY_HEADER, ENTRY_HEADER_SIZE
from epochmq_protocol import message
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.message_const import PROPERTY_KEYS, PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX
from epochmq_spark.checks.log_extent import LogExtent
from epochmq_spark.findings import finding

Row = dict[str, Any]
LISTED_MAX = 200  # findings of one kind, audit block and replica that are listed one by one
TAIL_KINDS = ("log.tail-not-common", "log.unacknowledged-tail")
"""Findings about records beyond the common end: of a broker that stopped, and of one that was killed."""

_FIELDS = (
    ("body", "body"), ("topic", "topic"), ("properties", "properties"), ("queue_id", "queue id"),
    ("flag", "flag"), ("queue_offset", "queue offset"), ("sys_flag", "sysFlag"),
    ("born_timestamp", "born time"), ("born_host", "born host"), ("store_timestamp", "store time"),
    ("store_host", "store host"), ("reconsume_times", "reconsume times"),
    ("prepared_transaction_offset", "prepared offset"), ("body_crc", "checksum"),
)  # fmt: skip


@dataclass(frozen=True)
class RecordCopy:
    """One replica's copy of a message record, or of the blank record at the end of a segment. `header` is
    that of its entry in a DLedger log."""

    offset: int
    raw: bytes
    crc_ok: bool
    blank: bool = False
    header: bytes = b""

    @property
    def image(self) -> tuple[bytes, bytes]:
        """What must be equal in all copies."""
        return self.header, self.raw


def compare_records(
    group: str, copies: Mapping[str, Sequence[RecordCopy]], extents: Mapping[str, LogExtent]
) -> list[Row]:
    """Findings for every offset at which the replicas differ; `copies` and `extents` are by replica. A
    difference beyond a replica's common end is a finding of its own kind. Where only one replica covers an
    offset, there is nothing to compare below its common end. A body that does not match its checksum is
    reported by another check. Beyond `LISTED_MAX` findings of a kind, one finding `more` has their number."""
    by_offset: dict[int, dict[str, RecordCopy]] = {}
    for name, records in copies.items():
        for copy in records:
            by_offset.setdefault(copy.offset, {})[name] = copy
    findings: list[Row] = []
    listed: Counter[tuple[str, str]] = Counter()
    leading = next((name for name, extent in extents.items() if extent.leading), None)
    for offset in sorted(by_offset):
        copies_here = by_offset[offset]
        covering = [name for name, extent in extents.items() if extent.start <= offset < extent.end]
        present = {name: copies_here[name] for name in covering if name in copies_here}
        of_history = {name: copy for name, copy in present.items() if offset < extents[name].common_end}
        if not present or (len(covering) == 1 and of_history):
            continue
        reference = _reference_copy(of_history or present, leading)
        for name in covering:
            own_copy = present.get(name)
            if own_copy is not None and own_copy.image == reference.image and len(covering) > 1:
                continue
            if own_copy is None and not of_history:
                continue  # the tail of another replica has a record here
            for row in _findings_of_copy(group, name, offset, own_copy, reference, extents[name]):
                listed[name, row["kind"]] += 1
                if listed[name, row["kind"]] <= LISTED_MAX:
                    findings.append(row)
    for (name, kind), count in sorted(listed.items()):
        if count > LISTED_MAX:
            detail = f"{count - LISTED_MAX} of {kind}"
            findings.append(finding(group, name, "more", start_offset=min(by_offset), detail=detail))
    return findings


def _reference_copy(present: Mapping[str, RecordCopy], leading: str | None) -> RecordCopy:
    """The copy that most replicas have, among copies with a valid checksum; a tie goes to the leading
    replica."""
    counts = Counter(copy.image for copy in present.values())
    of_leading = present.get(leading) if leading is not None else None
    return max(
        present.values(),
        key=lambda copy: (
            copy.crc_ok,
            counts[copy.image],
            of_leading is not None and copy.image == of_leading.image,
            copy.image,
        ),
    )


def _findings_of_copy(
    group: str, name: str, offset: int, copy: RecordCopy | None, reference: RecordCopy, extent: LogExtent
) -> list[Row]:
    columns: dict[str, Any] = {"start_offset": offset, "end_offset": offset + len(reference.raw)}
    if copy is None:
        if offset >= extent.common_end or reference.blank:
            return []
        return [finding(group, name, "message.missing", **columns, **columns_of_message(reference))]
    if offset >= extent.common_end:
        columns["end_offset"] = offset + len(copy.raw)
        kind = TAIL_KINDS[1] if extent.truncates_tail else TAIL_KINDS[0]
        return [finding(group, name, kind, **columns, **columns_of_message(copy))]
    if not copy.crc_ok:
        return []
    detail = difference(copy, reference)
    return [finding(group, name, "log.diverged", **columns, **columns_of_message(copy), detail=detail)]


def difference(left: RecordCopy, right: RecordCopy) -> str:
    """Names the fields that differ."""
    if left.raw == right.raw:
        return f"different {_difference_of_headers(left.header, right.header)} in the entry's header"
    if left.blank and right.blank:
        return "only the blank record at the end of the segment differs; no message is affected"
    if left.blank != right.blank:
        return "one replica has a message where the other one's segment ends"
    try:
        one, other = message.decode_record(left.raw, 0, False), message.decode_record(right.raw, 0, False)
    except EpochMQError as error:
        return str(error)
    names = [title for name, title in _FIELDS if getattr(one, name) != getattr(other, name)]
    text = f"different {', '.join(names)}"
    if one.topic != other.topic or one.queue_id != other.queue_id:
        text += f"; the other copy is message {other.queue_offset} of {other.topic}/{other.queue_id}"
    return text


def _difference_of_headers(left: bytes, right: bytes) -> str:
    if ENTRY_HEADER_SIZE not in (len(left), len(right)) or len(left) != len(right):
        return "kinds of log"
    ours, theirs = ENTRY_HEADER.unpack(left), ENTRY_HEADER.unpack(right)
    compared = zip(ENTRY_FIELDS[:-1], ours, theirs, strict=False)
    return ", ".join(name for (name, _), one, other in compared if one != other)


def columns_of_message(copy: RecordCopy) -> dict[str, Any]:
    """The columns of a finding that identify the message; empty for a blank record."""
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
        "key": properties.get(PROPERTY_KEYS) or None,
        "message_id": properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or record.msg_id,
        "store_timestamp": record.store_timestamp,
    }
