"""The short way of a get answers exactly what the long way does, wherever it answers at all."""

from __future__ import annotations

import random
from pathlib import Path

from epochmq_broker.store.statuses import GetStatus
from tests.unit.store.support import Message, opened, put_all, told


def test_the_short_way_of_a_get_answers_as_the_long_one(tmp_path: Path) -> None:
    rng = random.Random(7)
    store = opened(tmp_path)
    put_all(
        store,
        [
            Message(queue_id=rng.randrange(3), body=rng.randbytes(rng.choice([1, 50, 900])))
            for _ in range(300)
        ],
    )
    store.log.files.files.pop(
        0
    ).close()  # as expiry leaves it: queues begin with units of records that are gone
    reader, short_answers = store.reader, 0
    for _ in range(3000):
        queue = store.queue("orders", rng.randrange(3))
        offset = rng.randrange(queue.min_offset, queue.max_offset)
        count, size = rng.choice([0, 1, 2, 32, 1000]), rng.choice([0, 150, 2000, 1 << 20])
        given = (queue, offset, queue.min_offset, queue.max_offset, count, size)
        short = reader._get_fast(*given)
        if short is not None:
            short_answers += 1
            assert told(short) == told(reader._get_by_scan(*given, None))
            assert short.status is GetStatus.FOUND
    assert short_answers > 500
    store.stop()
