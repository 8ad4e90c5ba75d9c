"""Runs `epochmq audit`: audits directories in a Spark session and writes the results to a folder."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochmq_spark import audit, files, plan_inputs, result_files, session, store_layout, store_lock
from epochmq_spark.results import LISTED_MAX, REPORTED_MAX, summarise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        name, location = named_location(text)
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


def named_location(argument: str) -> tuple[str, str]:
    """The name, which may be empty, and the location of an argument `DIR` or `NAME=DIR`."""
    name, assigned, location = argument.partition("=")
    return (name, location) if assigned and "/" not in name else ("", argument)


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
    parts = [part for part in location.partition("?")[0].split("/") if part]
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
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    origin: plan_inputs.StoreOrigin | None = None,
) -> AuditOutcome:
    """Audits replicas in a session of this machine, or on the Spark cluster `master`, and writes findings,
    summary and report to the folder."""
    progress("starting Spark")
    spark = session.audit_session(cores, master=master, config=config)
    summary, findings = run_in(
        spark, replicas, str(folder), metadata=metadata, progress=progress, origin=origin
    )
    return AuditOutcome(summary, findings, folder)


def run_in(
    spark: SparkSession,
    replicas: Sequence[store_layout.AuditedReplica],
    folder: str,
    *,
    metadata: Any = None,
    progress: Callable[[str], None] = lambda text: None,
    origin: plan_inputs.StoreOrigin | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Audits replicas in a session, and writes findings, summary and report to the folder, a path of this
    machine or a URI of Spark. Returns the summary, and the findings that it lists. An audit that fails leaves
    a summary without a verdict, which says why. Raises OSError, also if the results cannot be written."""
    if not result_files.is_uri(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    result_files.remove_results(spark, folder)
    try:
        return _audit_in(spark, replicas, folder, metadata, progress, origin)
    except Exception as error:
        with contextlib.suppress(result_files.ResultsNotWrittenError, *session.spark_errors()):
            result_files.write_failure(spark, folder, session.describe_error(error))
        raise


def _audit_in(
    spark: SparkSession,
    replicas: Sequence[store_layout.AuditedReplica],
    folder: str,
    metadata: Any,
    progress: Callable[[str], None],
    origin: plan_inputs.StoreOrigin | None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    started = time.time()
    result = audit.run(spark, replicas, metadata=metadata, progress=progress)
    try:
        summary, findings = summarise(result, started, REPORTED_MAX, origin=origin)
        progress("writing the findings")
        result_files.write_findings(result.findings, folder)
        result_files.write_summary(spark, summary, folder, findings)
    finally:
        result.release()
    return summary, findings[:LISTED_MAX]
