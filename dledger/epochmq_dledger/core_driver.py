"""Drives the core of a peer: feeds it with inputs, carries out its effects in order, and keeps its timer.

All of it runs on the event loop's thread, which never waits for the disk. One step feeds one input. If its
effects contain a vote, that effect and all later ones wait, those of further inputs included, until a worker
thread has saved the vote. Acknowledgements of entries wait in the core until a worker thread has synced the
entries.

While a full disk rejects a vote or memberships, the driver pauses: it tries to save them again, and the peer
is like one whose process hangs and whose network drops requests. It then continues from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from epochmq_dledger.checkpoint_writer import CheckpointWriter
from epochmq_dledger.commit_reporter import CommittedEntries
from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.raft_log import LogFullError
from epochmq_dledger.core.types import (
    Alarm,
    ApplyCommitted,
    CallCompleted,
    ChangeMembers,
    EraseDroppedEntries,
    ErasureCompleted,
    InstallSnapshot,
    LeaderDisconnected,
    LeadershipTransferred,
    LogSynced,
    MembersChanged,
    OperationFailed,
    Proposal,
    ProposalBatch,
    ProposalCommitted,
    RaftEffect,
    RaftInput,
    RaftRole,
    ReadIndex,
    ReadReady,
    RejoinCompleted,
    RequestReceived,
    RestoreSnapshot,
    RoleChanged,
    SaveMemberships,
    SaveVote,
    SendRequest,
    SendResponse,
    SendSnapshotChunk,
    SnapshotInstalled,
    SnapshotRejected,
    SnapshotSaved,
    Tick,
    TransferLeadership,
)
from epochmq_dledger.log_syncer import LogSyncer
from epochmq_dledger.peer_calls import PeerCalls
from epochmq_dledger.peer_context import PeerContext
from epochmq_dledger.pending_operations import PendingOperations
from epochmq_dledger.results import AppendResult
from epochmq_dledger.snapshot_taker import SnapshotTaker
from epochmq_dledger.store import damage_evidence, state_files
from epochmq_dledger.store.segments import is_disk_full
from epochmq_protocol.dledger import DLedgerResponseCode

log = logging.getLogger(__name__)

SAVE_RETRY_S = 1.0
"""The delay before a vote that a full disk has rejected is saved again."""


class CoreDriver:
    """The driver of one core. The other parts carry out effects; `addresses` are the peers', by id."""

    def __init__(
        self,
        context: PeerContext,
        *,
        operations: PendingOperations,
        calls: PeerCalls,
        applier: CommittedEntries,
        snapshots: SnapshotTaker,
        syncer: LogSyncer,
        checkpoints: CheckpointWriter,
        addresses: dict[str, str],
        on_role: Callable[[RoleChanged], None],
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._context = context
        self._operations = operations
        self._calls = calls
        self._applier = applier
        self._snapshots = snapshots
        self._syncer = syncer
        self._checkpoints = checkpoints
        self._addresses = addresses
        self._on_role = on_role
        self._on_fatal = on_fatal
        self._inputs: deque[RaftInput] = deque()
        self._is_stepping = False
        self._is_saving = False
        """Whether a vote or memberships are being saved. Later effects wait."""
        self.is_paused = False
        """Whether a full disk rejected the vote or the memberships that are being saved."""
        self._retry: asyncio.TimerHandle | None = None
        self._reported_role = RaftRole.CANDIDATE
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        """When the timer is due. uvloop's handle does not say so if it is due at once."""
        context.feed, context.fail, context.set_timer = self.feed, self._fail, self._set_timer

    def start(self, node: RaftNode) -> None:
        """Starts the core."""
        self._context.node = node
        self._checkpoints.start()
        self.feed(Tick())

    def stop_timer(self) -> None:
        """Ends the timers: the peer stops."""
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()

    def now_ms(self) -> int:
        """The time on the event loop's monotonic clock, in milliseconds."""
        return int(asyncio.get_running_loop().time() * 1000)

    # Timer --------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Sets the timer for the core's next deadline, unless it is due earlier. A timer that is too early
        has no effect and is set again: most steps postpone the deadline."""
        context = self._context
        if context.node is None or context.is_stopping or context.error is not None or self.is_paused:
            return
        at_s = context.node.next_deadline_ms() / 1000
        checkpoint_s = self._checkpoints.next_due_s()
        if checkpoint_s is not None:
            at_s = min(at_s, checkpoint_s)
        if self._timer is None or at_s < self._timer_at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at_s = at_s
            self._timer = asyncio.get_running_loop().call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._checkpoints.save_if_due()
        self.feed(Tick())
        if self._context.is_running:
            self._snapshots.take_if_due()  # other peers may have become able to take snapshots

    # Steps --------------------------------------------------------------------------------------------------

    def feed(self, event: RaftInput) -> None:
        """Feeds inputs one after another. An input that arrives while effects are carried out waits until all
        of them are carried out, or wait for a vote to be saved."""
        if self.is_paused:
            self._reject_or_keep(event)
            return
        if not self._is_stepping and self._may_append_membership(event):
            self._context.before_membership()
        self._inputs.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._inputs:
                self._step(self._inputs.popleft())
        finally:
            self._is_stepping = False
        if self._context.node is not None:
            self._syncer.sync_if_needed()
            self._set_timer()

    def _may_append_membership(self, event: RaftInput) -> bool:
        node = self._context.node
        if node is None or node.leader is None or isinstance(event, Proposal | ProposalBatch):
            return False
        return isinstance(event, ChangeMembers) or node.leader.membership_change.catching_up is not None

    def _step(self, event: RaftInput) -> None:
        context = self._context
        if context.node is None or context.error is not None:
            self._reject(event)
            return
        member = context.node.member
        membership_index = member.membership.index
        try:
            context.effects.extend(context.node.step(event, self.now_ms()))
            if member.membership.index != membership_index:
                context.on_members()  # before the effects, some of which wait until the memberships are saved
            for removal in context.log.take_removals():
                context.file_worker.run(removal, lambda _: None)
        except Exception as error:
            self._fail(error)
            return
        self._carry_out_effects()

    def _carry_out_effects(self) -> None:
        """Carries out effects in order, up to a vote or memberships, which must be saved before the effects
        after it."""
        context = self._context
        try:
            while context.effects and not self._is_saving and context.error is None:
                match context.effects.popleft():
                    case SaveVote(term=term, voted_for=voted_for):
                        self._save(partial(state_files.save_vote, context.folder, term, voted_for))
                    case SaveMemberships(memberships=saved):
                        self._save(partial(state_files.save_memberships, context.folder, saved))
                    case effect:
                        self._carry_out(effect)
        except Exception as error:
            self._fail(error)

    def _save(self, job: Callable[[], None]) -> None:
        self._is_saving = True
        self._context.sync_worker.run(job, self._on_saved, partial(self._on_save_failed, job))

    def _on_saved(self, _: None) -> None:
        self._is_saving = False
        if not self._context.is_running:
            return
        self._is_stepping = True  # inputs that the effects cause wait, as in `feed`
        try:
            self._carry_out_effects()
        finally:
            self._is_stepping = False
        if not self._is_saving:
            self._resume()
        self.feed(Tick())

    def _on_save_failed(self, job: Callable[[], None], error: Exception) -> None:
        """On a full disk the former vote stays, and nothing that depends on the new one was carried out."""
        context = self._context
        if not is_disk_full(error):
            context.fail(error)
            return
        if not context.is_running or context.is_stopping:
            return
        self._retry = asyncio.get_running_loop().call_later(SAVE_RETRY_S, self._save, job)
        if self.is_paused:
            return
        log.warning("%s: this peer takes no part until its disk has space: %s", context.folder, error)
        self.is_paused = True
        if self._reported_role is RaftRole.LEADER:
            self._report_role(RoleChanged(RaftRole.CANDIDATE, context.started_node.member.term, None))

    def _resume(self) -> None:
        """The disk has space again."""
        if not self.is_paused:
            return
        self.is_paused = False
        context = self._context
        member, role = context.started_node.member, context.started_node.role
        log.warning("%s: the disk has space again, and this peer takes part", context.folder)
        if role is RaftRole.LEADER and self._reported_role is not RaftRole.LEADER:
            self._report_role(RoleChanged(role, member.term, member.leader))

    def _report_role(self, change: RoleChanged) -> None:
        self._reported_role = change.role
        self._on_role(change)

    def _reject_or_keep(self, event: RaftInput) -> None:
        """Rejects an input while the driver pauses. Keeps what jobs and calls have reported; those that run
        bound the number, because the driver starts none."""
        if isinstance(
            event,
            CallCompleted
            | LogSynced
            | ErasureCompleted
            | SnapshotSaved
            | SnapshotInstalled
            | SnapshotRejected,
        ):
            self._inputs.append(event)
        elif not isinstance(event, Tick | LeaderDisconnected):
            self._reject(event, DLedgerResponseCode.DISK_FULL)

    def _reject(self, event: RaftInput, code: DLedgerResponseCode = DLedgerResponseCode.DISK_ERROR) -> None:
        if isinstance(event, ProposalBatch):
            for proposal in event.proposals:
                self._reject(proposal, code)
        elif isinstance(event, Proposal | ReadIndex | TransferLeadership | ChangeMembers):
            self._operations.fail(event.token, code)
        elif isinstance(event, RequestReceived):
            self._operations.drop_request(event.call)

    def _fail(self, error: Exception) -> None:
        """Stops the peer for good. After a failed write or sync it can promise nothing: the kernel may have
        dropped the pages, and a second sync would report success. After a program error, the state in memory
        may be inconsistent. All pending operations fail."""
        context = self._context
        if context.error is not None:
            return
        trace = None if isinstance(error, OSError | LogFullError) else error
        log.critical("%s: this peer stops for good: %r", context.folder, error, exc_info=trace)
        context.error = error
        context.effects.clear()
        try:
            self._operations.fail_all()
        finally:
            self._on_fatal(error)

    # Effects ------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: RaftEffect) -> None:
        context, operations, self_id = self._context, self._operations, self._context.settings.self_id
        match effect:
            case EraseDroppedEntries():
                self._syncer.erase()
            case SendRequest():
                self._calls.start(effect)
            case SendResponse(call=call, response=response):
                operations.respond(call, response)
            case ApplyCommitted():
                self._applier.apply_committed()
            case ProposalCommitted(token=token, index=index, pos=pos, term=term):
                result = AppendResult(index, pos, term)
                self._applier.when_applied(index, lambda: operations.complete(token, result))
            case LeadershipTransferred(token=token):
                operations.complete(token, AppendResult(-1, -1, context.started_node.member.term))
            case OperationFailed(token=token, code=code):
                operations.fail(token, code)
            case ReadReady(token=token, index=index):
                self._applier.when_applied(index, lambda: operations.complete_read(token, index))
            case RoleChanged(role=role, term=term, leader=leader):
                log.info("%s: role %s in term %d, leader %s", self_id, role.value, term, leader)
                self._report_role(effect)
            case Alarm(text=text):
                log.error("%s: %s", self_id, text)
            case SendSnapshotChunk(peer=peer, context=call_context, request=request, size=size):
                request.data = context.snapshots.read(request.offset, size)
                self._calls.start(SendRequest(peer, call_context, request))
            case InstallSnapshot(snapshot=snapshot, data=data):
                self._snapshots.install(snapshot, data)
            case RestoreSnapshot(snapshot=snapshot):
                self._applier.restore(snapshot)
            case RejoinCompleted():
                context.file_worker.run(
                    partial(damage_evidence.remove_rejoin_mark, context.folder), lambda _: None
                )
                log.warning("%s: recovered the lost entries; this peer votes again", self_id)
            case MembersChanged(addresses=addresses):
                self._addresses.update(addresses)
