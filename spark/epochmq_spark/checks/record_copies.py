# pure: copies of the records of one audit block
"""Compares the replicas' copies of the records of one audit block, field by field.

The majority of the valid copies is right, and so is a majority without a record at an offset, if its
replicas have other records around it. Without a majority nothing in the copies tells which one is right: all
are named, and said to be undecided."""

from __future__ import annotations

from bisect import bisect_right
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


_NOTHING = RecordCopy(0, b"", False)


def compare_records(
    group: str, copies: Mapping[str, Sequence[RecordCopy]], extents: Mapping[str, LogExtent]
) -> list[Row]:
    """Findings for every offset at which the replicas differ; `copies` and `extents` are by replica, the
    records of each in the order of their offsets. A difference beyond a replica's common end is a finding of
    its own kind. Where only one replica covers an offset, there is nothing to compare below its common end. A
    body that does not match its checksum is reported by another check. Beyond `LISTED_MAX` findings of a
    kind, one finding `more` has their number and their range."""
    by_offset: dict[int, dict[str, RecordCopy]] = {}
    for name, records in copies.items():
        for copy in records:
            by_offset.setdefault(copy.offset, {})[name] = copy
    findings: list[Row] = []
    listed: Counter[tuple[str, str]] = Counter()
    not_listed: dict[tuple[str, str], tuple[int, int]] = {}
    starts = {name: [copy.offset for copy in records] for name, records in copies.items()}
    leading = next((name for name, extent in extents.items() if extent.leading), None)
    for offset in sorted(by_offset):
        covering = [name for name, extent in extents.items() if extent.start <= offset < extent.end]
        present = {name: by_offset[offset][name] for name in covering if name in by_offset[offset]}
        of_history = {name: copy for name, copy in present.items() if offset < extents[name].common_end}
        if not present or (len(covering) == 1 and of_history):
            continue
        inside = [
            name
            for name in covering
            if name not in present
            and offset < extents[name].common_end
            and _lies_inside(offset, copies[name], starts[name])
        ]
        here = _CopiesHere(
            group,
            offset,
            present,
            of_history,
            inside,
            _reference_copy(of_history or present, leading),
            is_alone=len(covering) == 1,
        )
        for name in covering:
            _list(here.findings_of(name, extents[name]), findings, listed, not_listed)
    for (name, kind), (start, end) in sorted(not_listed.items()):
        detail = f"{listed[name, kind] - LISTED_MAX} of {kind}"
        findings.append(finding(group, name, "more", start_offset=start, end_offset=end, detail=detail))
    return findings


@dataclass(frozen=True)
class _CopiesHere:
    """The copies of the record at one offset. `of_history` are those below the common ends, `inside` the
    replicas that have another record around the offset, below their common ends. `is_alone`: only one replica
    covers the offset."""

    group: str
    offset: int
    present: Mapping[str, RecordCopy]
    of_history: Mapping[str, RecordCopy]
    inside: Sequence[str]
    reference: RecordCopy
    is_alone: bool

    def findings_of(self, name: str, extent: LogExtent) -> list[Row]:
        """The findings of one replica that covers the offset."""
        copy = self.present.get(name)
        votes = Counter(one.image for one in self.of_history.values() if one.crc_ok)
        most = votes[self.reference.image]
        if most and len(self.inside) >= most and (name in self.of_history or name in self.inside):
            if len(self.inside) == most or name in self.inside:
                return []  # where as many have another record, its start is named already
            detail = f"no record starts here in {', '.join(self.inside)}, which have others around it"
            return _findings_of_copy(self.group, name, self.offset, copy, None, extent, detail)
        tied = sorted(one for one, of in self.of_history.items() if of.crc_ok and votes[of.image] == most)
        if name in tied and sum(count == most for count in votes.values()) > 1:
            other = next(one for one in tied if self.of_history[one].image != self.of_history[name].image)
            whole = "one of the two differs" if len(tied) == 2 else "they differ"
            text = difference(self.of_history[name], self.of_history[other])
            detail = f"{', '.join(tied)}: {whole}, and nothing tells which is right: {text}"
            return _findings_of_copy(self.group, name, self.offset, copy, None, extent, detail)
        if copy is not None and copy.image == self.reference.image and not self.is_alone:
            return []
        if copy is None and not self.of_history:
            return []  # the tail of another replica has a record here
        return _findings_of_copy(self.group, name, self.offset, copy, self.reference, extent)


def _list(
    found: Sequence[Row],
    findings: list[Row],
    listed: Counter[tuple[str, str]],
    not_listed: dict[tuple[str, str], tuple[int, int]],
) -> None:
    """Adds findings up to `LISTED_MAX` of a kind and replica, and of the others their range."""
    for row in found:
        key = row["replica"], row["kind"]
        listed[key] += 1
        if listed[key] <= LISTED_MAX:
            findings.append(row)
            continue
        start, end = not_listed.get(key, (row["start_offset"], row["end_offset"]))
        not_listed[key] = min(start, row["start_offset"]), max(end, row["end_offset"])


def _lies_inside(offset: int, records: Sequence[RecordCopy], starts: Sequence[int]) -> bool:
    """Whether an offset is inside a valid record, and not in a hole between records."""
    at = bisect_right(starts, offset) - 1
    return at >= 0 and records[at].crc_ok and starts[at] < offset < starts[at] + len(records[at].raw)


def _undecided(name: str, other: str, undecided: Sequence[str], copies: Mapping[str, RecordCopy]) -> str:
    """Says that nothing in the copies of these replicas tells which one is right."""
    whole = "one of the two differs" if len(undecided) == 2 else "they differ"
    text = difference(copies[name], copies[other])
    return f"{', '.join(undecided)}: {whole}, and nothing tells which is right: {text}"


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
    group: str,
    name: str,
    offset: int,
    copy: RecordCopy | None,
    reference: RecordCopy | None,
    extent: LogExtent,
    detail: str = "",
) -> list[Row]:
    """The finding of one copy, which differs from the right one, the `reference`; or as the `detail` says, if
    none is right."""
    size = len((reference or copy or _NOTHING).raw)
    columns: dict[str, Any] = {"start_offset": offset, "end_offset": offset + size}
    if copy is None:
        if offset >= extent.common_end or reference is None or reference.blank:
            return []
        return [finding(group, name, "message.missing", **columns, **columns_of_message(reference))]
    if offset >= extent.common_end:
        columns["end_offset"] = offset + len(copy.raw)
        kind = TAIL_KINDS[1] if extent.truncates_tail else TAIL_KINDS[0]
        return [finding(group, name, kind, **columns, **columns_of_message(copy))]
    if not copy.crc_ok:
        return []
    if reference is not None:
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
