"""Tests that a group of which one log is wrecked costs a bounded number of rows, findings and tasks' ranges,
and that the bounds hide no replica and no kind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import audit, bounded_tables, results, schemas
from epochmq_spark.checks.record_copies import LISTED_MAX
from epochmq_spark.findings import finding
from epochmq_spark.log_spans import RUNS_MAX
from tests.spark import group_copies, wrecked_groups
from tests.unit.spark import inprocess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]
MESSAGES = 30_000


def test_a_group_of_which_half_a_log_is_damaged_has_bounded_findings(
    spark: SparkSession, tmp_path: Path
) -> None:
    paths = wrecked_groups.healthy_stores(tmp_path, MESSAGES)
    magic, body = wrecked_groups.wreck(paths[1])
    result = audit.run(spark, group_copies.replicas("wrecked", paths), partition_bytes=200_000)
    summary, _ = results.summarise(result, 0.0)
    rows = result.findings.collect()
    result.release()
    assert summary["verdict"] == "damaged"
    assert {row["replica"] for row in rows if row["severity"] == "error"} == {"r2"}
    by_kind = Counter(row["kind"] for row in rows)
    assert by_kind["log.broken-record"] == RUNS_MAX
    blocks = sum(file.stat().st_size for file in (paths[0] / "commitlog").iterdir()) >> 20
    assert LISTED_MAX < by_kind["message.missing"] <= LISTED_MAX * (blocks + 1)
    assert len(rows) < magic + body
    more = [row["detail"] for row in rows if row["kind"] == "more"]
    assert len(more) == len({text.partition(" of ")[2] for text in more})
    counted = {text.partition(" of ")[2]: int(text.split()[0]) for text in more}
    assert counted.get("record.checksum", 0) + by_kind["record.checksum"] == body


PLACE = ("replica", "kind", "start_offset", "queue_id", "queue_offset")


def places(rows: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """What findings are about, without those that count others."""
    return Counter(tuple(row.get(name) for name in PLACE) for row in rows if row["kind"] != "more")


@pytest.mark.soak
def test_of_a_wrecked_group_with_many_queues_both_ways_find_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    """There are few enough records that no bound hides a finding. Consume queues are damaged, too."""
    paths = wrecked_groups.healthy_stores(tmp_path, 600, 150, body_bytes=900)
    wrecked_groups.wreck(paths[1])
    for number in range(0, 150, 3):
        (queue,) = (paths[2] / "consumequeue" / "orders" / str(number)).iterdir()
        data = bytearray(queue.read_bytes())
        data[20:40] = bytes(20)
        queue.write_bytes(data)
    replicas = group_copies.replicas("wrecked", paths)
    result = audit.run(spark, replicas)
    found = places(row.asDict() for row in result.findings.collect())
    result.release()
    assert found == places(inprocess.run(replicas))
    assert sum(count for place, count in found.items() if place[:2] == ("r3", "queue.missing-unit")) == 50


def findings_of(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(rows, from_arrow_schema(schemas.FINDINGS))


def test_the_findings_of_a_kind_and_replica_are_listed_up_to_a_bound_and_then_counted(
    spark: SparkSession,
) -> None:
    rows = [finding("g", "a", "log.diverged", start_offset=at) for at in range(100)]
    rows += [finding("g", "b", "log.diverged", start_offset=at) for at in range(7)]
    rows += [finding("g", "a", "log.hole", start_offset=5)]
    rows += [finding("g", "a", "more", start_offset=at, detail="4 of log.diverged") for at in (900, 800)]
    rows += [finding("g", "b", "more", detail="3 of the index")]
    random.Random(1).shuffle(rows)
    listed = bounded_tables.listed_findings(findings_of(spark, rows), 10).collect()
    found = Counter((row["replica"], row["kind"]) for row in listed)
    assert found == {
        ("a", "log.diverged"): 10,
        ("a", "log.hole"): 1,
        ("a", "more"): 1,
        ("b", "log.diverged"): 7,
        ("b", "more"): 1,
    }
    first = [row["start_offset"] for row in listed if (row["replica"], row["kind"]) == ("a", "log.diverged")]
    assert sorted(first) == list(range(10))
    more = {row["replica"]: (row["detail"], row["severity"]) for row in listed if row["kind"] == "more"}
    assert more == {"a": ("98 of log.diverged", "warning"), "b": ("3 of the index", "warning")}


def test_the_ranges_that_are_compared_are_bounded_and_spread_over_all_tasks(spark: SparkSession) -> None:
    """All of them are of one skewed queue."""
    suspects = spark.range(1000).selectExpr("'g' as group", "'a' as replica", "'hot' as topic", "id as at")
    chosen = bounded_tables.first_of_each(suspects, ["group", "replica"], ["topic", "at"], 100)
    rows = sorted(chosen.collect(), key=lambda row: row["at"])
    assert [row["at"] for row in rows] == list(range(101))
    assert [row["unlisted"] for row in rows] == [0] * 100 + [900]
    (more,) = bounded_tables.not_compared(rows[-1].asDict(), "the parts", 7)
    assert (more["kind"], more["replica"], more["detail"]) == ("more", "a", "900 of the parts")
    tasks = chosen.rdd.glom().map(len).collect()
    assert len(tasks) == bounded_tables.TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    assert max(tasks) <= 2 * 101 / len(tasks)
