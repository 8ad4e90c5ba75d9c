"""`replace_file` leaves the old content or the new one, complete, after a failure or crash at any call."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochmq_protocol import durable_files
from epochmq_protocol.durable_files import backup_of, make_directory, replace_file
from tests.support.directory_syncs import DirectorySyncs

CALLS = ("open", "write", "fsync", "close", "link", "replace", "unlink")
NAMES = {"open": 0, "link": 1, "replace": 1, "unlink": 0}


class PowerCutError(BaseException):
    """Simulates the end of the process in the middle of the code under test."""


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system calls in order, with the names of their files."""
    calls: list[str] = []
    names: dict[int, str] = {}

    def recorded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            if name == "open":
                names[result] = Path(args[0]).name
            about = names[args[0]] if isinstance(args[0], int) else Path(args[NAMES[name]]).name
            if name not in ("open", "close"):
                calls.append(f"{name} {about}")
            return result

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, recorded(name, getattr(os, name)))
    return calls


def test_the_content_is_synced_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, journal: list[str]
) -> None:
    (tmp_path / "state").write_bytes(b"old")
    replace_file(tmp_path / "state", b"new")
    done = [call for call in journal if not call.startswith("unlink")]
    assert done == ["write state.tmp", "fsync state.tmp", "replace state", f"fsync {tmp_path.name}"]
    assert (tmp_path / "state").read_bytes() == b"new"


def test_the_former_content_becomes_the_backup_and_the_file_never_disappears(
    tmp_path: Path, journal: list[str]
) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    replace_file(path, b"new", keep_backup=True)
    done = [call for call in journal if not call.startswith("unlink")]
    assert done.index("fsync state.tmp") < done.index("replace state.bak") < done.index("replace state")
    assert (path.read_bytes(), backup_of(path).read_bytes()) == (b"new", b"old")
    replace_file(path, b"newest", keep_backup=True)
    assert (path.read_bytes(), backup_of(path).read_bytes()) == (b"newest", b"new")


def test_the_first_content_has_no_backup(tmp_path: Path) -> None:
    replace_file(tmp_path / "state", b"new", keep_backup=True)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_file_system_without_hard_links_keeps_a_synced_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "state"
    path.write_bytes(b"old")
    replace_file(path, b"new", keep_backup=True)
    assert (path.read_bytes(), backup_of(path).read_bytes()) == (b"new", b"old")


def test_short_writes_are_continued_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:1])))
    replace_file(tmp_path / "state", b"0123456789")
    assert (tmp_path / "state").read_bytes() == b"0123456789"


def test_the_file_has_the_mode_of_the_caller(tmp_path: Path) -> None:
    replace_file(tmp_path / "secret", b"x", mode=0o600)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("keep_backup", [False, True])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")])
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_call_that_fails_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: OSError, keep_backup: bool
) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match=str(error.args[1])):
        replace_file(path, b"new", keep_backup=keep_backup)
    assert path.read_bytes() == b"old"
    assert not (tmp_path / "state.tmp").exists()


@pytest.mark.parametrize("keep_backup", [False, True])
def test_after_a_crash_at_any_call_the_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_backup: bool
) -> None:
    """The process ends before its nth call that changes the disk, for every n."""
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "link", "replace")}
    for last in range(20):
        folder = tmp_path / f"{keep_backup}-{last}"
        folder.mkdir()
        path = folder / "state"
        path.write_bytes(b"old")
        left = [last]

        def counted(name: str, left: list[int] = left) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if left[0] == 0:
                    raise PowerCutError
                left[0] -= 1
                return real[name](*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(durable_files.os, name, counted(name))
            try:
                replace_file(path, b"new", keep_backup=keep_backup)
            except PowerCutError:
                assert path.read_bytes() in (b"old", b"new"), last
                continue
        assert path.read_bytes() == b"new"
        assert last > 4
        return
    pytest.fail("replace_file did not end within 20 calls")


def test_each_new_directory_is_synced_into_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = DirectorySyncs(monkeypatch)
    make_directory(tmp_path / "a" / "b" / "c")
    assert syncs.created == {tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"}
    assert not syncs.unsynced
    make_directory(tmp_path / "a" / "b" / "d")
    assert not syncs.unsynced


def test_a_directory_that_exists_costs_no_sync(tmp_path: Path, journal: list[str]) -> None:
    make_directory(tmp_path)
    assert journal == []


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "a")
    with pytest.raises(NotADirectoryError):
        make_directory(tmp_path / "a" / "b")


def _permissions(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("keep_backup", [False, True])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_file_keeps_its_permissions(tmp_path: Path, mode: int, keep_backup: bool) -> None:
    """A file with passwords stays private, whoever writes it."""
    path = tmp_path / "broker.conf"
    path.write_bytes(b"old")
    path.chmod(mode)
    durable_files.replace_file(path, b"new", keep_backup=keep_backup)
    assert (path.read_bytes(), _permissions(path)) == (b"new", mode)
    if keep_backup:
        assert _permissions(durable_files.backup_of(path)) == mode


def test_a_private_file_is_private_whatever_was_there(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    for name in ("auth.json", "auth.json.bak", "auth.json.tmp"):
        (tmp_path / name).write_bytes(b"old")
        (tmp_path / name).chmod(0o644)
    durable_files.replace_file(path, b"new", keep_backup=True, mode=durable_files.PRIVATE_MODE)
    assert _permissions(path) == _permissions(durable_files.backup_of(path)) == 0o600
    assert not path.with_name("auth.json.tmp").exists()


def test_a_new_file_is_for_all_readers_unless_it_is_private(tmp_path: Path) -> None:
    durable_files.replace_file(tmp_path / "topics.json", b"x")
    assert _permissions(tmp_path / "topics.json") == 0o644
