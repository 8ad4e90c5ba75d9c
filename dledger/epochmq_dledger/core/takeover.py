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
        may_lead = member.rejoin is None and member.role is not RaftRole.LEADER
        if self.pending is not None or request.term != member.term or not may_lead:
            code = DLedgerResponseCode.EXPIRED_TERM
            if request.term == member.term:
                code = DLedgerResponseCode.REPEATED_REQUEST
            member.reply(call, request, LeadershipTransferResponse(term=member.term, code=code))
            return
        self.pending = LeadershipTakeover(call, request, now_ms + member.settings.transfer_wait_max_ms)
        self.advance(now_ms)

    def advance(self, now_ms: int) -> None:
        """Starts the election once the log is complete. Responds once this peer leads or cannot lead."""
        member, takeover = self.member, self.pending
        if takeover is None:
            return
        if member.role is RaftRole.LEADER:
            self._end(takeover, DLedgerResponseCode.SUCCESS)
        elif now_ms > takeover.deadline_ms or member.term > takeover.request.term + 1:
            self._end(takeover, DLedgerResponseCode.TAKE_LEADERSHIP_FAILED)
        elif (
            member.term == takeover.request.term
            and member.log.end_index >= takeover.index
            and member.is_voter
        ):
            member.become(RaftRole.CANDIDATE, None)
            # Without a pre-vote: voters reject it while the old leader lives.
            self.election.request_votes_in_new_term(now_ms)

    def _end(self, takeover: LeadershipTakeover, code: DLedgerResponseCode) -> None:
        self.pending = None
        response = LeadershipTransferResponse(term=self.member.term, code=code)
        self.member.reply(takeover.call, takeover.request, response)
