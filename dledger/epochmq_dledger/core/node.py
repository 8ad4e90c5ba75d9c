"""Passes each input of a peer to the part of the core that handles it: the entry point of the core."""

from __future__ import annotations

from collections.abc import Sequence

from epochmq_dledger.core.election import Election
from epochmq_dledger.core.follower import Follower
from epochmq_dledger.core.leader import Leader
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.message_bounds import find_fault
from epochmq_dledger.core.peer_progress import InstallSnapshotState
from epochmq_dledger.core.raft_log import BodyLog, RaftLog, check_terms
from epochmq_dledger.core.rejoin import Rejoin
from epochmq_dledger.core.snapshot_receiver import SnapshotReceiver
from epochmq_dledger.core.takeover import TakeoverHandler
from epochmq_dledger.core.transfer import TransferHandler
from epochmq_dledger.core.types import (
    CallCompleted,
    ChangeMembers,
    ErasureCompleted,
    Jitter,
    LeaderDisconnected,
    LogSynced,
    OperationFailed,
    Proposal,
    ProposalBatch,
    RaftEffect,
    RaftInput,
    RaftRole,
    RaftSettings,
    ReadIndex,
    RequestReceived,
    SavedMembership,
    Snapshot,
    SnapshotInstalled,
    SnapshotRejected,
    SnapshotSaved,
    Tick,
    TransferLeadership,
)
from epochmq_protocol.dledger import (
    FEATURE_SNAPSHOT,
    MEMBERS_CHANNEL,
    DLedgerEntry,
    DLedgerResponseCode,
    HeartBeatRequest,
    HeartBeatResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    PushEntryRequest,
    PushEntryResponse,
    RequestOrResponse,
    VoteRequest,
    VoteResponse,
)
from epochmq_protocol.errors import InvariantError

RECOVERED_TERMS_CHECKED = 256
"""How many entries at the end of a recovered log must have terms that do not fall. Those before them are the
log store's concern, and were checked when they were the last ones."""

_RESPONSES: dict[type[RequestOrResponse], type[RequestOrResponse]] = {
    HeartBeatRequest: HeartBeatResponse,
    VoteRequest: VoteResponse,
    PushEntryRequest: PushEntryResponse,
    LeadershipTransferRequest: LeadershipTransferResponse,
    InstallSnapshotRequest: InstallSnapshotResponse,
}


class RaftNode:
    """One peer of a DLedger group.

    The core writes `log` itself (see `core.raft_log`); all else leaves as effects. `term`, `voted_for`,
    `committed` and `snapshot` are what the driver saved before. The core takes `log` as durable: recovery
    syncs it first. With a snapshot, the log holds the snapshot's last entry. `memberships` are the log's
    membership entries after the snapshot; if None, the core reads the log for them. `rejoins`: the disk has
    lost entries that this peer had acknowledged; `vote_lost`: it may have lost votes, too;
    `is_new_directory`: it has lost everything, unless the group is new; `only_unflushed`: nothing else than
    what it had not flushed. `body_log`: the same log, if it takes a leader's entries as bodies. It has
    `saved_memberships` instead, which the driver saved before.
    """

    def __init__(
        self,
        settings: RaftSettings,
        log: RaftLog,
        jitter: Jitter,
        now_ms: int,
        *,
        term: int = 0,
        voted_for: str | None = None,
        committed: int = -1,
        snapshot: Snapshot | None = None,
        memberships: list[DLedgerEntry] | None = None,
        rejoins: bool = False,
        vote_lost: bool = False,
        is_new_directory: bool = False,
        only_unflushed: bool = False,
        body_log: BodyLog | None = None,
        saved_memberships: Sequence[SavedMembership] = (),
    ) -> None:
        if snapshot is not None:
            committed = max(committed, snapshot.index)
        if memberships is None:
            memberships = _membership_entries(log, snapshot) if body_log is None else []
        self.member = MemberState(
            settings,
            log,
            jitter,
            term,
            voted_for,
            committed,
            snapshot,
            memberships,
            body_log,
            saved_memberships,
        )
        if rejoins:
            self.member.rejoin = Rejoin(
                1 + int(jitter() * (1 << 53)),
                vote_lost=vote_lost,
                is_new_directory=is_new_directory,
                only_unflushed=only_unflushed,
            )
        self.election = Election(self.member, now_ms)
        self.follower = Follower(self.member, self.election)
        self.receiver = SnapshotReceiver(self.member, self.election, self.follower)
        self.takeover = TakeoverHandler(self.member, self.election)
        self.transfer = TransferHandler(self.member, self.election)
        self.leader: Leader | None = None
        """Invariant: set exactly while the role is LEADER."""
        self.check_invariants()
        check_terms(log, log.end_index - RECOVERED_TERMS_CHECKED)

    @property
    def role(self) -> RaftRole:
        """The role of this peer."""
        return self.member.role

    def may_compact(self) -> bool:
        """Whether a new snapshot may replace entries: every peer of the group supports snapshots, and the
        leader sends none at present, which it would have to restart."""
        member = self.member
        if self.leader is None:
            return member.leader is not None and bool(member.group_features & FEATURE_SNAPSHOT)
        sending = any(isinstance(peer.state, InstallSnapshotState) for peer in self.leader.peers.values())
        return member.all_support(FEATURE_SNAPSHOT) and not sending

    def step(self, event: RaftInput, now_ms: int) -> list[RaftEffect]:
        """Takes one input. `now_ms` never decreases. Returns effects to carry out in order."""
        match event:
            case Tick():
                pass
            case RequestReceived(call=call, request=request):
                self._handle_request(call, request, now_ms)
            case CallCompleted():
                self._complete_call(event, now_ms)
            case LeaderDisconnected(leader=leader):
                self.election.on_leader_disconnected(leader, now_ms)
            case LogSynced(index=index, term=term):
                self._on_synced(index, term)
            case ErasureCompleted():
                self._on_erasure_completed(now_ms)
            case Proposal():
                self._propose((event,), now_ms)
            case ProposalBatch(proposals=proposals):
                self._propose(proposals, now_ms)
            case ReadIndex(token=token):
                if self.leader is None:
                    self.member.emit(OperationFailed(token, DLedgerResponseCode.NOT_LEADER))
                else:
                    self.leader.read_index(token)
            case TransferLeadership(to=to, token=token):
                self.transfer.request(self.leader, to, token, now_ms)
            case ChangeMembers(token=token):
                if self.leader is None:
                    self.member.emit(OperationFailed(token, DLedgerResponseCode.NOT_LEADER))
                else:
                    self.leader.membership_change.request(event, now_ms)
            case SnapshotSaved(snapshot=snapshot):
                self.member.snapshot = snapshot
                self.member.membership.forget_before(snapshot.index)
                self.member.log.drop_before(snapshot.index)
            case SnapshotInstalled(snapshot=snapshot):
                self._on_installed(snapshot, now_ms)
            case SnapshotRejected(reason=reason):
                self.receiver.on_rejected(reason)
        self._advance(now_ms)
        effects, self.member.effects = self.member.effects, []
        return effects

    def next_deadline_ms(self) -> int:
        """The moment, on the clock of `step`, before which a Tick has no effect. Every step may change it."""
        election = self.election
        if self.leader is None:
            deadline_ms = election.next_deadline_ms()
        else:
            deadline_ms = self.leader.next_deadline_ms()
            check_ms = self.transfer.next_deadline_ms()
            if check_ms is not None:
                deadline_ms = min(deadline_ms, check_ms)
            if self.member.quorum > 1:
                deadline_ms = min(deadline_ms, self.leader.contact_ms + election.election_timeout_ms + 1)
        if self.takeover.pending is not None:
            deadline_ms = min(deadline_ms, self.takeover.pending.deadline_ms + 1)
        return deadline_ms

    def _advance(self, now_ms: int) -> None:
        """Does what time, or the input, makes necessary."""
        self.follower.advance_rejoin(now_ms)
        self._update_leadership(now_ms)
        self.takeover.advance(now_ms)
        if self.leader is None:
            self.election.on_timeout(now_ms)
            self._update_leadership(now_ms)
        if self.leader is not None:
            self.leader.advance(now_ms)
            self.transfer.advance(self.leader, now_ms)
            silence_ms = now_ms - self.leader.contact_ms
            if silence_ms > self.election.election_timeout_ms and self.member.quorum > 1:
                self.election.step_down(now_ms)
                self._update_leadership(now_ms)

    def _update_leadership(self, now_ms: int) -> None:
        if self.leader is not None and self.leader.is_over:
            self.leader.abort()
            self.leader = None
            self.transfer.on_leadership_over(now_ms)
        if self.leader is None and self.member.role is RaftRole.LEADER:
            self.leader = Leader(self.member, now_ms)
            self.check_invariants()

    def check_invariants(self) -> None:
        """Raises InvariantError if the state of any part contradicts the rules at its fields. O(voters): the
        core calls it at its start and when it begins to lead, a simulation after every step."""
        member, leader = self.member, self.leader
        member.check_invariants()
        self.election.check_invariants()
        self.follower.check_invariants()
        if (leader is not None) is not (member.role is RaftRole.LEADER):
            raise InvariantError(
                "RaftNode",
                "there is a leadership exactly while the role is LEADER",
                role=member.role.value,
                term=member.term,
            )
        if leader is not None:
            leader.check_invariants()

    def _propose(self, proposals: tuple[Proposal, ...], now_ms: int) -> None:
        if self.leader is not None:
            self.leader.propose(proposals, now_ms)
            return
        for proposal in proposals:
            self.member.emit(OperationFailed(proposal.token, DLedgerResponseCode.NOT_LEADER))

    # Requests of other peers --------------------------------------------------------------------------------

    def _handle_request(self, call: int, request: RequestOrResponse, now_ms: int) -> None:
        rejection = self._check_address(request)
        if rejection is not None:
            response = _RESPONSES[type(request)](code=rejection, term=self.member.term)
            self.member.reply(call, request, response)
            return
        fault = self._find_fault(request)
        if fault is not None:
            self.member.reject_message(f"{type(request).__name__} of {request.local_id!r:.100}", fault)
            code = DLedgerResponseCode.UNEXPECTED_ARGUMENT
            response = _RESPONSES[type(request)](code=code, term=self.member.term)
            self.member.reply(call, request, response)
            return
        self.member.learn_features(request.local_id, request)
        if not self.member.has_same_settings(request.local_id, request):
            code = DLedgerResponseCode.UNEXPECTED_ARGUMENT
            self.member.reply(call, request, _RESPONSES[type(request)](code=code))
            return
        match request:
            case HeartBeatRequest():
                self.election.on_heartbeat(call, request, now_ms)
            case VoteRequest():
                self.election.on_vote(call, request, now_ms)
            case PushEntryRequest():
                self.follower.on_push(call, request, now_ms)
            case InstallSnapshotRequest():
                self.receiver.on_chunk(call, request, now_ms)
            case LeadershipTransferRequest():
                self.takeover.on_transfer(call, request, now_ms)
            case _:
                raise TypeError(f"not a request of the core: {type(request).__name__}")

    def _find_fault(self, message: RequestOrResponse) -> str | None:
        member = self.member
        return find_fault(message, term=member.term, file_size=member.settings.file_size)

    def _check_address(self, request: RequestOrResponse) -> DLedgerResponseCode | None:
        settings = self.member.settings
        if request.group != settings.group:
            return DLedgerResponseCode.UNKNOWN_GROUP
        if request.remote_id != settings.self_id:
            return DLedgerResponseCode.UNKNOWN_MEMBER
        return None

    # Responses of other peers -------------------------------------------------------------------------------

    def _complete_call(self, call: CallCompleted, now_ms: int) -> None:
        fault = None if call.response is None else self._find_fault(call.response)
        if fault is not None:
            self.member.reject_message(f"{type(call.response).__name__} of {call.peer}", fault)
            call = CallCompleted(call.peer, call.context, call.request, None)
        if call.response is not None:
            self.member.learn_features(call.peer, call.response)
            if not self.member.has_same_settings(call.peer, call.response):
                return
        if self.leader is not None and call.peer not in self.leader.peers:
            return  # the peer was removed
        newer: int | None = None
        match call.request, call.response:
            case VoteRequest() as request, (VoteResponse() | None) as response:
                self.election.on_vote_response(call.peer, request, response, now_ms)
            case HeartBeatRequest() as request, (HeartBeatResponse() | None) as response:
                if self.leader is not None and request.term == self.leader.term:
                    newer = self.leader.on_heartbeat_response(call.peer, call.context, response)
            case PushEntryRequest() as request, (PushEntryResponse() | None) as response:
                if self.leader is not None and request.term == self.leader.term:
                    newer = self.leader.pusher.on_push_response(
                        call.peer, call.context, request, response, now_ms
                    )
            case InstallSnapshotRequest() as request, (InstallSnapshotResponse() | None) as response:
                if self.leader is not None and request.term == self.leader.term:
                    newer = self.leader.pusher.on_chunk_response(
                        call.peer, call.context, request, response, now_ms
                    )
            case LeadershipTransferRequest(), (LeadershipTransferResponse() | None) as response:
                self.transfer.on_response(self.leader, call.context, response, now_ms)
            case _:
                pass  # a response of another type counts as none
        if newer is not None and newer > self.member.term:
            self.member.adopt_term(newer)
            self.election.step_down(now_ms)

    def _on_erasure_completed(self, now_ms: int) -> None:
        """The log is writable again: does what had to wait for it."""
        self.member.on_erasure_completed()
        snapshot = self.receiver.awaiting_erasure
        if snapshot is not None:
            self._on_installed(snapshot, now_ms)
        self.follower.on_erasure_completed(now_ms)
        if self.leader is not None:
            self.leader.begin_term()

    def _on_installed(self, snapshot: Snapshot, now_ms: int) -> None:
        if self.receiver.on_installed(snapshot) and self.leader is None:
            self.election.cancel_candidacy(now_ms)

    def _on_synced(self, index: int, term: int) -> None:
        member = self.member
        if index > member.synced_index and member.log.term(index) == term:
            member.synced_index = index
            self.follower.on_synced()


def _membership_entries(log: RaftLog, snapshot: Snapshot | None) -> list[DLedgerEntry]:
    first = log.begin_index if snapshot is None else snapshot.index + 1
    found = [log.entry(index) for index in range(max(first, 0), log.end_index + 1)]
    return [entry for entry in found if entry is not None and entry.channel == MEMBERS_CHANNEL]
