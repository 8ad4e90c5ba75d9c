"""Tests the files of the store: lock, checkpoint, mapped files, consume queues."""

from __future__ import annotations

import multiprocessing
import os
import struct
from pathlib import Path

import pytest

from epochmq_formats.queue_unit import PRE_BLANK, UNIT
from epochmq_store.files import mapped_file
from epochmq_store.files.lock_file import LockFile, StoreLockedError
from epochmq_store.files.mapped_file import MappedFileQueue, StoreDamagedError
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import ConsumeQueues
from epochmq_store.state_files.checkpoint import Checkpoint
from tests.unit.store.support import LOG_FILE, QUEUE_FILE, Message, open_store, put_all, small_config


def _try_lock(path: Path, response: multiprocessing.Queue[str]) -> None:
    try:
        LockFile(path)
    except StoreLockedError:
        response.put("locked")
    else:
        response.put("free")


def test_one_store_at_a_time_can_use_a_directory(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreLockedError):
        MessageStore(small_config(tmp_path)).load()
    context = multiprocessing.get_context("spawn")
    response: multiprocessing.Queue[str] = context.Queue()
    for expected in ("locked", "free"):
        other = context.Process(target=_try_lock, args=(tmp_path / "lock", response))
        other.start()
        assert response.get(timeout=180) == expected
        other.join()
        store.stop()
    assert (tmp_path / "lock").read_bytes() == b"lock"
    response.close()
    response.join_thread()
    open_store(tmp_path).stop()


def test_the_abort_file_contains_the_process_id_while_the_store_is_open(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (tmp_path / "abort").read_text().splitlines()[0] == str(os.getpid())
    store.stop()
    assert not (tmp_path / "abort").exists()


def test_the_checkpoint_is_five_numbers_in_a_page(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.physic_msg_timestamp = 10_000
    checkpoint.logics_msg_timestamp = 20_000
    checkpoint.index_msg_timestamp = 5_000
    checkpoint.master_flushed_offset = 4
    checkpoint.confirm_phy_offset = 5
    assert (checkpoint.min_timestamp, checkpoint.min_timestamp_index) == (7000, 5000)
    checkpoint.close()
    data = (tmp_path / "checkpoint").read_bytes()
    assert data == struct.pack(">qqqqq", 10_000, 20_000, 5_000, 4, 5).ljust(4096, b"\0")
    again = Checkpoint(tmp_path / "checkpoint")
    assert (again.physic_msg_timestamp, again.confirm_phy_offset) == (10_000, 5)
    again.close()


def test_an_error_names_the_file_with_an_unexpected_size(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message()])
    store.stop()
    with pytest.raises(
        StoreDamagedError, match=r"commitlog/0{20} has 8192 bytes, but the settings say 16384"
    ):
        open_store(tmp_path, mapped_file_size_commit_log=2 * LOG_FILE)
    # The failed start has released the directory.
    open_store(tmp_path).stop()


def test_an_error_names_unknown_and_missing_files(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(body=bytes(1000))] * 30)
    store.stop()
    stranger = tmp_path / "commitlog" / "notes.txt"
    stranger.write_text("hello")
    with pytest.raises(StoreDamagedError, match=r"notes\.txt"):
        open_store(tmp_path)
    stranger.unlink()
    (tmp_path / "commitlog" / f"{LOG_FILE:020d}").unlink()
    with pytest.raises(StoreDamagedError, match="files are missing in between"):
        open_store(tmp_path)


def test_space_is_reserved_before_it_is_written(tmp_path: Path) -> None:
    files = MappedFileQueue(tmp_path / "files", 1 << 20, keep_fd=True)
    file = files.add(0)
    assert file.path.stat().st_blocks == 0
    file.reserve(100_000)
    assert file.path.stat().st_blocks * 512 >= 100_000
    assert file.path.stat().st_size == 1 << 20
    file.reserve(50_000)
    assert file.reserved == 100_000
    files.destroy()
    assert not (tmp_path / "files").exists()


def test_truncation_zeros_the_rest_of_the_file_and_keeps_holes(tmp_path: Path) -> None:
    files = MappedFileQueue(tmp_path / "files", 1 << 22, keep_fd=False)
    for start in (0, 1 << 22, 2 << 22):
        file = files.add(start)
        file.reserve(1 << 20)
        file.map[: 1 << 20] = b"x" * (1 << 20)
        file.wrote = 1 << 22
    files.truncate((1 << 22) + 1000)
    assert [(file.start, file.wrote) for file in files.files] == [(0, 1 << 22), (1 << 22, 1000)]
    data = files.files[1].path.read_bytes()
    assert data == (b"x" * 1000).ljust(1 << 22, b"\0")
    assert len(list((tmp_path / "files").iterdir())) == 2
    assert files.files[1].path.stat().st_blocks * 512 <= 2 << 20
    files.close()


# Consume queues


def test_files_are_deleted_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = MappedFileQueue(tmp_path, 4096, keep_fd=False)
    for start in (0, 4096, 8192):
        files.files.append(files.create_now(tmp_path / f"{start:020d}", start, 4096))
    seen: list[tuple[Path, int]] = []
    monkeypatch.setattr(
        mapped_file, "sync_directory", lambda folder: seen.append((folder, len(list(tmp_path.iterdir()))))
    )
    files.delete_from(1)
    assert seen == [(tmp_path, 1)]
    assert [file.start for file in files.files] == [0]
    files.close()


def queue_of(directory: Path, load: bool = False) -> ConsumeQueue:
    queue = ConsumeQueue("t", 0, directory, QUEUE_FILE, load=load)
    if load:
        queue.recover()
    return queue


def fill(queue: ConsumeQueue, count: int, size: int = 10) -> None:
    for _ in range(count):
        offset = queue.max_offset
        assert queue.put(offset, offset * size, size, offset)


def test_units_are_twenty_bytes_in_files_of_one_size(tmp_path: Path) -> None:
    queue = queue_of(tmp_path)
    fill(queue, 25)
    queue.pending.write_all()
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "t" / "0").iterdir()))
    assert data == b"".join(UNIT.pack(n * 10, 10, n) for n in range(25)).ljust(3 * QUEUE_FILE, b"\0")
    assert list(queue.units(8, 5)) == [(80, 10, 8), (90, 10, 9)]  # to the end of the file
    assert queue.unit(24) == (240, 10, 24)
    assert queue.unit(25) is None
    queue.close()
    again = queue_of(tmp_path, load=True)
    assert (again.max_offset, again.max_physical) == (25, 250)
    fill(again, 10)
    again.close()


def test_a_queue_that_starts_late_begins_with_blank_units(tmp_path: Path) -> None:
    queue = queue_of(tmp_path)
    assert queue.put(13, 5000, 100, 7)
    assert (queue.min_offset, queue.max_offset) == (13, 14)
    queue.pending.write_all()
    (file,) = (tmp_path / "t" / "0").iterdir()
    assert file.name == f"{QUEUE_FILE:020d}"
    assert file.read_bytes() == (PRE_BLANK * 3 + UNIT.pack(5000, 100, 7)).ljust(QUEUE_FILE, b"\0")
    queue.close()
    again = queue_of(tmp_path, load=True)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset, again.max_physical) == (13, 14, 5100)
    again.close()


def test_a_queue_that_lost_its_only_unit_starts_late_again(tmp_path: Path) -> None:
    queue = queue_of(tmp_path)
    assert queue.put(13, 5000, 100, 7)
    queue.truncate(5000)
    assert queue.put(20, 5000, 100, 7)
    assert (queue.min_offset, queue.max_offset) == (20, 21)
    queue.close()


def test_a_queue_skips_messages_that_it_has(tmp_path: Path) -> None:
    queue = queue_of(tmp_path)
    fill(queue, 5)
    assert not queue.put(4, 40, 10, 0)
    assert not queue.put(3, 1000, 10, 0)
    assert queue.put(9, 1000, 10, 0)  # a gap is closed up
    assert (queue.max_offset, queue.unit(5)) == (6, (1000, 10, 0))
    queue.close()


def test_recovery_ends_a_queue_at_the_first_invalid_or_stale_unit(tmp_path: Path) -> None:
    queue = queue_of(tmp_path)
    fill(queue, 25)
    queue.pending.write_all()
    queue.close()
    path = tmp_path / "t" / "0" / f"{QUEUE_FILE:020d}"
    sound = path.read_bytes()
    for spoiled in (bytes(20), UNIT.pack(3, 10, 0), UNIT.pack(-1, 10, 0), UNIT.pack(170, 0, 0)):
        path.write_bytes(sound[:140] + spoiled + sound[160:])
        again = queue_of(tmp_path, load=True)
        assert (again.max_offset, again.max_physical) == (17, 170)
        assert path.read_bytes()[140:].strip(b"\0") == b""
        fill(again, 8)
        again.pending.write_all()
        again.close()
        assert path.read_bytes() == sound


def test_a_queue_is_truncated_at_a_physical_offset(tmp_path: Path) -> None:
    queue = queue_of(tmp_path)
    fill(queue, 25)
    for physical, left in ((241, 25), (240, 24), (201, 21), (200, 20), (105, 11), (0, 0)):
        queue.truncate(physical)
        assert queue.max_offset == left
        assert queue.max_physical == (left * 10 or -1)
    fill(queue, 3)
    assert queue.unit(2) == (20, 10, 2)
    queue.close()


def test_units_of_expired_messages_are_removed_and_offsets_continue(tmp_path: Path) -> None:
    queue = queue_of(tmp_path)
    fill(queue, 25)
    queue.pending.write_all()
    assert [file.start for file in queue.expire(queue.find_expired(50), 50)] == []
    assert queue.min_offset == 5
    for file in queue.expire(queue.find_expired(150), 150):
        file.delete()
    assert (queue.min_offset, queue.files.min_offset) == (15, QUEUE_FILE)
    for file in queue.expire(queue.find_expired(10_000), 10_000):
        file.delete()
    assert (queue.min_offset, queue.max_offset) == (25, 25)
    assert len(list((tmp_path / "t" / "0").iterdir())) == 1
    queue.close()
    again = queue_of(tmp_path, load=True)
    again.correct_min_offset(10_000)
    assert (again.min_offset, again.max_offset) == (25, 25)
    assert again.put(25, 10_000, 10, 0)
    again.close()


def test_topics_that_cannot_be_directory_names_are_rejected(tmp_path: Path) -> None:
    queues = ConsumeQueues(tmp_path, QUEUE_FILE)
    for topic in ("", ".", "..", "a/b", "a\0b", "x" * 256):
        with pytest.raises(ValueError, match="is not a valid queue name"):
            queues[topic, 0]
    with pytest.raises(ValueError, match="is not a valid queue name"):
        queues["t", -1]
    assert queues["t", 0] is queues["t", 0]


def test_deleting_a_topic_removes_its_directories(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(queue_id=n) for n in range(3)])
    put_all(store, [Message(topic="other")])
    assert store.lookup.topics() == {"orders", "other"}
    store.queues.pending.write_all()
    assert store.delete_topic("orders") == 1
    assert store.delete_topic("orders") == 0
    assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["other"]
    put_all(store, [Message()])
    assert store.queue("orders", 0).max_offset == 1
    store.stop()
