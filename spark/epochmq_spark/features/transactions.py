"""Checks the half messages of transactions against the op messages that end them
(TransactionalMessageServiceImpl)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from epochmq_protocol import fastjson
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.message import MessageExt, parse_properties
from epochmq_protocol.message_const import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from epochmq_protocol.topics import (
    CID_SYS_RMQ_TRANS,
    RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC,
    RMQ_SYS_TRANS_HALF_TOPIC,
    RMQ_SYS_TRANS_OP_HALF_TOPIC,
)
from epochmq_spark.features.replica_reader import QueueReader, ReplicaReader

HALVES_MAX: Final = 1 << 26
"""The last half messages of a queue, whose ends are checked; each takes one byte."""
FOLLOWED_MAX: Final = 100_000
"""Half messages without an op message whose copies are searched for."""
_OFFSETS: Final = "config/consumerOffset.json"
_Pending = dict[str, tuple[int, MessageExt]]


def check_transactions(reader: ReplicaReader) -> None:
    """Reports half messages that can be neither committed nor checked, op messages for half messages that do
    not exist, and half messages that the check has passed although they have neither an op message nor a
    copy. Raises OSError."""
    for queue in reader.queues_of(RMQ_SYS_TRANS_HALF_TOPIC):
        if queue.topic != RMQ_SYS_TRANS_HALF_TOPIC:
            continue
        start = max(queue.first, queue.end - HALVES_MAX)
        ended = np.zeros(queue.end - start, bool)
        _read_ops(reader, queue, start, ended)
        _check_halves(reader, queue, start, ended)


def _read_ops(reader: ReplicaReader, halves: QueueReader, start: int, ended: Any) -> None:
    ops = reader.queue(RMQ_SYS_TRANS_OP_HALF_TOPIC, halves.queue_id)
    if ops is None:
        return
    for offset, op in reader.messages(ops):
        where = {"topic": ops.topic, "queue_id": ops.queue_id, "queue_offset": offset}
        where |= {"start_offset": op.physical_offset}
        if parse_properties(op.properties).get(PROPERTY_TAGS) != "d":
            reader.report("transaction.broken-op", **where, detail="it has another tag than d")
            continue
        for text in op.body.decode("utf-8", "replace").rstrip(",").split(","):
            if not text.isdecimal() or len(text) > 19:
                reader.report("transaction.broken-op", **where, detail=f"{text[:40]!r} is no queue offset")
            elif (half := int(text)) >= halves.end:
                if reader.stopped:
                    detail = f"half message {half}, the half queue ends at {halves.end}"
                    reader.report("transaction.op-without-half", **where, detail=detail)
            elif half >= start:
                ended[half - start] = True


def _check_halves(reader: ReplicaReader, queue: QueueReader, start: int, ended: Any) -> None:
    passed = _passed_offset(reader, queue)
    unended = np.flatnonzero(~ended) + start
    if not len(unended):
        return
    waiting: _Pending = {}
    pending = 0
    for offset, half in reader.messages(queue, int(unended[0])):
        properties = parse_properties(half.properties)
        uniq_key = properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")
        waiting.pop(uniq_key, None)  # this one is a copy of it
        if ended[offset - start]:
            continue
        first = properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, "")
        if first.isdecimal() and start <= int(first) < queue.end and ended[int(first) - start]:
            continue
        wrong = _contradiction(properties)
        if wrong:
            reader.report("transaction.broken-half", **_where(queue, offset, half, properties), detail=wrong)
        elif offset >= passed:
            pending += 1
        elif len(waiting) < FOLLOWED_MAX:
            waiting[uniq_key or f"offset {offset}"] = offset, half
    if waiting:
        _forget_discarded(reader, waiting)
    if reader.stopped and reader.log.extent.leading:
        for offset, half in waiting.values():
            properties = parse_properties(half.properties)
            detail = f"the check has passed it and is at {passed}"
            reader.report("transaction.unended", **_where(queue, offset, half, properties), detail=detail)
    if pending:
        detail = f"{pending} transactions wait for their end or for a check"
        reader.report("transaction.pending", topic=queue.topic, queue_id=queue.queue_id, detail=detail)


def _contradiction(properties: dict[str, str]) -> str:
    if not properties.get(PROPERTY_REAL_TOPIC):
        return "it does not name its topic"
    queue_id = properties.get(PROPERTY_REAL_QUEUE_ID, "")
    return "" if queue_id.lstrip("-").isdecimal() else f"queue {queue_id!r} is no number"


def _where(queue: QueueReader, offset: int, half: MessageExt, properties: dict[str, str]) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "queue_offset": offset,
        "start_offset": half.physical_offset,
        "message_id": properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
        "store_timestamp": half.store_timestamp,
    }


def _forget_discarded(reader: ReplicaReader, waiting: _Pending) -> None:
    discarded = reader.queue(RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC, 0)
    if discarded is not None:
        for _, message in reader.messages(discarded):
            waiting.pop(
                parse_properties(message.properties).get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, ""), None
            )


def _passed_offset(reader: ReplicaReader, queue: QueueReader) -> int:
    """The offset up to which the check has passed the half messages; 0 if that is unknown."""
    try:
        parsed = fastjson.loads(reader.small_file(_OFFSETS) or b"{}")
        queues = parsed["offsetTable"][f"{queue.topic}@{CID_SYS_RMQ_TRANS}"]
        offsets = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
    except (EpochMQError, KeyError, TypeError, ValueError, AttributeError):
        return 0
    return offsets.get(queue.queue_id, 0)
