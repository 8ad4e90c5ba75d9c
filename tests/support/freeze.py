"""Stops processes together, so that the images of their disks belong to one moment."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.support.process import ManagedProcess, wait_until

STOPPED = frozenset("TtDZX")
"""States of a thread that executes no user code: stopped, or inside a system call at whose end it stops."""


def freeze(processes: Sequence[ManagedProcess]) -> float:
    """Stops all processes (SIGSTOP), waits until none of their threads can run, and returns the time that
    this took, in seconds.

    Images are cloned one after another. A running process could send an acknowledgement for bytes that its
    clone lacks, and a process whose image is cloned later could act on it. No power cut has that effect.
    While all processes are stopped, none sends or writes. The kernel may still write dirty pages, which is
    legal: that disk was a little faster."""
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
    """The state of a thread, a letter. It follows the name in parentheses, which may contain any
    characters."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
