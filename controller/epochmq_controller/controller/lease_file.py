"""Remembers the length of the leases that this controller has confirmed, over restarts.

A controller that restarts with a shorter `writeLeaseMs` could help to elect a leader that waits only for the
shorter length, while a lease that it confirmed before is still valid. So a file keeps the length, and a
controller whose leases were longer waits for their end before it joins its group.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from epochmq_controller import text_files
from epochmq_controller.replica_groups.leases import DRIFT
from epochmq_protocol import properties

log = logging.getLogger(__name__)

NAME = "lease"
KEY = "writeLeaseMs"


async def wait_for_longer_lease(folder: Path, lease_ms: int) -> None:
    """Waits as long as an earlier, longer lease can be valid, and saves the present length. ValueError if the
    file holds no length, OSError if it cannot be written."""
    path = folder / NAME
    saved = properties.parse(text_files.read_text(path) or "").get(KEY, str(lease_ms))
    if not saved.isdigit():
        raise ValueError(f"{path}: {KEY}={saved}, expected a whole number of milliseconds")
    before_ms = int(saved)
    if before_ms > lease_ms:
        wait_ms = before_ms * (1 + DRIFT)
        log.info("waiting %d ms until leases of the former %s=%d have ended", wait_ms, KEY, before_ms)
        await asyncio.sleep(wait_ms / 1000)
    if before_ms != lease_ms or not path.exists():
        await asyncio.to_thread(text_files.write_text, path, f"{KEY}={lease_ms}\n")
