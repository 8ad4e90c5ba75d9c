"""Groups whose members change: peers join and leave one at a time, logs lose their first entries to
snapshots, and peers that lag far behind receive snapshots, under the faults of every other world.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.raft_log import MemoryLog
from epochmq_dledger.core.types import (
    ApplyCommitted,
    ChangeMembers,
    InstallSnapshot,
    MembersChanged,
    OperationFailed,
    Proposal,
    ProposalCommitted,
    RaftEffect,
    RaftInput,
    RaftRole,
    RaftSettings,
    ReadIndex,
    ReadReady,
    RestoreSnapshot,
    RoleChanged,
    SendRequest,
    SendSnapshotChunk,
    Snapshot,
    SnapshotInstalled,
    SnapshotSaved,
    Tick,
)
from epochmq_dledger.store.segments import UnsyncedFiles
from epochmq_protocol.dledger import (
    MEMBERS_CHANNEL,
    DLedgerEntry,
    DLedgerResponseCode,
    decode_members,
)
from tests.simulation import fault_plan
from tests.simulation.campaign import Kind
from tests.simulation.clockwork import ViolationError
from tests.simulation.fault_plan import Plan
from tests.simulation.peer_host import TICK_MS, PeerHost, settings_for
from tests.simulation.raft_world import RaftWorld
from tests.simulation.shrink import shrink
from tests.simulation.simulated_logs import LogChecker, StoredLog

SEEDS = 16
SOAK_FACTOR = 75
FIRST_VOTERS = ("n0", "n1", "n2")
ALL_PEERS = ("n0", "n1", "n2", "n3", "n4", "n5")
SNAPSHOT_ENTRIES = 15
"""Entries from one snapshot to the next."""


class CompactableLog(MemoryLog):
    """A log in memory that may drop its first entries for a snapshot. Entries up to `durable_end` survive a
    kill."""

    def __init__(self, world: MembershipWorld, name: str) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.checker = LogChecker(world, name)
        self.durable_end = -1

    def append(self, entries: list[DLedgerEntry]) -> None:
        self.checker.check_room()
        before = self.end_term
        for entry in entries:
            first = self.world.written.setdefault((entry.index, entry.term), (entry, before))
            if first != (entry, before):
                self.world.fail(
                    f"log matching: {self.name} has {entry} after term {before}, expected {first}"
                )
            before = entry.term
        super().append(entries)

    def truncate(self, end_index: int) -> None:
        cut, committed = end_index + 1, self.world.committed
        if cut <= self.end_index and cut < len(committed) and self.entry(cut) == committed[cut]:
            self.world.fail(f"{self.name} truncates entry {cut}, which is committed")
        super().truncate(end_index)
        self.durable_end = min(self.durable_end, end_index)

    def reset(self, entry: DLedgerEntry) -> None:
        check_reset(self.world, self.name, self.end_index, entry)
        super().reset(entry)
        self.durable_end = entry.index - 1

    def sync_begins(self) -> UnsyncedFiles:
        return UnsyncedFiles()

    def sync_ends(self, begun: UnsyncedFiles) -> None:
        pass

    def mark_synced(self, index: int, term: int) -> None:
        if self.term(index) == term:
            self.durable_end = max(self.durable_end, index)

    def take_erasure(self) -> Callable[[], None]:
        return lambda: None

    def on_erasure_completed(self) -> None:
        pass

    def restart(self) -> None:
        self.durable_end = self.end_index

    def crash(self, kept: int | None) -> int:
        """Drops entries after `kept`, by default a random index after the synced ones. Returns the last one
        left."""
        kept = (
            self.world.random.randint(self.durable_end, max(self.durable_end, self.end_index))
            if kept is None
            else kept
        )
        super().truncate(kept)
        return kept


class StoredCompactableLog(StoredLog):
    """The production store under the same rules, on a disk that loses unsynced data."""

    world: MembershipWorld

    def reset(self, entry: DLedgerEntry) -> None:
        check_reset(self.world, self.checker.name, self.end_index, entry)
        self.store.reset(entry)
        self.durable_end = entry.index - 1

    def drop_before(self, index: int) -> None:
        self.store.drop_before(index)
        for removal in self.store.take_removals():
            removal()
        if not self.begin_index <= index:
            self.world.fail(f"{self.checker.name} has dropped entry {index}")

    def crash(self, kept: int | None) -> int:
        durable, before = self.durable_end, self.end_index
        self.store.close()
        if kept is not None or self.world.random.random() < 0.5:
            for folder in self.folders:
                folder.crash(self.world.random)
        self.store = self.opened()
        # A reset log may be lost whole before its first sync: the start repeats the reset to the snapshot.
        snapshot = self.world.peers[self.checker.name].stored
        in_snapshot = snapshot[0].index if snapshot is not None else -1
        if max(self.end_index, in_snapshot) < durable:
            self.world.fail(f"{self.checker.name} recovers entries up to {self.end_index}, not {durable}")
        entries = self.entries
        self.checker.appending(entries[0].term, entries[1:]) if entries else None
        self.durable_end = durable
        return min(self.end_index, before)


def check_reset(world: MembershipWorld, name: str, end_index: int, entry: DLedgerEntry) -> None:
    """Checks that only a snapshot replaces a log with committed entries."""
    is_first = entry.index == 0 and not (end_index >= 0 and world.committed)
    if not is_first and world.committed[entry.index : entry.index + 1] != [entry]:
        world.fail(f"{name} resets its log to {entry}, which is not committed")


class MembershipPeer(PeerHost):
    """A peer with a state machine: the number of entries, and a checksum of all bodies in order."""

    world: MembershipWorld

    def __init__(self, world: MembershipWorld, name: str, settings: RaftSettings) -> None:
        super().__init__(world, name, settings)
        self.log: Any = CompactableLog(world, name)
        if world.stored:
            self.log = StoredCompactableLog(world, name, settings.file_size)
        self.stored: tuple[Snapshot, bytes] | None = None
        """The durable snapshot."""
        self.applied = -1
        self.state = (0, 0)
        self.saving = False
        self.saves: deque[tuple[Snapshot, bytes, RaftInput]] = deque()

    # As DLedgerPeer -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.up = True
        self.life += 1
        self.log.restart()
        snapshot = None
        self.applied, self.state, self.saving = -1, (0, 0), False
        self.saves.clear()
        if self.stored is not None:
            snapshot, data = self.stored
            if self.log.entry(snapshot.index) != snapshot.entry:
                self.log.reset(snapshot.entry)
                self.log.take_erasure()()
                self.log.on_erasure_completed()
            self.log.restart()
            self.applied, self.state = snapshot.index, _state(data)
        self.committed = max(min(self.checkpoint, self.log.end_index), self.applied)
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
            snapshot=snapshot,
        )
        self.world.note(
            f"{self.name} starts, term {self.term}, log {self.log.begin_index} to {self.log.end_index}"
        )
        self.apply()
        self.feed(Tick())
        if self.world.ticking:
            self.later(TICK_MS, self.tick)

    def carry_out(self, effect: RaftEffect) -> None:
        super().carry_out(effect)
        match effect:
            case ApplyCommitted():
                self.apply()
            case MembersChanged(addresses=addresses):
                if not set(addresses) <= set(self.world.peers):
                    self.world.fail(f"{self.name} gets unknown members {addresses}")
            case SendSnapshotChunk(peer=peer, context=context, request=request, size=size):
                assert self.stored is not None
                assert self.stored[0].entry == request.entry
                request.data = self.stored[1][request.offset : request.offset + size]
                self.carry_out(SendRequest(peer, context, request))
            case InstallSnapshot(snapshot=snapshot, data=data):
                self.save(snapshot, data, SnapshotInstalled(snapshot))
            case RestoreSnapshot(snapshot=snapshot):
                assert self.stored is not None
                self.world.counted["installed"] += 1
                self.applied, self.state = snapshot.index, _state(self.stored[1])
                self.world.check_state(self)
                self.committed = max(self.committed, snapshot.index)
                self.apply()

    def apply(self) -> None:
        """Applies committed entries, and takes a snapshot if one is due."""
        while self.applied < self.committed:
            entry = self.log.entry(self.applied + 1)
            assert entry is not None, f"{self.name} has no entry {self.applied + 1} to apply"
            self.state = _applied(self.state, entry)
            self.applied += 1
        self.world.check_state(self)
        last = self.stored[0].index if self.stored is not None else self.log.begin_index - 1
        due = self.applied - last >= SNAPSHOT_ENTRIES and self.world.compacting
        if self.node is None or not due or self.saving or not self.node.may_compact():
            return
        entry = self.log.entry(self.applied)
        assert entry is not None
        data = json.dumps(self.state).encode() + b" " * 90
        snapshot = Snapshot(
            entry, len(data), zlib.crc32(data), self.node.member.membership.addresses_at(self.applied)
        )
        self.saving = True
        self.save(snapshot, data, SnapshotSaved(snapshot))

    def save(self, snapshot: Snapshot, data: bytes, then: RaftInput) -> None:
        """Saves a snapshot later. Snapshots are saved one after another."""
        self.saves.append((snapshot, data, then))
        self.later(self.world.random.random() * 100, self._saved)

    def _saved(self) -> None:
        snapshot, data, then = self.saves.popleft()
        if self.stored is not None and self.stored[0].index > snapshot.index:
            self.world.fail(f"{self.name} replaces a newer snapshot by an older one")
        self.stored = snapshot, data
        self.saving = False
        self.world.counted["snapshots"] += 1
        self.feed(then)

    # Results ------------------------------------------------------------------------------------------------

    def on_committed(self, effect: ProposalCommitted) -> None:
        if effect.token in self.world.changes:
            self.world.counted["changes"] += 1
            self.world.note(f"change {self.world.changes[effect.token]} is committed")
        else:
            self.world.acknowledged[effect.token] = (effect.index, effect.term)
            self.world.acknowledged_at[effect.token] = self.world.now

    def on_failed(self, effect: OperationFailed) -> None:
        if effect.token in self.world.changes:
            self.world.note(f"change {self.world.changes[effect.token]} failed: {effect.code.name}")
            self.world.rejected[effect.token] = effect.code

    def on_read(self, effect: ReadReady) -> None:
        if effect.index < self.world.reads[effect.token]:
            self.world.fail(f"{self.name} serves an outdated read at {effect.index}")
        self.world.counted["reads"] += 1


def _applied(state: tuple[int, int], entry: DLedgerEntry) -> tuple[int, int]:
    return state[0] + 1, zlib.crc32(entry.body, state[1])


def _state(data: bytes) -> tuple[int, int]:
    count, crc = json.loads(data)
    return count, crc


def settings_of(name: str) -> RaftSettings:
    """The settings of a peer. n0, n1 and n2 are a group; the others wait to be added."""
    peers = FIRST_VOTERS if name in FIRST_VOTERS else (*FIRST_VOTERS, name)
    plain = settings_for(name, peers)
    return msgspec.structs.replace(
        plain, joining=name not in FIRST_VOTERS, snapshot_chunk_bytes=40, catch_up_wait_max_ms=5000
    )


def plan(seed: int) -> Plan:
    """Plans a seed's world."""
    rng = random.Random(f"membership {seed}")
    found = Plan(
        seed,
        fault_plan.network(rng),
        options={
            "wire": rng.random() < 0.1,
            "compacting": rng.random() < 0.8,
            "stored": rng.random() < 0.25,
            "ticking": rng.random() < 0.1,
        },
    )
    rates = fault_plan.mixture(
        rng, {kind: rate for kind, rate in fault_plan.PEER_RATES.items() if kind != "duel"}, 0.5
    )
    makers = fault_plan.peer_makers(list(ALL_PEERS))
    until_ms = found.faults_ms
    streams = [fault_plan.stream(rng, kind, rate, until_ms, makers[kind]) for kind, rate in rates.items()]
    per_minute = 60 * rng.choice((1, 4, 10))
    streams.append(
        fault_plan.stream(rng, "propose", per_minute, until_ms, lambda r: (r.random(), r.random()))
    )
    streams.append(fault_plan.stream(rng, "read", 60, until_ms, lambda r: (r.random(),)))
    change_rate = rng.choice((10, 40, 120))
    streams.append(
        fault_plan.stream(rng, "change", change_rate, until_ms, lambda r: (r.random(), r.choice(ALL_PEERS)))
    )
    found.events = fault_plan.sequence(streams)
    return found


class MembershipWorld(RaftWorld):
    """The world of a plan."""

    peers: dict[str, MembershipPeer]  # type: ignore[assignment]

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        options = dict(plan.options)
        self.compacting = options.pop("compacting", True)
        shared_settings = options.pop("shared_settings", {})
        super().__init__(plan.seed, plan.network, verbose=verbose, **options)
        self.wanted = plan
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.acknowledged_at: dict[int, float] = {}
        self.bodies: dict[int, bytes] = {}
        self.reads: dict[int, int] = {}
        self.changes: dict[int, str] = {}
        self.rejected: dict[int, DLedgerResponseCode] = {}
        self.states: list[tuple[int, int]] = []
        self.counted = dict.fromkeys(("installed", "snapshots", "changes", "reads"), 0)
        self.tokens = 0
        for name in ALL_PEERS:
            settings = settings_of(name)
            if name in shared_settings:
                settings = msgspec.structs.replace(settings, shared_settings=shared_settings[name])
            peer = MembershipPeer(self, name, settings)
            peer.rate = 1 + self.random.uniform(-1, 1) * plan.drift
            self.add_peer(peer)
        for started in self.peers.values():
            started.start()

    def counts(self) -> dict[str, int]:
        return {**self.counted, "acknowledged": len(self.acknowledged), "leaderships": len(self.leaders)}

    # Promises -----------------------------------------------------------------------------------------------

    def on_role(self, peer: PeerHost, change: RoleChanged) -> None:
        self.note(f"{peer.name} is {change.role.value} of term {change.term}, leader {change.leader}")
        if change.role is not RaftRole.LEADER:
            return
        if self.leaders.setdefault(change.term, peer.name) != peer.name:
            self.fail(f"election safety: term {change.term} has two leaders")
        for entry in self.committed:
            if (
                entry.term < change.term
                and entry.index >= peer.log.begin_index
                and peer.log.entry(entry.index) != entry
            ):
                self.fail(f"leader completeness: {peer.name} leads term {change.term} without {entry}")
        if peer.log.end_index < 0 <= len(self.committed) - 1 and self.committed[0].term < change.term:
            self.fail(f"leader completeness: {peer.name} leads term {change.term} with an empty log")

    def on_commit(self, peer: PeerHost, index: int) -> None:
        assert peer.node is not None
        voters = peer.node.member.voters
        for at in range(peer.committed + 1, index + 1):
            entry = peer.log.entry(at)
            if entry is None:
                self.fail(f"{peer.name} commits {at}, which it does not have")
                return
            if at < len(self.committed):
                if self.committed[at] != entry:
                    self.fail(
                        f"{peer.name} commits {entry} at {at}, but {self.committed[at]} is committed there"
                    )
                continue
            self._first_commit(peer, entry, voters)
        peer.committed = index

    def _first_commit(self, peer: PeerHost, entry: DLedgerEntry, voters: tuple[str, ...]) -> None:
        before = next((e for e in reversed(self.committed) if e.channel == MEMBERS_CHANNEL), None)
        known = set(decode_members(before).keys()) if before is not None else set(FIRST_VOTERS)
        self.committed.append(entry)
        self.states.append(_applied(self.states[-1] if self.states else (0, 0), entry))
        if entry.channel == MEMBERS_CHANNEL and len(known ^ set(decode_members(entry))) != 1:
            self.fail(f"from {sorted(known)} to {decode_members(entry)} in one step")
        holders = [p.name for p in self.peers.values() if p.log.durable_end >= entry.index]
        holders = [
            name
            for name in holders
            if self.peers[name].log.begin_index > entry.index
            or self.peers[name].log.entry(entry.index) == entry
        ]
        if len(set(holders) & set(voters)) <= len(voters) // 2:
            self.fail(f"{peer.name} commits {entry}, which only {holders} of {voters} have durably")

    def check_state(self, peer: MembershipPeer) -> None:
        """State machine safety: equal applied indexes mean equal states."""
        if peer.applied >= 0 and peer.applied < len(self.states) and peer.state != self.states[peer.applied]:
            self.fail(f"{peer.name} has {peer.state} at {peer.applied}, expected {self.states[peer.applied]}")

    # Clients and operators ----------------------------------------------------------------------------------

    def someone(self, luck: float) -> MembershipPeer:
        """A random peer, mostly one that leads."""
        leading = [one for one in self.peers.values() if one.node is not None and one.node.leader is not None]
        if leading and luck < 0.9:
            return leading[int(luck / 0.9 * len(leading))]
        return list(self.peers.values())[int(luck * len(self.peers))]

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def do_propose(self, luck: float, size: float) -> None:
        peer = self.someone(luck)
        if peer.up:
            token = self.token()
            self.bodies[token] = b"p%d%s" % (token, b"." * int(size * 60))
            peer.receive(peer.feed, Proposal(token, (self.bodies[token],)))

    def do_read(self, luck: float) -> None:
        peer = self.someone(luck)
        if peer.up:
            token = self.token()
            self.reads[token] = len(self.committed) - 1
            peer.receive(peer.feed, ReadIndex(token))

    def do_change(self, luck: float, who: str) -> None:
        """An operator adds a peer, or removes it if it is a member; at least two voters stay."""
        peer = self.someone(luck)
        if peer.up and peer.node is not None:
            self.change(peer, who)

    def change(self, peer: MembershipPeer, who: str) -> int:
        assert peer.node is not None
        voters = peer.node.member.voters
        token = self.token()
        leaves = who in voters and len(voters) > 2
        self.changes[token] = f"{'-' if leaves else '+'}{who}"
        addresses = {name: name for name in voters}
        peer.receive(peer.feed, ChangeMembers(token, who, None if leaves else who, addresses))
        return token

    def live(self) -> None:
        """Lives the plan: faults, then quiet, then the final checks."""
        with self.machine.installed():
            self.plan(self.wanted.events)
            self.run(self.wanted.faults_ms)
            self.end_faults()
            self.run(self.wanted.faults_ms + self.wanted.quiet_ms)
            self.check_end()

    def check_end(self) -> None:
        """Checks that a quiet world has a leader, that all its voters hold all entries, and that every
        acknowledged proposal is among them."""
        leader = self.leader()
        if leader is None or leader.node is None:
            self.fail("nobody leads")
            return
        for name in leader.node.member.voters:
            peer = self.peers[name]
            if peer.applied != len(self.committed) - 1 or peer.log.end_index != leader.log.end_index:
                self.fail(f"{name} has applied {peer.applied} of {len(self.committed) - 1}")
            if peer.log.end_index != peer.applied:
                self.fail(f"not everything is committed: {peer.applied} of {peer.log.end_index}")
            self.check_state(peer)
        for token, (index, term) in self.acknowledged.items():
            entry = self.committed[index]
            if (entry.body, entry.term) != (self.bodies[token], term):
                self.fail(f"proposal {token} was acknowledged at {index}, but {entry} is there")


KIND = Kind(plan, MembershipWorld)


def hold(seeds: range) -> dict[str, int]:
    """Checks that all seeds keep all promises. AssertionError reports the first one that does not."""
    total: dict[str, int] = {}
    for seed in seeds:
        world = MembershipWorld(plan(seed))
        try:
            world.live()
        except (ViolationError, AssertionError) as broken:
            found = shrink(KIND, plan(seed), 15)
            history = [*found.plan.lines(), *found.history[-100:], f"at {found.at_ms:.0f} ms: {found.text}"]
            raise AssertionError(f"seed {seed}: {broken}\n" + "\n".join(history)) from broken
        for name, count in world.counts().items():
            total[name] = total.get(name, 0) + count
    return total
