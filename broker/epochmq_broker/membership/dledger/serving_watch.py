# pure: rules over values
"""Notices that a leader does not become ready, and that committed records are not dispatched.

A log whose committed records cannot be read would stop the group for ever: its leader is alive, and no other
one is elected. Such a leader transfers its leadership after `READY_WAIT_MAX_S` without progress.
"""

from __future__ import annotations

from typing import Final

READY_WAIT_MAX_S: Final = 10.0
"""A leader that is not ready gives the leadership away after this time without progress."""


class ServingWatch:
    """The progress of one peer. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.stall = ""
        """Why no committed record is dispatched, empty while they are."""
        self.cannot_serve = False
        """Whether this peer leads, is not ready, and makes no progress."""
        self._mark: tuple[int, int] | None = None
        self._since_s = 0.0

    def dispatched(self, before: int, position: int, end: int) -> bool:
        """The dispatcher has moved from `before` to `position`, of a log that is committed up to `end`.
        Returns whether it has just stopped before that end."""
        if position > before or position >= end:
            self.stall = ""
            return False
        was_stalled = bool(self.stall)
        self.stall = f"no whole record can be read at {position}, but the log is committed up to {end}"
        return not was_stalled

    def look(self, mark: tuple[int, int] | None, now_s: float, wait_max_s: float) -> bool:
        """Notes how far a leader that is not ready has come (None: it is ready, or no leader). Returns
        whether it has just been found to be stuck for `wait_max_s`."""
        if mark is None or mark != self._mark:
            self._mark, self._since_s = mark, now_s
        was_stuck = self.cannot_serve
        self.cannot_serve = mark is not None and now_s - self._since_s >= wait_max_s
        return self.cannot_serve and not was_stuck
