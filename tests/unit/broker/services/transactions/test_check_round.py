"""A round of checks asks the producers of old half messages without an end, and never loses one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.services.transactions import check_round
from epochmq_broker.services.transactions.check_round import (
    CheckRound,
    CheckSettings,
    EndedOffsets,
    QueueRead,
    ReadStatus,
)
from epochmq_broker.services.transactions.half_messages import DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC
from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_protocol import message as records
from epochmq_protocol.message import MessageExt
from epochmq_store.statuses import PutStatus

HOST = records.encode_host("127.0.0.1", 10911)
START_MS = 1_000_000_000
TIMEOUT_MS = 6000
HALF = {
    "TRAN_MSG": "true",
    "PGROUP": "producers",
    "UNIQ_KEY": "k",
    "REAL_TOPIC": "T",
    "REAL_QID": "3",
}


class FakeQueue:
    """A half queue and its op queue in memory. Its clock moves with pauses, and by 1 ms with each read."""

    def __init__(self) -> None:
        self.now = START_MS
        self.halves: list[MessageExt | None] = []
        """None: a damaged message."""
        self.ops: list[MessageExt] = []
        self.first_half = 0
        self.asked: list[tuple[int, str]] = []
        """(offset of the copy, its number of checks)."""
        self.discarded: list[tuple[str, dict[str, str]]] = []
        self.replacements: list[int] = []
        self.failures: list[PutStatus] = []
        self.pauses = 0
        self.set_aside_offsets: list[tuple[str, int]] = []
        self.ended = EndedOffsets()
        self.half_offset = self.op_offset = 0
        self.is_remote = False
        self.escaped: list[str] = []
        """The keys of half messages that were put while copies go to another group."""

    def add_half(self, age_ms: int = 60_000, **properties: str) -> int:
        """Stores a half message that was born `age_ms` ago."""
        offset = len(self.halves)
        self.halves.append(
            MessageExt(
                HALF_TOPIC,
                b"body",
                records.format_properties(HALF | properties),
                queue_offset=offset,
                physical_offset=offset * 1000,
                born_timestamp=self.now - age_ms,
                store_timestamp=self.now - max(age_ms, 0),
                born_host=HOST,
                store_host=HOST,
            )
        )
        return offset

    def end(self, *offsets: int, tag: str = "d", body: bytes | None = None, age_ms: int = 0) -> None:
        """Stores an op message."""
        text = "".join(f"{offset}," for offset in offsets).encode() if body is None else body
        self.ops.append(
            MessageExt(
                OP_TOPIC,
                text,
                records.format_properties({"TAGS": tag}),
                queue_offset=len(self.ops),
                born_timestamp=self.now - age_ms,
            )
        )

    async def check(self, settings: CheckSettings | None = None) -> CheckRound:
        """Runs a round from where the last one ended."""
        made = CheckRound(
            queue=self,
            half_offset=self.half_offset,
            op_offset=self.op_offset,
            settings=settings or CheckSettings(TIMEOUT_MS, 15, 72),
            ended=self.ended,
        )
        await made.run()
        self.half_offset, self.op_offset = made.half_offset, made.op_offset
        return made

    # check_round.HalfQueue

    def now_ms(self) -> int:
        return self.now

    @property
    def half_end(self) -> int:
        return len(self.halves)

    def set_aside(self, record: MessageExt, reason: object) -> bool:
        if isinstance(reason, OSError):
            return False
        self.set_aside_offsets.append((record.topic, record.queue_offset))
        return True

    async def read_half(self, offset: int) -> QueueRead:
        self.now += 1
        if offset < self.first_half:
            return QueueRead(ReadStatus.ILLEGAL_OFFSET, self.first_half)
        if offset > len(self.halves):
            return QueueRead(ReadStatus.ILLEGAL_OFFSET, len(self.halves))
        if offset >= len(self.halves):
            return QueueRead(ReadStatus.NO_NEW_MESSAGE, len(self.halves))
        half = self.halves[offset]
        return QueueRead(ReadStatus.FOUND, offset + 1, () if half is None else (half,))

    async def read_ops(self, offset: int, count: int) -> QueueRead:
        self.now += 1
        found = self.ops[offset : offset + count]
        if not found:
            return QueueRead(ReadStatus.NO_NEW_MESSAGE, offset)
        return QueueRead(ReadStatus.FOUND, offset + len(found), found)

    def put(self, message: InnerMessage) -> PutResult:
        if self.failures:
            return PutResult(self.failures.pop(0))
        assert message.topic == HALF_TOPIC
        if self.is_remote:
            self.escaped.append(message.properties["UNIQ_KEY"])
            return PutResult(PutStatus.PUT_OK, is_remote=True)
        offset = len(self.halves)
        rendered = message.rendered or records.format_properties(message.properties)
        self.halves.append(
            MessageExt(
                message.topic,
                message.body,
                rendered,
                queue_offset=offset,
                physical_offset=offset * 1000,
                born_timestamp=message.born_timestamp,
                store_timestamp=self.now,
                born_host=HOST,
                store_host=HOST,
            )
        )
        return PutResult(PutStatus.PUT_OK, offset * 1000, offset)

    def discard(self, message: InnerMessage, real_topic: str) -> PutResult:
        if self.failures:
            return PutResult(self.failures.pop(0))
        assert message.topic == DISCARD_TOPIC
        assert message.rendered is not None
        self.discarded.append((real_topic, records.parse_properties(message.rendered)))
        return PutResult(PutStatus.PUT_OK)

    def replaced(self, half: MessageExt) -> None:
        self.replacements.append(half.queue_offset)

    def ask_producer(self, half: MessageExt, properties: dict[str, str], stored: PutResult) -> None:
        self.asked.append((stored.queue_offset, properties["TRANSACTION_CHECK_TIMES"]))

    async def pause(self, ms: int) -> None:
        self.now += ms
        self.pauses += 1

    async def take_turn(self) -> None:
        pass


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


async def test_an_old_half_message_without_an_end_is_stored_again_and_its_producer_asked(
    queue: FakeQueue,
) -> None:
    queue.add_half()
    await queue.check()
    assert queue.asked == [(1, "1")]
    assert queue.replacements == [0]
    assert (queue.half_offset, queue.op_offset) == (1, 0)
    stored = queue.halves[1]
    assert stored is not None
    assert records.parse_properties(stored.properties) == HALF | {"TRANSACTION_CHECK_TIMES": "1"}
    await queue.check()
    assert queue.asked == [(1, "1"), (2, "2")]


async def test_ended_half_messages_are_passed_without_a_check(queue: FakeQueue) -> None:
    for _ in range(3):
        queue.add_half()
    queue.end(0, 2)
    queue.end(1)
    await queue.check()
    assert queue.asked == []
    assert (queue.half_offset, queue.op_offset) == (3, 2)


async def test_an_op_message_stays_until_all_its_half_messages_are_passed(queue: FakeQueue) -> None:
    queue.add_half()
    queue.add_half(age_ms=100)
    queue.add_half(age_ms=100)
    queue.end(0, 2)
    await queue.check()
    assert (queue.half_offset, queue.op_offset) == (1, 0)
    queue.now += TIMEOUT_MS + 1
    await queue.check()
    assert queue.asked == [(3, "1")]
    assert queue.half_offset == 3
    assert queue.op_offset == 1


async def test_a_round_reads_all_op_messages_before_it_asks(queue: FakeQueue) -> None:
    for _ in range(100):
        queue.add_half()
    for offset in range(99, -1, -1):
        queue.end(offset)
    await queue.check()
    assert queue.asked == []
    assert (queue.half_offset, queue.op_offset) == (100, 100)


async def test_the_round_ends_at_a_young_half_message(queue: FakeQueue) -> None:
    queue.add_half(age_ms=TIMEOUT_MS - 100)
    queue.add_half()
    await queue.check()
    assert queue.asked == []
    assert queue.half_offset == 0


async def test_a_half_message_born_in_the_future_is_checked_at_once(queue: FakeQueue) -> None:
    queue.add_half(age_ms=-60_000)
    queue.now += 10
    await queue.check()
    assert queue.asked == [(1, "1")]


async def test_a_half_message_checked_too_often_is_discarded_with_all_its_properties(
    queue: FakeQueue,
) -> None:
    queue.add_half(TRANSACTION_CHECK_TIMES="15")
    found = await queue.check()
    assert queue.asked == []
    assert queue.discarded == [("T", HALF | {"TRANSACTION_CHECK_TIMES": "15"})]
    assert (queue.half_offset, found.discarded) == (1, 1)


async def test_fourteen_checks_are_not_too_many(queue: FakeQueue) -> None:
    queue.add_half(TRANSACTION_CHECK_TIMES="14")
    await queue.check()
    assert queue.asked == [(1, "15")]


async def test_a_half_message_older_than_the_log_keeps_messages_is_discarded(queue: FakeQueue) -> None:
    queue.add_half(age_ms=72 * 3_600_000 + 1)
    await queue.check()
    assert [topic for topic, _ in queue.discarded] == ["T"]


async def test_a_half_message_that_cannot_be_discarded_stays(queue: FakeQueue) -> None:
    queue.add_half(TRANSACTION_CHECK_TIMES="15")
    queue.failures = [PutStatus.SERVICE_NOT_AVAILABLE]
    await queue.check()
    assert queue.half_offset == 0
    await queue.check()
    assert len(queue.discarded) == 1


async def test_a_copy_that_cannot_be_stored_is_tried_again_in_the_same_round(queue: FakeQueue) -> None:
    queue.add_half()
    queue.failures = [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.OS_PAGE_CACHE_BUSY]
    await queue.check()
    assert queue.asked == [(1, "1")]


async def test_a_half_message_too_large_for_a_check_is_discarded(queue: FakeQueue) -> None:
    queue.add_half()
    queue.failures = [PutStatus.MESSAGE_ILLEGAL]
    await queue.check()
    assert queue.asked == []
    assert queue.discarded == [("T", HALF)]


async def test_a_store_that_accepts_nothing_does_not_end_the_half_message(queue: FakeQueue) -> None:
    queue.add_half()
    queue.failures = [PutStatus.SERVICE_NOT_AVAILABLE] * 1000
    await queue.check()
    assert (queue.half_offset, queue.asked) == (0, [])
    assert queue.now - START_MS <= check_round.ROUND_MAX_MS + 2000


async def test_an_end_that_this_broker_served_counts_before_its_op_message_can_be_read(
    queue: FakeQueue,
) -> None:
    queue.add_half()
    queue.ended.served.add(0)
    await queue.check()
    assert (queue.half_offset, queue.asked) == (1, [])
    queue.end(0)
    queue.add_half()
    await queue.check()
    assert queue.asked == [(2, "1")]
    assert queue.op_offset == 1


class TestImmunity:
    """CHECK_IMMUNITY_TIME_IN_SECONDS."""

    async def test_a_half_message_is_stored_again_without_a_check_until_its_immunity_ends(
        self, queue: FakeQueue
    ) -> None:
        queue.add_half(age_ms=10_000, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        await queue.check()
        assert queue.asked == []
        copy = queue.halves[1]
        assert copy is not None
        properties = records.parse_properties(copy.properties)
        assert properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        assert properties["WAIT"] == "false"  # as RocketMQ stores it
        queue.now += 20_000
        await queue.check()
        copy = queue.halves[2]
        assert copy is not None
        assert records.parse_properties(copy.properties)["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        queue.now += 40_000
        await queue.check()
        assert queue.asked == [(3, "3")]
        assert queue.replacements == []  # offset 0 names all copies

    async def test_an_end_by_the_offset_of_the_first_copy_ends_the_later_copy(self, queue: FakeQueue) -> None:
        queue.add_half(age_ms=10_000, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        await queue.check()
        queue.end(0)
        queue.now += 100_000
        await queue.check()
        assert queue.asked == []
        assert (queue.half_offset, queue.op_offset) == (2, 1)

    async def test_an_immunity_that_is_no_number_is_the_timeout(self, queue: FakeQueue) -> None:
        queue.add_half(age_ms=TIMEOUT_MS - 1000, CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
        await queue.check()
        assert queue.asked == []
        assert len(queue.halves) == 2

    async def test_an_immunity_shorter_than_the_timeout_counts(self, queue: FakeQueue) -> None:
        queue.add_half(age_ms=3000, CHECK_IMMUNITY_TIME_IN_SECONDS="2")
        await queue.check()
        assert queue.asked == [(1, "1")]


class TestOddQueues:
    """Queues that no broker should leave behind."""

    async def test_an_offset_before_the_queue_moves_to_its_first_message(self, queue: FakeQueue) -> None:
        for _ in range(5):
            queue.add_half()
        queue.first_half = 3
        await queue.check()
        assert [offset for offset, _ in queue.asked] == [5, 6]
        assert queue.half_offset == 5

    async def test_an_offset_behind_the_queue_moves_back_to_its_end(self, queue: FakeQueue) -> None:
        """As after a truncation of the log."""
        queue.add_half()
        queue.half_offset = 9
        await queue.check()
        assert (queue.half_offset, queue.asked) == (1, [])
        queue.add_half()
        queue.add_half()
        queue.end(1)
        await queue.check()
        assert queue.asked == [(3, "1")]

    async def test_damaged_half_messages_are_skipped(self, queue: FakeQueue) -> None:
        queue.add_half()
        queue.halves += [None, None, None]
        queue.add_half()
        await queue.check()
        assert len(queue.asked) == 2
        assert queue.half_offset == 5

    async def test_op_messages_of_another_tag_or_without_numbers_are_passed(self, queue: FakeQueue) -> None:
        queue.add_half()
        queue.end(0, tag="x")
        queue.end(body=b"")
        queue.end(body=b"a,,-5,99999999999999999999999,\xff")
        await queue.check()
        assert queue.asked == [(1, "1")]
        assert queue.op_offset == 3

    async def test_old_op_messages_with_one_offset_and_no_comma_count(self, queue: FakeQueue) -> None:
        queue.add_half()
        queue.end(body=b"0")
        await queue.check()
        assert (queue.half_offset, queue.asked) == (1, [])

    async def test_an_end_far_ahead_takes_no_memory_and_is_not_passed(
        self, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(check_round, "SPAN_MAX", 10)
        for _ in range(11):
            queue.add_half()
        queue.end(10)
        await queue.check()
        assert queue.asked == [(11 + at, "1") for at in range(11)]
        assert queue.op_offset == 0


@pytest.mark.long
@given(data=st.data())
async def test_every_half_message_ends_once_or_is_asked(data: st.DataObject) -> None:
    """Whatever is ended between rounds: a half message without an end is asked about or remains to be
    checked, one with an end is not asked about after it."""
    queue = FakeQueue()
    open_copies: dict[int, int] = {}
    number = 0
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(0, 4))):
            open_copies[queue.add_half(age_ms=0, number=str(number))] = number
            number += 1
        ended = data.draw(st.sets(st.sampled_from(sorted(open_copies)))) if open_copies else set()
        for offset in sorted(ended):
            del open_copies[offset]
        if ended:
            queue.end(*ended)
        queue.now += data.draw(st.sampled_from([10, TIMEOUT_MS + 1000]))
        asked = len(queue.asked)
        before = set(open_copies)
        await queue.check()
        for offset, _ in queue.asked[asked:]:
            copy = queue.halves[offset]
            assert copy is not None
            known = int(records.parse_properties(copy.properties)["number"])
            original = next(at for at in before if open_copies.get(at) == known)
            del open_copies[original]
            open_copies[offset] = known
        # Those that are open are still ahead of the next round.
        assert all(offset >= queue.half_offset for offset in open_copies)


async def test_an_acting_master_sends_half_messages_without_an_end_away(queue: FakeQueue) -> None:
    """At once, however young or old they are, or however often they were checked."""
    queue.is_remote = True
    queue.add_half(UNIQ_KEY="ended")
    queue.add_half(age_ms=0, UNIQ_KEY="young")
    queue.add_half(age_ms=10**9, UNIQ_KEY="old")
    queue.add_half(UNIQ_KEY="checked", TRANSACTION_CHECK_TIMES="15")
    queue.add_half(UNIQ_KEY="immune", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    queue.end(0)
    await queue.check()
    assert queue.escaped == ["young", "old", "checked", "immune"]
    assert (queue.asked, queue.discarded, queue.replacements) == ([], [], [])
    assert (queue.half_offset, queue.op_offset, len(queue.halves)) == (5, 1, 5)
    await queue.check()
    assert len(queue.escaped) == 4


async def test_an_acting_master_reads_all_op_messages_before_a_half_message_leaves(queue: FakeQueue) -> None:
    queue.is_remote = True
    for number in range(200):
        queue.add_half(UNIQ_KEY=str(number))
    for number in reversed(range(200)):
        if number != 77:
            queue.end(number)
    await queue.check()
    assert queue.escaped == ["77"]
    assert queue.half_offset == 200


async def test_a_half_message_waits_until_it_can_leave(queue: FakeQueue) -> None:
    queue.is_remote = True
    queue.add_half()
    queue.failures = [PutStatus.PUT_TO_REMOTE_BROKER_FAIL] * 20
    await queue.check()
    assert queue.escaped == ["k"]
    assert queue.now >= START_MS + 20 * check_round.PAUSE_WHILE_FULL_MS
    queue.add_half(UNIQ_KEY="never")
    queue.failures = [PutStatus.SERVICE_NOT_AVAILABLE] * 10_000
    await queue.check()
    assert queue.half_offset == 1


class BrokenError(Exception):
    """A fault that nobody foresaw."""


@pytest.mark.parametrize("remote", [False, True])
async def test_a_half_message_that_cannot_be_handled_does_not_stop_the_round(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    queue.is_remote = remote
    for name in ("first", "poison", "third"):
        queue.add_half(UNIQ_KEY=name)
    put = queue.put

    def fails(message: InnerMessage) -> PutResult:
        if message.properties["UNIQ_KEY"] == "poison":
            raise BrokenError
        return put(message)

    monkeypatch.setattr(queue, "put", fails)
    await queue.check()
    assert queue.set_aside_offsets == [(HALF_TOPIC, 1)]
    assert queue.half_offset == 3
    assert len(queue.escaped if remote else queue.asked) == 2


async def test_a_fault_of_the_disk_ends_the_round_before_the_half_message(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add_half()

    def fails(_message: InnerMessage) -> PutResult:
        raise OSError("the disk failed")

    monkeypatch.setattr(queue, "put", fails)
    with pytest.raises(OSError, match="the disk failed"):
        await queue.check()
    assert (queue.half_offset, queue.set_aside_offsets) == (0, [])


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("status", sorted(check_round.NEVER_STORED, key=str))
async def test_a_half_message_that_can_never_be_stored_is_set_aside(
    queue: FakeQueue, remote: bool, status: PutStatus
) -> None:
    """Neither its copy nor the discarded message can be stored. It must not hold up the next one."""
    queue.is_remote = remote
    queue.add_half(UNIQ_KEY="poison")
    queue.add_half(UNIQ_KEY="second")
    queue.failures = [status] if remote else [status, status]
    await queue.check()
    assert queue.set_aside_offsets == [(HALF_TOPIC, 0)]
    assert queue.half_offset == 2
    assert queue.pauses == 0
    assert len(queue.escaped if remote else queue.asked) == 1


async def test_an_op_message_that_names_half_messages_that_do_not_exist_hides_no_others(
    queue: FakeQueue,
) -> None:
    queue.add_half()
    queue.end(2**62)
    queue.end(0)
    await queue.check()
    assert queue.asked == []
    assert (queue.half_offset, queue.op_offset) == (1, 2)


async def test_an_op_message_that_cannot_be_read_is_set_aside(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add_half()
    queue.end(body=b"poison")
    queue.end(0)
    read = check_round.half_messages.ended_offsets

    def fails(op: MessageExt) -> Sequence[int]:
        if op.body == b"poison":
            raise BrokenError
        return read(op)

    monkeypatch.setattr(check_round.half_messages, "ended_offsets", fails)
    await queue.check()
    assert queue.set_aside_offsets == [(OP_TOPIC, 0)]
    assert (queue.asked, queue.half_offset) == ([], 1)
