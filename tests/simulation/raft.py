"""Consensus peers in a simulated world, and Raft's promises as checks.

The peers are `RaftNode`s, the cores that production runs; a `PeerHost` does to them what `DLedgerPeer` does:
one input after another, effects in order, a vote saved before anything after it leaves, one sync at a time
for all that was written meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.raft_log import LogFullError
from epochmq_dledger.core.types import (
    Alarm,
    ApplyCommitted,
    CallCompleted,
    EraseDroppedEntries,
    ErasureCompleted,
    LeaderDisconnected,
    LeadershipTransferred,
    LogSynced,
    OperationFailed,
    Proposal,
    ProposalBatch,
    ProposalCommitted,
    RaftEffect,
    RaftInput,
    RaftRole,
    RaftSettings,
    ReadReady,
    RejoinCompleted,
    RoleChanged,
    SaveVote,
    SendRequest,
    SendResponse,
    Tick,
    TransferLeadership,
)
from epochmq_dledger.core.types import RequestReceived as PeerCall
from epochmq_dledger.store.segments import UnsyncedFiles
from epochmq_protocol.dledger import (
    DLedgerEntry,
    PushEntryRequest,
    RequestOrResponse,
    VoteResult,
    decode_body,
    encode_body,
)
from tests.simulation.clockwork import RPC_TIMEOUT_MS, Call, Host, Network, World
from tests.simulation.simulated_files import SimulatedOs
from tests.simulation.simulated_logs import MemoryLogHost, StoredLog

TICK_MS = 10


class UndetectableLossError(Exception):
    """A disk has lost what was durable, and nothing on it can show that: a sync lied, or a bit changed in
    what was written last. Raft promises nothing then."""


class PeerHost(Host):
    """One peer's machine: what survives a kill, and the node while it runs."""

    world: RaftWorld

    def __init__(self, world: RaftWorld, name: str, settings: RaftSettings) -> None:
        super().__init__(world, name)
        self.settings = settings
        self.log: MemoryLogHost | StoredLog = (
            StoredLog(world, name, settings.file_size) if world.stored else MemoryLogHost(world, name)
        )
        self.term = 0
        self.voted_for: str | None = None
        self.vote_before: tuple[int, str | None] = (0, None)
        self.rejoins = False
        """Something is lost, and this peer has not caught up; it is on its disk."""
        self.vote_lost = False
        self.must_have = 0
        """How much was committed when that was found."""
        self.checkpoint = -1
        """How far the log was committed at the last checkpoint."""
        self.committed = -1
        self.node: RaftNode | None = None
        self.inbox: deque[RaftInput] = deque()
        self.proposals: list[Proposal] = []
        self.stepping = False
        self.effects_left: int | None = None
        """After how many more effects this peer dies; None: it does not."""
        self.calls: dict[int, Call] = {}
        self.timer_at = float("inf")
        self.syncing = False
        self.slow_disk_until = 0.0
        self.stuck_disk_until = 0.0

    # Life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        super().start()
        self.log.restart()
        self.committed = min(self.checkpoint, self.log.end_index)
        self.timer_at = float("inf")
        self.syncing = False
        self.inbox.clear()
        self.calls.clear()
        self.node = RaftNode(
            self.settings,
            self.log,
            self.world.random.random,
            self.clock(),
            term=self.term,
            voted_for=self.voted_for,
            committed=self.committed,
            rejoins=self.rejoins,
            vote_lost=self.vote_lost,
        )
        self.must_have = len(self.world.committed)
        self.world.note(f"{self.name} starts, term {self.term}, log to {self.log.end_index}")
        self.recovered()
        self.arm()
        if self.world.ticking:
            self.later(TICK_MS, self.tick)

    def recovered(self) -> None:
        """Applies what is known to be committed."""

    def die(self, kept: int | None = None) -> None:
        """The synced part of the log survives, the rest up to `kept`, by default as it pleases chance."""
        super().die()
        self.node = None
        self.proposals.clear()
        end, durable = self.log.end_index, self.log.durable_end
        if isinstance(self.log, StoredLog):
            self.log.committed = self.checkpoint
        kept = self.log.crash(kept)
        if isinstance(self.log, StoredLog):
            self.rejoins = self.rejoins or self.log.damaged
            if self.log.unproven:
                raise UndetectableLossError(f"{self.name} has lost durable entries, and nothing shows it")
        self.world.note(f"{self.name} dies; log to {end}, synced to {durable}, kept to {kept}")
        if self.world.random.random() < 0.5:
            self.checkpoint = min(max(self.checkpoint, self.committed), kept)
        self.checkpoint = min(self.checkpoint, kept)
        self.effects_left = None

    # The core -----------------------------------------------------------------------------------------------

    def feed(self, event: RaftInput) -> None:
        """One input after another."""
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
            self.world.fail(f"{self.name} goes on after its disk has failed: {self.log.disk.failed}")
        if self.node.member.synced_index > self.log.durable_end:
            self.world.fail(
                f"{self.name} believes {self.node.member.synced_index} synced, "
                f"but only {self.log.durable_end} is"
            )
        if self.log.end_index > self.log.durable_end and not self.syncing and self.log.is_writable:
            self.sync()
        self.arm()

    def submit(self, proposal: Proposal) -> None:
        """As `DLedgerPeer.submit`: what one turn of the loop brings is fed together."""
        self.proposals.append(proposal)
        if len(self.proposals) == 1:
            self.later(0.0, self._feed_proposals)

    def _feed_proposals(self) -> None:
        proposals, self.proposals = tuple(self.proposals), []
        if len(proposals) > 1:
            self.world.happened("proposals written together", len(proposals))
        self.feed(ProposalBatch(proposals))

    def carry_out(self, effect: RaftEffect) -> None:
        """One effect of the node."""
        match effect:
            case SendRequest(peer=peer, context=context, request=request):
                self.transmit(peer, context, request)
            case SendResponse(call=call, response=response):
                if self.rejoins and getattr(response, "vote_result", None) is VoteResult.ACCEPT:
                    self.world.fail(f"{self.name} votes before it has caught up with what it has lost")
                found = self.calls.pop(call, None)
                if found is not None:
                    self.world.answer(found, self.world.wired(response))
            case ApplyCommitted(index=index):
                self.world.on_commit(self, index)
            case SaveVote(term=term, voted_for=voted_for):
                if term < self.term:
                    self.world.fail(f"{self.name} goes back from term {self.term} to {term}")
                if term == self.term and self.voted_for not in (None, voted_for):
                    self.world.fail(f"{self.name} votes twice in term {term}")
                self.vote_before = self.term, self.voted_for
                self.term, self.voted_for = term, voted_for
            case EraseDroppedEntries():
                self.erase()
            case RoleChanged():
                self.world.on_role(self, effect)
            case ProposalCommitted():
                self.on_committed(effect)
            case ReadReady():
                self.on_read(effect)
            case OperationFailed():
                self.on_refused(effect)
            case RejoinCompleted():
                self.rejoined()
            case LeadershipTransferred():
                self.world.note(f"{self.name} has handed over")
            case Alarm(text=text):
                self.world.note(f"{self.name}: {text}")

    def rejoined(self) -> None:
        """It has caught up with what it had lost."""
        self.world.happened("rejoined")
        self.world.note(f"{self.name} has caught up with what it had lost")
        bound = self.world.committed[: self.must_have]
        missing = [e.index for e in bound if self.log.entry(e.index) != e or e.index > self.log.durable_end]
        if missing:
            self.world.fail(f"{self.name} gets its vote back without {missing[:3]}, which were committed")
        self.rejoins = self.vote_lost = False

    def had(self, entry: DLedgerEntry) -> bool:
        """Whether this peer had the entry durably, and has lost it since: it may have said so, and has no
        vote before it has it again."""
        lost = self.log.last_entries if self.rejoins and isinstance(self.log, StoredLog) else []
        return entry.index < len(lost) and lost[entry.index] == entry

    def disk_failed(self, error: Exception) -> None:
        """An error of the disk ends the peer; somebody starts it again, on a disk that works."""
        self.world.note(f"{self.name} ends: {error}")
        self.world.happened("disks failed")
        self.world.stop_peer(self, kept=0)

    def on_committed(self, effect: ProposalCommitted) -> None:
        """A proposal is committed."""

    def on_read(self, effect: ReadReady) -> None:
        """A read is proven."""

    def on_refused(self, effect: OperationFailed) -> None:
        """A proposal, read or transfer failed."""

    # Time ---------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Keeps a timer for the core's next deadline."""
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
        """Something may be due."""
        self.feed(Tick())

    def tick(self) -> None:
        """A tick of those worlds that tick anyway. Before its deadline the core must have nothing to do."""
        node = self.node
        if node is None or self.stepping:
            return
        early = node.next_deadline_ms() > self.clock()
        effects = node.step(Tick(), self.clock())
        if early and effects:
            self.world.fail(f"{self.name}: nothing was due, but a tick made {effects[0]}")
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
        """Makes what is written durable, which takes a while."""
        self.syncing = True
        longest = 600 if self.slow_disk_until > self.world.now else self.world.sync_max_ms
        took = self.world.random.random() * longest
        self.later(took, self._synced, self.log.end_index, self.log.end_term, self.log.sync_begins())

    def erase(self) -> None:
        """Erases what was cut, which takes a while, after the sync that is under way."""
        took = self.world.random.random() * self.world.sync_max_ms
        self.later(took, self._erased, self.log.take_erasure())

    def _erased(self, erasure: Callable[[], None]) -> None:
        try:
            erasure()
            self.log.on_erasure_completed()
        except (OSError, LogFullError) as error:  # also when a log that begins anew finds no room
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
        """Calls a peer."""
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

        world.call(self, target, target.called, back, world.wired(request))

    def called(self, call: Call, request: RequestOrResponse) -> None:
        """A peer's call has come."""
        self.world.sequence += 1
        token = self.world.sequence
        self.calls[token] = call
        self.feed(PeerCall(token, request))


class RaftWorld(World):
    """Peers, and Raft's promises."""

    def __init__(
        self,
        seed: int,
        network: Network,
        *,
        beside_java: bool = False,
        wire: bool = False,
        ticking: bool = False,
        stored: bool = False,
        closing: bool = False,
        verbose: bool = False,
    ) -> None:
        """`beside_java` hides what peers of ours can do beyond DLedger, as a Java peer in the group would;
        `wire` encodes every message; `ticking` ticks every few milliseconds beside the deadlines; `stored`
        gives every peer the production store on a simulated disk; `closing` closes the connections of peers
        that die, and of some that do not."""
        super().__init__(seed, network, verbose=verbose)
        self.machine = SimulatedOs()
        self.stored = stored
        self.closing = closing
        self.beside_java = beside_java
        self.wire = wire
        self.ticking = ticking
        self.sync_max_ms = 20.0
        self.peers: dict[str, PeerHost] = {}
        self.leaders: dict[int, str] = {}
        self.written: dict[tuple[int, int], tuple[DLedgerEntry, int]] = {}
        self.committed: list[DLedgerEntry] = []

    def add_peer(self, peer: PeerHost) -> None:
        """Adds a machine with a peer."""
        self.peers[peer.name] = peer
        self.hosts[peer.name] = peer

    def wired(self, message: RequestOrResponse) -> RequestOrResponse:
        """The message as it arrives: itself, or what becomes of it in bytes."""
        return decode_body(type(message), encode_body(message)) if self.wire else message

    def leader(self) -> PeerHost | None:
        """The leader of the newest term among those that think they lead."""
        leading = [p for p in self.peers.values() if p.node is not None and p.node.leader is not None]
        return max(leading, key=lambda peer: peer.term, default=None)

    def host(self, who: str) -> Host:
        """Also `leader`: the present one, or the first peer."""
        if who == "leader":
            return self.leader() or next(iter(self.peers.values()))
        return super().host(who)

    # Promises -----------------------------------------------------------------------------------------------

    def on_role(self, peer: PeerHost, change: RoleChanged) -> None:
        """Election safety and leader completeness."""
        self.note(f"{peer.name} is {change.role.value} of term {change.term}, leader {change.leader}")
        if change.role is not RaftRole.LEADER:
            return
        if self.leaders.setdefault(change.term, peer.name) != peer.name:
            self.fail(
                f"election safety: term {change.term} has two leaders, "
                f"{self.leaders[change.term]} and {peer.name}"
            )
        bound = [entry for entry in self.committed if entry.term < change.term]
        if peer.log.entries[: len(bound)] != bound:
            self.fail(
                f"leader completeness: {peer.name} leads term {change.term} without all that is committed"
            )

    def on_commit(self, peer: PeerHost, index: int) -> None:
        """State machine safety: an index is committed with one entry only, by everybody; and when it is first
        committed, a quorum has it durably."""
        for at in range(peer.committed + 1, index + 1):
            entry = peer.log.entry(at)
            if entry is None:
                self.fail(f"{peer.name} commits {at}, which it does not have")
                return
            if at < len(self.committed):
                known = self.committed[at]
                if known is not entry and known != entry:
                    self.fail(f"{peer.name} commits {entry} at {at}, but {known} is committed there")
                continue
            self.committed.append(entry)
            holders = [
                p
                for p in self.peers.values()
                if (p.log.durable_end >= at and p.log.entry(at) == entry) or p.had(entry)
            ]
            if len(holders) <= len(self.peers) // 2:
                self.fail(
                    f"{peer.name} commits {at} of term {entry.term}, "
                    f"which only {[p.name for p in holders]} have durably"
                )
        peer.committed = index

    def check_logs(self) -> None:
        """Once the world is quiet: equal logs, all committed."""
        logs = [peer.log.entries for peer in self.peers.values()]
        if any(log != logs[0] for log in logs[1:]):
            self.fail(f"the logs still differ: {[len(log) for log in logs]}")
        ends = {p.name: p.node.member.committed_index for p in self.peers.values() if p.node is not None}
        if any(end != len(logs[0]) - 1 for end in ends.values()):
            self.fail(f"not everything is committed: {ends}, the log ends at {len(logs[0]) - 1}")

    # What may befall peers ----------------------------------------------------------------------------------

    def peer(self, who: str) -> PeerHost:
        """The peer of this name, or the leader."""
        found = self.host(who)
        assert isinstance(found, PeerHost)
        return found

    def do_kill(self, who: str, down_ms: float, effects: int | None) -> None:
        """kill -9 or power failure, now or in the middle of a coming step, after so many effects."""
        peer = self.peer(who)
        if not peer.up:
            return
        self.happened("kills")
        if effects is not None and not peer.paused:
            peer.effects_left = effects
            return
        self.stop_peer(peer, down_ms)

    def stop_peer(self, peer: PeerHost, down_ms: float = 300.0, kept: int | None = None) -> None:
        """Kills a peer, and starts it after a while."""
        peer.die(kept)
        self.at(down_ms, self._start, peer, peer.life)
        if self.closing:
            self.depart(peer)

    def do_part(self, who: str) -> None:
        """The connections of a peer break, though it lives."""
        peer = self.peer(who)
        if peer.up:
            self.note(f"the connections of {peer.name} break")
            self.depart(peer)

    def depart(self, gone: PeerHost) -> None:
        """Its connections close, which the others notice one after the other, or one does not."""
        for peer in self.peers.values():
            if peer is not gone and peer.up and self.random.random() < 0.9:
                peer.later(self.random.random() * 20, peer.feed, LeaderDisconnected(gone.name))
                self.happened("departures noticed")

    def _start(self, peer: Host, life: int) -> None:
        if peer.life == life and not peer.up:
            peer.start()

    def do_blackout(self, down_ms: float) -> None:
        """The power fails everywhere."""
        self.happened("blackouts")
        for peer in self.peers.values():
            if peer.up:
                self.stop_peer(peer, down_ms * (0.5 + self.random.random()), self.power_cut(peer))

    def power_cut(self, peer: PeerHost) -> int:
        """Up to where a power failure leaves a log."""
        end, durable = peer.log.end_index, peer.log.durable_end
        return self.random.randint(durable, end) if end > durable else end

    def do_fail_sync(self, who: str, down_ms: float) -> None:
        """A sync fails: the pages are gone, and the peer takes no more part until somebody starts it."""
        peer = self.peer(who)
        if peer.up:
            self.happened("syncs failed")
            self.note(f"a sync of {peer.name} fails")
            self.stop_peer(peer, down_ms, min(peer.log.durable_end, peer.log.end_index))

    def do_slow_disk(self, who: str, duration_ms: float) -> None:
        """Syncs take long."""
        peer = self.peer(who)
        self.happened("slow disks")
        peer.slow_disk_until = self.now + duration_ms
        self.note(f"the disk of {peer.name} is slow for {duration_ms:.0f} ms")

    def do_full_disk(self, who: str, duration_ms: float) -> None:
        """A disk takes nothing more for a while."""
        peer = self.peer(who)
        peer.log.watcher.full_until = self.now + duration_ms
        self.note(f"the disk of {peer.name} is full for {duration_ms:.0f} ms")

    def may_damage(self) -> bool:
        """One peer at a time may lose what was durable; and all must be ours."""
        healthy = not any(peer.rejoins or getattr(peer.log, "rots", False) for peer in self.peers.values())
        lying = any(peer.log.disk.lies for peer in self.peers.values() if isinstance(peer.log, StoredLog))
        return self.stored and healthy and not lying and not self.beside_java

    def do_little_room(self, who: str, sectors: int, duration_ms: float) -> None:
        """A disk takes a few more sectors; writes are short, and then fail."""
        peer = self.peer(who)
        if isinstance(peer.log, StoredLog):
            peer.log.disk.room = sectors
            self.happened("little room")
            self.note(f"the disk of {peer.name} has room for {sectors} sectors")
            self.at(duration_ms, self._make_room, peer.log)

    def _make_room(self, log: StoredLog) -> None:
        log.disk.room = None

    def do_io_error(self, who: str, call: str, after: int) -> None:
        """A call of this kind fails, after some that go well."""
        peer = self.peer(who)
        if isinstance(peer.log, StoredLog) and peer.up:
            peer.log.disk.failing[call] = after

    def do_rot(self, who: str, down_ms: float) -> None:
        """A peer is killed, and a bit on its disk changes."""
        peer = self.peer(who)
        if isinstance(peer.log, StoredLog) and peer.up and self.may_damage():
            peer.log.rots = True
            self.stop_peer(peer, down_ms)

    def do_lost_vote(self, who: str, down_ms: float) -> None:
        """A peer is killed, and what it last said of its vote is lost."""
        peer = self.peer(who)
        if peer.up and self.may_damage():
            self.stop_peer(peer, down_ms)
            peer.term, peer.voted_for = peer.vote_before[0], None
            peer.rejoins = peer.vote_lost = True
            self.happened("votes lost")

    def do_lie(self, who: str, duration_ms: float) -> None:
        """The syncs of a peer say that all is well and do nothing, until its power fails."""
        peer = self.peer(who)
        if isinstance(peer.log, StoredLog) and peer.up and self.may_damage():
            peer.log.disk.lies = True
            self.happened("lying syncs")
            self.at(duration_ms, self._end_lie, peer)

    def _end_lie(self, peer: PeerHost) -> None:
        if isinstance(peer.log, StoredLog) and peer.log.disk.lies and peer.up and not self.quiet:
            self.stop_peer(peer, 300.0, kept=0)

    def do_stuck_disks(self, duration_ms: float) -> None:
        """The disks of all but the leader make nothing durable."""
        leader = self.leader()
        self.happened("stuck disks")
        for peer in self.peers.values():
            if peer is not leader:
                peer.stuck_disk_until = self.now + duration_ms
        self.note(f"all disks but the leader's are stuck for {duration_ms:.0f} ms")

    def do_stale(self, pause_ms: float, deaf_ms: float) -> None:
        """The leader is stopped long enough to be replaced, and goes on without hearing of it at first."""
        leader = self.host("leader")
        if leader.up:
            for other in self.peers.values():
                if other is not leader:
                    self._cut(other, leader, pause_ms + deaf_ms)
            self.do_pause(leader.name, pause_ms)

    def do_transfer(self, who: str, to: str) -> None:
        """Somebody orders a peer to hand leadership over."""
        peer = self.peer(who)
        if peer.up and not peer.paused:
            peer.feed(TransferLeadership(to, 0))


def describe(message: RequestOrResponse) -> str:
    """A message in a few words."""
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
    """Settings of a simulated peer: Java's proportions at a faster pace, small files so that they roll."""
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
