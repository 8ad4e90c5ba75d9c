"""Implements `epochmq status`: prints which pods run and how they are, on this machine or on a cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epochmq.exits import ExitCode, print_error
from epochmq.verbs.output import ResultFormat, VerbResult, print_result
from epochmq.verbs.target import KubernetesTarget

if TYPE_CHECKING:
    from rich.console import Console

    from epochmq_operator.status_model import StatusReport


PROGRAMS = (ResultFormat.JSON, ResultFormat.YAML, ResultFormat.NAME)
WIDE_COLUMNS = 240
"""The width of the tables in the format `wide`."""


def run(state: Path, target: KubernetesTarget | None, output: ResultFormat) -> int:
    """Prints the pods of a run: as tables, as JSON or YAML, or their names."""
    if target is not None:
        return _run_on_cluster(target, output)

    from epochmq_operator.local import status
    from epochmq_operator.local.state_directory import StateDirectory

    directory = StateDirectory(state)
    if directory.exists():
        observation = asyncio.run(status.observe(directory))
    else:
        observation = status.LocalObservation.nothing()
    if output in PROGRAMS:
        _print_document(
            status.report(directory, observation), [one.pod.name for one in observation.pods], output
        )
    elif observation.pods:
        from epochmq.verbs import pod_tables

        console = _console(output)
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


def _run_on_cluster(target: KubernetesTarget, output: ResultFormat) -> int:
    from epochmq.verbs import kubernetes_cluster

    report = kubernetes_cluster.read_status(target)
    pods = kubernetes_cluster.pods(report)
    if output in PROGRAMS:
        _print_document(report, [pod.pod for pod, _ in pods], output)
    elif pods or report.broker_groups:
        from epochmq.verbs import pod_tables

        console = _console(output)
        rows = [pod_tables.row_of_status(pod, component) for pod, component in pods]
        console.print(pod_tables.pod_table(rows, console.width))
        pod_tables.print_groups(console, report)
    if not pods and not report.broker_groups and not report.controller_groups:
        print_error(f"nothing runs in {report.state}")
        return ExitCode.NOTHING
    return ExitCode.OK


def _print_document(report: StatusReport, names: Sequence[str], output: ResultFormat) -> None:
    print_result(VerbResult(report, (), names), output)


def _console(output: ResultFormat) -> Console:
    """A console as wide as the terminal; wider for the format `wide`, or where there is no terminal."""
    from rich.console import Console

    from epochmq.verbs import pod_tables

    if output is ResultFormat.WIDE:
        return Console(width=WIDE_COLUMNS)
    return Console() if sys.stdout.isatty() else Console(width=pod_tables.WIDTH_WITHOUT_TERMINAL)
