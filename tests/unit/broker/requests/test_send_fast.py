"""The fast path stores and responds exactly as the ordinary path does."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epochmq_broker.broker import Broker
from epochmq_broker.services.timer.put_hook import TimerPutHook
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import FastPathMiss
from epochmq_protocol.frame import Command, encode, split
from epochmq_protocol.message import BatchElement, encode_batch
from tests.unit.broker.kit import BORN_MS, UNIQ_KEY, Bench, running, send_command

ROUNDS = 400
NAMES = ["TAGS", "KEYS", "WAIT", "UNIQ_KEY", "own", "RETRY_TOPIC", "TRACE_CONTEXT", "UNIQ_KE", "TAGSX", "é"]
SPECIAL = ["DELAY", "TRAN_MSG", "TIMER_DELAY_SEC", "POP_CK", "CLUSTER", "MSG_REGION", "TRACE_ON", "INNER_NUM"]
SPECIAL += ["_SYS_MSG_PRIORITY_"]
VALUES = [
    "a",
    "b c",
    "true",
    "false",
    "True",
    "0",
    "1",
    "3",
    "-1",
    'quote"',
    "back\\slash",
    "ü",
    "x\x01y",
    "%s",
    "😀",
]
SPOILED = ["", "\x02", "\x01\x02", "TAGS\x02", "\x01a\x02", "TAGS\x01\x02", "UNIQ_KEY"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


def some_properties(chance: random.Random) -> str:
    """A properties string: mostly valid, sometimes malformed, terminated or not."""
    names = chance.sample(NAMES, chance.randint(0, 5))
    if chance.random() < 0.2:
        names.append(chance.choice(SPECIAL))
    entries = [f"{name}\x01{chance.choice(VALUES)}" for name in names]
    if chance.random() < 0.15:
        due = chance.choice(["0", "1", "5", "86400", "999999999", str(BORN_MS + 7000), "-1", "x", "٣", ""])
        name = chance.choice(["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DELIVER_MS"])
        entries.append(f"{name}\x01{due}")
    if chance.random() < 0.7:
        entries.insert(chance.randint(0, len(entries)), f"UNIQ_KEY\x01{UNIQ_KEY}")
    if chance.random() < 0.2:
        entries.append("TRAN_MSG\x01true")
    text = "\x02".join(entries)
    if chance.random() < 0.1:
        text += chance.choice(SPOILED)
    return text + ("\x02" if chance.random() < 0.5 else "")


def some_send(chance: random.Random) -> Command:
    """A send with any mixture of fields."""
    body = bytes(chance.choices(range(256), k=chance.choice([0, 1, 5, 100, 5000])))
    fields: dict[str, Any] = {
        "queue_id": chance.choice([0, 1, 7, 1023, 1024]),
        "flag": chance.choice([0, 1, -1, 2**31 - 1]),
        "sys_flag": chance.choice([0, 0, 0, 1, 0x101, 0x301, 2, 4, 8, 0x10, 0x20, 0x40, 0x80]),
        "born_timestamp": chance.choice([0, BORN_MS, -1]),
        "reconsume_times": chance.choice([None, 0, 1, 5]),
        "unit_mode": chance.choice([None, False, True]),
        "batch": chance.choice([None, None, False, False, False, True]),
    }
    topic = chance.choice(["BenchmarkTest"] * 8 + ["Auto", "%RETRY%g", "SELF_TEST_TOPIC", "bad.name"])
    command = send_command(topic, body, {}, **fields)
    assert command.ext is not None
    command.ext["i"] = some_properties(chance)
    if fields["batch"]:
        command.body = encode_batch([BatchElement(body or b"x", b"own\x01v"), BatchElement(b"second")])
    command.flag = chance.choice([0, 0, 0, 2])
    return command


def stored_since(broker: Broker, start: int) -> list[dict[str, Any]]:
    """The records of the log from an offset on, without what differs between any two messages."""
    found: list[dict[str, Any]] = []
    while start < broker.store.max_phy_offset:
        data = broker.store.read(start)
        assert data is not None
        record = records.decode_record(data)
        queue = broker.store.lookup.existing_queue(record.topic, record.queue_id)
        assert queue is not None
        unit = queue.unit(record.queue_offset)
        fields = msgspec.structs.asdict(record)
        for name in ("queue_offset", "physical_offset", "store_timestamp", "store_size"):
            del fields[name]
        properties = records.parse_properties(record.properties)
        for name in ("UNIQ_KEY", "__transactionId__"):
            if len(properties.get(name, "")) == 32 and properties[name] != UNIQ_KEY:
                properties[name] = "made by the broker"
        fields["properties"] = properties
        # in the schedule topic the tags code is a time
        fields["tags_code"] = unit[2] if unit is not None and record.topic != "SCHEDULE_TOPIC_XXXX" else 0
        found.append(fields)
        start += record.store_size
    return found


def comparable(answer: Command | None) -> object:
    """A response without what differs between any two messages."""
    if answer is None:
        return None
    ext = dict(answer.ext or {})
    for name in ("msgId", "queueOffset"):
        if name in ext:
            ext[name] = str(ext[name].count(","))
    if len(ext.get("transactionId", "")) == 32 and ext["transactionId"] != UNIQ_KEY:
        ext["transactionId"] = "made by the broker"
        if "recallHandle" in ext:  # contains the id
            ext["recallHandle"] = "made by the broker"
    return answer.code, answer.remark, ext, answer.flag, answer.body


async def test_both_paths_store_the_same_records_and_respond_the_same(bench: Bench) -> None:
    fast, ordinary = bench.peer(), bench.peer(ordinary=True)
    broker = bench.broker
    broker.writer.timer_hook = TimerPutHook(broker.live, lambda _due: 0, clock_ms=lambda: BORN_MS)
    taken = 0
    for seed in range(ROUNDS):
        outcomes = []
        for peer in (fast, ordinary):
            start = broker.store.max_phy_offset
            opaque = peer.send(some_send(random.Random(seed)))
            peer.collect()
            outcomes.append((comparable(peer.answers.pop(opaque, None)), stored_since(broker, start)))
        assert outcomes[0] == outcomes[1], f"seed {seed}"
        taken += bool(outcomes[0][1])
    assert taken > ROUNDS // 3


def is_taken(bench: Bench, command: Command) -> bool:
    """Whether the fast path serves a send."""
    handler = bench.fast_handler(RequestCode.SEND_MESSAGE_V2).serve
    _, header, body = split(encode(command)[4:])
    try:
        handler(bench.peer().connection, header, body)
    except FastPathMiss:
        return False
    return True


async def test_plain_messages_take_the_fast_path(bench: Bench) -> None:
    for properties in (
        {"UNIQ_KEY": UNIQ_KEY},
        {"UNIQ_KEY": UNIQ_KEY, "WAIT": "true", "TAGS": "a", "KEYS": "k"},
        {"UNIQ_KEY": "not-only-letters", "own": "value"},
    ):
        assert is_taken(bench, send_command("BenchmarkTest", properties=properties))
    assert is_taken(bench, send_command("BenchmarkTest", sys_flag=1))


async def test_half_messages_take_the_fast_path(bench: Bench) -> None:
    half = {"UNIQ_KEY": UNIQ_KEY, "TRAN_MSG": "true", "PGROUP": "g"}
    assert is_taken(bench, send_command("BenchmarkTest", properties=half, sys_flag=4))
    assert bench.count("RMQ_SYS_TRANS_HALF_TOPIC") == 1
    ((fast, counted),) = bench.broker.tables.stats.typed_traffic().items()
    assert (fast, counted.messages) == (("RMQ_SYS_TRANS_HALF_TOPIC", "transaction"), 1)
    size = counted.bytes
    peer = bench.peer(ordinary=True)
    assert peer.call(send_command("BenchmarkTest", properties=half, sys_flag=4)).code == 0
    assert list(bench.broker.tables.stats.typed_traffic()) == [fast]
    assert (counted.messages, counted.bytes) == (2, 2 * size)
    for properties in (half | {"REAL_TOPIC": "other"}, half | {"DELAY": "1"}, half | {"TRAN_MSG": "TRUE"}):
        assert not is_taken(bench, send_command("BenchmarkTest", properties=properties, sys_flag=4))
    assert not is_taken(bench, send_command("BenchmarkTest", properties=half, reconsume_times=1))
    bench.broker.live.update({"rejectTransactionMessage": "true"})
    assert not is_taken(bench, send_command("BenchmarkTest", properties=half, sys_flag=4))
    assert bench.count("RMQ_SYS_TRANS_HALF_TOPIC") == 2


async def test_other_messages_do_not_take_the_fast_path(bench: Bench) -> None:
    for command in (
        send_command("Unknown"),
        send_command("%RETRY%g"),
        send_command("BenchmarkTest", b""),
        send_command("BenchmarkTest", queue_id=-1),
        send_command("BenchmarkTest", batch=True),
        send_command("BenchmarkTest", sys_flag=4),
        send_command("BenchmarkTest", properties={"TAGS": "no id"}),
        send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "DELAY": "1"}),
        send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "_SYS_MSG_PRIORITY_": "1"}),
    ):
        assert not is_taken(bench, command)
    assert bench.broker.store.max_phy_offset == 0


async def test_a_changed_topic_affects_the_next_message(bench: Bench) -> None:
    peer = bench.peer()
    assert peer.call(send_command("Auto", queue_id=3)).code == 0
    assert is_taken(bench, send_command("Auto", queue_id=3))
    bench.broker.topics.delete("Auto")
    assert not is_taken(bench, send_command("Auto", queue_id=3))


async def test_changed_settings_affect_the_next_message(bench: Bench) -> None:
    peer = bench.peer()
    peer.call(send_command("BenchmarkTest"))
    bench.broker.live.update({"traceOn": "false", "regionId": "north"})
    answer = peer.call(send_command("BenchmarkTest"))
    assert (answer.ext or {})["TRACE_ON"] == "false"
    assert (answer.ext or {})["MSG_REGION"] == "north"
    properties = records.parse_properties(bench.record("BenchmarkTest", 0, 1).properties)
    assert (properties["TRACE_ON"], properties["MSG_REGION"]) == ("false", "north")


@pytest.mark.parametrize("uniq_key", [UNIQ_KEY, '{"code":0,', "ü"])
async def test_both_paths_report_a_stored_but_unsafe_message_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uniq_key: str
) -> None:
    disk = threading.Event()
    async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "50"}) as bench:
        monkeypatch.setattr("os.fdatasync", lambda _fd: disk.wait(60))
        answers = []
        for peer in (bench.peer(), bench.peer(ordinary=True)):
            command = send_command("BenchmarkTest", properties={"UNIQ_KEY": uniq_key})
            answer = await peer.answer(peer.send(command))
            fields = dict(answer.ext or {})
            fields.pop("msgId")  # depends on where the message is stored, as the queue's offset does
            answers.append((answer.code, fields.pop("queueOffset"), fields))
        disk.set()
        assert answers[0][0] == answers[1][0] == ResponseCode.FLUSH_DISK_TIMEOUT
        assert (answers[0][1], answers[1][1]) == ("0", "1")
        assert answers[0][2] == answers[1][2]
        assert answers[0][2]["transactionId"] == uniq_key


async def test_ids_that_need_escaping_are_returned_unchanged(bench: Bench) -> None:
    for uniq_key in ('with "quotes"', "back\\slash", "tab\tand\nline", "ünïcode 😀", "percent %s %d"):
        for ordinary in (False, True):
            command = send_command("BenchmarkTest", properties={"UNIQ_KEY": uniq_key})
            answer = bench.peer(ordinary=ordinary).call(command)
            assert (answer.ext or {})["transactionId"] == uniq_key


async def test_the_key_of_the_fast_path_is_the_start_of_a_header(bench: Bench) -> None:
    (start,) = bench.fast_handler(RequestCode.SEND_MESSAGE_V2).starts
    _, header, _ = split(encode(send_command("BenchmarkTest"))[4:])
    assert header.startswith(start)
    assert start == b'{"code":%d' % RequestCode.SEND_MESSAGE_V2
