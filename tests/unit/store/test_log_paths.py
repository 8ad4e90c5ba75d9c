"""A log in several directories: which one a new file goes to, and what a start finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from epochmq_broker.config.broker_config import from_properties
from epochmq_protocol.errors import ConfigError
from epochmq_store.files.mapped_file import StoreDamagedError
from epochmq_store.log.log_paths import MultiPathMappedFileQueue
from epochmq_store.message_store import MessageStore
from tests.unit.store.support import LOG_FILE, Message, copy_after_crash, open_store, put_all

BODY = bytes(1000)


def open_many(root: Path, *names: str, read_only: tuple[str, ...] = (), **changes: object) -> MessageStore:
    """A store whose log is in these directories beside each other."""
    return open_store(
        root / "store",
        store_path_commit_log=",".join(str(root / name) for name in names),
        read_only_commit_log_store_paths=",".join(str(root / name) for name in read_only),
        **changes,
    )


def fill(store: MessageStore, files: int) -> None:
    """Writes until the log has so many files."""
    while len(store.log.files.files) < files:
        put_all(store, [Message(body=BODY)])


def places(store: MessageStore) -> list[tuple[int, str]]:
    """(number, directory) of each file of the log."""
    return [(file.start // LOG_FILE, file.path.parent.name) for file in store.log.files.files]


def bodies(store: MessageStore) -> int:
    queue = store.queue("orders", 0)
    found = 0
    while found < queue.max_offset:
        found += store.get(queue, found, 32).count
    return found


def test_files_go_to_the_paths_in_turn(tmp_path: Path) -> None:
    store = open_many(tmp_path, "b", "a", "c")
    fill(store, 7)
    assert places(store) == [(number, "abc"[number % 3]) for number in range(7)]
    count = bodies(store)
    store.stop()
    again = open_many(tmp_path, "c", "b", "a")
    assert places(again) == [(number, "abc"[number % 3]) for number in range(7)]
    assert bodies(again) == count
    again.stop()


def test_read_only_paths_are_read_and_get_no_new_files(tmp_path: Path) -> None:
    store = open_many(tmp_path, "a", "b")
    fill(store, 4)
    count = bodies(store)
    store.stop()
    store = open_many(tmp_path, "b", "c", read_only=("a",))
    assert bodies(store) == count
    fill(store, 7)
    assert places(store)[4:] == [(4, "b"), (5, "c"), (6, "b")]
    store.stop()
    store = open_many(tmp_path, "a", "b", "c", read_only=("a", "c"))
    fill(store, 9)
    assert places(store)[7:] == [(7, "b"), (8, "b")]
    store.stop()


def test_full_paths_are_skipped_until_all_are_full(tmp_path: Path) -> None:
    store = open_many(tmp_path, "a", "b")
    used = {"a": 0.2, "b": 0.89}
    store.log_expiry._used = lambda path: used.get(path.name, 0.1)
    fill(store, 1)
    assert store.log_expiry.measure().log == 0.2
    assert not store.log_expiry.is_full
    fill(store, 4)
    assert [name for _, name in places(store)] == ["a", "a", "a", "a"]
    used["a"] = 0.88
    store.log_expiry.measure()
    fill(store, 6)
    assert [name for _, name in places(store)][4:] == ["a", "b"]
    used |= {"a": 0.95, "b": 0.95}
    store.log_expiry.measure()
    assert store.log_expiry.is_full
    store.stop()


def test_the_oldest_file_expires_wherever_it_is(tmp_path: Path) -> None:
    store = open_many(tmp_path, "a", "b")
    fill(store, 4)
    store.log_expiry._used = lambda path: 0.95
    store.log_expiry.measure()
    expired = store.log_expiry.take_expired()
    assert [file.path.parent.name for file in expired] == ["a", "b", "a"]
    for file in expired:
        file.delete()
    store.stop()


def test_a_crash_and_a_truncation_span_the_paths(tmp_path: Path) -> None:
    store = open_many(tmp_path, "a", "b")
    fill(store, 5)
    count = bodies(store)
    copy_after_crash(store, tmp_path / "copy" / "store")
    for name in "ab":
        shutil.copytree(tmp_path / name, tmp_path / "copy" / name)
    store.truncate(2 * LOG_FILE)
    assert places(store) == [(0, "a"), (1, "b"), (2, "a")]
    store.stop()
    again = open_many(tmp_path / "copy", "a", "b")
    assert bodies(again) == count
    again.stop()


def test_a_part_of_the_log_in_two_paths_keeps_the_store_closed(tmp_path: Path) -> None:
    store = open_many(tmp_path, "a", "b")
    fill(store, 3)
    store.stop()
    shutil.copy(tmp_path / "a" / f"{0:020}", tmp_path / "b")
    with pytest.raises(StoreDamagedError, match="are the same part of the log"):
        open_many(tmp_path, "a", "b")


def test_a_missing_read_only_path_keeps_the_store_closed(tmp_path: Path) -> None:
    with pytest.raises(StoreDamagedError, match="is no directory"):
        open_many(tmp_path, "a", "b", read_only=("gone",))


def test_a_lost_path_is_a_gap_in_the_log(tmp_path: Path) -> None:
    store = open_many(tmp_path, "a", "b")
    fill(store, 4)
    store.stop()
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(StoreDamagedError, match="files are missing in between"):
        open_many(tmp_path, "a", "b")


def test_the_stores_directory_names_the_paths(tmp_path: Path) -> None:
    store = open_many(tmp_path, "b", "a", read_only=())
    store.stop()
    recorded = tmp_path / "store" / "logPaths.json"
    assert json.loads(recorded.read_text()) == [str(tmp_path / "a"), str(tmp_path / "b")]
    store = open_many(tmp_path, "a")
    assert not isinstance(store.log.files, MultiPathMappedFileQueue)
    assert json.loads(recorded.read_text()) == [str(tmp_path / "a")]
    store.stop()
    open_many(tmp_path, "store/commitlog").stop()
    assert not recorded.exists()


def test_one_path_must_be_writable() -> None:
    with pytest.raises(ConfigError, match="at least one path"):
        from_properties({"storePathCommitLog": "/a,/b", "readOnlyCommitLogStorePaths": "/b,/a"})
    assert from_properties({"storePathCommitLog": "/a,/b", "readOnlyCommitLogStorePaths": "/b"})


def test_paths_below_the_stores_directory_are_relative_to_it(tmp_path: Path) -> None:
    store = open_many(tmp_path, "store/b", "other/a")
    store.stop()
    recorded = json.loads((tmp_path / "store" / "logPaths.json").read_text())
    assert recorded == [str(tmp_path / "other" / "a"), "b"]
