"""Tests the expiry of files by age and on a full disk, and puts on a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_store.appending.appender import BatchMessage
from epochmq_store.files import mapped_file
from epochmq_store.files.mapped_file import DiskFullError
from epochmq_store.log.log_expiry import MANUAL_EXPIRY_TICKS, LogExpiry, disk_used
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.consume_queue import ConsumeQueue, ExpiredUnits
from epochmq_store.state_files.abort_file import AbortFile
from epochmq_store.state_files.tail_state import LogTail
from epochmq_store.statuses import GetStatus, PutStatus, RunningFlags
from epochmq_store.store_config import StoreConfig
from tests.unit.store.started_stores import wait_until
from tests.unit.store.support import (
    HOST,
    LOG_FILE,
    Message,
    open_store,
    put,
    put_all,
    random_messages,
    read_log,
    small_config,
)

HOUR_S = 3600
GIVEN_TIMES: dict[Path, float] = {}
"""The modification time that a test gave a file, by real time. Each view of the clock moves it by as much."""


def set_file_ages(store: MessageStore, hours: list[float]) -> None:
    """Sets the modification times of the log's files to these numbers of hours ago."""
    for file, age in zip(store.log.files.files, hours, strict=False):
        then = time.time() - age * HOUR_S
        os.utime(file.path, (then, then))
        GIVEN_TIMES[file.path] = then


def expiry(store: MessageStore, *, used: float = 0.1, hour: int = 4, **changes: object) -> LogExpiry:
    """A LogExpiry of the store at this hour with this share of the disk used."""
    now = time.mktime((2026, 11, 21, hour, 30, 0, 0, 0, -1))
    offset = now - time.time()
    made = LogExpiry(
        store.log,
        small_config(store.config.root, **changes),
        used=lambda path: used,
        now=lambda: time.time() + offset,
    )
    for file in store.log.files.files:
        then = GIVEN_TIMES.setdefault(file.path, file.path.stat().st_mtime) + offset
        os.utime(file.path, (then, then))
    made.measure()
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Six log files, the first four older than three days."""
    store = open_store(tmp_path)
    put_all(
        store, [Message(body=bytes(1000), queue_id=n % 2, properties={"KEYS": str(n)}) for n in range(40)]
    )
    assert len(store.log.files.files) == 6
    set_file_ages(store, [100, 90, 80, 73, 1, 0])
    yield store
    store.stop()


def test_old_files_expire_at_the_configured_hour(store: MessageStore) -> None:
    assert [file.start // LOG_FILE for file in expiry(store, hour=4).take_expired()] == [0, 1, 2, 3]


def test_no_file_expires_at_other_hours(store: MessageStore) -> None:
    assert expiry(store, hour=5).take_expired() == []
    assert len(expiry(store, hour=23, delete_when="3;23").take_expired()) == 4


def test_at_most_the_limit_of_files_expires_at_a_time(store: MessageStore) -> None:
    assert len(expiry(store, delete_file_batch_max=3).take_expired()) == 3


def test_the_written_file_never_expires(store: MessageStore) -> None:
    set_file_ages(store, [100] * 6)
    assert len(expiry(store).take_expired()) == 5


def test_on_request_old_files_expire_at_any_hour_for_some_ticks(store: MessageStore) -> None:
    made = expiry(store, hour=12, delete_file_batch_max=1)
    made.request_expiry()
    assert [len(made.take_expired()) for _ in range(5)] == [1, 1, 1, 1, 0]
    for _ in range(MANUAL_EXPIRY_TICKS):
        made.take_expired()
    set_file_ages(store, [1000])
    assert made.take_expired() == []


@pytest.mark.parametrize(
    ("used", "going", "full"), [(0.75, 0, False), (0.76, 4, False), (0.86, 5, False), (0.91, 5, True)]
)
def test_files_expire_at_any_hour_on_a_crowded_disk(
    store: MessageStore, used: float, going: int, full: bool
) -> None:
    made = expiry(store, used=used, hour=12)
    assert len(made.take_expired()) == going
    assert made.is_full is full


def test_new_files_never_expire_if_forced_expiry_is_off(store: MessageStore) -> None:
    assert len(expiry(store, used=0.99, hour=12, clean_file_forcibly_enable=False).take_expired()) == 4


def test_files_expire_only_before_one_that_begins_with_durable_bytes(store: MessageStore) -> None:
    made = expiry(store, used=0.99, hour=12)
    made.keep_after(lambda: 2 * LOG_FILE - 1)
    assert len(made.take_expired()) == 1
    made.keep_after(lambda: 2 * LOG_FILE)
    assert len(made.take_expired()) == 1
    assert store.min_phy_offset == 2 * LOG_FILE


def test_disk_usage_is_rounded_up(tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    assert disk_used(tmp_path) == pytest.approx(usage.used / (usage.used + usage.free), abs=0.011)
    assert disk_used(tmp_path / "missing") == -1


async def test_queues_and_index_follow_the_log(tmp_path: Path) -> None:
    store = open_store(tmp_path, clean_resource_interval=5)
    expired_offsets: list[int] = []
    store.on_expire.append(expired_offsets.append)
    messages = [Message(body=bytes(1000), queue_id=n % 2, properties={"KEYS": str(n)}) for n in range(40)]
    done = put_all(store, messages)
    queue = store.queue("orders", 0)
    store.start()
    set_file_ages(store, [100, 100, 100, 0])
    store.log_expiry.request_expiry()
    await wait_until(lambda: store.min_phy_offset == 3 * LOG_FILE)
    first = min(
        offset
        for (_, place, offset, _), m in zip(done, messages, strict=True)
        if m.queue_id == 0 and place >= 3 * LOG_FILE
    )
    await wait_until(lambda: queue.min_offset == first)
    assert queue.max_offset == 20
    assert store.get(queue, 0, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert store.get(queue, first, 1).count == 1
    assert store.reader.query("orders", "0", 10, 0, 1 << 60).count == 0
    assert store.reader.query("orders", "39", 10, 0, 1 << 60).count == 1
    assert store.lookup.offset_by_time("orders", 0, 0) == first
    assert store.lookup.earliest_time("orders", 0) > 0
    assert expired_offsets == [3 * LOG_FILE]
    await wait_until(lambda: len(list((tmp_path / "commitlog").iterdir())) <= 4)
    store.stop()
    again = open_store(tmp_path)
    assert (again.queue("orders", 0).min_offset, again.queue("orders", 0).max_offset) == (first, 20)
    again.stop()


def expire_now(store: MessageStore) -> None:
    """Runs the periodic expiry now."""
    store.log_expiry.request_expiry()
    assert store._maintenance is not None
    store._maintenance._tick_expiry()


async def test_expiry_searches_only_queues_that_lose_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search runs on a worker thread."""
    looked: list[int] = []
    threads: set[int] = set()
    real = ConsumeQueue.find_expired

    def noted(queue: ConsumeQueue, min_physical: int) -> ExpiredUnits:
        looked.append(queue.queue_id)
        threads.add(threading.get_ident())
        return real(queue, min_physical)

    monkeypatch.setattr(ConsumeQueue, "find_expired", noted)
    store = open_store(tmp_path, clean_resource_interval=3_600_000, delete_file_batch_max=1)
    # Queue 0 begins in the first file of the log, the others in the last ones.
    put_all(store, [Message(body=bytes(1000))] * 30)
    put_all(store, [Message(queue_id=number) for number in range(1, 40)])
    store.queues.pending.write_all()
    store.start()
    set_file_ages(store, [100] * 2)
    expire_now(store)
    assert store.min_phy_offset == LOG_FILE
    await wait_until(lambda: store.queue("orders", 0).min_offset > 0 and len(looked) == 40)
    assert sorted(looked) == list(range(40)), "each queue is searched once"
    looked.clear()
    expire_now(store)
    assert store.min_phy_offset == 2 * LOG_FILE
    expected = 2 * (LOG_FILE // 1100)
    await wait_until(lambda: store.queue("orders", 0).min_offset >= expected)
    assert looked == [0]
    assert [store.queue("orders", number).min_offset for number in range(1, 40)] == [0] * 39
    assert threading.get_ident() not in threads
    store.stop()


async def test_a_queue_that_cannot_be_read_is_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.EIO, "Input/output error")]
    real = ConsumeQueue.find_expired

    def failing(queue: ConsumeQueue, min_physical: int) -> ExpiredUnits:
        if queue.queue_id == 0 and failures:
            raise failures.pop()
        return real(queue, min_physical)

    monkeypatch.setattr(ConsumeQueue, "find_expired", failing)
    store = open_store(tmp_path, clean_resource_interval=3_600_000, delete_file_batch_max=1)
    put_all(store, [Message(body=bytes(1000), queue_id=number % 2) for number in range(30)])
    store.start()
    set_file_ages(store, [100] * 2)
    expire_now(store)
    await wait_until(lambda: store.queue("orders", 1).min_offset > 0)
    assert not failures
    expire_now(store)
    await wait_until(lambda: all(store.queue("orders", number).min_offset >= 7 for number in range(2)))
    assert store.min_phy_offset == 2 * LOG_FILE
    store.stop()


@pytest.mark.parametrize("event", ["the log loses more", "units are written"])
async def test_a_queue_that_changes_during_its_search_is_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    found, free = threading.Event(), threading.Event()
    real = ConsumeQueue.find_expired

    def slow(queue: ConsumeQueue, min_physical: int) -> ExpiredUnits:
        expired = real(queue, min_physical)
        found.set()
        assert free.wait(60)
        return expired

    monkeypatch.setattr(ConsumeQueue, "find_expired", slow)
    store = open_store(tmp_path, clean_resource_interval=3_600_000, delete_file_batch_max=1)
    put_all(store, [Message(body=bytes(1000), queue_id=number % 2) for number in range(30)])
    if event == "the log loses more":
        store.queues.pending.write_all()
    store.start()
    set_file_ages(store, [100] * 2)
    expire_now(store)
    await wait_until(found.is_set)
    if event == "the log loses more":
        expire_now(store)
    else:
        store.queues.pending.write_all()
    free.set()
    queues = [store.queue("orders", number) for number in range(2)]
    await wait_until(lambda: all(first_physical_offset(queue) >= store.min_phy_offset for queue in queues))
    store.stop()


def first_physical_offset(queue: ConsumeQueue) -> int:
    unit = queue.unit(queue.min_offset)
    assert unit is not None
    return unit[0]


def test_queues_without_messages_are_emptied_on_request(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(topic="old")])
    put_all(store, [Message(body=bytes(1000))] * 20)
    for file in store.log.files.files[:2]:
        file.delete()
    del store.log.files.files[:2]
    store.queues.correct_min_offsets(store.min_phy_offset)
    old = store.queue("old", 0)
    assert (old.min_offset, old.max_offset) == (1, 1)
    assert store.clean_expired_consume_queues() == 1
    assert store.queue("old", 0) is old
    assert old.max_offset == 0
    put_all(store, [Message(topic="old")])
    assert old.max_offset == 1
    store.stop()


async def test_puts_are_rejected_above_the_warning_level_until_there_is_space(tmp_path: Path) -> None:
    store = open_store(tmp_path, clean_resource_interval=1)
    used = [0.95]
    store.log_expiry._used = lambda path: used[0]
    store.start()
    await wait_until(lambda: bool(store.state.flags & RunningFlags.DISK_FULL))
    assert put(store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
    used[0] = 0.5
    await wait_until(lambda: store.state.writable)
    assert put(store, Message())[0] is PutStatus.PUT_OK
    store.stop()


def limit_disk_space(monkeypatch: pytest.MonkeyPatch, budget: int) -> list[int]:
    """Simulates a disk with `budget` free bytes; the returned list contains the number of bytes left."""
    left = [budget]
    reserve = mapped_file.reserve

    def limited(fd: int, start: int, end: int) -> None:
        if end - start > left[0]:
            raise DiskFullError("no space left on device")
        left[0] -= end - start
        reserve(fd, start, end)

    monkeypatch.setattr(mapped_file, "reserve", limited)
    return left


@pytest.mark.parametrize("budget", [0, 5_000, 12_000, 20_000, 50_000, 80_000])
def test_a_put_rejected_for_lack_of_space_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    store = open_store(tmp_path)
    left = limit_disk_space(monkeypatch, budget)
    messages = random_messages(budget, 200)
    stored = []
    for message in messages:
        status, *_ = put(store, message)
        if status is not PutStatus.PUT_OK:
            assert status is PutStatus.SERVICE_NOT_AVAILABLE
            break
        stored.append(message.body)
    else:
        pytest.fail("the disk never was full")
    assert store.state.flags & RunningFlags.DISK_FULL
    batch = [BatchMessage(bytes(500), b"")] * 4
    store.state.set_flag(RunningFlags.DISK_FULL, False)
    status, *_ = store.append_batch(store.queue("orders", 0), batch, born_timestamp=0, born_host=HOST)
    assert status in (PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.PUT_OK)
    if status is PutStatus.PUT_OK:
        stored += [bytes(500)] * 4
    left[0] = 1 << 30
    store.state.set_flag(RunningFlags.DISK_FULL, False)
    put_all(store, messages[:20])
    stored += [message.body for message in messages[:20]]
    offsets: dict[tuple[str, int], int] = {}
    found = list(read_log(tmp_path))
    assert [one.body for one in found] == stored
    for one in found:
        if not one.sys_flag & 4:
            assert one.queue_offset == offsets.get((one.topic, one.queue_id), 0)
            offsets[one.topic, one.queue_id] = one.queue_offset + 1
            unit = store.queue(one.topic, one.queue_id).unit(one.queue_offset)
            assert unit is not None
            assert unit[0] == one.physical_offset
    store.stop()


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 4 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("missing: root and `mount`, to have a small disk")
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"missing: the right to mount a tmpfs ({mounted.stderr.strip()})")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_puts_on_a_full_disk_are_rejected_and_do_no_harm(tmpfs: Path) -> None:
    """A store into a mapped page without a disk block would kill the process by SIGBUS."""
    config = StoreConfig(
        store_path_root_dir=str(tmpfs),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 3000,
        max_hash_slot_num=100,
        max_index_num=5000,
        max_message_size=1 << 18,
    )
    store = MessageStore(config)
    store.load()
    stored = 0
    for number in range(20_000):
        message = Message(
            queue_id=number % 7, body=bytes([number % 256]) * 1000, properties={"KEYS": f"k{number}"}
        )
        if put(store, message)[0] is not PutStatus.PUT_OK:
            break
        stored += 1
    assert 2000 < stored < 4200
    for _ in range(10):
        store.state.set_flag(RunningFlags.DISK_FULL, False)
        assert put(store, Message(body=bytes(100_000)))[0] is not PutStatus.PUT_OK
    got = sum(_count(store, queue_id) for queue_id in range(7))
    assert got == stored
    # Deletes the first file, as expiry does, to get space.
    store.log.files.files.pop(0).delete()
    store.state.set_flag(RunningFlags.DISK_FULL, False)
    put_all(store, [Message(body=b"again")])
    store.stop()
    store = MessageStore(config)
    store.load()
    queue = store.queue("orders", 0)
    assert store.get(queue, queue.max_offset - 1, 1).body.find(b"again") > 0
    store.stop()


def _count(store: MessageStore, queue_id: int) -> int:
    queue = store.queue("orders", queue_id)
    offset = count = 0
    while (found := store.get(queue, offset, 32)).count:
        offset, count = found.next_offset, count + found.count
    return count


@pytest.mark.parametrize("forcibly", [True, False])
def test_a_start_on_a_full_disk_deletes_expired_files_and_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forcibly: bool
) -> None:
    """A running store does the same. If forced expiry is off, the start fails, and the previous stop still
    counts as clean."""
    store = open_store(tmp_path)
    put_all(store, [Message(body=bytes(1000))] * 30)
    end = store.max_phy_offset
    store.stop()
    first = tmp_path / "commitlog" / ("0" * 20)
    begin = AbortFile.begin

    def full(abort: AbortFile, tail: LogTail, *, acknowledges_unflushed: bool) -> None:
        if first.exists():
            raise DiskFullError("no space left")
        begin(abort, tail, acknowledges_unflushed=acknowledges_unflushed)

    monkeypatch.setattr(AbortFile, "begin", full)
    store = MessageStore(small_config(tmp_path, clean_file_forcibly_enable=forcibly, delete_file_batch_max=1))
    store.log_expiry._used = lambda path: 1.0
    if not forcibly:
        with pytest.raises(DiskFullError):
            store.load()
        assert first.exists()
        assert not (tmp_path / "abort").exists()
        return
    store.load()
    assert (store.min_phy_offset, store.max_phy_offset) == (LOG_FILE, end)
    queue = store.queue("orders", 0)
    assert 0 < queue.min_offset < queue.max_offset == 30
    store.stop()
