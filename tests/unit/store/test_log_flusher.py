"""Tests group commit, periodic flushes and failed fsyncs."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_formats.abort_file import TailState
from epochmq_store.files.worker_thread import WorkerBusyError, WorkerThread
from epochmq_store.statuses import GetStatus, PutStatus, RunningFlags
from tests.unit.store.started_stores import DEADLINE_S, started_store, wait_until
from tests.unit.store.support import Message, open_store, put, put_all


class FsyncStub:
    """Replaces fsync: counts calls, blocks until `free` is set, and fails while `error` is set."""

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
def disk(monkeypatch: pytest.MonkeyPatch) -> FsyncStub:
    return FsyncStub(monkeypatch)


async def test_a_waiting_put_is_notified_when_its_bytes_are_on_disk(tmp_path: Path, disk: FsyncStub) -> None:
    async with started_store(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        _, physical, _, size = put(store, Message())
        statuses: list[PutStatus] = []
        store.when_flushed(physical + size, statuses.append)
        assert not statuses
        await wait_until(lambda: bool(statuses))
        assert statuses == [PutStatus.PUT_OK]
        assert store.flushed_where == physical + size
        assert store.unflushed_bytes == 0
        store.when_flushed(physical, statuses.append)
        assert statuses == [PutStatus.PUT_OK] * 2


async def test_puts_that_wait_together_share_one_flush(tmp_path: Path, disk: FsyncStub) -> None:
    async with started_store(
        tmp_path, flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=1 << 20
    ) as store:
        finished: list[int] = []
        await asyncio.sleep(0)
        put_all(store, [Message()])
        await wait_until(lambda: store.unflushed_bytes == 0)
        disk.free.clear()
        before = disk.count
        for number in range(50):
            _, physical, _, size = put(store, Message())
            store.when_flushed(physical + size, lambda status, number=number: finished.append(number))  # type: ignore[misc]
        await wait_until(lambda: disk.count > before)
        for number in range(50, 100):
            _, physical, _, size = put(store, Message())
            store.when_flushed(physical + size, lambda status, number=number: finished.append(number))  # type: ignore[misc]
        disk.free.set()
        await wait_until(lambda: len(finished) == 100)
        assert finished == list(range(100))
        assert disk.count - before <= 4


async def test_on_a_slow_disk_a_put_times_out_and_its_message_stays(tmp_path: Path, disk: FsyncStub) -> None:
    async with started_store(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=20) as store:
        disk.free.clear()
        _, physical, _, size = put(store, Message())
        statuses: list[PutStatus] = []
        store.when_flushed(physical + size, statuses.append)
        await wait_until(lambda: bool(statuses))
        assert statuses == [PutStatus.FLUSH_DISK_TIMEOUT]
        disk.free.set()
        await wait_until(lambda: store.flushed_where == physical + size)
        assert store.get(store.queue("orders", 0), 0, 1).status is GetStatus.FOUND


async def test_with_sync_flush_readers_see_only_what_is_on_disk(tmp_path: Path, disk: FsyncStub) -> None:
    async with started_store(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
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
        # They become visible although no put waits for their flush.
        await wait_until(lambda: arrived == [0, 1, 2])
        assert store.get(queue, 0, 32).count == 3
        assert store.reader.query("orders", "k", 10, 0, 1 << 60).count == 3


async def test_with_async_flush_readers_see_messages_at_once(tmp_path: Path, disk: FsyncStub) -> None:
    async with started_store(tmp_path) as store:
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


async def test_with_async_flush_the_background_flushes_everything(tmp_path: Path, disk: FsyncStub) -> None:
    async with started_store(
        tmp_path,
        flush_interval_commit_log=1,
        flush_interval_consume_queue=1,
        flush_commit_log_thorough_interval=5,
        flush_consume_queue_thorough_interval=5,
    ) as store:
        put_all(store, [Message()] * 30)
        await wait_until(lambda: store.unflushed_bytes == 0)
        checkpoint = store.checkpoint
        await wait_until(lambda: checkpoint.logics_msg_timestamp == store.appender.last_timestamp)
        assert checkpoint.physic_msg_timestamp == store.appender.last_timestamp
        assert store.queue("orders", 0).files.max_offset == 30 * 20
        assert not store.queues.pending.unsynced


async def test_an_idle_store_does_not_sync(tmp_path: Path, disk: FsyncStub) -> None:
    async with started_store(tmp_path, flush_interval_commit_log=1, flush_interval_consume_queue=1) as store:
        put_all(store, [Message()])
        store.log_flusher.flush_soon()
        await wait_until(lambda: store.unflushed_bytes == 0)
        counts: list[int] = []
        tick = store.queue_flusher.tick

        def counted() -> None:
            counts.append(disk.count)
            tick()

        store.queue_flusher.tick = counted  # type: ignore[method-assign]
        await wait_until(lambda: len(counts) >= 30)
        assert counts[10] == counts[29]


async def test_after_a_failed_fsync_puts_are_rejected_until_a_restart(
    tmp_path: Path, disk: FsyncStub
) -> None:
    store = open_store(tmp_path, flush_disk_type="SYNC_FLUSH")
    store.start()
    put_all(store, [Message()])
    await wait_until(lambda: store.unflushed_bytes == 0)
    flushed = store.flushed_where
    disk.error = OSError(errno.EIO, "disk on fire")
    statuses: list[PutStatus] = []
    _, physical, _, size = put(store, Message())
    store.when_flushed(physical + size, statuses.append)
    await wait_until(lambda: bool(statuses))
    assert statuses == [PutStatus.FLUSH_DISK_TIMEOUT]
    disk.error = None
    assert put(store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
    store.when_flushed(physical + size, statuses.append)
    assert statuses == [PutStatus.FLUSH_DISK_TIMEOUT] * 2
    assert store.flushed_where == flushed
    assert store.state.flags & RunningFlags.FLUSH_FAILED
    assert not store.state.writable
    # Messages on disk can still be read; the next start recovers.
    assert store.get(store.queue("orders", 0), 0, 32).count == 1
    store.stop()
    assert (tmp_path / "abort").exists()


async def test_after_a_failed_fsync_of_a_queue_puts_are_rejected_until_a_restart(
    tmp_path: Path, disk: FsyncStub
) -> None:
    """This holds even if the next fsync succeeds: the checkpoint does not move, the stop leaves the abort
    file, and the next start reports an UNKNOWN tail."""
    store = open_store(tmp_path, flush_interval_consume_queue=1, flush_consume_queue_thorough_interval=1)
    store.start()
    disk.error = OSError(errno.EIO, "disk on fire")
    put_all(store, [Message()])
    await wait_until(lambda: not store.state.writable)
    disk.error = None
    ticks: list[int] = []
    tick = store.queue_flusher.tick

    def counted() -> None:
        tick()
        ticks.append(disk.count)

    store.queue_flusher.tick = counted  # type: ignore[method-assign]
    await wait_until(lambda: len(ticks) == 20)
    store.state.set_flag(RunningFlags.FLUSH_FAILED, False)  # the latch does not depend on the flag
    assert store.checkpoint.logics_msg_timestamp == 0
    store.stop()
    assert (tmp_path / "abort").exists()
    assert struct.unpack(">qq", (tmp_path / "checkpoint").read_bytes()[:16])[1] == 0
    store = open_store(tmp_path)
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
    store = open_store(tmp_path)
    store.start()
    put_all(store, [Message(properties={"KEYS": "k"})])
    active.append(True)
    store.stop()
    active.clear()
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    assert store.tail.state is TailState.UNKNOWN
    store.stop()


async def test_a_stop_sees_a_failed_fsync_before_the_loop_has_handled_it(
    tmp_path: Path, disk: FsyncStub
) -> None:
    """A running fsync fails while the store stops, and all later ones succeed. The waiting put does not get
    PUT_OK, and the stop is not clean."""
    store = open_store(tmp_path, flush_disk_type="SYNC_FLUSH")
    store.start()
    put_all(store, [Message()])
    await wait_until(lambda: store.unflushed_bytes == 0)
    disk.free.clear()
    before = disk.count
    failures = iter([OSError(errno.EIO, "disk on fire")])
    disk.once = lambda: next(failures, None)
    _, physical, _, size = put(store, Message())
    statuses: list[PutStatus] = []
    store.when_flushed(physical + size, statuses.append)
    await wait_until(lambda: disk.count > before)
    disk.free.set()
    store.stop()  # joins the thread of the fsync; the loop does not run in between
    assert statuses == [PutStatus.FLUSH_DISK_TIMEOUT]
    assert (tmp_path / "abort").exists()
    await asyncio.sleep(0)
    store = open_store(tmp_path)
    assert store.tail.state is TailState.UNKNOWN
    store.stop()


async def test_a_truncation_waits_for_the_running_flush(tmp_path: Path, disk: FsyncStub) -> None:
    async with started_store(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        _, physical, _, size = put(store, Message())
        store.when_flushed(physical + size, lambda _: None)
        await wait_until(lambda: store.unflushed_bytes == 0)
        disk.free.clear()
        before = disk.count
        put(store, Message())
        store.when_flushed(store.max_phy_offset, lambda _: None)
        await wait_until(lambda: disk.count > before)
        running, seen = disk.count, []

        def end_flush() -> None:
            seen.append(disk.count)
            disk.free.set()

        timer = threading.Timer(0.2, end_flush)
        timer.start()
        store.truncate(physical + size)
        timer.join()
        assert seen == [running]  # the truncation had not begun to sync
        assert disk.count > running
        assert store.max_phy_offset == physical + size


async def test_a_shortage_of_descriptors_is_not_a_failed_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that cannot open a file or directory for lack of descriptors is retried."""
    async with started_store(
        tmp_path,
        flush_disk_type="SYNC_FLUSH",
        flush_interval_consume_queue=1,
        flush_consume_queue_thorough_interval=1,
    ) as store:
        put_all(store, [Message()])
        await wait_until(lambda: store.unflushed_bytes == 0)
        failed_paths: list[str] = []
        real_open = os.open

        def exhausted(path: str | Path, *options: int, **more: int) -> int:
            failed_paths.append(str(path))
            raise OSError(errno.EMFILE, "too many open files")

        # Enough messages for a new file of the log, whose directory must be synced.
        done = put_all(store, [Message(body=bytes(1000))] * 8)
        end = done[-1][1] + done[-1][3]
        monkeypatch.setattr(os, "open", exhausted)
        statuses: list[PutStatus] = []
        store.when_flushed(end, statuses.append)
        await wait_until(lambda: {Path(path).parts[-1] for path in failed_paths} >= {"commitlog"})
        await wait_until(lambda: any("consumequeue" in path for path in failed_paths))
        assert store.state.writable
        assert not statuses
        monkeypatch.setattr(os, "open", real_open)
        await wait_until(lambda: statuses == [PutStatus.PUT_OK])
        await wait_until(lambda: store.checkpoint.logics_msg_timestamp == store.appender.last_timestamp)
    assert not (tmp_path / "abort").exists()


async def test_a_stop_ends_the_waiting_puts(tmp_path: Path, disk: FsyncStub) -> None:
    store = open_store(tmp_path, flush_disk_type="SYNC_FLUSH")
    store.start()
    _, physical, _, size = put(store, Message())
    statuses: list[PutStatus] = []
    store.when_flushed(physical + size, statuses.append)
    store.stop()
    assert statuses == [PutStatus.PUT_OK]
    assert not (tmp_path / "abort").exists()
    store.when_flushed(physical + size + 1, statuses.append)
    assert statuses[1:] == [PutStatus.FLUSH_DISK_TIMEOUT]


async def test_ticks_continue_after_a_failed_one(tmp_path: Path) -> None:
    async with started_store(tmp_path, flush_interval_commit_log=1) as store:
        failures = iter([RuntimeError("once")])
        tick = store.log_flusher.tick

        def failing() -> None:
            for failure in failures:
                raise failure
            tick()

        store.log_flusher.tick = failing  # type: ignore[method-assign]
        put_all(store, [Message(body=bytes(1000))] * 30)
        await wait_until(lambda: store.unflushed_bytes < 4096)


def test_a_worker_rejects_jobs_beyond_its_capacity() -> None:
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


def test_the_error_of_a_job_is_raised_in_the_waiting_thread() -> None:
    worker = WorkerThread("test")

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        worker.run_and_wait(fail)
    worker.stop()
