"""Tells whether a broker uses a store's directory.

A broker holds a POSIX lock on the first byte of the store's file `lock`, RocketMQ's as well as ours
(`DefaultMessageStore.start`). The kernel names the process that holds it, so nothing is locked here."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

LOCK_FILE = "lock"
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits: type, whence, start, length, pid


def broker_of(store: Path) -> int | None:
    """The id of the process that uses a store; None if no other process does, or if that cannot be found out
    (another operating system or another machine). 0: a process of another PID namespace."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    try:
        file = os.open(store / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(file)
    return None if kind == fcntl.F_UNLCK else pid
