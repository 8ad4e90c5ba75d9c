"""Finds the topics of messages that wait in topics of the system: half messages, delay levels and timers.
Their own topics have no queue that would name them before they are delivered."""

from __future__ import annotations

from collections.abc import Iterator

from epochmq_broker.services.transactions.half_messages import HALF_TOPIC
from epochmq_broker.writing.message_writer import SCHEDULE_TOPIC, TIMER_TOPIC
from epochmq_protocol import message as records
from epochmq_protocol import message_const as const
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.message import MessageExt
from epochmq_store.consume_queue import ConsumeQueue
from epochmq_store.message_store import MessageStore

HOLDING_TOPICS = (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC)
HELD_MAX = 20_000
"""How many messages of one queue are read, the newest first."""
AGE_MAX_MS = 15_000
"""How much older than the newest message of its queue a message may be. Tables are copied at least every 10 s
and stored more often, so the settings of a topic with an older message are known."""


def topics_of_held_messages(store: MessageStore, since: int) -> dict[str, int]:
    """The topics of messages that wait, and were stored after this physical offset: name → the least number
    of queues that it must have. At most HELD_MAX messages of each queue are read, at most AGE_MAX_MS old."""
    found: dict[str, int] = {}
    for holding in HOLDING_TOPICS:
        for queue in store.queues.of_topic(holding):
            for message in _newest(store, queue, since):
                properties = records.parse_properties(message.properties)
                topic = properties.get(const.PROPERTY_REAL_TOPIC)
                queue_id = properties.get(const.PROPERTY_REAL_QUEUE_ID, "")
                if topic and queue_id.isascii() and queue_id.isdigit():
                    found[topic] = max(found.get(topic, 0), int(queue_id) + 1)
    return found


def _newest(store: MessageStore, queue: ConsumeQueue, since: int) -> Iterator[MessageExt]:
    """The messages of a queue after this physical offset, the newest first. Skips damaged ones."""
    newest_ms: int | None = None
    for offset in range(queue.max_offset - 1, max(queue.min_offset, queue.max_offset - HELD_MAX) - 1, -1):
        unit = queue.unit(offset)
        if unit is None or unit[0] < since:
            return
        record = store.reader.read(unit[0], unit[1])
        if record is None:
            continue
        try:
            message = records.decode_record(record, check_crc=False)
        except RemoteProtocolError:
            continue
        newest_ms = message.store_timestamp if newest_ms is None else newest_ms
        if message.store_timestamp < newest_ms - AGE_MAX_MS:
            return
        yield message
