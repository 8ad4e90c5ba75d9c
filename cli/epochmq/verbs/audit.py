"""Implements `epochmq audit` and `epochmq report`: checks store directories, and shows the last result."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochmq.exits import ExitCode, UsageError, print_error

if TYPE_CHECKING:
    from epochmq.verbs.target import KubernetesTarget
    from epochmq_spark.local_audit import AuditOutcome

AUDITS = "audits"


def run(
    directories: list[str],
    state: Path,
    *,
    group: str | None,
    out: Path | None,
    cores: int | None,
    metadata: Path | None,
    as_json: bool,
) -> int:
    """Audits directories; returns the exit code of the verdict."""
    _require_spark_and_java()
    from epochmq_spark import local_audit

    view = _read_metadata(metadata) if metadata is not None else None
    folder = out or state / AUDITS / time.strftime("%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}, expected a folder that can be written") from None
    replicas = local_audit.replicas_of(directories, group)
    outcome = local_audit.run(replicas, folder, cores=cores, metadata=view, progress=_progress)
    if as_json:
        sys.stdout.write(json.dumps(outcome.summary, indent=2) + "\n")
    else:
        _print(outcome)
    return outcome.exit_code


def report(state: Path) -> int:
    """Prints the path of the last audit's report."""
    pages = sorted((state / AUDITS).glob("*/report.html"))
    if not pages:
        print_error(f"there is no report in {state / AUDITS}; create one with: epochmq audit DIR…")
        return ExitCode.NOTHING
    print(pages[-1].resolve())
    return ExitCode.OK


def report_of_cluster(target: KubernetesTarget) -> int:
    """Prints the last verdict of each audit on a cluster, and a command that shows its report."""
    from epochmq.verbs import kubernetes_cluster

    audits = kubernetes_cluster.audits(target)
    for name, status in audits:
        verdict, report = status.get("verdict"), status.get("report")
        if not verdict:
            print(f"{name}: no verdict yet: {status.get('phase', 'Waiting')}")
            continue
        found = f"{status.get('errors', 0)} errors" if verdict == "damaged" else "no errors"
        print(f"{name}: {verdict}, {found}; finished at {status.get('lastFinished')}")
        if report:
            page = r"{.binaryData.report\.html\.gz}"
            print(f"  kubectl get configmap {report} -o jsonpath='{page}' | base64 -d | gunzip > report.html")
    if not any(status.get("verdict") for _, status in audits):
        print_error("no audit in the namespace has a verdict yet; create a BrokerGroupAudit")
        return ExitCode.NOTHING
    return ExitCode.OK


def _require_spark_and_java() -> None:
    """Raises UsageError if PySpark or Java is missing."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise UsageError("the audit needs PySpark: pip install 'epochmq[spark]'") from None
    if shutil.which("java") is None:
        raise UsageError("the audit needs a Java runtime, 17 or newer: there is no java on the PATH")


def _read_metadata(path: Path) -> Any:
    from epochmq_spark.checks import controller_view

    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        controller_view.parse_views(known)
        return known
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{path}: {error}, expected the output of: epochmq status -o json") from None


def _progress(text: str) -> None:
    print(f"audit: {text} …", file=sys.stderr, flush=True)


def _print(outcome: AuditOutcome) -> None:
    from epochmq_spark.findings import sentence

    for row in outcome.findings:
        print(sentence(row))
    total = sum(outcome.summary["findingCounts"].values())
    if total > len(outcome.findings):
        print(f"… {total - len(outcome.findings)} more in {outcome.folder}")
    print(f"{outcome.summary['verdict']}: {total} findings; report: {outcome.folder / 'report.html'}")
