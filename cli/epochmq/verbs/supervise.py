"""`epochmq supervise`: what `up --detach` leaves running."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from epochmq.exits import ExitCode


def run(state: str) -> int:
    """Until it is told to end."""
    from epochmq_operator.local.runtime import supervise
    from epochmq_operator.local.state_directory import PodRecord, StateDirectory
    from epochmq_operator.local.supervisor import Supervisor

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    def note(record: PodRecord) -> None:
        logging.info("%s: %s%s", record.pod, record.phase, f": {record.reason}" if record.reason else "")

    async def main() -> None:
        await supervise(Supervisor(StateDirectory(Path(state)), on_change=note))

    asyncio.run(main())
    return ExitCode.OK
