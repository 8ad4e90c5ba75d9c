"""Tests where compiled code is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.decode import code_cache


def read_only(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Makes folders look like those of a read-only file system; the tests may run as root."""

    def access(path: Path, mode: int) -> bool:
        return not (mode & os.W_OK and any(Path(path).is_relative_to(one) for one in folders))

    monkeypatch.setattr(os, "access", access)


def test_numba_chooses_where_it_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("package", "home", "temporary"):
        (tmp_path / name).mkdir()
    package, of_user, temporary = tmp_path / "package", tmp_path / "home" / ".cache", tmp_path / "temporary"
    assert code_cache.code_cache(package, of_user, temporary) is None
    read_only(monkeypatch, package)
    assert code_cache.code_cache(package, of_user, temporary) is None
    read_only(monkeypatch, tmp_path / "home")
    assert code_cache.code_cache(package, of_user, temporary) is None
    assert list(temporary.iterdir()) == []


def test_processes_share_a_temporary_folder_where_neither_package_nor_home_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only(monkeypatch, tmp_path / "package", tmp_path / "home")
    (tmp_path / "package").mkdir()
    (tmp_path / "home").mkdir()
    folders = tmp_path / "package", tmp_path / "home" / ".cache", tmp_path
    first, second = code_cache.code_cache(*folders), code_cache.code_cache(*folders)
    assert first == second
    assert first is not None
    assert first.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only(monkeypatch, tmp_path / "package", tmp_path / "home")
    (tmp_path / "package").mkdir()
    (tmp_path / "home").mkdir()
    folders = tmp_path / "package", tmp_path / "home", tmp_path
    shared = code_cache.code_cache(*folders)
    assert shared is not None
    shared.chmod(0o777)
    own = code_cache.code_cache(*folders)
    assert own is not None
    assert own != shared
    assert own.stat().st_mode & 0o077 == 0


def test_the_variable_names_the_folder_before_numba_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, "/given")
    code_cache.ensure_code_cache()
    assert os.environ[code_cache.VARIABLE] == "/given"
    monkeypatch.delenv(code_cache.VARIABLE)
    monkeypatch.setattr(code_cache, "code_cache", lambda *_: tmp_path)
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    code_cache.ensure_code_cache()
    assert os.environ[code_cache.VARIABLE] == numba.config.CACHE_DIR == str(tmp_path)
