"""Summarises the result of an audit, and names the files that an audit writes."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from epochmq_spark import audit, coverage, verdict
from epochmq_spark.audit_state import ReplicaKey
from epochmq_spark.decode.summary_rows import SummaryKind
from epochmq_spark.findings import SEVERITY_ORDER

LISTED_MAX = 1000  # findings in the summary; the table has all
REPORTED_MAX = 10_000  # findings in the report
SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"
FINDINGS_FILE = "findings.parquet"


def summarise(
    result: audit.AuditResult, started: float, listed_max: int = LISTED_MAX
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The JSON summary, and the first findings, at most `listed_max`. `started` is the time of the start, in
    seconds since 1970."""
    from pyspark.sql import functions as f

    findings = result.findings.persist()
    counts = {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
    by_weight = f.array_position(f.lit([one.value for one in SEVERITY_ORDER]), f.col("severity"))
    ordered = findings.orderBy(by_weight, "group", "replica", "kind", "start_offset").limit(listed_max)
    listed = [row.asDict() for row in ordered.collect()]
    covered, document = coverage_of(result)
    replicas = [row | covered[row["group"], row["replica"]] for row in audit.replica_rows(result)]
    summary = verdict.summary(
        counts,
        replicas,
        listed[:LISTED_MAX],
        coverage=document,
        version=version("epochmq"),
        startedAt=int(started * 1000),
        seconds=round(time.time() - started, 1),
    )
    return summary, listed


def coverage_of(result: audit.AuditResult) -> tuple[dict[ReplicaKey, dict[str, Any]], dict[str, Any]]:
    """What the audit compared: the columns of each replica, and the entry `coverage` of the summary."""
    from pyspark.sql import functions as f

    state, is_unreadable = result.state, SummaryKind.UNREADABLE_FILE.value
    unreadable = (
        result.summary.where(f.col("kind") == is_unreadable)
        .select("group", "replica", "detail")
        .distinct()
        .orderBy("group", "replica", "detail")
        .limit(coverage.LEFT_OUT_MAX)
        .collect()
        if any(row["kind"] == is_unreadable for row in result.counts)
        else []
    )
    covered = coverage.coverage_of(state, coverage.count_rows(result.counts))
    document = coverage.coverage_document(
        state,
        covered,
        coverage.left_out_of_groups(state, result.metadata),
        [row.asDict() for row in unreadable],
    )
    return {key: one.document() for key, one in covered.items()}, document
