"""A machine with a consensus peer in a simulated world.

The peers are `RaftNode`s, the cores that production runs. A `PeerHost` drives them as `DLedgerPeer` does: one
input after another, effects in order, a vote saved before any effect after it, and one sync at a time for all
entries written meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.raft_log import BodyLog, LogFullError, RaftLog, check_terms
from epochmq_dledger.core.types import (
    Alarm,
    ApplyCommitted,
    CallCompleted,
    EraseDroppedEntries,
    ErasureCompleted,
    LeadershipTransferred,
    LogSynced,
    OperationFailed,
    Proposal,
    ProposalBatch,
    ProposalCommitted,
    RaftEffect,
    RaftInput,
    RaftSettings,
    ReadReady,
    RejoinCompleted,
    RequestReceived,
    RoleChanged,
    SavedMembership,
    SaveMemberships,
    SaveVote,
    SendRequest,
    SendResponse,
    Tick,
)
from epochmq_dledger.store.segments import UnsyncedFiles
from epochmq_protocol.dledger import DLedgerEntry, PushEntryRequest, RequestOrResponse, VoteResult
from tests.simulation.clockwork import RPC_TIMEOUT_MS, Call, Host
from tests.simulation.simulated_logs import MemoryLogHost, StoredLog

if TYPE_CHECKING:
    from tests.simulation.raft_world import RaftWorld

TICK_MS = 10


class UndetectableLossError(Exception):
    """A disk has lost durable entries without a trace: a sync lied, or a bit of the last entries flipped.
    Raft promises nothing then."""


class PeerHost(Host):
    """One peer's machine: its disk, which survives a kill, and its core while it runs."""

    world: RaftWorld

    def __init__(self, world: RaftWorld, name: str, settings: RaftSettings) -> None:
        super().__init__(world, name)
        self.settings = settings
        self.log: MemoryLogHost | StoredLog = world.make_log(name, settings.file_size)
        self.term = 0
        self.voted_for: str | None = None
        self.vote_before: tuple[int, str | None] = (0, None)
        self.rejoins = False
        """The disk says that this peer recovers lost data."""
        self.vote_lost = False
        self.is_new_directory = False
        """It began with an empty directory, and does not know yet whether its group is new."""
        self.only_unflushed = False
        """It may have lost what it had acknowledged before the flush."""
        self.committed_at_start = 0
        """The number of entries that were committed when the peer started."""
        self.memberships: tuple[SavedMembership, ...] = ()
        """The memberships that the peer of a block log has saved."""
        self.checkpoint = -1
        """The committed index of the last checkpoint."""
        self.committed = -1
        self.node: RaftNode | None = None
        self.core_before = (0, -1, -1)
        """Term, committed index and end of the log at the last check of this life."""
        self.inbox: deque[RaftInput] = deque()
        self.proposals: list[Proposal] = []
        self.stepping = False
        self.effects_left: int | None = None
        """The peer dies after this many more effects; None: it does not."""
        self.calls: dict[int, Call] = {}
        self.timer_at = float("inf")
        self.syncing = False
        self.slow_disk_until = 0.0
        self.stuck_disk_until = 0.0

    # Life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        super().start()
        self.log.restart()
        begin = self.log.begin_index
        self.committed = min(max(self.checkpoint, begin if begin > 0 else -1), self.log.end_index)
        self.timer_at = float("inf")
        self.syncing = False
        self.inbox.clear()
        self.calls.clear()
        self.node = RaftNode(
            self.settings,
            cast("RaftLog", self.log),
            self.world.random.random,
            self.clock(),
            term=self.term,
            voted_for=self.voted_for,
            committed=self.committed,
            rejoins=self.rejoins,
            vote_lost=self.vote_lost,
            is_new_directory=self.is_new_directory,
            only_unflushed=self.only_unflushed,
            body_log=cast("BodyLog | None", self.log.body_log),
            saved_memberships=self.memberships,
        )
        self.committed_at_start = len(self.world.committed)
        self.world.note(f"{self.name} starts, term {self.term}, log to {self.log.end_index}")
        self.recovered()
        self.arm()
        if self.world.ticking:
            self.later(TICK_MS, self.tick)

    def recovered(self) -> None:
        """Applies the entries that are known to be committed."""

    def die(self, kept: int | None = None) -> None:
        """Stops the peer. The synced part of the log survives, and the rest up to `kept`, by default a random
        index."""
        super().die()
        self.node = None
        self.core_before = (0, -1, -1)
        self.proposals.clear()
        end, durable = self.log.end_index, self.log.durable_end
        if isinstance(self.log, StoredLog):
            self.log.committed = self.checkpoint
        kept = self.log.crash(kept)
        if isinstance(self.log, StoredLog) and self.world.flush_async and self.log.power_failed:
            self.only_unflushed = self.only_unflushed or not self.rejoins
            self.rejoins = True
        if isinstance(self.log, StoredLog):
            self.rejoins = self.rejoins or self.log.damaged
            if self.log.lost_without_trace:
                raise UndetectableLossError(f"{self.name} has lost durable entries without a trace")
        self.world.note(f"{self.name} dies; log to {end}, synced to {durable}, kept to {kept}")
        if self.world.random.random() < 0.5:
            self.checkpoint = min(max(self.checkpoint, self.committed), kept)
        self.checkpoint = min(self.checkpoint, kept)
        self.effects_left = None

    def lose_directory(self) -> None:
        """Replaces the disk of a stopped peer by an empty one."""
        assert isinstance(self.log, StoredLog)
        before = self.log.entries
        self.log = self.world.make_log(self.name, self.settings.file_size)
        assert isinstance(self.log, StoredLog)
        self.log.last_entries = {entry.index: entry for entry in before}
        self.term, self.voted_for, self.vote_before = 0, None, (0, None)
        self.checkpoint, self.memberships = -1, ()
        self.rejoins = self.vote_lost = self.is_new_directory = True

    # The core -----------------------------------------------------------------------------------------------

    def feed(self, event: RaftInput) -> None:
        """Feeds inputs one after another."""
        self.inbox.append(event)
        if self.stepping:
            return
        self.stepping = True
        try:
            while self.inbox and self.node is not None:
                self.world.steps += 1
                try:
                    effects = self.node.step(self.inbox.popleft(), self.clock())
                except OSError as error:
                    self.disk_failed(error)
                    return
                self.check_core()
                for effect in effects:
                    if self.effects_left is not None:
                        self.effects_left -= 1
                        if self.effects_left < 0:
                            self.world.stop_peer(self)
                            return
                    self.carry_out(effect)
        finally:
            self.stepping = False
        if self.node is None:
            return
        if isinstance(self.log, StoredLog) and self.log.disk.failed:
            self.world.fail(f"{self.name} continues after its disk has failed: {self.log.disk.failed}")
        if self.world.flush_async:
            self._acknowledge_unflushed()
            if self.node is None:
                return  # it died while it carried out the effects of that
        elif self.node.member.synced_index > self.log.durable_end:
            self.world.fail(
                f"{self.name} counts {self.node.member.synced_index} as synced, but the disk holds entries "
                f"durably only up to {self.log.durable_end}"
            )
        if self.log.end_index > self.log.durable_end and not self.syncing and self.log.is_writable:
            self.sync()
        self.arm()

    def _acknowledge_unflushed(self) -> None:
        """Entries count as synced once they are written, as `LogSyncer` reports with an asynchronous
        flush."""
        assert self.node is not None
        log = self.log
        if log.is_writable and log.end_index > self.node.member.synced_index:
            self.feed(LogSynced(log.end_index, log.end_term))

    def check_core(self) -> None:
        """Checks the rules that the core states at its fields, and those that span two of its steps: term and
        committed index do not fall while the process runs."""
        node = self.node
        if node is None:
            return
        node.check_invariants()
        member = node.member
        if member.messages_rejected:
            self.world.fail(f"{self.name} rejected a message of a correct peer (`message_bounds`)")
        now = (member.term, member.committed_index, member.log.end_index)
        if now == self.core_before:
            return
        term, committed, end_index = self.core_before
        self.core_before = now
        if now[0] < term or now[1] < committed:
            self.world.fail(
                f"{self.name} goes back from term {term} and committed index {committed} to {now[:2]}"
            )
        if now[2] != end_index:
            check_terms(member.log, min(end_index, now[2]))

    def submit(self, proposal: Proposal) -> None:
        """Proposes as `DLedgerPeer.submit` does: proposals of one turn of the event loop are fed together."""
        self.proposals.append(proposal)
        if len(self.proposals) == 1:
            self.later(0.0, self._feed_proposals)

    def _feed_proposals(self) -> None:
        proposals, self.proposals = tuple(self.proposals), []
        if len(proposals) > 1:
            self.world.count_event("proposals written together", len(proposals))
        self.feed(ProposalBatch(proposals))

    def carry_out(self, effect: RaftEffect) -> None:
        """Carries out one effect of the core."""
        match effect:
            case SendRequest(peer=peer, context=context, request=request):
                self.transmit(peer, context, request)
            case SendResponse(call=call, response=response):
                if self.rejoins and getattr(response, "vote_result", None) is VoteResult.ACCEPT:
                    self.world.fail(f"{self.name} votes before it has recovered its lost data")
                found = self.calls.pop(call, None)
                if found is not None:
                    self.world.answer(found, self.world.encoded(response))
            case ApplyCommitted(index=index):
                self.world.on_commit(self, index)
            case SaveVote(term=term, voted_for=voted_for):
                if term < self.term:
                    self.world.fail(f"{self.name} goes back from term {self.term} to {term}")
                if term == self.term and self.voted_for not in (None, voted_for):
                    self.world.fail(f"{self.name} votes twice in term {term}")
                self.vote_before = self.term, self.voted_for
                self.term, self.voted_for = term, voted_for
            case SaveMemberships(memberships=memberships):
                self.memberships = memberships
            case EraseDroppedEntries():
                self.erase()
            case RoleChanged():
                self.world.on_role(self, effect)
            case ProposalCommitted():
                self.on_committed(effect)
            case ReadReady():
                self.on_read(effect)
            case OperationFailed():
                self.on_failed(effect)
            case RejoinCompleted():
                self.rejoined()
            case LeadershipTransferred():
                self.world.note(f"{self.name} has transferred its leadership")
            case Alarm(text=text):
                self.world.note(f"{self.name}: {text}")

    def rejoined(self) -> None:
        """The peer has recovered its lost data."""
        self.world.count_event("rejoined")
        self.world.note(f"{self.name} has recovered its lost data")
        required = self.world.committed[: self.committed_at_start]
        missing = [
            e.index
            for e in required[max(self.log.begin_index, 0) :]
            if self.log.entry(e.index) != e or (e.index > self.log.durable_end and not self.world.flush_async)
        ]
        self.world.excuse_unflushed(self, [required[index] for index in missing[:1]])
        if missing:
            self.world.fail(f"{self.name} votes again without the committed entries {missing[:3]}")
        self.rejoins = self.vote_lost = self.is_new_directory = self.only_unflushed = False

    def had(self, entry: DLedgerEntry) -> bool:
        """Whether this peer held the entry durably, and has lost it since. It may have acknowledged the
        entry, and does not vote before it holds it again."""
        lost = self.log.last_entries if self.rejoins and isinstance(self.log, StoredLog) else {}
        return lost.get(entry.index) == entry

    def disk_failed(self, error: Exception) -> None:
        """A disk error stops the peer. It starts again later, on a working disk."""
        self.world.note(f"{self.name} stops: {error}")
        self.world.count_event("disks failed")
        self.world.stop_peer(self, kept=0)

    def on_committed(self, effect: ProposalCommitted) -> None:
        """A proposal is committed."""

    def on_read(self, effect: ReadReady) -> None:
        """A read is confirmed."""

    def on_failed(self, effect: OperationFailed) -> None:
        """A proposal, read, transfer or membership change failed."""

    # Time ---------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Sets the timer for the core's next deadline."""
        assert self.node is not None
        due = (self.node.next_deadline_ms() + 0.01 - self.leaps_ms) / self.rate
        if due < self.timer_at:
            self.timer_at = due
            self.world.at(due - self.world.now, self._on_timer, self.life, due)

    def _on_timer(self, life: int, due: float) -> None:
        if self.life == life and self.timer_at == due:
            self.timer_at = float("inf")
            self.receive(self.on_time)

    def on_time(self) -> None:
        """Lets the core do what is due."""
        self.feed(Tick())

    def tick(self) -> None:
        """An extra tick, in some worlds. Before its deadline the core must have nothing to do."""
        node = self.node
        if node is None or self.stepping:
            return
        early = node.next_deadline_ms() > self.clock()
        effects = node.step(Tick(), self.clock())
        self.check_core()
        if early and effects:
            self.world.fail(f"{self.name}: nothing was due, but a tick caused {effects[0]}")
        for effect in effects:
            self.carry_out(effect)
        self.arm()
        self.later(TICK_MS, self.tick)

    def clock_leapt(self) -> None:
        if self.node is not None and not self.paused:
            self.timer_at = float("inf")
            self.arm()

    # The disk -----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Syncs the log, which takes a while."""
        self.syncing = True
        longest = 600 if self.slow_disk_until > self.world.now else self.world.sync_max_ms
        took = self.world.random.random() * longest
        self.later(took, self._synced, self.log.end_index, self.log.end_term, self.log.sync_begins())

    def erase(self) -> None:
        """Erases dropped entries, which takes a while, after the current sync."""
        took = self.world.random.random() * self.world.sync_max_ms
        self.later(took, self._erased, self.log.take_erasure())

    def _erased(self, erasure: Callable[[], None]) -> None:
        try:
            erasure()
            self.log.on_erasure_completed()
        except (OSError, LogFullError) as error:  # also if the disk is full after a reset
            self.disk_failed(error)
            return
        self.feed(ErasureCompleted())

    def _synced(self, index: int, term: int, begun: UnsyncedFiles) -> None:
        if self.stuck_disk_until > self.world.now and not self.world.quiet:
            self.later(50, self._synced, index, term, begun)
            return
        self.syncing = False
        try:
            self.log.sync_ends(begun)
        except OSError as error:
            self.disk_failed(error)
            return
        self.log.mark_synced(index, term)
        self.feed(LogSynced(index, term))

    # The network --------------------------------------------------------------------------------------------

    def transmit(self, peer: str, context: int, request: RequestOrResponse) -> None:
        """Sends a request to a peer."""
        world = self.world
        if world.beside_java:
            request.epochmq = None
        target = world.peers[peer]
        if world.verbose:
            world.note(f"{self.name} -> {peer}: {describe(request)}")

        def back(response: Any) -> None:
            if world.verbose and response is not None:
                world.note(f"{self.name} <- {peer}: {describe(response)}")
            self.feed(CallCompleted(peer, context, request, response))

        world.call(self, target, target.called, back, world.encoded(request))

    def called(self, call: Call, request: RequestOrResponse) -> None:
        """A peer's request has arrived."""
        self.world.sequence += 1
        token = self.world.sequence
        self.calls[token] = call
        self.feed(RequestReceived(token, request))


def describe(message: RequestOrResponse) -> str:
    """Describes a message in a few words."""
    kind = type(message).__name__.replace("Request", "").replace("Response", " answer")
    words = [kind, f"term {message.term}"]
    for name in ("vote_result", "ledger_end_index", "ledger_end_term", "pre_vote"):
        if getattr(message, name, None) is not None:
            words.append(f"{name} {getattr(message, name)}")
    if isinstance(message, PushEntryRequest):
        entries = message.entries
        words.append(f"{message.type.value} commit {message.commit_index}")
        if entries:
            words.append(f"entries {entries[0].index}..{entries[-1].index} of term {entries[-1].term}")
    elif hasattr(message, "end_index"):
        words.append(f"end {message.end_index}")
    if message.code != 200:
        words.append(f"code {int(message.code)}")
    return ", ".join(words)


def settings_for(name: str, names: tuple[str, ...]) -> RaftSettings:
    """Settings of a simulated peer: Java's proportions, but faster, and with small data files."""
    return RaftSettings(
        group="g",
        self_id=name,
        peers=names,
        file_size=4096,
        heartbeat_interval_ms=200,
        vote_interval_min_ms=100,
        vote_interval_max_ms=400,
        rpc_timeout_ms=RPC_TIMEOUT_MS,
        push_timeout_ms=400,
        push_pause_ms=100,
        push_batch_max=8,
        push_in_flight_max=32,
    )
