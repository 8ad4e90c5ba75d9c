"""Runs `epochmq audit`: audits directories in a Spark session of this machine and writes the results to a
folder."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochmq_spark import audit, files, session, store_layout, store_lock
from epochmq_spark.results import FINDINGS_FILE, REPORT_FILE, SUMMARY_FILE, summarise


@dataclass(frozen=True)
class AuditOutcome:
    """The summary of an audit, the findings that it lists, and the folder of its files."""

    summary: dict[str, Any]
    findings: list[dict[str, Any]]
    folder: Path

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return int(self.summary["exitCode"])


def replicas_of(arguments: Sequence[str], group: str | None = None) -> list[store_layout.AuditedReplica]:
    """The replicas that arguments `DIR` or `NAME=DIR` name. DIR is a store, or contains one in `store`."""
    replicas: list[store_layout.AuditedReplica] = []
    names: Counter[str] = Counter()
    for text in arguments:
        name, assigned, location = text.partition("=")
        if not assigned or "/" in name:
            name, location = "", text
        store = store_layout.store_directory(location)
        replicas.append(store_layout.AuditedReplica(group or "", name or _short_name(text), store))
        names[replicas[-1].name] += 1
    if any(count > 1 for count in names.values()):  # two paths have the same short name: use the whole paths
        replicas = [
            store_layout.AuditedReplica(one.group, text if names[one.name] > 1 else one.name, one.location)
            for one, text in zip(replicas, arguments, strict=True)
        ]
    name = group or _group_of(replicas)
    return [store_layout.AuditedReplica(name, one.name, one.location) for one in replicas]


def directories_in_use(replicas: Sequence[store_layout.AuditedReplica]) -> list[tuple[str, int]]:
    """(directory, process) of stores on this machine that a broker uses."""
    found = []
    for one in replicas:
        path = files.local_path(one.location)
        pid = store_lock.broker_of(path) if path is not None else None
        if pid is not None:
            found.append((one.location, pid))
    return found


def _short_name(location: str) -> str:
    parts = [part for part in location.split("/") if part]
    return parts[-2] if len(parts) > 1 and parts[-1] == "store" else (parts or [location])[-1]


def _group_of(replicas: Sequence[store_layout.AuditedReplica]) -> str:
    """The brokerName of most replicas (`brokerIdentity`: cluster#brokerName#brokerId)."""
    identities = [store_layout.read_identity(one.location) for one in replicas]
    votes = Counter(identity[1] for identity in identities if identity)
    return votes.most_common(1)[0][0] if votes else "group"


def run(
    replicas: Sequence[store_layout.AuditedReplica],
    folder: Path,
    *,
    cores: int | None = None,
    metadata: Any = None,
    progress: Callable[[str], None] = lambda text: None,
) -> AuditOutcome:
    """Audits replicas and writes findings, summary and report to the folder."""
    started = time.time()
    progress("starting Spark")
    spark = session.local_session(cores)
    result = audit.run(spark, replicas, metadata=metadata, progress=progress)
    folder.mkdir(parents=True, exist_ok=True)
    progress("writing the findings")
    result.findings = result.findings.persist()
    result.findings.coalesce(1).write.mode("overwrite").parquet(str(folder / FINDINGS_FILE))
    summary, findings = summarise(result, started)
    (folder / SUMMARY_FILE).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    from epochmq_spark.report import page

    (folder / REPORT_FILE).write_text(page.render(summary), encoding="utf-8")
    return AuditOutcome(summary, findings, folder)
