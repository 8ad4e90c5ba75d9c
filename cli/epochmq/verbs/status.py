"""`epochmq status`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from epochmq.exits import Exit, complain
from epochmq.verbs.target import ClusterTarget


def run(state: Path, cluster: ClusterTarget | None, *, as_json: bool) -> int:
    """Prints what runs, as a table or as JSON."""
    import msgspec

    if cluster is not None:
        return _of_cluster(cluster, as_json=as_json)

    from epochmq_operator.local import status
    from epochmq_operator.local.state import StateDirectory

    directory = StateDirectory(state)
    seen = asyncio.run(status.observe(directory)) if directory.exists() else status.Observation.nothing()
    if as_json:
        report = status.report(directory, seen)
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    elif seen.pods:
        from rich.console import Console

        from epochmq.verbs import view

        console = Console() if sys.stdout.isatty() else Console(width=view.WIDTH_ELSEWHERE)
        console.print(view.table([view.row_of(o) for o in seen.pods], console.width))
        view.print_groups(console, status.report(directory, seen))
        if directory.supervisor() is None:
            complain("the supervisor is gone: nothing restarts what ends; run up again, or down")
    if not seen.pods:
        complain(f"nothing runs in {state}; start something with: epochmq up -f FILE")
        return Exit.NOTHING
    return Exit.OK


def _of_cluster(target: ClusterTarget, *, as_json: bool) -> int:
    import msgspec

    from epochmq.verbs import cluster

    report = cluster.seen(target)
    pods = cluster.pods(report)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    elif pods or report.broker_groups:
        from rich.console import Console

        from epochmq.verbs import view

        console = Console() if sys.stdout.isatty() else Console(width=view.WIDTH_ELSEWHERE)
        rows = [view.row_of_status(pod, kind, cluster.readiness_of(pod)) for pod, kind in pods]
        console.print(view.table(rows, console.width))
        view.print_groups(console, report)
    if not pods and not report.broker_groups and not report.controller_groups:
        complain(f"nothing runs in {report.state}")
        return Exit.NOTHING
    return Exit.OK
