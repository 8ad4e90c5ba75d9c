"""Checks the checkpoints and acknowledgements of POP in the revive topic (PopCheckPoint, AckMsg)."""

from __future__ import annotations

from typing import Any, Final

from epochmq_protocol import fastjson
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.message import MessageExt, parse_properties
from epochmq_protocol.message_const import PROPERTY_TAGS
from epochmq_protocol.pop_records import ACK_TAG, BATCH_ACK_TAG, CK_TAG, REVIVE_TOPIC_PREFIX, SHORT_NAMES
from epochmq_spark.features.replica_reader import QueueReader, ReplicaReader

RECORDS_MAX: Final = 1_000_000
"""Records of one revive queue that are read: the last ones."""
_TAGS: Final = frozenset({CK_TAG, ACK_TAG, BATCH_ACK_TAG})


def check_pop(reader: ReplicaReader) -> None:
    """Reports records of the revive topic that are neither checkpoint nor acknowledgement, and checkpoints
    of messages that the replica does not have. Raises OSError."""
    ends: dict[tuple[str, int], int | None] = {}
    for queue in reader.queues_of(REVIVE_TOPIC_PREFIX):
        for offset, message in reader.messages(queue, max(queue.end - RECORDS_MAX, queue.first)):
            _check_record(reader, queue, offset, message, ends)


def _check_record(
    reader: ReplicaReader,
    queue: QueueReader,
    offset: int,
    message: MessageExt,
    ends: dict[tuple[str, int], int | None],
) -> None:
    where = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": offset}
    where |= {"start_offset": message.physical_offset}
    try:
        tag, fields = revive_fields(message)
        topic, queue_id, last = last_named(tag, fields)
    except (EpochMQError, ValueError, TypeError, KeyError) as error:
        reader.report("pop.broken-record", **where, detail=str(error))
        return
    if fields.get("bn") not in (None, "", reader.log.replica.group) or not reader.stopped:
        return
    key = topic, queue_id
    if key not in ends:
        found = reader.queue(*key)
        ends[key] = None if found is None else found.end
    end = ends[key]
    if end is not None and last >= end:
        detail = f"{tag} of {fields.get('c')} for {topic}/{queue_id} up to {last}, the queue ends at {end}"
        reader.report("pop.record-ahead", **where, detail=detail)


def revive_fields(message: MessageExt) -> tuple[str, dict[str, Any]]:
    """(tag, fields) of a record of the revive topic. Raises ValueError or EpochMQError."""
    tag = parse_properties(message.properties).get(PROPERTY_TAGS, "")
    if tag not in _TAGS:
        raise ValueError(f"tag {tag!r}: expected ck, ack or bAck")
    parsed = fastjson.loads(message.body)
    if not isinstance(parsed, dict):
        raise ValueError("the body is no object")
    return tag, {SHORT_NAMES.get(str(name), str(name)): value for name, value in parsed.items()}


def last_named(tag: str, fields: dict[str, Any]) -> tuple[str, int, int]:
    """(topic, queue, the highest queue offset) that a record names. Raises ValueError, KeyError or
    TypeError."""
    topic, queue_id = fields["t"], int(fields["q"])
    if not topic or not fields["c"]:
        raise ValueError("it names no topic or no group")
    start = int(fields["so"])
    if tag == CK_TAG:
        count, diffs = int(fields["n"]), [int(one) for one in fields.get("d") or ()]
        if count < 1 or (diffs and len(diffs) != count) or sorted(set(diffs)) != diffs:
            raise ValueError(f"{count} messages at distances {diffs[:5]}")
        if (int(fields["bm"]) & 0xFFFF_FFFF) >> count:
            raise ValueError(f"bit map {fields['bm']} of {count} messages")
        return topic, queue_id, start + (diffs[-1] if diffs else count - 1)
    named = fields.get("aol")
    offsets = [int(one) for one in named] if named is not None else [int(fields["ao"])]
    if any(one < start for one in offsets):
        raise ValueError(f"it acknowledges {min(offsets)}, its checkpoint starts at {start}")
    return topic, queue_id, max(offsets, default=start)
