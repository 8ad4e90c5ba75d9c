"""Keeps, for orderly POP, what every group has received of every queue and not acknowledged (RocketMQ's
ConsumerOrderInfoManager).

While a message that a group received is neither acknowledged nor visible again, its queue is blocked for the
group. The file is `config/consumerOrderInfo.json`.
"""
# pure: state and rules only; the caller passes the time

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from epochmq_broker.services.pop.extra_info import offset_order_count_entry, queue_order_count_entry
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import convert
from epochmq_protocol.integers import Int, Long

SEPARATOR: Final = "@"
EXPIRY_MS: Final = 24 * 3600 * 1000
"""The state of a queue is forgotten when the group has not received from it for so long."""
ILLEGAL: Final = -1
NOTHING_TO_COMMIT: Final = -2
"""Results of `commit_and_next` other than an offset."""


class OrderInfo(Struct, kw_only=True):
    """What a group received of one queue with its last POP. Times in ms. `offsets[0]` is a queue offset, the
    others are distances from it. Bit i of `commit_bits` is set if message i is acknowledged."""

    pop_time: Long = field(name="popTime", default=0)
    invisible_time: Long | None = field(name="i", default=None)
    offsets: list[Long] | None = field(name="o", default=None)
    next_visible: dict[Long, Long] | None = field(name="ot", default=None)
    """Queue offset → when it becomes visible, if a client changed that."""
    counts: dict[Long, Int] | None = field(name="oc", default=None)
    """Queue offset → how often the message was received before, if it was."""
    last_consume_ms: Long = field(name="l", default=0)
    commit_bits: Long = field(name="cm", default=0)
    attempt_id: str | None = field(name="a", default=None)

    def offset_at(self, index: int) -> int:
        """The queue offset of message `index`."""
        assert self.offsets
        return self.offsets[0] if index == 0 else self.offsets[0] + self.offsets[index]

    @property
    def queue_offsets(self) -> list[int]:
        """The queue offsets of all messages."""
        return [self.offset_at(index) for index in range(len(self.offsets or ()))]

    def is_acknowledged(self, index: int) -> bool:
        """Whether message `index` is acknowledged."""
        return bool(self.commit_bits >> index & 1)

    def _visible_at(self, index: int) -> int:
        changed = (self.next_visible or {}).get(self.offset_at(index))
        return self.pop_time + (self.invisible_time or 0) if changed is None else changed

    def blocks(self, attempt_id: str | None, invisible_time: int, now_ms: int) -> bool:
        """Whether a POP with this attempt id has to wait. A repeated attempt gets the messages again."""
        if not self.offsets or (self.attempt_id is not None and self.attempt_id == attempt_id):
            return False
        if self.invisible_time is None or self.invisible_time <= 0:
            self.invisible_time = invisible_time
        return any(
            not self.is_acknowledged(index) and now_ms < self._visible_at(index)
            for index in range(len(self.offsets))
        )

    def free_at(self, now_ms: int) -> int | None:
        """When the queue is next to be looked at because a message becomes visible, in epoch ms; None if that
        is unknown."""
        if not self.offsets:
            return None
        for index in range(len(self.offsets)):
            if self.is_acknowledged(index):
                continue
            if self.invisible_time is None or self.invisible_time <= 0:
                return None
            if now_ms < (visible := self._visible_at(index)):
                return visible
        return now_ms

    @property
    def next_offset(self) -> int:
        """The offset of the first message that is not acknowledged, or the one behind the last message."""
        if not self.offsets:
            return NOTHING_TO_COMMIT
        for index in range(len(self.offsets)):
            if not self.is_acknowledged(index):
                return self.offset_at(index)
        return self.offset_at(len(self.offsets) - 1) + 1

    def take_counts(self, before: OrderInfo) -> None:
        """Counts the messages that the POP before this one had received, too."""
        known = before.counts or {}
        if before.attempt_id is not None and before.attempt_id == self.attempt_id:
            self.counts = known
            return
        received = set(before.queue_offsets)
        self.counts = {
            offset: known.get(offset, 0) + 1 for offset in self.queue_offsets if offset in received
        }


class ConsumerOrderInfoTable:
    """`topic@group` → queue → OrderInfo. `changes` counts the changes. `on_lock_change` gets (topic, group,
    queue id, when the queue is free) after every change of that time."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        on_lock_change: Callable[[str, str, int, int], None] | None = None,
    ) -> None:
        self.changes = 0
        self._on_lock_change = on_lock_change
        self._clock_ms = clock_ms
        self._table: dict[str, dict[Int, OrderInfo]] = {}

    def find(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        """Returns the state of a group on a queue."""
        queues = self._table.get(topic + SEPARATOR + group)
        return None if queues is None else queues.get(queue_id)

    def update(
        self,
        attempt_id: str | None,
        topic: str,
        group: str,
        queue_id: int,
        pop_time: int,
        invisible_time: int,
        offsets: Sequence[int],
    ) -> list[str]:
        """Records what a POP received, at least one message. Returns the entries of `orderCountInfo`."""
        before = self.find(topic, group, queue_id)
        first = offsets[0]
        info = OrderInfo(
            pop_time=pop_time,
            invisible_time=invisible_time,
            offsets=[first, *(offset - first for offset in offsets[1:])],
            last_consume_ms=self._clock_ms(),
            attempt_id=attempt_id,
        )
        if before is not None:
            info.take_counts(before)
        self._table.setdefault(topic + SEPARATOR + group, {})[queue_id] = info
        self.changes += 1
        entries = [
            offset_order_count_entry(topic, queue_id, offset, count)
            for offset, count in (info.counts or {}).items()
        ]
        counts = info.counts
        # Only messages that were received before have a count; the others make the minimum 0.
        least = min(counts.values()) if counts and len(counts) == len(offsets) else 0
        entries.append(queue_order_count_entry(topic, queue_id, least))
        self._lock_changed(topic, group, queue_id, info)
        return entries

    def blocks(
        self, attempt_id: str | None, topic: str, group: str, queue_id: int, invisible_time: int
    ) -> bool:
        """Whether the queue is blocked for a POP of this group."""
        info = self.find(topic, group, queue_id)
        return info is not None and info.blocks(attempt_id, invisible_time, self._clock_ms())

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Forgets what the group received of a queue, because its offset was reset."""
        queues = self._table.get(topic + SEPARATOR + group)
        if queues is not None and queues.pop(queue_id, None) is not None:
            self.changes += 1

    def commit_and_next(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> int:
        """Marks a message as acknowledged. Returns the offset to commit, ILLEGAL for a message that the group
        did not receive, or NOTHING_TO_COMMIT for one of an earlier POP."""
        info = self.find(topic, group, queue_id)
        if info is None:
            return offset + 1
        if not info.offsets:
            return ILLEGAL
        if pop_time != info.pop_time:
            return NOTHING_TO_COMMIT
        try:
            index = info.queue_offsets.index(offset)
        except ValueError:
            return ILLEGAL
        info.commit_bits |= 1 << index
        self.changes += 1
        self._lock_changed(topic, group, queue_id, info)
        return info.next_offset

    def set_next_visible(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, visible_ms: int
    ) -> None:
        """Changes when one message becomes visible. Ignores messages of an earlier POP."""
        info = self.find(topic, group, queue_id)
        if info is None or info.pop_time != pop_time:
            return
        if info.next_visible is None:
            info.next_visible = {}
        info.next_visible[offset] = visible_ms
        self.changes += 1
        self._lock_changed(topic, group, queue_id, info)

    def locks(self) -> list[tuple[str, str, int, int]]:
        """(topic, group, queue id, when the queue is free) of every queue that is blocked now."""
        now_ms = self._clock_ms()
        locked = []
        for key, queues in self._table.items():
            words = key.split(SEPARATOR)
            for queue_id, info in queues.items():
                free_at = info.free_at(now_ms)
                if len(words) == 2 and free_at is not None and free_at > now_ms:
                    locked.append((words[0], words[1], queue_id, free_at))
        return locked

    def _lock_changed(self, topic: str, group: str, queue_id: int, info: OrderInfo) -> None:
        if self._on_lock_change is not None:
            free_at = info.free_at(self._clock_ms())
            if free_at is not None:
                self._on_lock_change(topic, group, queue_id, free_at)

    # the file

    def clean(self, read_queues: Callable[[str], int | None], has_group: Callable[[str], bool]) -> None:
        """Forgets topics, groups and queues that do not exist, and queues that were not used for a day.
        `read_queues` returns the number of a topic's queues, None for an unknown topic."""
        now_ms = self._clock_ms()
        for key, queues in list(self._table.items()):
            words = key.split(SEPARATOR)
            if len(words) != 2:
                continue
            count = read_queues(words[0])
            if count is None or not has_group(words[1]) or not queues:
                del self._table[key]
                continue
            for queue_id, info in list(queues.items()):
                if queue_id >= count or now_ms - info.last_consume_ms > EXPIRY_MS:
                    del queues[queue_id]

    def encode(self) -> bytes:
        """The content of the file."""
        return fastjson.dumps(
            {"table": {key: _rows(queues) for key, queues in self._table.items()}}, pretty=True
        )

    def restore(self, data: bytes) -> None:
        """Replaces the table with the content of a file. Raises RemoteProtocolError or BodyError."""
        loaded = convert(_File, fastjson.loads(data))
        self._table = {key: dict(queues) for key, queues in loaded.table.items()}
        self.changes += 1


class _File(Struct):
    table: dict[str, dict[Int, OrderInfo]] = {}


def _rows(queues: Mapping[int, OrderInfo]) -> dict[int, dict[str, Any]]:
    rows = {}
    for queue_id, info in queues.items():
        row: dict[str, Any] = {
            "a": info.attempt_id,
            "cm": info.commit_bits,
            "i": info.invisible_time,
            "l": info.last_consume_ms,
            "o": info.offsets,
            "oc": info.counts,
            "ot": info.next_visible,
            "popTime": info.pop_time,
        }
        rows[queue_id] = {name: value for name, value in row.items() if value is not None}
    return rows
