"""The garbage collector does not look at the objects of a store's queues again and again."""

from __future__ import annotations

import gc
from pathlib import Path

from epochmq_store.queues.consume_queues import FREEZE_QUEUES, ConsumeQueues


def test_full_collections_do_not_look_at_queues(tmp_path: Path) -> None:
    queues = ConsumeQueues(tmp_path, 20 * 100)
    created = [queues["topic", number] for number in range(3 * FREEZE_QUEUES)]
    looked_at = set(map(id, gc.get_objects()))
    assert sum(id(queue) in looked_at for queue in created) < FREEZE_QUEUES
    queues.close()
