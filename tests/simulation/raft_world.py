"""Consensus peers in a simulated world, the faults that hit them, and Raft's promises as checks."""

from __future__ import annotations

from collections.abc import Sequence

from epochmq_dledger.core.types import LeaderDisconnected, RaftRole, RoleChanged, TransferLeadership
from epochmq_protocol.dledger import DLedgerEntry, RequestOrResponse, decode_body, encode_body
from tests.simulation.clockwork import Host, Network, World
from tests.simulation.peer_host import PeerHost, UndetectableLossError
from tests.simulation.simulated_files import SimulatedOs
from tests.simulation.simulated_logs import MemoryLogHost, StoredLog


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
        flush_async: bool = False,
        verbose: bool = False,
    ) -> None:
        """`beside_java` hides the extensions that EpochMQ peers support, as a Java peer in the group would.
        `wire` encodes and decodes every message. `ticking` adds a tick every few milliseconds to the
        deadlines. `stored` gives every peer the production store on a simulated disk. `closing` closes the
        connections of peers that die, and of some that do not. `flush_async`: peers acknowledge entries
        before they are flushed, and may lose them with their power."""
        super().__init__(seed, network, verbose=verbose)
        self.machine = SimulatedOs()
        self.stored = stored
        self.closing = closing
        self.flush_async = flush_async
        self.beside_java = beside_java
        self.wire = wire
        self.ticking = ticking
        self.sync_max_ms = 20.0
        self.peers: dict[str, PeerHost] = {}
        self.leaders: dict[int, str] = {}
        self.written: dict[tuple[int, int], tuple[DLedgerEntry, int]] = {}
        self.committed: list[DLedgerEntry] = []

    def make_log(self, name: str, file_size: int) -> MemoryLogHost | StoredLog:
        """The log of a peer."""
        return StoredLog(self, name, file_size) if self.stored else MemoryLogHost(self, name)

    def add_peer(self, peer: PeerHost) -> None:
        """Adds a machine with a peer."""
        self.peers[peer.name] = peer
        self.hosts[peer.name] = peer

    def encoded(self, message: RequestOrResponse) -> RequestOrResponse:
        """The message as it arrives: the same object or, with `wire`, a decoded copy."""
        return decode_body(type(message), encode_body(message)) if self.wire else message

    def leader(self) -> PeerHost | None:
        """The peer that leads the newest term, None if no peer leads."""
        leading = [p for p in self.peers.values() if p.node is not None and p.node.leader is not None]
        return max(leading, key=lambda peer: peer.term, default=None)

    def host(self, who: str) -> Host:
        """The machine of this name. `leader` is the present leader, or the first peer."""
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
        required = [entry for entry in self.committed if entry.term < change.term]
        begin = max(peer.log.begin_index, 0)
        missing = [entry for entry in required[begin:] if peer.log.entry(entry.index) != entry]
        self.excuse_unflushed(peer, missing)
        if missing:
            self.fail(
                f"leader completeness: {peer.name} leads term {change.term} without all committed entries"
            )

    def excuse_unflushed(self, peer: PeerHost, missing: Sequence[DLedgerEntry]) -> None:
        """Ends the seed if this peer lacks committed entries that no other peer has: all that had them have
        lost their power before the flush."""
        others = [one.log for one in self.peers.values() if one is not peer]
        first = next(iter(missing), None)
        if not self.flush_async or first is None:
            return
        if not any(log.entry(first.index) == first for log in others):
            raise UndetectableLossError(f"no peer has kept entry {first.index}, which no disk had")

    def on_commit(self, peer: PeerHost, index: int) -> None:
        """State machine safety: all peers commit the same entry at an index; and when the first one commits
        it, a quorum holds it durably. Files hold what is applied, for those who read them."""
        if isinstance(peer.log, StoredLog) and index > peer.log.store.stored_end_index:
            self.fail(f"{peer.name} applies entry {index}, which its files do not hold yet")
        for at in range(max(peer.committed + 1, peer.log.begin_index), index + 1):
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
            voters = self.voters_of(peer)
            holders = [
                p.name
                for p in self.peers.values()
                if p.name in voters
                and (
                    ((p.log.durable_end >= at or self.flush_async) and p.log.entry(at) == entry)
                    or p.had(entry)
                )
            ]
            if len(holders) <= len(voters) // 2:
                self.fail(
                    f"{peer.name} commits {at} of term {entry.term}, "
                    f"which only {holders} of {sorted(voters)} hold durably"
                )
        peer.committed = index

    def voters_of(self, peer: PeerHost) -> set[str]:
        """The voters whose acknowledgements count for this leader."""
        return set(self.peers)

    def members(self) -> list[PeerHost]:
        """The peers of the group."""
        return list(self.peers.values())

    def check_logs(self) -> None:
        """Once the world is quiet, all logs are equal and committed. The first entries may have expired."""
        for peer in self.members():
            begin = max(peer.log.begin_index, 0)
            if peer.log.entries != self.committed[begin:]:
                self.fail(
                    f"{peer.name} has entries {begin} to {peer.log.end_index}, which are not the committed "
                    f"ones up to {len(self.committed) - 1}"
                )
        ends = {p.name: p.node.member.committed_index for p in self.members() if p.node is not None}
        if any(end != len(self.committed) - 1 for end in ends.values()):
            self.fail(f"not everything is committed: {ends}, the log ends at {len(self.committed) - 1}")

    # Faults -------------------------------------------------------------------------------------------------

    def peer(self, who: str) -> PeerHost:
        """The peer of this name, or the leader."""
        found = self.host(who)
        assert isinstance(found, PeerHost)
        return found

    def do_kill(self, who: str, down_ms: float, effects: int | None) -> None:
        """Kills a peer (kill -9 or power failure) now, or in the middle of a later step after some
        effects."""
        peer = self.peer(who)
        if not peer.up:
            return
        self.count_event("kills")
        if effects is not None and not peer.paused:
            peer.effects_left = effects
            return
        self.stop_peer(peer, down_ms)

    def stop_peer(self, peer: PeerHost, down_ms: float = 300.0, kept: int | None = None) -> None:
        """Kills a peer, and starts it again later."""
        peer.die(kept)
        self.at(down_ms, self._start, peer, peer.life)
        if self.closing:
            self.disconnect_peer(peer)

    def do_part(self, who: str) -> None:
        """Breaks the connections of a running peer."""
        peer = self.peer(who)
        if peer.up:
            self.note(f"the connections of {peer.name} break")
            self.disconnect_peer(peer)

    def disconnect_peer(self, gone: PeerHost) -> None:
        """Closes the connections of a peer. The other peers notice it one after another, or not at all."""
        for peer in self.peers.values():
            if peer is not gone and peer.up and self.random.random() < 0.9:
                peer.later(self.random.random() * 20, peer.feed, LeaderDisconnected(gone.name))
                self.count_event("disconnects noticed")

    def _start(self, peer: Host, life: int) -> None:
        if peer.life == life and not peer.up:
            peer.start()

    def do_blackout(self, down_ms: float) -> None:
        """Cuts the power of all machines."""
        self.count_event("blackouts")
        for peer in self.peers.values():
            if peer.up:
                self.stop_peer(peer, down_ms * (0.5 + self.random.random()), self.power_cut(peer))

    def power_cut(self, peer: PeerHost) -> int:
        """The last entry of a log that survives a power failure."""
        end, durable = peer.log.end_index, peer.log.durable_end
        return self.random.randint(durable, end) if end > durable else end

    def do_fail_sync(self, who: str, down_ms: float) -> None:
        """Lets a sync fail: its pages are lost, and the peer stops until it is started again."""
        peer = self.peer(who)
        if peer.up:
            self.count_event("syncs failed")
            self.note(f"a sync of {peer.name} fails")
            self.stop_peer(peer, down_ms, min(peer.log.durable_end, peer.log.end_index))

    def do_slow_disk(self, who: str, duration_ms: float) -> None:
        """Makes syncs slow."""
        peer = self.peer(who)
        self.count_event("slow disks")
        peer.slow_disk_until = self.now + duration_ms
        self.note(f"the disk of {peer.name} is slow for {duration_ms:.0f} ms")

    def do_full_disk(self, who: str, duration_ms: float) -> None:
        """Fills a disk for a while."""
        peer = self.peer(who)
        peer.log.checker.full_until = self.now + duration_ms
        self.note(f"the disk of {peer.name} is full for {duration_ms:.0f} ms")

    def may_damage(self) -> bool:
        """Whether a peer may lose durable data: only one at a time may, and all must be EpochMQ peers."""
        healthy = not any(peer.rejoins or getattr(peer.log, "rots", False) for peer in self.peers.values())
        lying = any(peer.log.disk.lies for peer in self.peers.values() if isinstance(peer.log, StoredLog))
        return self.stored and healthy and not lying and not self.beside_java

    def do_little_room(self, who: str, sectors: int, duration_ms: float) -> None:
        """Leaves a disk a few free sectors: writes become short, and then fail."""
        peer = self.peer(who)
        if isinstance(peer.log, StoredLog):
            peer.log.disk.room = sectors
            self.count_event("little room")
            self.note(f"the disk of {peer.name} has room for {sectors} sectors")
            self.at(duration_ms, self._make_room, peer.log)

    def _make_room(self, log: StoredLog) -> None:
        log.disk.room = None

    def do_io_error(self, who: str, call: str, after: int) -> None:
        """Lets a system call of this kind fail, after some that succeed."""
        peer = self.peer(who)
        if isinstance(peer.log, StoredLog) and peer.up:
            peer.log.disk.failing[call] = after

    def do_rot(self, who: str, down_ms: float) -> None:
        """Kills a peer, and flips a bit on its disk."""
        peer = self.peer(who)
        if isinstance(peer.log, StoredLog) and peer.up and self.may_damage():
            peer.log.rots = True
            self.stop_peer(peer, down_ms)

    def do_empty(self, who: str, down_ms: float) -> None:
        """Kills a peer, and replaces its disk by an empty one."""
        peer = self.peer(who)
        if isinstance(peer.log, StoredLog) and peer.up and self.may_damage():
            self.stop_peer(peer, down_ms)
            peer.lose_directory()
            self.count_event("disks emptied")

    def do_lost_vote(self, who: str, down_ms: float) -> None:
        """Kills a peer, and loses its last saved vote."""
        peer = self.peer(who)
        if peer.up and self.may_damage():
            self.stop_peer(peer, down_ms)
            peer.term, peer.voted_for = peer.vote_before[0], None
            peer.rejoins = peer.vote_lost = True
            self.count_event("votes lost")

    def do_lie(self, who: str, duration_ms: float) -> None:
        """Makes the syncs of a peer report success and do nothing, until its power fails."""
        peer = self.peer(who)
        if isinstance(peer.log, StoredLog) and peer.up and self.may_damage():
            peer.log.disk.lies = True
            self.count_event("lying syncs")
            self.at(duration_ms, self._end_lie, peer)

    def _end_lie(self, peer: PeerHost) -> None:
        if isinstance(peer.log, StoredLog) and peer.log.disk.lies and peer.up and not self.quiet:
            self.stop_peer(peer, 300.0, kept=0)

    def do_stuck_disks(self, duration_ms: float) -> None:
        """Blocks the syncs of all disks but the leader's."""
        leader = self.leader()
        self.count_event("stuck disks")
        for peer in self.peers.values():
            if peer is not leader:
                peer.stuck_disk_until = self.now + duration_ms
        self.note(f"all disks but the leader's are stuck for {duration_ms:.0f} ms")

    def do_stale(self, pause_ms: float, deaf_ms: float) -> None:
        """Pauses the leader until it is replaced. It continues without learning of its successor at first."""
        leader = self.host("leader")
        if leader.up:
            for other in self.peers.values():
                if other is not leader:
                    self._cut(other, leader, pause_ms + deaf_ms)
            self.do_pause(leader.name, pause_ms)

    def do_transfer(self, who: str, to: str) -> None:
        """Orders a peer to transfer its leadership."""
        peer = self.peer(who)
        if peer.up and not peer.paused:
            peer.feed(TransferLeadership(to, 0))
