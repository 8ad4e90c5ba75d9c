"""A log on a disk that is full, fails, or has lost data."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from epochmq_dledger.core.raft_log import LogFullError, MemoryLog, make_entry
from epochmq_dledger.store import segments
from epochmq_dledger.store.file_log import FileLog
from epochmq_dledger.store.segments import sync_and_close
from epochmq_formats.dledger_log import encode_entry
from epochmq_protocol.dledger import DLedgerEntry
from tests.unit.dledger.disk_room import room
from tests.unit.dledger.file_logs import FILE_SIZE, INDEX_FILE_SIZE, cut, flip, grow, opened, same


def synced(log: FileLog) -> None:
    """Syncs all entries."""
    end = log.end_index, log.end_term
    sync_and_close(log.take_unsynced())
    log.mark_synced(*end)


# A rejected append ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_left", [0, 1, 3, 4, 47, 48, 60, 200, 433, 434, 465, 466, 480, 497])
def test_recovery_finds_no_byte_of_a_rejected_append(tmp_path: Path, bytes_left: int) -> None:
    """The disk becomes full at any byte of two entries of 217 bytes and their index units of 32."""
    log, model = opened(tmp_path), MemoryLog()
    entries = grow(random.Random(3), model, 3, 1)
    log.append(entries)
    model.append(entries)
    synced(log)
    fresh = []
    end_pos = model.end_pos
    for index in (3, 4):
        entry = make_entry(index, 1, bytes(range(169)), end_pos, 1 << 20)
        end_pos = entry.pos + entry.size
        fresh.append(entry)
    if end_pos > FILE_SIZE:
        pytest.fail("the entries do not fit into the file")
    with room(bytes_left), pytest.raises(LogFullError):
        log.append(fresh)
    same(log, model)
    assert log.is_writable == (bytes_left == 0)
    log.erase_now()
    killed = opened(tmp_path)  # the process ends here: the kernel keeps what was written
    same(killed, model)
    data = (tmp_path / "data" / f"{0:020d}").read_bytes()
    assert not data[model.end_pos :].strip(b"\0")
    killed.close()
    log.append(fresh)
    log.close()


def test_an_append_that_the_disk_takes_in_parts_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    log, model = opened(tmp_path), MemoryLog()
    monkeypatch.setattr(segments.os, "pwrite", lambda fd, data, at: real(fd, data[:7], at))
    entries = grow(random.Random(3), model, 3, 1)
    log.append(entries)
    synced(log)
    log.close()
    monkeypatch.undo()
    again = opened(tmp_path)
    assert [again.entry(index) for index in range(3)] == entries
    again.close()


def test_no_entry_of_a_rejected_append_follows_a_later_smaller_one(tmp_path: Path) -> None:
    """[a, b] is rejected. a', of the size of a, is appended instead. b must not become its successor."""
    log = opened(tmp_path)
    a = make_entry(0, 1, b"a" * 20, 0, FILE_SIZE)
    b = make_entry(1, 1, b"b" * 20, a.size, FILE_SIZE)
    with room(a.size + b.size), pytest.raises(LogFullError):
        log.append([a, b])
    log.erase_now()
    log.append([make_entry(0, 1, b"A" * 20, 0, FILE_SIZE)])
    log = opened(tmp_path)
    assert log.end_index == 0
    log.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ENODEV])
def test_a_disk_error_is_not_taken_for_a_full_disk(tmp_path: Path, code: int) -> None:
    log = opened(tmp_path)
    with room(10, code), pytest.raises(OSError, match=os.strerror(code)):
        log.append(grow(random.Random(4), MemoryLog(), 2, 1))
    log.close()


def test_an_exceeded_quota_counts_as_a_full_disk(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with room(0, errno.EDQUOT), pytest.raises(LogFullError):
        log.append(grow(random.Random(4), MemoryLog(), 2, 1))
    log.close()


def test_after_a_failed_truncation_the_log_takes_no_entries(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(grow(random.Random(4), MemoryLog(), 8, 1))
    log.truncate(3)
    with room(0, errno.EIO), pytest.raises(OSError, match="Input/output"):
        log.erase_now()
    with pytest.raises(AssertionError):
        log.append([make_entry(4, 2, b"x", log.end_pos, FILE_SIZE)])
    log.close()


# No wait for the disk ---------------------------------------------------------------------------------------


def test_writes_truncations_and_new_files_do_not_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of the event loop must not wait for the disk."""
    log = opened(tmp_path)

    def never(*_: object) -> None:
        raise AssertionError("a sync on the event loop")

    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, never)
        log.append(grow(random.Random(6), MemoryLog(), 40, 1))
        log.truncate(20)
        erase = log.take_erasure()
    erase()
    log.on_erasure_completed()
    log.drop_before(12)
    for removal in log.take_removals():
        removal()
    log.close()


# Unreadable bytes at recovery -------------------------------------------------------------------------------


def written(folder: Path, *batches: int, unsynced: int = 0) -> list[DLedgerEntry]:
    """A log with synced entries in batches of these sizes, and with some unsynced entries."""
    log, model = opened(folder), MemoryLog()
    for number, count in enumerate(batches):
        entries = grow(random.Random(number), model, count, 1)
        log.append(entries)
        model.append(entries)
        synced(log)
    if unsynced:
        entries = grow(random.Random(99), model, unsynced, 1)
        log.append(entries)
        model.append(entries)
    log.close()
    return model.entries


def spoil(folder: Path, at: int, data: bytes) -> None:
    """Overwrites the data files from byte `at` on."""
    with (folder / "data" / f"{at - at % FILE_SIZE:020d}").open("r+b") as file:
        file.seek(at % FILE_SIZE)
        file.write(data)


@pytest.mark.parametrize("byte", [0, 7, 15, 23, 31, 35, 37, 39, 43, 47, 50])
@pytest.mark.parametrize("victim", [0, 4, 9])
def test_a_flipped_bit_in_a_durable_entry_is_damage_and_no_file_changes(
    tmp_path: Path, victim: int, byte: int
) -> None:
    """In the header's magic, size, index, term, position, channel, checksums and length, or in the body; also
    in the first header of the oldest file."""
    entries = written(tmp_path, 10, 5, unsynced=3)
    flip(tmp_path, entries[victim].pos + byte)
    before = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    log = opened(tmp_path)
    unreadable = [index for index in range(log.end_index + 1) if log.entry(index) is None]
    if unreadable:  # in an older file, as a peer finds it when it replays the log
        log.mark_unreadable(unreadable[0])
    assert log.damage is not None
    assert (log.damage.end_index, log.end_index) == (victim - 1, victim - 1)
    assert f"entry {victim}" in log.damage.text
    assert "byte" in log.damage.text
    assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    assert log.files_after_end()[-1] == max(before)
    log.erase_after_end()
    log.close()
    log = opened(tmp_path)
    assert (log.damage, log.end_index) == (None, victim - 1)
    log.close()


@pytest.mark.parametrize("victim", [15, 16])
def test_a_torn_tail_is_no_damage_even_with_readable_entries_after_it(tmp_path: Path, victim: int) -> None:
    """After a power failure unsynced entries are there in part, in any order."""
    entries = written(tmp_path, 10, 5, unsynced=3)
    spoil(tmp_path, entries[victim].pos, bytes(48))
    log = opened(tmp_path)
    assert (log.damage, log.end_index) == (None, victim - 1)
    log.close()


def test_a_log_that_ends_before_the_committed_index_is_damaged(tmp_path: Path) -> None:
    entries = written(tmp_path, 10, 5)
    flip(tmp_path, entries[14].pos + 50)
    log = FileLog(tmp_path, FILE_SIZE, INDEX_FILE_SIZE)
    log.open(committed_index=14)
    assert log.damage is not None
    assert "entry 14 was committed" in log.damage.text
    log.close()
    log = FileLog(tmp_path, FILE_SIZE, INDEX_FILE_SIZE)
    log.open(committed_index=13)
    assert log.damage is None
    log.close()


def test_a_truncation_that_a_power_failure_interrupts_is_no_damage(tmp_path: Path) -> None:
    """Some truncated entries are erased, some are not. The mark names the end of the log."""
    entries = written(tmp_path, 10, 5)
    log = opened(tmp_path)
    log.truncate(7)
    erase = log.take_erasure()

    def stop(*_: object) -> None:
        raise OSError(errno.EIO, "the power fails")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments.Erasure, "run", stop)
        with pytest.raises(OSError, match="power"):
            erase()
    log.close()
    spoil(tmp_path, entries[8].pos, bytes(48))
    log = opened(tmp_path)
    assert (log.damage, log.end_index) == (None, 7)
    log.close()


def test_the_directory_of_a_java_peer_opens_without_damage(tmp_path: Path) -> None:
    """Java writes no checksums. Its torn tail, with or without readable entries after it, is no damage."""
    model = MemoryLog()
    entries = grow(random.Random(5), model, 4, 1)
    (tmp_path / "data").mkdir()
    blank = bytearray(FILE_SIZE)
    for entry in entries:
        blank[entry.pos : entry.pos + entry.size] = encode_entry(entry)
    (tmp_path / "data" / f"{0:020d}").write_bytes(blank)
    log = opened(tmp_path)
    assert (log.damage, log.end_index) == (None, 3)
    log.close()
    spoil(tmp_path, entries[2].pos, bytes(48))
    log = opened(tmp_path)
    assert (log.damage, log.end_index) == (None, 1)
    log.close()


def test_the_log_ends_before_an_entry_that_becomes_unreadable(tmp_path: Path) -> None:
    entries = written(tmp_path, 40, 5)
    log = opened(tmp_path)
    flip(tmp_path, entries[2].pos + 50)
    assert log.entry(2) is None
    log.mark_unreadable(2)
    assert log.damage is not None
    assert log.end_index == 1
    log.erase_after_end()
    cut(log, 0)
    log.close()


def test_a_log_whose_first_entry_becomes_unreadable_is_empty(tmp_path: Path) -> None:
    written(tmp_path, 6)
    log = opened(tmp_path)
    log.mark_unreadable(0)
    assert (log.begin_index, log.end_index, log.end_term, log.end_pos) == (-1, -1, -1, 0)
    assert log.damage is not None
    log.close()


def test_a_log_opens_after_a_failed_write_back_that_no_sync_has_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports it to the next sync of the file, also if another process opened it."""
    log, model = opened(tmp_path), MemoryLog()
    entries = grow(random.Random(3), model, 3, 1)
    log.append(entries)
    model.append(entries)
    log.close()
    unreported = {tmp_path / "data" / f"{0:020d}"}

    def reporting(sync: Callable[[int], None], fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        sync(fd)
        if path in unreported:
            unreported.discard(path)
            raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(segments.os, "fsync", partial(reporting, os.fsync))
    monkeypatch.setattr(segments.os, "fdatasync", partial(reporting, os.fdatasync))
    log = opened(tmp_path)
    synced(log)
    assert not unreported
    same(log, model)
    log.close()


def test_erasing_succeeds_on_a_full_disk(tmp_path: Path) -> None:
    """Only bytes other than zero are overwritten: holes in the file stay holes."""
    log = opened(tmp_path)
    entries = grow(random.Random(4), MemoryLog(), 3, 1)
    log.append(entries)
    log.truncate(0)
    ranges: list[tuple[int, int]] = []
    real = os.pwrite

    def pwrite(fd: int, data: bytes, at: int) -> int:
        if not data.strip(b"\0") and len(data) > 12:
            ranges.append((at, at + len(data)))
        return real(fd, data, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments.os, "pwrite", pwrite)
        log.erase_now()
    end = entries[-1].pos + entries[-1].size
    assert ranges
    assert max(to for _, to in ranges if to > 200) <= end
    log.close()
