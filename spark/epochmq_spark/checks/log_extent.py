# pure: the extent of a log
"""Defines the extent of a replica's log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LogExtent:
    """Physical offsets: the log has records in [start, end), and those below `common_end` must equal the
    leading replica's."""

    start: int
    end: int
    common_end: int
    leading: bool
