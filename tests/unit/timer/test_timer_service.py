"""Timer messages are delivered once when their time has come: not early, also after a restart."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.frame import Command
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
    return int(time.time() * 1000)


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
        assert bench.broker.timer.timers.pending == 0
    async with running(tmp_path, QUICK) as bench:
        send(bench, b"4", TIMER_DELAY_MS=300)
        await until(lambda: bench.count("T", 1) == 4)
        assert bench.record("T", 1, 3).body == b"4"
