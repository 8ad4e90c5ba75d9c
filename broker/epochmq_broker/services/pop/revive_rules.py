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

from epochmq_broker.services.pop.checkpoints import ACK_INTERVAL_MS, AckMsg, MergeKey, PopCheckPoint
from epochmq_broker.services.pop.extra_info import topic_without_retry
from epochmq_broker.services.safe_progress import SafeProgress
from epochmq_broker.writing.inner_message import InnerMessage, next_attempt
from epochmq_protocol import message as records
from epochmq_protocol.message import MessageExt
from epochmq_protocol.message_const import PROPERTY_FIRST_POP_TIME
from epochmq_protocol.topics import is_retry_topic, pop_retry_topic

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
        self._progress = SafeProgress(offset)
        self._revived_end = 0

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
        if not self._pending and not self._progress.unsafe:
            self.offset = next_offset - 1
            self._progress.reset(self.offset)

    # settled checkpoints

    def settled(self) -> PopCheckPoint | None:
        """The oldest checkpoint, if it is settled. It stays pending until `done`."""
        if not self._pending:
            return None
        first = self._pending[0]
        return first if self._end_ms - first.revive_time > SETTLED_AFTER_MS else None

    def revived(self, offset: int, end: int) -> None:
        """Notes that a message of the oldest checkpoint is stored again and ends at `end`, 0 if it does not
        exist any more. A failure at a later message does not revive it once more."""
        self._pending[0].acknowledge(offset)
        self._revived_end = max(self._revived_end, end)

    def done(self) -> None:
        """Removes the oldest checkpoint. Its messages are acknowledged, or stored again, or not wanted."""
        checkpoint = self._pending.popleft()
        end, self._revived_end = self._revived_end, 0
        key = checkpoint.key
        if self._by_key.get(key) is checkpoint:
            del self._by_key[key]
        self._progress.advance(max(self._progress.reached, checkpoint.revive_offset), end)

    def advance(self, safe_end: int) -> bool:
        """Advances the offset past what is safe. Returns whether it advanced. Everything stored up to
        `safe_end` is safe."""
        if not self._progress.settle(safe_end):
            return False
        before, self.offset = self.offset, self._progress.safe
        return self.offset != before

    @property
    def has_room(self) -> bool:
        """Whether a further checkpoint may be revived before the offset has passed earlier ones."""
        return not self._progress.is_full


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


def retry_message(
    checkpoint: PopCheckPoint, original: MessageExt, host: bytes, *, is_v2: bool
) -> InnerMessage:
    """The message that hands a popped message out again (reviveRetry). `host` is this broker's encoded
    address; `is_v2` is enableRetryTopicV2."""
    assert checkpoint.topic is not None
    assert checkpoint.group is not None
    topic = checkpoint.topic
    if not is_retry_topic(topic):
        topic = pop_retry_topic(topic, checkpoint.group, is_v2=is_v2)
    properties = records.parse_properties(original.properties)
    if original.reconsume_times == 0 or PROPERTY_FIRST_POP_TIME not in properties:
        properties[PROPERTY_FIRST_POP_TIME] = str(checkpoint.pop_time)
    return InnerMessage(
        topic=topic,
        queue_id=0,
        body=original.body,
        properties=properties,
        flag=original.flag,
        sys_flag=original.sys_flag,
        born_timestamp=original.born_timestamp,
        born_host=host,
        reconsume_times=next_attempt(original.reconsume_times),
        route_topic=topic_without_retry(checkpoint.topic, checkpoint.group),
    )
