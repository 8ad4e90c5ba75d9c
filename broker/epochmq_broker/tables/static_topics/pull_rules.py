"""Turns the result of a pull of a physical queue into the response about its logical queue
(PullMessageProcessor.rewriteResponseForStaticTopic).

A pull beyond the end of a closed item continues at the next one. PULL_OFFSET_MOVED, with which a client
resets its offset, is left to the two ends of the logical queue.
"""
# pure: items and offsets only

from __future__ import annotations

from epochmq_broker.tables.static_topics.queue_items import (
    PullOutcome,
    QueueContext,
    find_item,
    is_end_decided,
    logical_end,
    logical_offset,
    next_item,
)
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.topics import LogicQueueMappingItem


def logical_outcome(
    context: QueueContext, item: LogicQueueMappingItem, requested: int, found: PullOutcome
) -> tuple[PullOutcome, int]:
    """(the outcome with logical offsets, what a client adds to the offsets of the messages). `requested`: the
    physical offset of the pull from `item`."""
    answer, current = found, item
    if found.code != ResponseCode.SUCCESS:
        answer, current = _moved(context, item, requested, found)
    next_offset = answer.next_offset
    if is_end_decided(current):
        next_offset = min(next_offset, current.end_offset)
    ends = context.items[-1]
    outcome = PullOutcome(
        code=answer.code,
        next_offset=logical_offset(current, next_offset),
        min_offset=logical_offset(current, max(current.start_offset, answer.min_offset)),
        max_offset=max(logical_offset(current, answer.max_offset), logical_end(ends)),
    )
    return outcome, current.logic_offset - current.start_offset


def _moved(
    context: QueueContext, item: LogicQueueMappingItem, requested: int, result: PullOutcome
) -> tuple[PullOutcome, LogicQueueMappingItem]:
    """(outcome with the right code, the item that its offsets are of)."""
    first = find_item(context.items, 0)
    is_first = first is not None and first.gen == item.gen
    is_last = context.items[-1].gen == item.gen
    outcome = result
    if is_last:
        if requested > result.max_offset:
            if result.code == ResponseCode.PULL_OFFSET_MOVED:
                outcome = _with(result, result.code, result.max_offset)
        elif requested < result.min_offset:
            outcome = _with(result, ResponseCode.PULL_RETRY_IMMEDIATELY, result.min_offset)
        if not is_first:
            return outcome, item
    if requested < result.min_offset:
        code = ResponseCode.PULL_OFFSET_MOVED if is_first else ResponseCode.PULL_RETRY_IMMEDIATELY
        return _with(outcome, code, result.min_offset), item
    if requested < result.max_offset:
        return result, item
    following = next_item(context.items, item)
    if following is None:
        # It is the last one, or the offsets of the next one are not decided yet.
        return _with(outcome, ResponseCode.PULL_NOT_FOUND, outcome.next_offset), item
    start = following.start_offset
    return PullOutcome(ResponseCode.PULL_RETRY_IMMEDIATELY, start, start, start), following


def _with(outcome: PullOutcome, code: int, next_offset: int) -> PullOutcome:
    return PullOutcome(code, next_offset, outcome.min_offset, outcome.max_offset)
