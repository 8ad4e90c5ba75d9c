"""What `epochmq audit` does: directories in; tables, a summary and a report out."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochmq_spark import audit, files, session, store_layout, verdict

SHOWN_MAX = 1000  # findings in the summary and the report; the table has all
SUMMARY = "summary.json"
REPORT = "report.html"
FINDINGS = "findings.parquet"


@dataclass(frozen=True)
class AuditOutcome:
    """What an audit left."""

    summary: dict[str, Any]
    findings: list[dict[str, Any]]
    folder: Path

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return int(self.summary["exitCode"])


def replicas_of(places: Sequence[str], group: str | None = None) -> list[store_layout.AuditedReplica]:
    """The replicas in these places: `DIR` or `NAME=DIR`, where DIR is a store or has one in `store`."""
    found: list[store_layout.AuditedReplica] = []
    names: Counter[str] = Counter()
    for text in places:
        name, split, place = text.partition("=")
        if not split or "/" in name:
            name, place = "", text
        inner = files.join(place, "store")
        try:
            here = {entry.name for entry in files.entries(place)}
            place = inner if "commitlog" not in here and "store" in here else place
        except OSError:
            pass
        found.append(store_layout.AuditedReplica(group or "", name or _short(text), place))
        names[found[-1].name] += 1
    if any(count > 1 for count in names.values()):  # two paths that end alike: tell them apart by all of it
        found = [
            store_layout.AuditedReplica(one.group, text if names[one.name] > 1 else one.name, one.place)
            for one, text in zip(found, places, strict=True)
        ]
    name = group or _group_of(found)
    return [store_layout.AuditedReplica(name, one.name, one.place) for one in found]


def _short(place: str) -> str:
    parts = [part for part in place.split("/") if part]
    return parts[-2] if len(parts) > 1 and parts[-1] == "store" else (parts or [place])[-1]


def _group_of(replicas: Sequence[store_layout.AuditedReplica]) -> str:
    """The brokerName that most replicas were given (`brokerIdentity`: cluster#brokerName#brokerId)."""
    votes = Counter(found[1] for one in replicas if (found := store_layout.identity(one.place)))
    return votes.most_common(1)[0][0] if votes else "group"


def run(
    replicas: Sequence[store_layout.AuditedReplica],
    folder: Path,
    *,
    cores: int | None = None,
    metadata: Any = None,
    progress: Callable[[str], None] = lambda text: None,
) -> AuditOutcome:
    """Audits replicas in a session of this machine and writes what it found into a folder."""
    started = time.time()
    progress("starting Spark")
    spark = session.local_session(cores)
    result = audit.run(spark, replicas, metadata=metadata, progress=progress)
    folder.mkdir(parents=True, exist_ok=True)
    progress("writing the findings")
    result.findings = result.findings.persist()
    result.findings.coalesce(1).write.mode("overwrite").parquet(str(folder / FINDINGS))
    summary, shown = summarise(result, started)
    (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    from epochmq_spark.report import page

    (folder / REPORT).write_text(page.render(summary), encoding="utf-8")
    return AuditOutcome(summary, shown, folder)


def summarise(result: audit.AuditResult, started: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary, and the findings that are shown. `started`: when, in seconds since 1970."""
    findings = result.findings.persist()
    counts = {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
    ranked = findings.orderBy("severity", "group", "replica", "kind", "start_offset").limit(SHOWN_MAX)
    shown = [row.asDict() for row in ranked.collect()]
    summary = verdict.summary(
        counts,
        audit.replica_rows(result),
        shown,
        startedAt=int(started * 1000),
        seconds=round(time.time() - started, 1),
    )
    return summary, shown
