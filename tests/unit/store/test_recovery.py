"""Tests starts after a stop, a kill or damage: the store has the longest valid prefix of the log, and queues
that agree with it."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from epochmq_formats.queue_unit import UNIT
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import PutStatus
from tests.unit.store.recovery_checks import check_recovered
from tests.unit.store.support import (
    LOG_FILE,
    QUEUE_FILE,
    Message,
    copy_after_crash,
    file_contents,
    index_contents,
    open_store,
    put,
    put_all,
    random_messages,
    read_log,
    small_config,
)


def test_a_start_after_a_clean_stop_reads_few_records(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, random_messages(1, 60))
    end = store.max_phy_offset
    assert (tmp_path / "abort").exists()
    store.stop()
    assert not (tmp_path / "abort").exists()
    store = MessageStore(store.config)
    found = store.load()
    assert (found.clean, found.end) == (True, end)
    assert found.records <= 10  # the last record with a unit, and the half messages after it
    assert check_recovered(store, tmp_path / "w") == 60


def test_opening_a_cleanly_stopped_store_does_not_change_its_files(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, random_messages(2, 60))
    store.stop()
    before = {folder: file_contents(tmp_path, folder) for folder in ("commitlog", "consumequeue", "index")}
    open_store(tmp_path).stop()
    assert {
        folder: file_contents(tmp_path, folder) for folder in ("commitlog", "consumequeue", "index")
    } == before


def test_all_messages_survive_a_kill(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(3, 60))
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    assert check_recovered(open_store(left), tmp_path / "w") == 60


@pytest.mark.parametrize("left_files", [0, 1])
def test_messages_that_come_back_after_a_start_without_them_are_dispatched_again(
    tmp_path: Path, left_files: int
) -> None:
    """As in a DLedger log, of which the end is not committed at first, or nothing. The store is killed before
    it has written the units of what came back."""
    store = open_store(tmp_path / "a")
    put_all(store, [Message(body=bytes(900)) for _ in range(30)])
    checkpoint = store.checkpoint
    checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = store.appender.last_timestamp + 60_000
    checkpoint.store()
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    logs = sorted((left / "commitlog").iterdir())
    assert len(logs) > 3
    shutil.copytree(left / "commitlog", tmp_path / "whole")
    for path in logs[left_files:]:
        path.unlink()
    store = open_store(left)
    assert 0 <= store.queue("orders", 0).max_offset < 10
    assert bool(store.queue("orders", 0).max_offset) == bool(left_files)
    again = copy_after_crash(store, tmp_path / "c")
    store.stop()
    shutil.rmtree(again / "commitlog")
    shutil.copytree(tmp_path / "whole", again / "commitlog")
    assert check_recovered(open_store(again), tmp_path / "w") == 30


def test_index_files_are_rebuilt_after_a_kill(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(4, 60))
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    again = open_store(left)
    again.stop()
    assert index_contents(left) == index_contents(tmp_path / "a")


@pytest.mark.parametrize(
    ("lost", "clean"),
    [
        *((lost, clean) for lost in ("consumequeue", "checkpoint", "index") for clean in (True, False)),
        # After a clean stop the store trusts single queues, as RocketMQ does.
        ("consumequeue/orders", False),
        ("consumequeue/payments/2", False),
    ],
)
def test_missing_queues_index_and_checkpoint_are_rebuilt(tmp_path: Path, lost: str, clean: bool) -> None:
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(5, 60))
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    if clean:
        left = tmp_path / "a"
    path = left / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert check_recovered(open_store(left), tmp_path / "w") == 60


@pytest.mark.parametrize("clean", [True, False])
def test_without_a_log_the_queues_are_emptied(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    put_all(store, random_messages(6, 20))
    store.stop()
    shutil.rmtree(tmp_path / "commitlog")
    if not clean:
        (tmp_path / "abort").write_text("1")
    store = open_store(tmp_path)
    assert store.max_phy_offset == 0
    assert all(queue.max_offset == 0 for queue in store.queues.values())
    assert put(store, Message())[1:3] == (0, 0)
    store.stop()


def test_empty_last_files_are_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, random_messages(7, 30))
    store.stop()
    files = sorted((tmp_path / "commitlog").iterdir())
    (tmp_path / "commitlog" / f"{int(files[-1].name) + LOG_FILE:020d}").touch()
    queue_file = max((tmp_path / "consumequeue").glob("*/*/*"))
    (queue_file.parent / f"{int(queue_file.name) + QUEUE_FILE:020d}").touch()
    (tmp_path / "index" / "99990101000000000").touch()
    (tmp_path / "abort").write_text("1")
    assert check_recovered(open_store(tmp_path), tmp_path / "w") == 30


def test_a_prepared_file_after_the_end_of_the_log_does_no_harm(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, random_messages(8, 30))
    store.stop()
    last = max((tmp_path / "commitlog").iterdir())
    (last.parent / f"{int(last.name) + LOG_FILE:020d}").write_bytes(bytes(LOG_FILE))
    assert check_recovered(open_store(tmp_path), tmp_path / "w") == 30


def test_recovery_reads_only_records_newer_than_the_checkpoint(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    clock = iter(range(1_000_000, 2_000_000, 10))
    store.appender._clock = lambda: next(clock)
    put_all(store, random_messages(9, 80))
    store.checkpoint.physic_msg_timestamp = store.checkpoint.logics_msg_timestamp = (
        1_000_000_000 + 40 * 10_000
    )
    store.checkpoint.store()
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    again = MessageStore(small_config(left))
    found = again.load()
    assert 0 < found.start < found.end
    assert found.start % LOG_FILE == 0
    assert 40 <= found.records < 60
    assert check_recovered(again, tmp_path / "w") == 80


@pytest.mark.long
@pytest.mark.parametrize("seed", range(60))
def test_after_any_damage_the_longest_valid_prefix_of_the_log_stays(tmp_path: Path, seed: int) -> None:
    """After a kill, the log is truncated or overwritten at any place, and queues and index are truncated,
    overwritten or deleted. All records before the damage stay, and no record after it returns."""
    rng = random.Random(seed)
    store = open_store(tmp_path / "a")
    done = put_all(store, random_messages(seed, rng.randrange(1, 60)))
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    place = rng.randrange(store_end := done[-1][1] + done[-1][3])
    victim = next(at for at in reversed(done) if at[1] <= place)
    kind = rng.choice(["zero", "garbage", "cut", "flip"])
    if kind == "flip":
        # A bit of size, magic or physical offset; no checksum covers the other fields before the body.
        place = victim[1] + rng.choice([*range(8), *range(28, 36)])
    _damage_log(left, place, kind, rng, store_end)
    _damage_others(left, rng)
    again = open_store(left)
    kept = check_recovered(again, tmp_path / "w")
    assert kept >= done.index(victim), "no record before the damage is lost"


def _damage_log(root: Path, place: int, kind: str, rng: random.Random, end: int) -> None:
    """Damages the log at or from this physical offset on."""
    start = place - place % LOG_FILE
    path = root / "commitlog" / f"{start:020d}"
    data = bytearray(path.read_bytes())
    at = place - start
    if kind == "zero":
        data[at:] = bytes(LOG_FILE - at)
    elif kind == "garbage":
        data[at:] = rng.randbytes(LOG_FILE - at)
    elif kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    if kind == "cut":
        path.write_bytes(data[:at].ljust(LOG_FILE, b"\0"))
    if kind != "flip":
        for later in range(start + LOG_FILE, end, LOG_FILE):
            (root / "commitlog" / f"{later:020d}").unlink()


def _damage_others(root: Path, rng: random.Random) -> None:
    """Damages some files of queues and index, as lost pages do."""
    for path in sorted((root / "consumequeue").rglob("*")):
        if path.is_file() and rng.random() < 0.3:
            data = path.read_bytes()
            at = rng.randrange(len(data) + 1)
            path.write_bytes(data[:at].ljust(len(data), b"\0"))
    for path in sorted((root / "index").iterdir()):
        if rng.random() < 0.3:
            path.write_bytes(rng.randbytes(path.stat().st_size))


def test_a_flipped_bit_in_a_body_ends_the_log_there(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    done = put_all(store, [Message(body=bytes(100))] * 10)
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    path = left / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[done[6][1] + 100] ^= 4
    path.write_bytes(data)
    again = open_store(left)
    assert again.max_phy_offset == done[6][1]
    assert again.queue("orders", 0).max_offset == 6
    again.stop()
    # The rest of the file is zero, so no old record can follow new ones.
    assert path.read_bytes()[done[6][1] :].strip(b"\0") == b""


def test_truncated_records_do_not_come_back_after_a_kill(tmp_path: Path) -> None:
    """The new records have the sizes of the truncated ones, so they end where old records started."""
    store = open_store(tmp_path / "a")
    done = put_all(store, [Message(body=b"old" * 10)] * 20)
    store.truncate(done[5][1])
    put_all(store, [Message(body=b"new" * 10)] * 3)
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    again = open_store(left)
    assert again.queue("orders", 0).max_offset == 8
    assert [found.body[:3] for found in read_log(left)] == [b"old"] * 5 + [b"new"] * 3
    again.stop()


def test_a_second_kill_during_recovery_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(11, 50))
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    first = open_store(left)
    second = copy_after_crash(first, tmp_path / "c")
    first.stop()
    assert check_recovered(open_store(second), tmp_path / "w") == 50


def test_topics_that_cannot_be_directory_names_get_no_queue(tmp_path: Path) -> None:
    """A damaged record may have any topic, and must not create a directory outside of the store."""
    store = open_store(tmp_path / "a")
    put_all(store, [Message(topic="xxxxxx")] * 2)
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    path = left / "commitlog" / ("0" * 20)
    path.write_bytes(path.read_bytes().replace(b"xxxxxx", b"../../"))
    shutil.rmtree(left / "consumequeue")
    again = open_store(left)
    assert again.lookup.topics() == set()
    assert put(again, Message())[0] is PutStatus.PUT_OK
    again.stop()


def test_a_start_after_a_clean_stop_reads_few_bytes_of_each_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any number of units and any size of files."""
    sizes: dict[str, Any] = {
        "mapped_file_size_consume_queue": 20 * 300_000,
        "mapped_file_size_commit_log": 8 << 20,
        "message_index_enable": False,
    }
    store = open_store(tmp_path, **sizes)
    counts = [1, 203, 204, 205, 20_000]
    for queue_id, count in enumerate(counts):
        put_all(store, [Message(queue_id=queue_id, body=b"", properties={})] * count)
    store.stop()
    read: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        data = pread(fd, size, at)
        if "consumequeue" in Path(f"/proc/self/fd/{fd}").readlink().parts:
            read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    store = open_store(tmp_path, **sizes)
    assert [store.queue("orders", queue_id).max_offset for queue_id in range(5)] == counts
    assert sum(read) <= 5 * (4096 + 40 * 20)
    unit = store.queue("orders", 4).unit(19_999)
    assert unit is not None
    assert store.queue("orders", 4).max_physical == unit[0] + unit[1] == store.max_phy_offset
    store.stop()


def test_stale_units_left_by_rocketmq_are_not_part_of_the_queue(tmp_path: Path) -> None:
    """RocketMQ truncates by moving positions only. After it has used the directory, recovery searches the end
    of a queue unit by unit."""
    store = open_store(tmp_path, mapped_file_size_consume_queue=20 * 100)
    done = put_all(store, [Message(body=b"")] * 20)
    store.stop()
    path = tmp_path / "consumequeue" / "orders" / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    stale = b"".join(UNIT.pack(at, size, 0) for _, at, _, size in done[:10])
    data[20 * 20 : 20 * 20 + len(stale)] = stale
    path.write_bytes(data)
    (tmp_path / "lock").write_bytes(b"lock")  # as RocketMQ does when it opens the directory
    store = open_store(tmp_path, mapped_file_size_consume_queue=20 * 100)
    assert store.queue("orders", 0).max_offset == 20
    store.stop()


def test_units_without_a_record_at_the_end_of_a_queue_are_replaced(tmp_path: Path) -> None:
    """A lost page of a queue may show units of an older log. The records that the log has now get theirs."""
    store = open_store(tmp_path / "a")
    done = put_all(store, [Message(body=bytes(100))] * 6)
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    path = left / "consumequeue" / "orders" / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    for number in (4, 5):
        data[number * 20 : number * 20 + 20] = UNIT.pack(done[3][1] + number, 50, 0)
    path.write_bytes(data)
    again = open_store(left)
    assert check_recovered(again, tmp_path / "w") == 6


@pytest.mark.parametrize("clean", [True, False])
def test_an_unreadable_sector_fails_the_start_and_leaves_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    """A read through a mapping would kill the process; treated as the end of the log, the sector would
    truncate the log."""
    store = open_store(tmp_path / "a")
    done = put_all(store, [Message(body=bytes(100))] * 20)
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    left = tmp_path / "a" if clean else left
    path = left / "commitlog" / ("0" * 20)
    before = path.read_bytes()
    bad = done[-1][1] + 10
    pread = os.pread

    def unreadable(fd: int, size: int, at: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink() == path and at <= bad < at + size:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", unreadable)
    for _ in range(2):
        with pytest.raises(OSError, match="cannot be read between"):
            open_store(left)
        assert path.read_bytes() == before
    monkeypatch.setattr(os, "pread", pread)
    assert check_recovered(open_store(left), tmp_path / "w") == 20
