"""Group commit, periodic flushes, and what a failing disk does to a store."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.store import GetStatus, MessageStore, PutStatus, RunningFlags
from epochmq_broker.store.tail_state import TailState
from epochmq_broker.store.worker_thread import WorkerBusyError, WorkerThread
from tests.unit.store.support import Message, opened, put, put_all

DEADLINE_S = 60


@asynccontextmanager
async def running(directory: Path, **changes: Any) -> AsyncIterator[MessageStore]:
    """A started store."""
    store = opened(directory, **changes)
    store.start()
    try:
        yield store
    finally:
        store.stop()


async def until(holds: Callable[[], bool]) -> None:
    """Waits, with a deadline, until something holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110  # no event tells what these tests wait for
            await asyncio.sleep(0.001)


class Disk:
    """Stands in for fsync: counts, waits while `blocked`, fails while `error` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.error: OSError | None = None
        self.once: Callable[[], OSError | None] = lambda: None
        self.free = threading.Event()
        self.free.set()
        monkeypatch.setattr(os, "fdatasync", self.sync)
        monkeypatch.setattr(os, "fsync", self.sync)

    def sync(self, fd: int) -> None:
        self.count += 1
        assert self.free.wait(DEADLINE_S)
        error = self.error or self.once()
        if error is not None:
            raise error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_whoever_waits_is_told_when_the_bytes_are_on_disk(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        _, physical, _, size = put(store, Message())
        told: list[PutStatus] = []
        store.when_flushed(physical + size, told.append)
        assert not told
        await until(lambda: bool(told))
        assert told == [PutStatus.PUT_OK]
        assert store.flushed_where == physical + size
        assert store.unflushed_bytes == 0
        store.when_flushed(physical, told.append)
        assert told == [PutStatus.PUT_OK] * 2


async def test_puts_that_wait_together_share_one_flush(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path, flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=1 << 20) as store:
        told: list[int] = []
        await asyncio.sleep(0)
        put_all(store, [Message()])
        await until(lambda: store.unflushed_bytes == 0)
        disk.free.clear()
        before = disk.count
        for number in range(50):
            _, physical, _, size = put(store, Message())
            store.when_flushed(physical + size, lambda status, number=number: told.append(number))  # type: ignore[misc]
        await until(lambda: disk.count > before)
        for number in range(50, 100):
            _, physical, _, size = put(store, Message())
            store.when_flushed(physical + size, lambda status, number=number: told.append(number))  # type: ignore[misc]
        disk.free.set()
        await until(lambda: len(told) == 100)
        assert told == list(range(100))
        assert disk.count - before <= 4


async def test_a_slow_disk_is_a_time_out_and_the_message_stays(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=20) as store:
        disk.free.clear()
        _, physical, _, size = put(store, Message())
        told: list[PutStatus] = []
        store.when_flushed(physical + size, told.append)
        await until(lambda: bool(told))
        assert told == [PutStatus.FLUSH_DISK_TIMEOUT]
        disk.free.set()
        await until(lambda: store.flushed_where == physical + size)
        assert store.get(store.queue("orders", 0), 0, 1).status is GetStatus.FOUND


async def test_with_sync_flush_readers_see_only_what_is_on_disk(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        arrived: list[int] = []
        store.on_arrival.append(lambda queue, offset, tags_code: arrived.append(offset))
        disk.free.clear()
        put_all(store, [Message(properties={"KEYS": "k"})] * 3)
        queue = store.queue("orders", 0)
        assert queue.max_offset == 3
        assert store.max_offset(queue) == 0
        assert store.get(queue, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
        assert store.reader.query("orders", "k", 10, 0, 1 << 60).count == 0
        assert not arrived
        disk.free.set()
        # Nobody waits for these: they are flushed, and shown, all the same.
        await until(lambda: arrived == [0, 1, 2])
        assert store.get(queue, 0, 32).count == 3
        assert store.reader.query("orders", "k", 10, 0, 1 << 60).count == 3


async def test_with_async_flush_readers_see_messages_at_once(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path) as store:
        arrived: list[tuple[int, int]] = []
        also: list[int] = []
        store.on_arrival.append(lambda queue, offset, tags_code: arrived.append((queue.queue_id, offset)))
        put_all(store, [Message(queue_id=2)])
        store.on_arrival.append(lambda queue, offset, tags_code: also.append(offset))
        put_all(store, [Message(queue_id=2)])
        assert (arrived, also) == ([(2, 0), (2, 1)], [1])
        store.on_arrival.remove(store.on_arrival[1])
        put_all(store, [Message()])
        assert (arrived[-1], also) == ((0, 0), [1])


async def test_async_flush_follows_in_the_background(tmp_path: Path, disk: Disk) -> None:
    async with running(
        tmp_path,
        flush_interval_commit_log=1,
        flush_interval_consume_queue=1,
        flush_commit_log_thorough_interval=5,
        flush_consume_queue_thorough_interval=5,
    ) as store:
        put_all(store, [Message()] * 30)
        await until(lambda: store.unflushed_bytes == 0)
        checkpoint = store.checkpoint
        await until(lambda: checkpoint.logics_msg_timestamp == store.appender.last_timestamp)
        assert checkpoint.physic_msg_timestamp == store.appender.last_timestamp
        assert store.queue("orders", 0).files.max_offset == 30 * 20
        assert not store.queues.pending.unsynced


async def test_an_idle_store_leaves_the_disk_alone(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path, flush_interval_commit_log=1, flush_interval_consume_queue=1) as store:
        put_all(store, [Message()])
        store.log_flusher.flush_soon()
        await until(lambda: store.unflushed_bytes == 0)
        counts: list[int] = []
        tick = store.queue_flusher.tick

        def counted() -> None:
            counts.append(disk.count)
            tick()

        store.queue_flusher.tick = counted  # type: ignore[method-assign]
        await until(lambda: len(counts) == 30)
        assert counts[10] == counts[29]


async def test_a_failed_fsync_ends_writing_for_good(tmp_path: Path, disk: Disk) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    store.start()
    put_all(store, [Message()])
    await until(lambda: store.unflushed_bytes == 0)
    flushed = store.flushed_where
    disk.error = OSError(errno.EIO, "disk on fire")
    told: list[PutStatus] = []
    _, physical, _, size = put(store, Message())
    store.when_flushed(physical + size, told.append)
    await until(lambda: bool(told))
    assert told == [PutStatus.FLUSH_DISK_TIMEOUT]
    disk.error = None
    assert put(store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
    store.when_flushed(physical + size, told.append)
    assert told == [PutStatus.FLUSH_DISK_TIMEOUT] * 2
    assert store.flushed_where == flushed
    assert store.state.flags & RunningFlags.FLUSH_FAILED
    assert not store.state.writable
    # What is on disk can still be read; the next start recovers.
    assert store.get(store.queue("orders", 0), 0, 32).count == 1
    store.stop()
    assert (tmp_path / "abort").exists()


async def test_a_failed_fsync_of_a_queue_ends_writing_for_good(tmp_path: Path, disk: Disk) -> None:
    """Also when the next fsync succeeds: the checkpoint never vouches for units that one fsync lost, the stop
    leaves the abort file, and the next start says that the end of the log is doubtful."""
    store = opened(tmp_path, flush_interval_consume_queue=1, flush_consume_queue_thorough_interval=1)
    store.start()
    disk.error = OSError(errno.EIO, "disk on fire")
    put_all(store, [Message()])
    await until(lambda: not store.state.writable)
    disk.error = None
    ticks: list[int] = []
    tick = store.queue_flusher.tick

    def counted() -> None:
        tick()
        ticks.append(disk.count)

    store.queue_flusher.tick = counted  # type: ignore[method-assign]
    await until(lambda: len(ticks) == 20)
    store.state.set_flag(RunningFlags.FLUSH_FAILED, False)  # the latch does not depend on the flag
    assert store.checkpoint.logics_msg_timestamp == 0
    store.stop()
    assert (tmp_path / "abort").exists()
    assert struct.unpack(">qq", (tmp_path / "checkpoint").read_bytes()[:16])[1] == 0
    store = opened(tmp_path)
    assert store.tail.state is TailState.UNKNOWN
    assert store.get(store.queue("orders", 0), 0, 32).count == 1
    store.stop()


@pytest.mark.parametrize("broken", ["commitlog", "consumequeue", "index", "checkpoint"])
async def test_a_stop_is_not_clean_when_any_file_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def sync(fd: int) -> None:
        if broken in Path(f"/proc/self/fd/{fd}").readlink().parts and active:
            raise OSError(errno.EIO, "disk on fire")

    active: list[bool] = []
    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "fsync", sync)
    store = opened(tmp_path)
    store.start()
    put_all(store, [Message(properties={"KEYS": "k"})])
    active.append(True)
    store.stop()
    active.clear()
    assert (tmp_path / "abort").exists()
    store = opened(tmp_path)
    assert store.tail.state is TailState.UNKNOWN
    store.stop()


async def test_a_stop_sees_a_failed_fsync_that_the_loop_has_not_heard_of(tmp_path: Path, disk: Disk) -> None:
    """The fsync under way fails while the store stops, and every later one succeeds: whoever waits is not
    told that the message is on disk, and the stop is not clean."""
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    store.start()
    put_all(store, [Message()])
    await until(lambda: store.unflushed_bytes == 0)
    disk.free.clear()
    before = disk.count
    failures = iter([OSError(errno.EIO, "disk on fire")])
    disk.once = lambda: next(failures, None)
    _, physical, _, size = put(store, Message())
    told: list[PutStatus] = []
    store.when_flushed(physical + size, told.append)
    await until(lambda: disk.count > before)
    disk.free.set()
    store.stop()  # joins the thread of the fsync; the loop does not run in between
    assert told == [PutStatus.FLUSH_DISK_TIMEOUT]
    assert (tmp_path / "abort").exists()
    await asyncio.sleep(0)
    store = opened(tmp_path)
    assert store.tail.state is TailState.UNKNOWN
    store.stop()


async def test_too_few_descriptors_are_no_failed_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that finds no descriptor for a file or directory is tried again, and counts only then."""
    async with running(
        tmp_path,
        flush_disk_type="SYNC_FLUSH",
        flush_interval_consume_queue=1,
        flush_consume_queue_thorough_interval=1,
    ) as store:
        put_all(store, [Message()])
        await until(lambda: store.unflushed_bytes == 0)
        refused: list[str] = []
        real_open = os.open

        def exhausted(path: str | Path, *options: int, **more: int) -> int:
            refused.append(str(path))
            raise OSError(errno.EMFILE, "too many open files")

        # Enough messages for another file of the log, whose name needs its directory to be synced.
        done = put_all(store, [Message(body=bytes(1000))] * 8)
        end = done[-1][1] + done[-1][3]
        monkeypatch.setattr(os, "open", exhausted)
        told: list[PutStatus] = []
        store.when_flushed(end, told.append)
        await until(lambda: {Path(path).parts[-1] for path in refused} >= {"commitlog"})
        await until(lambda: any("consumequeue" in path for path in refused))
        assert store.state.writable
        assert not told
        monkeypatch.setattr(os, "open", real_open)
        await until(lambda: told == [PutStatus.PUT_OK])
        await until(lambda: store.checkpoint.logics_msg_timestamp == store.appender.last_timestamp)
    assert not (tmp_path / "abort").exists()


async def test_stopping_answers_whoever_still_waits(tmp_path: Path, disk: Disk) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    store.start()
    _, physical, _, size = put(store, Message())
    told: list[PutStatus] = []
    store.when_flushed(physical + size, told.append)
    store.stop()
    assert told == [PutStatus.PUT_OK]
    assert not (tmp_path / "abort").exists()
    store.when_flushed(physical + size + 1, told.append)
    assert told[1:] == [PutStatus.FLUSH_DISK_TIMEOUT]


async def test_a_tick_that_fails_is_not_the_last_one(tmp_path: Path) -> None:
    async with running(tmp_path, flush_interval_commit_log=1) as store:
        failures = iter([RuntimeError("once")])
        tick = store.log_flusher.tick

        def failing() -> None:
            for failure in failures:
                raise failure
            tick()

        store.log_flusher.tick = failing  # type: ignore[method-assign]
        put_all(store, [Message(body=bytes(1000))] * 30)
        await until(lambda: store.unflushed_bytes < 4096)


def test_a_worker_takes_no_more_than_its_queue_holds() -> None:
    worker = WorkerThread("test", capacity=1)
    gate = threading.Event()
    started = threading.Event()

    def block() -> None:
        started.set()
        assert gate.wait(DEADLINE_S)

    worker.submit(block)
    assert started.wait(DEADLINE_S)
    worker.submit(lambda: None)
    with pytest.raises(WorkerBusyError):
        worker.submit(lambda: None)
    gate.set()
    worker.stop()


def test_what_fails_on_a_worker_is_raised_to_whoever_waits() -> None:
    worker = WorkerThread("test")

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        worker.run_and_wait(fail)
    worker.stop()
