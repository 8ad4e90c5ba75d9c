"""Identifies processes beyond their ids, which the system reuses.

A process is identified by its id, its start time and its boot. A signal is sent only if all three agree,
through a handle (Linux' pidfd) that cannot refer to another process."""

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
    """One process of this machine, running or not."""

    pid: int
    started: str
    """The start time in the system's own form: clock ticks since boot on Linux."""
    boot: str
    """The boot id; empty where the system has none."""


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """The start time of the running process with this id; None without one."""
    if _LINUX:
        try:
            stat = (_PROC / str(pid) / "stat").read_text()
        except OSError:
            return None
        # The name in brackets may contain blanks and brackets; the fields after it begin with the state.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    found = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def identify(pid: int) -> ProcessIdentity | None:
    """The running process with this id, or None."""
    started = _started(pid)
    return None if started is None else ProcessIdentity(pid=pid, started=started, boot=_boot())


def current() -> ProcessIdentity:
    """This process."""
    process = identify(os.getpid())
    assert process is not None, "this process runs"
    return process


def is_alive(process: ProcessIdentity | None) -> bool:
    """Whether exactly this process still runs."""
    return process is not None and process.pid > 0 and identify(process.pid) == process


def send_signal(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Sends the signal if exactly this process still runs. False if it does not; then nothing is sent."""
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
        # The handle refers to one process from here on; check that it is this one.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True
