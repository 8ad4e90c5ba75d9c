"""Tests files whose bytes cannot be read: the audit names them and reports nothing else about their
replica."""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import audit, drill_down, files, store_layout
from epochmq_spark.checks.log_extent import LogExtent
from epochmq_spark.drill_down import AuditedLog
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")
Row = dict[str, Any]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes reads of a file fail, as on a disk with a bad sector."""

    def begin(bad: Path) -> None:
        for name in ("read_range_into", "read_range"):
            real = getattr(files, name)

            def read(location: str, *more: Any, real: Any = real) -> Any:
                if location == str(bad):
                    raise OSError(errno.EIO, "Input/output error", location)
                return real(location, *more)

            monkeypatch.setattr(files, name, read)

    return begin


def file_of(store: Path, what: str) -> Path:
    segments = sorted((store / "commitlog").iterdir())
    found = {
        "the first segment": segments[0],
        "the last segment": segments[-1],
        "an index file": min((store / "index").iterdir()),
        "a queue's file": min((store / "consumequeue").glob("*/*/*")),
    }
    assert len(segments) > 1
    return found[what]


@pytest.mark.parametrize("what", ["the first segment", "the last segment", "an index file", "a queue's file"])
def test_an_unreadable_file_is_the_only_finding_about_its_replica(
    what: str, group: Group, fail: Callable[[Path], None]
) -> None:
    paths = group(1001)
    bad = file_of(paths[1], what)
    fail(bad)
    found = inprocess.without_notes(inprocess.run(inprocess.replicas_of(paths)))
    assert {(row["replica"], row["kind"]) for row in found} == {(paths[1].name, "file.unreadable")}
    assert all(str(bad) in row["detail"] for row in found)


def log_of(path: Path, end: int) -> AuditedLog:
    replica = store_layout.AuditedReplica("group-a", path.name, str(path))
    return AuditedLog(replica, LogExtent(0, end, end, leading=True), end, ())


def test_a_replica_that_disappears_during_the_audit_is_a_finding_and_not_an_empty_log(
    group: Group, tmp_path: Path
) -> None:
    paths = group(1001)
    gone = tmp_path / "gone"
    logs = [log_of(path, 1000) for path in (paths[0], gone)]
    found = drill_down.compare_block("group-a", 0, logs)
    assert [(row["replica"], row["kind"]) for row in found] == [("gone", "file.unreadable")]
    assert str(gone) in found[0]["detail"]


def test_an_unreadable_file_is_reported_once(tmp_path: Path) -> None:
    log = log_of(tmp_path / "gone", 1000)
    row = {"group": "group-a", "replica": "gone"}
    reported: set[tuple[str, str, str]] = set()

    def check(_: Row) -> list[Row]:
        return drill_down.check_epoch_starts(log, [(2, 500)])

    first = audit.without_reported(audit.findings_or_unreadable(check, row), reported)
    assert [one["kind"] for one in first] == ["file.unreadable"]
    assert audit.without_reported(audit.findings_or_unreadable(check, row), reported) == []


def test_a_check_that_fails_is_a_finding_and_the_others_go_on() -> None:
    def check(_: Row) -> list[Row]:
        raise OverflowError("int too large to convert")

    row = {"group": "group-a", "replica": "r1", "topic": "orders", "queue_id": 3, "at": 1}
    [found] = audit.findings_or_unreadable(check, row)
    assert (found["group"], found["replica"], found["kind"]) == ("group-a", "r1", "check.failed")
    assert (found["topic"], found["queue_id"]) == ("orders", 3)
    assert found["detail"] == "OverflowError: int too large to convert"


NOW = int(time.time() * 1000)


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "0 bytes, expected at least 40"),
        (bytes(39), "39 bytes, expected at least 40"),
        (struct.pack(">5q", NOW, NOW, NOW + 30 * 86_400_000, 0, 0), "store time"),
        (struct.pack(">5q", -5, 0, 0, 0, 0), "store time -5, expected 0 to"),
        (struct.pack(">5q", NOW, NOW, 0, 0, -1), "confirmPhyOffset -1, expected 0 to"),
        (b"\xa7" * 4096, "store time"),
    ],
    ids=["empty", "too short", "next month", "negative", "negative confirm offset", "another file"],
)
def test_a_checkpoint_that_no_broker_writes_is_a_finding(group: Group, data: bytes, detail: str) -> None:
    paths = group(1001)
    (paths[1] / "checkpoint").write_bytes(data)
    found = inprocess.without_notes(inprocess.run(inprocess.replicas_of(paths)))
    assert [(row["replica"], row["kind"]) for row in found] == [(paths[1].name, "state.unreadable")]
    assert detail in found[0]["detail"]
    assert found[0]["file"] == str(paths[1] / "checkpoint")
