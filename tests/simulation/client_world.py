"""Consensus peers with clients that propose and read."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from epochmq_dledger.core.types import (
    OperationFailed,
    Proposal,
    ProposalCommitted,
    RaftSettings,
    ReadIndex,
    ReadReady,
)
from epochmq_protocol.dledger import MEMBERS_CHANNEL, DLedgerEntry, DLedgerResponseCode
from tests.simulation import fault_plan
from tests.simulation.clockwork import Event
from tests.simulation.fault_plan import Plan
from tests.simulation.peer_host import PeerHost, UndetectableLossError, settings_for
from tests.simulation.raft_world import RaftWorld

STORED_SHARE = 0.3
"""The share of worlds on the production store. The others are faster."""
ASYNC_SHARE = 0.3
"""The share of those worlds whose peers acknowledge entries before they are flushed."""
FOUNDING_SHARE = 0.5
"""The share of those worlds whose peers have empty directories, and find out that their group is new."""
PREFERRED_SHARE = 0.1
"""The share of worlds whose groups prefer two of their peers as leaders."""
PREFERRED_CHECK_MS = 100
LEADER_BOUND_MS = 6000
"""A quorum of healthy peers on a healthy network has a leader within this time."""
READ_BOUND_MS = 60
"""A read takes at most two round trips of the quiet network, 11 ms each."""
OPEN_FATE = (DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT, DLedgerResponseCode.TERM_CHANGED)
STORED_FILE_SIZE = 16 << 10
"""Small data files of the production store, so that new ones are created often. Unsynced entries still fit
into two."""


class PeerWithClients(PeerHost):
    """A peer with simulated clients."""

    world: ClientWorld

    def on_committed(self, effect: ProposalCommitted) -> None:
        self.world.acknowledged[effect.token] = (effect.index, effect.term)

    def on_failed(self, effect: OperationFailed) -> None:
        if effect.token > 0 and effect.code not in OPEN_FATE:
            self.world.rejected.add(effect.token)

    def on_read(self, effect: ReadReady) -> None:
        world = self.world
        world.reads_served += 1
        world.served.add(effect.token)
        took_ms = world.now - world.timed.get(effect.token, world.now)
        if took_ms > READ_BOUND_MS:
            world.fail(f"{self.name} serves a read after {took_ms:.0f} ms in a quiet world")
        if effect.index < world.reads[effect.token]:
            world.fail(
                f"{self.name} serves a read at {effect.index}, "
                f"but {world.reads[effect.token]} was committed before the read"
            )


def draw_duel(rng: random.Random) -> tuple[float, str, float, float]:
    """Draws the arguments of `do_duel`."""
    return (
        rng.random(),
        rng.choice(("n0", "n1", "n2")),
        round(rng.uniform(0, 300)),
        round(rng.uniform(700, 2000)),
    )


def plan(seed: int) -> Plan:
    """Plans a seed's world."""
    rng = random.Random(f"raft {seed}")
    found = Plan(
        seed,
        fault_plan.network(rng),
        peers=5 if rng.random() < 0.2 else 3,
        options={
            "beside_java": rng.random() < 0.33,
            "wire": rng.random() < 0.1,
            "ticking": rng.random() < 0.03,
            "stored": rng.random() < STORED_SHARE,
            "single": rng.random() < 0.06,
        },
    )
    extra = random.Random(f"preferred {seed}")
    if extra.random() < PREFERRED_SHARE:
        found.options["preferred"] = tuple(extra.sample([f"n{i}" for i in range(found.peers)], 2))
    if found.options["single"]:
        found.quiet_ms = 40_000  # a peer gets a thousand entries one by one
    rates = fault_plan.mixture(rng, fault_plan.PEER_RATES)
    rates["figure_8"] = rng.choice((0, 0, 0, 4))
    rates["lost_tail"] = rng.choice((0, 0, 0, 4))
    return with_events(rng, found, rates, per_minute=60 * rng.choice((1, 3, 8)))


def plan_with_disconnects(seed: int) -> Plan:
    """Plans the same world, but with closed connections: those of peers that die, and of some that do not."""
    rng = random.Random(f"departures {seed}")
    found = plan(seed)
    found.options |= {"closing": True, "beside_java": rng.random() < 0.1}
    names = [f"n{i}" for i in range(found.peers)]
    broken = fault_plan.stream(
        rng, "part", rng.choice((1, 6, 30)), found.faults_ms, lambda r: (r.choice(("leader", *names)),)
    )
    found.events = fault_plan.sequence([iter(found.events), broken])
    return found


def with_events(rng: random.Random, found: Plan, rates: dict[str, float], per_minute: float) -> Plan:
    """Adds events at these rates, and clients that propose and read."""
    names = [f"n{i}" for i in range(found.peers)]
    until_ms = found.faults_ms
    makers = fault_plan.peer_makers(names) | {
        "figure_8": lambda r: (round(r.uniform(0, 60), 1), round(r.uniform(0, 300))),
        "lost_tail": lambda r: (round(r.uniform(0, 300)),),
    }
    streams = [fault_plan.stream(rng, kind, rate, until_ms, makers[kind]) for kind, rate in rates.items()]
    streams.append(
        fault_plan.stream(rng, "propose", per_minute, until_ms, lambda r: (r.random(), r.random()))
    )
    streams.append(fault_plan.stream(rng, "burst", 3, until_ms, lambda r: (r.randint(5, 60),)))
    streams.append(fault_plan.stream(rng, "storm", rng.choice((0, 0, 20)), until_ms, lambda r: (r.random(),)))
    streams.append(fault_plan.stream(rng, "duel", rng.choice((0, 0, 6)), until_ms, draw_duel))
    streams.append(fault_plan.stream(rng, "read", 60, until_ms, lambda r: (r.random(),)))
    if found.options["stored"]:
        found.options["faults"] = rng.random() < 0.7
    if found.options["stored"] and not found.options["beside_java"]:
        found.options["flush_async"] = random.Random(f"flush {found.seed}").random() < ASYNC_SHARE
    if found.options.pop("faults", False) and not found.options.get("flush_async"):
        streams += disk_faults(rng, names, until_ms)
    found.events = fault_plan.sequence(streams)
    return found


def disk_faults(rng: random.Random, names: list[str], until_ms: float) -> list[Iterator[Event]]:
    """Adds disk faults beyond those of every world."""

    def who(r: random.Random) -> str:
        return "leader" if r.random() < 0.4 else r.choice(names)

    calls = ("pwrite", "pwrite", "fsync", "fsync", "ftruncate", "unlink", "open")
    makers: dict[str, tuple[float, fault_plan.Make]] = {
        "little_room": (4.0, lambda r: (who(r), r.choice((0, 1, 2, 3, 8)), round(r.uniform(200, 3000)))),
        "io_error": (2.0, lambda r: (who(r), r.choice(calls), r.randint(0, 30))),
        "rot": (2.0, lambda r: (who(r), round(r.choice((50, 1500)) * (0.5 + r.random())))),
        "lost_vote": (1.5, lambda r: (who(r), round(r.choice((50, 1500)) * (0.5 + r.random())))),
        "lie": (0.3, lambda r: (who(r), round(r.uniform(100, 2000)))),
        "empty": (1.5, lambda r: (who(r), round(r.choice((50, 1500)) * (0.5 + r.random())))),
    }
    return [
        fault_plan.stream(rng, kind, rate * rng.choice((0, 1, 3)), until_ms, make)
        for kind, (rate, make) in makers.items()
    ]


class ClientWorld(RaftWorld):
    """The world of a plan."""

    stored_file_size = STORED_FILE_SIZE

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        options = dict(plan.options)
        single = options.pop("single", False)
        founding = random.Random(f"founding {plan.seed}").random() < FOUNDING_SHARE
        founding = founding and not options.get("flush_async", False)
        self.preferred: tuple[str, ...] = tuple(options.pop("preferred", ()))
        super().__init__(plan.seed, plan.network, verbose=verbose, **options)
        self.wanted = plan
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.bodies: dict[int, bytes] = {}
        """The body of each proposal; of one with several entries, the last body."""
        self.parts: set[bytes] = set()
        """The other bodies of such proposals."""
        self.rejected: set[int] = set()
        self.reads: dict[int, int] = {}
        self.reads_served = 0
        self.timed: dict[int, float] = {}
        """When reads started that must be served soon."""
        self.served: set[int] = set()
        names = tuple(f"n{i}" for i in range(plan.peers))
        for name in names:
            settings = msgspec.structs.replace(
                settings_for(name, names),
                preferred_leaders=self.preferred,
                preferred_check_interval_ms=PREFERRED_CHECK_MS,
            )
            if self.stored:
                settings = msgspec.structs.replace(settings, file_size=self.stored_file_size)
            if single:
                settings = msgspec.structs.replace(settings, push_batch_max=1)
            peer = self.make_peer(name, settings)
            peer.rate = 1 + self.random.choice((-1, 1, self.random.uniform(-1, 1))) * plan.drift
            self.add_peer(peer)
        for started in self.peers.values():
            if founding and self.stored and not self.beside_java and self.is_founder(started):
                started.rejoins = started.vote_lost = started.is_new_directory = True
                self.count_event("groups founded", int(started is self.peers[names[0]]))
            started.start()

    def is_founder(self, peer: PeerHost) -> bool:
        """Whether a peer with an empty directory has no vote before it knows that its group is new: not a
        single one, nor one that is to be added (`PeerRecovery`)."""
        return len(self.peers) > 1

    def make_peer(self, name: str, settings: RaftSettings) -> PeerWithClients:
        """A peer of this world."""
        return PeerWithClients(self, name, settings)

    def body_of(self, text: bytes) -> bytes:
        """What a client proposes."""
        return text

    def text_of(self, entry: DLedgerEntry) -> bytes:
        """What the client of an entry has proposed."""
        return entry.body

    def counts(self) -> dict[str, int]:
        return super().counts() | {
            "acknowledged": len(self.acknowledged),
            "reads": self.reads_served,
            "leaderships": len(self.leaders),
        }

    def live(self) -> None:
        """Lives the plan: faults, then quiet, then the final checks."""
        with self.machine.installed():
            try:
                self._live()
            except UndetectableLossError as end:
                self.note(str(end))
                self.count_event("undetectable losses")

    def _live(self) -> None:
        plan = self.wanted
        self.plan(plan.events)
        self.run(plan.faults_ms)
        self.end_faults()
        self.run(plan.faults_ms + LEADER_BOUND_MS)
        self.check_leader()
        for number in range(20):
            self.at(number * 97.0, self.ask_leader)
            self.at(number * 97.0 + 1, self.ask_leader)
        self.run(plan.faults_ms + plan.quiet_ms)
        late = [token for token in self.timed if token not in self.served]
        if late:
            self.fail(f"read {late[0]} was never served in a quiet world")
        if not self.beside_java and any(peer.rejoins for peer in self.members()):
            self.fail(f"{[p.name for p in self.members() if p.rejoins]} never recovered their lost data")
        self.check_logs()
        entries = self.committed
        for token, (index, term) in self.acknowledged.items():
            entry = entries[index]
            if self.text_of(entry) != self.bodies[token] or entry.term != term:
                self.fail(f"proposal {token} was acknowledged at {index}, term {term}, but {entry} is there")
        known = {b"", *self.parts, *self.bodies.values()}
        rejected = {self.bodies[token] for token in self.rejected}
        for entry in entries:
            if self.text_of(entry) not in known and entry.channel != MEMBERS_CHANNEL:
                self.fail(f"no client proposed {entry}")
            if self.text_of(entry) in rejected:
                self.fail(f"{entry} was rejected, and yet committed")

    def check_leader(self) -> None:
        """Liveness: a leader exists, a preferred one if the group has such, and a quorum follows it."""
        leader = self.leader()
        following = [p for p in self.members() if p.node and p.node.member.leader == (leader and leader.name)]
        if leader is None or len(following) <= len(self.members()) // 2:
            self.fail(f"no peer leads {LEADER_BOUND_MS} ms after the world became quiet")
        elif self.preferred and leader.name not in self.preferred:
            self.fail(f"{leader.name} leads, but the group prefers {self.preferred}")

    def ask_leader(self) -> None:
        """Reads from the leader, which must serve the read soon. A quiet group keeps its leader."""
        leader = self.leader()
        if leader is None or leader.node is None:
            self.fail("the group has lost its leader in a quiet world")
            return
        committed = leader.log.term(leader.node.member.committed_index)
        if committed != leader.node.member.term:
            return  # its leadership has just begun
        token = -1 - len(self.reads)
        self.reads[token] = len(self.committed) - 1
        self.timed[token] = self.now
        leader.receive(leader.feed, ReadIndex(token))

    def someone(self, luck: float) -> PeerHost:
        """A random peer, mostly one that leads."""
        peers = list(self.peers.values())
        leading = [peer for peer in peers if peer.node is not None and peer.node.leader is not None]
        if leading and luck < 0.9:
            return leading[int(luck / 0.9 * len(leading))]
        return peers[int(luck * len(peers))]

    def do_propose(self, luck: float, size: float) -> None:
        """A client proposes, mostly to a leader."""
        self.propose_to(self.someone(luck), size)

    def propose_to(self, peer: PeerHost, size: float) -> None:
        """A client proposes to this peer."""
        if peer.up:
            token = len(self.bodies) + 1
            body = self.bodies[token] = b"p%d%s" % (token, b"." * int(size * 60))
            more = tuple(b"%d of p%d" % (part, token) for part in range(token % 4 if token % 5 == 0 else 0))
            self.parts.update(more)
            peer.receive(peer.submit, Proposal(token, tuple(map(self.body_of, (*more, body)))))

    def do_burst(self, count: int) -> None:
        """A client proposes many at once."""
        for number in range(count):
            self.do_propose(0.0, number / count)

    def do_storm(self, luck: float) -> None:
        """Clients propose and read in quick succession for a while."""
        for number in range(25):
            self.at(number * 15, self.do_propose, luck, 0.0)
            self.at(number * 15 + 5, self.do_read, luck)

    def do_stale(self, pause_ms: float, deaf_ms: float) -> None:
        """Pauses the leader as in every world. Clients keep proposing to it after it was replaced."""
        leader = self.leader()
        super().do_stale(pause_ms, deaf_ms)
        if leader is not None:
            for number in range(4):
                self.at(pause_ms + 1 + number * 40, self.propose_to, leader, 0.1)

    def do_duel(self, luck: float, who: str, after_ms: float, by_ms: float) -> None:
        """Makes the clock of a peer leap during proposals, so that it starts an election against a live
        leader."""
        self.do_storm(luck)
        self.at(after_ms, self.do_leap, who, by_ms)

    def do_figure_8(self, dies_after_ms: float, jitter_ms: float) -> None:
        """Raft's figure 8: a leader's entries reach no peer, and it dies. So does the next leader. The first
        one leads again, sends its old entries to a peer and dies. The second one returns."""
        first = self.leader()
        if first is None or not first.up:
            return
        self.note(f"uncommitted entries of {first.name} (figure 8)")
        self.do_isolate(first.name, "out", 150)
        self.do_burst(8)
        self.at(60, self._stop_named, first.name, 1300 + jitter_ms)
        self.at(1250 + jitter_ms, self._isolate_second, first.name)
        self.at(1300 + jitter_ms, self._watch_first, first.name, dies_after_ms, self.now + 4000)

    def _isolate_second(self, first: str) -> None:
        second = self.leader()
        if second is not None and second.up and second.name != first and not self.quiet:
            self.do_isolate(second.name, "out", 150)
            self.do_burst(2)
            self.at(60, self._stop_named, second.name, 2500)

    def _watch_first(self, name: str, dies_after_ms: float, until_ms: float) -> None:
        peer = self.peer(name)
        if peer.node is not None and peer.node.leader is not None:
            self.at(dies_after_ms, self._stop_named, name, 4000)
        elif self.now < until_ms and not self.quiet:
            self.at(5, self._watch_first, name, dies_after_ms, until_ms)

    def _stop_named(self, name: str, down_ms: float) -> None:
        peer = self.peer(name)
        if peer.up and not self.quiet:
            self.count_event("kills")
            self.stop_peer(peer, down_ms)

    def do_lost_tail(self, jitter_ms: float) -> None:
        """Sends a leader's last entries to one peer only, with no sync, and kills the leader. The others
        continue without that peer. Its sync ends after they have written other entries at the same
        indexes."""
        leader = self.leader()
        if leader is None or not leader.up:
            return
        others = [peer for peer in self.peers.values() if peer is not leader]
        behind, ahead = others[0], others[-1]
        self.note(f"a tail of {leader.name} on {ahead.name} only")
        for other in others[:-1]:
            self._cut(leader, other, 200)
        self.do_burst(10)
        for peer in (leader, ahead):
            peer.stuck_disk_until = self.now + 80
        self.at(60, self.do_isolate, ahead.name, "both", 1500 + jitter_ms)
        self.at(70, self.do_hold_disk, ahead.name, 3500 + jitter_ms)
        self.at(75, self._stop_named, leader.name, 200)
        for at_ms in (1200, 1700, 2200, 2700):
            self.at(at_ms + jitter_ms, self.do_burst, 6)
        self.note(f"{behind.name} may lead next")

    def do_hold_disk(self, who: str, duration_ms: float) -> None:
        """Blocks the syncs of a disk for a while."""
        self.peer(who).stuck_disk_until = self.now + duration_ms

    def do_read(self, luck: float) -> None:
        """A client reads, mostly from a leader."""
        peer = self.someone(luck)
        if peer.up:
            token = -1 - len(self.reads)
            self.reads[token] = len(self.committed) - 1
            peer.receive(peer.feed, ReadIndex(token))
