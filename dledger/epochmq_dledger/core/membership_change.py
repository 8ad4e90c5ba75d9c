"""Changes the voters of a group, one peer at a time (Raft dissertation, §4).

    add:     unknown ──> learner (receives the log, does not vote) ──> membership entry ──> voter
    remove:  voter ──> membership entry ──> receives the log a little longer, to learn of it ──> unknown

The leader catches a learner up in rounds: it sends what the log holds when a round starts, and what was added
meanwhile in the next round. A learner becomes a voter after a round that took no longer than the election
timeout: from then on it can keep up like any voter. A leader does not remove itself; it must transfer its
leadership first.
"""

from __future__ import annotations

import msgspec

from epochmq_dledger.core.leader_state import LeaderState
from epochmq_dledger.core.peer_progress import PeerProgress
from epochmq_dledger.core.types import ChangeMembers, MembersChanged, OperationFailed, ProposalCommitted
from epochmq_protocol.dledger import (
    FEATURE_BLOCK_MEMBERS,
    FEATURE_MEMBERS,
    MEMBERS_CHANNEL,
    MEMBERS_MAX,
    DLedgerResponseCode,
)
from epochmq_protocol.errors import InvariantError


class LearnerCatchUp(msgspec.Struct):
    """The catch-up of a learner. `target_index`: the end of the log when the round started at `round_ms`.
    `progress`: the learner's last known progress."""

    event: ChangeMembers
    target_index: int
    round_ms: int
    deadline_ms: int
    rounds: int = 1
    progress: tuple[int, int] = (-1, 0)


class MembershipChange:
    """The membership changes of one leadership."""

    def __init__(self, leader: LeaderState) -> None:
        self.leader = leader
        self.member = leader.member
        self.catching_up: LearnerCatchUp | None = None
        """Invariant: names `MemberState.learner`, which the leader sends the log; None exactly while there is
        none. So a group changes by one peer at a time."""

    def request(self, event: ChangeMembers, now_ms: int) -> None:
        """Starts a change. A change that is already in effect succeeds at once."""
        member = self.member
        code = self._rejection_code(event)
        present = event.addresses.get(event.peer) if event.peer in member.voters else None
        if code is not None:
            member.emit(OperationFailed(event.token, code))
        elif event.address == present:
            member.emit(ProposalCommitted(event.token, member.membership.index, -1, self.leader.term))
        elif event.address is None or present is not None:
            self._append_membership(event, now_ms)
        else:
            wait_ms = member.settings.catch_up_wait_max_ms
            self.catching_up = LearnerCatchUp(event, member.log.end_index, now_ms, now_ms + wait_ms)
            member.learner = event.peer
            member.emit(MembersChanged({event.peer: event.address}))
            self.leader.peers.pop(event.peer, None)  # it may have been removed, and its directory cleared
            self.leader.add_peer(event.peer, is_voter=False)
            self.leader.next_heartbeat_ms = now_ms

    def _rejection_code(self, event: ChangeMembers) -> DLedgerResponseCode | None:
        member, code = self.member, DLedgerResponseCode
        if self.leader.transferring_until_ms is not None:
            return code.LEADER_TRANSFERRING
        if self.catching_up is not None or member.membership.index > member.committed_index:
            return code.REPEATED_REQUEST
        if member.log.term(member.committed_index) != self.leader.term:
            return code.LEADER_NOT_READY
        java_voters = self._java_voters()
        if java_voters is None:
            return code.LEADER_NOT_READY
        if java_voters:
            return code.UNSUPPORTED
        if event.peer == member.settings.self_id and event.address is None:
            return code.UNEXPECTED_MEMBER
        is_new = event.address is not None and event.peer not in member.voters
        if is_new and len(member.voters) >= MEMBERS_MAX:
            return code.UNEXPECTED_ARGUMENT
        if any(peer not in event.addresses for peer in member.voters):
            return code.UNEXPECTED_ARGUMENT
        return None

    def _java_voters(self) -> list[str] | None:
        """The voters that are known to be DLedger's; None before a quorum is known to be EpochMQ's. (A dead
        voter may never have reported what it supports.)"""
        member = self.member
        known = {peer: member.features[peer] for peer in member.other_voters if peer in member.features}
        found = [peer for peer, features in known.items() if not features & self._required_feature]
        if member.membership.addresses is not None and member.body_log is None:
            return []
        is_known = member.membership.addresses is not None or 1 + len(known) >= member.quorum
        return found if found or is_known else None

    @property
    def _required_feature(self) -> int:
        return FEATURE_MEMBERS if self.member.body_log is None else FEATURE_BLOCK_MEMBERS

    def _append_membership(self, event: ChangeMembers, now_ms: int) -> None:
        """Appends the membership entry, which counts at once."""
        member, leader = self.member, self.leader
        peers = {peer: event.addresses[peer] for peer in member.voters}
        if event.address is None:
            del peers[event.peer]
        else:
            peers[event.peer] = event.address
        if not leader.propose_on_channel(event.token, member.encode_members(peers), MEMBERS_CHANNEL, now_ms):
            return
        for name in member.other_voters:
            leader.add_peer(name, is_voter=True)
        for peer in leader.peers.values():
            peer.is_voter = peer.name in member.voters
        leader.update_contact()
        leader.advance_commit()  # other voters count from here on

    # Time ---------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Does what time or the progress of a learner makes possible."""
        if self.catching_up is not None:
            self._advance_catch_up(self.catching_up, now_ms)
        settings = self.member.settings
        is_committed = self.member.membership.index <= self.member.committed_index
        for peer in self.leader.removed_peers():
            if peer.remove_at_ms is None and is_committed:
                peer.remove_at_ms = now_ms + settings.election_timeout_ms + settings.commit_push_interval_ms
            elif peer.remove_at_ms is not None and now_ms >= peer.remove_at_ms:
                del self.leader.peers[peer.name]

    def next_deadline_ms(self) -> int | None:
        """When the change acts next if no peer responds until then."""
        moments = [peer.remove_at_ms for peer in self.leader.removed_peers() if peer.remove_at_ms is not None]
        if self.catching_up is not None:
            moments.append(self.catching_up.deadline_ms + 1)
        return min(moments, default=None)

    def _advance_catch_up(self, catch_up: LearnerCatchUp, now_ms: int) -> None:
        member, settings = self.member, self.member.settings
        peer = self.leader.peers[catch_up.event.peer]
        features = member.features.get(peer.name)
        if features is not None and not features & self._required_feature:
            self._drop_learner(DLedgerResponseCode.UNSUPPORTED)
            return
        progress = (peer.match_index, peer.snapshot_bytes_sent)
        if progress != catch_up.progress:
            catch_up.progress, catch_up.deadline_ms = progress, now_ms + settings.catch_up_wait_max_ms
        while peer.match_index >= catch_up.target_index:
            if now_ms - catch_up.round_ms <= settings.election_timeout_ms:
                self._add_voter(catch_up, peer, now_ms)
                return
            if catch_up.rounds >= settings.catch_up_rounds_max:
                self._drop_learner(DLedgerResponseCode.FALL_BEHIND_TOO_MUCH)
                return
            catch_up.rounds += 1
            catch_up.target_index, catch_up.round_ms = member.log.end_index, now_ms
        if now_ms > catch_up.deadline_ms:
            is_silent = peer.heartbeat_round == 0
            code = DLedgerResponseCode
            self._drop_learner(code.NETWORK_ERROR if is_silent else code.FALL_BEHIND_TOO_MUCH)

    def _add_voter(self, catch_up: LearnerCatchUp, peer: PeerProgress, now_ms: int) -> None:
        self.catching_up = None
        self._append_membership(catch_up.event, now_ms)
        self.member.learner = None
        if not peer.is_voter:
            del self.leader.peers[peer.name]

    def _drop_learner(self, code: DLedgerResponseCode) -> None:
        """Drops the learner, and fails the change."""
        assert self.catching_up is not None
        event, self.catching_up = self.catching_up.event, None
        self.member.learner = None
        self.member.features.pop(event.peer, None)
        self.leader.peers.pop(event.peer, None)
        self.member.emit(OperationFailed(event.token, code))

    def abort(self) -> None:
        """Fails a pending change: the leadership is over."""
        if self.catching_up is not None:
            self._drop_learner(DLedgerResponseCode.NOT_LEADER)

    def check_invariants(self) -> None:
        """Raises InvariantError if the change contradicts the rule at `catching_up`. O(1)."""
        learner = self.catching_up.event.peer if self.catching_up is not None else None
        if learner != self.member.learner or (learner is not None and learner not in self.leader.peers):
            raise InvariantError(
                "MembershipChange",
                "the peer that catches up is the learner, and receives the log",
                catching_up=learner,
                learner=self.member.learner,
                peers=sorted(self.leader.peers),
            )
