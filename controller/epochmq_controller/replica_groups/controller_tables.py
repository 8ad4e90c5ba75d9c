# pure: the state that the parts of the state machine share
"""Holds what the parts of the controller state machine share: replica groups, the brokers' heartbeats, write
leases, the time, and the effects of the present input."""

from __future__ import annotations

import msgspec

from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.events import ControllerEvent, ElectMasterEvent
from epochmq_controller.replica_groups.heartbeats import HeartbeatTable
from epochmq_controller.replica_groups.leases import LeapLimitedClock, LeaseTable
from epochmq_controller.replica_groups.offset_confirmed_by_all import OffsetConfirmedByAll
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.state_machine_types import (
    ControllerEffect,
    ControllerStateMachineSettings,
    LogMessage,
)


class ControllerTables:
    """One controller's state. `leases` is None while the controller does not lead. `now_ms` is the time of
    the present input, and decides which brokers are alive; `clock` decides when write leases end."""

    def __init__(self, settings: ControllerStateMachineSettings, now_ms: int) -> None:
        self.settings = settings
        self.groups = ReplicaGroups()
        self.heartbeats = HeartbeatTable()
        self.ended_masters: dict[str, int] = {}
        """By group: the epoch of a master whose connection has closed and that has sent no heartbeat
        since."""
        self.confirmed: dict[str, OffsetConfirmedByAll] = {}
        """What this controller has heard from heartbeats while it leads, and what groups without a master
        keep (`ReplicaGroup.confirmed_offset`)."""
        self.leases: LeaseTable | None = None
        self.now_ms = now_ms
        self.clock = LeapLimitedClock(now_ms, settings.clock_step_ms)
        self.effects: list[ControllerEffect] = []
        self._tokens = 0

    def alive(self, cluster: str, name: str, broker_id: int) -> ReplicaLiveInfo | None:
        """What is known of a living broker, None of a dead one: what its heartbeats say, or that its replicas
        hear it."""
        found = self.heartbeats.live_info((cluster, name, broker_id), self.now_ms)
        return found if found is not None else self._heard_master(cluster, name, broker_id)

    def lives(self, cluster: str, name: str, broker_id: int) -> bool:
        """Whether a broker is alive."""
        return self.alive(cluster, name, broker_id) is not None

    def _heard_master(self, cluster: str, name: str, broker_id: int) -> ReplicaLiveInfo | None:
        """A master that this controller does not hear, but a member of the SyncStateSet does. The controllers
        may have been cut off: those that reach them first must not take the place of one that serves. A
        closed connection says more than what replicas have heard before it."""
        group = self.groups.get(name)
        if group is None or (group.cluster_name, group.master_id) != (cluster, broker_id):
            return None
        replica, epoch = group.replicas.get(broker_id), group.master_epoch
        if replica is None or self.ended_masters.get(name) == epoch:
            return None
        for member in group.sync_state_set - {broker_id}:
            beat = self.heartbeats.table.get((cluster, name, member))
            if beat is not None and beat.hears(epoch, self.now_ms):
                return ReplicaLiveInfo(epoch, address=replica.address, lineage=replica.incarnation)
        return None

    def is_master(self, name: str, broker_id: int, epoch: int) -> bool:
        """Whether a broker is the group's master of this epoch."""
        group = self.groups.groups.get(name)
        return group is not None and group.master_id == broker_id and group.master_epoch == epoch

    def is_fenced(self, name: str) -> bool:
        """Whether the group's master has confirmed that it accepts no more writes under its epoch."""
        group, leases = self.groups.get(name), self.leases
        return group is not None and leases is not None and leases.is_fenced(name, group.master_epoch)

    def check_leases(self) -> None:
        """Raises InvariantError if leases contradict their rules, or the groups' masters. O(groups)."""
        leases = self.leases
        if leases is not None:
            leases.check_invariants(self.clock.ms)
            for name, group in self.groups.groups.items():
                leases.check_holder(name, group.master_id, self.clock.ms)

    def with_confirmed_offset(self, event: ControllerEvent) -> ControllerEvent:
        """The event to propose: one that leaves a group without a master keeps the offset that every member
        had, so that no controller elects a member that lacks a part of it."""
        known = self.confirmed.get(event.broker_name)
        if known is None or not isinstance(event, ElectMasterEvent) or event.new_master_elected:
            return event
        return msgspec.structs.replace(event, confirmed_offset=known.latest if known.latest >= 0 else None)

    def next_token(self) -> int:
        """A new number that identifies a proposal, or a leadership check (the effect CheckLeadership;
        ReadIndex)."""
        self._tokens += 1
        return self._tokens

    def emit(self, effect: ControllerEffect) -> None:
        """Adds an effect to those of the present input."""
        self.effects.append(effect)

    def log(self, text: str, *, is_warning: bool = False) -> None:
        """Adds the effect to log a message."""
        self.effects.append(LogMessage(text, is_warning))
