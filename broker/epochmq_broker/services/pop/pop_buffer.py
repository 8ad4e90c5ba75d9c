"""Decides, for every queue that a group pops, how far the group has come, which offset is safe to commit,
and, with `enablePopBufferMerge`, which checkpoints and acknowledgements stay in memory (RocketMQ's
PopBufferMergeService).

A group's consumer offset advances past messages that were handed out only when their checkpoint is safe: on
disk with SYNC_FLUSH, and on the replicas. A broker that becomes master with an older log then has an older
offset, too, and hands these messages out again. Until then the buffer remembers where the next POP continues.

A buffered checkpoint is not stored as long as its messages may still be acknowledged in time. If all are,
neither the checkpoint nor the acknowledgements are ever stored. Otherwise they are due some seconds later,
and the driver stores them."""
# pure: state and rules only; the caller passes the time

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from epochmq_broker.services.pop.checkpoints import AckMsg, MergeKey, PopCheckPoint

ADD_MARGIN_MS: Final = 1500
"""Checkpoints and acknowledgements that would have to be stored sooner than this are stored at once."""

QueueKey = tuple[str, str, int]
"""Topic, group and queue id."""


class BufferSettings(Struct, frozen=True):
    """RocketMQ's keys: popCkStayBufferTime, popCkStayBufferTimeOut, popCkMaxBufferSize and
    popCkOffsetMaxQueueSize."""

    stay_ms: int = 10_000
    timeout_ms: int = 3000
    checkpoints_max: int = 200_000
    queue_max: int = 20_000


class PopEntry:
    """One POP of one queue, until the group's offset has advanced past its messages. `end` is the end of the
    log behind its checkpoint: None while the checkpoint is in memory only, 0 if it needs none."""

    __slots__ = ("acked", "checkpoint", "end", "next_offset", "revive_queue_id", "stored_acks", "stored_end")

    def __init__(
        self,
        next_offset: int,
        end: int | None,
        checkpoint: PopCheckPoint | None = None,
        revive_queue_id: int = 0,
    ) -> None:
        self.next_offset = next_offset
        self.end = end
        self.checkpoint = checkpoint
        self.revive_queue_id = revive_queue_id
        self.acked = 0  # bits of the acknowledged messages
        self.stored_acks = 0  # those of which the acknowledgements are stored
        self.stored_end = -1  # the end of the log behind what is stored of a buffered checkpoint; -1: nothing

    @property
    def is_acknowledged(self) -> bool:
        """Whether every message is acknowledged."""
        assert self.checkpoint is not None
        return self.acked == (1 << self.checkpoint.count) - 1

    @property
    def acks_to_store(self) -> list[int]:
        """The numbers of the messages whose acknowledgement is in memory only."""
        assert self.checkpoint is not None
        bits = self.acked & ~self.stored_acks
        return [index for index in range(self.checkpoint.count) if bits >> index & 1]


class PopBuffer:
    """The buffer of one broker. `commit` stores a group's offset on a queue."""

    def __init__(self, commit: Callable[[QueueKey, int], None]) -> None:
        self._commit = commit
        self._queues: dict[QueueKey, deque[PopEntry]] = {}
        self._entries: dict[MergeKey, PopEntry] = {}
        self._due: list[tuple[int, int, PopEntry]] = []
        self._sequence = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is pending."""
        return not self._queues and not self._entries

    @property
    def checkpoints(self) -> int:
        """The number of checkpoints that are in memory only."""
        return len(self._entries)

    @property
    def pending_offsets(self) -> int:
        """The number of POPs whose offset is not committed yet."""
        return sum(map(len, self._queues.values()))

    @property
    def next_due_ms(self) -> int | None:
        """When the next buffered checkpoint has to be stored, in epoch ms."""
        return self._due[0][0] if self._due else None

    def latest_offset(self, key: QueueKey) -> int:
        """Where the next POP of the queue continues; -1 if nothing is pending."""
        queue = self._queues.get(key)
        return queue[-1].next_offset if queue else -1

    def has_room(self, key: QueueKey, settings: BufferSettings) -> bool:
        """Whether the queue may have one more pending POP."""
        queue = self._queues.get(key)
        return queue is None or len(queue) < settings.queue_max

    def forget(self, key: QueueKey) -> None:
        """Forgets the pending POPs of a queue, because its offset was reset. Buffered checkpoints remain
        until they are acknowledged or due."""
        self._queues.pop(key, None)

    def forget_unknown(self, exists: Callable[[str, str], bool]) -> None:
        """Forgets the queues of topics and groups that do not exist any more."""
        for key in [key for key in self._queues if not exists(key[0], key[1])]:
            del self._queues[key]

    def clear(self) -> None:
        """Forgets everything: another broker is the master."""
        self._queues.clear()
        self._entries.clear()
        self._due.clear()

    # POPs

    def add_stored(self, key: QueueKey, next_offset: int, end: int, safe_end: int) -> None:
        """Adds a POP whose checkpoint is stored and ends at log offset `end`, or one (`end` 0) that found no
        message and so needs none. The log is safe up to `safe_end`."""
        queue = self._queues.get(key)
        if queue is None:
            if end <= safe_end:
                self._commit(key, next_offset)
                return
            queue = self._queues[key] = deque()
        queue.append(PopEntry(next_offset, end))
        self._advance(key, queue, safe_end)

    def add_buffered(
        self,
        checkpoint: PopCheckPoint,
        key: QueueKey,
        revive_queue_id: int,
        next_offset: int,
        settings: BufferSettings,
        now_ms: int,
    ) -> bool:
        """Adds a POP whose checkpoint stays in memory. Returns False, and adds nothing, if it has to be
        stored: it would be due too soon, or the buffer is full."""
        if checkpoint.revive_time - now_ms < settings.timeout_ms + ADD_MARGIN_MS:
            return False
        if len(self._entries) >= settings.checkpoints_max or not self.has_room(key, settings):
            return False
        merge_key = checkpoint.key
        if merge_key in self._entries:
            return False
        entry = PopEntry(next_offset, None, checkpoint, revive_queue_id)
        self._entries[merge_key] = entry
        self._queues.setdefault(key, deque()).append(entry)
        due_ms = min(checkpoint.revive_time - settings.timeout_ms, checkpoint.pop_time + settings.stay_ms)
        self._push(due_ms, entry)
        return True

    def acknowledge(self, ack: AckMsg, settings: BufferSettings, now_ms: int, safe_end: int) -> bool:
        """Takes an acknowledgement of a buffered checkpoint. Returns False if it has to be stored."""
        entry = self._entries.get(ack.key())
        if entry is None:
            return False
        checkpoint = entry.checkpoint
        assert checkpoint is not None
        if checkpoint.revive_time - now_ms < settings.timeout_ms + ADD_MARGIN_MS:
            return False
        if now_ms - checkpoint.pop_time > settings.stay_ms - ADD_MARGIN_MS:
            return False
        for offset in ack.offsets:
            index = checkpoint.index_of(offset)
            if index is not None:
                entry.acked |= 1 << index
        if entry.is_acknowledged and entry.end is None:
            entry.end = 0
            self._finish(entry, safe_end)
        return True

    # storing

    def take_due(self, now_ms: int, count_max: int) -> Iterator[PopEntry]:
        """Takes the buffered checkpoints that have to be stored now, with their acknowledgements. The driver
        calls `stored` or `postpone` for each."""
        taken = 0
        while self._due and taken < count_max and self._due[0][0] <= now_ms:
            _, _, entry = heapq.heappop(self._due)
            assert entry.checkpoint is not None
            if self._entries.get(entry.checkpoint.key) is entry:
                taken += 1
                yield entry

    def make_all_due(self, now_ms: int) -> None:
        """Makes every buffered checkpoint due, for a stop in order."""
        self._due = [(min(due_ms, now_ms), sequence, entry) for due_ms, sequence, entry in self._due]
        heapq.heapify(self._due)

    def stored(self, entry: PopEntry, end: int, safe_end: int) -> None:
        """Records that a checkpoint and its acknowledgements are stored; the last one ends at log offset
        `end`."""
        entry.end = end
        self._finish(entry, safe_end)

    def postpone(self, entry: PopEntry, until_ms: int) -> None:
        """Makes a checkpoint due again later, because it could not be stored."""
        self._push(until_ms, entry)

    def advance(self, safe_end: int) -> None:
        """Commits the offsets of what has become safe. The log is safe up to `safe_end`."""
        for key in list(self._queues):
            self._advance(key, self._queues[key], safe_end)

    def _push(self, due_ms: int, entry: PopEntry) -> None:
        self._sequence += 1
        heapq.heappush(self._due, (due_ms, self._sequence, entry))

    def _finish(self, entry: PopEntry, safe_end: int) -> None:
        checkpoint = entry.checkpoint
        assert checkpoint is not None
        self._entries.pop(checkpoint.key, None)
        key = (checkpoint.topic or "", checkpoint.group or "", checkpoint.queue_id)
        queue = self._queues.get(key)
        if queue is not None:
            self._advance(key, queue, safe_end)

    def _advance(self, key: QueueKey, queue: deque[PopEntry], safe_end: int) -> None:
        offset = -1
        while queue and queue[0].end is not None and queue[0].end <= safe_end:
            offset = queue.popleft().next_offset
        if not queue:
            self._queues.pop(key, None)
        if offset >= 0:
            self._commit(key, offset)
