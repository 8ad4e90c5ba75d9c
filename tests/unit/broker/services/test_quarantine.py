"""A record that a service cannot handle never stops the service: the broker sets it aside."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.compaction import logged_records
from epochmq_broker.services.compaction.keyed_records import KeyedRecord
from epochmq_broker.services.pop.checkpoints import PopCheckPoint
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_broker.writing.quarantine import Origin, QuarantiningService
from epochmq_protocol import message as records
from epochmq_protocol.errors import ConnectError
from epochmq_protocol.topics import QUARANTINE_TOPIC
from epochmq_store.files.mapped_file import DiskFullError
from epochmq_store.statuses import PutStatus
from tests.unit.broker.kit import BORN_MS, UNIQ_KEY, Bench, running, send_command, until
from tests.unit.broker.services.pop.support import pop, popping
from tests.unit.broker.steady_clock import use_steady_clock

TIMER, SCHEDULE = "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"
SETTINGS = {"timerPrecisionMs": "100", "timerFlushIntervalMs": "20", "messageDelayLevel": "1s 2s 1h"}
HOST = records.encode_host("127.0.0.1", 1)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    use_steady_clock(monkeypatch)
    async with running(tmp_path, SETTINGS) as made:
        yield made


def put(bench: Bench, topic: str, properties: dict[str, str], *, body: bytes = b"x") -> None:
    """Stores a record as it is, whatever the writer thinks of it."""
    store = bench.broker.store
    status, *_ = store.append(
        store.queue(topic, 0),
        body=body,
        properties=records.format_properties(properties),
        born_timestamp=BORN_MS,
        born_host=HOST,
        tags_code=0,
    )
    assert status is PutStatus.PUT_OK


def send(bench: Bench, **properties: object) -> None:
    named = {"UNIQ_KEY": UNIQ_KEY} | {name: str(value) for name, value in properties.items()}
    assert bench.peer().call(send_command("T", b"healthy", named, queue_id=1)).code == 0


def set_aside(bench: Bench) -> list[dict[str, str]]:
    """The properties of the records in the quarantine."""
    return [
        records.parse_properties(bench.record(QUARANTINE_TOPIC, 0, at).properties)
        for at in range(bench.count(QUARANTINE_TOPIC))
    ]


def counted(bench: Bench, service: QuarantiningService) -> int:
    return bench.broker.quarantine.counts[service]


PLACES = [
    {"REAL_TOPIC": "../x", "REAL_QID": "0"},
    {"REAL_TOPIC": "T", "REAL_QID": "x"},
    {"REAL_TOPIC": "T", "REAL_QID": "-1"},
    {"REAL_TOPIC": "T", "REAL_QID": "99999999999"},
    {"REAL_TOPIC": "T", "REAL_QID": "9" * 5000},
    {"REAL_TOPIC": "T"},
    {"REAL_TOPIC": "t" * 300, "REAL_QID": "0"},
    {"REAL_TOPIC": "T", "REAL_QID": "0", "INNER_NUM": "1"},
    {"REAL_TOPIC": SCHEDULE, "REAL_QID": "0"},
    {"REAL_TOPIC": TIMER, "REAL_QID": "0"},
]
"""Places to which no message can be delivered."""
IDS = [
    "bad name",
    "no number",
    "negative",
    "more than 32 bits",
    "5000 digits",
    "no queue",
    "long name",
    "inner batch",
    "schedule topic",
    "timer topic",
]


@pytest.mark.parametrize("place", PLACES, ids=IDS)
async def test_a_timer_message_that_cannot_be_delivered_is_set_aside(
    bench: Bench, place: dict[str, str]
) -> None:
    due = now_ms() // 100 * 100 + 300
    put(bench, TIMER, {"UNIQ_KEY": UNIQ_KEY, "TIMER_OUT_MS": str(due)} | place, body=b"poison")
    send(bench, TIMER_DELIVER_MS=due)
    await until(lambda: bench.count("T", 1) == 1)
    await until(lambda: bench.count(QUARANTINE_TOPIC) == 1)
    (properties,) = set_aside(bench)
    assert properties["QUARANTINE_SERVICE"] == "timer"
    assert properties["QUARANTINE_ORIGIN"] == f"{TIMER}-0-0"
    assert properties["QUARANTINE_REASON"]
    assert properties["UNIQ_KEY"] == UNIQ_KEY
    assert bench.record(QUARANTINE_TOPIC, 0, 0).body == b"poison"
    assert counted(bench, QuarantiningService.TIMER) == 1
    timer = bench.broker.timer
    assert timer is not None
    await until(lambda: timer.timers.pending == 0)


async def test_many_poisoned_timer_messages_among_healthy_ones_delay_none(bench: Bench) -> None:
    due = now_ms() // 100 * 100 + 500
    for place in PLACES:
        put(bench, TIMER, {"UNIQ_KEY": UNIQ_KEY, "TIMER_OUT_MS": str(due)} | place)
        send(bench, TIMER_DELIVER_MS=due)
    await until(lambda: bench.count("T", 1) == len(PLACES))
    await until(lambda: counted(bench, QuarantiningService.TIMER) == len(PLACES))


async def test_a_record_of_the_timer_topic_without_a_time_is_set_aside(bench: Bench) -> None:
    put(bench, TIMER, {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": "soon"})
    send(bench, TIMER_DELAY_MS=100)
    await until(lambda: bench.count("T", 1) == 1)
    assert [one["QUARANTINE_ORIGIN"] for one in set_aside(bench)] == [f"{TIMER}-0-0"]


@pytest.mark.parametrize("place", [{}, *PLACES], ids=["nothing", *IDS])
async def test_a_delayed_message_that_cannot_be_delivered_is_set_aside(
    bench: Bench, place: dict[str, str]
) -> None:
    put(bench, SCHEDULE, {"UNIQ_KEY": UNIQ_KEY} | place, body=b"poison")
    send(bench, DELAY=1)
    await until(lambda: bench.count("T", 1) == 1)
    (properties,) = set_aside(bench)
    assert (properties["QUARANTINE_SERVICE"], properties["QUARANTINE_ORIGIN"]) == ("delay", f"{SCHEDULE}-0-0")
    assert bench.record(QUARANTINE_TOPIC, 0, 0).body == b"poison"
    await until(lambda: bench.broker.delays.offsets.get(1) == 2)
    assert bench.count(SCHEDULE) == 2


async def test_a_delayed_message_waits_while_the_disk_is_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the disk is not a fault of the record."""
    failed = []

    def full(message: InnerMessage) -> None:
        failed.append(message)
        raise DiskFullError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.broker.delays._sinks[1], "put", full)
        send(bench, DELAY=1)
        await until(lambda: failed)
    bench.broker.delays._paused_until.clear()
    await until(lambda: bench.count("T", 1) == 1)
    assert counted(bench, QuarantiningService.DELAY) == 0


async def test_a_copy_that_cannot_be_stored_does_not_stop_the_service(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(message: InnerMessage) -> None:
        raise ConnectError("gone")

    monkeypatch.setattr(bench.broker.writer, "put", unreachable)
    end = bench.broker.quarantine.set_aside(QuarantiningService.POP, Origin("R", 1, 2), b"x", "damaged")
    assert end == 0
    assert counted(bench, QuarantiningService.POP) == 1


async def test_a_record_whose_properties_cannot_be_copied_leaves_its_place_and_the_reason(
    bench: Bench,
) -> None:
    put(bench, "T", {"UNIQ_KEY": UNIQ_KEY, "long": "x" * 32_600})
    record = bench.record("T", 0, 0)
    assert bench.broker.quarantine.set_aside(
        QuarantiningService.POP, Origin("T", 0, 0), record, ValueError("no\x01 good\x02")
    )
    (properties,) = set_aside(bench)
    assert properties["QUARANTINE_ORIGIN"] == "T-0-0"
    assert properties["QUARANTINE_REASON"] == "ValueError: no  good "


async def test_a_flood_of_records_writes_few_log_lines(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for at in range(1000):
            bench.broker.quarantine.set_aside(QuarantiningService.POP, Origin("T", 0, at), None, "damaged")
    lines = [line for line in caplog.messages if "cannot handle the record" in line]
    assert 1 <= len(lines) < 10
    assert counted(bench, QuarantiningService.POP) == 1000
    assert bench.broker.quarantine.metric_values()["broker_quarantined_total:pop"] == 1000
    assert not bench.count(QUARANTINE_TOPIC)


REVIVE = "rmq_sys_REVIVE_LOG_TestCluster"
CHECKPOINT = {"TAGS": "ck", "TIMER_DELIVER_MS": "5"}


def checkpoint(**fields: object) -> bytes:
    """The body of a checkpoint for the first message of T-0."""
    values: dict[str, object] = {"bm": 0, "bn": "broker-a", "c": "g", "d": [0], "it": 1, "n": 1}
    values |= {"pt": 5, "q": 0, "so": 0, "t": "T"} | fields
    return json.dumps({name: value for name, value in values.items() if value is not None}).encode()


POISONED_CHECKPOINTS = {
    "no JSON": b"{",
    "other JSON": b"[]",
    "a billion messages": checkpoint(n=1 << 30, d=None),
    "negative count": checkpoint(n=-1, d=None),
    "negative offset": checkpoint(so=-5),
    "offset of 80 bits": checkpoint(so=1 << 80),
    "far difference": checkpoint(d=[1 << 70]),
    "queue of 40 bits": checkpoint(q=1 << 40),
    "time of 70 bits": checkpoint(pt=1 << 70),
}


@pytest.mark.parametrize("name", sorted(POISONED_CHECKPOINTS))
async def test_a_checkpoint_that_cannot_be_read_does_not_stop_revives(tmp_path: Path, name: str) -> None:
    async with popping(tmp_path) as bench:
        put(bench, REVIVE, CHECKPOINT, body=POISONED_CHECKPOINTS[name])
        send_plain(bench)
        messages, _ = await pop(bench, invisible_time=100)
        assert len(messages) == 1
        await until(lambda: bench.count("%RETRY%g_T") == 1)
        assert counted(bench, QuarantiningService.POP) == 1
        (properties,) = set_aside(bench)
        assert (properties["QUARANTINE_SERVICE"], properties["QUARANTINE_ORIGIN"]) == ("pop", f"{REVIVE}-0-0")
        assert bench.record(QUARANTINE_TOPIC, 0, 0).body == POISONED_CHECKPOINTS[name]


async def test_a_damaged_record_of_the_revive_topic_is_set_aside(tmp_path: Path) -> None:
    async with popping(tmp_path) as bench:
        put(bench, REVIVE, CHECKPOINT, body=b"to be damaged")
        file = bench.broker.store.log.file
        assert file is not None
        file.map[file.map.find(b"to be damaged")] ^= 1
        send_plain(bench)
        assert len((await pop(bench, invisible_time=100))[0]) == 1
        await until(lambda: bench.count("%RETRY%g_T") == 1)
        assert counted(bench, QuarantiningService.POP) == 1


async def test_a_popped_message_that_cannot_be_revived_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path) as bench:
        revives = bench.broker.pop.revives
        revive = revives._revive

        def broken(queue_id: int, known: PopCheckPoint, offset: int) -> int:
            if offset == 0:
                raise KeyError("a fault that nobody foresaw")
            return revive(queue_id, known, offset)

        monkeypatch.setattr(revives, "_revive", broken)
        send_plain(bench)
        send_plain(bench)
        assert len((await pop(bench, invisible_time=100))[0]) == 2
        await until(lambda: bench.count("%RETRY%g_T") == 1)
        assert counted(bench, QuarantiningService.POP) == 1
        assert "KeyError" in set_aside(bench)[0]["QUARANTINE_REASON"]


def send_plain(bench: Bench) -> None:
    assert bench.peer().call(send_command("T", b"healthy")).code == 0


async def test_a_damaged_half_message_is_set_aside(tmp_path: Path) -> None:
    async with running(tmp_path, {"transactionCheckInterval": "50", "transactionTimeOut": "1"}) as bench:
        properties = {"UNIQ_KEY": UNIQ_KEY, "TRAN_MSG": "true", "PGROUP": "producers"}
        for body in (b"to be damaged", b"second"):
            command = send_command("T", body, properties, sys_flag=4, born_timestamp=now_ms())
            assert bench.peer().call(command).code == 0
        file = bench.broker.store.log.file
        assert file is not None
        file.map[file.map.find(b"to be damaged")] ^= 1
        await until(lambda: bench.broker.transactions.checks.checked > 0)
        assert counted(bench, QuarantiningService.TRANSACTION) == 1
        assert set_aside(bench)[0]["QUARANTINE_ORIGIN"] == "RMQ_SYS_TRANS_HALF_TOPIC-0-0"


def test_a_record_that_cannot_be_compacted_is_reported_and_the_next_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"ab")
    read = KeyedRecord(b"b", 1, 0, 0)

    def keyed(data: bytes, _physical: int) -> KeyedRecord:
        if data == b"a":
            raise KeyError("a fault that nobody foresaw")
        return read

    monkeypatch.setattr(logged_records, "keyed_record", keyed)
    faults: list[bytes] = []
    places = [logged_records.LoggedRecord(path, 0, at, 1) for at in range(2)]
    found = logged_records.read_keyed_records(places, lambda _place, data, _error: faults.append(data))
    assert (found, faults) == ([read], [b"a"])
