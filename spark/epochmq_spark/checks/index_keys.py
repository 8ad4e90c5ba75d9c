# pure: keys of messages against index entries
"""The keys of a block's messages against the index's entries that lead into it.

An entry that leads to no message with its key is no fault: a cut leaves such entries behind, and clients look
at what they are given. A message that names a key twice has two entries of it."""

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
    """A message that has keys, and may be in the index."""

    physical: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    uniq_key: str | None
    keys: str | None
    store_time: int

    def names(self) -> list[str]:
        """The keys under which the index has it."""
        return ([self.uniq_key] if self.uniq_key else []) + [
            key for key in (self.keys or "").split(" ") if key
        ]


def compare(
    group: str,
    replica: str,
    messages: Sequence[KeyedMessage],
    entries: Iterable[tuple[int, int]],
    covered: tuple[int, int],
) -> list[Row]:
    """Findings of a block. `entries` are (hash, physical offset); `covered` is what the index files say they
    hold, first and last offset: what lies outside is not expected there."""
    there = Counter(entries)
    found: list[Row] = []
    for one in messages:
        wanted: Counter[tuple[int, int]] = Counter()
        for name in one.names():
            pair = key_hash(one.topic, name), one.physical
            wanted[pair] += 1
            if there[pair] < wanted[pair] and covered[0] <= one.physical <= covered[1]:
                found.append(
                    finding(
                        group,
                        replica,
                        "index.missing-entry",
                        start_offset=one.physical,
                        end_offset=one.physical + one.size,
                        topic=one.topic,
                        queue_id=one.queue_id,
                        queue_offset=one.queue_offset,
                        key=name,
                        message_id=one.uniq_key,
                        store_timestamp=one.store_time,
                    )
                )
    if len(found) > LISTED_MAX:
        said = f"{len(found) - LISTED_MAX} of the index"
        found = [*found[:LISTED_MAX], finding(group, replica, "more", detail=said)]
    return found
