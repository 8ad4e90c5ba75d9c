# pure: the state that the parts of the state machine share
"""Holds what the parts of the controller's state machine share: groups, heartbeats, leases, time and
effects."""

from __future__ import annotations

from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.heartbeats import HeartbeatTable
from epochmq_controller.replica_groups.leases import LeapLimitedClock, LeaseTable
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.state_machine_types import (
    ControllerEffect,
    ControllerStateMachineSettings,
    LogMessage,
)


class ControllerTables:
    """One controller's state. `leases` is None while the controller does not lead."""

    def __init__(self, settings: ControllerStateMachineSettings, now_ms: int) -> None:
        self.settings = settings
        self.groups = ReplicaGroups()
        self.heartbeats = HeartbeatTable()
        self.leases: LeaseTable | None = None
        self.now_ms = now_ms
        self.clock = LeapLimitedClock(now_ms, settings.clock_step_ms)
        self.effects: list[ControllerEffect] = []
        self._tokens = 0

    def alive(self, cluster: str, name: str, broker_id: int) -> ReplicaLiveInfo | None:
        """What the heartbeats of a live replica say, None for a dead one."""
        return self.heartbeats.live_info((cluster, name, broker_id), self.now_ms)

    def is_master(self, name: str, broker_id: int, epoch: int) -> bool:
        """Whether a broker is the group's master of this epoch."""
        group = self.groups.get(name)
        return group is not None and (group.master_id, group.master_epoch) == (broker_id, epoch)

    def is_fenced(self, name: str) -> bool:
        """Whether the group's master has confirmed that it accepts no more writes under its epoch."""
        group, leases = self.groups.get(name), self.leases
        return group is not None and leases is not None and leases.is_fenced(name, group.master_epoch)

    def next_token(self) -> int:
        """A new number that identifies a proposal or a leadership check."""
        self._tokens += 1
        return self._tokens

    def emit(self, effect: ControllerEffect) -> None:
        """Adds an effect to those that the current step returns."""
        self.effects.append(effect)

    def log(self, text: str, *, is_warning: bool = False) -> None:
        """Writes a line to the log."""
        self.effects.append(LogMessage(text, is_warning))
