"""Keeps the voters of the group, as the log names them (Raft dissertation, §4).

A membership entry names all voters; the group changes by one peer at a time. The newest membership entry in
the log counts as soon as it is written, committed or not; truncating it restores the one before. Majorities
of two memberships that differ by one peer have a peer in common. So a change can neither give one term two
leaders nor hide a committed entry, provided that the next change waits until this one is committed and its
leader has committed an entry of its own term. `membership_change` ensures both.

A `BodyLog` is not read entry by entry at a start, and its first entries expire. So the peer saves its
memberships beside the log (`SaveMemberships`), before anything that follows from them leaves the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from epochmq_dledger.core.raft_log import BodyLog, RaftLog
from epochmq_dledger.core.types import SavedMembership
from epochmq_protocol.dledger import MEMBERS_CHANNEL, MEMBERS_MAX, DLedgerEntry, decode_members
from epochmq_protocol.errors import InvariantError, RemoteProtocolError

_NONE = SavedMembership(-1, -1, None)


def may_follow(before: dict[str, str], after: dict[str, str]) -> bool:
    """Whether the log of a correct group can name these voters in succession: they differ by at most one."""
    return len(before.keys() ^ after.keys()) <= 1


def check_succession(index: int, before: dict[str, str] | None, after: dict[str, str]) -> None:
    """RemoteProtocolError: these voters, named by the entry at `index`, cannot follow those before."""
    if before is not None and not may_follow(before, after):
        raise RemoteProtocolError(
            f"membership entry {index} names {sorted(after)} after {sorted(before)}, expected a change "
            "of one voter"
        )


class Membership:
    """The voters, and the earlier memberships that a truncation could restore."""

    def __init__(
        self,
        initial: Iterable[str],
        snapshot: tuple[int, dict[str, str]] | None = None,
        *,
        saved: Sequence[SavedMembership] = (),
        decode: Callable[[DLedgerEntry], dict[str, str]] = decode_members,
    ) -> None:
        """`initial`: the voters while the log names none. `snapshot`: the index of a snapshot, and the voters
        that it names. `saved`: the memberships that a block log had before (`recovered_memberships`).
        `decode` reads a membership entry."""
        self._decode = decode
        self._initial = tuple(initial)
        self._history = [_NONE]
        """The voters now, last, and before them those that a truncation could restore. Invariants: never
        empty; indexes rise strictly; two that the log names in succession differ by at most one voter, so
        that their majorities have a peer in common; no more than MEMBERS_MAX voters. (The settings may have
        changed since the log named voters first.)"""
        if snapshot is not None:
            self._history = [SavedMembership(snapshot[0], -1, snapshot[1])]
        elif saved:
            self._history = [*([] if saved[0].begins_log else [_NONE]), *saved]
        self._update_voters()

    def _update_voters(self) -> None:
        addresses = self.addresses
        self.voters = tuple(sorted(addresses)) if addresses is not None else self._initial

    @property
    def index(self) -> int:
        """The index of the entry that names the voters, -1 without one."""
        return self._history[-1].index

    @property
    def addresses(self) -> dict[str, str] | None:
        """The voters' addresses by id, None while the log names no voters."""
        return self._history[-1].peers

    @property
    def to_save(self) -> tuple[SavedMembership, ...]:
        """What a peer with a block log saves."""
        return tuple(one for one in self._history if one != _NONE)

    def addresses_at(self, index: int) -> dict[str, str] | None:
        """The voters' addresses as of `index`, which must not lie before the entries that were forgotten."""
        return next((one.peers for one in reversed(self._history) if one.index <= index), None)

    def add_entries(self, entries: Iterable[DLedgerEntry]) -> bool:
        """Records the membership entries among the written ones. Returns whether the voters changed."""
        found = [
            SavedMembership(one.index, one.term, self._decode(one))
            for one in entries
            if one.channel == MEMBERS_CHANNEL and one.index > self.index
        ]
        self._history.extend(found)
        self._update_voters()
        return bool(found)

    def truncate(self, end_index: int) -> bool:
        """Drops memberships of entries after `end_index`. Returns whether the voters changed."""
        kept = [one for one in self._history if one.index <= end_index] or self._history[:1]
        changed = len(kept) < len(self._history)
        self._history = kept
        self._update_voters()
        return changed

    def reset(self, index: int, addresses: dict[str, str] | None) -> None:
        """Replaces all memberships by that of a snapshot, which ends at `index`."""
        self._history = [SavedMembership(index, -1, addresses) if addresses is not None else _NONE]
        self._update_voters()

    def reset_to_entry(self, entry: DLedgerEntry, addresses: dict[str, str] | None) -> None:
        """Replaces all memberships by that of a block log which begins anew with this entry."""
        if addresses is not None or self._history != [_NONE]:
            self._history = [SavedMembership(entry.index, entry.term, addresses, begins_log=True)]
        self._update_voters()

    @property
    def begins_log(self) -> bool:
        """Whether the voters are those with which a block log begins anew. A crash may then have left the
        former log, which can end before their entry."""
        return self._history[-1].begins_log

    def check_invariants(self) -> None:
        """Raises InvariantError if the memberships contradict the rules at `_history`."""
        history = self._history
        if not history:
            raise InvariantError("Membership", "there is always a membership", history=history)
        if len(history) > 1:
            before = history[0]
            for one in history[1:]:
                if one.index <= before.index:
                    raise InvariantError(
                        "Membership",
                        "indexes of memberships rise strictly",
                        index=one.index,
                        before=before.index,
                    )
                old, new = before.peers, one.peers
                if old is not None and new is not None and not may_follow(old, new):
                    raise InvariantError(
                        "Membership",
                        "two memberships in succession differ by at most one voter",
                        before=sorted(old),
                        after=sorted(new),
                    )
                before = one
        addresses = history[-1].peers
        if addresses is not None and not 0 < len(addresses) <= MEMBERS_MAX:
            raise InvariantError(
                "Membership", f"a group has 1 to {MEMBERS_MAX} voters", voters=sorted(addresses)
            )

    def forget_before(self, committed_index: int) -> None:
        """Forgets memberships that a truncation can no longer restore."""
        while len(self._history) > 1 and self._history[1].index <= committed_index:
            del self._history[0]


def recovered_memberships(
    saved: Sequence[SavedMembership], log: RaftLog, blocks: BodyLog
) -> list[SavedMembership]:
    """The memberships of a block log after a start, in the order of their entries.

    A saved one counts if its entry has expired, or is in the log: entries of one index and term are equal.
    The one with which a log begins anew always counts. Its entry is committed, so that these voters are the
    group's, even if a crash has left the former log. The membership entries of the last files count in any
    case, for a crash may have prevented saving them."""
    base = next((at for at in reversed(range(len(saved))) if saved[at].begins_log), 0)
    found = {
        one.index: one
        for one in saved[base:]
        if one.begins_log or one.index < log.begin_index or log.term(one.index) == one.term
    }
    first = saved[base].index if saved and saved[base].begins_log else -1
    for index in sorted(set(blocks.recovered_members)):
        entry = log.entry(index)
        if entry is not None and entry.channel == MEMBERS_CHANNEL and index > first:
            found[index] = SavedMembership(index, entry.term, blocks.members_of(entry.body))
    return [found[index] for index in sorted(found)]
