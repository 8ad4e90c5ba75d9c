"""Marks, by the file `queues.clean`, that this store has stopped cleanly, so that only zeros follow the units
in the files of consume queues.

The marker contains the modification time of the lock file. RocketMQ changes that time when it opens the
directory, and it does not zero what it truncates. So the marker is valid only if no RocketMQ broker has used
the directory since.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from epochmq_protocol.durable_files import replace_file

log = logging.getLogger(__name__)

MARKER_NAME: Final = "queues.clean"


def queues_are_zeroed(root: Path) -> bool:
    """Whether the last broker that used the directory was this one's kind, and stopped cleanly."""
    try:
        return int((root / MARKER_NAME).read_bytes()) == (root / "lock").stat().st_mtime_ns
    except (OSError, ValueError):
        return False


def remove_marker(root: Path) -> None:
    """Removes the marker, because the store is opened. Raises OSError."""
    (root / MARKER_NAME).unlink(missing_ok=True)


def write_marker(root: Path) -> None:
    """Writes the marker after a clean stop. Raises nothing: without it the next start reads all queues."""
    try:
        modified = (root / "lock").stat().st_mtime_ns
        replace_file(root / MARKER_NAME, str(modified).encode())
    except OSError as error:
        log.warning(
            "%s cannot be written, the next start reads all consume queues: %s", root / MARKER_NAME, error
        )
