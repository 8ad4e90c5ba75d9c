"""Files whose bytes cannot be read: each is named, and nothing else is said of its replica."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import audit, drill_down, files, store_layout
from epochmq_spark.drill_down import AuditedLog, ReplicaExtent
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")
Row = dict[str, Any]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Lets reads of a file fail, as a disk with a bad sector does."""

    def begin(bad: Path) -> None:
        for name in ("read_into", "window"):
            real = getattr(files, name)

            def read(place: str, *more: Any, real: Any = real) -> Any:
                if place == str(bad):
                    raise OSError(errno.EIO, "Input/output error", place)
                return real(place, *more)

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
def test_a_file_that_cannot_be_read_is_named_and_nothing_else_is_said(
    what: str, group: Group, fail: Callable[[Path], None]
) -> None:
    paths = group(1001)
    bad = file_of(paths[1], what)
    fail(bad)
    found = inprocess.serious(inprocess.run(inprocess.replicas_of(paths)))
    assert {(row["replica"], row["kind"]) for row in found} == {(paths[1].name, "file.unreadable")}
    assert all(str(bad) in row["detail"] for row in found)


def facts_of(path: Path, end: int) -> AuditedLog:
    replica = store_layout.AuditedReplica("group-a", path.name, str(path))
    return AuditedLog(ReplicaExtent(replica, 0, end, end, leading=True), end, ())


def test_a_replica_that_goes_while_it_is_looked_at_is_told_of_and_not_taken_for_empty(
    group: Group, tmp_path: Path
) -> None:
    paths = group(1001)
    gone = tmp_path / "gone"
    reaches = [facts_of(path, 1000).reach for path in (paths[0], gone)]
    found = drill_down.block("group-a", 0, reaches)
    assert [(row["replica"], row["kind"]) for row in found] == [("gone", "file.unreadable")]
    assert str(gone) in found[0]["detail"]


def test_what_cannot_be_read_is_told_of_once(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "gone", 1000)
    row = {"group": "group-a", "replica": "gone"}
    told: set[tuple[str, str, str]] = set()

    def look(_: Row) -> list[Row]:
        return drill_down.switch(facts, [(2, 500)])

    first = audit.without_reported(audit.findings_or_unreadable(look, row), told)
    assert [one["kind"] for one in first] == ["file.unreadable"]
    assert audit.without_reported(audit.findings_or_unreadable(look, row), told) == []
