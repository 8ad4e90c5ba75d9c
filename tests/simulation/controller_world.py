"""Controllers and their brokers: elections, leases, SyncStateSets, and writes that must not get lost."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import msgspec

from epochmq_controller.replica_groups import events
from epochmq_controller.replica_groups.events import AlterSyncStateSetEvent, ControllerEvent, ElectMasterEvent
from epochmq_controller.replica_groups.replicated_state import ReplicaGroup, ReplicaGroups
from epochmq_controller.replica_groups.requests import (
    AlterSyncStateSetRequest,
    ControllerRequest,
    ElectMasterRequest,
)
from epochmq_controller.replica_groups.rules import Decision
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import ControllerStateMachineSettings, EntryApplied
from epochmq_dledger.core.types import RaftSettings
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RemoteProtocolError
from tests.simulation import fault_plan
from tests.simulation.brokers import Broker, Channel, Role
from tests.simulation.clockwork import Event as PlannedEvent
from tests.simulation.clockwork import Host
from tests.simulation.controllers import ControllerHost
from tests.simulation.fault_plan import Make, Plan
from tests.simulation.liveness import Liveness
from tests.simulation.peer_host import settings_for
from tests.simulation.raft_world import RaftWorld

SETTLE_MS = 7_000
"""A quiet world has a writing master in every group, and all its replicas in sync, within this time."""
REPLACE_MS = 4_000
"""A dead master is replaced within this time."""

BROKER_RATES = {
    "kill_broker": 8.0,
    "pause": 4.0,
    "cut": 6.0,
    "isolate": 5.0,
    "leap": 2.0,
    "disconnect": 6.0,
    "designate": 3.0,
    "retire": 2.0,
    "leap_while_electing": 4.0,
    "stale_master": 4.0,
    "stuck_change": 2.0,
    "freeze": 3.0,
    "leap_twice": 2.0,
}
LEASES_TOUCHED = 3
"""After a clock stopped or leapt twice, leases may be wrong for this many times their length."""


def plan(seed: int, salt: str = "controllers", groups: int | None = None, faults_ms: float = 45_000) -> Plan:
    """Plans a seed's world. `groups`: the number of groups, by default random."""
    rng = random.Random(f"{salt} {seed}")
    lease_ms = rng.choice((450, 600, 1200))
    found = Plan(
        seed,
        fault_plan.network(rng)._replace(delay_max_ms=rng.choice((2, 10, 30))),
        peers=5 if rng.random() < 0.1 else 3,
        drift=0.024,
        options={
            "groups": groups or (2 if rng.random() < 0.2 else 1),
            "lease_ms": lease_ms,
            "beat_ms": lease_ms // 3,
            "beat_timeout_ms": rng.choice((1000, 3000)),
            "beside_java": rng.random() < 0.33,
            "stored": rng.random() < 0.1,
        },
        faults_ms=faults_ms,
        quiet_ms=15_000,
    )
    controllers = [f"n{i}" for i in range(found.peers)]
    brokers = [f"{group}{i}" for group in "ab"[: found.options["groups"]] for i in (1, 2, 3)]
    until_ms = found.faults_ms
    of_peers = fault_plan.peer_makers(controllers)
    of_brokers = broker_makers(controllers, brokers)
    mixed_peers = fault_plan.mixture(rng, fault_plan.PEER_RATES, 0.5)
    mixed_brokers = fault_plan.mixture(rng, BROKER_RATES, 0.5)
    streams = [
        fault_plan.stream(rng, kind, rate, until_ms, of_peers[kind]) for kind, rate in mixed_peers.items()
    ]
    streams += [
        fault_plan.stream(rng, kind, rate, until_ms, of_brokers[kind]) for kind, rate in mixed_brokers.items()
    ]
    found.events = fault_plan.sequence(streams)
    return found


def broker_makers(controllers: list[str], brokers: list[str]) -> dict[str, Make]:
    """How to draw the arguments of each kind of broker fault. Many of them hit the master."""
    groups = sorted({name[0] for name in brokers})
    everybody = controllers + brokers

    def who(rng: random.Random) -> str:
        return f"master {rng.choice(groups)}" if rng.random() < 0.5 else rng.choice(brokers)

    return {
        "kill_broker": lambda r: (
            who(r),
            round(r.choice((50, 500, 4000)) * (0.5 + r.random())),
            r.random() < 0.2,
        ),
        "pause": lambda r: (who(r), round(r.choice((300, 3000)) * (0.2 + r.random()))),
        "cut": lambda r: (who(r), r.choice(everybody), r.random() < 0.5, round(r.uniform(200, 6000))),
        "isolate": lambda r: (who(r), r.choice(("both", "in", "out")), round(r.uniform(200, 5000))),
        "leap": lambda r: (who(r), round(r.choice((50, 500, 5000)) * (0.5 + r.random()))),
        "disconnect": lambda r: (who(r), r.choice(["leader", *controllers])),
        "designate": lambda r: (r.choice(groups), r.randint(1, 3)),
        "retire": lambda r: (r.choice(groups),),
        "leap_while_electing": lambda r: (
            r.choice(groups),
            r.randint(1, 3),
            round(r.uniform(0, 800)),
            round(r.choice((100, 400, 1500)) * (0.5 + r.random())),
        ),
        "freeze": lambda r: (who(r), round(r.choice((100, 800, 3000)) * (0.5 + r.random()))),
        "leap_twice": lambda r: (round(r.uniform(20, 400)), round(r.choice((100, 400, 1500)))),
        "stuck_change": lambda r: (round(r.uniform(5500, 9000)), r.choice(brokers), r.choice(groups)),
        "stale_master": lambda r: (r.choice(groups), round(r.uniform(1500, 4000)), round(r.uniform(0, 600))),
    }


AnyBroker = Any
"""A `Broker` or, in a `GroupWorld`, a `GroupBroker`: see `ControllerWorld.broker_type`."""


class ControllerWorld(RaftWorld):
    """The world of a plan."""

    broker_type: type[Any] = Broker

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        options = plan.options
        super().__init__(
            plan.seed,
            plan.network,
            beside_java=options["beside_java"],
            stored=options.get("stored", False),
            verbose=verbose,
        )
        self.wanted = plan
        self.beat_ms: int = options["beat_ms"]
        self.beat_timeout_ms: int = options["beat_timeout_ms"]
        self.lease_ms: int = options["lease_ms"]
        self.sync_ms, self.write_ms, self.pull_ms, self.silent_ms = 500, 150, 150, 1000
        self.frozen = False
        """Whether clients and masters have stopped to change anything."""
        self.writes = 0
        self.controllers: dict[str, ControllerHost] = {}
        self.brokers: dict[str, AnyBroker] = {}
        self.acked: dict[str, list[int]] = {}
        self.asked_sets: set[AlterSyncStateSetRequest] = set()
        self.leapt_at: dict[str, float] = {}
        self.frozen_until: dict[str, float] = {}
        self.clocks_trusted_from = 0.0
        """Until then a lease may last too long, because a clock stopped or leapt twice within it: two masters
        may write at an instant. Their acknowledged writes must survive even so."""
        self.tables = ReplicaGroups()
        """The groups, as the committed events have made them."""
        self.digests: list[tuple[object, ...]] = []
        self.elections = 0
        self.grants = 0
        state_machine_settings = ControllerStateMachineSettings(lease_ms=self.lease_ms)
        names = tuple(f"n{i}" for i in range(plan.peers))
        for name in names:
            controller = ControllerHost(self, name, controller_settings(name, names), state_machine_settings)
            self.controllers[name] = controller
            self.add_peer(controller)
        for group in "ab"[: options["groups"]]:
            self.acked[group] = []
            for number in (1, 2, 3):
                broker = self.broker_type(self, group, number)
                self.brokers[broker.name] = self.hosts[broker.name] = broker
        for host in self.hosts.values():
            host.rate = 1 + self.random.choice((-1, 1, self.random.uniform(-1, 1))) * plan.drift
            host.start()
        self.liveness = Liveness(self)

    def _carry_out(self, event: PlannedEvent) -> None:
        self.liveness.disturbed()
        super()._carry_out(event)

    def end_faults(self) -> None:
        """Also counts as a disturbance: links are faster from now on than when a request was sent."""
        self.liveness.disturbed()
        super().end_faults()

    def counts(self) -> dict[str, int]:
        acked = sum(map(len, self.acked.values()))
        own = {"elections": self.elections, "leases": self.grants, "acknowledged": acked}
        return super().counts() | own

    # A life -------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Lives the plan: faults, then quiet. Some worlds run their controllers on the production store."""
        with self.machine.installed() if self.stored else contextlib.nullcontext():
            self.live_through()

    def proposing(self, bodies: tuple[bytes, ...]) -> None:
        """A controller proposes events."""

    def live_through(self) -> None:
        """Checks after the faults that all works, that a dead master is replaced, and that all controllers
        have equal groups."""
        self.plan(self.wanted.events)
        self.run(self.wanted.faults_ms)
        self.end_faults()
        self.run(self.now + SETTLE_MS)
        self.check_working()
        masters = [broker for group in self.acked if (broker := self.master_of(group)) is not None]
        for master in masters:
            master.die()
        self.run(self.now + REPLACE_MS)
        self.check_working(dead=len(masters))
        self.frozen = True
        self.run(self.wanted.faults_ms + self.wanted.quiet_ms)
        self.check_logs()
        for group, acked in self.acked.items():
            last = self.master_of(group)
            if last is None or last.log[: len(acked)] != acked:
                self.fail(f"the master of {group} lacks acknowledged writes")

    def check_working(self, dead: int = 0) -> None:
        """Checks that a controller leads, that every group has a writing master, and that all live replicas
        are in sync."""
        if not any(c.state_machine is not None and c.state_machine.leads for c in self.controllers.values()):
            self.fail("no controller leads in a quiet world")
        for group in self.acked:
            master = self.master_of(group)
            if master is None or not master.up:
                self.fail(f"group {group} has no live master in a quiet world: {self.shown(group)}")
            elif not master.writable:
                self.fail(f"{master.name} has no lease in a quiet world: {self.shown(group)}")
            living = [b for b in self.brokers.values() if b.group == group and b.up]
            members = self.tables.groups[group].sync_state_set
            if not dead and len(members) != len(living):
                self.fail(f"not all replicas are in sync in a quiet world: {self.shown(group)}")

    def shown(self, name: str) -> str:
        """Describes a group."""
        group = self.tables.get(name)
        if group is None:
            return f"{name} is unknown"
        return (
            f"{name} has master {group.master_id} epoch {group.master_epoch}, "
            f"in sync {sorted(group.sync_state_set)} epoch {group.sync_state_set_epoch}"
        )

    def master_of(self, name: str) -> AnyBroker | None:
        """The broker that is master of a group."""
        group = self.tables.get(name)
        if group is None or group.master_id is None:
            return None
        return self.broker_of(name, group.master_id)

    def broker_of(self, group: str, broker_id: int) -> AnyBroker | None:
        """The group's broker with this id. Its check code contains its name."""
        known = self.tables.groups[group].replicas.get(broker_id)
        return self.brokers[known.register_check_code.split(";")[1]] if known is not None else None

    def broker_at(self, address: str) -> AnyBroker:
        """The broker at an address."""
        return self.brokers[address.split("/")[0]]

    def host(self, who: str) -> Host:
        """The machine of this name. `master <group>` is the present master, or the group's first broker."""
        if who.startswith("master "):
            group = who.split()[1]
            found: Host = self.master_of(group) or self.brokers[f"{group}1"]
            return found
        return super().host(who)

    def close(self, broker: AnyBroker, controller: ControllerHost, channel: Channel) -> None:
        """Closes a connection. The controller notices it, unless the link is cut."""
        self.at(self.delay(), self._closed, broker, controller, channel)

    def _closed(self, broker: AnyBroker, controller: ControllerHost, channel: Channel) -> None:
        if not self.is_cut(broker, controller):
            controller.receive(controller.channel_closed, channel)

    # Promises -----------------------------------------------------------------------------------------------

    def check_applied(
        self, controller: ControllerHost, state_machine: ControllerStateMachine, entry: EntryApplied
    ) -> None:
        """Checks that all controllers have the groups that the committed events produce, and that the rules
        allow every event."""
        event = decoded(entry.body)
        if entry.index == len(self.digests):
            if event is not None:
                self.check_event(event)
                self.tables.apply(event)
            self.digests.append(digest(self.tables, event))
        if digest(state_machine.groups, event) != self.digests[entry.index]:
            self.fail(
                f"state machine safety: after entry {entry.index} {controller.name} has "
                f"{digest(state_machine.groups, event)}, others {self.digests[entry.index]}"
            )

    def check_event(self, event: ControllerEvent) -> None:
        """Checks that SyncStateSet and master change only as the rules allow."""
        group = self.tables.get(event.broker_name)
        if isinstance(event, AlterSyncStateSetEvent):
            self.check_alter(group, event)
        elif isinstance(event, ElectMasterEvent):
            self.elections += 1
            self.note(f"election: {event.broker_name} gets {event.new_master_broker_id}")
            if group is not None and event.new_master_elected and event.new_master_broker_id is not None:
                self.check_elected(group, event.new_master_broker_id)

    def check_alter(self, group: ReplicaGroup | None, event: AlterSyncStateSetEvent) -> None:
        """Checks that the master of this epoch requested the set as a change of the present one, or that the
        set is the same."""
        name, new_set = event.broker_name, event.new_sync_state_set
        if group is None or group.master_id is None or group.master_id not in new_set:
            self.fail(f"{name}: the set becomes {sorted(new_set)} without its master, {self.shown(name)}")
            return
        asked = AlterSyncStateSetRequest(
            name,
            group.master_id,
            group.master_epoch,
            new_set,
            group.sync_state_set_epoch,
            event.min_in_sync_replicas or 1,
        )
        if new_set != group.sync_state_set and asked not in self.asked_sets:
            self.fail(f"{name}: nobody may have asked for the set {sorted(new_set)}: {self.shown(name)}")
        if not new_set <= group.replicas.keys():
            self.fail(f"{name}: {sorted(new_set)} has members that nobody knows")

    def check_answer(self, request: ControllerRequest | None, decision: Decision) -> None:
        """Checks that a response fits its request."""
        if decision.code != ResponseCode.SUCCESS:
            return
        view = decision.view
        if isinstance(request, AlterSyncStateSetRequest) and (
            view is None or view.sync_state_set != request.new_set
        ):
            self.fail(f"{request} is answered {decision}")
        if isinstance(request, ElectMasterRequest) and (view is None or view.master_id is None):
            self.fail(f"{request} is answered {decision}")

    def check_elected(self, group: ReplicaGroup, broker_id: int) -> None:
        """Checks that a new master was in sync and has all acknowledged writes, and that no other broker may
        write."""
        name = group.broker_name
        if group.master_epoch > 0 and broker_id not in group.sync_state_set:
            self.fail(f"{name}: {broker_id} is elected, but was not in sync: {self.shown(name)}")
        broker, acked = self.broker_of(name, broker_id), self.acked[name]
        if broker is None:
            self.fail(f"{name}: {broker_id} is elected, but nobody has this id")
        elif acked and (len(broker.log) < len(acked) or broker.log[len(acked) - 1] != acked[-1]):
            self.fail(f"{broker.name} is elected without all that was acknowledged: {self.shown(name)}")
        for other in self.brokers.values():
            if other.group == name and other is not broker and other.writable:
                self.fail_if_clocks_are_sound(f"{name}: {broker_id} is elected while {other.name} may write")

    def check_only_writer(self, broker: AnyBroker) -> None:
        """Checks that at most one master of a group may write. Two can begin to write together only when a
        lease arrives, so that is the moment to check."""
        self.grants += 1
        if broker.writable:
            self.check_no_other_writer(broker)

    def check_no_other_writer(self, broker: AnyBroker) -> None:
        """Checks that no other master of the group of one that writes may write, too."""
        for other in self.brokers.values():
            if other is not broker and other.group == broker.group and other.writable:
                self.fail_if_clocks_are_sound(
                    f"two masters may write: {broker.name} and {other.name}, {self.shown(broker.group)}"
                )

    def fail_if_clocks_are_sound(self, text: str) -> None:
        """Fails if a lease lasted too long, unless a clock explains it."""
        if self.now >= self.clocks_trusted_from:
            self.fail(text)
        self.count_event("two writers by a clock that stood still or leapt twice")

    def acknowledge(self, broker: AnyBroker, end: int) -> None:
        """A master acknowledges its writes up to `end`."""
        acked, log = self.acked[broker.group], broker.log
        known = min(end, len(acked))
        if known and log[known - 1] != acked[known - 1]:
            self.fail(f"{broker.name} acknowledges another write than was acknowledged before at {known - 1}")
        acked.extend(log[len(acked) : end])

    # Events of brokers --------------------------------------------------------------------------------------

    def broker(self, who: str) -> AnyBroker:
        """The broker of this name, or a group's master."""
        found = self.host(who)
        assert found.name in self.brokers
        return found

    def do_kill_broker(self, who: str, down_ms: float, moves: bool) -> None:
        """Kills a broker (kill -9). It restarts later, perhaps at another address."""
        broker = self.broker(who)
        if broker.up:
            self.count_event("brokers killed")
            broker.die()
            if moves:
                broker.address = f"{broker.name}/{self.now:.0f}"
            self.at(down_ms, self._start, broker, broker.life)

    def do_disconnect(self, who: str, controller: str) -> None:
        """Breaks a connection."""
        broker, target = self.broker(who), self.host(controller)
        if broker.up and not broker.paused and isinstance(target, ControllerHost):
            self.note(f"{broker.name} loses its connection to {target.name}")
            broker.disconnect(target)

    def do_designate(self, group: str, broker_id: int) -> None:
        """An operator designates a master."""
        leader = self.leader()
        broker = self.brokers[f"{group}1"]
        if leader is not None and isinstance(leader, ControllerHost):
            self.note(f"somebody wants {broker_id} to be the master of {group}")
            self.call(
                broker,
                leader,
                leader.asked,
                lambda _: None,
                ElectMasterRequest(group, broker_id, designate=True),
            )

    def do_leap(self, who: str, by_ms: float) -> None:
        """Makes a machine's clock leap, but not twice within a lease: leases tolerate one leap."""
        name = self.host(who).name
        before, self.leapt_at[name] = self.leapt_at.get(name, -math.inf), self.now
        if self.now - before > 2 * self.lease_ms:
            super().do_leap(who, by_ms)

    def do_pause(self, who: str, duration_ms: float) -> None:
        """Pauses a machine, unless it is frozen: SIGCONT would reach it only afterwards."""
        if self.now >= self.frozen_until.get(self.host(who).name, -math.inf):
            super().do_pause(who, duration_ms)

    def do_freeze(self, who: str, duration_ms: float) -> None:
        """A hypervisor stops a machine and its clock, which the machine does not notice."""
        host = self.host(who)
        if host.up and not host.paused:
            self.at(duration_ms, self._thaw, host, host.life, duration_ms * host.rate)
            self.do_pause(host.name, duration_ms)
            self.frozen_until[host.name] = self.now + duration_ms
            self.distrust_clocks(duration_ms)
            self.count_event("frozen clocks")

    def _thaw(self, host: Host, life: int, lost_ms: float) -> None:
        if host.life == life and not self.quiet:  # the end of the faults has ended this one, too
            host.leaps_ms -= lost_ms

    def do_leap_twice(self, after_ms: float, by_ms: float) -> None:
        """Makes the leading controller's clock leap twice within a lease."""
        leader = self.host("leader").name
        for wait_ms in (0.0, after_ms):
            self.at(wait_ms, super().do_leap, leader, by_ms)
        self.leapt_at[leader] = self.now + after_ms
        self.distrust_clocks(after_ms)
        self.count_event("two leaps within a lease")

    def distrust_clocks(self, for_ms: float) -> None:
        """Leases may last too long during this time, and for some time after it."""
        until_ms = self.now + for_ms + LEASES_TOUCHED * self.lease_ms
        self.clocks_trusted_from = max(self.clocks_trusted_from, until_ms)

    def do_leap_while_electing(self, group: str, broker_id: int, after_ms: float, by_ms: float) -> None:
        """An operator designates a master. While the election waits for the old lease, the leader's clock
        leaps."""
        self.do_designate(group, broker_id)
        self.at(after_ms, self.do_leap, "leader", by_ms)

    def do_stuck_change(self, stuck_ms: float, who: str, group: str) -> None:
        """Requests changes while no quorum makes entries durable."""
        self.do_stuck_disks(stuck_ms)
        self.do_isolate(who, "both", stuck_ms)
        self.do_designate(group, 1)

    def do_stale_master(self, group: str, pause_ms: float, deaf_ms: float) -> None:
        """Pauses the leader until it is replaced; it continues without learning of its successor at first.
        The master can reach only this leader."""
        leader, master = self.leader(), self.master_of(group)
        if leader is None or master is None or not leader.up:
            return
        for other in self.hosts.values():
            if other is not leader and other is not master:
                self._cut(other, leader, pause_ms + deaf_ms)
                self._cut(other, master, pause_ms + deaf_ms)
                self._cut(master, other, pause_ms + deaf_ms)
        self.note(f"{master.name} reaches nobody but {leader.name} for {pause_ms + deaf_ms:.0f} ms")
        self.do_pause(leader.name, pause_ms)

    def do_retire(self, group: str) -> None:
        """A master fences itself."""
        master = self.master_of(group)
        if master is not None and master.up and not master.paused and master.role is Role.MASTER:
            master.fence()


def decoded(body: bytes) -> ControllerEvent | None:
    """The event of an entry, None for an entry without one."""
    try:
        return events.decode(body)
    except RemoteProtocolError:
        return None


def digest(groups: ReplicaGroups, event: ControllerEvent | None) -> tuple[object, ...]:
    """The state of the event's group."""
    group = groups.get(event.broker_name) if event is not None else None
    if group is None:
        return ()
    return (
        group.master_id,
        group.master_epoch,
        group.sync_state_set,
        group.sync_state_set_epoch,
        group.next_broker_id,
        tuple((one, replica.address) for one, replica in group.replicas.items()),
    )


def controller_settings(name: str, names: tuple[str, ...]) -> RaftSettings:
    """The Raft settings of a controller: no proposal times out."""
    return msgspec.structs.replace(settings_for(name, names), ack_wait_max_ms=86_400_000)
