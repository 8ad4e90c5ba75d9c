"""Limits the room on the disk of a Raft peer."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from epochmq_dledger.store import segments


@contextmanager
def room(bytes_left: int, code: int = errno.ENOSPC) -> Iterator[None]:
    """The disk takes this many bytes, the last write in part, and then fails."""
    left = bytes_left
    real = os.pwrite

    def pwrite(fd: int, data: bytes, at: int) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(code, os.strerror(code))
        done = real(fd, data[:left], at)
        left -= done
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments.os, "pwrite", pwrite)
        yield
