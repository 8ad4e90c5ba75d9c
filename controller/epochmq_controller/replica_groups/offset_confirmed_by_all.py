# pure: keeps the offset that all members of a SyncStateSet had
"""Tracks the offset confirmed by all: every member of a SyncStateSet had the log up to it. If a member's log
ends before that offset, the member has lost acknowledged messages.

Masters and members report the offset with their heartbeats (`confirmedByAll`, under `allAckInSyncStateSet`):
a master several times per lease, a replica once a second. A replica's log is compared with the offset that
was known before the latest report, so that heartbeats that overtake each other cause no false alarm. The
master's confirm offset is another one: without `allAckInSyncStateSet` a master may confirm bytes that some
members lack.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochmq_protocol.errors import InvariantError


@dataclass
class OffsetConfirmedByAll:
    """The offset confirmed by all of one group under one mastership."""

    latest: int = -1
    previous: int = -1
    """The offset that was known before the latest report. Invariant: -1 <= previous <= latest; neither
    falls under one mastership."""

    def record(self, offset: int) -> None:
        """Records that every member has the log up to `offset`."""
        self.previous = self.latest
        self.latest = max(self.latest, offset)

    def is_ahead_of(self, max_offset: int) -> bool:
        """Whether a log that ends at `max_offset` lacks bytes that every member had before the latest
        report."""
        return max_offset < self.previous

    def check_invariants(self) -> None:
        """Raises InvariantError if the offsets contradict each other. O(1)."""
        if not -1 <= self.previous <= self.latest:
            raise InvariantError(
                "OffsetConfirmedByAll",
                "-1 <= previous <= latest",
                previous=self.previous,
                latest=self.latest,
            )
