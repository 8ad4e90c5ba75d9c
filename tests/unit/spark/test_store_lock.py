"""Tests that `epochmq audit` rejects a directory that a broker uses, and takes a name for a group."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")

from epochmq.app import run
from epochmq.verbs import audit
from epochmq_spark import store_lock

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


def test_a_directory_has_precedence_over_a_group_and_an_unknown_name_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from epochmq.verbs import running_group

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running_group, "group_names", lambda state: ["orders"])
    state = tmp_path / "state"
    assert audit._running_group(["orders"], state) == "orders"
    assert audit._running_group(["orders", "payments"], state) is None
    assert audit._running_group(["./orders"], state) is None
    assert audit._running_group(["payments"], state) is None
    assert "no broker group of" in capsys.readouterr().err
    (tmp_path / "orders").mkdir()
    assert audit._running_group(["orders"], state) is None
