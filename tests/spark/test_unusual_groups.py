"""Tests the audit with Spark on groups that are as brokers leave them, and what it says of its coverage: both
as in one process."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import audit, results, store_layout
from epochmq_spark.findings import SEVERITY_ORDER
from tests.spark import group_copies, seeded_groups, unusual_groups
from tests.unit.spark import inprocess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]


def test_spark_finds_and_covers_the_same_as_one_process_does(spark: SparkSession, tmp_path: Path) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 1002)
    expected: dict[str, set[tuple[str, str]]] = {"single": {("", "group.one-replica")}}
    everything: list[store_layout.AuditedReplica] = []
    for name, change in unusual_groups.CHANGES.items():
        paths = group_copies.copied(source, tmp_path / "groups", name)
        expected[name] = change(paths)
        everything += group_copies.replicas(name, paths)
    single = group_copies.copied(source, tmp_path / "groups", "single")[:1]
    everything += group_copies.replicas("single", single)
    summary, listed = results.summarise(audit.run(spark, everything), time.time())
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in listed:
        found[row["group"]].append(row)
    assert {name: unusual_groups.found(found[name]) for name in expected} == expected
    weights = [SEVERITY_ORDER.index(row["severity"]) for row in listed]
    assert weights == sorted(weights)
    assert len(set(weights)) == len(SEVERITY_ORDER)
    covered, document = inprocess.coverage_of(everything)
    assert summary["coverage"] == document
    for one in summary["replicas"]:
        own = covered[one["group"], one["replica"]]
        assert {name: one[name] for name in own} == own
