"""Compares the times of index entries with the store times of their messages. A search with an interval of
time goes by the former.

The pass over an index file notes entries whose times are out of order, or after the last one. A clock that
was set back leaves such entries, too, so each is compared with its message here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from epochmq_protocol.integers import INT_MAX
from epochmq_protocol.javahash import key_hash
from epochmq_protocol.message import MessageExt, parse_properties
from epochmq_protocol.message_const import PROPERTY_KEYS, PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX
from epochmq_spark.drill_down import AuditedLog
from epochmq_spark.features.replica_reader import ReplicaReader
from epochmq_spark.findings import finding

Row = dict[str, Any]
INDEX_TIME_COLUMNS: Final = ("at", "end", "digest", "low", "high", "detail")
"""The columns of the summary that a comparison needs: the number of the entry, its physical offset, its hash,
its seconds, the time at which its file begins in epoch ms, and the name of the file."""


def keys_of(message: MessageExt) -> list[str]:
    """The keys under which the index lists a message."""
    properties = parse_properties(message.properties)
    uniq_key = properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    keys = properties.get(PROPERTY_KEYS, "").split(" ")
    return [key for key in (uniq_key, *keys) if key]


def compare_index_time(log: AuditedLog, row: Mapping[str, Any]) -> list[Row]:
    """The finding of a row of the kind index-time, if the entry is one of the message to which it points, and
    has another time. Raises OSError."""
    message = ReplicaReader(log).message_at(row["end"])
    if message is None or row["digest"] not in {key_hash(message.topic, key) for key in keys_of(message)}:
        return []
    begin_ms, seconds = row["high"], row["low"]
    expected = min(max((message.store_timestamp - begin_ms) // 1000, 0), INT_MAX) if begin_ms > 0 else 0
    if seconds == expected:
        return []
    return [
        finding(
            log.replica.group,
            log.replica.name,
            "index.wrong-time",
            file=row["detail"],
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            start_offset=message.physical_offset,
            store_timestamp=message.store_timestamp,
            detail=f"entry {row['at']} has {seconds} s after {begin_ms}, expected {expected} s",
        )
    ]
