"""Tests what a start knows about the end of the log, from the abort file and after a failed fsync."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epochmq_formats.abort_file import AbortRecord, FileIdentity, StoragePlace, TailState, decode, encode
from epochmq_store.files.mapped_file import MappedFile, StoreDamagedError
from epochmq_store.message_store import MessageStore
from epochmq_store.state_files import abort_file
from epochmq_store.state_files.tail_state import CLEAN_TAIL, assess_tail
from epochmq_store.statuses import PutStatus
from tests.unit.store.power_loss_disk import PAGE
from tests.unit.store.recovery_checks import check_recovered
from tests.unit.store.support import (
    LOG_FILE,
    Message,
    adopt_abort_file,
    copy_after_crash,
    open_store,
    put,
    put_all,
    random_messages,
    small_config,
)

HERE = FileIdentity(inode=12, generation=7, device=66306)
LEFT = AbortRecord(boot_id="boot-1", identity=HERE, acknowledged_unflushed=True)


@pytest.fixture(autouse=True)
def _marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(abort_file, "MARK_DIRECTORY", tmp_path / "shm")


def with_changes(left: AbortRecord, **changes: Any) -> AbortRecord:
    return msgspec.structs.replace(left, **changes)


@pytest.mark.parametrize(
    ("left", "boot", "present", "state", "lacks"),
    [
        (None, "boot-1", HERE, TailState.INTACT, False),
        (LEFT, "boot-1", HERE, TailState.INTACT, False),
        (LEFT, "boot-2", HERE, TailState.UNFLUSHED_LOST, True),
        (with_changes(LEFT, acknowledged_unflushed=False), "boot-2", HERE, TailState.UNFLUSHED_LOST, False),
        # Disks may get other numbers in another boot.
        (with_changes(LEFT, acknowledged_unflushed=False), "boot-2", other_device := FileIdentity(12, 7, 1),
         TailState.UNFLUSHED_LOST, False),
        (LEFT, "boot-1", other_device, TailState.UNKNOWN, True),
        (LEFT, "boot-1", FileIdentity(12, 8, 66306), TailState.UNKNOWN, True),
        (LEFT, "boot-2", FileIdentity(13, 7, 66306), TailState.UNKNOWN, True),
        (with_changes(LEFT, flush_failed=True), "boot-1", HERE, TailState.UNKNOWN, True),
        (with_changes(LEFT, flush_failed=True), "boot-2", HERE, TailState.UNKNOWN, True),
        (with_changes(LEFT, inherited=TailState.UNKNOWN), "boot-1", HERE, TailState.UNKNOWN, True),
        (with_changes(LEFT, inherited=TailState.UNFLUSHED_LOST), "boot-1", HERE,
         TailState.UNFLUSHED_LOST, True),
        (with_changes(LEFT, identity=None), "boot-1", HERE, TailState.INTACT, False),
    ],
)  # fmt: skip
def test_the_state_of_the_tail_follows_from_the_abort_file(
    left: AbortRecord | None, boot: str, present: FileIdentity, state: TailState, lacks: bool
) -> None:
    tail = assess_tail(left, boot, present)
    assert tail.state is state
    assert tail.may_lack_acknowledged is lacks


@pytest.mark.parametrize(
    "left",
    [
        LEFT,
        with_changes(
            LEFT,
            acknowledged_unflushed=False,
            flush_failed=True,
            inherited=TailState.UNKNOWN,
            recovering=True,
        ),
    ],
)
def test_an_abort_record_survives_encoding_and_decoding(left: AbortRecord) -> None:
    data = encode(4711, left)
    assert data.splitlines()[0] == b"4711", "as RocketMQ writes it"
    assert decode(data.ljust(abort_file.RECORD_BYTES, b"\n")) == left


@pytest.mark.parametrize("data", [b"", b"4711", b"\0" * 512, b"\xff\xfe=\n=\n", b"4711\n"])
def test_an_unreadable_abort_file_counts_as_a_power_loss_under_async_flush(data: bytes) -> None:
    tail = assess_tail(decode(data), "boot-1", HERE)
    assert tail.state is TailState.UNFLUSHED_LOST
    assert tail.may_lack_acknowledged


def test_an_abort_file_of_an_older_version_distinguishes_kill_and_power_loss() -> None:
    assert assess_tail(decode(b"4711\nboot-1"), "boot-1", HERE).state is TailState.INTACT
    assert assess_tail(decode(b"4711\nboot-1"), "boot-2", HERE).state is TailState.UNFLUSHED_LOST


HOME = StoragePlace("machine-1", "volume-1")


@pytest.mark.parametrize(
    ("left", "present", "lacks"),
    [
        (HOME, HOME, False),
        (HOME, StoragePlace("machine-1", "volume-2"), True),
        (HOME, StoragePlace("machine-2", "volume-2"), True),
        (HOME, StoragePlace("machine-2", "volume-1"), False),  # the volume was attached there
        (StoragePlace("machine-1"), StoragePlace("machine-2", "volume-1"), True),
        (StoragePlace("machine-1"), StoragePlace("machine-1", "volume-1"), False),
        (StoragePlace(), StoragePlace("machine-2", "volume-2"), False),  # of an earlier release
        (HOME, StoragePlace(), False),
    ],
)
def test_a_snapshot_of_a_running_store_that_is_restored_elsewhere_may_lack_acknowledged_messages(
    left: StoragePlace, present: StoragePlace, lacks: bool
) -> None:
    """Its abort file has the identity of the original, and with SYNC_FLUSH a power loss takes nothing."""
    record = with_changes(LEFT, acknowledged_unflushed=False, place=left)
    assert decode(encode(1, record)) == record
    tail = assess_tail(record, "boot-2", HERE, present)
    assert tail.may_lack_acknowledged is lacks
    assert tail.state is (TailState.UNKNOWN if lacks else TailState.UNFLUSHED_LOST)


def test_the_place_of_a_store_is_what_the_kernel_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "id").write_text("0123abcd\n")
    disk = tmp_path / "devices" / "sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "device").mkdir()
    (disk / "device" / "wwid").write_text("naa.5000c500a1b2c3d4\n")
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "8:1").symlink_to(disk / "sda1")
    monkeypatch.setattr(abort_file, "MACHINE_ID", tmp_path / "id")
    monkeypatch.setattr(abort_file, "DEVICES", tmp_path / "block")
    assert abort_file.place_of(os.makedev(8, 1)) == StoragePlace("0123abcd", "naa.5000c500a1b2c3d4")
    assert abort_file.place_of(os.makedev(0, 44)) == StoragePlace("0123abcd", "")
    monkeypatch.setattr(abort_file, "MACHINE_ID", tmp_path / "none")
    assert abort_file.place_of(os.makedev(0, 44)) == StoragePlace()


def test_a_restored_snapshot_starts_in_doubt(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a", flush_disk_type="SYNC_FLUSH")
    put_all(store, random_messages(1, 20))
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    adopt_abort_file(left, boot_id="boot-1", place=StoragePlace("another machine"))
    again = open_store(left, flush_disk_type="SYNC_FLUSH")
    assert again.tail.may_lack_acknowledged
    again.stop()


def reopen(root: Path, **changes: Any) -> MessageStore:
    """Opens the directory after `changes` to its abort record."""
    adopt_abort_file(root, **changes)
    return open_store(root)


def test_a_start_knows_how_the_previous_run_ended(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    assert (store.tail.state, store.tail) == (TailState.INTACT, CLEAN_TAIL)
    put_all(store, random_messages(1, 10))
    killed, lost_power = copy_after_crash(store, tmp_path / "b"), copy_after_crash(store, tmp_path / "c")
    shutil.copytree(tmp_path / "a", restored := tmp_path / "d")
    store.stop()
    for root, boot, state in (
        (killed, abort_file.boot_id(), TailState.INTACT),
        (lost_power, "another boot", TailState.UNFLUSHED_LOST),
    ):
        store = reopen(root, boot_id=boot)
        assert store.tail.state is state
        assert store.tail.may_lack_acknowledged is (state is not TailState.INTACT)
        store.stop()
    store = open_store(restored)
    assert store.tail.state is TailState.UNKNOWN
    store.stop()
    # A clean stop resets the state; the HA service keeps its own record.
    store = open_store(restored)
    assert store.tail.state is TailState.INTACT
    store.stop()


def test_a_kill_during_recovery_from_a_power_loss_does_not_count_as_a_kill(tmp_path: Path) -> None:
    """The index files that the power loss left are not trusted before the recovery has finished."""
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(8, 30))
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    adopt_abort_file(left, boot_id="another boot")
    abort = abort_file.AbortFile(left / "abort")
    abort.begin(abort.read_tail(), acknowledges_unflushed=True)
    abort.close()
    assert not abort.read_tail().only_killed
    store = open_store(left)
    again = copy_after_crash(store, tmp_path / "c")
    store.stop()
    assert abort_file.AbortFile(again / "abort").read_tail().only_killed


def test_doubt_about_the_log_survives_a_kill_until_it_is_cleared(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a", flush_disk_type="SYNC_FLUSH")
    copy_after_crash(store, tmp_path / "b")
    store.stop()
    adopt_abort_file(tmp_path / "b", boot_id="another boot", acknowledged_unflushed=True)
    store = open_store(tmp_path / "b", flush_disk_type="SYNC_FLUSH")
    copy_after_crash(store, tmp_path / "c")
    assert store.tail.may_lack_acknowledged
    store.clear_log_doubt()
    copy_after_crash(store, tmp_path / "d")
    store.stop()
    for name, lacks in (("c", True), ("d", False)):
        store = open_store(tmp_path / name, flush_disk_type="SYNC_FLUSH")
        assert store.tail.may_lack_acknowledged is lacks
        store.stop()


def test_the_abort_file_says_whether_messages_are_acknowledged_before_they_are_flushed(
    tmp_path: Path,
) -> None:
    """A change while running counts from then on; a change back does not undo earlier acknowledgements."""

    def recorded(store: MessageStore) -> bool:
        return decode((store.config.root / "abort").read_bytes()).acknowledged_unflushed

    store = open_store(tmp_path, flush_disk_type="SYNC_FLUSH")
    assert not recorded(store)
    store.configure(small_config(tmp_path, flush_disk_type="ASYNC_FLUSH"))
    assert recorded(store)
    store.configure(small_config(tmp_path, flush_disk_type="SYNC_FLUSH"))
    assert recorded(store)
    store.stop()


def test_after_a_failed_start_the_previous_clean_stop_still_counts(tmp_path: Path) -> None:
    """The next start must not repair, and so delete, files that this start did not accept."""
    store = open_store(tmp_path)
    put_all(store, [Message(body=bytes(900))] * 30)
    store.stop()
    files = sorted((tmp_path / "commitlog").iterdir())
    files[1].rename(tmp_path / "moved")
    for _ in range(2):
        with pytest.raises(StoreDamagedError):
            open_store(tmp_path)
        assert not (tmp_path / "abort").exists()
        assert sorted((tmp_path / "commitlog").iterdir()) == [files[0], *files[2:]]


def test_after_a_failed_start_the_previous_kill_still_counts(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_all(store, [Message(body=bytes(900))] * 30)
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    with pytest.raises(StoreDamagedError):
        open_store(left, mapped_file_size_commit_log=LOG_FILE // 2)
    assert (left / "abort").exists()
    store = open_store(left)
    assert store.tail.only_killed
    assert check_recovered(store, tmp_path / "w") == 30
    store.stop()


def test_a_store_whose_abort_file_was_removed_stops(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (tmp_path / "abort").unlink()
    store.stop()
    store = open_store(tmp_path)
    assert store.tail is CLEAN_TAIL
    store.stop()


# After a failed fsync


class CachedDisk:
    """Simulates a disk with a page cache. Pages whose write-back failed can be read until the cache evicts
    them, and reach the disk only when they are written again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: Callable[[Path], bool] = lambda path: False
        self.disk: dict[Path, bytes] = {}
        self.lost: dict[Path, bytes] = {}  # content at the failure: clean in the cache, not on the disk
        self.written: dict[Path, set[int]] = {}  # pages written since
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "fsync", self.sync)
        monkeypatch.setattr(os, "fdatasync", self.sync)
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwrite(self, fd: int, data: bytes, at: int) -> int:
        done = self._pwrite(fd, data, at)
        path = Path(f"/proc/self/fd/{fd}").readlink()
        self.written.setdefault(path, set()).update(range(at // PAGE, (at + done - 1) // PAGE + 1))
        return done

    def sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_dir():
            return
        now = path.read_bytes()
        if self.failing(path):
            self.lost[path] = now
            self.written.pop(path, None)
            raise OSError(errno.EIO, "injected", str(path))
        self.disk[path] = self._after_sync(path, now)

    def _after_sync(self, path: Path, now: bytes) -> bytes:
        lost = self.lost.get(path)
        if lost is None:
            return now
        before = self.disk.get(path, b"").ljust(len(now), b"\0")
        written = self.written.get(path, set())
        return b"".join(
            (now if number in written or now[at : at + PAGE] != lost[at : at + PAGE] else before)[
                at : at + PAGE
            ]
            for number, at in enumerate(range(0, len(now), PAGE))
        )

    def lose_power(self, root: Path, to: Path) -> Path:
        """Copies the directory as another boot finds it: only bytes on the disk."""
        shutil.copytree(root, to)
        for path, data in self.disk.items():
            copy = to / path.relative_to(root)
            if path.is_relative_to(root) and copy.exists():
                copy.write_bytes(data.ljust(path.stat().st_size, b"\0"))
        adopt_abort_file(to, boot_id="another boot")
        return to


def fail_flush(store: MessageStore, of: str) -> None:
    """Fails a flush of log or queues."""
    flusher = store.log_flusher if of == "commitlog" else store.queue_flusher
    with pytest.raises(OSError, match="injected"):
        flusher.flush_now()
    store.state.report_fsync_failure(OSError(errno.EIO, "injected"))


@pytest.mark.parametrize("of", ["commitlog", "consumequeue"])
def test_a_restart_in_the_same_boot_rewrites_the_bytes_of_a_failed_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """After the failure the lost bytes are in the page cache only. All messages that the store has after the
    restart survive a power loss."""
    disk = CachedDisk(monkeypatch)
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(2, 20))
    store.log_flusher.flush_now()
    store.queue_flusher.flush_now()
    put_all(store, random_messages(3, 20))
    disk.failing = lambda path: of in path.parts
    fail_flush(store, of)
    disk.failing = lambda path: False
    assert put(store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
    store.stop()
    assert (tmp_path / "a" / "abort").exists()

    store = open_store(tmp_path / "a")
    assert store.tail.state is TailState.UNKNOWN
    end = store.max_phy_offset
    put_all(store, random_messages(4, 5))
    store.log_flusher.flush_now()
    store.queue_flusher.flush_now()
    promised = store.flushed_where
    left = disk.lose_power(tmp_path / "a", tmp_path / "b")
    store.stop()
    store = open_store(left)
    assert store.max_phy_offset >= promised > end
    assert check_recovered(store, tmp_path / "w") == 45


@pytest.mark.parametrize("name", ["timerwheel", "timerlog/0", "compaction/compactionLog/orders/0/0"])
def test_such_a_restart_rewrites_the_files_of_timers_and_compacted_queues_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    disk = CachedDisk(monkeypatch)
    store = open_store(tmp_path / "a")
    path = tmp_path / "a" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        file.write(b"before")
        os.fsync(file.fileno())
        file.write(b", lost")
        disk.failing = lambda failing: failing == path
        with pytest.raises(OSError, match="injected"):
            os.fsync(file.fileno())
    store.state.report_fsync_failure(OSError(errno.EIO, "injected"))
    disk.failing = lambda failing: False
    store.stop()
    store = open_store(tmp_path / "a")
    left = disk.lose_power(tmp_path / "a", tmp_path / "b")
    store.stop()
    assert (left / name).read_bytes() == b"before, lost"


def test_a_store_whose_disk_still_fails_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated attempts do not remove the record of the failure."""
    disk = CachedDisk(monkeypatch)
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(5, 20))
    disk.failing = lambda path: "commitlog" in path.parts
    fail_flush(store, "commitlog")
    store.stop()
    for _ in range(2):
        with pytest.raises(OSError, match="injected"):
            open_store(tmp_path / "a")
        assert decode((tmp_path / "a" / "abort").read_bytes()).flush_failed
    disk.failing = lambda path: False
    store = open_store(tmp_path / "a")
    assert store.tail.state is TailState.UNKNOWN
    store.stop()


def test_a_failed_fsync_during_the_start_after_a_kill_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a failed write-back to one fsync only. A second start must not trust the next fsync,
    which succeeds."""
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(6, 20))
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    flush = MappedFile.flush

    def failing(file: MappedFile) -> None:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(MappedFile, "flush", failing)
    with pytest.raises(OSError, match="injected"):
        open_store(left)
    monkeypatch.setattr(MappedFile, "flush", flush)
    store = open_store(left)
    assert store.tail.state is TailState.UNKNOWN
    store.stop()


def test_a_failed_fsync_on_a_read_only_file_system_is_recorded_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(7, 20))
    pwrite = os.pwrite

    def read_only(fd: int, data: bytes, at: int) -> int:
        raise OSError(errno.EROFS, "injected")

    monkeypatch.setattr(os, "pwrite", read_only)
    store.state.report_fsync_failure(OSError(errno.EIO, "injected"))
    store.stop()
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert not decode((tmp_path / "a" / "abort").read_bytes()).flush_failed
    store = open_store(tmp_path / "a")
    assert store.tail.state is TailState.UNKNOWN
    assert not list((tmp_path / "shm").iterdir()), "the start has rewritten the files and removed the mark"
    store.stop()
