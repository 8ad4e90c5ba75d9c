"""The fast path into the wheel writes the files that the ordinary path writes, and counts the same."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.services.timer.delivery import DeliveryResult
from epochmq_broker.services.timer.enqueuer import TimerEnqueuer
from epochmq_broker.services.timer.plain_entries import PlainEntries
from epochmq_broker.services.timer.record_reader import RecordReader
from epochmq_broker.services.timer.records import DueMessage
from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_broker.services.timer.timer_store import TimerStore
from epochmq_formats.timer_log import UNIT_BYTES
from epochmq_protocol import message as records
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_store.message_store import MessageStore
from tests.unit.broker.kit import BORN_MS, UNIQ_KEY, Bench, running

MESSAGES = 600
ROLL_SLOTS = 100
FILE_BYTES = 50 * UNIT_BYTES + 16
HOSTS = [records.encode_host("127.0.0.1", 1), records.encode_host("::1", 10911)]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    config = {"timerStopEnqueue": "true", "timerRollWindowSlot": str(ROLL_SLOTS)}
    async with running(tmp_path, config) as made:
        yield made


class NoDelivery:
    """Notes what is delivered at once."""

    retry_s = 1.0

    def __init__(self) -> None:
        self.log_end = 0
        self.delivered: list[int] = []

    def put(self, due: DueMessage, _enqueue_ms: int, *, rolls: bool) -> DeliveryResult:
        """Notes the message."""
        assert not rolls
        self.log_end = due.message.physical_offset
        self.delivered.append(self.log_end)
        return DeliveryResult.DONE


class Wheel:
    """One timer on the messages of a store, with files of its own."""

    def __init__(self, bench: Bench, folder: Path, clock_ms: int, *, is_master: bool) -> None:
        store = bench.broker.store
        self.timers = TimerStore(
            root=folder, config_dir=folder / "config", file_size=FILE_BYTES, precision_ms=1000
        )
        self.timers.load(store, clock_ms)
        self.timers.checkpoint.master_queue_offset = MESSAGES
        self.timers.queue_offset = 0
        self.metrics, self.delivery = TimerMetrics(folder), NoDelivery()
        delivery: Any = self.delivery
        self.enqueuer = TimerEnqueuer(
            live=bench.broker.live,
            store=store,
            timers=self.timers,
            metrics=self.metrics,
            delivery=delivery,
            reader=RecordReader(store),
            quarantine=bench.broker.quarantine,
            clock_ms=lambda: clock_ms,
        )
        self.enqueuer.is_master = is_master

    def fill(self) -> None:
        """Takes all messages; nothing has to be read from the disk."""
        assert all(wait is None for wait in self.enqueuer.work())

    def outcome(self) -> dict[str, Any]:
        """Everything that the files, the metrics and the enqueuer hold."""
        timers, enqueuer = self.timers, self.enqueuer
        traffic = {
            topic: (one.enqueued, one.delays_s.counts, one.delays_s.total)
            for topic, one in self.metrics.traffic.items()
        }
        return {
            "log": [file.map[: file.wrote] for file in timers.log.files.files],
            "wheel": sorted(timers.wheel.take_dirty()),
            "counts": {topic: entry.count for topic, entry in self.metrics.table.items()},
            "traffic": traffic,
            "pending": timers.pending,
            "offset": timers.queue_offset,
            "progress": (enqueuer.progress.reached, enqueuer.progress.safe),
            "taken": (enqueuer.taken, enqueuer.stored_at_ms, enqueuer.taken_at_ms),
            "delivered": self.delivery.delivered,
        }


def some_message(chance: random.Random, store: MessageStore) -> None:
    """Stores a record in the timer topic, which is often plain."""
    precision_ms = 1000
    present_ms = store.appender.last_timestamp
    ahead_ms = chance.choice([5, 30, 30, 99, 100, 101, 5000, -3]) * precision_ms
    properties = {
        "UNIQ_KEY": UNIQ_KEY,
        "TIMER_OUT_MS": str(present_ms // precision_ms * precision_ms + ahead_ms),
        "REAL_TOPIC": chance.choice(["T", "Other", "ü"]),
        "REAL_QID": "1",
    }
    if chance.random() < 0.05:
        properties["TIMER_DEL_UNIQKEY"] = "T+x"
    if chance.random() < 0.03:
        properties["TIMER_OUT_MS"] = chance.choice(["x", "9" * 19, "٣"])
    if chance.random() < 0.03:
        del properties[chance.choice(sorted(properties))]
    names = chance.sample(sorted(properties), len(properties))
    rendered = records.format_properties({name: properties[name] for name in names})
    if chance.random() < 0.1:
        rendered = chance.choice([rendered[:-1], b"\x02" + rendered, rendered + b"TIMER_OUT_MS\x01\x02"])
    _, physical, _, size = store.append(
        store.queue(TIMER_TOPIC, 0),
        body=bytes(chance.choices(range(256), k=chance.choice([0, 1, 100]))),
        properties=rendered,
        born_timestamp=chance.choice([BORN_MS, present_ms, present_ms + 10**9]),
        born_host=chance.choice(HOSTS),
    )
    if chance.random() < 0.02:
        file = store.log.file
        assert file is not None
        file.map[physical - file.start + chance.choice([2, 5, 30, size - 20])] ^= 1


@pytest.mark.parametrize("is_master", [True, False])
async def test_both_paths_write_the_same_files_and_count_the_same(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_master: bool
) -> None:
    store, chance = bench.broker.store, random.Random(7)
    for _ in range(MESSAGES):
        some_message(chance, store)
    clock_ms = store.appender.last_timestamp + 2000
    taken: list[int] = []
    take = PlainEntries.take

    def count_taken(*arguments: Any, **more: Any) -> int:
        taken.append(take(*arguments, **more))
        return taken[-1]

    monkeypatch.setattr(PlainEntries, "take", count_taken)
    fast = Wheel(bench, tmp_path / "fast", clock_ms, is_master=is_master)
    fast.fill()
    assert MESSAGES // 10 < sum(taken) < MESSAGES
    monkeypatch.setattr(PlainEntries, "take", lambda *_, **__: 0)
    ordinary = Wheel(bench, tmp_path / "ordinary", clock_ms, is_master=is_master)
    ordinary.fill()
    assert fast.outcome() == ordinary.outcome()
    assert fast.timers.queue_offset == MESSAGES
    assert len(fast.timers.log.files.files) > 3
    for wheel in (fast, ordinary):
        wheel.timers.close()


async def test_plain_messages_take_the_fast_path_up_to_the_end_of_a_file(
    bench: Bench, tmp_path: Path
) -> None:
    store = bench.broker.store
    due = b"UNIQ_KEY\x01k\x02TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02" % (BORN_MS + 50_000)
    queue = store.queue(TIMER_TOPIC, 0)
    store.appender.last_timestamp = 0
    store.appender._clock = lambda: BORN_MS / 1000
    for _ in range(60):
        store.append(queue, body=b"b", properties=due, born_timestamp=BORN_MS, born_host=HOSTS[0])
    wheel = Wheel(bench, tmp_path / "fast", BORN_MS, is_master=True)
    units = list(queue.units(0, 60))
    plain = PlainEntries(store, wheel.timers, wheel.metrics)
    assert plain.take(units, BORN_MS, 100_000, counts=True) == 0  # there is no file yet
    wheel.timers.move_write_time(BORN_MS)
    wheel.timers.add(BORN_MS + 50_000, BORN_MS, *units[0][:2], 84, rolls=False, deletes=False)
    assert plain.take(units[1:], BORN_MS, 100_000, counts=True) == 49
    assert plain.take(units[50:], BORN_MS, 100_000, counts=True) == 0
    assert wheel.timers.pending == 50
    wheel.timers.close()
