"""Peers alone, with clients that propose and read."""

from __future__ import annotations

import random

import msgspec

from epochmq_dledger.core.types import Committed, Propose, ReadIndex, ReadReady, Refused
from epochmq_protocol.dledger import DLedgerResponseCode
from tests.simulation import troubles
from tests.simulation.raft import Peer, RaftWorld, settings_for
from tests.simulation.troubles import Plan

OPEN_FATE = (DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT, DLedgerResponseCode.TERM_CHANGED)
STORED_FILE_SIZE = 16 << 10
"""Data files of the production store, small, so that they roll; yet what is under way fits into two."""


class Server(Peer):
    """A peer whose clients are simulated, too."""

    world: PeersWorld

    def on_committed(self, effect: Committed) -> None:
        self.world.acknowledged[effect.token] = (effect.index, effect.term)

    def on_refused(self, effect: Refused) -> None:
        if effect.token > 0 and effect.code not in OPEN_FATE:
            self.world.refused.add(effect.token)

    def on_read(self, effect: ReadReady) -> None:
        world = self.world
        world.reads_served += 1
        if effect.index < world.reads[effect.token]:
            world.fail(
                f"{self.name} serves a read at {effect.index}, "
                f"but {world.reads[effect.token]} was committed when it was asked"
            )


def duel(rng: random.Random) -> tuple[float, str, float, float]:
    """How the arguments of `do_duel` are drawn."""
    return (
        rng.random(),
        rng.choice(("n0", "n1", "n2")),
        round(rng.uniform(0, 300)),
        round(rng.uniform(700, 2000)),
    )


def plan(seed: int) -> Plan:
    """A seed's world."""
    rng = random.Random(f"raft {seed}")
    found = Plan(
        seed,
        troubles.network(rng),
        peers=5 if rng.random() < 0.2 else 3,
        options={
            "beside_java": rng.random() < 0.33,
            "wire": rng.random() < 0.1,
            "ticking": rng.random() < 0.03,
            "stored": rng.random() < 0.08,
            "single": rng.random() < 0.06,
        },
    )
    if found.options["single"]:
        found.quiet_ms = 40_000  # a peer that lacks a thousand entries gets them one by one
    rates = troubles.mixture(rng, troubles.PEER_RATES)
    rates["old_debts"] = rng.choice((0, 0, 0, 4))
    rates["lost_tail"] = rng.choice((0, 0, 0, 4))
    return planned(rng, found, rates, per_minute=60 * rng.choice((1, 3, 8)))


def departures(seed: int) -> Plan:
    """The same world, but connections close: of peers that die, and of some that do not."""
    rng = random.Random(f"departures {seed}")
    found = plan(seed)
    found.options |= {"closing": True, "beside_java": rng.random() < 0.1}
    names = [f"n{i}" for i in range(found.peers)]
    broken = troubles.stream(
        rng, "part", rng.choice((1, 6, 30)), found.troubled_ms, lambda r: (r.choice(("leader", *names)),)
    )
    found.events = troubles.sequence([iter(found.events), broken])
    return found


def planned(rng: random.Random, found: Plan, rates: dict[str, float], per_minute: float) -> Plan:
    """Events at these rates, and clients that propose and read."""
    names = [f"n{i}" for i in range(found.peers)]
    until_ms = found.troubled_ms
    makers = troubles.peer_makers(names) | {
        "old_debts": lambda r: (round(r.uniform(0, 60), 1), round(r.uniform(0, 300))),
        "lost_tail": lambda r: (round(r.uniform(0, 300)),),
    }
    streams = [troubles.stream(rng, kind, rate, until_ms, makers[kind]) for kind, rate in rates.items()]
    streams.append(troubles.stream(rng, "propose", per_minute, until_ms, lambda r: (r.random(), r.random())))
    streams.append(troubles.stream(rng, "burst", 3, until_ms, lambda r: (r.randint(5, 60),)))
    streams.append(troubles.stream(rng, "storm", rng.choice((0, 0, 20)), until_ms, lambda r: (r.random(),)))
    streams.append(troubles.stream(rng, "duel", rng.choice((0, 0, 6)), until_ms, duel))
    streams.append(troubles.stream(rng, "read", 60, until_ms, lambda r: (r.random(),)))
    found.events = troubles.sequence(streams)
    return found


class PeersWorld(RaftWorld):
    """A plan's world."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        options = dict(plan.options)
        single = options.pop("single", False)
        super().__init__(plan.seed, plan.network, verbose=verbose, **options)
        self.wanted = plan
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.bodies: dict[int, bytes] = {}
        """What was proposed; of a proposal with several entries the last one's."""
        self.parts: set[bytes] = set()
        """The other entries of such proposals."""
        self.refused: set[int] = set()
        self.reads: dict[int, int] = {}
        self.reads_served = 0
        names = tuple(f"n{i}" for i in range(plan.peers))
        for name in names:
            settings = settings_for(name, names)
            if self.stored:
                settings = msgspec.structs.replace(settings, file_size=STORED_FILE_SIZE)
            if single:
                settings = msgspec.structs.replace(settings, push_batch_max=1)
            peer = Server(self, name, settings)
            peer.rate = 1 + self.random.choice((-1, 1, self.random.uniform(-1, 1))) * plan.drift
            self.add_peer(peer)
        for started in self.peers.values():
            started.start()

    def counts(self) -> dict[str, int]:
        return super().counts() | {
            "acknowledged": len(self.acknowledged),
            "reads": self.reads_served,
            "leaderships": len(self.leaders),
        }

    def live(self) -> None:
        """A whole life: troubles, then quiet, then the final checks."""
        with self.machine.installed():
            self._live()

    def _live(self) -> None:
        plan = self.wanted
        self.plan(plan.events)
        self.run(plan.troubled_ms)
        self.calm()
        self.run(plan.troubled_ms + plan.quiet_ms)
        self.check_logs()
        entries = next(iter(self.peers.values())).log.entries
        for token, (index, term) in self.acknowledged.items():
            entry = entries[index]
            if entry.body != self.bodies[token] or entry.term != term:
                self.fail(f"proposal {token} was acknowledged at {index}, term {term}, but {entry} is there")
        known = {b"", *self.parts, *self.bodies.values()}
        refused = {self.bodies[token] for token in self.refused}
        for entry in entries:
            if entry.body not in known:
                self.fail(f"nobody proposed {entry}")
            if entry.body in refused:
                self.fail(f"{entry} was refused for good, and yet committed")

    def someone(self, luck: float) -> Peer:
        """Mostly one that thinks it leads."""
        peers = list(self.peers.values())
        leading = [peer for peer in peers if peer.node is not None and peer.node.leader is not None]
        if leading and luck < 0.9:
            return leading[int(luck / 0.9 * len(leading))]
        return peers[int(luck * len(peers))]

    def do_propose(self, luck: float, size: float) -> None:
        """A client proposes to whoever it thinks leads."""
        self.propose_to(self.someone(luck), size)

    def propose_to(self, peer: Peer, size: float) -> None:
        """A client proposes to this peer."""
        if peer.up:
            token = len(self.bodies) + 1
            body = self.bodies[token] = b"p%d%s" % (token, b"." * int(size * 60))
            more = tuple(b"%d of p%d" % (part, token) for part in range(token % 4 if token % 5 == 0 else 0))
            self.parts.update(more)
            peer.receive(peer.submit, Propose(token, (*more, body)))

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
        """As in every world; and clients go on to propose to the leader that was replaced."""
        leader = self.leader()
        super().do_stale(pause_ms, deaf_ms)
        if leader is not None:
            for number in range(4):
                self.at(pause_ms + 1 + number * 40, self.propose_to, leader, 0.1)

    def do_duel(self, luck: float, who: str, after_ms: float, by_ms: float) -> None:
        """In the midst of proposals the clock of one peer leaps, and it stands against a living leader."""
        self.do_storm(luck)
        self.at(after_ms, self.do_leap, who, by_ms)

    def do_old_debts(self, dies_after_ms: float, jitter_ms: float) -> None:
        """Raft's figure 8: a leader's entries reach nobody, it dies; so does the next one; the first leads
        again, gives its old entries to a peer and dies; the second comes back."""
        first = self.leader()
        if first is None or not first.up:
            return
        self.note(f"old debts of {first.name}")
        self.do_isolate(first.name, "out", 150)
        self.do_burst(8)
        self.at(60, self._stop_named, first.name, 1300 + jitter_ms)
        self.at(1250 + jitter_ms, self._second_debtor, first.name)
        self.at(1300 + jitter_ms, self._watch_debtor, first.name, dies_after_ms, self.now + 4000)

    def _second_debtor(self, first: str) -> None:
        second = self.leader()
        if second is not None and second.up and second.name != first and not self.quiet:
            self.do_isolate(second.name, "out", 150)
            self.do_burst(2)
            self.at(60, self._stop_named, second.name, 2500)

    def _watch_debtor(self, name: str, dies_after_ms: float, until_ms: float) -> None:
        peer = self.peer(name)
        if peer.node is not None and peer.node.leader is not None:
            self.at(dies_after_ms, self._stop_named, name, 4000)
        elif self.now < until_ms and not self.quiet:
            self.at(5, self._watch_debtor, name, dies_after_ms, until_ms)

    def _stop_named(self, name: str, down_ms: float) -> None:
        peer = self.peer(name)
        if peer.up and not self.quiet:
            self.happened("kills")
            self.stop_peer(peer, down_ms)

    def do_lost_tail(self, jitter_ms: float) -> None:
        """A leader's entries reach one peer only, no disk keeps them, and the leader dies; the others go on
        without that peer; its sync ends after they have written other entries in the place of its own."""
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
        """A disk makes nothing durable for a while."""
        self.peer(who).stuck_disk_until = self.now + duration_ms

    def do_read(self, luck: float) -> None:
        """A client asks a leader whether it still leads."""
        peer = self.someone(luck)
        if peer.up:
            token = -1 - len(self.reads)
            self.reads[token] = len(self.committed) - 1
            peer.receive(peer.feed, ReadIndex(token))
