"""Decides which messages of one revive queue are handed out again (the rules of RocketMQ's PopReviveService).

Input are the records of the queue in order. A checkpoint is settled once every acknowledgement that was due
before its messages became visible must have been read: when a record was due more than two seconds after that
time, or when nothing was due for three seconds and the timer holds back nothing. What is unacknowledged then
is revived. The offset of the queue is that of the last settled checkpoint whose revived messages are safe. As
in RocketMQ, a restart continues with the record behind it.

RocketMQ reads everything behind the offset again in every round. Here every record is read once.
"""
# pure: state and rules only; the caller passes the time

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import structs

from epochmq_broker.pop.checkpoints import ACK_INTERVAL_MS, AckMsg, MergeKey, PopCheckPoint

SETTLED_AFTER_MS: Final = ACK_INTERVAL_MS + 1000
IDLE_AFTER_MS: Final = 3000
PENDING_MAX: Final = 100_000
"""Checkpoints that are read and not settled. With more, no further records are read."""
REWRITE_INTERVALS_S: Final = (
    10,
    20,
    30,
    60,
    120,
    180,
    240,
    300,
    360,
    420,
    480,
    540,
    600,
    1200,
    1800,
    3600,
    7200,
)
"""How much later a checkpoint whose messages could not be read is due again, by the times it was stored."""


class ReviveQueue:
    """The state of one revive queue. `offset` is what is committed, -1 at first."""

    def __init__(self, offset: int, broker_name: str) -> None:
        self.offset = offset
        self.next_offset = offset + 1
        """The next record to read."""
        self._broker_name = broker_name
        self._end_ms = 0
        self._pending: deque[PopCheckPoint] = deque()
        self._by_key: dict[MergeKey, PopCheckPoint] = {}
        self._unsafe: deque[tuple[int, int]] = deque()
        """(offset after some checkpoints, the end of the log behind what was revived of them)."""

    @property
    def pending(self) -> int:
        """The number of checkpoints that are read and not settled."""
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether no further records are read for now."""
        return len(self._pending) >= PENDING_MAX

    @property
    def first_pending(self) -> PopCheckPoint | None:
        """The oldest checkpoint that is not settled."""
        return self._pending[0] if self._pending else None

    # records

    def read_checkpoint(self, checkpoint: PopCheckPoint, offset: int, deliver_ms: int) -> None:
        """Takes a checkpoint at this offset of the revive queue, which was due at `deliver_ms`."""
        checkpoint.revive_offset = offset
        self._pending.append(checkpoint)
        self._by_key[checkpoint.key] = checkpoint
        self._read(offset, deliver_ms)

    def read_ack(
        self, ack: AckMsg, offset: int, deliver_ms: int, *, now_ms: int = 0, skip_after_ms: int | None = None
    ) -> bool:
        """Takes an acknowledgement. Returns whether its checkpoint is pending. With `skip_after_ms`, one
        without a checkpoint that has been due for longer is settled like an empty checkpoint, so that the
        offset may advance past it (enableSkipLongAwaitingAck)."""
        self._read(offset, deliver_ms)
        checkpoint = self._by_key.get(ack.key(self._broker_name))
        if checkpoint is None:
            if skip_after_ms is not None and now_ms - deliver_ms > skip_after_ms:
                self._pending.append(
                    PopCheckPoint(
                        start_offset=ack.start_offset,
                        pop_time=ack.pop_time,
                        queue_id=ack.queue_id,
                        group=ack.group,
                        topic=ack.topic,
                        revive_offset=offset,
                        broker_name=ack.broker_name,
                    )
                )
            return False
        for acknowledged in ack.offsets:
            checkpoint.acknowledge(acknowledged)
        return True

    def read_other(self, offset: int, deliver_ms: int) -> None:
        """Takes a record that is neither."""
        self._read(offset, deliver_ms)

    def _read(self, offset: int, deliver_ms: int) -> None:
        self.next_offset = offset + 1
        self._end_ms = max(self._end_ms, deliver_ms)

    def reached_end(self, now_ms: int, *, timer_is_behind: bool) -> None:
        """Notes that every record is read. If nothing was due for three seconds and the timer holds back
        nothing, whatever will be due is due later than now."""
        if self._end_ms and not timer_is_behind and now_ms - self._end_ms > IDLE_AFTER_MS:
            self._end_ms = now_ms

    def move_to(self, next_offset: int) -> None:
        """Continues with another record, because the queue does not have the next one."""
        self.next_offset = next_offset
        if not self._pending and not self._unsafe:
            self.offset = next_offset - 1

    # settled checkpoints

    def settled(self) -> PopCheckPoint | None:
        """The oldest checkpoint, if it is settled. It stays pending until `done`."""
        if not self._pending:
            return None
        first = self._pending[0]
        return first if self._end_ms - first.revive_time > SETTLED_AFTER_MS else None

    def done(self, end: int) -> None:
        """Removes the oldest checkpoint: its unacknowledged messages are stored again; the last one ends at
        log offset `end`."""
        checkpoint = self._pending.popleft()
        key = checkpoint.key
        if self._by_key.get(key) is checkpoint:
            del self._by_key[key]
        self._unsafe.append((checkpoint.revive_offset, end))

    def advance(self, safe_end: int) -> bool:
        """Advances the offset past what is safe. Returns whether it advanced. The log is safe up to
        `safe_end`."""
        before = self.offset
        while self._unsafe and self._unsafe[0][1] <= safe_end:
            self.offset = max(self.offset, self._unsafe.popleft()[0])
        return self.offset != before

    @property
    def unsafe(self) -> int:
        """The number of settled checkpoints that the offset has not passed."""
        return len(self._unsafe)


def re_put(checkpoint: PopCheckPoint, offset: int, now_ms: int, *, skip_at_max: bool) -> PopCheckPoint | None:
    """The checkpoint that tries again to revive one message, later; None if it was tried often enough
    (skipWhenCKRePutReachMaxTimes)."""
    times = checkpoint.times_re_put
    if times >= len(REWRITE_INTERVALS_S) and skip_at_max:
        return None
    invisible_time = checkpoint.invisible_time
    if checkpoint.revive_time <= now_ms:
        interval_s = REWRITE_INTERVALS_S[min(times, len(REWRITE_INTERVALS_S) - 1)]
        invisible_time += interval_s * 1000
    return structs.replace(
        checkpoint,
        bit_map=0,
        count=1,
        start_offset=offset,
        invisible_time=invisible_time,
        diffs=[0],
        revive_offset=0,
        re_put_times=str(times + 1),
    )
