"""Finds which messages of a queue are of a topic of the same name that was deleted.
`checks.former_topics` has the rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_spark import topic_tables
from epochmq_spark.checks.consume_queues import QueueMessage
from epochmq_spark.checks.former_topics import is_deleted, known_topics
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.summary_rows import text_of
from epochmq_spark.drill_down import AuditedLog, first_unit, messages_between


@dataclass(frozen=True)
class QueueName:
    """A queue. `is_of_new_topic`: another queue of its topic starts anew behind older messages, so the topic
    was made again."""

    topic: str
    queue_id: int
    is_of_new_topic: bool


@dataclass(frozen=True)
class FormerMessages:
    """The messages of a queue before the physical offset `end` are of a former topic; 0 if there are none.
    `kind` is the kind of the note."""

    end: int
    kind: str = "topic.made-again"


def former_messages(
    log: AuditedLog, group: Sequence[AuditedLog], queue: QueueName, messages: Iterable[QueueMessage]
) -> FormerMessages:
    """The former messages of one queue of a replica. `group` are the logs of its group that have consume
    queues, `messages` those of the queue that are compared. Raises OSError."""
    known = known_topics(topic_tables.read_tables(one.replica for one in group), log.replica.name)
    first = first_unit(log.replica.location, queue.topic, queue.queue_id, log.extent.start)
    if is_deleted(queue.topic, known):
        # A broker that was killed makes units again for the messages that its recovery reads.
        return FormerMessages(OFFSET_MAX if first is None else first[1], "topic.deleted")
    if first is None:
        begins = max((one.physical for one in messages if one.queue_offset == 0), default=0)
        return FormerMessages(OFFSET_MAX if queue.is_of_new_topic else begins)
    return FormerMessages(first[1] if _is_first_of_queue(log, queue, *first) else 0)


def _is_first_of_queue(log: AuditedLog, queue: QueueName, offset: int, physical: int) -> bool:
    """Whether a unit is that of the first message which a queue has ever had."""
    if offset != 0:
        return False
    for chunk, row in messages_between(log, physical, physical + 1):
        if chunk.base + int(row[w.POSITION]) == physical:
            topic = text_of(chunk.data, int(row[w.TOPIC_AT]), int(row[w.TOPIC_SIZE]))
            found = topic, int(row[w.QUEUE_ID]), int(row[w.QUEUE_OFFSET])
            return found == (queue.topic, queue.queue_id, 0)
    return False
