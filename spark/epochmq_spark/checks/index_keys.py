# pure: keys of messages against index entries
"""Compares the keys of a block's messages with the index entries that point into the block.

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


def compare_keys(
    group: str,
    replica: str,
    messages: Sequence[KeyedMessage],
    entries: Iterable[tuple[int, int]],
    covered: tuple[int, int],
) -> list[Row]:
    """Findings of one block. `entries` are (hash, physical offset). `covered` is the first and the last
    physical offset that the index must cover; messages outside it are not expected there."""
    present = Counter(entries)
    findings: list[Row] = []
    for keyed in messages:
        wanted: Counter[tuple[int, int]] = Counter()
        for key in keyed.index_keys():
            pair = key_hash(keyed.topic, key), keyed.physical
            wanted[pair] += 1
            if present[pair] < wanted[pair] and covered[0] <= keyed.physical <= covered[1]:
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
    if len(findings) > LISTED_MAX:
        detail = f"{len(findings) - LISTED_MAX} of the index"
        findings = [*findings[:LISTED_MAX], finding(group, replica, "more", detail=detail)]
    return findings
