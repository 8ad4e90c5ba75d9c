"""One round of checks of one half queue (RocketMQ's TransactionalMessageServiceImpl.check).

A round reads the half messages in order. A half message is done if an op message names it. One that is old
enough and has no end is checked: a copy is stored at the end of the half queue, then a producer of its group
is asked for the state of the transaction. So the round always moves forward, and the copy is met again in
later rounds. A half message that was checked too often, or is too old, moves to the discard topic. The round
ends at the first half message that is too young.

Before a check the round has read all op messages that exist. Differences from RocketMQ:

- A half message whose end this broker has just served is done, although no op message names it yet.
  RocketMQ asks its producer again; the message is then delivered twice.
- An op message names a half message whose copy was stored, too. RocketMQ relies on the offset of the half
  queue alone. After a kill or a failover that offset may be old, and both copies are then checked.
- An end that names an earlier copy of a half message with an immunity time counts for its later copies.
- A half message that cannot be moved to the discard topic now stays; RocketMQ forgets it. One that can never
  be stored there, or that the round cannot handle, is set aside, so that the round continues behind it.
- An op message counts only for half messages that exist.

On an acting master every half message without an end leaves for another group at once, whatever its age, and
that group checks it. RocketMQ sends away ended ones, too, if more than 32 op messages are unread, and skips
one that could not leave ten times.
"""
# pure: the caller reads, stores and tells the time

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from epochmq_broker.services.transactions import half_messages
from epochmq_broker.services.transactions.op_buffer import RecentOffsets
from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_protocol import message as records
from epochmq_protocol import message_const as const
from epochmq_protocol.message import MessageExt
from epochmq_store.statuses import PutStatus

log = logging.getLogger(__name__)

ROUND_MAX_MS = 60_000
OPS_PER_READ = 32
PAUSE_WITHOUT_OPS_MS = 1000
PAUSE_AFTER_FAILURE_MS = 1000
PAUSE_WHILE_FULL_MS = 100
"""How long a round waits while too many half messages are on their way to other groups."""
ILLEGAL_OFFSETS_MAX = 1
"""How often a round continues at another offset because the queue does not have the next one."""
SPAN_MAX = 1 << 24
"""Half messages that a round looks ahead for ends. A round needs a byte for each."""
TURN = 1024
"""Half messages that are passed before other work gets a turn."""

HOUR_MS = 3_600_000
NEVER_STORED = frozenset(
    {
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
        PutStatus.WHEEL_TIMER_NOT_ENABLE,
    }
)


class ReadStatus(enum.Enum):
    """The results of reading the half queue or the op queue (PullStatus)."""

    FOUND = "found"
    NO_NEW_MESSAGE = "no new message"
    ILLEGAL_OFFSET = "illegal offset"


class QueueRead(Struct, frozen=True):
    """What a read found, and the offset at which to read on. Damaged messages are missing."""

    status: ReadStatus
    next_offset: int
    messages: Sequence[MessageExt] = ()


class CheckSettings(Struct, frozen=True):
    """The settings of a round: transactionTimeOut, transactionCheckMax and fileReservedTime."""

    timeout_ms: int
    checks_max: int
    reserved_hours: int


class HalfQueue(Protocol):
    """What a round needs of the broker, for one half queue and its op queue."""

    @property
    def is_remote(self) -> bool:
        """Whether copies of half messages go to another group, because this broker is not the master."""
        ...

    def now_ms(self) -> int:
        """The time in epoch ms."""
        ...

    @property
    def half_end(self) -> int:
        """The offset behind the last half message."""
        ...

    async def read_half(self, offset: int) -> QueueRead:
        """Reads one half message."""
        ...

    async def read_ops(self, offset: int, count: int) -> QueueRead:
        """Reads up to `count` op messages."""
        ...

    def put(self, message: InnerMessage) -> PutResult:
        """Stores a copy of a half message."""
        ...

    def discard(self, message: InnerMessage, real_topic: str) -> PutResult:
        """Stores a half message in the discard topic."""
        ...

    def replaced(self, half: MessageExt) -> None:
        """Lets an op message name a half message whose copy was stored."""
        ...

    def set_aside(self, record: MessageExt, reason: object) -> bool:
        """Sets a half message or an op message aside. Returns False, and does nothing, if the reason is an
        error for which the record is not to blame."""
        ...

    def ask_producer(self, half: MessageExt, properties: dict[str, str], stored: PutResult) -> None:
        """Asks a producer for the state of the transaction whose half message was stored again there."""
        ...

    async def pause(self, ms: int) -> None:
        """Waits."""
        ...

    async def take_turn(self) -> None:
        """Lets other work run if this round has run for long."""
        ...


class EndedOffsets:
    """The ends of transactions of one half queue, as far as this broker knows them beyond the op messages
    that it has yet to read."""

    def __init__(self) -> None:
        self.served = RecentOffsets(1 << 17)
        """Half messages that this broker ended; their op messages may not be readable yet."""
        self.late = RecentOffsets(1 << 16)
        """Ended half messages that had been checked before; copies of them may follow."""


class _Ends:
    """The ends that op messages name, of half messages from `first` on."""

    def __init__(self, first: int, op_offset: int) -> None:
        self.next_op = op_offset
        self.last_born_ms: int | None = None
        """Birth of the last op message of the latest read; None if it found none."""
        self._first = first
        self._ended = bytearray()
        self._ops: deque[tuple[int, int]] = deque()  # (op offset, highest half offset that it names)

    def skip(self, offset: int, count: int) -> int:
        """The number of half messages from `offset` on that are ended, without a gap, at most `count`."""
        at = offset - self._first
        ended = self._ended[at : at + count]
        gap = ended.find(0)
        return len(ended) if gap < 0 else gap

    def add(self, op: MessageExt, half_end: int, late: RecentOffsets) -> bool:
        """Adds the ends of one op message. Returns False if they lie too far ahead; then nothing changes.
        Half messages from `half_end` on do not exist."""
        offsets = [offset for offset in half_messages.ended_offsets(op) if offset < half_end]
        if offsets and max(offsets) - self._first >= SPAN_MAX:
            return False
        highest = -1
        for offset in offsets:
            at = offset - self._first
            if at < 0:
                if offset >= 0:
                    late.add(offset)
                continue
            if at >= len(self._ended):
                self._ended.extend(bytes(at + 1 - len(self._ended)))
            self._ended[at] = 1
            highest = max(highest, offset)
        self._ops.append((op.queue_offset, highest))
        self.next_op = op.queue_offset + 1
        self.last_born_ms = op.born_timestamp
        return True

    def unneeded_ops_end(self, half_offset: int) -> int:
        """The offset of the first op message that names a half message at or after `half_offset`."""
        while self._ops and self._ops[0][1] < half_offset:
            self._ops.popleft()
        return self._ops[0][0] if self._ops else self.next_op


class CheckRound:
    """One round. After `run`, and also if it was cancelled, `half_offset` and `op_offset` are the offsets at
    which the next round starts."""

    def __init__(
        self,
        *,
        queue: HalfQueue,
        half_offset: int,
        op_offset: int,
        settings: CheckSettings,
        ended: EndedOffsets,
    ) -> None:
        self.half_offset = half_offset
        self.checked = 0
        """Half messages whose producer was asked."""
        self.discarded = 0
        self._queue = queue
        self._settings = settings
        self._ended = ended
        self._first_op = op_offset
        self._ends = _Ends(half_offset, op_offset)
        self._started_ms = 0
        self._illegal_offsets = 0

    @property
    def op_offset(self) -> int:
        """The first op message that is still needed."""
        return self._ends.unneeded_ops_end(self.half_offset)

    async def run(self) -> None:
        """Checks the half queue up to its first half message that is too young."""
        queue = self._queue
        self._started_ms = queue.now_ms()
        await self._read_ops()
        while queue.now_ms() - self._started_ms <= ROUND_MAX_MS:
            passed = self._ends.skip(self.half_offset, TURN)
            if passed:
                self.half_offset += passed
                await queue.take_turn()
                continue
            read = await queue.read_half(self.half_offset)
            if not read.messages:
                if not await self._continue_after(read):
                    break
                continue
            if not await self._check_or_set_aside(read.messages[0]):
                break
            await queue.take_turn()

    async def _continue_after(self, read: QueueRead) -> bool:
        """Continues at another offset if the queue does not have the next half message. Returns False at the
        end of the queue."""
        if read.status is ReadStatus.NO_NEW_MESSAGE:
            return False
        log.warning(
            "half queue: message %d cannot be read, continue at %d", self.half_offset, read.next_offset
        )
        self.half_offset = read.next_offset
        if read.status is ReadStatus.ILLEGAL_OFFSET:
            self._illegal_offsets += 1
            self._ends = _Ends(self.half_offset, self._first_op)
            await self._read_ops()
        return self._illegal_offsets <= ILLEGAL_OFFSETS_MAX

    async def _check_or_set_aside(self, half: MessageExt) -> bool:
        """See `_check`. A half message that cannot be handled must not hold up those behind it."""
        try:
            return await self._check(half)
        except Exception as error:
            if not self._set_aside(half, error):
                raise
            return True

    def _set_aside(self, half: MessageExt, reason: object) -> bool:
        """Sets a half message aside and passes it. Returns whether that was done."""
        done = self._queue.set_aside(half, reason)
        if done:
            self.half_offset = half.queue_offset + 1
        return done

    async def _check(self, half: MessageExt) -> bool:
        """Handles one half message without an op message. Returns False if the round ends before it."""
        settings, now = self._settings, self._queue.now_ms()
        properties = records.parse_properties(half.properties)
        if self._has_ended(half.queue_offset, properties):
            self.half_offset = half.queue_offset + 1
            return True
        if self._queue.is_remote:
            if self._ends.last_born_ms is not None:  # a later op message may name it
                await self._read_ops()
                return True
            return await self._escape(half, properties)
        if self._is_to_be_discarded(half, properties, now):
            return await self._discard(half)
        if half.store_timestamp >= self._started_ms:
            return False
        times = half_messages.check_times(properties)
        properties[const.PROPERTY_TRANSACTION_CHECK_TIMES] = str(1 if times is None else times + 1)
        age = now - half.born_timestamp
        immunity = half_messages.immunity_ms(properties, settings.timeout_ms)
        if immunity is None:
            immunity = settings.timeout_ms
            if 0 <= age < immunity:
                return False
        elif age < immunity and self._renew_immune(half, properties):
            self.half_offset = half.queue_offset + 1
            return True
        if self._must_ask(age, immunity):
            return await self._ask(half, properties)
        if not await self._read_ops():
            await self._queue.pause(PAUSE_WITHOUT_OPS_MS)
        return True

    def _has_ended(self, offset: int, properties: dict[str, str]) -> bool:
        """Whether the transaction has ended, although no op message that was read names this copy."""
        if offset in self._ended.served:
            return True
        first = half_messages.prepared_queue_offset(properties)
        if first is None or first < 0:
            return False
        return first in self._ended.served or first in self._ended.late

    def _is_to_be_discarded(self, half: MessageExt, properties: dict[str, str], now_ms: int) -> bool:
        times = half_messages.check_times(properties)
        if times is not None and times >= self._settings.checks_max:
            return True
        return now_ms - half.born_timestamp > self._settings.reserved_hours * HOUR_MS

    def _must_ask(self, age_ms: int, immunity_ms: int) -> bool:
        last_op_ms = self._ends.last_born_ms
        if age_ms <= -1:  # born in the future: the clocks differ
            return True
        if last_op_ms is None:
            return age_ms > immunity_ms
        return last_op_ms - self._started_ms > self._settings.timeout_ms

    async def _discard(self, half: MessageExt) -> bool:
        """Moves a half message to the discard topic. It stays, and the round ends, if that fails."""
        properties = records.parse_properties(half.properties)
        real_topic = properties.get(const.PROPERTY_REAL_TOPIC, "")
        stored = self._queue.discard(half_messages.discarded_message(half, properties), real_topic)
        if stored.status in NEVER_STORED:
            return self._set_aside(half, stored.status.value)
        if stored.status is not PutStatus.PUT_OK:
            log.error(
                "half message %d could not be moved to %s: %s. The next round tries again",
                half.queue_offset,
                half_messages.DISCARD_TOPIC,
                stored.status.value,
            )
            return False
        log.error(
            "half message %d (%s) of topic %s was checked too often or is too old: moved to %s",
            half.queue_offset,
            properties.get(const.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
            real_topic,
            half_messages.DISCARD_TOPIC,
        )
        self.discarded += 1
        self.half_offset = half.queue_offset + 1
        return True

    def _renew_immune(self, half: MessageExt, properties: dict[str, str]) -> bool:
        """Stores a copy of a half message that must not be checked yet. Returns whether that succeeded."""
        if half_messages.prepared_queue_offset(properties) == -1:
            return False
        stored = self._queue.put(half_messages.renewed_immune_message(half, properties))
        return stored.status is PutStatus.PUT_OK

    async def _escape(self, half: MessageExt, properties: dict[str, str]) -> bool:
        """Sends a half message to another group. Retries later if too many are on their way."""
        stored = self._queue.put(half_messages.renewed_half_message(half, properties))
        if stored.status in NEVER_STORED:
            return self._set_aside(half, stored.status.value)
        if stored.status is PutStatus.PUT_OK:
            self.half_offset = half.queue_offset + 1
        else:
            await self._queue.pause(PAUSE_WHILE_FULL_MS)
        return True

    async def _ask(self, half: MessageExt, properties: dict[str, str]) -> bool:
        """Stores a copy of the half message and asks a producer. Retries later if the copy cannot be
        stored."""
        stored = self._queue.put(half_messages.renewed_half_message(half, properties))
        if stored.status in NEVER_STORED:  # the number of checks makes its properties too long
            return await self._discard(half)
        if stored.status is not PutStatus.PUT_OK:
            log.warning(
                "half message %d could not be stored again: %s", half.queue_offset, stored.status.value
            )
            await self._queue.pause(PAUSE_AFTER_FAILURE_MS)
            return True
        if const.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS not in properties:
            # By the offset of its first copy, a producer ends all copies of a half message with an immunity.
            self._queue.replaced(half)
        self._queue.ask_producer(half, properties, stored)
        self.checked += 1
        self.half_offset = half.queue_offset + 1
        return True

    async def _read_ops(self) -> bool:
        """Reads more op messages. Returns whether it found any."""
        ends = self._ends
        ends.last_born_ms = None
        read = await self._queue.read_ops(ends.next_op, OPS_PER_READ)
        if read.status is not ReadStatus.FOUND:
            if read.status is ReadStatus.ILLEGAL_OFFSET:
                log.warning(
                    "op queue: message %d cannot be read, continue at %d", ends.next_op, read.next_offset
                )
                ends.next_op = read.next_offset
            return False
        for op in read.messages:
            await self._queue.take_turn()
            try:
                if not ends.add(op, self._queue.half_end, self._ended.late):
                    return ends.last_born_ms is not None
            except Exception as error:
                if not self._queue.set_aside(op, error):
                    raise
        ends.next_op = read.next_offset
        return True
