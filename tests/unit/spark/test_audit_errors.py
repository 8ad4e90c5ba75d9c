"""Tests what `epochmq audit` says when it cannot run: one line that names the object and the remedy, and no
stack trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq.app import run
from epochmq_spark import local_audit, session, spark_submit, store_layout
from tests.unit.spark import inprocess

pytestmark = pytest.mark.filterwarnings("ignore")
NEEDS_JAVA = "epochmq: the audit needs a Java runtime, 17 or newer: "
FULL = "Job aborted: Task 0\n\tat java.base\nCaused by: java.io.IOException: No space left on device\n"


def java(folder: Path, text: str) -> Path:
    """A program `java` that prints this text."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)
    return program


def test_a_machine_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["audit", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == NEEDS_JAVA + "there is no java on the PATH\n"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert run(["audit", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"{NEEDS_JAVA}JAVA_HOME is {tmp_path}, which has no bin/java\n"


@pytest.mark.parametrize(("text", "version"), [("1.8.0_292", 8), ("11.0.2", 11)])
def test_a_java_that_is_too_old(
    text: str,
    version: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = java(tmp_path / "old", f'openjdk version "{text}" 2019-01-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert run(["audit", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    expected = f"{NEEDS_JAVA}{program} is Java {version}; set JAVA_HOME to the directory of another one\n"
    assert capsys.readouterr().err == expected


def test_a_machine_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert run(["audit", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "epochmq: the audit needs PySpark: pip install 'epochmq[spark]'\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--metadata", "/nowhere.json"], "/nowhere.json: [Errno 2] No such file or directory: "),
        (["--conf", "executors=3"], "--conf executors=3: expected spark.KEY=VALUE"),
        (["--master", "cluster"], "--master cluster: expected local[N], yarn, spark://HOST:PORT or "),
        (["--master", "yarn", "--cores", "2"], "--cores is for Spark on this machine: with --master, "),
    ],
    ids=["file", "conf", "master", "cores"],
)
def test_a_bad_option(
    options: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", str(tmp_path), "--out", str(tmp_path / "out"), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"epochmq: {expected}")


def test_a_folder_for_the_results_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def rejected(path: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", rejected)
    assert run(["audit", str(tmp_path), "--out", str(out)]) == 2
    expected = f"epochmq: --out {out}: Permission denied, expected a folder that can be written\n"
    assert capsys.readouterr().err == expected


def test_a_store_without_permission_is_a_finding_that_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    listed = Path.iterdir

    def rejected(path: Path) -> Any:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", rejected)
    found = inprocess.run([store_layout.AuditedReplica("g", "r1", str(closed))])
    (row,) = (one for one in found if one["kind"] == "directory.unreadable")
    assert row["file"] == str(closed)
    assert "Permission denied" in row["detail"]


def test_spark_without_space_for_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.errors import PySparkException

    def audited(*_: Any, **__: Any) -> None:
        raise PySparkException(FULL)

    monkeypatch.setattr(local_audit, "run", audited)
    (tmp_path / "commitlog").mkdir()
    assert run(["audit", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "--conf spark.local.dir=DIR" in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FULL, "--conf spark.local.dir=DIR"),
        ("[UNKNOWN_HOST] no host hdfs\n\tat org.apache", "[UNKNOWN_HOST] no host hdfs"),
    ],
)
def test_an_audit_by_spark_submit_that_fails_prints_one_line(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.errors import PySparkException

    class Session:
        def stop(self) -> None:
            pass

    def audited(*_: Any, **__: Any) -> None:
        raise PySparkException(text)

    monkeypatch.setattr(session, "user_session", Session)
    monkeypatch.setattr(local_audit, "run_in", audited)
    assert spark_submit.main(["a=/nowhere", "--out", "file:///nowhere"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("audit: ")
    assert expected in line
