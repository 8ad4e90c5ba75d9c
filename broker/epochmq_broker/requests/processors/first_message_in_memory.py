"""Decides whether a queue's first message is still in memory: then RocketMQ lets a group without an offset
start at 0 (DefaultMessageStore.checkInMemByConsumeOffset).

RocketMQ asks the kernel for the pages. Here a message counts as in memory if it lies within a share of this
process's memory from the end of the log. That does not depend on the machine's other work.
"""

from __future__ import annotations

from epochmq_protocol.memory_limit import memory_bytes
from epochmq_store.message_store import MessageStore

MEMORY_SHARE = 0.4
"""The share of memory in which the page cache is assumed to hold the newest part of the log."""


def is_first_message_in_memory(store: MessageStore, topic: str, queue_id: int) -> bool:
    """Whether the message at offset 0 of the queue exists and is recent enough to be in memory."""
    queue = store.lookup.existing_queue(topic, queue_id)
    if queue is None or queue.min_offset > 0 or queue.max_offset <= 0:
        return False
    unit = store.reader.unit(queue, 0)
    return unit is not None and store.max_phy_offset - unit[0] < memory_bytes() * MEMORY_SHARE
