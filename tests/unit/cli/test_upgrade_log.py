"""`epochmq upgrade-log` says what it does, and rejects what it cannot do in one line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from epochmq.exits import ExitCode, exit_code_of
from epochmq.verbs import upgrade_log
from tests.unit.store.support import open_store, put_all, random_messages

FILE_SIZE = 1 << 17


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a plain broker that has stopped."""
    store = open_store(
        tmp_path / "store", mapped_file_size_commit_log=FILE_SIZE, mapped_file_size_consume_queue=20_000
    )
    put_all(store, random_messages(1, 400))
    store.stop()
    return tmp_path / "store"


def config(root: Path) -> Path:
    path = root.with_suffix(".conf")
    path.write_text(
        f"storePathRootDir={root}\nmappedFileSizeCommitLog={FILE_SIZE}\nmaxMessageSize=2048\n"
        "mappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=7\nmaxIndexNum=16\n"
        "enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerSelfId=n0\ndLegerPeers=n0-127.0.0.1:1\n"
    )
    return path


def run(*files: Path, dry_run: bool = False, undo: bool = False) -> int:
    return exit_code_of(lambda: upgrade_log.run(files, dry_run=dry_run, undo=undo))


def test_the_dry_run_announces_what_the_command_then_does(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted((root / "commitlog").iterdir())
    data = root / "dledger-n0" / "data" / f"{len(files) * FILE_SIZE:020d}"
    assert run(config(root), dry_run=True) == ExitCode.OK
    announced = capsys.readouterr().out
    assert f"would close {files[-1]} with a blank record" in announced
    assert f"would create {data}, where the DLedger log begins" in announced
    assert not data.exists()
    for _ in range(2):
        assert run(config(root)) == ExitCode.OK
        assert f"{data} is created" in capsys.readouterr().out
        assert data.stat().st_size == FILE_SIZE
    assert run(config(root), dry_run=True) == ExitCode.OK
    assert "would close" not in capsys.readouterr().out
    assert run(config(root), undo=True) == ExitCode.OK
    assert f"{data} is removed" in capsys.readouterr().out
    assert run(config(root), undo=True) == ExitCode.OK
    assert "nothing to do" in capsys.readouterr().out


def test_a_rejection_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(sorted((root / "commitlog").iterdir())[0], 4096)
    assert run(config(root)) == ExitCode.FAILED
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "has 4096 bytes, but mappedFileSizeCommitLog is 131072" in error


def test_replicas_that_differ_are_not_upgraded(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = root.with_name("other")
    shutil.copytree(root, other)
    store = open_store(other, mapped_file_size_commit_log=FILE_SIZE, mapped_file_size_consume_queue=20_000)
    put_all(store, random_messages(2, 1))
    store.stop()
    assert run(config(root), config(other)) == ExitCode.FAILED
    assert "the replicas have different logs" in capsys.readouterr().err
    assert not (root / "dledger-n0").exists()


def test_a_configuration_without_a_dledger_log_is_rejected(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(root)
    path.write_text(f"storePathRootDir={root}\n")
    assert run(path) == ExitCode.USAGE
    assert "enableDLegerCommitLog is false" in capsys.readouterr().err
    assert run(root / "missing.conf") == ExitCode.USAGE
