"""Processes told apart from others that got their number later.

A process id alone says little: once the process is gone the number may belong to anybody. Here a process is
its id, the moment it started, and the boot it started in; a signal is sent only when all three still agree,
through a handle (Linux' pidfd) that cannot slip to another process in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_LINUX = sys.platform == "linux"


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process of this machine, whether it still runs or not."""

    pid: int
    started: str
    """When it started, in the system's own words: clock ticks since boot on Linux."""
    boot: str
    """Which boot of the machine it belongs to; empty where the system has no such id."""


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When the process with this number started; None when there is none that still runs."""
    if _LINUX:
        try:
            stat = (_PROC / str(pid) / "stat").read_text()
        except OSError:
            return None
        # The name, in brackets, may hold blanks and brackets; the fields after it start with the state.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    found = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def identify(pid: int) -> ProcessIdentity | None:
    """The running process with this number, or None."""
    started = _started(pid)
    return None if started is None else ProcessIdentity(pid=pid, started=started, boot=_boot())


def current() -> ProcessIdentity:
    """This process."""
    process = identify(os.getpid())
    assert process is not None, "the process that asks runs"
    return process


def is_alive(process: ProcessIdentity | None) -> bool:
    """Whether that very process still runs."""
    return process is not None and process.pid > 0 and identify(process.pid) == process


def send_signal(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Sends the signal if that very process still runs; False, and nothing is sent, if not."""
    if not is_alive(process):
        return False
    if not hasattr(os, "pidfd_open"):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return False
        return True
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # From here on the handle means one process for good; is it the right one?
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True
