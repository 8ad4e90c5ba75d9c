"""`epochmq status`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from epochmq.exits import ExitCode, print_error
from epochmq.verbs.target import KubernetesTarget


def run(state: Path, target: KubernetesTarget | None, *, as_json: bool) -> int:
    """Prints what runs, as a table or as JSON."""
    import msgspec

    if target is not None:
        return _of_cluster(target, as_json=as_json)

    from epochmq_operator.local import status
    from epochmq_operator.local.state_directory import StateDirectory

    directory = StateDirectory(state)
    seen = asyncio.run(status.observe(directory)) if directory.exists() else status.LocalObservation.nothing()
    if as_json:
        report = status.report(directory, seen)
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    elif seen.pods:
        from rich.console import Console

        from epochmq.verbs import pod_tables

        console = Console() if sys.stdout.isatty() else Console(width=pod_tables.WIDTH_ELSEWHERE)
        console.print(pod_tables.table([pod_tables.row_of(o) for o in seen.pods], console.width))
        pod_tables.print_groups(console, status.report(directory, seen))
        if directory.supervisor() is None:
            print_error("the supervisor is gone: nothing restarts what ends; run up again, or down")
    if not seen.pods:
        print_error(f"nothing runs in {state}; start something with: epochmq up -f FILE")
        return ExitCode.NOTHING
    return ExitCode.OK


def _of_cluster(target: KubernetesTarget, *, as_json: bool) -> int:
    import msgspec

    from epochmq.verbs import kubernetes_cluster

    report = kubernetes_cluster.seen(target)
    pods = kubernetes_cluster.pods(report)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    elif pods or report.broker_groups:
        from rich.console import Console

        from epochmq.verbs import pod_tables

        console = Console() if sys.stdout.isatty() else Console(width=pod_tables.WIDTH_ELSEWHERE)
        rows = [
            pod_tables.row_of_status(pod, kind, kubernetes_cluster.readiness_of(pod)) for pod, kind in pods
        ]
        console.print(pod_tables.table(rows, console.width))
        pod_tables.print_groups(console, report)
    if not pods and not report.broker_groups and not report.controller_groups:
        print_error(f"nothing runs in {report.state}")
        return ExitCode.NOTHING
    return ExitCode.OK
