# pure: what every member of a group had
"""How far the log of every member of a SyncStateSet reached, as masters and members report it with their
heartbeats (`confirmedByAll`, under `allAckInSyncStateSet`): who has less has lost what was acknowledged.

A master reports several times in the life of a lease, a replica once a second. A replica's report is compared
with what was known before the latest report of another came, so that two heartbeats that overtake each other
put nobody in the wrong.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ConfirmedOffset:
    """One group's, under one mastership."""

    latest: int = -1
    before: int = -1
    """What was known before the latest report."""

    def record(self, offset: int) -> None:
        """Every member has the log up to `offset`."""
        self.before = self.latest
        self.latest = max(self.latest, offset)

    def is_ahead_of(self, max_offset: int) -> bool:
        """Whether a log that ends here lacks what every member had."""
        return max_offset < self.before
