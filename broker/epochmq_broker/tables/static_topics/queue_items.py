"""The arithmetic of a static topic's logical queues (RocketMQ's LogicQueueMappingItem, TopicQueueMappingUtils
and TopicQueueMappingContext).

A logical queue is a list of items in the order of their generation. An item says: from `logicOffset` on, the
messages lie in queue `queueId` of broker `bname`, from `startOffset` (always 0) up to `endOffset` (-1 while
it is not decided). The last item is the leader: producers write there. Its `logicOffset` is -1 until the
administrator has decided where its offsets begin.
"""
# pure: items and offsets only

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from epochmq_protocol.topics import LogicQueueMappingItem, TopicQueueMappingDetail, TopicQueueMappingInfo

Items = Sequence[LogicQueueMappingItem]


def logical_offset(item: LogicQueueMappingItem, physical: int) -> int:
    """The logical offset of a physical one (computeStaticQueueOffsetStrictly). The item's first offset for a
    physical offset before it."""
    if physical < item.start_offset:
        return item.logic_offset
    return item.logic_offset + (physical - item.start_offset)


def logical_offset_within(item: LogicQueueMappingItem, physical: int) -> int:
    """The same, limited to the item's end; -1 while the item's first offset is not decided
    (computeStaticQueueOffsetLoosely)."""
    if item.logic_offset < 0:
        return -1
    if item.start_offset <= item.end_offset < physical:
        return item.logic_offset + (item.end_offset - item.start_offset)
    return logical_offset(item, physical)


def physical_offset(item: LogicQueueMappingItem, logical: int) -> int:
    """The physical offset of a logical one."""
    return logical - item.logic_offset + item.start_offset


def logical_end(item: LogicQueueMappingItem) -> int:
    """The logical offset after the item's last message; its first offset while the end is not decided
    (computeMaxStaticQueueOffset)."""
    if item.end_offset >= item.start_offset:
        return item.logic_offset + item.end_offset - item.start_offset
    return item.logic_offset


def is_end_decided(item: LogicQueueMappingItem) -> bool:
    """Whether the item is closed: another one follows it."""
    return item.end_offset > item.start_offset


def find_item(items: Items, logical: int) -> LogicQueueMappingItem | None:
    """The item with this logical offset; the first one if the offset lies before all. Items without a decided
    first offset do not count (findLogicQueueMappingItem)."""
    decided = [item for item in items if item.logic_offset >= 0]
    for item in reversed(decided):
        if logical >= item.logic_offset:
            return item
    return decided[0] if decided else None


def next_item(items: Items, current: LogicQueueMappingItem) -> LogicQueueMappingItem | None:
    """The item after `current`, None without one or if its first offset is not decided (findNext)."""
    for at, item in enumerate(items[:-1]):
        if item.logic_offset >= 0 and item.gen == current.gen:
            following = items[at + 1]
            return following if following.logic_offset >= 0 else None
    return None


class QueueContext(Struct, frozen=True):
    """A request's topic and logical queue, with the mapping in force (TopicQueueMappingContext)."""

    topic: str
    queue_id: int
    detail: TopicQueueMappingDetail
    items: Items

    @property
    def leader(self) -> LogicQueueMappingItem | None:
        """The item that producers write to, None if this broker does not know the queue."""
        return self.items[-1] if self.items else None

    @property
    def is_leader(self) -> bool:
        """Whether this broker has the leader."""
        leader = self.leader
        return leader is not None and leader.bname == self.detail.bname

    def is_local(self, item: LogicQueueMappingItem) -> bool:
        """Whether this broker has the item's messages."""
        return item.bname == self.detail.bname


def mapping_info(detail: TopicQueueMappingDetail) -> TopicQueueMappingInfo:
    """What the nameservers get: the queues that this broker leads, with their physical ids
    (cloneAsMappingInfo)."""
    led = {
        queue_id: items[-1].queue_id
        for queue_id, items in detail.hosted_queues.items()
        if items and items[-1].bname == detail.bname
    }
    return TopicQueueMappingInfo(
        topic=detail.topic,
        total_queues=detail.total_queues,
        bname=detail.bname,
        epoch=detail.epoch,
        curr_id_map=led,
    )


class PullOutcome(Struct, frozen=True):
    """A pull's response code and offsets, logical or physical."""

    code: int
    next_offset: int
    min_offset: int
    max_offset: int
