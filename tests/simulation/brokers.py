"""Simulates brokers as their controllers see them: they get an id, register, send heartbeats, request leases,
write while they may, replicate, report who is in sync, and follow the master.

The controllers' guarantees rest on these rules for brokers. A broker counts a lease on its own clock from the
moment it sent the heartbeat, and forgets it when it dies or its epoch changes. It never returns to an older
epoch, also not after a restart. It acknowledges a write when every broker that is or may be in the
SyncStateSet has it; proposed changes of unknown fate count until the set's epoch has increased. After it has
reported a fence it writes no more under that epoch."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from epochmq_controller.replica_groups.requests import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    ControllerRequest,
    ElectMasterRequest,
    GetNextBrokerIdRequest,
    GetReplicaInfoRequest,
    RegisterBrokerRequest,
)
from epochmq_controller.replica_groups.rules import Decision, ReplicaGroupView
from epochmq_controller.replica_groups.state_machine_types import RejectRequest, RespondToRequest
from epochmq_protocol.codes import ResponseCode
from tests.simulation.clockwork import Call, Host
from tests.simulation.controllers import ControllerHost

if TYPE_CHECKING:
    from tests.simulation.controller_world import ControllerWorld

CLUSTER = "c"
COPY_MAX = 64
BEHIND_MAX = 2
"""A replica that lacks at most this many writes is proposed for the SyncStateSet."""


class Channel:
    """A connection from a broker to a controller."""

    def __init__(self) -> None:
        self.closed = False


class Stage(Enum):
    """How far a broker has come since it started."""

    NEEDS_ID = "needs an id"
    HAS_ID = "has an id"
    REGISTERED = "registered"


class Role(Enum):
    """The role of a broker."""

    NONE = "none"
    MASTER = "master"
    REPLICA = "replica"


class Broker(Host):
    """The machine of one broker."""

    world: ControllerWorld

    def __init__(self, world: ControllerWorld, group: str, number: int) -> None:
        super().__init__(world, f"{group}{number}")
        self.group = group
        # On disk.
        self.broker_id: int | None = None
        self.epoch = 0
        self.log: list[int] = []
        self.address = self.name
        # In memory.
        self.stage = Stage.NEEDS_ID
        self.wanted_id: int | None = None
        self.role = Role.NONE
        self.master: str | None = None
        self.members: frozenset[int] = frozenset()
        self.set_epoch = 0
        self.maybe: frozenset[int] = frozenset()
        """Brokers that may be in the SyncStateSet by proposed changes of unknown fate."""
        self.altering = False
        self.asking = False
        self.acks: dict[int, tuple[int, int]] = {}
        self.lease_until = 0.0
        self.fenced_epoch: int | None = None
        self.believed = 0
        self.pulls = 0
        self.channels: dict[str, Channel] = {}

    # Life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        super().start()
        self.stage = Stage.NEEDS_ID if self.broker_id is None else Stage.HAS_ID
        self.role, self.master = Role.NONE, None
        self.members, self.set_epoch, self.maybe = frozenset(), 0, frozenset()
        self.altering = self.asking = False
        self.acks.clear()
        self.lease_until = 0.0
        self.fenced_epoch = None
        self.channels = {name: Channel() for name in self.world.controllers}
        self.world.note(f"{self.name} starts, epoch {self.epoch}, {len(self.log)} writes")
        luck, world = self.world.random.random, self.world
        self.later(luck() * world.beat_ms, self.beat)
        self.later(luck() * world.sync_ms, self.sync)
        self.later(luck() * world.write_ms, self.write)
        self.later(luck() * world.pull_ms, self.pull)

    def die(self) -> None:
        super().die()
        self.world.note(f"{self.name} dies")
        for name, channel in self.channels.items():
            self.world.close(self, self.world.controllers[name], channel)

    def disconnect(self, controller: ControllerHost) -> None:
        """Breaks its connection to a controller; the next heartbeat makes a new one."""
        self.world.close(self, controller, self.channels[controller.name])
        self.channels[controller.name] = Channel()

    # Heartbeats and the lease -------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether it accepts writes now."""
        return self.up and self.role is Role.MASTER and self.clock() < self.lease_until

    def beat(self) -> None:
        """Sends heartbeats to every controller; a master requests its lease with them."""
        self.later(self.world.beat_ms, self.beat)
        if self.broker_id is not None and self.stage is not Stage.NEEDS_ID:
            self.send_beats()

    def send_beats(self) -> None:
        assert self.broker_id is not None
        world = self.world
        replica = (CLUSTER, self.group, self.broker_id)
        beat = {
            "timeout_ms": world.beat_timeout_ms,
            "address": self.address,
            "epoch": self.epoch,
            "max_offset": len(self.log),
            "election_priority": None,
        }
        wants_lease = self.role is Role.MASTER and self.fenced_epoch != self.epoch
        for controller in world.controllers.values():
            channel = self.channels[controller.name]
            if wants_lease:
                self.ask_lease(controller, channel, replica, beat)
            else:
                world.send(
                    self, controller, controller.on_heartbeat, channel, replica, beat, self.fenced_epoch
                )

    def ask_lease(
        self, controller: ControllerHost, channel: Channel, replica: Any, beat: dict[str, Any]
    ) -> None:
        epoch, sent_ms = self.epoch, self.clock()

        def back(lease_ms: int | None) -> None:
            if (
                lease_ms is not None
                and lease_ms > 0
                and self.role is Role.MASTER
                and self.epoch == epoch
                and self.fenced_epoch != epoch
            ):
                self.take_lease(sent_ms, lease_ms)

        self.world.call(
            self, controller, controller.heard_asking, back, channel, replica, beat, self.fenced_epoch, epoch
        )

    def take_lease(self, sent_ms: int, lease_ms: int) -> None:
        """Takes a granted lease, which counts from its request."""
        until_ms = sent_ms + lease_ms
        if until_ms > self.lease_until:
            if self.world.verbose:
                self.world.note(f"{self.name} may write until {until_ms} on its clock, now {self.clock()}")
            self.lease_until = until_ms
            self.world.check_only_writer(self)

    def fence(self) -> None:
        """Accepts no more writes under its epoch, and reports that."""
        if self.role is Role.MASTER:
            self.world.note(f"{self.name} fences itself under epoch {self.epoch}")
            self.fenced_epoch = self.epoch
            self.lease_until = 0.0
            self.send_beats()

    # Asking the controllers ---------------------------------------------------------------------------------

    def ask(self, request: ControllerRequest, done: Any) -> None:
        """Asks whoever it believes leads. `done(verdict, number)`; the verdict is None when the outcome is
        open."""
        controllers = list(self.world.controllers.values())
        controller = controllers[self.believed % len(controllers)]

        def back(response: tuple[RespondToRequest | RejectRequest, int] | None) -> None:
            if response is not None and isinstance(response[0], RespondToRequest):
                done(response[0].decision, response[1])
                return
            rejection = response[0] if response is not None else None
            if (
                not isinstance(rejection, RejectRequest)
                or rejection.code == ResponseCode.CONTROLLER_NOT_LEADER
            ):
                self.believed += 1
            done(None, 0)

        self.world.call(self, controller, controller.asked, back, request)

    def sync(self) -> None:
        """Asks the next question until it is registered; from then on, who is master."""
        self.later(self.world.sync_ms, self.sync)
        if not self.asking:
            self.asking = True
            self.next_question()

    def next_question(self) -> None:
        """Asks the question of the present stage."""
        name = self.group
        if self.stage is Stage.NEEDS_ID and self.wanted_id is None:
            self.ask(GetNextBrokerIdRequest(name), self._learnt_next_id)
        elif self.stage is Stage.NEEDS_ID:
            assert self.wanted_id is not None
            self.ask(
                ApplyBrokerIdRequest(name, CLUSTER, self.wanted_id, f"{self.address};{self.name}"),
                self._applied,
            )
        elif self.stage is Stage.HAS_ID:
            assert self.broker_id is not None
            self.ask(RegisterBrokerRequest(name, CLUSTER, self.broker_id, self.address), self._registered)
        else:
            self.ask(GetReplicaInfoRequest(name), self._informed)

    def _learnt_next_id(self, verdict: Decision | None, number: int) -> None:
        self.asking = False
        if verdict is not None:
            self.wanted_id = number

    def _applied(self, verdict: Decision | None, _: int) -> None:
        self.asking = False
        if verdict is None:
            return
        if verdict.code == ResponseCode.SUCCESS:
            self.broker_id, self.stage = self.wanted_id, Stage.HAS_ID
            self.send_beats()
        else:
            self.wanted_id = None

    def _registered(self, verdict: Decision | None, _: int) -> None:
        self.asking = False
        if verdict is None:
            return
        if verdict.code != ResponseCode.SUCCESS or verdict.view is None:
            self.stage, self.wanted_id = Stage.NEEDS_ID, self.broker_id
            return
        self.stage = Stage.REGISTERED
        self.send_beats()
        if verdict.view.master_id is not None:
            self.adopt(verdict.view)
        else:
            self.elect_me()

    def _informed(self, verdict: Decision | None, _: int) -> None:
        self.asking = False
        if verdict is None or verdict.view is None:
            return
        if verdict.view.master_id is not None:
            self.adopt(verdict.view)
        elif (verdict.view.master_epoch or 0) >= self.epoch:
            self.epoch = verdict.view.master_epoch or 0
            self.role, self.master, self.lease_until = Role.NONE, None, 0.0
            self.elect_me()

    def elect_me(self) -> None:
        """Asks for an election if the group has no master."""

        def done(verdict: Decision | None, _: int) -> None:
            if verdict is not None and verdict.view is not None and verdict.view.master_id is not None:
                self.adopt(verdict.view)

        if self.broker_id is not None:
            self.ask(ElectMasterRequest(self.group, self.broker_id), done)

    def notified(self, view: ReplicaGroupView) -> None:
        """Takes a controller's notification of the master."""
        if self.stage is Stage.REGISTERED:
            self.adopt(view)

    def adopt(self, view: ReplicaGroupView) -> None:
        """Takes the role that the controllers give, unless it knows a newer epoch."""
        epoch, set_epoch = view.master_epoch or 0, view.sync_state_set_epoch or 0
        if epoch < self.epoch:
            return
        if epoch == self.epoch and self.role is not Role.NONE:
            if self.role is Role.MASTER and set_epoch > self.set_epoch:
                self._take_set(view.sync_state_set, set_epoch)
            return
        self.epoch = epoch
        self.lease_until = 0.0
        self.acks.clear()
        if view.master_id == self.broker_id:
            self.world.note(f"{self.name} becomes master of epoch {epoch}")
            self.role, self.master = Role.MASTER, None
            self._take_set(view.sync_state_set, set_epoch)
            self.send_beats()
        else:
            self.role, self.master = Role.REPLICA, view.master_address

    def _take_set(self, members: frozenset[int], set_epoch: int) -> None:
        """Uses the set. Earlier proposals have been accepted, or never will be: they named an older epoch."""
        self.members, self.set_epoch, self.maybe = members, set_epoch, members
        self.confirm()

    # Writes and replication ---------------------------------------------------------------------------------

    def write(self) -> None:
        """Accepts a client's write, while that is allowed."""
        self.later(self.world.write_ms, self.write)
        if self.writable and not self.world.frozen:
            self.world.writes += 1
            self.log.append(self.world.writes)
            self.confirm()

    def confirm(self) -> None:
        """Acknowledges the writes that every broker has which is, or may be, in the SyncStateSet."""
        needed = (self.members | self.maybe) - {self.broker_id}
        end = min((self.acks.get(one, (0, 0))[0] for one in needed), default=len(self.log))
        self.world.acknowledge(self, min(end, len(self.log)))

    def pull(self) -> None:
        """Periodically a replica pulls from its master, and a master checks its set."""
        self.later(self.world.pull_ms, self.pull)
        if self.role is Role.MASTER:
            self.look_after_set()
        elif self.role is Role.REPLICA:
            self.ask_master()

    def ask_master(self) -> None:
        """Pulls the next writes, and thereby reports the end of its log."""
        if self.master is None:
            return
        self.pulls += 1
        number, start = self.pulls, len(self.log)
        last = self.log[-1] if self.log else None

        def back(response: tuple[int, int, list[int]] | None) -> None:
            if response is not None and number == self.pulls and self.role is Role.REPLICA:
                self._copy(*response)

        master = self.world.broker_at(self.master)
        if master is not self:
            self.world.call(self, master, master.pulled, back, self.broker_id, self.epoch, start, last)

    def _copy(self, epoch: int, start: int, writes: list[int]) -> None:
        if epoch == self.epoch:
            self.log[start:] = writes
            if writes:
                self.ask_master()

    def pulled(self, call: Call, replica: int, epoch: int, end: int, last: int | None) -> None:
        """Serves a replica's pull. Writes are unique, and two logs with a common write have all earlier ones
        in common. The last write therefore shows whether the replica's log is a prefix of this one."""
        if self.role is not Role.MASTER or epoch != self.epoch:
            return
        log = self.log
        if end > len(log) or (end > 0 and log[end - 1] != last):
            self.world.answer(call, (epoch, 0, log[:]))
            return
        known = self.acks.get(replica, (0, 0))[0]
        self.acks[replica] = (max(known, end), self.clock())
        self.confirm()
        self.world.answer(call, (epoch, end, log[end : end + COPY_MAX]))
        if replica not in self.members:
            self.look_after_set()

    def look_after_set(self) -> None:
        """Proposes to add replicas that have caught up, and to remove silent ones."""
        if self.altering or self.world.frozen or self.broker_id is None:
            return
        now_ms = self.clock()
        confirmed = len(self.world.acked[self.group])
        wanted = set(self.members)
        for one, (end, heard_ms) in self.acks.items():
            if now_ms - heard_ms > self.world.silent_ms:
                wanted.discard(one)
            elif end >= max(confirmed, len(self.log) - BEHIND_MAX):
                wanted.add(one)
        for one in self.members - self.acks.keys() - {self.broker_id}:
            self.acks[one] = (0, now_ms)
        if wanted != self.members:
            self._alter(frozenset(wanted))

    def _alter(self, wanted: frozenset[int]) -> None:
        assert self.broker_id is not None
        request = AlterSyncStateSetRequest(self.group, self.broker_id, self.epoch, wanted, self.set_epoch)
        self.world.asked_sets.add(request)
        self.altering = True
        self.maybe |= wanted

        def done(verdict: Decision | None, _: int) -> None:
            self.altering = False
            view = verdict.view if verdict is not None else None
            if view is None or self.role is not Role.MASTER or self.epoch != request.master_epoch:
                return
            if (view.sync_state_set_epoch or 0) > self.set_epoch:
                self._take_set(view.sync_state_set, view.sync_state_set_epoch or 0)

        self.ask(request, done)
