"""Tests the state files: they are complete after a kill or a power loss at any moment, a worker thread writes
them, and a damaged file does not count as missing."""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path

import pytest

from epochmq_store.state_files import pending_file, state_file_io, state_file_writer
from epochmq_store.state_files.pending_file import PendingFile, pending_path, read_pending
from epochmq_store.state_files.state_file_io import StateFileDamagedError, read_state_file, write_state_file
from epochmq_store.state_files.state_file_writer import StateFileWriter

DEADLINE_S = 60


def content(number: int) -> bytes:
    return b"{%d}" % number + b" " * 3000


def number_in(data: bytes) -> int:
    text = data.decode().rstrip(" ")
    if not (text.startswith("{") and text.endswith("}") and len(data) >= 3000):
        raise ValueError("torn")
    return int(text[1:-1])


class StateFileDisk:
    """Simulates a disk by watching fsync. Synced content and synced names survive a power loss. Content that
    was not synced may be empty, incomplete or complete afterwards, and a name may refer to any file that it
    referred to since its last sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root = root
        self.synced: dict[int, bytes] = {}  # inode -> content
        self.contents: dict[int, bytes] = {}  # inode -> newest content
        self.names: dict[str, list[int | None]] = {}  # name -> its inodes since the directory's last sync
        monkeypatch.setattr(os, "fsync", self.sync)
        for name in ("rename", "replace", "link", "unlink"):
            monkeypatch.setattr(os, name, self.watched(getattr(os, name)))

    def watched(self, real):  # type: ignore[no-untyped-def]
        def call(*args, **options):  # type: ignore[no-untyped-def]
            self.look()
            real(*args, **options)
            self.look()

        return call

    def look(self) -> None:
        now = {path.name: path for path in self.root.iterdir()}
        for name in {*self.names, *now}:
            path = now.get(name)
            inode = path.stat().st_ino if path is not None else None
            if path is not None and inode is not None:
                self.contents[inode] = path.read_bytes()
            inodes = self.names.setdefault(name, [None])
            if inodes[-1] != inode:
                inodes.append(inode)

    def sync(self, fd: int) -> None:
        self.look()
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path == self.root:
            self.names = {name: inodes[-1:] for name, inodes in self.names.items()}
        else:
            self.synced[os.fstat(fd).st_ino] = path.read_bytes()

    def lose_power(self, to: Path, rng: random.Random) -> Path:
        self.look()
        to.mkdir()
        for name, inodes in self.names.items():
            inode = rng.choice(inodes)
            if inode is None:
                continue
            data = self.contents[inode]
            if self.synced.get(inode) != data:
                data = rng.choice([b"", data[: rng.randrange(len(data) + 1)], bytes(len(data)), data])
            (to / name).write_bytes(data)
        return to


@pytest.mark.parametrize("seed", range(60))
def test_a_power_loss_leaves_a_state_file_no_older_than_the_durable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(pending_file, "SLOT_BYTES", 8192)
    root = tmp_path / "config"
    root.mkdir()
    disk = StateFileDisk(monkeypatch, root)
    writer = StateFileWriter()
    path = root / "topics.json"
    durable = 0
    for number in range(1, rng.randint(2, 12)):
        writer.add(path, content(number))
        if rng.random() < 0.6:
            writer._pending_file(path).write(content(number))
            writer._pending[path] = writer._generation
        if rng.random() < 0.6:
            writer.flush()
            durable = number
        if rng.random() < 0.3:
            left = disk.lose_power(tmp_path / f"left{number}", rng)
            with monkeypatch.context() as patch:
                patch.setattr(pending_file, "boot_id", lambda: "the next boot")
                found = read_state_file(left / "topics.json", number_in)
            assert (found or 0) >= durable
            assert found is None or found <= number


def test_pending_content_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is slow, the next start would find the newest content, and the caller does not wait."""
    gate, started = threading.Event(), threading.Event()

    def slow(path: Path, data: bytes) -> None:
        started.set()
        assert gate.wait(DEADLINE_S)
        write_state_file(path, data)

    monkeypatch.setattr(state_file_writer, "write_state_file", slow)
    writer = StateFileWriter()
    path = tmp_path / "config" / "topics.json"
    writer.write(path, content(1), survives_kill=True)
    assert started.wait(DEADLINE_S)
    for number in range(2, 50):
        writer.write(path, content(number), survives_kill=True)
        assert read_state_file(path, number_in) == number
    gate.set()
    writer.flush()
    assert number_in(path.read_bytes()) == 49
    assert sorted(file.name for file in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_content_replaced_before_its_write_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    gate, started = threading.Event(), threading.Event()

    def slow(path: Path, data: bytes) -> None:
        started.set()
        assert gate.wait(DEADLINE_S)
        written.append(number_in(data))

    monkeypatch.setattr(state_file_writer, "write_state_file", slow)
    writer = StateFileWriter()
    writer.write(tmp_path / "a.json", content(0))
    assert started.wait(DEADLINE_S)
    for number in range(1, 1000):
        writer.write(tmp_path / "a.json", content(number))
    gate.set()
    writer.flush()
    assert written == [0, 999]


def test_a_failed_write_is_retried_and_does_not_delay_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True

    def failing(path: Path, data: bytes) -> None:
        if full and path.name == "a.json":
            raise OSError(errno.ENOSPC, "no space left")
        write_state_file(path, data)

    monkeypatch.setattr(state_file_writer, "write_state_file", failing)
    writer = StateFileWriter()
    writer.add(tmp_path / "a.json", content(1))
    writer.add(tmp_path / "b.json", content(2))
    with pytest.raises(OSError, match="no space"):
        writer.flush()
    assert read_state_file(tmp_path / "b.json", number_in) == 2
    assert read_state_file(tmp_path / "a.json", number_in) is None
    full = False
    writer.retry()
    writer.flush()
    assert read_state_file(tmp_path / "a.json", number_in) == 1


@pytest.mark.parametrize("data", [b"", b"  \n", b"\0" * 100, b"{1"])
@pytest.mark.parametrize("backup", [None, b"", b"{1"])
def test_a_damaged_file_does_not_count_as_missing(tmp_path: Path, data: bytes, backup: bytes | None) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(data)
    if backup is not None:
        state_file_io.backup_of(path).write_bytes(backup)
    with pytest.raises(StateFileDamagedError, match=r"Restore one of them"):
        read_state_file(path, number_in)
    state_file_io.backup_of(path).write_bytes(content(7))
    assert read_state_file(path, number_in) == 7


def test_an_old_pending_file_does_not_hide_a_newer_state_file(tmp_path: Path) -> None:
    """A RocketMQ broker, which does not know pending files, may have used the directory since."""
    path = tmp_path / "topics.json"
    PendingFile(path).write(content(1))
    os.utime(path.with_name("topics.json.pending"), ns=(1, 1))
    write_state_file(path, content(2))
    assert read_state_file(path, number_in) == 2


def test_a_burst_of_changes_is_synced_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    first = threading.Event()

    def noted(path: Path, data: bytes) -> None:
        written.append(data)
        first.set()

    monkeypatch.setattr(state_file_writer, "write_state_file", noted)
    monkeypatch.setattr(state_file_writer, "ROUND_INTERVAL_S", 3600.0)
    writer = StateFileWriter()
    writer.write(tmp_path / "topics.json", b"0")
    assert first.wait(60)
    for number in range(1, 300):
        writer.write(tmp_path / "topics.json", b"%d" % number)
    writer.flush()
    assert written == [b"0", b"299"]


def test_a_kill_during_a_write_leaves_the_previous_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any number of written bytes of the newer slot."""
    monkeypatch.setattr(pending_file, "SLOT_BYTES", 8192)
    path = tmp_path / "topics.json"
    file = PendingFile(path)
    file.write(content(1))
    file.write(content(2))
    file.close()
    assert read_pending(path) == content(2)
    whole = pending_path(path).read_bytes()
    for torn in range(3050, 0, -7):
        pending_path(path).write_bytes(whole[:torn].ljust(8192, b"\0") + whole[8192:])
        assert read_pending(path) == content(1), torn


def test_content_that_is_too_large_for_a_pending_file_is_an_error_that_names_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_file, "SLOT_BYTES", 8192)
    file = PendingFile(tmp_path / "topics.json")
    file.write(bytes(8192 - 60))
    with pytest.raises(OSError, match="8133 bytes, expected at most 8132"):
        file.write(bytes(8192 - 59))
    file.close()


def test_pending_content_of_another_boot_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power loss the pending file may hold content that is older than the durable file."""
    path = tmp_path / "topics.json"
    write_state_file(path, content(2))
    PendingFile(path).write(content(1))
    assert read_state_file(path, number_in) == 1
    monkeypatch.setattr(pending_file, "boot_id", lambda: "another boot")
    assert read_state_file(path, number_in) == 2
    PendingFile(path).write(content(3))
    assert read_state_file(path, number_in) == 3
