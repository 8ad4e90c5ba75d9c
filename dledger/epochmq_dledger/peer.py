"""A DLedger peer at work: the core, its directory, its calls.

The loop's thread owns everything and never waits for the disk. One worker thread makes the log durable, for
all entries written meanwhile at once (group commit), saves votes, and erases what was cut; another one writes
checkpoints and snapshots. Order of things in one turn: the core takes an input; when its effects begin with a
vote they wait, and so do those of the inputs after it, until the worker has saved the vote; then calls leave,
answers leave. What vouches for entries waits until the worker has synced them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
    RaftSettings,
    ReadIndex,
    ReadReady,
    RejoinCompleted,
    RequestReceived,
    RestoreSnapshot,
    RoleChanged,
    SaveVote,
    SendRequest,
    SendResponse,
    SendSnapshotChunk,
    Snapshot,
    SnapshotInstalled,
    SnapshotSaved,
    Tick,
    TransferLeadership,
)
from epochmq_dledger.disk_worker import DiskWorker
from epochmq_dledger.recovery import PeerRecovery
from epochmq_dledger.results import AppendResult, RaftOperationError, StateMachine, complete_future
from epochmq_dledger.store import damage_evidence, state_files
from epochmq_dledger.store.file_log import FileLog
from epochmq_dledger.store.segments import sync_and_close
from epochmq_dledger.store.snapshot_file import SnapshotFile
from epochmq_protocol.dledger import (
    MEMBERS_CHANNEL,
    REQUEST_CODES,
    RESPONSE_TYPES,
    DLedgerEntry,
    DLedgerResponseCode,
    RequestOrResponse,
    decode_body,
    encode_body,
)
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request as make_request
from epochmq_protocol.transport.client import RemotingClient

log = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_S = 3.0
FLUSH_INTERVAL_S = 0.01
"""How long an asynchronous flush waits for more (DLedger: 10 ms)."""
APPLY_MAX = 1000
"""Entries applied in one turn of the loop; the rest follows in the next."""
APPLY_WAIT_S = 0.005
"""How long applying waits, again and again, while a vote is being saved."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class DLedgerPeer:
    """One peer. `apply` is called with each committed entry, in order, once per life, but not with those that
    `machine` has from a snapshot, nor with membership entries; `on_role` when role, term or leader change;
    `on_fatal` when the disk failed in a way after which nothing can be promised. `addresses` are the peers',
    by id; those that the log names are put in.
    `flush_async`: entries are acknowledged once they are written, and synced soon after, as DLedger does."""

    def __init__(
        self,
        settings: RaftSettings,
        addresses: dict[str, str],
        folder: Path,
        client: RemotingClient,
        *,
        apply: Callable[[DLedgerEntry], None],
        on_role: Callable[[RoleChanged], None] = lambda _: None,
        on_fatal: Callable[[Exception], None] = lambda _: None,
        machine: StateMachine | None = None,
        flush_async: bool = False,
    ) -> None:
        self.settings = settings
        self.addresses = addresses
        self.folder = folder
        self.applied_index = -1
        self.log = FileLog(folder, settings.file_size)
        self.snapshots = SnapshotFile(folder)
        self._machine = machine
        self._saving = False
        self._snapshot_from = 0
        """After one that failed, none is tried before this index is applied."""
        self._client = client
        self._apply = apply
        self._on_role = on_role
        self._on_fatal = on_fatal
        self._flush_async = flush_async
        self._node: RaftNode | None = None
        self._inputs: deque[RaftInput] = deque()
        self._proposals: list[Proposal] = []
        self._stepping = False
        self._stopping = False
        self._tokens = 0
        self._waiting: dict[int, Callable[[AppendResult | RaftOperationError], None]] = {}
        self._reads: dict[int, Callable[[int | RaftOperationError], None]] = {}
        self._until_applied: list[tuple[int, Callable[[], None]]] = []
        self._replies: dict[int, Callable[[RequestOrResponse], None]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._effects: deque[RaftEffect] = deque()
        """Effects that wait until the vote before them is saved. The calls, proposals and reads behind them
        are bounded by the limits of those who make them."""
        self._is_voting = False
        self._worker = DiskWorker("dledger-sync", self._fail_for_good)
        self._files = DiskWorker("dledger-files", self._fail_for_good)
        self._is_syncing = False
        self._is_checkpointing = False
        self._proofs: list[Callable[[int | RaftOperationError], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """Its moment: uvloop's handle does not say when it is due at once."""
        self._catch_up: asyncio.Handle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._checkpointed = (-1, -1)
        self._checkpoint_at = 0.0
        self._failed: Exception | None = None

    # Life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recovers the directory, applies what is known to be committed, and takes part. ValueError when the
        directory is not that of such a peer, or has lost something and cannot be used."""
        self.folder.mkdir(parents=True, exist_ok=True)
        recovery = PeerRecovery(self.settings, self.folder, self.log, self.snapshots)
        found = recovery.run(self._machine, self._apply)
        self.applied_index = found.applied_index
        self._node = RaftNode(
            self.settings,
            self.log,
            random.random,
            self._now(),
            term=found.vote.term,
            voted_for=found.vote.voted_for,
            committed=found.committed,
            snapshot=found.snapshot,
            memberships=found.memberships,
            rejoins=found.rejoins,
            vote_lost=found.vote_lost,
        )
        self._checkpoint_at = asyncio.get_running_loop().time() + CHECKPOINT_INTERVAL_S
        self._feed(Tick())

    async def stop(self) -> None:
        """Ends this peer; what it has promised is on disk."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self._catch_up is not None:
            self._catch_up.cancel()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._worker.drain()
        await self._files.drain()
        for token in list(self._waiting):
            self._outcome(token, RaftOperationError(DLedgerResponseCode.TERM_CHANGED))
        for token in list(self._reads):
            self._read_outcome(token, RaftOperationError(DLedgerResponseCode.NOT_LEADER))
        if self._node is not None:
            if self._failed is None:
                self._worker.run(self._finish, lambda _: None, self._unfinished)
                await self._worker.drain()
            self.log.close()
            self.snapshots.close()
            self._node = None
        self._worker.close()
        self._files.close()

    def _finish(self) -> None:
        """On the worker thread, with nothing else under way: all that is written becomes durable."""
        if not self.log.is_writable:
            self.log.erase_now()
        end = self.log.end_index, self.log.end_term
        sync_and_close(self.log.take_unsynced())
        self.log.mark_synced(*end)
        state_files.save_checkpoint(self.folder, *self._durable())

    def _unfinished(self, error: Exception) -> None:
        """What was acknowledged is durable; the next start finds the end of the log as after a crash."""
        log.error("%s: the last entries or the checkpoint were not saved: %s", self.folder, error)

    def _now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _wake_in_time(self) -> None:
        """Keeps a timer for the core's next deadline. One that is set too early wakes for nothing and is set
        anew then: most steps move the deadline further away."""
        if self._node is None or self._stopping or self._failed is not None:
            return
        at = self._node.next_deadline_ms() / 1000
        if not self._is_checkpointing:
            at = min(at, self._checkpoint_at)
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._checkpoint_if_due()
        self._feed(Tick())
        if self._node is not None and self._failed is None:
            self._snapshot_if_due()  # the others may have become able to take one since the last entry

    def _checkpoint_if_due(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._checkpoint_at or self._is_checkpointing or self._failed is not None:
            return
        self._checkpoint_at = now_s + CHECKPOINT_INTERVAL_S
        now = self._durable()
        if now != self._checkpointed:
            self._is_checkpointing = True
            job = partial(state_files.save_checkpoint, self.folder, *now)
            self._files.run(job, lambda _: self._checkpoint_saved(now), self._checkpoint_failed)

    def _durable(self) -> tuple[int, int]:
        """What a checkpoint says: the log's end, and the committed index as far as the entries are durable
        here: recovery takes a log that ends before it for damaged."""
        return self.log.durable_index, min(self.committed_index, self.log.durable_index)

    def _checkpoint_saved(self, saved: tuple[int, int]) -> None:
        self._is_checkpointing = False
        self._checkpointed = saved
        self._wake_in_time()

    def _checkpoint_failed(self, error: Exception) -> None:
        """A full disk keeps the checkpoint of before, which is as true. Any other failure is the disk's."""
        self._is_checkpointing = False
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            log.warning("%s: no checkpoint: %s", self.folder, error)
            self._wake_in_time()
        else:
            self._fail_for_good(error)

    # What it is ---------------------------------------------------------------------------------------------

    @property
    def node(self) -> RaftNode:
        """The core of a started peer."""
        assert self._node is not None, "not started"
        return self._node

    @property
    def role(self) -> RaftRole:
        """What this peer is now."""
        return self.node.role

    @property
    def term(self) -> int:
        """The current term."""
        return self.node.member.term

    @property
    def leader_id(self) -> str | None:
        """The leader this peer knows of."""
        return self.node.member.leader

    @property
    def committed_index(self) -> int:
        """How far this peer knows the log to be committed."""
        return self.node.member.committed_index

    @property
    def members(self) -> dict[str, str]:
        """Who votes, address by id, as this peer's log has it."""
        return {peer: self.addresses[peer] for peer in self.node.member.voters}

    # What it does -------------------------------------------------------------------------------------------

    def submit(
        self, bodies: tuple[bytes, ...], done: Callable[[AppendResult | RaftOperationError], None]
    ) -> None:
        """Appends entries; `done` is told once they are committed and applied here, or why not."""
        self._tokens += 1
        self._waiting[self._tokens] = done
        self._proposals.append(Proposal(self._tokens, bodies))
        if len(self._proposals) == 1:
            asyncio.get_running_loop().call_soon(self._feed_proposals)

    def _feed_proposals(self) -> None:
        """What one turn of the loop brought goes into the log, and to the peers, together."""
        proposals, self._proposals = tuple(self._proposals), []
        self._feed(ProposalBatch(proposals))

    def confirm_leadership(self, done: Callable[[int | RaftOperationError], None]) -> None:
        """Proves that this peer leads, by a quorum round trip that begins after this call. `done` is told an
        index that is applied and at least as new as everything committed before the call, or
        RaftOperationError: it does not lead."""
        self._proofs.append(done)
        if len(self._proofs) == 1:
            asyncio.get_running_loop().call_soon(self._feed_proofs)

    def _feed_proofs(self) -> None:
        """The reads of one turn of the loop are one to the core."""
        proofs, self._proofs = self._proofs, []

        def done(outcome: int | RaftOperationError) -> None:
            for one in proofs:
                one(outcome)

        self._tokens += 1
        self._reads[self._tokens] = done
        self._feed(ReadIndex(self._tokens))

    async def propose(self, *bodies: bytes) -> AppendResult:
        """`submit`, awaited. RaftOperationError says why not."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.submit(bodies, lambda outcome: complete_future(future, outcome))
        return await future

    async def read_index(self) -> int:
        """`prove`, awaited. RaftOperationError: this peer does not lead."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.confirm_leadership(lambda outcome: complete_future(future, outcome))
        return await future

    async def transfer_leadership(self, to: str) -> None:
        """Hands leadership to a peer. RaftOperationError says why not."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._tokens += 1
        self._waiting[self._tokens] = lambda outcome: complete_future(future, outcome)
        self._feed(TransferLeadership(to, self._tokens))
        await future

    async def change_members(self, peer: str, address: str | None) -> None:
        """Adds a peer to the group, or removes it, and returns once that is committed. A leader that is to be
        removed hands over first, and refuses with NOT_LEADER. RaftOperationError says why not."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        leader = self.node.leader
        if address is None and peer == self.settings.self_id and leader is not None and leader.peers:
            best = max(leader.voters(), key=lambda one: one.match_index)
            await self.transfer_leadership(best.name)
            raise RaftOperationError(DLedgerResponseCode.NOT_LEADER)
        self._tokens += 1
        self._waiting[self._tokens] = lambda outcome: complete_future(future, outcome)
        self._feed(ChangeMembers(self._tokens, peer, address, self.members))
        await future

    def call(self, request: RequestOrResponse, reply: Callable[[RequestOrResponse], None]) -> None:
        """Takes a peer's call; `reply` gets the answer, at once or once it may be given."""
        self._tokens += 1
        self._replies[self._tokens] = reply
        self._feed(RequestReceived(self._tokens, request))

    def leader_disconnected(self, leader: str) -> None:
        """The connection over which this leader was heard is closed."""
        self._feed(LeaderDisconnected(leader))

    # Effects ------------------------------------------------------------------------------------------------

    def _feed(self, event: RaftInput) -> None:
        """One input after another: what comes while effects are carried out waits until all of them are, or
        wait for a vote to be saved."""
        self._inputs.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inputs:
                self._step(self._inputs.popleft())
        finally:
            self._stepping = False
        if self._node is not None:
            self._sync_if_needed()
            self._wake_in_time()

    def _step(self, event: RaftInput) -> None:
        if self._node is None or self._failed is not None:
            self._refuse(event)
            return
        try:
            self._effects.extend(self._node.step(event, self._now()))
            for removal in self.log.take_removals():
                self._files.run(removal, lambda _: None)
        except Exception as error:
            self._fail_for_good(error)
            return
        self._carry_out_all()

    def _carry_out_all(self) -> None:
        """Carries out effects in order, up to a vote that must be saved before anything after it leaves."""
        try:
            while self._effects and not self._is_voting and self._failed is None:
                effect = self._effects.popleft()
                if isinstance(effect, SaveVote):
                    self._is_voting = True
                    job = partial(state_files.save_vote, self.folder, effect.term, effect.voted_for)
                    self._worker.run(job, self._vote_saved)
                else:
                    self._carry_out(effect)
        except Exception as error:
            self._fail_for_good(error)

    def _vote_saved(self, _: None) -> None:
        self._is_voting = False
        if self._node is None or self._failed is not None:
            return
        self._stepping = True  # what effects bring about waits, as in `_feed`
        try:
            self._carry_out_all()
        finally:
            self._stepping = False
        self._feed(Tick())

    def _refuse(self, event: RaftInput) -> None:
        if isinstance(event, ProposalBatch):
            for proposal in event.proposals:
                self._refuse(proposal)
        elif isinstance(event, Proposal | ReadIndex | TransferLeadership | ChangeMembers):
            self._carry_out(OperationFailed(event.token, DLedgerResponseCode.DISK_ERROR))
        elif isinstance(event, RequestReceived):
            self._replies.pop(event.call, None)

    def _fail_for_good(self, error: Exception) -> None:
        """After a failed write or sync of promises nothing may be promised: the pages may be gone, and a
        second sync would say that all is well. Nor after a mistake in the program: what is known in memory
        may be half of a change. Everybody who waits here is refused."""
        if self._failed is not None:
            return
        trace = None if isinstance(error, OSError | LogFullError) else error
        log.critical("%s: %r; this peer stops taking part", self.folder, error, exc_info=trace)
        self._failed = error
        self._effects.clear()
        try:
            for token in [*self._waiting, *self._reads]:
                self._outcome(token, RaftOperationError(DLedgerResponseCode.TERM_CHANGED))
                self._read_outcome(token, RaftOperationError(DLedgerResponseCode.NOT_LEADER))
        finally:
            self._on_fatal(error)

    def _carry_out(self, effect: RaftEffect) -> None:
        match effect:
            case EraseDroppedEntries():
                self._worker.run(self.log.take_erasure(), self._erased)
            case SendRequest():
                self._begin_call(effect)
            case SendResponse(call=call, response=response):
                reply = self._replies.pop(call, None)
                if reply is not None:
                    reply(response)
            case ApplyCommitted():
                self._apply_some()
            case ProposalCommitted(token=token, index=index, pos=pos, term=term):
                done = AppendResult(index, pos, term)
                self._once_applied(index, lambda: self._outcome(token, done))
            case LeadershipTransferred(token=token):
                self._outcome(token, AppendResult(-1, -1, self.term))
            case OperationFailed(token=token, code=code):
                self._outcome(token, RaftOperationError(code))
                self._read_outcome(token, RaftOperationError(code))
            case ReadReady(token=token, index=index):
                self._once_applied(index, lambda: self._read_outcome(token, index))
            case RoleChanged():
                log.info("%s: %s of term %d, leader %s", *_names(self, effect))
                self._on_role(effect)
            case Alarm(text=text):
                log.error("%s: %s", self.settings.self_id, text)
            case SendSnapshotChunk(peer=peer, context=context, request=request, size=size):
                request.data = self.snapshots.read(request.offset, size)
                self._begin_call(SendRequest(peer, context, request))
            case InstallSnapshot(snapshot=snapshot, data=data):
                self._save(snapshot, data, SnapshotInstalled(snapshot))
            case RestoreSnapshot(snapshot=snapshot):
                self._restore(snapshot)
            case RejoinCompleted():
                self._files.run(partial(damage_evidence.remove_rejoin, self.folder), lambda _: None)
                log.warning("%s: caught up with what was lost; this peer votes again", self.settings.self_id)
            case MembersChanged(addresses=addresses):
                self.addresses.update(addresses)

    def _begin_call(self, effect: SendRequest) -> None:
        if self._stopping:
            return
        task = asyncio.get_running_loop().create_task(self._send(effect))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _outcome(self, token: int, outcome: AppendResult | RaftOperationError) -> None:
        done = self._waiting.pop(token, None)
        if done is not None:
            done(outcome)

    def _read_outcome(self, token: int, outcome: int | RaftOperationError) -> None:
        done = self._reads.pop(token, None)
        if done is not None:
            done(outcome)

    def _apply_some(self) -> None:
        last = min(self.committed_index, self.applied_index + APPLY_MAX)
        while self.applied_index < last:
            entry = self.log.entry(self.applied_index + 1)
            assert entry is not None, f"committed entry {self.applied_index + 1} is not in the log"
            if entry.channel != MEMBERS_CHANNEL:
                self._apply(entry)
            self.applied_index += 1
        if self.applied_index < self.committed_index and self._catch_up is None:
            self._catch_up = asyncio.get_running_loop().call_soon(self._go_on_applying)
        while self._until_applied and self._until_applied[0][0] <= self.applied_index:
            self._until_applied.pop(0)[1]()
        self._snapshot_if_due()

    def _go_on_applying(self) -> None:
        self._catch_up = None
        if self._node is None or self._failed is not None:
            return
        if self._effects:  # one of them may say that the log begins anew
            self._catch_up = asyncio.get_running_loop().call_later(APPLY_WAIT_S, self._go_on_applying)
            return
        try:
            self._apply_some()
        except Exception as error:
            self._fail_for_good(error)

    def _once_applied(self, index: int, action: Callable[[], None]) -> None:
        """Does something as soon as an index is applied, which is now unless there was too much for one
        turn."""
        if index <= self.applied_index:
            action()
        else:
            self._until_applied.append((index, action))

    async def _send(self, send: SendRequest) -> None:
        code = REQUEST_CODES[type(send.request)]
        response: RequestOrResponse | None = None
        try:
            answer = await self._client.call(
                self.addresses[send.peer],
                make_request(code, body=encode_body(send.request)),
                self.settings.rpc_timeout_ms,
            )
            response = decode_body(RESPONSE_TYPES[code], answer.body)
        except EpochMQError as error:
            log.debug("%s to %s: %s", type(send.request).__name__, send.peer, error)
        self._feed(CallCompleted(send.peer, send.context, send.request, response))

    # Snapshots ----------------------------------------------------------------------------------------------

    def _snapshot_if_due(self) -> None:
        """Saves what has been applied, once enough has been since the last time. What `save` gives is made on
        the loop, for nothing may be applied meanwhile; the file is written beside it."""
        every, last = self.settings.snapshot_entries, self.snapshots.current
        since = self.applied_index - (last.index if last is not None else self.log.begin_index - 1)
        if self._machine is None or not 0 < every <= since or self._saving or self._stopping:
            return
        if self.applied_index < self._snapshot_from:
            return
        entry = self.log.entry(self.applied_index)
        if entry is None or not self.node.may_compact():
            return
        data = self._machine.save()
        members = self.node.member.membership.addresses_at(self.applied_index)
        snapshot = Snapshot(entry, len(data), zlib.crc32(data), members)
        self._save(snapshot, data, SnapshotSaved(snapshot))

    def _save(self, snapshot: Snapshot, data: bytes, then: SnapshotSaved | SnapshotInstalled) -> None:
        self._saving = True
        job = partial(self.snapshots.save, snapshot, data)
        self._files.run(
            job,
            lambda descriptor: self._saved(snapshot, descriptor, then),
            lambda error: self._not_saved(snapshot, error, then),
        )

    def _saved(self, snapshot: Snapshot, descriptor: int, then: SnapshotSaved | SnapshotInstalled) -> None:
        self._saving = False
        if self._node is None:
            os.close(descriptor)
            return
        self.snapshots.set_current(snapshot, descriptor)
        log.info("%s: snapshot at %d, %d bytes", self.settings.self_id, snapshot.index, snapshot.size)
        self._feed(then)

    def _not_saved(
        self, snapshot: Snapshot, error: Exception, then: SnapshotSaved | SnapshotInstalled
    ) -> None:
        self._saving = False
        full = isinstance(error, OSError) and error.errno in DISK_FULL
        if isinstance(then, SnapshotInstalled) or not full:
            self._fail_for_good(error)
        else:
            log.warning("%s: no snapshot at %d: %s", self.settings.self_id, snapshot.index, error)
            self._snapshot_from = self.applied_index + self.settings.snapshot_entries

    def _restore(self, snapshot: Snapshot) -> None:
        """The state machine goes on from a leader's snapshot."""
        if self._machine is not None:
            self._machine.restore(self.snapshots.read(0, snapshot.size))
        self.applied_index = snapshot.index
        self._apply_some()

    # Durability ---------------------------------------------------------------------------------------------

    def _sync_if_needed(self) -> None:
        """Nothing is synced while the log is being erased behind its end: its first entry may be in memory
        only."""
        if (self._is_syncing and not self._flush_async) or self._failed is not None:
            return
        member = self.node.member
        if self.log.end_index <= member.synced_index or not self.log.is_writable:
            return
        if self._flush_async:
            self._flush_soon()
            self._feed(LogSynced(self.log.end_index, self.log.end_term))
        else:
            self._sync()

    def _sync(self) -> None:
        index, term = self.log.end_index, self.log.end_term
        self._is_syncing = True
        job = partial(sync_and_close, self.log.take_unsynced())
        self._worker.run(job, lambda _: self._synced(index, term))

    def _synced(self, index: int, term: int) -> None:
        self._is_syncing = False
        if self._node is not None:
            self.log.mark_synced(index, term)
            self._feed(LogSynced(index, term))

    def _flush_soon(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._flush)

    def _flush(self) -> None:
        """In the background, for what is acknowledged already."""
        self._flush_timer = None
        if self._failed is not None or self._stopping:
            return
        if self._is_syncing or not self.log.is_writable:
            self._flush_soon()
        else:
            self._sync()

    def _erased(self, _: None) -> None:
        """What was cut is gone for good."""
        if self._node is None or self._failed is not None:
            return
        try:
            self.log.on_erasure_completed()
        except (OSError, LogFullError) as error:
            self._fail_for_good(error)
        else:
            self._feed(ErasureCompleted())


def _names(peer: DLedgerPeer, effect: RoleChanged) -> tuple[str, str, int, str | None]:
    return peer.settings.self_id, effect.role.value, effect.term, effect.leader
