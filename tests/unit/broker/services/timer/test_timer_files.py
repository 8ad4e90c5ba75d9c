"""Wheel, timer log and checkpoint stay consistent: each message has one unit, and its slot leads to it,
whatever was killed, lost or truncated."""

from __future__ import annotations

import bisect
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epochmq_broker.services.timer.timer_checkpoint import read_checkpoint, write_checkpoint
from epochmq_broker.services.timer.timer_log import TimerLog
from epochmq_broker.services.timer.timer_store import TimerStore
from epochmq_broker.services.timer.wheel import Slot, TimerWheel
from epochmq_formats.timer_checkpoint import TimerCheckpoint
from epochmq_formats.timer_log import NO_UNIT, UNIT_BYTES
from epochmq_formats.timer_wheel import SLOTS
from epochmq_protocol.message_const import BLANK_MAGIC
from epochmq_protocol.topics import DataVersion
from epochmq_store.files.mapped_file import StoreDamagedError

NOW_MS = 1_700_000_000_000
FILE_BYTES = 10 * UNIT_BYTES + 30  # 10 units and a blank
RECORD_BYTES = 100


class FakeQueue:
    """The timer topic's queue: the physical offsets of its messages."""

    min_offset = 0

    def __init__(self) -> None:
        self.physical: list[int] = []

    @property
    def max_offset(self) -> int:
        return len(self.physical)

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        return (self.physical[offset], RECORD_BYTES, 0) if offset < len(self.physical) else None

    def first_at_or_after(self, physical: int, low: int, high: int) -> int:
        return bisect.bisect_left(self.physical, physical, low, high)


class FakeStore:
    """The parts of a message store that the timer's files use."""

    def __init__(self) -> None:
        self.queue = FakeQueue()
        self.lookup = self
        self.max_phy_offset = 0

    def existing_queue(self, topic: str, queue_id: int) -> FakeQueue:
        return self.queue


Message = tuple[int, int, bool]  # (physical offset, time of the slot, whether it deletes another)


class TimerFiles(RuleBasedStateMachine):
    """Adds, flushes, kills, loses and truncates."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self.root = Path(self._scratch.name)
        self.store: Any = FakeStore()
        self.messages: list[Message] = []
        self.timers = self.opened()

    def opened(self) -> TimerStore:
        timers = TimerStore(
            root=self.root, config_dir=self.root / "config", file_size=FILE_BYTES, precision_ms=1000
        )
        timers.load(self.store, NOW_MS)
        return timers

    def reopen(self) -> None:
        """Opens the files again; messages behind the checkpoint enter the wheel again."""
        self.timers.close()
        self.timers = self.opened()
        del self.messages[self.timers.queue_offset :]

    def teardown(self) -> None:
        self.timers.close()
        self._scratch.cleanup()

    @rule(seconds=st.integers(0, 5), deletes=st.booleans(), count=st.integers(1, 12))
    def add(self, seconds: int, deletes: bool, count: int) -> None:
        for number in range(count):
            offset = self.timers.queue_offset
            time_ms = NOW_MS + (seconds + number % 3) * 1000
            if offset == self.store.queue.max_offset:
                self.store.queue.physical.append(self.store.max_phy_offset)
                self.store.max_phy_offset += RECORD_BYTES
            physical = self.store.queue.physical[offset]
            self.timers.add(time_ms, NOW_MS, physical, RECORD_BYTES, 7, rolls=False, deletes=deletes)
            self.timers.queue_offset = offset + 1
            self.messages.append((physical, time_ms, deletes))

    @rule()
    def flush(self) -> None:
        checkpoint = self.timers.checkpoint
        checkpoint.queue_offset = checkpoint.master_queue_offset = self.timers.queue_offset
        checkpoint.read_time_ms = NOW_MS
        flush = self.timers.prepare_flush()
        self.timers.write(flush)
        self.timers.flushed(flush)

    @rule()
    def kill(self) -> None:
        self.reopen()

    @rule()
    def kill_within_a_flush(self) -> None:
        """The log and the wheel are written, the checkpoint is not."""
        flush = self.timers.prepare_flush()
        self.timers.wheel.write(flush.pages)
        self.reopen()

    @rule(kept=st.integers(0, 40))
    def lose_the_end_of_the_timer_log(self, kept: int) -> None:
        """As a disk that lied about a flush: the units are found missing, and are added again."""
        end = min(self.timers.log.end, kept * UNIT_BYTES)
        log = self.timers.log
        while log.files.files and log.files.files[-1].start >= end and len(log.files.files) > 1:
            log.files.files.pop().delete()
        if log.files.files:
            file = log.files.files[-1]
            file.zero_from(max(end - file.start, 0))
        self.reopen()

    @rule()
    def lose_the_wheel(self) -> None:
        self.timers.wheel.path.unlink()
        self.reopen()

    @precondition(lambda self: self.store.queue.physical)
    @rule(data=st.data())
    def truncate_the_commit_log(self, data: st.DataObject) -> None:
        queue = self.store.queue
        offset = data.draw(st.integers(0, queue.max_offset - 1))
        physical = queue.physical[offset]
        del queue.physical[offset:]
        self.store.max_phy_offset = physical
        self.timers.queue_offset = min(self.timers.queue_offset, offset)
        self.timers.remove_from(physical)
        del self.messages[self.timers.queue_offset :]

    @invariant()
    def slots_lead_to_the_messages(self) -> None:
        timers = self.timers
        assert timers.queue_offset == len(self.messages)
        by_time: dict[int, list[Message]] = {}
        for message in self.messages:
            by_time.setdefault(message[1], []).append(message)
        for time_ms in range(NOW_MS, NOW_MS + 9000, 1000):
            expected = by_time.get(time_ms, [])
            slot = timers.wheel.slot(time_ms)
            found: list[Message] = []
            position = NO_UNIT if slot is None else slot.last
            while position != NO_UNIT:
                unit = timers.log.unit(position)
                assert unit is not None
                found.append((unit.offset, unit.time_ms, unit.deletes))
                assert unit.previous < position
                position = unit.previous
            assert found[::-1] == expected
            assert (0 if slot is None else slot.num) == sum(-1 if one[2] else 1 for one in expected)
        assert timers.pending == sum(-1 if one[2] else 1 for one in self.messages)
        assert sum(1 for _ in timers.log.units_backwards()) == len(self.messages)


TestTimerFiles = TimerFiles.TestCase
TestTimerFiles.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_a_unit_and_a_slot_have_rocketmqs_bytes(tmp_path: Path) -> None:
    timers = TimerStore(root=tmp_path, config_dir=tmp_path / "config", file_size=4096, precision_ms=1000)
    timers.load(FakeStore(), NOW_MS)  # type: ignore[arg-type]  # only the parts that are used
    timers.add(NOW_MS + 5000, NOW_MS, 1234, 200, -77, rolls=False, deletes=False)
    timers.add(NOW_MS + 5000, NOW_MS, 2234, 300, 78, rolls=True, deletes=True)
    flush = timers.prepare_flush()
    timers.write(flush)
    timers.close()
    log = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert log[:104] == (
        struct.pack(">iqiqiqiiq", 52, -1, 1, NOW_MS, 5000, 1234, 200, -77, 0)
        + struct.pack(">iqiqiqiiq", 52, 0, 7, NOW_MS, 5000, 2234, 300, 78, 0)
    )
    wheel = (tmp_path / "timerwheel").read_bytes()
    assert len(wheel) == 38_707_200
    key = NOW_MS // 1000 + 5
    at = key % SLOTS * 32
    assert wheel[at : at + 32] == struct.pack(">qqqii", key, 0, 52, 0, 0)
    assert wheel.count(0) >= len(wheel) - 32


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_kill_after_a_truncation_finds_the_units_that_came_after_it(seconds: int) -> None:
    """The new unit is at the position of a flushed one that was truncated, in another slot."""
    files = TimerFiles()
    files.add(1 - seconds, deletes=False, count=1)
    files.flush()
    queue = files.store.queue
    queue.physical.clear()
    files.store.max_phy_offset = files.timers.queue_offset = 0
    files.timers.remove_from(0)
    files.messages.clear()
    files.add(seconds, deletes=False, count=2)
    files.kill()
    files.slots_lead_to_the_messages()
    files.teardown()


def test_a_file_that_is_full_ends_with_a_blank(tmp_path: Path) -> None:
    log = TimerLog(tmp_path, FILE_BYTES)
    for number in range(11):
        position = log.append(NO_UNIT, 1, NOW_MS, 0, number, 1, 0)
        assert position == (number * UNIT_BYTES if number < 10 else FILE_BYTES)
    first = (tmp_path / f"{0:020d}").read_bytes()
    assert struct.unpack(">iqi", first[10 * UNIT_BYTES : 10 * UNIT_BYTES + 16]) == (30, 0, BLANK_MAGIC)
    assert [unit.offset for unit in log.units_backwards()] == list(range(10, -1, -1))
    assert log.take_expired(9) == []
    assert [file.start for file in log.take_expired(10)] == [0]
    log.close()


def test_the_checkpoint_has_rocketmqs_bytes(tmp_path: Path) -> None:
    version = DataVersion(counter=7, state_version=5, timestamp=6)
    made = TimerCheckpoint(
        read_time_ms=1, log_flushed=2, queue_offset=3, master_queue_offset=4, data_version=version
    )
    assert made.encode() == struct.pack(">qqqqqqq", 1, 2, 3, 4, 5, 6, 7)
    path = tmp_path / "timercheck"
    assert read_checkpoint(path) == TimerCheckpoint()
    write_checkpoint(path, made.encode())
    assert path.stat().st_size == 4096
    assert read_checkpoint(path) == made
    assert TimerCheckpoint.decode(made.encode()[:32]).master_queue_offset == 4  # of an old broker
    with pytest.raises(ValueError, match="56 bytes, not 3"):
        TimerCheckpoint.decode(b"abc")


def test_a_wheel_of_another_size_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    path.write_bytes(b"short")
    with pytest.raises(StoreDamagedError, match="5 bytes, a timer wheel has 38707200"):
        TimerWheel(path, 1000).load()


def test_a_slot_of_an_earlier_turn_of_the_wheel_counts_as_empty(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel", 1000)
    wheel.load()
    wheel.put(NOW_MS, Slot(1, 2, 3, 0))
    assert wheel.slot(NOW_MS + 999) == Slot(1, 2, 3, 0)
    assert wheel.slot(NOW_MS + SLOTS * 1000) is None
    wheel.put(NOW_MS + SLOTS * 1000, Slot(4, 5, 6, 0))
    assert wheel.slot(NOW_MS) is None
    assert wheel.count_from(NOW_MS) == 6
    assert (
        wheel.next_used(NOW_MS + SLOTS * 1000 - 5000, NOW_MS + SLOTS * 1000 + 5000, 100)
        == NOW_MS + SLOTS * 1000
    )
    wheel.close()
