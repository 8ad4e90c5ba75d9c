# pure: the extent of a log
"""Defines the extent of a replica's log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LogExtent:
    """Physical offsets: the log has records in [start, end), and those below `common_end` must equal the
    leading replica's. Ranges that cannot be read may contain records up to `unread_end`. `with_epochs` is
    false if no replica of the group has epochs. `truncates_tail`: the broker did not stop cleanly and has not
    confirmed bytes beyond `common_end`, so its next start truncates them (RIP-44)."""

    start: int
    end: int
    common_end: int
    leading: bool
    unread_end: int = 0
    with_epochs: bool = True
    truncates_tail: bool = False

    @property
    def possible_end(self) -> int:
        """The highest offset at which the log may end."""
        return max(self.end, self.unread_end)
