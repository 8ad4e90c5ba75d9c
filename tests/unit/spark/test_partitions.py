"""Tests how the files of replicas are divided into tasks, and what tasks of one audit share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import drill_down, files
from epochmq_spark.sources.file_ranges import FileRange, FileRangePartition, interleaved
from epochmq_spark.sources.summary import SummaryReader
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group


def partition(replica: str, begin: int) -> FileRangePartition:
    return FileRangePartition((FileRange("g", replica, "/f", 0, 100, begin, begin + 1),))


def test_tasks_of_replicas_take_turns() -> None:
    packed = [partition("a", 0), partition("a", 1), partition("a", 2), partition("b", 0), partition("c", 0)]
    packed.append(partition("c", 1))
    order = [(one.ranges[0].replica, one.ranges[0].begin) for one in interleaved(packed)]
    assert order == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("c", 1), ("a", 2)]


def test_the_first_tasks_of_a_pass_read_all_replicas(group: Group) -> None:
    replicas = inprocess.replicas_of(group(61))
    partitions = SummaryReader(replicas, {"partitionBytes": "30000", "taskBytes": "30000"}).partitions()
    assert {one.ranges[0].replica for one in partitions[:3]} == {one.name for one in replicas}
    ranges = [one for partition in partitions for one in partition.ranges]
    assert len(ranges) == len(set(ranges))


def test_tasks_of_one_audit_list_a_store_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    location = str(group(61)[0])
    listed: list[str] = []
    entries = files.entries
    monkeypatch.setattr(files, "entries", lambda one: listed.append(one) or entries(one))
    for run_id in ("one audit", "one audit", "another audit"):
        drill_down.start_task(run_id)
        drill_down.scan_store(location)
    assert listed.count(str(Path(location))) == 2


def test_spark_plans_the_pass_over_all_files_without_loading_the_compiler() -> None:
    """It plans a data source in two processes of its own."""
    code = "import sys, epochmq_spark.sources.summary; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
