"""Keeps the voters of the group, as the log names them (Raft dissertation, §4).

A membership entry names all voters; the group changes by one peer at a time. The newest membership entry in
the log counts as soon as it is written, committed or not; truncating it restores the one before. Majorities
of two memberships that differ by one peer have a peer in common. So a change can neither give one term two
leaders nor hide a committed entry, provided that the next change waits until this one is committed and its
leader has committed an entry of its own term. `membership_change` ensures both.
"""

from __future__ import annotations

from collections.abc import Iterable

from epochmq_protocol.dledger import MEMBERS_CHANNEL, DLedgerEntry, decode_members

MEMBERS_MAX = 9
"""More voters make a group slower and no safer."""


class Membership:
    """The voters, and the earlier memberships that a truncation could restore."""

    def __init__(self, initial: Iterable[str], snapshot: tuple[int, dict[str, str]] | None = None) -> None:
        """`initial`: the voters while the log names none. `snapshot`: the index of a snapshot, and the voters
        that it names."""
        self._history: list[tuple[int, dict[str, str] | None]] = [(-1, None)]
        self._initial = tuple(initial)
        self.voters = self._initial
        if snapshot is not None:
            self._history = [snapshot]
            self._update_voters()

    def _update_voters(self) -> None:
        addresses = self.addresses
        self.voters = tuple(sorted(addresses)) if addresses is not None else self._initial

    @property
    def index(self) -> int:
        """The index of the entry that names the voters, -1 without one."""
        return self._history[-1][0]

    @property
    def addresses(self) -> dict[str, str] | None:
        """The voters' addresses by id, None while the log names no voters."""
        return self._history[-1][1]

    def addresses_at(self, index: int) -> dict[str, str] | None:
        """The voters' addresses as of `index`, which must not lie before the entries that were forgotten."""
        return next((addresses for at, addresses in reversed(self._history) if at <= index), None)

    def add_entries(self, entries: Iterable[DLedgerEntry]) -> bool:
        """Records the membership entries among the written ones. Returns whether the voters changed."""
        found = [(one.index, decode_members(one)) for one in entries if one.channel == MEMBERS_CHANNEL]
        self._history.extend(found)
        self._update_voters()
        return bool(found)

    def truncate(self, end_index: int) -> bool:
        """Drops memberships of entries after `end_index`. Returns whether the voters changed."""
        kept = [one for one in self._history if one[0] <= end_index] or self._history[:1]
        changed = len(kept) < len(self._history)
        self._history = kept
        self._update_voters()
        return changed

    def reset(self, index: int, addresses: dict[str, str] | None) -> None:
        """Replaces all memberships by that of a snapshot, which ends at `index`."""
        self._history = [(index if addresses is not None else -1, addresses)]
        self._update_voters()

    def forget_before(self, committed_index: int) -> None:
        """Forgets memberships that a truncation can no longer restore."""
        while len(self._history) > 1 and self._history[1][0] <= committed_index:
            del self._history[0]
