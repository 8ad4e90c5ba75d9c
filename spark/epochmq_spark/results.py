"""Summarises the result of an audit, and names the files that an audit writes."""

from __future__ import annotations

import time
from typing import Any

from epochmq_spark import audit, verdict

LISTED_MAX = 1000  # findings in the summary and the report; the table has all
SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"
FINDINGS_FILE = "findings.parquet"


def summarise(result: audit.AuditResult, started: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The JSON summary, and the findings that it lists. `started` is the time of the start, in seconds since
    1970."""
    findings = result.findings.persist()
    counts = {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
    ordered = findings.orderBy("severity", "group", "replica", "kind", "start_offset").limit(LISTED_MAX)
    listed = [row.asDict() for row in ordered.collect()]
    summary = verdict.summary(
        counts,
        audit.replica_rows(result),
        listed,
        startedAt=int(started * 1000),
        seconds=round(time.time() - started, 1),
    )
    return summary, listed
