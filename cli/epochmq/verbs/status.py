"""`epochmq status`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from epochmq.exits import Exit, complain


def run(state: Path, *, as_json: bool) -> int:
    """Prints what runs, as a table or as JSON."""
    import msgspec

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
        report = status.report(directory, seen)
        tables = (
            view.controllers_table(report.controller_groups),
            view.replica_groups_table(report.controller_groups),
            view.broker_groups_table(report.broker_groups),
        )
        for more in tables:
            if more.row_count:
                console.print("", more)
        if directory.supervisor() is None:
            complain("the supervisor is gone: nothing restarts what ends; run up again, or down")
    if not seen.pods:
        complain(f"nothing runs in {state}; start something with: epochmq up -f FILE")
        return Exit.NOTHING
    return Exit.OK
