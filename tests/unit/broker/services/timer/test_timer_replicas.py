"""A slave fills its wheel as far as its master has; when it becomes the master it continues where that one
stopped: nothing is lost, nothing comes early, and little twice."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_protocol.frame import Command
from tests.unit.broker.kit import UNIQ_KEY, Bench, running, send_command, until

MASTER = "127.53.7.9:10911"
TIMER = "rmq_sys_wheel_timer"
QUICK = {"timerPrecisionMs": "100", "timerFlushIntervalMs": "20"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


class Replication:
    """A master and a slave in one process. `copy` replicates log and tables once."""

    def __init__(self, master: Bench, slave: Bench) -> None:
        self.master, self.slave = master, slave
        self._peer = master.peer()
        self._sync = slave.broker.slave_sync
        self._sync._client = self

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """Asks the master."""
        return await self._peer.answer(self._peer.send(command))

    def copy_log(self) -> None:
        """Makes the slave's log equal to the master's."""
        source, target = self.master.broker.store, self.slave.broker.store
        start, end = target.max_phy_offset, source.max_phy_offset
        file = source.log.files.find(start)
        if end > start:
            assert file is not None
            data = file.map[start - file.start : end - file.start]
            target.replica_log.write(start, memoryview(data))
            while target.replica_log.dispatch(end):
                pass
            target.note_replicated_bytes()

    async def copy(self) -> None:
        """Copies the tables, then the log."""
        await self._sync.refresh()
        self.copy_log()

    def follow(self) -> None:
        """Starts to copy tables."""
        self._sync.master = MASTER

    def promote(self) -> None:
        """Makes the slave the master."""
        self.slave.broker.live.set_role(0, "SYNC_MASTER")
        self.slave.broker.master_services.start()


def timer_of(bench: Bench) -> TimerService:
    timer = bench.broker.timer
    assert timer is not None
    return timer


@contextlib.asynccontextmanager
async def replication(path: Path, *, window_slots: int = 8) -> AsyncIterator[Replication]:
    settings = QUICK | {"timerRollWindowSlot": str(window_slots)}
    async with (
        running(path / "master", settings) as master,
        running(path / "slave", settings | SLAVE) as slave,
    ):
        made = Replication(master, slave)
        made.follow()
        yield made


def present() -> int:
    return now_ms()


def send(bench: Bench, body: bytes, due: int) -> None:
    properties = {"UNIQ_KEY": UNIQ_KEY, "TIMER_DELIVER_MS": str(due)}
    assert bench.peer().call(send_command("T", body, properties)).code == 0


def has_settled(bench: Bench) -> bool:
    """Whether the checkpoint includes all deliveries."""
    timer = timer_of(bench)
    return timer.read_progress.safe == timer.timers.read_time_ms


def delivered(bench: Bench) -> list[bytes]:
    return [bench.record("T", 0, at).body for at in range(bench.count("T"))]


async def test_a_slave_has_the_masters_wheel_and_delivers_nothing(tmp_path: Path) -> None:
    # Nothing rolls or is delivered before the slave has the wheel, on a slow machine, too.
    async with replication(tmp_path, window_slots=60) as pair:
        due = present() + 5800
        for number in range(9):
            send(pair.master, b"%d" % number, due + number % 4 * 100)  # some beyond the window: they roll
        send(pair.master, b"soon", present() + 100)
        await until(lambda: timer_of(pair.master).timers.pending == 9 and delivered(pair.master))
        await until(lambda: has_settled(pair.master))
        await pair.copy()
        await until(lambda: timer_of(pair.slave).timers.queue_offset == 10)
        ours, theirs = timer_of(pair.slave), timer_of(pair.master)
        assert ours.timers.pending == theirs.timers.pending == 9
        assert ours.timers.checkpoint.read_time_ms <= theirs.timers.read_time_ms
        assert ours.metrics.table == theirs.metrics.table
        slots = [dict(one.timers.wheel.linked_after(0)) for one in (ours, theirs)]
        assert slots[0].keys() <= slots[1].keys()
        await until(lambda: len(delivered(pair.master)) == 10)
        assert delivered(pair.slave) == [b"soon"]


async def test_a_slave_that_becomes_the_master_delivers_what_is_left(tmp_path: Path) -> None:
    async with replication(tmp_path) as pair:
        start = present()
        for number in range(20):
            send(pair.master, b"%d" % number, start + 200 + number * 100)
        await until(lambda: len(delivered(pair.master)) >= 5)
        await pair.copy()
        before = timer_of(pair.slave).timers.checkpoint
        known = set(delivered(pair.slave))
        assert before.read_time_ms > start - 1000
        pair.master.broker.master_services.stop()
        pair.promote()
        await until(lambda: set(delivered(pair.slave)) == {b"%d" % at for at in range(20)})
        came = delivered(pair.slave)
        twice = {body for body in came if came.count(body) > 1}
        assert twice <= known
        assert len(twice) <= 3  # what the master delivered after the checkpoint was copied
        for at, body in enumerate(came):
            assert pair.slave.record("T", 0, at).store_timestamp >= start + 200 + int(body) * 100


async def test_rolled_messages_come_once_after_a_change_of_the_master(tmp_path: Path) -> None:
    async with replication(tmp_path) as pair:
        due = present() + 3000
        for number in range(5):
            send(pair.master, b"%d" % number, due)
        await until(lambda: pair.master.count(TIMER) == 10)  # all were stored again once
        # The checkpoint does not move before the copies are known to be safe.
        await until(lambda: has_settled(pair.master))
        pair.master.broker.master_services.stop()
        await pair.copy()
        pair.promote()
        await until(lambda: len(delivered(pair.slave)) == 5)
        await until(lambda: timer_of(pair.slave).timers.pending == 0)
        assert sorted(delivered(pair.slave)) == [b"%d" % at for at in range(5)]


async def test_messages_that_follow_at_the_offsets_of_lost_ones_are_not_taken_for_delivered(
    tmp_path: Path,
) -> None:
    async with replication(tmp_path) as pair:
        send(pair.master, b"kept", present() + 2000)
        pair.copy_log()
        send(pair.master, b"lost", present() + 100)
        await until(lambda: delivered(pair.master) == [b"lost"])
        await until(lambda: timer_of(pair.master).enqueuer.progress.safe == 2)
        await pair._sync.refresh()  # the checkpoint includes a message that the slave's log lacks
        assert timer_of(pair.slave).timers.checkpoint.master_queue_offset == 2
        pair.promote()
        timer_of(pair.slave).timers.checkpoint.read_time_ms = 0
        send(pair.slave, b"new", present() + 100)
        await until(lambda: sorted(delivered(pair.slave)) == [b"kept", b"new"])


@pytest.mark.parametrize("truncated", [False, True])
async def test_a_former_master_that_lost_its_end_becomes_the_master_again(
    tmp_path: Path, truncated: bool
) -> None:
    for lead_ms in (2500, 10_000, 40_000):  # the first master must stop before anything is due
        if await loses_its_end(tmp_path / str(lead_ms), lead_ms, truncated=truncated):
            return
    pytest.fail("the machine was too busy three times")


async def loses_its_end(directory: Path, lead_ms: int, *, truncated: bool) -> bool:
    """Whether the first master stopped in time, so that all could be seen."""
    async with replication(directory) as pair:
        due = present() + lead_ms
        send(pair.master, b"first", due)
        pair.copy_log()
        cut = pair.master.broker.store.max_phy_offset
        send(pair.master, b"replaced", due + 100)
        await until(lambda: timer_of(pair.master).timers.queue_offset >= 2)
        pair.master.broker.master_services.stop()
        await pair._sync.refresh()
        if not truncated:
            pair.copy_log()
        pair.promote()
        send(pair.slave, b"second", due + 200)
        if present() >= due:
            return False
        if truncated:
            pair.master.broker.store.truncate(cut)
            assert timer_of(pair.master).timers.queue_offset == 1
        back = Replication(pair.slave, pair.master)
        back.follow()
        await until(lambda: timer_of(pair.slave).timers.queue_offset == pair.slave.count(TIMER))
        await back.copy()
        pair.slave.broker.master_services.stop()
        back.promote()
        expected = [b"first", b"second"] if truncated else [b"first", b"replaced", b"second"]
        await until(lambda: delivered(pair.master) == expected)
        await until(lambda: timer_of(pair.master).timers.pending == 0)
        assert delivered(pair.master) == expected
        return True
