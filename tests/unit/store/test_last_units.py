"""After a clean stop the start repairs the last unit of a queue of which a bit has flipped: the end of the
queue follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_store.statuses import GetStatus
from tests.unit.store.support import LOG_FILE, Message, open_store, put_all

COUNT = 37
LAST = 10 * UNIT_BYTES * 3  # the first byte of the queue's last file
NUMBER = COUNT - 1 - 30


@pytest.mark.long
@pytest.mark.parametrize("bit", range(12 * 8))
def test_no_flipped_bit_of_the_last_unit_loses_its_message(tmp_path: Path, bit: int) -> None:
    """Of a queue beside another one with newer messages."""
    store = open_store(tmp_path)
    put_all(store, [Message(body=b"x" * 300) for _ in range(COUNT)])
    put_all(store, [Message(topic="others", body=b"y" * 300) for _ in range(COUNT)])
    last = store.queue("orders", 0).unit(COUNT - 1)
    store.stop()
    flip(tmp_path, bit)
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    assert queue.max_offset == COUNT
    put_all(store, [Message(body=b"new")])
    assert queue.max_offset == COUNT + 1
    assert store.get(queue, COUNT, 1).status is GetStatus.FOUND
    found = queue.unit(COUNT - 1)
    assert last is not None
    assert found is not None
    assert found[:2] == last[:2] or 0 <= found[0] < store.max_phy_offset, "the scrub must repair it"
    store.stop()


def test_a_last_unit_that_seems_to_have_expired_is_repaired(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(body=b"x" * 300) for _ in range(COUNT)])
    last = store.queue("orders", 0).unit(COUNT - 1)
    assert last is not None
    store.log.files.files.pop(0).delete()
    store.stop()
    assert last[0] >= LOG_FILE
    flip(tmp_path, 63 - (last[0].bit_length() - 1))
    store = open_store(tmp_path)
    assert store.queue("orders", 0).unit(COUNT - 1) == last
    assert store.queues.drop_expired(store.min_phy_offset) == 0
    store.stop()


def flip(root: Path, bit: int) -> None:
    """Flips a bit of the last unit, counted from its highest."""
    path = root / "consumequeue" / "orders" / "0" / f"{LAST:020d}"
    data = bytearray(path.read_bytes())
    data[NUMBER * UNIT_BYTES + bit // 8] ^= 0x80 >> bit % 8
    path.write_bytes(data)
