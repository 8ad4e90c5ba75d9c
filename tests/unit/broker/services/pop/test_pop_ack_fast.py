"""The fast path of ACK_MESSAGE stores and responds exactly as the ordinary path does."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epochmq_broker.services.pop.checkpoints import AckMsg, decode_ack
from epochmq_broker.tables.topics import topic_config
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import FastPathMiss
from epochmq_protocol.frame import FLAG_ONEWAY, FLAG_RESPONSE, Command, encode, split
from epochmq_protocol.javahash import java_hash
from epochmq_protocol.message import decode_record, parse_properties
from epochmq_protocol.pop_records import ACK_TAG, BATCH_ACK_TAG
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_store.statuses import PutStatus
from tests.unit.broker.kit import Bench, Peer, running, send_command, until
from tests.unit.broker.services.pop.support import FAST_REVIVES, ack_command, extra_info, pop, send

ROUNDS = 400
MESSAGES = 6
FIELDS: dict[str, list[str]] = {
    "topic": ["T", "T", "unknown", "Quote", ""],
    "queueId": ["0", "1", "77", "-1", "x"],
    "offset": ["0", "5", "6", "7", "-1", "99999999999999999999"],
    "consumerGroup": ["g", "other", 'quote"', "ü", "back\\slash"],
    "bname": ["broker-a", "broker-b", "", "__syslo__x"],
    "extraInfo": ["", "1 2 3", "a b c d e f g h"],
}
WORDS: list[list[str]] = [
    ["0", "3", "-1", "x", "9223372036854775807", "9223372036854775808"],
    ["0", "1700000000000", "9223372036854775807", "-5", "١"],
    ["0", "60000", "1000", "-60000", "999999999999"],
    ["0", "7", "8", "999", "-1", "1_0"],
    ["0", "1", "2", "9"],
    ["broker-a", "broker-b", "null", 'quote"', "ü"],
    ["0", "9", "x", "-1"],
    ["0", "9", "", "-1"],
]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        send(made, MESSAGES)
        yield made


def some_ack(chance: random.Random, command: Command) -> Command:
    """An acknowledgement with up to two fields changed."""
    assert command.ext is not None
    ext = dict(command.ext)
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        if chance.random() < 0.5:
            name = chance.choice(sorted(FIELDS))
            ext[name] = chance.choice(FIELDS[name])
        else:
            words, at = ext["extraInfo"].split(" "), chance.randrange(8)
            if len(words) == 8:
                words[at] = chance.choice(WORDS[at])
            ext["extraInfo"] = " ".join(words) + chance.choice(["", "", " "])
    if chance.random() < 0.1:
        del ext[chance.choice(sorted(ext))]
    return Command(command.code, ext=ext, flag=chance.choice([0, 0, FLAG_ONEWAY]))


def counters(bench: Bench) -> tuple[int, ...]:
    """What an acknowledgement counts."""
    stats = bench.broker.tables.stats
    items = [stats.item("BROKER_ACK_NUMS", "TestCluster"), stats.item("GROUP_ACK_NUMS", "T@g")]
    return (*(n for item in items for n in (item.value, item.times)), in_flight(bench))


def in_flight(bench: Bench) -> int:
    """The messages of the queue that are not acknowledged."""
    return bench.broker.pop.in_flight.count("T", "g", 0)


def acknowledge(bench: Bench, peer: Peer, command: Command) -> object:
    """Sends an acknowledgement. Returns all its effects."""
    bench.broker.pop.in_flight.clear("T", "g", 0)
    bench.broker.pop.in_flight.add("T", "g", 0, 100)
    start, before = bench.broker.store.max_phy_offset, counters(bench)
    opaque = peer.send(Command(command.code, ext=dict(command.ext or {}), flag=command.flag))
    peer.collect()
    answer = peer.answers.pop(opaque, None)
    counted = [new - old for new, old in zip(counters(bench), before, strict=True)]
    said = None if answer is None else (answer.code, answer.remark, answer.ext, answer.flag, answer.body)
    return said, stored_since(bench, start), counted


def stored_since(bench: Bench, start: int) -> list[dict[str, Any]]:
    """The records from an offset of the log on, with their tags codes, without what differs between any two
    messages."""
    found: list[dict[str, Any]] = []
    store = bench.broker.store
    while start < store.max_phy_offset:
        data = store.read(start)
        assert data is not None
        record = decode_record(data)
        queue = store.lookup.existing_queue(record.topic, record.queue_id)
        assert queue is not None
        unit = queue.unit(record.queue_offset)
        assert unit is not None
        assert unit[:2] == (start, record.store_size)
        assert abs(record.born_timestamp - time.time() * 1000) < 60_000
        fields = msgspec.structs.asdict(record)
        for name in ("queue_offset", "physical_offset", "store_timestamp", "born_timestamp"):
            del fields[name]
        found.append(fields | {"tags_code": unit[2]})
        start += record.store_size
    return found


async def test_both_paths_store_the_same_records_and_respond_the_same(bench: Bench) -> None:
    messages, header = await pop(bench, invisible_time=3_600_000)
    assert len(messages) == MESSAGES
    fast, taken = bench.fast_handler(RequestCode.ACK_MESSAGE), 0

    def counted(*arguments: Any) -> bytes | None:
        nonlocal taken
        found = fast.serve(*arguments)
        taken += 1
        return found

    assert b'{"code":2000' in bench.fast.fast
    bench.fast.fast[b'{"code":2000'] = counted
    quick, ordinary = bench.peer(), bench.peer(ordinary=True)
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        message = chance.choice(messages)
        info = extra_info(header, message, 0)
        command = some_ack(chance, ack_command(info, message))
        assert acknowledge(bench, quick, command) == acknowledge(bench, ordinary, command), command
    assert ROUNDS / 5 < taken < ROUNDS


async def test_the_response_has_the_bytes_of_the_ordinary_one(bench: Bench) -> None:
    messages, header = await pop(bench, invisible_time=3_600_000)
    frames = []
    for ordinary in (False, True):
        peer = bench.peer(ordinary=ordinary)
        peer.send(ack_command(extra_info(header, messages[0], 0), messages[0]))
        frames.append(b"".join(peer.wire.written))
    assert frames[0] == frames[1]


def fast_result(bench: Bench, command: Command) -> bytes | None:
    """What the fast path returns for a command. FastPathMiss."""
    _, header, body = split(encode(command)[4:])
    connection = bench.peer().connection
    found = bench.fast_handler(RequestCode.ACK_MESSAGE).serve(connection, header, body)
    assert connection.before_responses is not None
    connection.before_responses()
    return found


async def test_the_ordinary_path_serves_what_the_fast_path_cannot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, header = await pop(bench, invisible_time=3_600_000)
    command = ack_command(extra_info(header, messages[0], 0), messages[0])
    others = [
        Command(RequestCode.POP_MESSAGE, ext=command.ext),
        Command(RequestCode.ACK_MESSAGE, ext=command.ext, flag=FLAG_RESPONSE),
        ack_command(extra_info(header, messages[0], 0).replace(" 3600000 ", " 0 "), messages[0]),
    ]
    for other in others:
        with pytest.raises(FastPathMiss):
            fast_result(bench, other)
    with monkeypatch.context() as patch:
        patch.setattr(bench.broker.writer, "may_reject", True)
        patch.setattr(bench.broker.writer, "rejection", lambda _wait: PutStatus.SERVICE_NOT_AVAILABLE)
        with pytest.raises(FastPathMiss):
            fast_result(bench, command)
    with monkeypatch.context() as patch:
        patch.setattr(bench.broker.writer, "timer_hook", None)
        with pytest.raises(FastPathMiss):
            fast_result(bench, command)
    bench.broker.live.set_role(1, "SLAVE")
    with pytest.raises(FastPathMiss):
        fast_result(bench, command)
    bench.broker.live.set_role(0, "SYNC_MASTER")
    at = bench.count(TIMER_TOPIC)
    assert fast_result(bench, command) is not None
    assert bench.count(TIMER_TOPIC) == at + 1


async def test_checkpoints_in_memory_take_their_acknowledgements(tmp_path: Path) -> None:
    async with running(tmp_path, {"enablePopBufferMerge": "true"}) as bench:
        send(bench, 1)
        (message,), header = await pop(bench, invisible_time=60_000)
        with pytest.raises(FastPathMiss):
            fast_result(bench, ack_command(extra_info(header, message, 0), message))
        assert bench.peer().call(ack_command(extra_info(header, message, 0), message)).code == 0
        assert bench.count(TIMER_TOPIC) == 0


async def test_with_sync_flush_the_response_waits_for_the_disk(tmp_path: Path) -> None:
    async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
        peer = bench.peer()
        opaque = peer.send(send_command("T", b"x"))
        assert (await peer.answer(opaque)).code == 0
        (message,), header = await pop(bench, invisible_time=3_600_000)
        opaque = peer.send(ack_command(extra_info(header, message, 0), message))
        end = bench.broker.store.max_phy_offset
        peer.collect()
        assert opaque not in peer.answers or bench.broker.store.flushed_where >= end
        assert (await peer.answer(opaque)).code == 0
        assert bench.broker.store.flushed_where >= end


@pytest.mark.parametrize(
    ("flush", "code"), [("SYNC_FLUSH", ResponseCode.SYSTEM_BUSY), ("ASYNC_FLUSH", ResponseCode.SUCCESS)]
)
async def test_an_acknowledgement_whose_response_cannot_wait_is_rejected_if_it_would_have_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, code: ResponseCode
) -> None:
    async with running(tmp_path, {"flushDiskType": flush}) as bench:
        peer = bench.peer()
        assert (await peer.answer(peer.send(send_command("T", b"x")))).code == 0
        (message,), header = await pop(bench, invisible_time=3_600_000)
        monkeypatch.setattr(RemotingConnection, "can_defer", False)
        assert bench.peer().call(ack_command(extra_info(header, message, 0), message)).code == code
        assert in_flight(bench) == (0 if code == ResponseCode.SUCCESS else 1)


async def test_later_changes_of_topic_and_settings_reach_acknowledgements_of_the_same_pop(
    bench: Bench,
) -> None:
    send(bench, 2, queue_id=1)
    messages, header = await pop(bench, queue_id=1, invisible_time=3_600_000)
    first, second = (ack_command(extra_info(header, one, 0), one) for one in messages)
    assert fast_result(bench, first) is not None
    bench.broker.live.update({"enablePopBufferMerge": "true"})
    with pytest.raises(FastPathMiss):
        fast_result(bench, second)
    bench.broker.live.update({"enablePopBufferMerge": "false"})
    assert fast_result(bench, second) is not None
    bench.broker.tables.topics.put(topic_config("T", 1))
    with pytest.raises(FastPathMiss):
        fast_result(bench, second)


async def test_an_acknowledgement_that_is_due_already_takes_the_ordinary_path(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, header = await pop(bench, invisible_time=3_600_000)
    first, second = (ack_command(extra_info(header, one, 0), one) for one in messages[:2])
    assert fast_result(bench, first) is not None
    later = time.time_ns() // 1_000_000 + 3_600_001
    monkeypatch.setattr("epochmq_broker.requests.processors.pop_ack_fast.now_ms", lambda: later)
    with pytest.raises(FastPathMiss):
        fast_result(bench, second)


def acknowledge_together(peer: Peer, commands: list[Command]) -> list[int]:
    """Sends acknowledgements that arrive in one read. Returns their opaques."""
    frames, opaques = [], []
    for command in commands:
        opaques.append(peer.next_opaque())
        frames.append(encode(Command(command.code, ext=command.ext, flag=command.flag, opaque=opaques[-1])))
    peer.connection.data_received(b"".join(frames))
    peer.collect()
    return opaques


async def test_the_acknowledgements_of_one_read_become_one_record_of_each_pop_and_queue(bench: Bench) -> None:
    send(bench, 2, queue_id=1)
    first, header = await pop(bench, queue_id=0, invisible_time=3_600_000)
    second, other = await pop(bench, queue_id=1, invisible_time=3_600_000)
    start, peer = bench.broker.store.max_phy_offset, bench.peer()
    commands = [ack_command(extra_info(header, one, 0), one) for one in first]
    commands.insert(3, ack_command(extra_info(other, second[0], 0), second[0]))
    opaques = acknowledge_together(peer, commands)
    assert [peer.answers[opaque].code for opaque in opaques] == [0] * len(commands)
    batch, single = stored_since(bench, start)
    ack = AckMsg(
        ack_offset=-1,
        start_offset=0,
        group="g",
        topic="T",
        queue_id=0,
        pop_time=header.pop_time,
        broker_name="broker-a",
        ack_offsets=list(range(MESSAGES)),
    )
    assert batch["body"] == ack.encode()
    properties = parse_properties(batch["properties"])
    assert (properties["TAGS"], properties["UNIQ_KEY"]) == (BATCH_ACK_TAG, ack.batch_unique_key)
    assert batch["tags_code"] == java_hash(BATCH_ACK_TAG)
    assert parse_properties(single["properties"])["TAGS"] == ACK_TAG
    assert counters(bench) == (MESSAGES + 1, 2, MESSAGES + 1, 2, 0)


async def test_a_record_has_a_bounded_number_of_acknowledgements(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochmq_broker.requests.processors.pop_ack_fast.BATCH_MAX", 4)
    send(bench, 1, queue_id=1)
    messages, header = await pop(bench, queue_id=0, invisible_time=3_600_000)
    (single,), other = await pop(bench, queue_id=1, invisible_time=3_600_000)
    commands = [ack_command(extra_info(header, one, 0), one) for one in messages]
    commands.insert(2, ack_command(extra_info(other, single, 0), single))
    start, peer = bench.broker.store.max_phy_offset, bench.peer()
    acknowledge_together(peer, commands)
    assert [acknowledged_in(found) for found in stored_since(bench, start)] == [
        (0, [0, 1, 2, 3]),
        (1, [0]),
        (0, [4, 5]),
    ]
    assert counters(bench) == (MESSAGES + 1, 3, MESSAGES + 1, 3, 0)
    start = bench.broker.store.max_phy_offset
    acknowledge_together(peer, commands[:1])
    assert [acknowledged_in(found) for found in stored_since(bench, start)] == [(0, [0])]


def acknowledged_in(found: dict[str, Any]) -> tuple[int, list[int]]:
    """The queue of a stored acknowledgement, and the offsets in it."""
    ack = decode_ack(found["body"])
    return ack.queue_id, list(ack.ack_offsets or [ack.ack_offset])


async def test_only_what_was_not_acknowledged_together_comes_again(tmp_path: Path) -> None:
    async with running(tmp_path, FAST_REVIVES) as bench:
        send(bench, MESSAGES)
        messages, header = await pop(bench, invisible_time=3000)
        commands = [ack_command(extra_info(header, one, 0), one) for one in messages if one.queue_offset != 2]
        acknowledge_together(bench.peer(), commands)
        assert bench.count(TIMER_TOPIC) == 2, "the checkpoint, and one record for all acknowledgements"
        await until(lambda: bench.count("%RETRY%g_T") == 1)
        assert bench.record("%RETRY%g_T", 0, 0).body == messages[2].body
        assert bench.broker.pop.revives.revived == 1


async def test_with_sync_flush_all_responses_wait_for_the_record(tmp_path: Path) -> None:
    async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
        peer = bench.peer()
        for _ in range(3):
            assert (await peer.answer(peer.send(send_command("T", b"x")))).code == 0
        messages, header = await pop(bench, invisible_time=3_600_000)
        commands = [ack_command(extra_info(header, one, 0), one) for one in messages]
        opaques = acknowledge_together(peer, commands)
        end = bench.broker.store.max_phy_offset
        for opaque in opaques:
            assert (await peer.answer(opaque)).code == 0
            assert bench.broker.store.flushed_where >= end
        assert len(opaques) == 3


async def test_acknowledgements_that_cannot_be_stored_are_answered_and_hinder_no_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send(bench, 1, queue_id=1)
    first, header = await pop(bench, queue_id=0, invisible_time=3_600_000)
    second, other = await pop(bench, queue_id=1, invisible_time=3_600_000)
    append, calls = bench.broker.store.append, 0

    def failing(*place: Any, **record: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no space")
        return append(*place, **record)

    monkeypatch.setattr(bench.broker.store, "append", failing)
    peer = bench.peer()
    commands = [ack_command(extra_info(header, one, 0), one) for one in first[:2]]
    commands.append(ack_command(extra_info(other, second[0], 0), second[0]))
    opaques = acknowledge_together(peer, commands)
    assert [peer.answers[opaque].code for opaque in opaques] == [0, 0, 0]
    assert calls == 2
    assert "2 acknowledgements of ('T', 0) could not be stored" in caplog.text


async def test_the_log_and_the_metrics_tell_why_an_acknowledgement_was_not_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (message, *_), header = await pop(bench, invisible_time=3_600_000)
    rejected = PutStatus.SERVICE_NOT_AVAILABLE, -1, -1, 0
    monkeypatch.setattr(bench.broker.store, "append", lambda *_, **__: rejected)
    assert bench.peer().call(ack_command(extra_info(header, message, 0), message)).code == 0
    assert "1 acknowledgements of ('T', 0) could not be stored: SERVICE_NOT_AVAILABLE" in caplog.text
    assert bench.broker.pop.revive_log.puts.counts["g", "T", "ACK", "SERVICE_NOT_AVAILABLE"] == 1


def acknowledged_since(bench: Bench, start: int) -> list[tuple[object, ...]]:
    """What the records from an offset of the log on acknowledge."""
    acks = [decode_ack(found["body"]) for found in stored_since(bench, start)]
    return sorted((*ack.key(), offset) for ack in acks for offset in ack.offsets)


async def test_any_acknowledgements_of_one_read_have_the_effects_that_they_have_one_by_one(
    bench: Bench,
) -> None:
    messages, header = await pop(bench, invisible_time=3_600_000)
    quick, ordinary, together = bench.peer(), bench.peer(ordinary=True), 0
    for seed in range(ROUNDS // 4):
        chance = random.Random(seed)
        commands = []
        for _ in range(chance.randrange(2, 9)):
            message = chance.choice(messages)
            command = ack_command(extra_info(header, message, 0), message)
            commands.append(some_ack(chance, command) if chance.random() < 0.3 else command)
        effects = []
        for peer in (quick, ordinary):
            bench.broker.pop.in_flight.clear("T", "g", 0)
            bench.broker.pop.in_flight.add("T", "g", 0, 100)
            start = bench.broker.store.max_phy_offset
            answers = [peer.answers.pop(opaque, None) for opaque in acknowledge_together(peer, commands)]
            said = [None if answer is None else (answer.code, answer.remark) for answer in answers]
            effects.append((said, acknowledged_since(bench, start), in_flight(bench)))
            if peer is quick:
                together += len(stored_since(bench, start)) < len(effects[0][1])
        assert effects[0] == effects[1], commands
    assert together > ROUNDS / 8
