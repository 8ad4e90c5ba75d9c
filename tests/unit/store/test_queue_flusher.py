"""Tests that a worker thread, not the event loop, creates, writes and syncs the files of consume queues."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from epochmq_formats.queue_unit import UNIT
from epochmq_store.files import file_system_sync, queue_files
from epochmq_store.files.file_system_sync import FileSystemSync
from epochmq_store.files.mapped_file import DiskFullError
from epochmq_store.files.queue_files import MappingCache, QueueFile
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.pending_units import PendingUnits
from epochmq_store.running import queue_flusher
from epochmq_store.statuses import GetStatus, PutStatus, RunningFlags
from tests.unit.store.flush_gate import Gate
from tests.unit.store.started_stores import started_store, wait_until
from tests.unit.store.support import QUEUE_FILE, Message, file_contents, open_store, put, put_all, read_log

SOON: dict[str, Any] = {"flush_interval_consume_queue": 1, "flush_consume_queue_thorough_interval": 1}


@pytest.fixture
def threads_opening_queue_files(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that open files of consume queues."""
    threads: set[int] = set()
    real = os.open

    def noted(path: Any, *args: Any, **kwargs: Any) -> int:
        if "/consumequeue/" in str(path):
            threads.add(threading.get_ident())
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", noted)
    return threads


async def test_the_event_loop_creates_no_queue_file(
    tmp_path: Path, threads_opening_queue_files: set[int]
) -> None:
    async with started_store(tmp_path, **SOON) as store:
        put_all(store, [Message(queue_id=number % 40) for number in range(200)])
        await wait_until(lambda: not store.queues.pending.waiting)
        assert len(list((tmp_path / "consumequeue" / "orders").iterdir())) == 40
        assert threads_opening_queue_files
        assert threading.get_ident() not in threads_opening_queue_files


async def test_puts_and_gets_continue_while_a_queue_file_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, QueueFile, "create")
    async with started_store(tmp_path, **SOON, mapped_file_size_consume_queue=20 * 1000) as store:
        put_all(store, [Message()])
        await wait_until(lambda: gate.entered == 1)
        put_all(store, [Message(queue_id=number % 3) for number in range(300)])
        assert store.get(store.queue("orders", 0), 0, 32).count == 32
        assert store.queue("orders", 0).max_offset == 101
        assert not list((tmp_path / "consumequeue").glob("*/*/*"))
        gate.free.set()
        await wait_until(lambda: not store.queues.pending.waiting)
    assert_queues_match_log(tmp_path, 20 * 1000)


def assert_queues_match_log(root: Path, file_size: int) -> None:
    """Checks that the queues' files have exactly the units of the log's records."""
    units: dict[str, bytes] = {}
    for found in read_log(root):
        name = f"{found.topic}/{found.queue_id}/"
        units[name] = units.get(name, b"") + UNIT.pack(found.physical_offset, found.store_size, 0)
    expected = {
        f"{name}{start:020d}": data[start : start + file_size]
        for name, data in units.items()
        for start in range(0, len(data), file_size)
    }
    padded = {
        name: data.ljust(20 * -(-len(data) // 20), b"\0")
        for name, data in file_contents(root, "consumequeue").items()
    }
    assert padded == expected
    assert {path.stat().st_size for path in (root / "consumequeue").glob("*/*/*")} == {file_size}


async def test_units_are_read_across_files_and_memory(tmp_path: Path) -> None:
    async with started_store(tmp_path, **SOON) as store:
        queue = store.queue("orders", 0)
        for _ in range(20):
            put_all(store, [Message()] * 7)
            await wait_until(lambda: not store.queues.pending.waiting)
            put_all(store, [Message()] * 3)
            found = []
            while len(found) < queue.max_offset:
                found += list(queue.units(len(found), 1000))
            assert [unit[0] for unit in found] == sorted(unit[0] for unit in found)
            places = []
            while len(places) < 2 * queue.max_offset:
                places += queue.positions_and_sizes(len(places) // 2, 50)
            assert places == [value for unit in found for value in unit[:2]]
    assert_queues_match_log(tmp_path, QUEUE_FILE)


async def test_a_slow_sync_delays_only_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, FileSystemSync, "sync")
    async with started_store(tmp_path, **SOON) as store:
        put_all(store, [Message()])
        await wait_until(lambda: gate.entered == 1)
        synced = store.appender.last_timestamp
        store.appender._clock = lambda: synced / 1000 + 5
        put_all(store, [Message(queue_id=1)] * 50)
        assert store.get(store.queue("orders", 1), 0, 32).count == 32
        assert store.checkpoint.logics_msg_timestamp == 0
        gate.free.set()
        await wait_until(lambda: store.checkpoint.logics_msg_timestamp == synced)
        await wait_until(lambda: store.checkpoint.logics_msg_timestamp == synced + 5000)
        assert not store.queues.pending.unsynced


async def test_the_checkpoint_waits_for_the_sync_of_queues_written_before_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue with two pages of units is written before the round, and synced with the others."""
    synced: list[set[str]] = []
    real = FileSystemSync.sync

    def noted(self: FileSystemSync, files: Any) -> None:
        synced.append({file.path.parent.name for file in files})
        real(self, files)

    monkeypatch.setattr(FileSystemSync, "sync", noted)
    async with started_store(
        tmp_path, flush_interval_consume_queue=1, mapped_file_size_consume_queue=20 * 10_000,
        mapped_file_size_commit_log=1 << 20,
    ) as store:  # fmt: skip
        put_all(store, [Message()] * 500)
        put_all(store, [Message(queue_id=1)])
        await wait_until(lambda: store.queue("orders", 0).files.max_offset > 0)
        assert store.queue("orders", 1).files.max_offset == 0
        assert not synced
        store.queue_flusher._completed_at = 0.0
        await wait_until(lambda: store.checkpoint.logics_msg_timestamp == store.appender.last_timestamp)
        assert synced == [{"0", "1"}]


async def test_a_round_syncs_after_its_last_queue_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = FileSystemSync.sync

    def noted(self: FileSystemSync, files: Any) -> None:
        synced.append(len(list(files)))
        real(self, files)

    monkeypatch.setattr(FileSystemSync, "sync", noted)
    monkeypatch.setattr(queue_flusher, "QUEUES_PER_JOB", 2)
    monkeypatch.setattr(queue_flusher, "PAUSE_S", 0.0)
    async with started_store(tmp_path, **SOON) as store:
        put_all(store, [Message(queue_id=number) for number in range(7)])
        await wait_until(lambda: store.checkpoint.logics_msg_timestamp == store.appender.last_timestamp)
        assert synced == [7]


async def test_a_tick_handles_only_queues_with_new_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_store(tmp_path, **SOON) as store:
        put_all(store, [Message(queue_id=number) for number in range(300)])
        await wait_until(lambda: not store.queues.pending.waiting)
        looked_at: list[int] = []
        real = ConsumeQueue.unwritten

        def noted(queue: ConsumeQueue) -> Any:
            looked_at.append(queue.queue_id)
            return real(queue)

        monkeypatch.setattr(ConsumeQueue, "unwritten", noted)
        put_all(store, [Message(queue_id=7)])
        await wait_until(lambda: not store.queues.pending.waiting)
        assert set(looked_at) == {7}
        assert store.queues.pending.memory_used_bytes == 0


async def test_a_queue_with_new_units_during_its_write_is_due_again_at_two_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, QueueFile, "create")
    async with started_store(
        tmp_path, flush_interval_consume_queue=1, mapped_file_size_consume_queue=20 * 10_000,
        mapped_file_size_commit_log=1 << 20,
    ) as store:  # fmt: skip
        queue = store.queue("orders", 0)
        put_all(store, [Message()] * 900)
        await wait_until(lambda: gate.entered == 1)
        put_all(store, [Message()])
        gate.free.set()
        await wait_until(lambda: queue.files.max_offset == 900 * 20)
        put_all(store, [Message()] * 420)
        await wait_until(lambda: queue.files.max_offset > 900 * 20)


async def test_many_files_are_synced_by_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(file_system_sync, "_SYNCFS", lambda fd: calls.append(fd) or 0)
    monkeypatch.setattr(file_system_sync, "has_reliable_syncfs", lambda: True)
    alone: list[Path] = []
    monkeypatch.setattr(QueueFile, "sync", lambda file: alone.append(file.path))
    async with started_store(tmp_path, **SOON) as store:
        put_all(store, [Message(queue_id=number) for number in range(file_system_sync.FILES_MAX + 1)])
        await wait_until(lambda: store.checkpoint.logics_msg_timestamp == store.appender.last_timestamp)
        assert (len(calls), alone) == (1, [])
        store.appender._clock = lambda: 4_000_000_000.0
        put_all(store, [Message(queue_id=3)])
        await wait_until(lambda: store.checkpoint.logics_msg_timestamp == 4_000_000_000_000)
        assert (len(calls), len(alone)) == (1, 1)


async def test_after_a_failed_syncfs_puts_are_rejected_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_system_sync, "FILES_MAX", 0)
    monkeypatch.setattr(file_system_sync, "has_reliable_syncfs", lambda: True)
    monkeypatch.setattr(file_system_sync, "_SYNCFS", lambda fd: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EIO)
    store = open_store(tmp_path, **SOON)
    store.start()
    put_all(store, [Message()])
    await wait_until(lambda: bool(store.state.flags & RunningFlags.FLUSH_FAILED))
    monkeypatch.setattr(file_system_sync, "_SYNCFS", lambda fd: 0)
    assert store.checkpoint.logics_msg_timestamp == 0
    store.stop()
    assert (tmp_path / "abort").exists()


async def test_a_stop_after_an_unhandled_failed_sync_keeps_the_abort_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, FileSystemSync, "sync")
    store = open_store(tmp_path, **SOON)
    store.start()
    put_all(store, [Message()])
    await wait_until(lambda: gate.entered == 1)
    gate.error = OSError(errno.EIO, "disk on fire")
    gate.free.set()
    store.stop()
    assert (tmp_path / "abort").exists()


async def test_a_full_disk_keeps_units_in_memory_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, QueueFile, "create")
    gate.error = DiskFullError("no space left on device")
    gate.free.set()
    async with started_store(tmp_path, **SOON) as store:
        put_all(store, [Message()] * 20)
        await wait_until(lambda: bool(store.state.flags & RunningFlags.DISK_FULL))
        end = store.max_phy_offset
        assert put(store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
        assert (store.max_phy_offset, store.queue("orders", 0).max_offset) == (end, 20)
        assert store.get(store.queue("orders", 0), 0, 32).count > 0
        assert store.checkpoint.logics_msg_timestamp == 0
        gate.error = None
        store.state.set_flag(RunningFlags.DISK_FULL, False)
        await wait_until(lambda: not store.queues.pending.waiting)
    assert_queues_match_log(tmp_path, QUEUE_FILE)


def test_a_write_of_units_continues_after_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message()] * 25)
    real, failures = QueueFile.append, [DiskFullError("no space left on device")]

    def failing(file: QueueFile, data: memoryview) -> None:
        if file.start and failures:
            raise failures.pop()
        real(file, data)

    monkeypatch.setattr(QueueFile, "append", failing)
    with pytest.raises(DiskFullError):
        store.queues.pending.write_all()
    assert store.queue("orders", 0).files.max_offset == QUEUE_FILE
    put_all(store, [Message()] * 3)
    store.stop()
    assert_queues_match_log(tmp_path, QUEUE_FILE)


async def test_without_descriptors_queues_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, QueueFile, "create")
    gate.error = OSError(errno.EMFILE, "too many open files")
    gate.free.set()
    async with started_store(tmp_path, **SOON) as store:
        put_all(store, [Message()] * 20)
        await wait_until(lambda: gate.entered >= 3)
        assert store.state.writable
        gate.error = None
        await wait_until(lambda: not store.queues.pending.waiting)
    assert not (tmp_path / "abort").exists()


async def test_puts_beyond_the_memory_limit_of_queues_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, QueueFile, "create")
    async with started_store(tmp_path, **SOON) as store:
        pending = store.queues.pending
        pending.early_write_bytes, pending.max_bytes = 1000, 4000
        stored = 0
        while put(store, Message(queue_id=stored % 5))[0] is PutStatus.PUT_OK:
            stored += 1
            await asyncio.sleep(0)
        assert 100 <= stored <= 200
        assert pending.memory_used_bytes <= 4000
        assert sum(store.queue("orders", number).max_offset for number in range(5)) == stored
        assert len(list(read_log(tmp_path))) == stored
        gate.free.set()
        store.state.set_flag(RunningFlags.DISK_FULL, False)
        await wait_until(lambda: not pending.waiting)
        put_all(store, [Message()])
    assert pending.memory_used_bytes == 0


def test_units_in_memory_are_rebuilt_after_a_kill(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_all(store, [Message(queue_id=number % 3) for number in range(60)])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert not list((tmp_path / "b" / "consumequeue").glob("*/*/*"))
    store.stop()
    again = open_store(tmp_path / "b")
    assert [again.queue("orders", number).max_offset for number in range(3)] == [20] * 3
    again.stop()
    assert file_contents(tmp_path / "b", "consumequeue") == file_contents(tmp_path / "a", "consumequeue")


async def test_a_topic_deleted_during_a_write_can_be_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, QueueFile, "create")
    async with started_store(tmp_path, **SOON) as store:
        put_all(store, [Message()] * 12)
        await wait_until(lambda: gate.entered == 1)
        assert store.delete_topic("orders") == 1
        put_all(store, [Message(topic="other")])
        gate.free.set()
        await wait_until(lambda: not store.queues.pending.waiting)
        assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["other"]
        put_all(store, [Message()] * 3)
        assert store.get(store.queue("orders", 0), 0, 32).count > 0
        await wait_until(lambda: not store.queues.pending.waiting)
        assert store.queue("orders", 0).files.max_offset == 60


async def test_truncation_during_a_write_of_units_leaves_no_later_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, QueueFile, "create")
    async with started_store(tmp_path, **SOON) as store:
        done = put_all(store, [Message()] * 25)
        await wait_until(lambda: gate.entered == 1)
        put_all(store, [Message()] * 5)
        gate.free.set()
        store.truncate(done[13][1])
        assert store.queue("orders", 0).max_offset == 13
        assert store.get(store.queue("orders", 0), 13, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
        put_all(store, [Message()] * 4)
        await wait_until(lambda: not store.queues.pending.waiting)
    assert_queues_match_log(tmp_path, QUEUE_FILE)


def test_without_unwritten_units_no_message_is_the_newest() -> None:
    assert PendingUnits().newest_record() == -1


def test_a_nearly_full_disk_takes_what_is_written_but_no_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def nearly_full(_fd: int, start: int, end: int) -> None:
        asked.append((start, end))
        if end - start > 40:
            raise DiskFullError("no space left on device")

    monkeypatch.setattr(queue_files, "reserve", nearly_full)
    store = open_store(tmp_path)
    put_all(store, [Message()] * 2)
    store.queues.pending.write_all()
    assert asked[-2:] == [(0, QUEUE_FILE), (0, 40)]
    assert store.queue("orders", 0).unit(1) is not None
    store.stop()


def test_queue_files_are_mapped_on_demand_up_to_a_limit(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.queues.mappings = MappingCache(limit=4)
    put_all(store, [Message(queue_id=number) for number in range(20)])
    store.queues.pending.write_all()
    assert len(store.queues.mappings) == 0
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        assert store.get(store.queue("orders", number), 0, 1).status is GetStatus.FOUND
    assert len(store.queues.mappings) == 4
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4
    store.stop()


async def test_when_queues_written_waits_for_the_files_but_not_for_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are not synced. A later call waits for the units that are present at its time."""
    gate = Gate(monkeypatch, queue_flusher.QueueFiles, "write")
    synced = Gate(monkeypatch, FileSystemSync, "sync")
    async with started_store(tmp_path, flush_consume_queue_thorough_interval=3_600_000) as store:
        put_all(store, [Message(queue_id=number) for number in range(30)])
        done: list[str] = []
        store.when_queues_written(lambda: done.append("first"))
        await wait_until(lambda: gate.entered)
        put_all(store, [Message(queue_id=99)])
        store.when_queues_written(lambda: done.append("second"))
        assert done == []
        gate.free.set()
        await wait_until(lambda: done == ["first", "second"])
        units = file_contents(tmp_path, "consumequeue")
        assert sum(len(found) > 0 for found in units.values()) == 31
        assert synced.entered == 0
        synced.free.set()


async def test_when_queues_written_does_not_wait_after_a_failed_fsync(tmp_path: Path) -> None:
    async with started_store(tmp_path) as store:
        put_all(store, [Message()])
        store.state.report_fsync_failure(OSError(errno.EIO, "broken"))
        done: list[bool] = []
        store.when_queues_written(lambda: done.append(True))
        assert done == [True]
