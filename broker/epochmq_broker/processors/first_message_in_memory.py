"""Whether a queue still is young: RocketMQ lets a group without an offset start at 0 while the queue's first
message is in memory (DefaultMessageStore.checkInMemByConsumeOffset). It asks the kernel for the pages; here a
message counts as in memory while it lies within a share of the memory this process may use from the end of
the log, which does not depend on what else the machine has been doing.
"""

from __future__ import annotations

from epochmq_broker.memory_limit import memory_bytes
from epochmq_broker.store.message_store import MessageStore

MEMORY_SHARE = 0.4
"""Share of the machine's memory that the newest part of the log may be expected to have of the page cache."""


def is_first_message_in_memory(store: MessageStore, topic: str, queue_id: int) -> bool:
    """Whether the message at offset 0 of the queue exists and is recent enough to be in memory."""
    queue = store.lookup.existing_queue(topic, queue_id)
    if queue is None or queue.min_offset > 0 or queue.max_offset <= 0:
        return False
    unit = store.reader.unit(queue, 0)
    return unit is not None and store.max_phy_offset - unit[0] < memory_bytes() * MEMORY_SHARE
