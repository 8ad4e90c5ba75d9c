"""Summarises the result of an audit, and names the files that an audit writes."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from epochmq_spark import audit, coverage, fix_plan, plan_inputs, verdict
from epochmq_spark.audit_state import ReplicaKey
from epochmq_spark.decode.summary_rows import SummaryKind
from epochmq_spark.findings import SEVERITY_ORDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LISTED_MAX = 1000  # findings in the summary; the table has all
REPORTED_MAX = 10_000  # findings in the report
SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"
FINDINGS_FILE = "findings.parquet"


def summarise(
    result: audit.AuditResult,
    started: float,
    listed_max: int = LISTED_MAX,
    *,
    origin: plan_inputs.StoreOrigin | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The JSON summary, and the first findings, at most `listed_max`. `started` is the time of the start, in
    seconds since 1970. `origin` says where the directories of frozen replicas are, for the plan of repair."""
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
        fixPlan=fix_plan_of(result, findings, started, origin),
        startedAt=int(started * 1000),
        seconds=round(time.time() - started, 1),
    )
    return summary, listed


def fix_plan_of(
    result: audit.AuditResult,
    findings: DataFrame,
    started: float,
    origin: plan_inputs.StoreOrigin | None = None,
) -> list[dict[str, Any]]:
    """The steps that repair the findings (`fix_plan.FixStep.document`), in their order."""
    from pyspark.sql import functions as f

    named = f.slice(f.sort_array(f.collect_set("file")), 1, fix_plan.FILES_MAX).alias("files")
    rows = findings.groupBy("group", "replica", "kind").agg(f.count("*").alias("count"), named).collect()
    return plan_inputs.plan_of(result.state, [row.asDict() for row in rows], started, origin)


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
