"""Tests that `epochmq audit` rejects a directory that a broker uses, and takes a name for a group."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")

from epochmq.app import run
from epochmq.verbs import audit, running_group
from epochmq_spark import local_audit, store_lock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="missing: F_GETLK of Linux")

HOLD = """\
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0, os.SEEK_SET)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def used(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A store that another process has locked as a broker does, and the process."""
    store = tmp_path / "orders-broker-0" / "store"
    (store / "commitlog").mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"locked\n"
        yield store, holder.pid
        holder.stdin.close()


def test_the_process_that_uses_a_store_is_named(used: tuple[Path, int]) -> None:
    store, pid = used
    assert store_lock.broker_of(store) == pid


def test_a_store_that_nobody_uses_is_free(tmp_path: Path) -> None:
    assert store_lock.broker_of(tmp_path) is None
    (tmp_path / "lock").write_bytes(b"lock")
    assert store_lock.broker_of(tmp_path) is None


def test_a_directory_in_use_is_rejected_with_advice(
    used: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, pid = used
    assert run(["audit", str(store.parent), "--state", str(tmp_path / "state")]) == 2
    error = capsys.readouterr().err
    assert f"{store} is in use by process {pid}" in error
    assert "epochmq audit GROUP" in error
    assert "Traceback" not in error


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails where the audit would start Spark."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(local_audit, "run", started)


def test_a_directory_has_precedence_over_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running_group, "group_names", lambda state: ["orders"])
    state = tmp_path / "state"
    assert audit._running_group(["orders"], state) == "orders"
    assert audit._running_group(["orders", "payments"], state) is None
    assert audit._running_group(["./orders"], state) is None
    assert audit._running_group(["payments"], state) is None
    (tmp_path / "orders").mkdir()
    assert audit._running_group(["orders"], state) is None


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["payment"], "payment: no such directory, and no broker group of .epochmq has this name; groups"),
        (["here", "orders"], "orders: no such directory, and a broker group is audited alone: epochmq audit"),
        (["here", "./there"], "./there: no such directory; leave out a replica whose store is lost"),
        (["a=here", "b=there/store"], "b=there/store: no such directory; leave out"),
        (["here/file/store"], "here/file/store: no such directory"),
        (["here", "--metadata", "view.json"], "view.json: "),
    ],
)
def test_a_wrong_argument_is_rejected_before_spark_starts(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running_group, "group_names", lambda state: ["orders", "payments"])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("")
    assert run(["audit", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"epochmq: {problem}")
    assert not (tmp_path / ".epochmq").exists(), "nothing is created"


@pytest.mark.usefixtures("no_spark")
def test_what_is_at_a_path_and_stores_elsewhere_are_for_the_audit(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    state = tmp_path / "state"
    audit._reject_missing_directories([str(link), f"a={tmp_path}", "s3://bucket/a"], state)
