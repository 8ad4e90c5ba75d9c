"""Decides which parts of a broker's mappings are no longer needed (TopicQueueMappingCleanService).

The leader of a queue drops its earliest item when all of its messages have expired. A former leader forgets a
queue when a broker that it does not know leads it, because its own record of the queue is then useless.
"""
# pure: mappings and offsets only

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.tables.static_topics.queue_items import Items
from epochmq_protocol.bodies import MessageQueue, TopicOffset
from epochmq_protocol.topics import LogicQueueMappingItem, TopicQueueMappingDetail, TopicQueueMappingInfo


def earliest_items(detail: TopicQueueMappingDetail) -> dict[int, LogicQueueMappingItem]:
    """Queue → its earliest item, of the queues that this broker leads and that have several items."""
    return {
        queue_id: items[0]
        for queue_id, items in detail.hosted_queues.items()
        if len(items) > 1 and items[-1].bname == detail.bname
    }


def without_expired(
    detail: TopicQueueMappingDetail, offsets: Mapping[MessageQueue, TopicOffset]
) -> dict[int, list[LogicQueueMappingItem] | None]:
    """Queue → its items without the earliest one, of the queues whose earliest item has no message left.
    `offsets`: of the physical queues, as far as their brokers responded."""
    kept: dict[int, list[LogicQueueMappingItem] | None] = {}
    for queue_id, item in earliest_items(detail).items():
        found = offsets.get(MessageQueue(detail.topic or "", item.bname or "", item.queue_id))
        if found is not None and (found.max_offset == found.min_offset or found.max_offset == 0):
            kept[queue_id] = list(detail.hosted_queues[queue_id][1:])
    return kept


def other_leaders(detail: TopicQueueMappingDetail) -> dict[int, str]:
    """Queue → the broker that leads it according to this mapping, of the queues that this broker gave
    away."""
    return {
        queue_id: items[-1].bname or ""
        for queue_id, items in detail.hosted_queues.items()
        if items and items[-1].bname != detail.bname
    }


def leaders_in_route(mappings: Mapping[str, TopicQueueMappingInfo], scope: str) -> dict[int, str]:
    """Queue → the broker that leads it according to a route; of several, the one with the newest epoch
    (topicRouteData2EndpointsForStaticTopic)."""
    leaders: dict[int, TopicQueueMappingInfo] = {}
    for info in mappings.values():
        if info.scope != scope:
            continue
        for queue_id in info.curr_id_map:
            known = leaders.get(queue_id)
            if known is None or known.epoch <= info.epoch:
                leaders[queue_id] = info
    return {queue_id: info.bname or "" for queue_id, info in leaders.items()}


def superseded(
    detail: TopicQueueMappingDetail,
    leaders: Mapping[int, str],
    remote: Mapping[str, TopicQueueMappingDetail],
) -> dict[int, list[LogicQueueMappingItem] | None]:
    """The queues to forget, each with None. `leaders`: according to the route; `remote`: their mappings, as
    far as they responded."""
    forgotten: dict[int, list[LogicQueueMappingItem] | None] = {}
    for queue_id, former in other_leaders(detail).items():
        leader = leaders.get(queue_id, "")
        theirs = remote.get(leader)
        if theirs is None or leader == former:
            continue
        if (theirs.total_queues, theirs.epoch) != (detail.total_queues, detail.epoch):
            continue
        items: Items = theirs.hosted_queues.get(queue_id) or ()
        if items and items[-1].bname == leader:
            forgotten[queue_id] = None
    return forgotten
