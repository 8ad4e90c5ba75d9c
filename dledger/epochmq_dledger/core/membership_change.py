"""How a leader changes who belongs to the group: one peer at a time (Raft dissertation, §4).

    add:     unknown ──> catching up (sent everything, counts for nothing) ──> membership entry ──> voter
    remove:  voter ──> membership entry ──> sent the log a little longer, so that it knows ──> unknown

A new peer is caught up in rounds: what the log has, then what came meanwhile. It becomes a voter after a
round that took no longer than an election would wait: from there on the group can do with it what it can do
with any voter. A leader does not remove itself; it is asked to hand over before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from epochmq_dledger.core.membership import MEMBERS_MAX
from epochmq_dledger.core.types import ChangeMembers, MembersChanged, OperationFailed, ProposalCommitted
from epochmq_protocol.dledger import (
    FEATURE_MEMBERS,
    MEMBERS_CHANNEL,
    DLedgerResponseCode,
    encode_members,
)

if TYPE_CHECKING:
    from epochmq_dledger.core.leader import Leader
    from epochmq_dledger.core.peer_progress import PeerProgress


class LearnerCatchUp(msgspec.Struct):
    """A peer that is being added. `target`: what it must have at the end of the round that began at
    `round_ms`. `progress` is what was last seen of it."""

    event: ChangeMembers
    target: int
    round_ms: int
    deadline_ms: int
    rounds: int = 1
    progress: tuple[int, int] = (-1, 0)


class MembershipChange:
    """One leadership's changes of the membership."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.member = leader.member
        self.catching_up: LearnerCatchUp | None = None

    def request(self, event: ChangeMembers, now_ms: int) -> None:
        """Begins a change. What is so already is answered at once."""
        member = self.member
        code = self._refusal(event)
        present = event.addresses.get(event.peer) if event.peer in member.voters else None
        if code is not None:
            member.emit(OperationFailed(event.token, code))
        elif event.address == present:
            member.emit(ProposalCommitted(event.token, member.membership.index, -1, self.leader.term))
        elif event.address is None or present is not None:
            self._write(event, now_ms)
        else:
            wait_ms = member.settings.catch_up_wait_max_ms
            self.catching_up = LearnerCatchUp(event, member.log.end_index, now_ms, now_ms + wait_ms)
            member.learner = event.peer
            member.emit(MembersChanged({event.peer: event.address}))
            self.leader.peers.pop(event.peer, None)  # removed lately; its folder may have been cleared since
            self.leader.add_peer(event.peer, is_voter=False)
            self.leader.next_heartbeat_ms = now_ms

    def _refusal(self, event: ChangeMembers) -> DLedgerResponseCode | None:
        member, code = self.member, DLedgerResponseCode
        if self.leader.transferring_until_ms is not None:
            return code.LEADER_TRANSFERRING
        if self.catching_up is not None or member.membership.index > member.committed_index:
            return code.REPEATED_REQUEST
        if member.log.term(member.committed_index) != self.leader.term:
            return code.LEADER_NOT_READY
        strangers = self._strangers()
        if strangers is None:
            return code.LEADER_NOT_READY
        if strangers:
            return code.UNSUPPORTED
        if event.peer == member.settings.self_id and event.address is None:
            return code.UNEXPECTED_MEMBER
        is_new = event.address is not None and event.peer not in member.voters
        if is_new and len(member.voters) >= MEMBERS_MAX:
            return code.UNEXPECTED_ARGUMENT
        if any(peer not in event.addresses for peer in member.voters):
            return code.UNEXPECTED_ARGUMENT
        return None

    def _strangers(self) -> list[str] | None:
        """The voters that are known to be DLedger's; None before a quorum is known to be ours. (A dead one
        may never have said what it is.)"""
        member = self.member
        if member.membership.addresses is not None:
            return []
        said = {peer: member.features[peer] for peer in member.others if peer in member.features}
        found = [peer for peer, features in said.items() if not features & FEATURE_MEMBERS]
        return found if found or 1 + len(said) >= member.quorum else None

    def _write(self, event: ChangeMembers, now_ms: int) -> None:
        """The membership entry, which counts at once."""
        member, leader = self.member, self.leader
        peers = {peer: event.addresses[peer] for peer in member.voters}
        if event.address is None:
            del peers[event.peer]
        else:
            peers[event.peer] = event.address
        if not leader.propose_on_channel(event.token, encode_members(peers), MEMBERS_CHANNEL, now_ms):
            return
        for name in member.others:
            leader.add_peer(name, is_voter=True)
        for peer in leader.peers.values():
            peer.is_voter = peer.name in member.voters
        leader.update_contact()
        leader.advance_commit()  # other peers count from here on

    # Time ---------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """What time, or progress, made possible."""
        if self.catching_up is not None:
            self._catch_up(self.catching_up, now_ms)
        settings = self.member.settings
        is_committed = self.member.membership.index <= self.member.committed_index
        for peer in self.leader.removed_peers():
            if peer.remove_at_ms is None and is_committed:
                peer.remove_at_ms = now_ms + settings.election_timeout_ms + settings.commit_push_interval_ms
            elif peer.remove_at_ms is not None and now_ms >= peer.remove_at_ms:
                del self.leader.peers[peer.name]

    def next_deadline_ms(self) -> int | None:
        """When time alone makes something necessary."""
        moments = [peer.remove_at_ms for peer in self.leader.removed_peers() if peer.remove_at_ms is not None]
        if self.catching_up is not None:
            moments.append(self.catching_up.deadline_ms + 1)
        return min(moments, default=None)

    def _catch_up(self, one: LearnerCatchUp, now_ms: int) -> None:
        member, settings = self.member, self.member.settings
        peer = self.leader.peers[one.event.peer]
        said = member.features.get(peer.name)
        if said is not None and not said & FEATURE_MEMBERS:
            self._end(DLedgerResponseCode.UNSUPPORTED)
            return
        progress = (peer.match_index, peer.snapshot_bytes_sent)
        if progress != one.progress:
            one.progress, one.deadline_ms = progress, now_ms + settings.catch_up_wait_max_ms
        while peer.match_index >= one.target:
            if now_ms - one.round_ms <= settings.election_timeout_ms:
                self._admit(one, peer, now_ms)
                return
            if one.rounds >= settings.catch_up_rounds_max:
                self._end(DLedgerResponseCode.FALL_BEHIND_TOO_MUCH)
                return
            one.rounds, one.target, one.round_ms = one.rounds + 1, member.log.end_index, now_ms
        if now_ms > one.deadline_ms:
            silent = peer.heartbeat_round == 0
            code = DLedgerResponseCode
            self._end(code.NETWORK_ERROR if silent else code.FALL_BEHIND_TOO_MUCH)

    def _admit(self, one: LearnerCatchUp, peer: PeerProgress, now_ms: int) -> None:
        self.catching_up = None
        self._write(one.event, now_ms)
        self.member.learner = None
        if not peer.is_voter:
            del self.leader.peers[peer.name]

    def _end(self, code: DLedgerResponseCode) -> None:
        """Gives up on the peer that was to be added."""
        assert self.catching_up is not None
        event, self.catching_up = self.catching_up.event, None
        self.member.learner = None
        self.member.features.pop(event.peer, None)
        self.leader.peers.pop(event.peer, None)
        self.member.emit(OperationFailed(event.token, code))

    def abort(self) -> None:
        """The leadership is over."""
        if self.catching_up is not None:
            self._end(DLedgerResponseCode.NOT_LEADER)
