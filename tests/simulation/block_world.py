"""Brokers whose commit log is a DLedger log: their peers, with `BlockLog` on simulated disks, and
clients. Files expire on each broker by itself."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from epochmq_dledger.core.types import RaftSettings
from epochmq_protocol.dledger import DLedgerEntry
from tests.simulation import fault_plan
from tests.simulation.client_world import ClientWorld, PeerWithClients, with_events
from tests.simulation.fault_plan import Plan
from tests.simulation.peer_host import UndetectableLossError
from tests.simulation.simulated_block_logs import StoredBlockLog, body_of, text_of

FAULTS_MS = 24_000
AFTERWARDS_MS = 10_000
EXPIRY_SHARE = 0.6
"""The share of worlds in which files expire."""


def plan(seed: int) -> Plan:
    """Plans a seed's world."""
    rng = random.Random(f"blocks {seed}")
    found = Plan(
        seed,
        fault_plan.network(rng),
        peers=5 if rng.random() < 0.1 else 3,
        options={
            "beside_java": rng.random() < 0.2,
            "wire": rng.random() < 0.1,
            "stored": True,
        },
        faults_ms=FAULTS_MS,
        quiet_ms=AFTERWARDS_MS,
    )
    rates = {kind: 2 * rate for kind, rate in fault_plan.mixture(rng, fault_plan.PEER_RATES, 0.5).items()}
    rates["figure_8"] = rng.choice((0, 0, 0, 8))
    rates["lost_tail"] = rng.choice((0, 0, 0, 8))
    found = with_events(rng, found, rates, per_minute=60 * rng.choice((1, 3, 8)))
    if rng.random() < EXPIRY_SHARE:
        names = [f"n{number}" for number in range(found.peers)]
        expiry = fault_plan.stream(
            rng,
            "expire",
            rng.choice((6, 30, 90)),
            found.faults_ms,
            lambda r: ("leader" if r.random() < 0.4 else r.choice(names), r.random()),
        )
        found.events = fault_plan.sequence([iter(found.events), expiry])
    return found


class BrokerPeer(PeerWithClients):
    """The peer of a broker."""

    world: BlockWorld

    def die(self, kept: int | None = None) -> None:
        """Stops the peer. If a majority now recovers lost data, only a person can let it continue: a
        reset that was interrupted looks like damage."""
        super().die(kept)
        peers = self.world.members()
        lost = [peer.rejoins and not peer.is_new_directory and not peer.only_unflushed for peer in peers]
        if sum(lost) > (len(peers) - 1) // 2:
            self.world.count_event("majorities without a vote")
            raise UndetectableLossError("a majority of the peers takes its log for damaged")

    def expire(self, luck: float) -> None:
        """Drops files. A worker removes them later, one directory after the other."""
        assert isinstance(self.log, StoredBlockLog)
        assert self.node is not None
        self.log.expire(luck, self.node.member.committed_index)
        delay_ms = 0.0
        for removal in self.log.store.take_removals():
            delay_ms += self.world.random.random() * 50
            self.later(delay_ms, self._remove, removal)

    def _remove(self, removal: Callable[[], None]) -> None:
        try:
            removal()
        except OSError as error:
            self.disk_failed(error)


class BlockWorld(ClientWorld):
    """The world of a plan."""

    stored_file_size = 8 << 10

    def make_log(self, name: str, file_size: int) -> StoredBlockLog:
        return StoredBlockLog(self, name, file_size)

    def make_peer(self, name: str, settings: RaftSettings) -> BrokerPeer:
        return BrokerPeer(self, name, msgspec.structs.replace(settings, replaces_expired=True))

    def body_of(self, text: bytes) -> bytes:
        return body_of(text)

    def text_of(self, entry: DLedgerEntry) -> bytes:
        return text_of(entry)

    def do_expire(self, who: str, luck: float) -> None:
        """Drops the first files of a log, as retention does."""
        peer = self.peer(who)
        assert isinstance(peer, BrokerPeer)
        if peer.up and not peer.paused and peer.log.is_writable:
            peer.expire(luck)
