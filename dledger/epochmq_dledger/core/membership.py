"""Who votes, as the log says (Raft dissertation, §4).

The group changes by one peer at a time, by a membership entry. The newest one in the log counts from the
moment it is there, committed or not; a cut takes it back. Two majorities of memberships that differ in one
peer share a peer, so no two leaders of one term, nor an entry committed and not found, can come of a change,
as long as the next change waits until this one is committed, and until its leader has committed an entry of
its own term (`leader.change_members` sees to both).
"""

from __future__ import annotations

from collections.abc import Iterable

from epochmq_protocol.dledger import MEMBERS_CHANNEL, DLedgerEntry, decode_members

MEMBERS_MAX = 9
"""More voters make a group slower and no safer."""


class Membership:
    """The voters, and those of before for as long as their entries may be cut."""

    def __init__(self, initial: Iterable[str], snapshot: tuple[int, dict[str, str]] | None = None) -> None:
        """`initial`: who they are while the log does not say. `snapshot`: what the log said before it
        began."""
        self._history: list[tuple[int, dict[str, str] | None]] = [(-1, None)]
        self._initial = tuple(initial)
        self.voters = self._initial
        if snapshot is not None:
            self._history = [snapshot]
            self._look()

    def _look(self) -> None:
        named = self.addresses
        self.voters = tuple(sorted(named)) if named is not None else self._initial

    @property
    def index(self) -> int:
        """The entry that names the voters, -1 where none does."""
        return self._history[-1][0]

    @property
    def addresses(self) -> dict[str, str] | None:
        """The voters' addresses as the log has them, None where it says nothing."""
        return self._history[-1][1]

    def addresses_at(self, index: int) -> dict[str, str] | None:
        """What the log up to `index` says; not asked for what lies before a committed entry."""
        return next((named for at, named in reversed(self._history) if at <= index), None)

    def add_entries(self, entries: Iterable[DLedgerEntry]) -> bool:
        """Takes account of entries written; whether the voters changed."""
        found = [(one.index, decode_members(one)) for one in entries if one.channel == MEMBERS_CHANNEL]
        self._history.extend(found)
        self._look()
        return bool(found)

    def truncate(self, end_index: int) -> bool:
        """Takes back what stood after `end_index`; whether the voters changed."""
        kept = [one for one in self._history if one[0] <= end_index] or self._history[:1]
        changed = len(kept) < len(self._history)
        self._history = kept
        self._look()
        return changed

    def reset(self, index: int, named: dict[str, str] | None) -> None:
        """The log begins anew after a snapshot that ends at `index`."""
        self._history = [(index if named is not None else -1, named)]
        self._look()

    def forget_before(self, committed_index: int) -> None:
        """Forgets what can no longer be cut."""
        while len(self._history) > 1 and self._history[1][0] <= committed_index:
            del self._history[0]
