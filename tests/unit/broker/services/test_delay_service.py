"""Delayed messages are delivered once when their time has come, also after a restart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.services.delay_service import DelayService, restore_message
from epochmq_formats.extension_unit import is_address
from epochmq_protocol import message as records
from epochmq_protocol.message import MessageExt
from epochmq_store.statuses import RunningFlags
from tests.unit.broker.kit import UNIQ_KEY, Bench, running, send_command, until

LEVELS = {"messageDelayLevel": "1s 2s 1h"}
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, LEVELS) as made:
        yield made


def delay(bench: Bench, level: int, body: bytes = b"later", queue_id: int = 1) -> None:
    """Sends a delayed message."""
    properties = {"UNIQ_KEY": UNIQ_KEY, "DELAY": str(level), "TAGS": "a", "WAIT": "true"}
    assert bench.peer().call(send_command("T", body, properties, queue_id=queue_id)).code == 0


async def test_a_message_is_delivered_unchanged_after_its_delay(bench: Bench) -> None:
    delay(bench, 1)
    delayed = bench.record(SCHEDULE, 0, 0)
    await until(lambda: bench.count("T", 1) == 1)
    came = bench.record("T", 1, 0)
    unit = bench.broker.store.queue(SCHEDULE, 0).unit(0)
    assert unit is not None
    assert unit[2] == delayed.store_timestamp + 1000, "when it is due"
    assert came.store_timestamp - delayed.store_timestamp >= 1000
    assert (came.body, came.born_timestamp, came.born_host) == (
        b"later",
        delayed.born_timestamp,
        delayed.born_host,
    )
    assert came.store_host == delayed.store_host
    # RocketMQ encodes the properties before it removes some: all of them stay.
    properties = records.parse_properties(came.properties)
    assert (properties["DELAY"], properties["REAL_TOPIC"], properties["REAL_QID"]) == ("1", "T", "1")
    assert properties["WAIT"] == "true"
    queue = bench.broker.store.lookup.existing_queue("T", 1)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    assert unit[2] == ord("a")  # the hash of its tag, not a time


async def test_messages_of_one_level_are_delivered_in_order(bench: Bench) -> None:
    for number in range(20):
        delay(bench, 1, str(number).encode())
    await until(lambda: bench.count("T", 1) == 20)
    came = [bench.record("T", 1, offset).body for offset in range(20)]
    assert came == [str(number).encode() for number in range(20)]


async def test_deliveries_continue_after_a_restart_at_the_written_offset(tmp_path: Path) -> None:
    async with running(tmp_path, LEVELS) as bench:
        delay(bench, 1, b"first")
        await until(lambda: bench.count("T", 1) == 1)
        delay(bench, 3, b"in an hour")
    written = json.loads((tmp_path / "config" / "delayOffset.json").read_text().replace("{1:", '{"1":'))
    assert written["offsetTable"] == {"1": 1}
    async with running(tmp_path, LEVELS) as bench:
        assert bench.broker.delays.offsets == {1: 1}
        delay(bench, 1, b"second")
        await until(lambda: bench.count("T", 1) == 2)
        assert bench.record("T", 1, 1).body == b"second"
        assert bench.count(SCHEDULE, 2) == 1


async def test_the_data_version_increments_every_so_many_deliveries(tmp_path: Path) -> None:
    """A returning master tells by it whether the acting master's offsets are newer."""
    async with running(tmp_path, LEVELS | {"delayOffsetUpdateVersionStep": "2"}) as bench:
        delays = bench.broker.delays
        for delivered, counter in ((1, 0), (2, 1)):
            delay(bench, 1)
            await until(lambda delivered=delivered: delays.offsets.get(1) == delivered)  # type: ignore[misc]
            assert delays.data_version.counter == counter


async def test_offsets_outside_their_queue_are_moved_to_its_nearer_end(bench: Bench, tmp_path: Path) -> None:
    delay(bench, 3)
    path = tmp_path / "config" / "delayOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":5},"offsetTable":{3:9,2:1}}')
    broker = bench.broker
    service = DelayService(broker.service_context, sink_of_level=lambda _level: broker.writer)
    service.load()
    assert service.offsets == {3: 1, 2: 1}
    assert (service.data_version.counter, service.data_version.timestamp) == (3, 5)


async def test_a_message_with_a_delivery_time_beyond_the_levels_delay_is_delivered_now(bench: Bench) -> None:
    delay(bench, 1)
    queue = bench.broker.store.lookup.existing_queue(SCHEDULE, 0)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    # as after the clock was set back
    assert queue.buffer is not None
    queue.buffer[12:20] = (unit[2] + 10**9).to_bytes(8, "big")
    await until(lambda: bench.count("T", 1) == 1)


@pytest.mark.parametrize("after", [{}, {"enableConsumeQueueExt": "true"}], ids=["lost", "kept"])
async def test_a_message_with_an_extension_unit_is_not_delivered_early(
    tmp_path: Path, after: dict[str, str]
) -> None:
    """Also if the extension, with the delivery time, is lost."""
    async with running(tmp_path, LEVELS | {"enableConsumeQueueExt": "true"}) as bench:
        delay(bench, 3)
        delay(bench, 1)
    async with running(tmp_path, LEVELS | after) as bench:
        queue = bench.broker.store.lookup.existing_queue(SCHEDULE, 0)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        assert is_address(unit[2])
        await until(lambda: bench.count("T", 1) == 1)
        came, delayed = bench.record("T", 1, 0), bench.record(SCHEDULE, 0, 0)
        assert came.store_timestamp - delayed.store_timestamp >= 1000
        assert bench.broker.delays.offsets.get(3, 0) == 0


async def test_a_delivery_that_cannot_be_stored_is_retried(bench: Bench) -> None:
    delay(bench, 1)
    bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, True)
    await until(lambda: bench.broker.delays._paused_until.get(1))
    assert bench.broker.delays.offsets.get(1, 0) == 0
    bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, False)
    await until(lambda: bench.count("T", 1) == 1)


@pytest.mark.parametrize("spoiled", [b"body of the second", b"REAL_QID\x011"])
async def test_a_damaged_message_is_skipped_and_the_next_ones_are_delivered(
    bench: Bench, caplog: pytest.LogCaptureFixture, spoiled: bytes
) -> None:
    """Its checksum does not match, or its target topic is missing: retries would block its level for ever."""
    for body in (b"the first", b"body of the second", b"the third"):
        delay(bench, 1, body)
    file = bench.broker.store.log.file
    assert file is not None
    second = file.map.find(b"body of the second")
    at = file.map.find(spoiled, second)
    file.map[at + len(spoiled) - 1] = ord("x")
    await until(lambda: bench.count("T", 1) == 2)
    assert [bench.record("T", 1, offset).body for offset in range(2)] == [b"the first", b"the third"]
    assert f"cannot handle the record {SCHEDULE}-0-1" in caplog.text


async def test_a_failing_level_does_not_stop_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = bench.broker.delays._deliver_one

    def broken(level: int, offset: int, physical_offset: int, size: int) -> bool:
        if level == 1:
            raise RuntimeError("broken")
        return deliver(level, offset, physical_offset, size)

    monkeypatch.setattr(bench.broker.delays, "_deliver_one", broken)
    delay(bench, 1)
    delay(bench, 2, b"other", queue_id=2)
    await until(lambda: bench.count("T", 2) == 1)
    assert bench.count("T", 1) == 0


def test_a_retried_message_keeps_its_original_topic_and_id() -> None:
    delayed = MessageExt(
        SCHEDULE,
        properties=b"DELAY\x013\x02REAL_TOPIC\x01%RETRY%g\x02REAL_QID\x010\x02RETRY_TOPIC\x01T\x02WAIT\x01false\x02",
        reconsume_times=2,
        sys_flag=1,
    )
    message = restore_message(delayed)
    assert (message.topic, message.queue_id) == ("%RETRY%g", 0)
    assert (message.reconsume_times, message.sys_flag) == (2, 1)
    assert message.rendered == delayed.properties
    assert "DELAY" not in message.properties


async def test_runtime_info_has_the_offsets_of_every_level(bench: Bench) -> None:
    delay(bench, 1)
    await until(lambda: bench.count("T", 1) == 1)
    assert bench.broker.delays.running_stats() == {"scheduleMessageOffset_1": "1,1"}


async def test_a_long_backlog_does_not_block_the_event_loop_and_every_level_gets_a_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochmq_broker.services.delay_service.ROUND_BUDGET_S", 0.0)
    monkeypatch.setattr("epochmq_broker.services.delay_service.ROUND_MAX", 4)
    for _ in range(30):
        delay(bench, 1)
    for _ in range(10):
        delay(bench, 2, queue_id=2)
    await until(lambda: bench.count("T", 1) == 30 and bench.count("T", 2) == 10)
    assert bench.broker.delays.offsets == {1: 30, 2: 10}
