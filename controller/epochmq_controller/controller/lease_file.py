"""How long leases are that this controller may have vouched for.

A controller that comes back with a shorter `writeLeaseMs` could help to elect a leader that waits for the
shorter one, while a lease that it confirmed before runs still. So the folder remembers the length, and a
controller whose leases were longer waits them out before it takes part.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from epochmq_controller import files
from epochmq_controller.replica_groups.leases import DRIFT
from epochmq_protocol import properties

log = logging.getLogger(__name__)

NAME = "lease"
KEY = "writeLeaseMs"


async def wait_for_longer_lease(folder: Path, lease_ms: int) -> None:
    """Waits for as long as a longer lease of before may run, and remembers the present length. ValueError
    when the file says no length; OSError when it cannot be written."""
    path = folder / NAME
    said = properties.parse(files.read_text(path) or "").get(KEY, str(lease_ms))
    if not said.isdigit():
        raise ValueError(f"{path}: {KEY}={said}, expected a whole number of milliseconds")
    before_ms = int(said)
    if before_ms > lease_ms:
        wait_ms = before_ms * (1 + DRIFT)
        log.info("%s was %d: waiting %d ms until no such lease is out", KEY, before_ms, wait_ms)
        await asyncio.sleep(wait_ms / 1000)
    if before_ms != lease_ms or not path.exists():
        await asyncio.to_thread(files.write_text, path, f"{KEY}={lease_ms}\n")
