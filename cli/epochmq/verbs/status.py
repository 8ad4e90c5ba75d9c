"""Implements `epochmq status`: prints which pods run and how they are, on this machine or on a cluster."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from epochmq.exits import ExitCode, print_error
from epochmq.verbs.target import KubernetesTarget

if TYPE_CHECKING:
    from epochmq_operator.status_model import StatusReport


def run(state: Path, target: KubernetesTarget | None, *, as_json: bool) -> int:
    """Prints the pods of a run as a table or as JSON."""
    if target is not None:
        return _run_on_cluster(target, as_json=as_json)

    from epochmq_operator.local import status
    from epochmq_operator.local.state_directory import StateDirectory

    directory = StateDirectory(state)
    if directory.exists():
        observation = asyncio.run(status.observe(directory))
    else:
        observation = status.LocalObservation.nothing()
    if as_json:
        _print_json(status.report(directory, observation))
    elif observation.pods:
        from rich.console import Console

        from epochmq.verbs import pod_tables

        console = Console() if sys.stdout.isatty() else Console(width=pod_tables.WIDTH_WITHOUT_TERMINAL)
        rows = [pod_tables.row_of(pod) for pod in observation.pods]
        console.print(pod_tables.pod_table(rows, console.width))
        pod_tables.print_groups(console, status.report(directory, observation))
        pod_tables.print_refusals(console, observation.pods)
        if directory.supervisor() is None:
            print_error("the supervisor is gone: pods that end are not restarted; run up again, or down")
    if not observation.pods:
        print_error(f"nothing runs in {state}; start something with: epochmq up -f FILE")
        return ExitCode.NOTHING
    return ExitCode.OK


def _run_on_cluster(target: KubernetesTarget, *, as_json: bool) -> int:
    from epochmq.verbs import kubernetes_cluster

    report = kubernetes_cluster.read_status(target)
    pods = kubernetes_cluster.pods(report)
    if as_json:
        _print_json(report)
    elif pods or report.broker_groups:
        from rich.console import Console

        from epochmq.verbs import pod_tables

        console = Console() if sys.stdout.isatty() else Console(width=pod_tables.WIDTH_WITHOUT_TERMINAL)
        rows = [pod_tables.row_of_status(pod, component) for pod, component in pods]
        console.print(pod_tables.pod_table(rows, console.width))
        pod_tables.print_groups(console, report)
    if not pods and not report.broker_groups and not report.controller_groups:
        print_error(f"nothing runs in {report.state}")
        return ExitCode.NOTHING
    return ExitCode.OK


def _print_json(report: StatusReport) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
