"""Runs a DLedger peer: the core, its directory, and its requests to other peers.

The event loop's thread owns everything and never waits for the disk. One worker thread makes the log durable,
for all entries written meanwhile at once (group commit), saves votes, and erases truncated entries. Another
worker thread writes checkpoints and snapshots.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from epochmq_dledger.checkpoint_writer import CheckpointWriter
from epochmq_dledger.commit_reporter import CommitReporter, CommittedEntries
from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.types import (
    ChangeMembers,
    LeaderDisconnected,
    RaftRole,
    RaftSettings,
    RequestReceived,
    RoleChanged,
    TransferLeadership,
)
from epochmq_dledger.core_driver import CoreDriver
from epochmq_dledger.entry_applier import EntryApplier
from epochmq_dledger.log_syncer import LogSyncer
from epochmq_dledger.peer_calls import PeerCalls
from epochmq_dledger.peer_context import PeerContext
from epochmq_dledger.pending_operations import OnAppended, OnConfirmed, PendingOperations
from epochmq_dledger.recovery import PeerRecovery, RecoveredPeer
from epochmq_dledger.results import AppendResult, RaftOperationError, complete_future
from epochmq_dledger.snapshot_taker import SnapshotTaker
from epochmq_dledger.state_machine import StateMachine
from epochmq_dledger.store.block_log import BlockLog
from epochmq_dledger.store.damage_evidence import RejoinMark
from epochmq_dledger.store.file_log import FileLog
from epochmq_protocol.dledger import DLedgerEntry, DLedgerResponseCode, RequestOrResponse
from epochmq_protocol.durable_files import make_directory
from epochmq_protocol.transport.client import RemotingClient

log = logging.getLogger(__name__)


class DLedgerPeer:
    """One peer of a Raft group.

    `apply` is called with each committed entry, in order and once per life of the process, but not with
    entries that `machine` loaded from a snapshot, nor with membership entries. `on_role` is called when role,
    term or leader change, `on_fatal` after a disk error that lets this peer promise nothing more. `addresses`
    are the peers', by id; the peer adds those that the log names. `flush_async`: entries are acknowledged
    once they are written, and synced soon after, as DLedger does.

    `log` replaces the peer's own log by one whose entries are handled in blocks. It has no state machine:
    instead of `apply`, `on_committed` is called with the position after the last committed entry. Its owner,
    which knows where the log will end, must append what it has before this leader appends a membership entry
    (`before_membership`), and look at the end of the log after it (`on_members`).
    """

    def __init__(
        self,
        settings: RaftSettings,
        addresses: dict[str, str],
        folder: Path,
        client: RemotingClient,
        *,
        apply: Callable[[DLedgerEntry], None] = lambda _: None,
        on_role: Callable[[RoleChanged], None] = lambda _: None,
        on_fatal: Callable[[Exception], None] = lambda _: None,
        machine: StateMachine | None = None,
        flush_async: bool = False,
        log: BlockLog | None = None,
        on_committed: Callable[[int], None] = lambda _: None,
        before_membership: Callable[[], None] = lambda: None,
        on_members: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.addresses = addresses
        self.folder = folder
        self._apply = apply
        self._machine = machine
        self._found: RecoveredPeer | None = None
        self._block_log = log
        self.malformed_requests = 0
        """Requests that the port could not decode. The processor counts them."""
        context = self._context = PeerContext(settings, folder, log)
        context.before_membership, context.on_members = before_membership, on_members
        self._operations = PendingOperations(context)
        self._calls = PeerCalls(context, client, addresses)
        snapshots = SnapshotTaker(context, machine)
        self._applier: CommittedEntries = (
            EntryApplier(context, apply, machine, snapshots)
            if log is None
            else CommitReporter(context, on_committed)
        )
        self._syncer = LogSyncer(context, flush_async=flush_async)
        self._checkpoints = CheckpointWriter(context)
        self._driver = CoreDriver(
            context,
            operations=self._operations,
            calls=self._calls,
            applier=self._applier,
            snapshots=snapshots,
            syncer=self._syncer,
            checkpoints=self._checkpoints,
            addresses=addresses,
            on_role=on_role,
            on_fatal=on_fatal,
        )

    # Life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recovers the directory, applies the entries that are known to be committed, and joins the group.
        Errors as `recover`."""
        if self._found is None:
            self.recover()
        self.join()

    def recover(self, doubt: RejoinMark | None = None) -> int:
        """Recovers the directory, and applies the entries that are known to be committed. Returns the
        position after them. Waits for the disk. `doubt`: what this disk may have lost, as the owner of this
        peer knows. ValueError if the directory belongs to another peer, or is
        too damaged to use."""
        context = self._context
        make_directory(self.folder)
        recovery = PeerRecovery(
            self.settings,
            self.folder,
            context.log,
            context.snapshots,
            reads_entries=self._block_log is None,
        )
        found = self._found = recovery.run(self._machine, self._apply, doubt)
        context.applied_index = found.applied_index
        return max(context.log.end_position(found.committed), 0)

    def join(self) -> None:
        """Joins the group, after `recover`."""
        context, found = self._context, self._found
        assert found is not None, "not recovered"
        self._found = None
        node = RaftNode(
            self.settings,
            context.log,
            random.random,
            self._driver.now_ms(),
            term=found.vote.term,
            voted_for=found.vote.voted_for,
            committed=found.committed,
            snapshot=found.snapshot,
            memberships=found.memberships,
            rejoins=found.rejoin is not None,
            vote_lost=found.rejoin is not None and found.rejoin.vote_lost,
            is_new_directory=found.rejoin is not None and found.rejoin.is_new_directory,
            only_unflushed=found.rejoin is not None and found.rejoin.only_unflushed,
            body_log=self._block_log,
            saved_memberships=found.saved_memberships,
        )
        self._driver.start(node)

    async def stop(self) -> None:
        """Stops this peer. Everything that it has acknowledged is durable."""
        context = self._context
        context.is_stopping = True
        self._driver.stop_timer()
        self._applier.stop()
        self._syncer.cancel_flush()
        await self._calls.stop()
        await context.sync_worker.wait_idle()
        await context.file_worker.wait_idle()
        self._operations.fail_all()
        if context.node is not None:
            if context.error is None:
                context.sync_worker.run(self._save_all, lambda _: None, self._on_save_failed)
                await context.sync_worker.wait_idle()
            context.log.close()
            context.snapshots.close()
            context.node = None
        elif self._found is not None:
            context.log.close()
        context.sync_worker.close()
        context.file_worker.close()

    def _save_all(self) -> None:
        """On the worker thread, which has no other job: makes durable all that is written."""
        self._syncer.sync_all()
        self._checkpoints.save_now()

    def _on_save_failed(self, error: Exception) -> None:
        """All acknowledged entries are durable. The next start recovers the end of the log as after a
        crash."""
        log.error("%s: cannot save the last entries or the checkpoint: %s", self.folder, error)

    # State --------------------------------------------------------------------------------------------------

    @property
    def node(self) -> RaftNode:
        """The core of a started peer."""
        return self._context.started_node

    @property
    def log(self) -> FileLog:
        """The peer's log."""
        return self._context.log

    @property
    def role(self) -> RaftRole:
        """The role of this peer."""
        return self.node.role

    @property
    def term(self) -> int:
        """The current term."""
        return self.node.member.term

    @property
    def leader_id(self) -> str | None:
        """The leader that this peer knows."""
        return self.node.member.leader

    @property
    def is_transferring(self) -> bool:
        """Whether this peer leads, and rejects proposals because it transfers its leadership."""
        leader = self.node.leader
        return leader is not None and leader.transferring_until_ms is not None

    @property
    def is_paused(self) -> bool:
        """Whether this peer takes no part in its group, because its disk is full and it has to save a vote or
        memberships."""
        return self._driver.is_paused

    @property
    def committed_index(self) -> int:
        """Up to this index the log is known to be committed."""
        return self._context.committed_index

    @property
    def messages_rejected(self) -> int:
        """Messages that no correct peer sends, since the start: malformed ones, and implausible ones."""
        return self.malformed_requests + (self.node.member.messages_rejected if self._context.node else 0)

    @property
    def applied_index(self) -> int:
        """Up to this index the entries are applied."""
        return self._context.applied_index

    @property
    def behind(self) -> int | None:
        """The number of entries that the leader has committed and this peer does not know to be committed.
        None while this peer follows no leader, or the leader has found no entry that both logs have in this
        term, or the logs differ (`divergence`)."""
        node = self.node
        if node.role is RaftRole.LEADER:
            return 0
        follower = node.follower
        committed = follower.leader_committed_index
        if self.leader_id is None or follower.matched_term != self.term or committed < 0:
            return None
        if follower.matched_index < 0 or follower.divergence:
            return None
        return max(0, committed - self.committed_index)

    @property
    def divergence(self) -> str:
        """How the log of this follower differs from its leader's below what is committed here; empty if it
        does not, as far as is known."""
        return "" if self.node.role is RaftRole.LEADER else self.node.follower.divergence

    @property
    def common_index(self) -> int | None:
        """The last entry that this log has in common with a leader's from which it differs (`divergence`), -1
        without one. None if it does not differ."""
        return self.node.follower.common_index if self.divergence else None

    @property
    def members(self) -> dict[str, str]:
        """The voters that this peer's log names, address by id."""
        membership = self.node.member.membership
        if membership.addresses is not None:  # perhaps not in `addresses` yet
            return dict(membership.addresses)
        return {peer: self.addresses[peer] for peer in membership.voters}

    # Operations ---------------------------------------------------------------------------------------------

    def submit(self, bodies: tuple[bytes, ...], done: OnAppended) -> None:
        """Appends entries. `done` gets the result once they are committed and applied here, or have
        failed."""
        self._operations.submit(bodies, done)

    def append_now(self, bodies: Sequence[bytes], done: OnAppended) -> None:
        """Appends entries before it returns, if this peer leads: `log` then ends with them. `done` gets the
        result as with `submit`. Not to be called from a callback of this peer."""
        self._operations.submit_now(bodies, done)

    def confirm_leadership(self, done: OnConfirmed) -> None:
        """Confirms by a quorum round trip, which starts after this call, that this peer leads. `done` gets an
        index that is applied and at least as new as all entries committed before the call. An error means
        that this peer does not lead."""
        self._operations.confirm_leadership(done)

    async def propose(self, *bodies: bytes) -> AppendResult:
        """Appends entries and returns once they are committed and applied here. RaftOperationError."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.submit(bodies, lambda result: complete_future(future, result))
        return await future

    async def read_index(self) -> int:
        """Confirms leadership (see `confirm_leadership`). RaftOperationError if this peer does not lead."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.confirm_leadership(lambda result: complete_future(future, result))
        return await future

    async def transfer_leadership(self, to: str) -> None:
        """Transfers leadership to a peer. RaftOperationError."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        token = self._operations.add(lambda result: complete_future(future, result))
        self._driver.feed(TransferLeadership(to, token))
        await future

    async def change_members(self, peer: str, address: str | None) -> None:
        """Adds a peer to the group or, without an address, removes it. Returns once the change is committed.
        A leader that shall be removed first transfers its leadership, and then fails with NOT_LEADER.
        RaftOperationError."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        leader = self.node.leader
        if address is None and peer == self.settings.self_id and leader is not None and leader.peers:
            best = max(leader.voters(), key=lambda one: one.match_index)
            await self.transfer_leadership(best.name)
            raise RaftOperationError(DLedgerResponseCode.NOT_LEADER)
        token = self._operations.add(lambda result: complete_future(future, result))
        self._driver.feed(ChangeMembers(token, peer, address, self.members))
        await future

    # Other peers --------------------------------------------------------------------------------------------

    def handle_request(
        self, request: RequestOrResponse, respond: Callable[[RequestOrResponse | None], None]
    ) -> None:
        """Handles a request of another peer. `respond` gets the response, now or later; None if there is
        none, because this peer has failed or pauses."""
        self._driver.feed(RequestReceived(self._operations.add_request(respond), request))

    def leader_disconnected(self, leader: str) -> None:
        """The connection that carried this leader's heartbeats has closed."""
        self._driver.feed(LeaderDisconnected(leader))
