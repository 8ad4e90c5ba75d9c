"""Tests that the log's next file and its next chunk of space are ready before they are needed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from epochmq_store.files import mapped_file
from epochmq_store.files.mapped_file import DiskFullError, MappedFile, MappedFileQueue
from epochmq_store.log import commit_log, preallocator
from epochmq_store.statuses import PutStatus
from tests.unit.store.started_stores import DEADLINE_S, started_store, wait_until
from tests.unit.store.support import LOG_FILE, Message, open_store, put, put_all, read_log


async def test_the_next_file_is_created_before_it_is_needed(tmp_path: Path) -> None:
    async with started_store(tmp_path) as store:
        put_all(store, [Message()])
        second = tmp_path / "commitlog" / f"{LOG_FILE:020d}"
        await wait_until(lambda: second.exists() and second.stat().st_size == LOG_FILE)
        inode = second.stat().st_ino
        put_all(store, [Message(body=bytes(1000))] * 20)
        assert store.log.files.files[1].path == second
        assert second.stat().st_ino == inode
        assert len(list(read_log(tmp_path))) == 21


async def test_puts_roll_to_the_next_file_without_the_event_loop(tmp_path: Path) -> None:
    async with started_store(tmp_path) as store:
        put_all(store, [Message(body=bytes(2000))] * 200)
        assert len(list(read_log(tmp_path))) == 200


async def test_a_prepared_file_that_was_deleted_is_created_again(tmp_path: Path) -> None:
    """A RocketMQ broker that is started on the directory by mistake deletes it."""
    async with started_store(tmp_path) as store:
        put_all(store, [Message()])
        second = tmp_path / "commitlog" / f"{LOG_FILE:020d}"
        await wait_until(lambda: second.exists() and second.stat().st_size == LOG_FILE)
        second.unlink()
        put_all(store, [Message(body=bytes(1000))] * 20)
        assert len(list(read_log(tmp_path))) == 21


async def test_space_is_reserved_in_chunks_in_advance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "RESERVE_BYTES", 4096)
    at_once: list[int] = []
    reserve = MappedFile.reserve

    def watched(file: MappedFile, end: int) -> None:
        at_once.append(end)
        reserve(file, end)

    async with started_store(tmp_path, mapped_file_size_commit_log=1 << 20) as store:
        put_all(store, [Message()])
        file = store.log.file
        assert file is not None
        monkeypatch.setattr(MappedFile, "reserve", watched)
        for stretch in range(2, 20):
            await wait_until(lambda stretch=stretch: file.reserved >= stretch * 4096)  # type: ignore[misc]
            before = store.max_phy_offset
            while store.max_phy_offset // 4096 == before // 4096:
                put_all(store, [Message(body=bytes(200))])
        log_file = [end for end in at_once if end > 4096 * 4]
        assert not log_file, "no put had to reserve space itself"


async def test_while_the_disk_hangs_puts_are_rejected_without_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preallocator, "WAIT_S", 0.01)
    gate = threading.Event()
    entered = threading.Event()
    real = MappedFileQueue.create_now

    def hanging(files: MappedFileQueue, path: Path, start: int, size: int) -> MappedFile:
        if start:
            entered.set()
            assert gate.wait(DEADLINE_S)
        return real(files, path, start, size)

    monkeypatch.setattr(MappedFileQueue, "create_now", hanging)
    async with started_store(tmp_path) as store:
        put_all(store, [Message()])
        await wait_until(entered.is_set)
        stored = 1
        while (status := put(store, Message(body=bytes(1000)))[0]) is PutStatus.PUT_OK:
            stored += 1
        assert status is PutStatus.OS_PAGE_CACHE_BUSY
        queue = store.queue("orders", 0)
        for _ in range(20):
            assert put(store, Message(body=bytes(1000)))[0] is PutStatus.OS_PAGE_CACHE_BUSY
        space = store.log.preallocator
        assert isinstance(space, preallocator.BackgroundPreallocator)
        assert space.late == 1, "only the first put has waited"
        assert queue.max_offset == stored
        assert not store.state.flags
        gate.set()
        await wait_until(lambda: put(store, Message())[0] is PutStatus.PUT_OK)
        stored = queue.max_offset
        put_all(store, [Message()] * 5)
        assert len(list(read_log(tmp_path))) == stored + 5


async def test_while_a_chunk_is_being_reserved_no_put_reserves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preallocator, "WAIT_S", 0.01)
    monkeypatch.setattr(commit_log, "RESERVE_BYTES", 8192)
    monkeypatch.setattr(commit_log, "AHEAD_BYTES", 8192)
    gate, entered = threading.Event(), threading.Event()

    def hanging(fd: int, start: int, end: int) -> None:
        entered.set()
        assert gate.wait(DEADLINE_S)
        mapped_file.reserve(fd, start, end)

    async with started_store(tmp_path, mapped_file_size_commit_log=1 << 20) as store:
        monkeypatch.setattr(preallocator, "reserve", hanging)
        put_all(store, [Message()])
        await wait_until(entered.is_set)
        file = store.log.file
        assert file is not None
        reserved = file.reserved
        try:
            while (status := put(store, Message(body=bytes(1000)))[0]) is PutStatus.PUT_OK:
                assert file.reserved == reserved
            assert status is PutStatus.OS_PAGE_CACHE_BUSY
        finally:
            gate.set()
        await wait_until(lambda: put(store, Message())[0] is PutStatus.PUT_OK)


async def test_a_full_disk_fails_the_put_and_not_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_store(tmp_path, mapped_file_size_consume_queue=20 * 1000) as store:
        put_all(store, [Message()])
        second = tmp_path / "commitlog" / f"{LOG_FILE:020d}"
        await wait_until(lambda: second.exists() and second.stat().st_blocks > 0)
        put_all(store, [Message(body=bytes(1000))] * 6)

        def full(fd: int, start: int, end: int) -> None:
            raise DiskFullError("no space left on device")

        monkeypatch.setattr(mapped_file, "reserve", full)
        put_all(store, [Message(body=bytes(1000))] * 5)  # the rest of this file, and the prepared one
        assert store.log.files.files[-1].path == second


def test_without_workers_the_log_creates_its_files_itself(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(body=bytes(2000))] * 50)
    assert len(list(read_log(tmp_path))) == 50
    store.stop()


async def test_truncation_deletes_the_prepared_file(tmp_path: Path) -> None:
    """Otherwise a gap would precede it."""
    async with started_store(tmp_path) as store:
        done = put_all(store, [Message(body=bytes(2000))] * 20)
        await wait_until(
            (tmp_path / "commitlog" / f"{store.log.files.files[-1].start + LOG_FILE:020d}").exists
        )
        store.truncate(done[1][1])
        assert [path.name for path in (tmp_path / "commitlog").iterdir()] == ["0" * 20]
        put_all(store, [Message(body=bytes(2000))] * 20)
        assert len(list(read_log(tmp_path))) == 21
    open_store(tmp_path).stop()
