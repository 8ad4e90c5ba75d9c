"""The fast path of END_TRANSACTION stores and responds exactly as the ordinary path does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.errors import FastPathMiss
from epochmq_protocol.frame import FLAG_ONEWAY, FLAG_RESPONSE, Command, encode, split
from epochmq_protocol.message import MessageExt
from epochmq_protocol.message_const import INNER_BATCH_FLAG
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.statuses import PutStatus
from tests.unit.broker.kit import BORN_MS, UNIQ_KEY, Bench, Peer, running
from tests.unit.broker.services.transactions.support import (
    COMMIT,
    HALF,
    OP,
    QUIET,
    ROLLBACK,
    UNKNOWN,
    end_command,
    half_command,
    half_properties,
    ops,
    send_half,
)

ROUNDS = 400
EXTRA = {
    "KEYS": ["k", "a b", "ü"],
    "TAGS": ["a", "TagB", "😀"],
    "WAIT": ["true", "false", "True"],
    "own": ["x", 'quote"', "%s"],
    "PGROUP": ["producers", "others"],
    "DELAY": ["0", "1", "3", "x"],
    "TIMER_DELAY_SEC": ["5"],
    "TIMER_OUT_MS": ["1"],
    "CHECK_IMMUNITY_TIME_IN_SECONDS": ["0", "10", "x"],
    "REAL_TOPIC": ["T", "Other", ""],
    "TRANSACTION_CHECK_TIMES": ["3"],
    "__STARTDELIVERTIME": ["1"],
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, QUIET | {"timerWheelEnable": "false"}) as made:
        yield made


def some_half(chance: random.Random) -> Command:
    """A half message with any mixture of fields and properties."""
    names = chance.sample(sorted(EXTRA), chance.choice([0, 0, 1, 2, 3]))
    properties = half_properties(**{name: chance.choice(EXTRA[name]) for name in names})
    if chance.random() < 0.2:
        del properties["TAGS"]
    return half_command(
        chance.choice(["T", "T", "Other"]),
        bytes(chance.choices(range(256), k=chance.choice([1, 5, 100, 5000]))),
        properties,
        queue_id=chance.choice([0, 1, 7]),
        flag=chance.choice([0, 1, -1]),
        sys_flag=chance.choice([4, 4, 5, 0x105, 0x305]),
        born_timestamp=BORN_MS,
    )


def some_end(chance: random.Random, half: MessageExt) -> Command:
    """An end of a half message: mostly a plain commit."""
    fields: dict[str, Any] = {}
    if chance.random() < 0.3:
        name, value = chance.choice(
            [
                ("producer_group", "others"),
                ("tran_state_table_offset", half.queue_offset + 1),
                ("commit_log_offset", half.physical_offset + 1),
                ("commit_log_offset", -1),
                ("transaction_id", UNIQ_KEY),
                ("transaction_id", "another"),
                ("from_transaction_check", True),
                ("bname", "broker-b"),
                ("bname", "broker-a"),
                ("topic", "T"),
            ]
        )
        fields[name] = value
    command = end_command(half, chance.choice([COMMIT] * 8 + [ROLLBACK, UNKNOWN, 4]), **fields)
    command.flag = chance.choice([0, FLAG_ONEWAY])
    return command


def state(bench: Bench) -> tuple[object, ...]:
    """What an end changes, apart from records."""
    broker = bench.broker
    counts = {topic: count.count for topic, count in broker.transactions.metrics.counts.items()}
    traffic = [
        (topic, queue, *counter.totals())
        for topic in ("T", "Other")
        for queue in (0, 1, 7)
        for counter in [broker.tables.stats.put_traffic(topic, queue)]
    ]
    service = broker.transactions
    return counts, traffic, service.committed, service.rolled_back, service.ops.waiting


def changes(before: tuple[object, ...], after: tuple[object, ...]) -> list[object]:
    """What differs between two states, as differences of numbers."""
    (counts, traffic, *numbers), (new_counts, new_traffic, *new_numbers) = before, after
    assert isinstance(counts, dict)
    assert isinstance(new_counts, dict)
    assert isinstance(traffic, list)
    assert isinstance(new_traffic, list)
    found: list[object] = [{topic: count - counts.get(topic, 0) for topic, count in new_counts.items()}]
    found += [
        tuple(one - other for one, other in zip(new[2:], old[2:], strict=True))
        for new, old in zip(new_traffic, traffic, strict=True)
    ]
    return [*found, *(new - old for new, old in zip(new_numbers, numbers, strict=True))]  # type: ignore[operator]


def stored_since(bench: Bench, start: int, half: MessageExt) -> list[dict[str, Any]]:
    """The records from an offset of the log on, with their tags codes, without what differs between any two
    messages."""
    found: list[dict[str, Any]] = []
    store = bench.broker.store
    while start < store.max_phy_offset:
        data = store.read(start)
        assert data is not None
        record = records.decode_record(data)
        assert record.physical_offset == start
        queue = store.lookup.existing_queue(record.topic, record.queue_id)
        assert queue is not None
        unit = queue.unit(record.queue_offset)
        assert unit is not None
        assert unit[:2] == (start, record.store_size)
        fields = msgspec.structs.asdict(record)
        for name in ("queue_offset", "physical_offset", "store_timestamp"):
            del fields[name]
        assert fields.pop("prepared_transaction_offset") in (0, half.physical_offset)
        # in the schedule topic the tags code is a time
        found.append(fields | {"tags_code": unit[2] if record.topic != "SCHEDULE_TOPIC_XXXX" else 0})
        start += record.store_size
    return found


def end(bench: Bench, peer: Peer, chance: random.Random) -> object:
    """Stores a half message and ends it. Returns all effects of the end."""
    at = bench.count(HALF)
    sent = bench.peer(ordinary=True).call(some_half(chance))
    if bench.count(HALF) == at:
        return sent.code
    half = bench.record(HALF, 0, at)
    command = some_end(chance, half)
    store = bench.broker.store
    store.appender.build_index()
    before, start, backlog = state(bench), store.max_phy_offset, store.index.backlog
    assert not backlog
    opaque = peer.send(command)
    peer.collect()
    answer = peer.answers.pop(opaque, None)
    entered = [entry[1:3] for entry in backlog]
    return (
        None if answer is None else (answer.code, answer.remark, answer.ext, answer.flag, answer.body),
        stored_since(bench, start, half),
        changes(before, state(bench)),
        entered,
    )


async def test_both_paths_store_the_same_records_and_respond_the_same(bench: Bench) -> None:
    taken = 0
    fast = bench.fast_handler(RequestCode.END_TRANSACTION)

    def counted(*arguments: Any) -> bytes | None:
        nonlocal taken
        found = fast.serve(*arguments)
        taken += 1
        return found

    assert b'{"code":37,"' in bench.fast.fast
    bench.fast.fast[b'{"code":37,"'] = counted
    for topic in ("T", "Other"):
        send_half(bench, topic=topic)
    quick, ordinary = bench.peer(), bench.peer(ordinary=True)
    for seed in range(ROUNDS):
        assert end(bench, quick, random.Random(seed)) == end(bench, ordinary, random.Random(seed)), seed
    assert ROUNDS / 4 < taken < ROUNDS


async def test_the_response_has_the_bytes_of_the_ordinary_one(bench: Bench) -> None:
    frames = []
    for ordinary in (False, True):
        peer = bench.peer(ordinary=ordinary)
        peer.send(end_command(send_half(bench)))
        frames.append(b"".join(peer.wire.written))
    assert frames[0] == frames[1]


async def test_ends_of_both_paths_are_named_by_op_messages(bench: Bench) -> None:
    for number in range(6):
        bench.peer(ordinary=number % 2 == 1).call(end_command(send_half(bench)))
    bench.broker.transactions.ops.flush()
    assert ops(bench) == [b"0,1,2,3,4,5,"]
    assert bench.count(OP) == 1


def fast_result(bench: Bench, command: Command) -> bytes | None:
    """What the fast path returns for a command. FastPathMiss."""
    _, header, body = split(encode(command)[4:])
    connection = bench.peer().connection
    return bench.fast_handler(RequestCode.END_TRANSACTION).serve(connection, header, body)


async def test_the_ordinary_path_serves_what_the_fast_path_cannot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = send_half(bench)
    answer = end_command(half)
    answer.flag = FLAG_RESPONSE
    missing = end_command(half)
    assert missing.ext is not None
    del missing.ext["msgId"]
    for command in (answer, missing, end_command(half, ROLLBACK), end_command(half, UNKNOWN)):
        with pytest.raises(FastPathMiss):
            fast_result(bench, command)

    with monkeypatch.context() as patch:
        patch.setattr(bench.broker.writer, "may_reject", True)
        patch.setattr(bench.broker.writer, "rejection", lambda _wait: PutStatus.SERVICE_NOT_AVAILABLE)
        with pytest.raises(FastPathMiss):
            fast_result(bench, end_command(half))
    file = bench.broker.store.log.file
    assert file is not None

    class Cold:
        def require(self, *_: object) -> None:
            raise NotResidentError(file, 0, 1)

    with monkeypatch.context() as patch:
        patch.setattr(bench.broker.store.reader, "residency", Cold())
        with pytest.raises(FastPathMiss):
            fast_result(bench, end_command(half))
    bench.broker.live.set_role(1, "SLAVE")
    with pytest.raises(FastPathMiss):
        fast_result(bench, end_command(half))
    bench.broker.live.set_role(0, "SYNC_MASTER")
    assert bench.count("T", 1) == 0
    assert fast_result(bench, end_command(half)) is not None
    assert bench.count("T", 1) == 1


async def test_a_damaged_half_message_is_not_committed(bench: Bench) -> None:
    half = send_half(bench)
    file = bench.broker.store.log.file
    assert file is not None
    file.map[half.physical_offset + 88] ^= 1  # the first byte of the body
    for ordinary in (False, True):
        answer = bench.peer(ordinary=ordinary).call(end_command(half))
        assert answer.remark == "Find prepared transaction message failed"
    assert bench.count("T", 1) == 0


async def test_a_half_message_with_an_inner_batch_takes_the_ordinary_path(bench: Bench) -> None:
    half = send_half(bench)
    file = bench.broker.store.log.file
    assert file is not None
    file.map[half.physical_offset + 39] |= INNER_BATCH_FLAG  # the last byte of sysFlag
    with pytest.raises(FastPathMiss):
        fast_result(bench, end_command(half))


async def test_a_topic_that_was_deleted_gets_no_message_of_the_old_queue(bench: Bench) -> None:
    first, second = send_half(bench), send_half(bench)
    peer = bench.peer()
    assert peer.call(end_command(first)).code == 0
    assert bench.broker.topics.delete("T")
    with pytest.raises(FastPathMiss):
        fast_result(bench, end_command(second))


async def test_a_commit_that_waits_is_left_to_the_ordinary_path(tmp_path: Path) -> None:
    async with running(tmp_path, QUIET | {"flushDiskType": "SYNC_FLUSH"}) as bench:
        peer = bench.peer()
        assert (await peer.answer(peer.send(half_command()))).code == 0
        half = bench.record(HALF, 0, 0)
        with pytest.raises(FastPathMiss):
            fast_result(bench, end_command(half))
        command = end_command(half)
        command.flag = FLAG_ONEWAY
        assert fast_result(bench, command) is None
        assert bench.count("T", 1) == 1
