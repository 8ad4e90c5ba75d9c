"""Each invariant of a consume queue is broken once, and the check names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_protocol.errors import InvariantError
from epochmq_store.queues.consume_queue import UNIT_BYTES, ConsumeQueue

QUEUE_FILE = 10 * UNIT_BYTES


def queue_with(directory: Path, count: int) -> ConsumeQueue:
    """A queue of messages of ten bytes, in memory."""
    queue = ConsumeQueue("t", 0, directory, QUEUE_FILE)
    for offset in range(count):
        assert queue.put(offset, offset * 10, 10, 0)
        queue.check_invariants()
    return queue


def test_a_queue_keeps_its_invariants_through_its_life(tmp_path: Path) -> None:
    queue = queue_with(tmp_path, 25)
    queue.pending.write_all()
    queue.check_invariants()
    for offset in range(25, 30):
        queue.put(offset, offset * 10, 10, 0)
        queue.check_invariants()
    queue.truncate(200)
    queue.check_invariants()
    assert queue.max_offset == 20
    queue.pending.write_all()
    queue.expire(queue.find_expired(120), 120)
    queue.check_invariants()
    queue.close()
    again = ConsumeQueue("t", 0, tmp_path, QUEUE_FILE, load=True)
    again.recover()
    again.check_invariants()
    again.destroy()
    again.check_invariants()
    again.begin_at(7)
    again.check_invariants()
    again.close()


BREAKS: list[Callable[[ConsumeQueue], object]] = [
    lambda q: setattr(q, "min_offset", 26),
    lambda q: setattr(q, "min_offset", -1),
    lambda q: setattr(q, "max_offset", 24),
    lambda q: setattr(q, "buffer_position", q.buffer_position + 1),
    lambda q: setattr(q, "buffer_start", q.buffer_start + UNIT_BYTES),
    lambda q: setattr(q, "buffer", bytearray(UNIT_BYTES)),
    lambda q: setattr(q, "buffer", None),
]


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_broken_queue_is_named(tmp_path: Path, breaks: Callable[[ConsumeQueue], object]) -> None:
    queue = queue_with(tmp_path, 25)
    buffer = queue.buffer
    breaks(queue)
    with pytest.raises(InvariantError, match=r"one unit for each offset.*t-0"):
        queue.check_invariants()
    queue.buffer = buffer
    queue.close()


def test_files_that_end_before_the_last_message_are_named(tmp_path: Path) -> None:
    queue = queue_with(tmp_path, 25)
    queue.pending.write_all()
    queue.files.files[-1].wrote -= UNIT_BYTES
    with pytest.raises(InvariantError, match="one unit for each offset"):
        queue.check_invariants()
    queue.close()
