"""Only messages whose acknowledgement did not arrive in time are revived, and none of them is forgotten."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.services.pop.checkpoints import AckMsg, PopCheckPoint
from epochmq_broker.services.pop.revive_rules import REWRITE_INTERVALS_S, ReviveQueue, re_put

POP = 1_000_000


def checkpoint(
    start: int, *, pop_time: int = POP, count: int = 2, invisible_ms: int = 10_000
) -> PopCheckPoint:
    """A checkpoint of consecutive messages."""
    return PopCheckPoint(
        start_offset=start,
        pop_time=pop_time,
        invisible_time=invisible_ms,
        count=count,
        topic="T",
        group="g",
        diffs=list(range(count)),
        broker_name="b",
    )


def ack(point: PopCheckPoint, offset: int, broker: str | None = "b") -> AckMsg:
    """The acknowledgement of one message."""
    return AckMsg(
        ack_offset=offset,
        start_offset=point.start_offset,
        group="g",
        topic="T",
        pop_time=point.pop_time,
        broker_name=broker,
    )


def test_a_checkpoint_is_settled_when_a_record_was_due_two_seconds_later() -> None:
    queue = ReviveQueue(-1, "b")
    point = checkpoint(0)
    queue.read_checkpoint(point, 0, point.revive_time - 1000)
    assert queue.read_ack(ack(point, 1), 1, point.revive_time)
    assert queue.settled() is None
    queue.read_other(2, point.revive_time + 2000)
    assert queue.settled() is None
    queue.read_other(3, point.revive_time + 2001)
    settled = queue.settled()
    assert settled is not None
    assert settled.unacknowledged == [0]


def test_a_checkpoint_is_settled_when_nothing_more_is_due() -> None:
    queue = ReviveQueue(-1, "b")
    point = checkpoint(0)
    queue.read_checkpoint(point, 0, point.revive_time - 1000)
    queue.reached_end(point.revive_time + 2500, timer_is_behind=True)
    assert queue.settled() is None
    queue.reached_end(point.revive_time + 2000, timer_is_behind=False)
    assert queue.settled() is None
    queue.reached_end(point.revive_time + 2001, timer_is_behind=False)
    assert queue.settled() is point


def test_the_offset_advances_past_settled_checkpoints_that_are_safe() -> None:
    queue = ReviveQueue(4, "b")
    assert queue.next_offset == 5
    first, second = checkpoint(0), checkpoint(2, pop_time=POP + 1)
    queue.read_checkpoint(first, 5, first.revive_time - 1000)
    queue.read_checkpoint(second, 6, second.revive_time - 1000)
    queue.read_other(7, first.revive_time + 60_000)
    assert queue.settled() is first
    queue.revived(0, 100)
    queue.done()
    assert queue.settled() is second
    queue.revived(2, 200)
    queue.done()
    assert queue.settled() is None
    assert not queue.advance(99)
    assert queue.advance(150)
    assert queue.offset == 5
    assert queue.advance(200)
    assert queue.offset == 6


def test_a_message_that_was_stored_before_a_failure_counts_for_the_offset() -> None:
    queue = ReviveQueue(-1, "b")
    point = checkpoint(0)
    queue.read_checkpoint(point, 0, 0)
    queue.read_other(1, point.revive_time + 60_000)
    queue.revived(0, 100)
    assert point.unacknowledged == [1]
    # Only later it turns out that the other message does not exist any more.
    queue.revived(1, 0)
    queue.done()
    assert not queue.advance(99)
    assert queue.advance(100)


def test_an_acknowledgement_without_a_broker_is_this_brokers() -> None:
    queue = ReviveQueue(-1, "b")
    point = checkpoint(0)
    queue.read_checkpoint(point, 0, 0)
    assert queue.read_ack(ack(point, 0, broker=None), 1, 0)
    assert not queue.read_ack(ack(point, 1, broker="other"), 2, 0)
    assert point.unacknowledged == [1]


def test_an_old_acknowledgement_without_checkpoint_can_be_skipped() -> None:
    queue = ReviveQueue(-1, "b")
    lonely = ack(checkpoint(0), 0)
    assert not queue.read_ack(lonely, 0, POP, now_ms=POP + 180_000, skip_after_ms=180_000)
    assert queue.settled() is None
    assert not queue.read_ack(lonely, 1, POP, now_ms=POP + 180_001, skip_after_ms=180_000)
    queue.read_other(2, POP * 2)
    settled = queue.settled()
    assert settled is not None
    assert settled.unacknowledged == []
    queue.done()
    assert queue.advance(0)
    assert queue.offset == 1


def test_a_checkpoint_that_cannot_be_revived_is_due_later_each_time() -> None:
    point = checkpoint(0, count=3)
    again = re_put(point, 2, point.revive_time, skip_at_max=False)
    assert again is not None
    assert (again.start_offset, again.count, again.diffs, again.re_put_times) == (2, 1, [0], "1")
    assert again.revive_time == point.revive_time + 10_000
    for interval_s in REWRITE_INTERVALS_S[1:]:
        later = re_put(again, 2, again.revive_time, skip_at_max=True)
        assert later is not None
        assert later.revive_time - again.revive_time == interval_s * 1000
        again = later
    assert re_put(again, 2, again.revive_time, skip_at_max=True) is None
    last = re_put(again, 2, again.revive_time, skip_at_max=False)
    assert last is not None
    assert last.revive_time - again.revive_time == 7_200_000


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 31)), min_size=1, max_size=30), st.integers(0, 40)
)
def test_after_a_restart_nothing_unacknowledged_is_lost(
    points: list[tuple[int, int]], settled_before: int
) -> None:
    """Checkpoints with some messages acknowledged; the broker restarts after some are settled."""
    log: list[PopCheckPoint | AckMsg] = []
    expected: set[int] = set()
    start = 0
    for number, (count, bits) in enumerate(points):
        point = checkpoint(start, pop_time=POP + number, count=count)
        log.append(point)
        for index in range(count):
            if bits >> index & 1:
                log.append(ack(point, start + index))
            else:
                expected.add(start + index)
        start += count

    def run(offset: int, settle_max: int) -> tuple[int, set[int]]:
        queue = ReviveQueue(offset, "b")
        revived: set[int] = set()
        for at, record in enumerate(log):
            if at < queue.next_offset:
                continue
            if isinstance(record, AckMsg):
                queue.read_ack(record, at, POP)
            else:
                queue.read_checkpoint(copy.copy(record), at, POP)
        queue.read_other(len(log), POP + 1_000_000)
        while settle_max and (settled := queue.settled()) is not None:
            for unacknowledged in settled.unacknowledged:
                revived.add(unacknowledged)
                queue.revived(unacknowledged, 0)
            queue.done()
            settle_max -= 1
        queue.advance(0)
        return queue.offset, revived

    offset, first = run(-1, settled_before)
    _, second = run(offset, 1000)
    assert first | second == expected
    assert not first & second
