"""Tests what is said when the results of an audit cannot be written, or Spark fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq.app import run
from epochmq_spark import local_audit, result_files, verdict

FULL = Path("/dev/full")


class Findings:
    """A table of findings without rows."""

    def toLocalIterator(self, prefetchPartitions: bool) -> list[Any]:  # noqa: N802, N803
        return []


@pytest.mark.skipif(not FULL.exists(), reason="missing: /dev/full")
@pytest.mark.parametrize("name", ["findings.parquet", "summary.json", "report.html"])
def test_a_full_disk_is_one_line_that_names_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).symlink_to(FULL)
    summary = verdict.summary({}, [], [])

    def audited(replicas: Any, folder: Path, **options: Any) -> None:
        result_files.write_findings(Findings(), str(folder))  # type: ignore[arg-type]
        result_files.write_summary(None, summary, str(folder), [])  # type: ignore[arg-type]

    monkeypatch.setattr(local_audit, "run", audited)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert run(["audit", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path)]) == 1
    text = capsys.readouterr().err
    assert text == (
        f"epochmq: {tmp_path / name} could not be written: No space left on device; "
        "choose another folder with --out\n"
    )


def test_an_error_of_spark_is_its_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.errors import PySparkException

    def audited(*_: Any, **__: Any) -> None:
        raise PySparkException("Job aborted: executor 1 was lost\n\tat org.apache.spark.Some.java:1\n")

    monkeypatch.setattr(local_audit, "run", audited)
    (tmp_path / "a").mkdir()
    assert run(["audit", str(tmp_path / "a"), "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "epochmq: Job aborted: executor 1 was lost\n"


@pytest.mark.parametrize("location", ["what://bucket/a", "s3:///a", "hdfs://nowhere:1/a"])
def test_a_uri_that_cannot_be_read_is_a_finding_with_the_reason(location: str) -> None:
    from epochmq_spark import store_layout

    replicas = local_audit.replicas_of([location, "/nowhere"])
    faults = store_layout.scan_store(replicas[0].location).faults
    assert [(one.kind, one.location) for one in faults] == [("directory.unreadable", location)]
    assert len(faults[0].detail.splitlines()) == 1


def test_a_run_that_fails_leaves_no_former_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("summary.json", "report.html", "findings.parquet"):
        (tmp_path / name).write_text("of yesterday")

    def fail(*_: Any, **__: Any) -> None:
        assert list(tmp_path.iterdir()) == []
        raise ValueError("the metadata are no status")

    monkeypatch.setattr(local_audit.audit, "run", fail)
    with pytest.raises(ValueError, match="no status"):
        local_audit.run_in(None, [], str(tmp_path))  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == {"verdict": None, "exitCode": 1, "failure": "the metadata are no status"}
