# pure: the extent of a log
"""Defines the extent of a replica's log, and what a DLedger peer has saved about it."""

from __future__ import annotations

from dataclasses import dataclass, field


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


@dataclass(frozen=True)
class SavedPeerState:
    """What a peer has saved beside its log. `term` and `committed_index` are None if no file has them.
    `committed_end` is a physical offset below which everything is committed: the end of the last committed
    entry, or of one shortly before it if the index is damaged there; 0 if it is unknown. `faults` are (file,
    what is wrong)."""

    term: int | None = None
    committed_index: int | None = None
    committed_end: int = 0
    faults: list[tuple[str, str]] = field(default_factory=list)
