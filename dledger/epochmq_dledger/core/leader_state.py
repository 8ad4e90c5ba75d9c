"""Holds what the parts of one term's leadership share: the progress of its peers, the proposals that wait for
a quorum, and the committed index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.peer_progress import PeerProgress
from epochmq_dledger.core.raft_log import LogFullError, make_entry
from epochmq_dledger.core.types import OperationFailed, ProposalCommitted, RaftRole
from epochmq_protocol.dledger import DLedgerEntry, DLedgerResponseCode
from epochmq_protocol.errors import InvariantError


class PendingProposal(msgspec.Struct, frozen=True):
    """A proposal that waits until its last entry is committed."""

    token: int
    index: int
    pos: int
    deadline_ms: int


class LeaderState:
    """The state of one term's leadership."""

    def __init__(self, member: MemberState, now_ms: int) -> None:
        self.member = member
        self.term = member.term
        self.peers = {name: PeerProgress(name) for name in member.other_voters}
        """All peers that receive the log. Invariants: this peer is not among them, for its own share of a
        quorum is `MemberState.synced_index`; those that count (`is_voter`) are exactly the other voters, so
        that no learner or removed peer is part of a quorum."""
        self.contact_ms = now_ms
        """The latest moment at which a quorum certainly followed this leader. The election counts as one."""
        self.next_heartbeat_ms = now_ms
        self.pending: deque[PendingProposal] = deque()
        """Invariants: indexes rise strictly; the first one is not committed, the last one is in the log."""
        self.transferring_until_ms: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether this peer no longer leads this term."""
        return self.member.role is not RaftRole.LEADER or self.member.term != self.term

    # Peers --------------------------------------------------------------------------------------------------

    def voters(self) -> list[PeerProgress]:
        """The other voters."""
        return [peer for peer in self.peers.values() if peer.is_voter]

    def removed_peers(self) -> list[PeerProgress]:
        """Removed peers that still receive the log."""
        learner = self.member.learner
        return [peer for peer in self.peers.values() if not peer.is_voter and peer.name != learner]

    def add_peer(self, name: str, *, is_voter: bool) -> None:
        """Starts to send heartbeats and the log to a peer."""
        if name not in self.peers:
            self.peers[name] = PeerProgress(name, is_voter=is_voter)
        self.peers[name].remove_at_ms = None

    def update_contact(self) -> None:
        """Computes when a quorum followed this leader last."""
        counted = (-1 if p.rejoin_incarnation is not None else p.contact_ms for p in self.voters())
        times = sorted(counted, reverse=True)
        if self.member.quorum > 1:
            self.contact_ms = max(self.contact_ms, times[self.member.quorum - 2])

    # The log ------------------------------------------------------------------------------------------------

    def append(self, bodies: Sequence[bytes], channel: int = 0) -> int | None:
        """Appends one entry for each body. Returns the index of the first one, or None if the disk is
        full."""
        member = self.member
        first_index = member.log.end_index + 1
        try:
            if member.body_log is None:
                member.append(self._entries_of(bodies, channel))
            else:
                member.append_bodies(bodies, channel)
        except LogFullError:
            return None
        return first_index

    def _entries_of(self, bodies: Sequence[bytes], channel: int) -> list[DLedgerEntry]:
        log, file_size = self.member.log, self.member.settings.file_size
        end_pos = log.end_pos
        entries: list[DLedgerEntry] = []
        for index, body in enumerate(bodies, log.end_index + 1):
            entry = make_entry(index, self.term, body, end_pos, file_size, channel)
            end_pos = entry.pos + entry.size
            entries.append(entry)
        return entries

    def propose_on_channel(self, token: int, body: bytes, channel: int, now_ms: int) -> bool:
        """Appends one entry of a channel as a proposal. If the disk is full, the proposal fails: False."""
        index = self.append((body,), channel)
        if index is None:
            self.member.emit_after_erasure(OperationFailed(token, DLedgerResponseCode.DISK_FULL))
            return False
        deadline_ms = now_ms + self.member.settings.ack_wait_max_ms
        self.pending.append(PendingProposal(token, index, self.member.log.position(index), deadline_ms))
        return True

    def advance_commit(self) -> None:
        """Commits entries that a quorum holds durably, if they are of this term (Raft §5.4.2; Java lacks the
        last condition)."""
        member = self.member
        counted = (-1 if p.rejoin_incarnation is not None else p.match_index for p in self.voters())
        matches = sorted([member.synced_index, *counted], reverse=True)
        index = matches[member.quorum - 1]
        if index > member.committed_index and member.log.term(index) == self.term:
            member.commit(index)
        while self.pending and self.pending[0].index <= member.committed_index:
            pending = self.pending.popleft()
            member.emit(ProposalCommitted(pending.token, pending.index, pending.pos, self.term))

    # Invariants ---------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises InvariantError if the state contradicts the rules at its fields. O(peers)."""
        member, end_index = self.member, self.member.log.end_index
        if self.is_over:
            raise InvariantError(
                "LeaderState",
                "a leadership lasts as long as its term and role",
                term=self.term,
                member_term=member.term,
                role=member.role.value,
            )
        voters, self_id, counted = member.voters, member.settings.self_id, 0
        for name, peer in self.peers.items():
            peer.check_invariants(end_index)
            counted += peer.is_voter
            if peer.is_voter is not (name in voters) or name == self_id:
                raise InvariantError(
                    "LeaderState",
                    "the peers that count are the other voters",
                    peer=name,
                    is_voter=peer.is_voter,
                    voters=voters,
                )
        if counted != len(voters) - (self_id in voters):
            raise InvariantError(
                "LeaderState",
                "every other voter has a progress",
                peers=sorted(self.peers),
                voters=voters,
            )
        pending = self.pending
        if pending and not member.committed_index < pending[0].index <= pending[-1].index <= end_index:
            raise InvariantError(
                "LeaderState",
                "committed_index < first pending <= last pending <= end of the log",
                committed_index=member.committed_index,
                first=pending[0].index,
                last=pending[-1].index,
                end_index=end_index,
            )
