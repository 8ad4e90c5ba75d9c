"""However often a queue has moved, and whatever has expired, a reader gets every message that is left,
once and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.tables.static_topics.pull_rules import logical_outcome
from epochmq_broker.tables.static_topics.queue_items import (
    PullOutcome,
    QueueContext,
    find_item,
    logical_offset,
    physical_offset,
)
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.topics import LogicQueueMappingItem, TopicQueueMappingDetail

BLOCK = 1000
"""Each part of the queue begins at a multiple of it, as mqadmin decides."""
BATCH = 3
PULLS_MAX = 200

Part = tuple[int, int]
"""(messages that were stored, messages of these that have expired) on one broker."""
parts = st.lists(
    st.integers(0, 8).flatmap(lambda stored: st.tuples(st.just(stored), st.integers(0, stored))),
    min_size=1,
    max_size=5,
)


def queue_of(history: list[Part], *, ends_known: bool) -> QueueContext:
    """The mapping of a queue that has moved from broker to broker; the reader asks the last one."""
    items = [
        LogicQueueMappingItem(
            gen=gen,
            bname=f"b{gen}",
            logic_offset=gen * BLOCK,
            end_offset=stored if ends_known and gen < len(history) - 1 else -1,
        )
        for gen, (stored, _) in enumerate(history)
    ]
    detail = TopicQueueMappingDetail(topic="t", bname=items[-1].bname, hosted_queues={0: items})
    return QueueContext("t", 0, detail, items)


def pull(part: Part, offset: int) -> tuple[PullOutcome, range]:
    """What a broker answers to a pull of its physical queue, with the offsets of the messages."""
    end, first = part
    if offset < first or offset > end:
        at = first if offset < first else end
        return PullOutcome(ResponseCode.PULL_OFFSET_MOVED, at, first, end), range(0)
    if offset == end:
        return PullOutcome(ResponseCode.PULL_NOT_FOUND, offset, first, end), range(0)
    found = range(offset, min(offset + BATCH, end))
    return PullOutcome(ResponseCode.SUCCESS, found.stop, first, end), found


@given(history=parts, ends_known=st.booleans(), start=st.integers(0, 5 * BLOCK))
def test_a_reader_gets_all_messages_that_are_left_from_its_offset_on(
    history: list[Part], ends_known: bool, start: int
) -> None:
    context = queue_of(history, ends_known=ends_known)
    last = (len(history) - 1) * BLOCK + history[-1][0]
    start = min(start, last)
    left = [
        gen * BLOCK + offset
        for gen, (stored, expired) in enumerate(history)
        for offset in range(expired, stored)
        if gen * BLOCK + offset >= start
    ]
    read: list[int] = []
    at = start
    for _ in range(PULLS_MAX):
        item = find_item(context.items, at)
        assert item is not None
        physical = physical_offset(item, at)
        found, offsets = pull(history[item.gen], physical)
        outcome, delta = logical_outcome(context, item, physical, found)
        read += [offset + delta for offset in offsets]
        at = outcome.next_offset
        assert outcome.max_offset >= at
        if outcome.code == ResponseCode.PULL_NOT_FOUND:
            break
    assert read == left
    assert at == last


@given(history=parts, logical=st.integers(0, 5 * BLOCK))
def test_a_logical_offset_leads_to_a_physical_one_and_back(history: list[Part], logical: int) -> None:
    item = find_item(queue_of(history, ends_known=False).items, logical)
    assert item is not None
    assert logical_offset(item, physical_offset(item, logical)) == logical


def test_a_queue_whose_new_leader_has_no_offsets_yet_waits() -> None:
    closed = LogicQueueMappingItem(bname="a")
    undecided = LogicQueueMappingItem(gen=1, bname="b", logic_offset=-1)
    detail = TopicQueueMappingDetail(topic="t", bname="b", hosted_queues={0: [closed, undecided]})
    context = QueueContext("t", 0, detail, [closed, undecided])
    outcome, _ = logical_outcome(context, closed, 3, PullOutcome(ResponseCode.PULL_NOT_FOUND, 3, 0, 3))
    assert (outcome.code, outcome.next_offset) == (ResponseCode.PULL_NOT_FOUND, 3)
