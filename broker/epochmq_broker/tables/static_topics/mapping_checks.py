"""Checks a new mapping of a static topic against the one in force (TopicQueueMappingUtils and
TopicQueueMappingManager.updateTopicQueueMapping).

An item's generation, queue, broker and start never change, so that an outdated administrator cannot make
messages unreachable. The epoch decides which of two mappings is newer.
"""
# pure: mappings only

from __future__ import annotations

from epochmq_broker.tables.static_topics.queue_items import Items, logical_end
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.topics import TopicQueueMappingDetail


def merged_mapping(
    old: TopicQueueMappingDetail | None, new: TopicQueueMappingDetail, *, force: bool
) -> TopicQueueMappingDetail:
    """The mapping that replaces `old`: `new`, and the queues that only `old` has. `force`: without comparing
    the two. Raises RequestError."""
    for items in new.hosted_queues.values():
        check_items(items)
    if old is None:
        return new
    if not force:
        _check_successor(old, new)
    new.hosted_queues = {**old.hosted_queues, **new.hosted_queues}
    return new


def _check_successor(old: TopicQueueMappingDetail, new: TopicQueueMappingDetail) -> None:
    if new.epoch < old.epoch:
        raise _rejected(f"Can't accept data with small epoch {new.epoch} < {old.epoch}")
    if new.scope != old.scope:
        raise _rejected(f"Can't accept data with unmatched scope {new.scope} != {old.scope}")
    same_epoch = new.epoch == old.epoch
    for queue_id, items in old.hosted_queues.items():
        successors = new.hosted_queues.get(queue_id)
        if successors is not None:
            _check_same_items(items, successors, same_epoch=same_epoch)
        elif same_epoch:
            raise _rejected("Cannot accept equal epoch with null data")


def _check_same_items(old: Items, new: Items, *, same_epoch: bool) -> None:
    if not old:
        return
    if not new:
        raise _rejected("The new item list is null or empty")
    if same_epoch:
        before, after = old[-1], new[-1]
        if (after.gen, after.bname, after.queue_id, after.start_offset) != (
            before.gen,
            before.bname,
            before.queue_id,
            before.start_offset,
        ):
            raise _rejected("The new leader is different but epoch equal")


def check_items(items: Items) -> None:
    """Checks one logical queue: generations and offsets grow, and only the last item's first offset may be
    undecided (checkLogicQueueMappingItemOffset). Raises RequestError."""
    later_gen = later_offset = -1
    for at, item in reversed(list(enumerate(items))):
        if item.start_offset < 0 or item.gen < 0 or item.queue_id < 0:
            raise _rejected("The field is illegal, should not be negative")
        if at < len(items) - 1 and item.logic_offset < 0:
            raise _rejected("The non-latest item has negative logic offset")
        if later_gen != -1 and item.gen >= later_gen:
            raise _rejected("The gen does not increase monotonically")
        if item.end_offset != -1 and item.end_offset < item.start_offset:
            raise _rejected("The endOffset is smaller than the start offset")
        if later_offset != -1 and item.logic_offset != -1:
            if item.logic_offset >= later_offset:
                raise _rejected("The base logic offset does not increase monotonically")
            if logical_end(item) >= later_offset:
                raise _rejected("The max logic offset does not increase monotonically")
        later_gen, later_offset = item.gen, item.logic_offset


def _rejected(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)
