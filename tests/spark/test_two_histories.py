"""Tests the audit of masters and slaves without controllers with Spark: every message that only one side has
is named, a message that was sent again is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import local_audit, results
from tests.spark import group_copies
from tests.spark.damage_kit import records
from tests.spark.pairs_without_epochs import create_pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]


def test_an_audit_names_every_message_that_one_side_of_a_pair_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    forked = create_pair(
        tmp_path / "forked", ["NEW-1", "NEW-2", "AGAIN", *map("NEW-A{}".format, range(9))], ["LOST1", "AGAIN"]
    )
    behind = create_pair(tmp_path / "behind", ["LATE-1", "LATE-2"], [])
    equal = create_pair(tmp_path / "equal", [], [])
    replicas = [
        one
        for name, pair in (("forked", forked), ("behind", behind), ("equal", equal))
        for one in group_copies.replicas(name, [pair.master, pair.slave])
    ]
    outcome = local_audit.run(replicas, tmp_path / "out")
    assert outcome.exit_code == 4
    rows = [
        row.asDict() for row in spark.read.parquet(str(tmp_path / "out" / results.FINDINGS_FILE)).collect()
    ]
    found = {(row["group"], row["kind"], row["replica"], row["message_id"]) for row in rows}
    fork = records(forked.slave)[30].offset
    assert found == {
        ("forked", "log.behind", "slave", None),
        ("forked", "log.two-histories", "master", None),
        ("forked", "log.two-histories", "slave", None),
        ("forked", "message.one-sided", "master", "NEW-1"),
        ("forked", "message.one-sided", "master", "NEW-2"),
        ("forked", "message.one-sided", "slave", "LOST1"),
        ("forked", "message.in-both", "master", "AGAIN"),
        ("forked", "message.in-both", "slave", "AGAIN"),
        *(("forked", "message.not-copied", "master", f"NEW-A{number}") for number in range(9)),
        ("behind", "log.behind", "slave", None),
        ("behind", "message.not-copied", "master", "LATE-1"),
        ("behind", "message.not-copied", "master", "LATE-2"),
    }
    histories = [row for row in rows if row["kind"] == "log.two-histories"]
    assert {row["start_offset"] for row in histories} == {fork}
    summary = json.loads((tmp_path / "out" / results.SUMMARY_FILE).read_text())
    assert summary["findingCounts"]["message.not-copied"] == 11
    assert "log.two-histories" in (tmp_path / "out" / results.REPORT_FILE).read_text()
