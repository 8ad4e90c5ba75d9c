"""Transfers a leadership to another peer (`DLedgerServer.handleLeadershipTransfer`), on request or
to a preferred leader (`DLedgerServer.checkPreferredLeader`).

A leader whose group prefers others looks for one of them every second: a voter that responds to heartbeats
and whose log is nearly complete. DLedger tries again a second after a transfer that failed, and rejects
appends meanwhile. So a preferred peer that cannot win keeps the group from working; here the leader pauses
for ten times as long. It also needs to know how far the preferred peer's log equals its own: DLedger assumes
an empty log before it knows, and transfers to it while fewer than a thousand entries exist.
"""

from __future__ import annotations

from epochmq_dledger.core.election import Election
from epochmq_dledger.core.leader import Leader
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.peer_progress import PeerProgress
from epochmq_dledger.core.types import LeadershipTransferred, OperationFailed, SendRequest
from epochmq_protocol.dledger import (
    DLedgerResponseCode,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
)

PAUSE_INTERVALS = 10
"""After a failed transfer to a preferred leader, this many intervals pass before the next one."""


class TransferHandler:
    """The part of a leader that transfers its leadership."""

    def __init__(self, member: MemberState, election: Election) -> None:
        self.member = member
        self.election = election
        self._pending: tuple[int | None, int] | None = None
        """The token of the caller, None for a preferred leader; and the context of the request."""
        self._next_check_ms: int | None = None
        """When to look for a preferred leader next; None while this peer does not lead."""

    def request(self, leader: Leader | None, to: str, token: int | None, now_ms: int) -> None:
        """Rejects proposals from now on, and asks the transferee to take over once its log is complete."""
        member = self.member
        code = self._rejection_code(leader, to)
        if leader is None or code is not None:
            self._fail(token, code or DLedgerResponseCode.NOT_LEADER)
            return
        leader.transferring_until_ms = now_ms + 2 * member.settings.transfer_wait_max_ms
        request = LeadershipTransferRequest(
            transfer_id=member.settings.self_id,
            transferee_id=to,
            take_leadership_ledger_index=member.log.end_index,
        )
        member.fill_request(request, to)
        self._pending = token, member.next_request_number()
        member.emit(SendRequest(to, self._pending[1], request))

    def _rejection_code(self, leader: Leader | None, to: str) -> DLedgerResponseCode | None:
        if leader is None:
            return DLedgerResponseCode.NOT_LEADER
        if to not in self.member.other_voters:
            return DLedgerResponseCode.UNKNOWN_MEMBER
        if leader.transferring_until_ms is not None or self._pending is not None:
            return DLedgerResponseCode.LEADER_TRANSFERRING
        if self._lag(leader.peers[to]) >= self.member.settings.transfer_lag_max:
            return DLedgerResponseCode.FALL_BEHIND_TOO_MUCH
        return None

    def _lag(self, peer: PeerProgress) -> int:
        return self.member.log.end_index - peer.match_index

    def _fail(self, token: int | None, code: DLedgerResponseCode) -> None:
        if token is not None:
            self.member.emit(OperationFailed(token, code))

    def on_response(
        self, leader: Leader | None, context: int, response: LeadershipTransferResponse | None, now_ms: int
    ) -> None:
        """Handles the response of the transferee, None without one."""
        if self._pending is None or self._pending[1] != context:
            return
        token, _ = self._pending
        self._pending = None
        if response is not None and response.code == DLedgerResponseCode.SUCCESS:
            if token is not None:
                self.member.emit(LeadershipTransferred(token))
            return
        if leader is not None:
            leader.transferring_until_ms = None
            if self._next_check_ms is not None:
                pause_ms = PAUSE_INTERVALS * self.member.settings.preferred_check_interval_ms
                self._next_check_ms = now_ms + pause_ms
        self._fail(token, DLedgerResponseCode.TAKE_LEADERSHIP_FAILED)

    def on_leadership_over(self, now_ms: int) -> None:
        """This peer no longer leads. If it has asked another one to take over, it waits longer than usual
        before it stands itself: a transferee of DLedger moves to the next term first, and stands later."""
        self._next_check_ms = None
        if self._pending is None:
            return
        token, _ = self._pending
        self._pending = None
        if token is not None:
            self.member.emit(LeadershipTransferred(token))
        self.election.postpone_candidacy(now_ms)

    # Preferred leaders --------------------------------------------------------------------------------------

    def advance(self, leader: Leader, now_ms: int) -> None:
        """Transfers the leadership to a preferred leader, if there is one that can take over."""
        member, settings = self.member, self.member.settings
        if not settings.preferred_leaders or settings.self_id in settings.preferred_leaders:
            return
        if self._next_check_ms is not None and now_ms < self._next_check_ms:
            return
        is_first = self._next_check_ms is None
        self._next_check_ms = now_ms + settings.preferred_check_interval_ms
        has_committed = member.log.term(member.committed_index) == leader.term
        if is_first or not has_committed or leader.transferring_until_ms is not None:
            return
        if leader.membership_change.catching_up is not None:
            return
        able = [
            peer
            for peer in leader.voters()
            if peer.name in settings.preferred_leaders
            and peer.alive
            and peer.rejoin_incarnation is None
            and peer.match_index >= 0
            and self._lag(peer) < settings.transfer_lag_max
        ]
        if able:
            self.request(leader, min(able, key=self._lag).name, None, now_ms)

    def next_deadline_ms(self) -> int | None:
        """When this leader looks for a preferred leader next."""
        return self._next_check_ms
