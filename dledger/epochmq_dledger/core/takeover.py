"""Takes over a leadership that the leader transfers to this peer
(`DLedgerLeaderElector.handleTakeLeadership`)."""

from __future__ import annotations

from epochmq_dledger.core.election import Election
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.types import RaftRole
from epochmq_protocol.dledger import (
    DLedgerResponseCode,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
)


class LeadershipTakeover:
    """A leader's request that this peer takes over the leadership, once its log reaches `index`."""

    def __init__(self, call: int, request: LeadershipTransferRequest, deadline_ms: int) -> None:
        self.call = call
        self.request = request
        self.index = request.take_leadership_ledger_index
        self.deadline_ms = deadline_ms


class TakeoverHandler:
    """The part of a peer to which a leader transfers its leadership."""

    def __init__(self, member: MemberState, election: Election) -> None:
        self.member = member
        self.election = election
        self.pending: LeadershipTakeover | None = None

    def on_transfer(self, call: int, request: LeadershipTransferRequest, now_ms: int) -> None:
        """Handles a leader's request to take over."""
        member = self.member
        code = self._rejection_code(request)
        if code is not None:
            member.reply(call, request, LeadershipTransferResponse(term=member.term, code=code))
            return
        self.pending = LeadershipTakeover(call, request, now_ms + member.settings.transfer_wait_max_ms)
        self.advance(now_ms)

    def _rejection_code(self, request: LeadershipTransferRequest) -> DLedgerResponseCode | None:
        member = self.member
        if request.transferee_id != member.settings.self_id:
            return DLedgerResponseCode.UNEXPECTED_ARGUMENT
        if member.role is RaftRole.LEADER or request.transfer_id != member.leader:
            return DLedgerResponseCode.INCONSISTENT_LEADER
        if request.term != member.term:
            return DLedgerResponseCode.INCONSISTENT_TERM
        if self.pending is not None:
            return DLedgerResponseCode.REPEATED_REQUEST
        return None if member.rejoin is None else DLedgerResponseCode.TAKE_LEADERSHIP_FAILED

    def advance(self, now_ms: int) -> None:
        """Starts the election once the log is complete. Responds once this peer leads or cannot lead."""
        member, takeover = self.member, self.pending
        if takeover is None:
            return
        if member.role is RaftRole.LEADER:
            self._end(takeover, DLedgerResponseCode.SUCCESS)
        elif member.term > takeover.request.term + 1:
            self._end(takeover, DLedgerResponseCode.EXPIRED_TERM)
        elif now_ms > takeover.deadline_ms or self._follows_another(takeover):
            self._end(takeover, DLedgerResponseCode.TAKE_LEADERSHIP_FAILED)
        elif (
            member.term == takeover.request.term
            and member.log.end_index >= takeover.index
            and member.is_voter
        ):
            member.become(RaftRole.CANDIDATE, None)
            # Without a pre-vote: voters reject it while the old leader lives.
            self.election.request_votes_in_new_term(now_ms)

    def _follows_another(self, takeover: LeadershipTakeover) -> bool:
        """Whether the term after the transferring leader's has a leader."""
        member = self.member
        return member.role is RaftRole.FOLLOWER and member.term == takeover.request.term + 1

    def _end(self, takeover: LeadershipTakeover, code: DLedgerResponseCode) -> None:
        self.pending = None
        response = LeadershipTransferResponse(term=self.member.term, code=code)
        self.member.reply(takeover.call, takeover.request, response)
