# pure: keys of messages against index entries
"""Compares the keys of the messages of an audit block with the index entries that point into the block.

An entry that points to no message with its key is no error: a truncation leaves such entries behind, and
clients check the messages that a query returns. A message that names a key twice has two entries for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from epochmq_protocol.javahash import key_hash
from epochmq_spark.findings import finding

Row = dict[str, Any]
LISTED_MAX = 200


@dataclass(frozen=True)
class KeyedMessage:
    """A message that has at least one key, so that the index may have entries for it."""

    physical: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    uniq_key: str | None
    keys: str | None
    store_time: int

    def index_keys(self) -> list[str]:
        """The keys under which the index lists the message."""
        return ([self.uniq_key] if self.uniq_key else []) + [
            key for key in (self.keys or "").split(" ") if key
        ]


@dataclass(frozen=True)
class IndexFileRange:
    """The physical offsets of the first and the last message of an index file, and whether it is full.
    Further keys of the last message of a full file are in the next one."""

    first: int
    last: int
    full: bool

    def contains(self, physical: int) -> bool:
        """Whether the keys of a message must be in this file."""
        return self.first <= physical < self.last or (physical == self.last and not self.full)


def compare_keys(
    group: str,
    replica: str,
    messages: Sequence[KeyedMessage],
    entries: Iterable[tuple[int, int]],
    covered: tuple[int, int],
    file_ranges: Sequence[IndexFileRange],
) -> list[Row]:
    """Findings of one audit block. `entries` are (hash, physical offset). `covered` is the first and the last
    physical offset that the index must cover; messages outside it are not expected there.

    `file_ranges` are the ranges of the replica's index files. A key that is missing inside one of them is an
    error. A default broker of RocketMQ that was killed deletes its newest index file at the next start, and
    continues with another one (`IndexService.load`). So keys outside all ranges form one finding, a
    warning."""
    present = Counter(entries)
    findings: list[Row] = []
    outside: list[KeyedMessage] = []
    for keyed in messages:
        wanted: Counter[tuple[int, int]] = Counter()
        for key in keyed.index_keys():
            pair = key_hash(keyed.topic, key), keyed.physical
            wanted[pair] += 1
            if present[pair] >= wanted[pair] or not covered[0] <= keyed.physical <= covered[1]:
                continue
            if not any(one.contains(keyed.physical) for one in file_ranges):
                outside.append(keyed)
            else:
                findings.append(
                    finding(
                        group,
                        replica,
                        "index.missing-entry",
                        start_offset=keyed.physical,
                        end_offset=keyed.physical + keyed.size,
                        topic=keyed.topic,
                        queue_id=keyed.queue_id,
                        queue_offset=keyed.queue_offset,
                        key=key,
                        message_id=keyed.uniq_key,
                        store_timestamp=keyed.store_time,
                    )
                )
    if outside:
        first, last = outside[0], outside[-1]
        columns = {"start_offset": first.physical, "end_offset": last.physical + last.size}
        detail = f"{len(outside)} keys; the index file was lost, or deleted after the broker was killed"
        findings.append(finding(group, replica, "index.missing-range", **columns, detail=detail))
    if len(findings) > LISTED_MAX:
        detail = f"{len(findings) - LISTED_MAX} of the index"
        findings = [*findings[:LISTED_MAX], finding(group, replica, "more", detail=detail)]
    return findings
