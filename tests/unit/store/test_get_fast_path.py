"""Tests that the fast path of a get returns the same results as the general path, or none."""

from __future__ import annotations

import random
from pathlib import Path

from epochmq_store.statuses import GetStatus
from tests.unit.store.support import Message, open_store, put_all, with_joined_pieces


def test_the_fast_path_of_a_get_returns_the_same_result(tmp_path: Path) -> None:
    rng = random.Random(7)
    store = open_store(tmp_path)
    put_all(
        store,
        [
            Message(queue_id=rng.randrange(3), body=rng.randbytes(rng.choice([1, 50, 900])))
            for _ in range(300)
        ],
    )
    store.log.files.files.pop(0).close()  # as after expiry: queues start with units of expired records
    reader, short_answers = store.reader, 0
    for _ in range(3000):
        queue = store.queue("orders", rng.randrange(3))
        offset = rng.randrange(queue.min_offset, queue.max_offset)
        count, size = rng.choice([0, 1, 2, 32, 1000]), rng.choice([0, 150, 2000, 1 << 20])
        given = (queue, offset, queue.min_offset, queue.max_offset, count, size)
        short = reader._get_fast(*given, None)
        if short is not None:
            short_answers += 1
            assert with_joined_pieces(short) == with_joined_pieces(reader._get_by_scan(*given, None))
            assert short.status is GetStatus.FOUND
    assert short_answers > 500
    store.stop()
