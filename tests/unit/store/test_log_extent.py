"""Tests that a start notices missing files of the log, doubts the log then, and deletes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epochmq_formats.abort_file import TailState
from epochmq_store.files.mapped_file import StoreDamagedError
from epochmq_store.message_store import MessageStore
from epochmq_store.state_files.log_extent import EXTENT_NAME, FirstAndLastFile, LogExtentFile, missing_files
from epochmq_store.state_files.tail_state import CLEAN_TAIL
from tests.unit.store.started_stores import started_store, wait_until
from tests.unit.store.support import (
    LOG_FILE,
    adopt_abort_file,
    copy_after_crash,
    open_store,
    put_all,
    random_messages,
)

EVENTS = ("clean stop", "kill", "power loss")


def ended(directory: Path, event: str) -> Path:
    """A store with at least six log files, which ended in this way in its second run."""
    store = open_store(directory / "a")
    put_all(store, random_messages(1, 60))
    store.stop()
    store = open_store(directory / "a")
    put_all(store, random_messages(2, 60))
    store.log_flusher.flush_now()
    store.queue_flusher.flush_now()
    store.queue_flusher.flush_checkpoint()
    assert len(store.log.files.files) >= 6
    if event == "clean stop":
        store.stop()
        return directory / "a"
    left = copy_after_crash(store, directory / "b")
    if event == "power loss":
        adopt_abort_file(left, boot_id="an earlier boot", acknowledged_unflushed=False)
    store.stop()
    return left


def log_files(left: Path) -> list[Path]:
    return sorted((left / "commitlog").iterdir())


@pytest.mark.parametrize("event", EVENTS)
def test_a_missing_checkpoint_beside_a_log_is_doubt(tmp_path: Path, event: str) -> None:
    left = ended(tmp_path, event)
    (left / "checkpoint").unlink()
    store = open_store(left)
    assert store.tail.state is TailState.UNKNOWN
    assert store.tail.may_lack_acknowledged
    # The doubt lasts over a kill, although the checkpoint exists again.
    left = copy_after_crash(store, tmp_path / "c")
    store.stop()
    store = open_store(left)
    assert store.tail.may_lack_acknowledged
    store.clear_log_doubt()
    store.stop()
    store = open_store(left)
    assert store.tail is CLEAN_TAIL
    store.stop()


@pytest.mark.parametrize("event", ["clean stop", "kill"])
def test_a_first_file_may_be_missing_if_the_note_of_it_and_the_checkpoint_are(
    tmp_path: Path, event: str
) -> None:
    left = ended(tmp_path, event)
    for lost in (left / "checkpoint", left / EXTENT_NAME, log_files(left)[0]):
        lost.unlink()
    store = open_store(left)
    assert (store.tail.may_lack_acknowledged, store.missing_from) == (True, 0)
    store.stop()


def test_a_new_store_without_a_checkpoint_is_not_in_doubt(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.tail is CLEAN_TAIL
    store.stop()
    (tmp_path / "checkpoint").unlink()
    store = open_store(tmp_path)
    assert store.tail is CLEAN_TAIL
    store.stop()


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("event", EVENTS)
def test_a_missing_middle_file_ends_the_start_and_no_later_file_is_deleted(
    tmp_path: Path, event: str, checkpoint: bool
) -> None:
    left = ended(tmp_path, event)
    log_files(left)[2].unlink()
    if not checkpoint:
        (left / "checkpoint").unlink()
    before = {path.name: path.read_bytes() for path in log_files(left)}
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match="files are missing in between"):
            open_store(left)
        assert {path.name: path.read_bytes() for path in log_files(left)} == before


@pytest.mark.parametrize("event", EVENTS)
def test_a_missing_first_file_that_has_not_expired_is_doubt(tmp_path: Path, event: str) -> None:
    left = ended(tmp_path, event)
    log_files(left)[0].unlink()
    kept = log_files(left)
    store = open_store(left)
    assert store.tail.may_lack_acknowledged
    assert set(kept) <= set(log_files(left))
    store.stop()


def test_a_missing_last_file_after_a_clean_stop_is_doubt(tmp_path: Path) -> None:
    left = ended(tmp_path, "clean stop")
    log_files(left)[-1].unlink()
    store = open_store(left)
    assert store.tail.may_lack_acknowledged
    store.stop()


def test_a_missing_log_is_doubt(tmp_path: Path) -> None:
    left = ended(tmp_path, "clean stop")
    for path in log_files(left):
        path.unlink()
    store = open_store(left)
    assert store.tail.may_lack_acknowledged
    store.stop()


@pytest.mark.parametrize("event", EVENTS)
def test_a_whole_log_is_not_in_doubt(tmp_path: Path, event: str) -> None:
    store = open_store(ended(tmp_path, event))
    assert not store.tail.may_lack_acknowledged
    store.stop()


async def test_an_expired_first_file_is_no_doubt(tmp_path: Path) -> None:
    """Neither after a stop, nor if the broker is killed before or after the file was deleted."""
    left = ended(tmp_path, "clean stop")
    first = log_files(left)[0]
    os.utime(first, (0, 0))
    async with started_store(left, delete_when=";".join(map(str, range(24)))) as store:
        await wait_until(lambda: not first.exists())
        assert store.min_phy_offset == LOG_FILE
        killed = copy_after_crash(store, tmp_path / "killed")
    for directory in (left, killed):
        store = open_store(directory)
        assert (store.tail.may_lack_acknowledged, store.min_phy_offset) == (False, LOG_FILE)
        store.stop()


async def test_the_first_run_notes_the_first_file(tmp_path: Path) -> None:
    async with started_store(tmp_path / "a", clean_resource_interval=10) as store:
        put_all(store, random_messages(1, 60))
        await wait_until((tmp_path / "a" / EXTENT_NAME).exists)
        left = copy_after_crash(store, tmp_path / "b")
    log_files(left)[0].unlink()
    again = open_store(left)
    assert again.tail.may_lack_acknowledged
    again.stop()


def test_a_log_that_starts_anew_at_a_later_offset_is_not_in_doubt(tmp_path: Path) -> None:
    """As a replica's does whose log was truncated to nothing, and whose master's log has expired files."""
    source: MessageStore = open_store(tmp_path / "source")
    put_all(source, random_messages(1, 60))
    data = source.log.files.files[2].map[:]
    left = ended(tmp_path, "clean stop")
    store = open_store(left)
    store.truncate(0)
    store.replica_log.write(2 * LOG_FILE, memoryview(data))
    assert store.min_phy_offset == 2 * LOG_FILE
    killed = copy_after_crash(store, tmp_path / "killed")
    store.stop()
    source.stop()
    again = open_store(killed)
    assert (again.tail.may_lack_acknowledged, again.min_phy_offset) == (False, 2 * LOG_FILE)
    again.stop()


def test_a_directory_that_rocketmq_has_opened_since_is_not_judged(tmp_path: Path) -> None:
    left = ended(tmp_path, "clean stop")
    assert LogExtentFile(left).read() is not None
    (left / "lock").write_bytes(b"lock")
    log_files(left)[0].unlink()
    assert LogExtentFile(left).read() is None
    store = open_store(left)
    assert not store.tail.may_lack_acknowledged
    store.stop()


def test_an_extent_that_cannot_be_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    extent = LogExtentFile(tmp_path)
    extent.write(0)
    (tmp_path / f"{EXTENT_NAME}.tmp").mkdir()
    extent.write(LOG_FILE)
    assert extent.known is None
    assert LogExtentFile(tmp_path).read() is None


def test_missing_files_are_named() -> None:
    left = FirstAndLastFile(first=100, lock_modified_ns=1, last=400)
    assert missing_files(left, [100, 200, 400]) is None
    assert missing_files(left, [0, 100, 400, 500]) is None
    assert missing_files(left, [200, 400]) == "the log files from 100 to 200"
    assert missing_files(left, [100, 200]) == "the log files after 200 up to the one at 400"
    assert missing_files(left, []) == "the log files from 100 on"
    assert missing_files(None, []) is None
