"""Implements `epochmq supervise`: runs the supervisor of a state directory in the background, where
`up --detach` started it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from epochmq.exits import ExitCode


def run(state: str) -> int:
    """Supervises the pods of a state directory until SIGTERM or SIGINT."""
    from epochmq_operator.local.runtime import supervise
    from epochmq_operator.local.state_directory import PodRecord, StateDirectory
    from epochmq_operator.local.supervisor import Supervisor

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    def log_change(record: PodRecord) -> None:
        logging.info("%s: %s%s", record.pod, record.phase, f": {record.reason}" if record.reason else "")

    async def main() -> None:
        await supervise(Supervisor(StateDirectory(Path(state)), on_change=log_change))

    asyncio.run(main())
    return ExitCode.OK
