"""Stops processes all at once, so that what they have on their disks belongs together."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.support.process import ManagedProcess, wait_until

STOPPED = frozenset("TtDZX")
"""States of a thread that runs no instruction of its own: stopped, or inside a system call at whose end it
stops."""


def freeze(processes: Sequence[ManagedProcess]) -> float:
    """Stops all of them (SIGSTOP), and returns when no thread of them can run; how long that took, in
    seconds.

    Images are cloned one after another. An acknowledgement that a process sends after its own image was
    cloned could rest on bytes that the clone lacks, and a process whose image is cloned later could act on
    it: that would be a cut no power failure makes. Nobody sends or writes between the first clone and the
    last one when all are stopped. The kernel may go on writing dirty pages meanwhile, which is legal: that
    disk was a little faster."""
    began = time.monotonic()
    for process in processes:
        process.signal(signal.SIGSTOP)
    for process in processes:
        wait_until(partial(_is_stopped, process.pid), what=f"{process.name} is stopped")
    return time.monotonic() - began


def _is_stopped(pid: int) -> bool:
    states = [_state(task) for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(state in STOPPED for state in states) and "T" in states


def _state(task: Path) -> str:
    """The state of a thread, a letter; it follows the name, which may contain anything, in parentheses."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
