"""Ends of transactions wait until they fill an op message or their time has come."""

from __future__ import annotations

from epochmq_broker.services.transactions import op_buffer
from epochmq_broker.services.transactions.op_buffer import OpBuffer, RecentOffsets


def test_ends_are_written_when_the_interval_since_the_last_write_is_over() -> None:
    buffer = OpBuffer(1000)
    assert buffer.due_ms(3000, 4096) is None
    buffer.add(7)
    buffer.add(12)
    assert buffer.due_ms(3000, 4096) == 4000
    assert buffer.first(4096) == (2, b"7,12,")
    buffer.written(2, 5000)
    assert (buffer.due_ms(3000, 4096), buffer.size, len(buffer)) == (None, 0, 0)
    buffer.add(13)
    assert buffer.due_ms(3000, 4096) == 8000


def test_ends_are_due_at_once_when_they_fill_an_op_message() -> None:
    buffer = OpBuffer(1000)
    for offset in range(10, 20):
        buffer.add(offset)
    assert buffer.due_ms(3000, 30) == 0
    assert buffer.first(10) == (4, b"10,11,12,13,")  # the last offset exceeds the size, as in RocketMQ
    buffer.written(4, 1000)
    assert buffer.first(10)[1].startswith(b"14,")


def test_an_op_message_names_at_least_one_end() -> None:
    buffer = OpBuffer(0)
    buffer.add(123456)
    assert buffer.first(1) == (1, b"123456,")


def test_of_too_many_ends_the_oldest_are_dropped() -> None:
    buffer = OpBuffer(0)
    for offset in range(op_buffer.BUFFERED_MAX + 5):
        buffer.add(offset)
    assert (len(buffer), buffer.dropped) == (op_buffer.BUFFERED_MAX, 5)
    assert buffer.first(1)[1] == b"5,"
    assert buffer.size == len(buffer.first(1 << 30)[1])


def test_recent_offsets_are_bounded() -> None:
    recent = RecentOffsets(3)
    for offset in (1, 2, 3, 2, 4):
        recent.add(offset)
    assert [offset in recent for offset in (1, 2, 3, 4)] == [False, True, True, True]
    assert len(recent) == 3
