"""A group's offset advances only past messages that are acknowledged, or whose checkpoint is safe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.services.pop.checkpoints import AckMsg, PopCheckPoint
from epochmq_broker.services.pop.pop_buffer import BufferSettings, PopBuffer

KEY = ("T", "g", 0)
SETTINGS = BufferSettings()
NOW = 1_000_000


class Commits:
    """A buffer and the offsets that it commits."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.buffer = PopBuffer(lambda _key, offset: self.offsets.append(offset))


def checkpoint(start: int, count: int = 2, invisible_ms: int = 60_000) -> PopCheckPoint:
    """A checkpoint of consecutive messages."""
    return PopCheckPoint(
        start_offset=start,
        pop_time=NOW,
        invisible_time=invisible_ms,
        count=count,
        queue_id=0,
        topic="T",
        group="g",
        diffs=list(range(count)),
        broker_name="b",
    )


def ack(start: int, *offsets: int) -> AckMsg:
    """An acknowledgement of messages of the checkpoint at `start`."""
    return AckMsg(
        ack_offset=-1,
        start_offset=start,
        group="g",
        topic="T",
        pop_time=NOW,
        broker_name="b",
        ack_offsets=list(offsets),
    )


def add(buffer: PopBuffer, point: PopCheckPoint) -> bool:
    """Buffers a checkpoint."""
    return buffer.add_buffered(point, KEY, 3, point.start_offset + point.count, SETTINGS, NOW)


def test_a_safe_checkpoint_is_committed_at_once() -> None:
    commits = Commits()
    commits.buffer.add_stored(KEY, 10, end=100, safe_end=100)
    assert commits.offsets == [10]
    assert commits.buffer.is_empty
    assert commits.buffer.latest_offset(KEY) == -1


def test_an_unsafe_checkpoint_is_committed_when_it_is_safe() -> None:
    commits = Commits()
    commits.buffer.add_stored(KEY, 10, end=100, safe_end=50)
    commits.buffer.add_stored(KEY, 20, end=200, safe_end=50)
    commits.buffer.add_stored(KEY, 25, end=0, safe_end=50)  # found no message
    assert commits.offsets == []
    assert commits.buffer.latest_offset(KEY) == 25  # the next POP continues there
    commits.buffer.advance(150)
    assert commits.offsets == [10]
    commits.buffer.advance(200)
    assert commits.offsets == [10, 25]
    assert commits.buffer.is_empty


def test_a_checkpoint_in_memory_holds_back_the_offset_until_it_is_acknowledged() -> None:
    commits = Commits()
    buffer = commits.buffer
    assert add(buffer, checkpoint(0))
    assert add(buffer, checkpoint(2))
    assert buffer.latest_offset(KEY) == 4
    assert buffer.acknowledge(ack(2, 2, 3), SETTINGS, NOW + 10, safe_end=0)
    assert commits.offsets == []  # the first one is not acknowledged
    assert buffer.acknowledge(ack(0, 0), SETTINGS, NOW + 10, safe_end=0)
    assert buffer.acknowledge(ack(0, 1), SETTINGS, NOW + 20, safe_end=0)
    assert commits.offsets == [4]
    assert buffer.is_empty
    assert not buffer.acknowledge(ack(0, 1), SETTINGS, NOW + 30, safe_end=0)
    assert list(buffer.take_due(NOW + 100_000, 10)) == []


def test_a_checkpoint_is_stored_before_it_is_too_late() -> None:
    commits = Commits()
    buffer = commits.buffer
    assert add(buffer, checkpoint(0))
    assert add(buffer, checkpoint(2, invisible_ms=8000))
    assert buffer.next_due_ms == NOW + 5000  # 3 s before its messages become visible
    assert not buffer.acknowledge(ack(2, 2), SETTINGS, NOW + 4000, safe_end=0)
    assert not buffer.acknowledge(ack(0, 0), SETTINGS, NOW + 8501, safe_end=0)  # stays 10 s at most
    assert list(buffer.take_due(NOW + 4999, 10)) == []
    (second,) = buffer.take_due(NOW + 5000, 10)
    buffer.stored(second, end=500, safe_end=500)
    assert commits.offsets == []
    (first,) = buffer.take_due(NOW + 10_000, 10)
    buffer.postpone(first, NOW + 10_100)
    assert list(buffer.take_due(NOW + 10_050, 10)) == []
    (first,) = buffer.take_due(NOW + 10_100, 10)
    buffer.stored(first, end=600, safe_end=550)
    assert commits.offsets == []
    buffer.advance(600)
    assert commits.offsets == [4]


def test_acknowledgements_in_memory_are_stored_with_their_checkpoint() -> None:
    buffer = Commits().buffer
    assert add(buffer, checkpoint(0, count=3))
    assert buffer.acknowledge(ack(0, 1), SETTINGS, NOW, safe_end=0)
    buffer.make_all_due(NOW)
    (entry,) = buffer.take_due(NOW, 10)
    assert entry.acks_to_store == [1]
    entry.stored_acks |= 2
    assert entry.acks_to_store == []


def test_what_does_not_fit_into_memory_is_stored() -> None:
    buffer = Commits().buffer
    assert not add(buffer, checkpoint(0, invisible_ms=4400))  # due too soon
    small = BufferSettings(checkpoints_max=1)
    assert buffer.add_buffered(checkpoint(0), KEY, 0, 2, small, NOW)
    assert not buffer.add_buffered(checkpoint(2), KEY, 0, 4, small, NOW)
    assert not buffer.has_room(KEY, BufferSettings(queue_max=1))
    assert not add(buffer, checkpoint(0))  # the same checkpoint


def test_a_reset_forgets_where_the_group_was() -> None:
    commits = Commits()
    assert add(commits.buffer, checkpoint(0))
    commits.buffer.forget(KEY)
    assert commits.buffer.latest_offset(KEY) == -1
    assert commits.buffer.acknowledge(ack(0, 0, 1), SETTINGS, NOW, safe_end=0)
    assert commits.offsets == []
    assert commits.buffer.is_empty


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=40), st.randoms())
def test_offsets_are_committed_in_order_and_never_too_far(
    steps: list[tuple[bool, int]], random: object
) -> None:
    """POPs of two messages each, some in memory, acknowledged or stored in any order."""
    commits = Commits()
    buffer = commits.buffer
    settled: dict[int, int] = {}  # start offset -> end of the log; 0: acknowledged
    memory: list[int] = []
    start = log_end = safe = 0
    for buffered, event in steps:
        if buffered:
            assert add(buffer, checkpoint(start))
            memory.append(start)
        else:
            log_end += 10
            settled[start] = log_end
            buffer.add_stored(KEY, start + 2, log_end, safe)
        start += 2
        if memory and event == 1:
            done = random.choice(memory)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
            memory.remove(done)
            settled[done] = 0
            assert buffer.acknowledge(ack(done, done, done + 1), SETTINGS, NOW, safe)
        elif event == 2:
            safe = log_end
            buffer.advance(safe)
        expected = 0
        while settled.get(expected, safe + 1) <= safe:
            expected += 2
        assert (commits.offsets[-1] if commits.offsets else 0) == expected
    assert commits.offsets == sorted(commits.offsets)
