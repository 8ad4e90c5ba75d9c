"""Timer messages are delivered once when their time has come: not early, also after a restart."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from mmap import mmap
from pathlib import Path

import pytest

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.timer.timer_service import TimerService, slot_left_ms
from epochmq_protocol import message as records
from epochmq_protocol.bodies import TimerMetricsSerializeWrapper, from_json
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.frame import Command
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.files.page_residency import NotResidentError, PageResidency
from epochmq_store.statuses import RunningFlags, StoreReadError
from tests.unit.broker.kit import UNIQ_KEY, Bench, running, send_command, until

TIMER = "rmq_sys_wheel_timer"
QUICK = {"timerPrecisionMs": "100", "timerFlushIntervalMs": "20"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, QUICK) as made:
        yield made


def send(
    bench: Bench, body: bytes = b"later", *, topic: str = "T", queue_id: int = 1, **properties: object
) -> Command:
    """Sends a message; returns the response."""
    named = {"UNIQ_KEY": UNIQ_KEY, "TAGS": "a"} | {name: str(value) for name, value in properties.items()}
    return bench.peer().call(send_command(topic, body, named, queue_id=queue_id))


def present() -> int:
    """Epoch ms."""
    return now_ms()


async def test_a_message_is_delivered_unchanged_at_its_time(bench: Bench) -> None:
    due = present() + 500
    assert send(bench, TIMER_DELIVER_MS=due).code == ResponseCode.SUCCESS
    waiting = bench.record(TIMER, 0, 0)
    await until(lambda: bench.count("T", 1) == 1)
    came = bench.record("T", 1, 0)
    assert due <= came.store_timestamp < due + 2000
    assert (came.body, came.born_timestamp, came.born_host, came.store_host) == (
        b"later",
        waiting.born_timestamp,
        waiting.born_host,
        waiting.store_host,
    )
    before, after = (records.parse_properties(one.properties) for one in (waiting, came))
    out_ms = (due - 100) if due % 100 == 0 else due // 100 * 100
    assert before["TIMER_OUT_MS"] == str(out_ms)
    # RocketMQ encodes the properties before it removes some: all of them stay.
    enqueued, dequeued = int(after.pop("TIMER_ENQUEUE_MS")), int(after.pop("TIMER_DEQUEUE_MS"))
    assert after == before
    assert (after["REAL_TOPIC"], after["REAL_QID"]) == ("T", "1")
    assert enqueued % 100 == 0
    assert due <= dequeued <= came.store_timestamp
    queue = bench.broker.store.lookup.existing_queue("T", 1)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    assert unit[2] == ord("a")


async def test_a_message_of_the_greatest_size_is_delivered_and_blocks_no_other(tmp_path: Path) -> None:
    """RocketMQ's reader of the timer queue has no room for it, and delivers nothing afterwards."""
    largest = bytes(20_000)
    async with running(tmp_path, QUICK | {"maxMessageSize": str(len(largest))}) as bench:
        assert send(bench, largest + b"x", TIMER_DELAY_MS=200).code == ResponseCode.MESSAGE_ILLEGAL
        assert send(bench, largest, TIMER_DELAY_MS=200).code == ResponseCode.SUCCESS
        assert send(bench, b"after", TIMER_DELAY_MS=200).code == ResponseCode.SUCCESS
        await until(lambda: bench.count("T", 1) == 2)
        assert {bench.record("T", 1, 0).body, bench.record("T", 1, 1).body} == {largest, b"after"}


@pytest.mark.parametrize(
    ("present_ms", "precision_ms", "left_ms"),
    [(5000, 1000, 1000), (5001, 1000, 999), (5999, 1000, 1), (150, 100, 50)],
)
def test_a_round_begins_with_the_next_slot(present_ms: int, precision_ms: int, left_ms: int) -> None:
    assert slot_left_ms(present_ms, precision_ms) == left_ms


async def test_pending_messages_are_delivered_once_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as bench:
        due = present() + 1500
        send(bench, b"1", TIMER_DELIVER_MS=due)
        send(bench, b"2", TIMER_DELAY_MS=100)
        await until(lambda: bench.count("T", 1) == 1)
        assert bench.broker.timer is not None
    async with running(tmp_path, QUICK) as bench:
        assert bench.broker.timer is not None
        assert bench.broker.timer.timers.pending == 1
        send(bench, b"3", TIMER_DELAY_MS=2000)
        await until(lambda: bench.count("T", 1) == 3)
        assert [bench.record("T", 1, at).body for at in range(3)] == [b"2", b"1", b"3"]
        timers = bench.broker.timer.timers
        await until(lambda: timers.pending == 0)  # counted after the message is stored
    async with running(tmp_path, QUICK) as bench:
        send(bench, b"4", TIMER_DELAY_MS=300)
        await until(lambda: bench.count("T", 1) == 4)
        assert bench.record("T", 1, 3).body == b"4"


def timer_of(bench: Bench) -> TimerService:
    timer = bench.broker.timer
    assert timer is not None
    return timer


def properties_of(bench: Bench, topic: str, offset: int, queue_id: int = 0) -> dict[str, str]:
    return records.parse_properties(bench.record(topic, queue_id, offset).properties)


async def test_a_delay_beyond_the_window_rolls_and_is_not_shortened(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK | {"timerRollWindowSlot": "5"}) as bench:
        rolled = 0
        for came, wait_ms in enumerate((1600, 6400, 25_600), 1):  # a suspended process skips windows
            before = bench.count(TIMER)
            due = present() + wait_ms
            send(bench, TIMER_DELIVER_MS=due)
            await until(lambda came=came: bench.count("T", 1) == came)  # type: ignore[misc]
            assert bench.record("T", 1, came - 1).store_timestamp >= due
            rolled = bench.count(TIMER) - before - 1
            assert properties_of(bench, "T", came - 1, 1)["TIMER_ROLL_TIMES"] == str(rolled)
            if rolled >= 2:
                break
        assert rolled >= 2
        again = bench.record(TIMER, 0, 1)
        assert again.body == b"later"
        assert properties_of(bench, TIMER, 1)["REAL_TOPIC"] == "T"
        assert timer_of(bench).metrics.count("T") == 0


async def test_a_message_that_was_due_before_it_reached_the_wheel_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK | {"timerStopEnqueue": "true"}) as bench:
        send(bench, TIMER_DELAY_MS=150)
        out_ms = int(properties_of(bench, TIMER, 0)["TIMER_OUT_MS"])
        await until(lambda: present() > out_ms + 200)
        bench.broker.live.update({"timerStopEnqueue": "false"})
        await until(lambda: bench.count("T", 1) == 1)
        assert properties_of(bench, "T", 0, 1)["TIMER_ENQUEUE_MS"] == str(2**63 - 1)


async def test_a_message_deletes_another_of_the_same_time_only(bench: Bench) -> None:
    due = present() + 600
    send(bench, b"1", UNIQ_KEY="k1", TIMER_DELIVER_MS=due)
    send(bench, b"2", UNIQ_KEY="k2", TIMER_DELIVER_MS=due)
    send(bench, b"3", UNIQ_KEY="k3", TIMER_DELIVER_MS=due + 300)
    for key in ("T+k1", "T+k3", "T+none"):
        send(bench, b"delete", UNIQ_KEY="d" + key, TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY=key)
    await until(lambda: bench.count("T", 1) == 2)
    assert [bench.record("T", 1, at).body for at in range(2)] == [b"2", b"3"]
    await until(lambda: timer_of(bench).timers.pending == 0)
    assert timer_of(bench).metrics.count("T") == 0


async def test_deletions_of_one_message_count_once(bench: Bench) -> None:
    due = present() + 1500
    send(bench, UNIQ_KEY="k1", TIMER_DELIVER_MS=due)
    for number in range(5):
        send(bench, UNIQ_KEY=f"d{number}", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY="T+k1")
    await until(lambda: timer_of(bench).timers.queue_offset == 6)
    shown = from_json(TimerMetricsSerializeWrapper, timer_of(bench).metrics.encode())
    assert shown.timing_count["T"].count == 0
    send(bench, b"after them", UNIQ_KEY="k2", TIMER_DELIVER_MS=due + 500)
    await until(lambda: bench.count("T", 1) == 1)
    assert bench.record("T", 1, 0).body == b"after them"
    await until(lambda: timer_of(bench).metrics.count("T") == 0)


async def test_a_deletion_that_rolls_counts_once(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK | {"timerRollWindowSlot": "5"}) as bench:
        due = present() + 1600
        send(bench, UNIQ_KEY="k1", TIMER_DELIVER_MS=due)
        send(bench, UNIQ_KEY="d1", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY="T+k1")
        send(bench, b"after them", UNIQ_KEY="k2", TIMER_DELIVER_MS=due + 500)
        await until(lambda: bench.count("T", 1) == 1)
        assert bench.count(TIMER) >= 6
        assert bench.record("T", 1, 0).body == b"after them"
        await until(lambda: timer_of(bench).metrics.count("T") == 0)


async def test_messages_of_one_time_are_delivered_in_the_order_in_which_they_were_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochmq_broker.services.timer.dequeuer.PIECE_UNITS", 7)
    due = present() + 500
    for number in range(50):
        send(bench, str(number).encode(), TIMER_DELIVER_MS=due)
    await until(lambda: bench.count("T", 1) == 50)
    assert [bench.record("T", 1, at).body for at in range(50)] == [str(at).encode() for at in range(50)]


async def test_a_delivery_that_cannot_be_stored_is_repeated(bench: Bench) -> None:
    send(bench, TIMER_DELAY_MS=200)
    await until(lambda: timer_of(bench).timers.queue_offset == 1)
    bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, True)
    job = timer_of(bench)._dequeue_job
    await until(lambda: job._paused_until)
    assert timer_of(bench).read_progress.safe <= int(properties_of(bench, TIMER, 0)["TIMER_OUT_MS"])
    bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, False)
    await until(lambda: bench.count("T", 1) == 1)
    await until(lambda: timer_of(bench).timers.pending == 0)
    assert bench.count("T", 1) == 1


async def test_a_record_of_the_timer_topic_without_a_time_is_skipped(bench: Bench) -> None:
    send(bench, b"poison", topic=TIMER, queue_id=0)
    send(bench, b"poison", topic=TIMER, queue_id=0, TIMER_OUT_MS="x", REAL_TOPIC="T")
    send(bench, TIMER_DELAY_MS=100)
    await until(lambda: bench.count("T", 1) == 1)


@pytest.mark.long
async def test_after_a_kill_no_message_is_lost_and_pending_ones_come_once(tmp_path: Path) -> None:
    """The copy is what a kill leaves: everything that was written, flushed or not."""
    async with running(tmp_path / "a", QUICK | {"timerFlushIntervalMs": "600"}) as bench:
        due = present() + 2500
        for number in range(10):
            send(bench, f"early {number}".encode(), TIMER_DELAY_MS=100 + number * 50)
            send(bench, f"late {number}".encode(), TIMER_DELIVER_MS=due + number % 3 * 100)
        await until(lambda: bench.count("T", 1) >= 5)
        shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("lock"))
    async with running(tmp_path / "b", QUICK) as bench:
        await until(lambda: bench.count("T", 1) >= 20 and timer_of(bench).timers.pending == 0)
        came = [bench.record("T", 1, at).body for at in range(bench.count("T", 1))]
        assert {one for one in came if one.startswith(b"early")} == {b"early %d" % at for at in range(10)}
        assert sorted(one for one in came if one.startswith(b"late")) == [b"late %d" % at for at in range(10)]
        await until(lambda: timer_of(bench).metrics.count("T") == 0)


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "timercheck"])
async def test_lost_files_are_rebuilt(tmp_path: Path, lost: str) -> None:
    async with running(tmp_path, QUICK) as bench:
        due = present() + 2000
        for number in range(5):
            send(bench, str(number).encode(), TIMER_DELIVER_MS=due + number % 2 * 100)
        await until(lambda: timer_of(bench).timers.queue_offset == 5)
    path = tmp_path / lost if lost != "timercheck" else tmp_path / "config" / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    async with running(tmp_path, QUICK) as bench:
        await until(lambda: bench.count("T", 1) >= 5 and timer_of(bench).timers.pending == 0)
        assert sorted(bench.record("T", 1, at).body for at in range(bench.count("T", 1))) == [
            str(number).encode() for number in range(5)
        ]


async def test_messages_whose_records_are_truncated_leave_the_wheel(bench: Bench) -> None:
    due = present() + 1500
    for number in range(4):
        send(bench, f"kept {number}".encode(), TIMER_DELIVER_MS=due + number % 2 * 100)
    cut = bench.broker.store.max_phy_offset
    for number in range(4):
        send(bench, f"truncated {number}".encode(), TIMER_DELIVER_MS=due + number % 3 * 100)
    timers = timer_of(bench).timers
    await until(lambda: timers.queue_offset == 8)
    bench.broker.store.truncate(cut)
    assert (timers.queue_offset, timers.pending) == (4, 4)
    for number in range(4):
        send(bench, f"replaced {number}".encode(), TIMER_DELIVER_MS=due + number % 2 * 100)
    await until(lambda: bench.count("T", 1) == 8)
    came = sorted(bench.record("T", 1, at).body for at in range(8))
    assert came == [b"kept %d" % at for at in range(4)] + [b"replaced %d" % at for at in range(4)]
    await until(lambda: timers.pending == 0)


async def test_pending_messages_survive_a_change_of_the_precision(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as bench:
        due = present() + 2500
        send(bench, b"first", TIMER_DELIVER_MS=due)
        send(bench, b"second", TIMER_DELIVER_MS=due + 1000)
        await until(lambda: timer_of(bench).timers.queue_offset == 2)
    async with running(tmp_path, QUICK | {"timerPrecisionMs": "500"}) as bench:
        assert timer_of(bench).timers.pending == 2
        await until(lambda: bench.count("T", 1) == 2)
        assert [bench.record("T", 1, at).body for at in range(2)] == [b"first", b"second"]


class ColdPages:
    """Makes every block count as not in memory at its first check."""

    def __init__(self) -> None:
        self.missed: set[tuple[int, int, int]] = set()

    def is_resident(self, mapping: mmap, start: int, stop: int) -> bool:
        key = (id(mapping), start, stop)
        if key in self.missed:
            return True
        self.missed.add(key)
        return False


async def test_records_that_are_not_in_memory_are_read_on_another_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = ColdPages()
    monkeypatch.setattr(PageResidency, "_is_resident", lambda _self, *args: cold.is_resident(*args))
    bench.broker.store.reader.residency = PageResidency()
    due = present() + 500
    for number in range(40):
        send(bench, str(number).encode(), TIMER_DELIVER_MS=due + number % 2 * 100)
    await until(lambda: bench.count("T", 1) == 40)
    came = [int(bench.record("T", 1, at).body) for at in range(40)]
    assert came == [*range(0, 40, 2), *range(1, 40, 2)]
    assert cold.missed


async def test_messages_of_topics_that_the_metrics_lack_are_counted_after_a_kill(tmp_path: Path) -> None:
    async with running(tmp_path / "a", QUICK) as bench:
        send(bench, TIMER_DELIVER_MS=present() + 60_000)
        await until(lambda: timer_of(bench).timers.checkpoint.queue_offset == 1)
        bench.broker.tables.file_writer.flush()
        shutil.copytree(
            tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("lock", "timermetrics*")
        )
    async with running(tmp_path / "b", QUICK) as bench:
        await until(lambda: timer_of(bench).metrics.count("T") == 1)


async def test_a_record_that_the_disk_cannot_read_is_skipped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("epochmq_broker.services.timer.record_reader.PAUSE_AFTER_FAILURE_S", 0.01)
    due = present() + 800
    for number in range(3):
        send(bench, str(number).encode(), TIMER_DELIVER_MS=due)
    await until(lambda: timer_of(bench).timers.queue_offset == 3)
    store = bench.broker.store
    queue = store.lookup.existing_queue(TIMER, 0)
    assert queue is not None
    bad = queue.unit(1)
    assert bad is not None

    def require(residency: PageResidency, file: object, at: int, size: int) -> None:
        if isinstance(file, MappedFile) and file is store.log.file and at <= bad[0] < at + size:
            raise NotResidentError(file, at, size)

    def read(missing: NotResidentError) -> None:
        raise StoreReadError("an unreadable sector")

    monkeypatch.setattr(PageResidency, "require", require)
    monkeypatch.setattr(PageResidency, "knows", lambda *_: False)
    monkeypatch.setattr(bench.broker.cold_reads, "_read", read)
    await until(lambda: bench.count("T", 1) == 2)
    assert [bench.record("T", 1, at).body for at in range(2)] == [b"0", b"2"]
    assert f"its record at log offset {bad[0]} cannot be read" in caplog.text


async def test_the_numbers_of_pending_messages_are_corrected_after_a_kill(tmp_path: Path) -> None:
    settings = QUICK | {"mappedFileSizeTimerLog": "4096"}
    async with running(tmp_path / "a", settings) as bench:
        for number in range(200):  # three files
            topic = f"T{number % 2}"
            send(bench, topic=topic, UNIQ_KEY=f"k{number}", TIMER_DELIVER_MS=present() + 60_000)
        send(bench, topic="T0", TIMER_DELIVER_MS=present() + 60_000, TIMER_DEL_UNIQKEY="T0+none")
        await until(lambda: timer_of(bench).timers.checkpoint.queue_offset == 201)
        timer_of(bench).metrics.add("T1", 7)  # a drift
        timer_of(bench)._write_metrics()
        bench.broker.tables.file_writer.flush()
        shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("lock"))
    async with running(tmp_path / "b", settings) as bench:
        metrics = timer_of(bench).metrics
        assert metrics.count("T1") == 107
        send(bench, topic="T1", UNIQ_KEY="one more", TIMER_DELIVER_MS=present() + 60_000)
        await until(lambda: (metrics.count("T0"), metrics.count("T1")) == (99, 101))
