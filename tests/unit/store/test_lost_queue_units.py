"""A disk may lose the pages of a consume queue's last file. The start builds the queue again from the log,
and reads past records that have rotted since: what was on disk for long is never truncated."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochmq_formats.store_checkpoint import CHECKPOINT_BYTES, FIELDS
from epochmq_protocol.message import MessageExt
from epochmq_store.message_store import MessageStore
from epochmq_store.recovering.recovery import RecoveryResult
from tests.unit.store.recovery_checks import check_recovered
from tests.unit.store.support import (
    LOG_FILE,
    Message,
    adopt_abort_file,
    log_bytes,
    open_store,
    put_all,
    random_messages,
    read_log,
    small_config,
)

EARLY = 25
LATER = 60
WITHOUT_INDEX: dict[str, Any] = {"message_index_enable": False}


def start(root: Path) -> tuple[MessageStore, RecoveryResult]:
    store = MessageStore(small_config(root, **WITHOUT_INDEX))
    return store, store.load()


def flushed_long_ago(root: Path) -> None:
    """Lets the checkpoint say that log and queues were flushed an hour after the last message."""
    path = root / "checkpoint"
    data = bytearray(path.read_bytes())
    until = max(one.store_timestamp for one in read_log(root)) + 3_600_000
    FIELDS.pack_into(data, 0, until, until, until, *FIELDS.unpack_from(data)[3:])
    path.write_bytes(data)


def kill(store: MessageStore, to: Path, **changes: Any) -> Path:
    """Copies the directory as a kill leaves it, with all units written."""
    store.queues.pending.write_all()
    store.log_flusher.flush_now()
    shutil.copytree(store.config.root, to)
    adopt_abort_file(to, **changes)
    return to


def left_behind(tmp_path: Path, how: str) -> Path:
    """The directory of a stopped store whose log was flushed long ago: messages of one queue, and later ones
    of others, in several files."""
    store = open_store(tmp_path / "a", **WITHOUT_INDEX)
    put_all(store, [Message(topic="early", body=b"e" * 40) for _ in range(EARLY)])
    last = put_all(store, random_messages(11, LATER))[-1][1]
    assert last > 2 * LOG_FILE
    left = tmp_path / "a"
    if how == "killed":
        left = kill(store, tmp_path / "b", dispatched_until=last)
    elif how == "crashed":
        left = kill(store, tmp_path / "b", boot_id="another boot")
    store.stop()
    flushed_long_ago(left)
    return left


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def queue_file(root: Path, number: int) -> Path:
    return sorted((root / "consumequeue" / "early" / "0").iterdir())[number]


def overwrite(root: Path, offset: int, data: bytes) -> None:
    """Rots bytes of the log."""
    path = root / "commitlog" / f"{offset - offset % LOG_FILE:020d}"
    with path.open("r+b") as file:
        file.seek(offset % LOG_FILE)
        file.write(data)


ROT: dict[str, Callable[[Path, MessageExt], None]] = {
    "the magic": lambda root, one: overwrite(root, one.physical_offset + 4, b"\x55"),
    "the size": lambda root, one: overwrite(root, one.physical_offset, b"\x7f"),
    "the body": lambda root, one: overwrite(root, one.physical_offset + 95, b"\x55"),
    "all bytes": lambda root, one: overwrite(root, one.physical_offset, bytes(one.store_size)),
}


@pytest.mark.long
@pytest.mark.parametrize("how", ["stopped", "killed", "crashed"])
@pytest.mark.parametrize("rot", ROT)
@pytest.mark.parametrize(("rotten", "file"), [(0, 0), (13, 0), (13, 2), (22, 2), (EARLY, 0), (EARLY + 3, 2)])
def test_a_rotten_old_record_ends_no_log_when_a_queue_is_built_again(
    tmp_path: Path, how: str, rot: str, rotten: int, file: int
) -> None:
    left = left_behind(tmp_path, how)
    written = list(read_log(left))
    ROT[rot](left, written[rotten])
    before = log_bytes(left)
    if how == "stopped":  # after a clean stop only the last file is looked at: the scrub repairs the others
        for number in range(file, 2):
            zero(queue_file(left, number))
        file = 2
    zero(queue_file(left, file))
    store, _ = start(left)
    assert log_bytes(left) == before
    end = written[-1].physical_offset + written[-1].store_size
    assert store.log.max_offset == end
    queue = store.queue("early", 0)
    assert queue.max_offset == EARLY
    for message in written[:EARLY]:
        unit = queue.unit(message.queue_offset)
        if message is not written[rotten] or rot == "the body":
            assert unit is not None
            assert unit[:2] == (message.physical_offset, message.store_size)
        elif unit is not None:
            assert message.physical_offset <= unit[0] < message.physical_offset + message.store_size
    store.stop()


@pytest.mark.parametrize("how", ["stopped", "killed", "crashed"])
def test_a_rotten_old_record_that_a_start_meets_is_known_as_damage(tmp_path: Path, how: str) -> None:
    left = left_behind(tmp_path, how)
    rotten = list(read_log(left))[13]
    ROT["the magic"](left, rotten)
    zero(queue_file(left, 2))
    zero(queue_file(left, 1))
    store, _ = start(left)
    assert [(one.start, one.end) for one in store.damage.ranges] == [
        (rotten.physical_offset, rotten.physical_offset + rotten.store_size)
    ]
    assert store.damage.ranges[0].repairable
    store.stop()


@pytest.mark.parametrize("how", ["stopped", "killed", "crashed"])
def test_a_sector_of_an_old_record_that_cannot_be_read_ends_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    left = left_behind(tmp_path, how)
    bad = list(read_log(left))[EARLY + 20].physical_offset + 10
    path = left / "commitlog" / f"{bad - bad % LOG_FILE:020d}"
    before = log_bytes(left)
    for number in (2, 1):
        zero(queue_file(left, number))
    pread = os.pread

    def unreadable(fd: int, size: int, at: int) -> bytes:
        if at <= bad % LOG_FILE < at + size and Path(f"/proc/self/fd/{fd}").readlink() == path:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, size, at)

    def not_cached(fd: int, buffers: object, at: int, flags: int = 0) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "pread", unreadable)
    monkeypatch.setattr(os, "preadv", not_cached)
    store, _ = start(left)
    assert any(one.start <= bad < one.end for one in store.damage.ranges)
    assert store.queue("early", 0).max_offset == EARLY
    store.stop()
    monkeypatch.setattr(os, "pread", pread)
    assert log_bytes(left) == before


@pytest.mark.parametrize("how", ["stopped", "killed", "crashed"])
def test_a_start_that_is_killed_while_it_builds_a_queue_loses_no_unit(tmp_path: Path, how: str) -> None:
    """The units are in memory for a while; some may be in files, so that no file is empty any more."""
    left = left_behind(tmp_path, how)
    zero(queue_file(left, 0))
    for number in (2, 1):
        queue_file(left, number).unlink()
    store, _ = start(left)
    again = tmp_path / "again"
    shutil.copytree(left, again)
    adopt_abort_file(again)
    # As if the messages were older than the checkpoint: a value that is not 0 says that all are flushed.
    path = again / "checkpoint"
    times = [time + 3_600_000 if time else 0 for time in FIELDS.unpack_from(path.read_bytes())[:3]]
    assert times[0]
    path.write_bytes(FIELDS.pack(*times, 0, 0).ljust(CHECKPOINT_BYTES, b"\0"))
    store.stop()
    partly = again / "consumequeue" / "early" / "0" / f"{0:020d}"
    partly.parent.mkdir(parents=True, exist_ok=True)
    partly.write_bytes((left / "consumequeue" / "early" / "0" / f"{0:020d}").read_bytes()[:60] + bytes(140))
    last, _ = start(again)
    assert last.queue("early", 0).max_offset == EARLY
    assert check_recovered(last, tmp_path / "w") == EARLY + LATER


def test_a_file_that_was_new_when_the_machine_lost_its_power_costs_no_reading(tmp_path: Path) -> None:
    """A power loss often leaves such a file: its size is on disk, its first units are not."""
    store = open_store(tmp_path / "a", **WITHOUT_INDEX)
    put_all(store, random_messages(11, LATER))
    put_all(store, [Message(topic="early")])
    left = kill(store, tmp_path / "b", boot_id="another boot")
    store.stop()
    flushed_long_ago(left)
    zero(queue_file(left, 0))
    again, found = start(left)
    assert found.start > LOG_FILE
    assert found.records < LATER / 2
    assert again.queue("early", 0).max_offset == 1
    assert check_recovered(again, tmp_path / "w") == LATER + 1


@pytest.mark.parametrize("how", ["stopped", "killed", "crashed"])
def test_a_start_of_whole_queues_reads_no_old_records(tmp_path: Path, how: str) -> None:
    left = left_behind(tmp_path, how)
    store, found = start(left)
    assert found.start > LOG_FILE
    assert found.records < LATER / 2
    assert check_recovered(store, tmp_path / "w") == EARLY + LATER


@pytest.mark.parametrize("how", ["stopped", "killed", "crashed"])
def test_a_file_that_is_missing_in_a_queue_is_built_again(tmp_path: Path, how: str) -> None:
    left = left_behind(tmp_path, how)
    queue_file(left, 1).unlink()
    store, _ = start(left)
    assert store.queue("early", 0).max_offset == EARLY
    assert check_recovered(store, tmp_path / "w") == EARLY + LATER
