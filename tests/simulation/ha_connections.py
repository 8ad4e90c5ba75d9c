"""Simulates the HA connection of a replica to its master: bytes arrive in order or not at all. The master's
side works as `ha.connection`, the replica's as `ha.client_connection`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from epochmq_broker.replication.ha.block_planner import BlockPlanner
from epochmq_broker.replication.ha.epochs import record_received_epoch
from epochmq_broker.replication.ha.log_doubt import LogDoubt, has_caught_up
from epochmq_broker.replication.ha.replica_reports import check_report, start_position
from epochmq_protocol.epoch_entries import EpochEntry
from epochmq_protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from tests.simulation.group_world import GroupWorld
    from tests.simulation.replicas import GroupBroker

FILE_SIZE = 1 << 20
BLOCK_BYTES, BLOCKS_AT_ONCE = 300, 4
SLOW_BLOCK_BYTES = 50
"""The block size where copying is slow; only one block is under way then."""
SILENCE_MS = 1500
BEAT_MS = 300
STALLED_MS = 50


class OneWayStream:
    """One direction of a connection. Messages arrive in order; while the link is cut they wait."""

    def __init__(self, link: SimulatedHAConnection, source: GroupBroker, target: GroupBroker) -> None:
        self.link = link
        self.source = source
        self.target = target
        self.life = target.life
        self.queue: deque[tuple[float, Callable[..., None], tuple[Any, ...]]] = deque()
        self.latest = 0.0
        self.closed = False
        """Whether the target's end is closed."""

    def send(self, action: Callable[..., None], *args: Any) -> None:
        """Sends a message to the other side."""
        world = self.link.world
        self.latest = max(self.latest, world.now + world.delay())
        self.queue.append((self.latest, action, args))
        if len(self.queue) == 1:
            world.at(self.latest - world.now, self._arrive)

    def _arrive(self) -> None:
        world, target = self.link.world, self.target
        if self.closed or not self.queue:
            self.queue.clear()
            return
        if target.paused or world.is_cut(self.source, target):
            world.at(STALLED_MS, self._arrive)
            return
        _, action, args = self.queue.popleft()
        if self.queue:
            world.at(max(0.0, self.queue[0][0] - world.now), self._arrive)
        action(*args)
        target.check_invariants()


class SimulatedHAConnection:
    """Both ends of one connection. Each end learns that the other has closed when the network lets it, or by
    a timeout."""

    def __init__(self, world: GroupWorld, master: GroupBroker, replica: GroupBroker) -> None:
        self.world = world
        self.master = master
        self.replica = replica
        self.up = OneWayStream(self, replica, master)
        self.down = OneWayStream(self, master, replica)
        # The master's side.
        self.broker_id: int | None = None
        self.position = -1
        self.blocks = BlockPlanner(master.epochs, FILE_SIZE)
        self.confirm_sent = -1
        self.announce = False
        self.heard_ms = self.wrote_ms = master.clock()
        # The replica's side.
        self.known: list[EpochEntry] = []
        self.agreed = False
        self.master_end = 0
        self.reported = -1
        self.epoch = -1
        self.confirm = -1
        self.read_ms = self.said_ms = replica.clock()
        if master.up:
            self.up.send(self._introduced, replica.broker_id)
        else:
            self.up.closed = True
            world.at(world.delay(), self.close_at_replica, "refused")

    def died(self, host: GroupBroker) -> None:
        """Resets the other end after a machine has stopped, as soon as the network lets it."""
        if host is self.master:
            self.up.closed = True
            self.down.send(self.close_at_replica, "it was reset")
        else:
            self.down.closed = True
            self.up.send(self.close_at_master, "it was reset")

    def close_at_replica(self, why: str) -> None:
        """Closes the replica's end."""
        if self.down.closed:
            return
        self.down.closed = True
        if self.world.verbose:
            self.world.note(f"{self.replica.name} -> {self.master.name}: the replica's end closes: {why}")
        if self.replica.client_connection is self:
            self.replica.client_connection = None
            if self.agreed:
                self.replica.verified = self.replica.log.end
        self.up.send(self.close_at_master, "the replica has closed it")

    def close_at_master(self, why: str) -> None:
        """Closes the master's end."""
        if self.up.closed:
            return
        self.up.closed = True
        master = self.master
        if self.world.verbose:
            self.world.note(f"{self.replica.name} -> {master.name}: the master's end closes: {why}")
        if self in master.connections:
            master.connections.remove(self)
            sync = master.sync_state
            if sync is not None and self.broker_id is not None:
                sync.replica_disconnected(self.broker_id)
                master.progress()
                master.propose()
        self.down.send(self.close_at_replica, "the master has closed it")

    # The master's side --------------------------------------------------------------------------------------

    def _introduced(self, broker_id: int) -> None:
        master, sync = self.master, self.master.sync_state
        if sync is None or broker_id == sync.self_id:
            self.close_at_master("it is no master")
            return
        self.broker_id = broker_id
        master.connections.append(self)
        sync.replica_connected(broker_id, async_learner=False)
        for other in list(master.connections):
            if other is not self and other.broker_id == broker_id:
                other.close_at_master("the replica has connected again")
        self.down.send(self._told_epochs, master.epochs.entries, master.log.end)

    def _heard(self, offset: int) -> None:
        """Takes the replica's report of its end offset."""
        master, sync = self.master, self.master.sync_state
        if sync is None or self.up.closed:
            return
        self.heard_ms = master.clock()
        end = master.log.end
        try:
            if self.position < 0:
                self.position = start_position(offset, 0, end, FILE_SIZE, last_file=False)
                self.announce = True
            else:
                check_report(offset, self.position)
        except RemoteProtocolError as error:
            self.close_at_master(str(error))
            return
        assert self.broker_id is not None
        sync.log_appended(end)
        if not sync.replica_acknowledged(self.broker_id, offset, master.clock()):
            self.close_at_master(f"its report of {offset} cannot be")
            return
        master.progress()
        if self.broker_id not in sync.members:
            master.propose()
        self.pump()

    def epochs_changed(self) -> None:
        """Announces another epoch of the master."""
        self.blocks.epochs_changed()
        self.announce = True
        self.pump()

    def pump(self) -> None:
        """Sends pending bytes, with at most a few blocks under way."""
        master, sync = self.master, self.master.sync_state
        if self.up.closed or self.position < 0 or sync is None or self.broker_id is None:
            return
        end = master.log.end
        sent, slow = False, self.world.slow_copies and not self.world.quiet
        most, at_once = (SLOW_BLOCK_BYTES, 1) if slow else (BLOCK_BYTES, BLOCKS_AT_ONCE)
        while self.position < end and len(self.down.queue) < at_once:
            size = self.blocks.size(self.position, end, most)
            if size <= 0:
                break
            self._send(size)
            sync.block_sent(self.broker_id, master.clock())
            sent = True
        if not sent and self.announce:
            self._send(0)

    def _send(self, size: int) -> None:
        master, sync = self.master, self.master.sync_state
        assert sync is not None
        label = self.blocks.label(self.position)
        data = bytes(master.log.data[self.position : self.position + size])
        confirm = self.confirm_sent = sync.confirmed_records
        self.announce = False
        self.wrote_ms = master.clock()
        head = (self.position, label.epoch, label.start_offset, confirm)
        split = self.world.random.randint(0, size) if size > 1 and self.world.random.random() < 0.2 else size
        self.down.send(self._block, *head, data[:split])
        if split < size:
            self.down.send(self._rest, data[split:])
        self.position += size

    def tick(self) -> None:
        """Checks for timeouts, sends heartbeats and pending bytes."""
        master, sync = self.master, self.master.sync_state
        now = master.clock()
        if now - self.heard_ms > SILENCE_MS:
            self.close_at_master("no frame arrived in time")
            return
        self.pump()
        if sync is None or self.position != master.log.end or self.broker_id is None:
            return
        sync.nothing_to_send(self.broker_id, now)
        if now - self.wrote_ms > BEAT_MS or self.confirm_sent < sync.confirmed_records:
            self._send(0)

    # The replica's side -------------------------------------------------------------------------------------

    def _told_epochs(self, theirs: list[EpochEntry], master_end: int) -> None:
        replica = self.replica
        if replica.client_connection is not self:
            return
        self.read_ms = replica.clock()
        self.known = theirs
        self.master_end = master_end
        if self.master.sync_state is None or self.master.epochs.entries[-1:] != theirs[-1:]:
            self.close_at_replica("the other end is no longer the master of this epoch")
            return
        try:
            agreed = replica.agree(theirs, master_end, self.master)
        except OSError as error:
            self.close_at_replica(str(error))
            return
        if not agreed:
            self.close_at_replica("the logs have nothing in common")
            return
        self.agreed = True
        self.acknowledge()

    def _block(self, offset: int, epoch: int, start: int, confirm: int, data: bytes) -> None:
        replica = self.replica
        if replica.client_connection is not self:
            return
        end = replica.log.end
        if not self.agreed or end not in (0, offset):
            self.close_at_replica(f"the master sends from {offset}, but the log ends at {end}")
            return
        if epoch != self.epoch:
            try:
                replica.disk.check("keep an epoch")
            except OSError as error:
                self.close_at_replica(str(error))
                return
            record_received_epoch(replica.epochs, self.known, epoch, start)
            self.epoch = epoch
        self.confirm = confirm
        self._rest(data)

    def _rest(self, data: bytes) -> None:
        replica = self.replica
        if replica.client_connection is not self:
            return
        self.read_ms = replica.clock()
        try:
            replica.disk.append(replica.log, data)
        except OSError as error:
            self.close_at_replica(str(error))
            return
        self._tell_confirm()
        if data and replica.reported_end() != self.reported:
            self.acknowledge()
        if data and replica.disk.sync_flush:
            replica.flush()

    def acknowledge(self) -> None:
        """Reports the end offset to the master: the flushed one with SYNC_FLUSH, the received one with
        ASYNC_FLUSH."""
        replica = self.replica
        self.said_ms = replica.clock()
        end = self.reported = replica.reported_end()
        if end < 0:
            self.close_at_replica("our disk has failed")
            return
        self.up.send(self._heard, end)
        self._look_whether_caught_up()

    def flushed(self) -> None:
        """Reports the new flushed offset."""
        if self.replica.reported_end() != self.reported:
            self._tell_confirm()
            self.acknowledge()

    def _tell_confirm(self) -> None:
        if self.confirm >= 0:
            self.replica.confirmed_by_master(min(self.confirm, self.replica.reported_end()))
            self._look_whether_caught_up()

    def _look_whether_caught_up(self) -> None:
        replica = self.replica
        if (replica.doubt == LogDoubt() and not replica.disk.damaged) or self.confirm < 0:
            return
        if has_caught_up(reported=self.reported, master_end=self.master_end, confirmed=self.confirm):
            replica.disk.damaged = False
            if replica.doubt != LogDoubt():
                replica.settle_doubt()
                replica.log_is_ours()

    def watch(self) -> None:
        """Reports at least once per heartbeat interval, and closes the connection if the master is silent."""
        now = self.replica.clock()
        if now - self.read_ms > SILENCE_MS:
            self.close_at_replica("no frame arrived in time")
        elif self.agreed and now - self.said_ms > BEAT_MS:
            self.acknowledge()

    def copy_tables(self) -> None:
        """Asks for the consumers' offsets (`slave_sync`)."""
        self.up.send(self._tables_wanted)

    def _tables_wanted(self) -> None:
        self.down.send(self._tables_came, self.master.all_offsets())

    def _tables_came(self, offsets: dict[int, int]) -> None:
        if self.replica.client_connection is self:
            self.replica.take_offsets(offsets)
