"""The program of a restore's pods chooses a backup, waits for its id, restores an empty volume wherever it is
killed, and never writes to a volume with anything else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochmq_store.backups import restore_pod_program, restoring, volume_restoring
from epochmq_store.backups.backup_errors import BackupStorageError
from epochmq_store.backups.object_storage import DirectoryObjects
from tests.unit.store.backups.test_backups import MESSAGES, Site, log, log_of

ORDER = "uid-of-the-group"


class Restore:
    """Two backups of a store, and the volume of a new replica with what a new file system has."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder)
        self.old = self.site.take(len(self.site.data))
        self.site.write(len(MESSAGES))
        self.new = self.site.take(len(self.site.data))
        self.volume, self.backup = folder / "volume", folder / "order" / "backup"
        self.message = folder / "termination-log"
        (self.volume / "lost+found").mkdir(parents=True)
        self.backup.parent.mkdir()
        self.backup.write_text(self.new.id)

    def call(self, task: str, **words: object) -> tuple[int, dict[str, Any]]:
        """The exit code and the termination message."""
        given = {"url": self.site.storage.url, "message": self.message, "attempts": 1, "pause-s": 0, **words}
        code = restore_pod_program.main(
            [task, *(f"--{key.replace('_', '-')}={value}" for key, value in given.items())]
        )
        return code, json.loads(self.message.read_text())

    def choose(self, **words: object) -> tuple[int, dict[str, Any]]:
        return self.call("choose", **{"mode": "Controller", **words})

    def run(self, **words: object) -> tuple[int, dict[str, Any]]:
        given = {"volume": self.volume, "order": ORDER, "backup": self.backup, "wait_s": 0, **words}
        return self.call("restore", **given)

    def names(self) -> list[str]:
        return sorted(one.name for one in self.volume.iterdir() if one.name != "lost+found")


@pytest.fixture
def restore(tmp_path: Path) -> Restore:
    return Restore(tmp_path)


def test_the_newest_backup_is_chosen_unless_one_or_a_point_is_named(restore: Restore) -> None:
    code, found = restore.choose()
    assert (code, found["backup"], found["logEnd"]) == (0, restore.new.id, restore.new.log_end)
    assert restore.choose(backup_id=restore.old.id)[1]["backup"] == restore.old.id
    assert restore.choose(offset=restore.old.log_end)[1]["backup"] == restore.old.id


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"mode": "MasterSlave"}, "create the group in the mode Controller"),
        ({"backup_id": "20300131T140000Z-0a1b2c"}, "has no backup 20300131T140000Z-0a1b2c"),
        ({"offset": 1 << 40}, "no backup of this history reaches offset"),
    ],
)
def test_a_backup_from_which_the_group_cannot_start_is_rejected(
    restore: Restore, words: dict[str, object], error: str
) -> None:
    code, found = restore.choose(**words)
    assert code == 1
    assert error in found["error"]


def test_a_volume_gets_the_store_of_the_backup_whose_id_the_pod_is_given(restore: Restore) -> None:
    restore.backup.write_text(f"{restore.old.id}\n")
    code, found = restore.run()
    assert (code, found["backup"], found["logEnd"]) == (0, restore.old.id, restore.old.log_end)
    assert log_of(restore.volume) == log(MESSAGES[: len(MESSAGES) // 2]).rstrip(b"\0")
    assert "restoredFrom.json" in restore.names()
    assert not [name for name in restore.names() if name.startswith(".")]


def test_a_point_cuts_the_log(restore: Restore) -> None:
    end = len(log(MESSAGES[:20]))
    restore.backup.write_text(restore.choose(offset=end)[1]["backup"])
    code, found = restore.run(offset=end)
    assert (code, found["logEnd"]) == (0, end)
    assert log_of(restore.volume) == log(MESSAGES[:20]).rstrip(b"\0")


def stops_of(restore: Restore, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of renames, removals of directories and syncs of a restore."""
    return _counted(restore, monkeypatch, lambda number: None)


def _counted(restore: Restore, monkeypatch: pytest.MonkeyPatch, at: Callable[[int], None]) -> int:
    counted = 0

    def counting(wrapped: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **words: Any) -> Any:
            nonlocal counted
            counted += 1
            at(counted)
            return wrapped(*arguments, **words)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", counting(os.rename))
        patch.setattr(os, "rmdir", counting(os.rmdir))
        patch.setattr(volume_restoring, "sync_directory", counting(volume_restoring.sync_directory))
        patch.setattr(restoring, "write_new_file", counting(restoring.write_new_file))
        restore.run()
    return counted


class KilledError(BaseException):
    """The kernel kills the process: it cannot even remove what it has written."""


def test_a_restore_that_is_killed_anywhere_is_continued_by_the_next(
    restore: Restore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    total = stops_of(restore, monkeypatch)
    whole = tree_of(restore.volume)
    assert total > 5
    for stop in range(1, total + 1):
        shutil.rmtree(restore.volume)
        (restore.volume / "lost+found").mkdir(parents=True)

        def kill(number: int, stop: int = stop) -> None:
            if number == stop:
                raise KilledError

        with monkeypatch.context() as patch:
            patch.setattr(restoring.shutil, "rmtree", lambda *_, **__: None)
            with pytest.raises(KilledError):
                _counted(restore, monkeypatch, kill)
        assert restore.run()[0] == 0, stop
        assert tree_of(restore.volume) == whole, stop


def tree_of(volume: Path) -> dict[str, bytes]:
    return {
        path.relative_to(volume).as_posix(): path.read_bytes() for path in volume.rglob("*") if path.is_file()
    }


def test_a_restore_that_is_repeated_writes_nothing(restore: Restore) -> None:
    first = restore.run()
    (restore.volume / "brokerIdentity").write_text("the broker started")
    before = tree_of(restore.volume)
    assert restore.run() == first
    assert tree_of(restore.volume) == before


def test_a_volume_with_another_store_is_never_written_to(restore: Restore) -> None:
    restore.run(order="a former group")
    before = tree_of(restore.volume)
    code, found = restore.run()
    assert code == 1
    assert "another order restored" in found["error"]
    assert tree_of(restore.volume) == before
    (restore.volume / "restoredFrom.json").unlink()
    code, found = restore.run()
    assert code == 1
    assert "is not empty, it has checkpoint" in found["error"]


def test_a_pod_without_an_id_ends_with_an_error(restore: Restore) -> None:
    restore.backup.write_text("")
    code, found = restore.run()
    assert (code, "is the operator running?" in found["error"]) == (1, True)
    restore.backup.write_text("newest")
    assert "expected the id of a backup" in restore.run()[1]["error"]
    assert restore.names() == []


def test_a_storage_that_cannot_be_reached_is_tried_again(
    restore: Restore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [BackupStorageError("the bucket does not respond")] * 2
    keys = DirectoryObjects.keys

    def failing(storage: DirectoryObjects, folder: str) -> Any:
        if failures:
            raise failures.pop()
        return keys(storage, folder)

    monkeypatch.setattr(DirectoryObjects, "keys", failing)
    assert restore.run(attempts=3)[0] == 0
    failures.extend([BackupStorageError("the bucket does not respond")] * 2)
    code, found = restore.choose(attempts=2)
    assert (code, found["error"]) == (1, "the bucket does not respond")
