# pure: the replicated state
"""Holds the replica groups, and applies committed events to them (`ReplicasInfoManager.applyEvent`).

The state is deterministic: all controllers that applied the same events hold the same groups, Java's
included. Events carry no epochs; applying them increments the epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from epochmq_controller.replica_groups.events import (
    AlterSyncStateSetEvent,
    ApplyBrokerIdEvent,
    CleanBrokerDataEvent,
    ControllerEvent,
    ElectMasterEvent,
    UpdateBrokerAddressEvent,
)
from epochmq_protocol.errors import InvariantError


@dataclass
class RegisteredReplica:
    """One replica's address, and the check code that proves that an id belongs to it."""

    address: str
    register_check_code: str
    incarnation: str = ""
    """The process that registered last under this id (`incarnations`); empty if it named none."""


@dataclass
class ReplicaGroup:
    """One replica group. Cluster and name are those of its first registration. The name alone is its key."""

    cluster_name: str
    broker_name: str
    next_broker_id: int = 1
    """Invariant: greater than the number of replicas; each registration increments it."""
    replicas: dict[int, RegisteredReplica] = field(default_factory=dict)
    master_epoch: int = 0
    """Never falls while the group exists. Each election, also one without a result, increments it."""
    sync_state_set_epoch: int = 0
    """Never falls while the group exists. Invariant: 0 exactly while the SyncStateSet is empty."""
    sync_state_set: frozenset[int] = frozenset()
    """The replicas that have every acknowledged message. Invariants: not empty once a master was elected; a
    subset of `replicas`. (Java's controllers elect a first master that is not registered.)"""
    master_id: int | None = None
    """Invariant: in the SyncStateSet, unless an administrator has removed the dead master's id: then the next
    scan replaces it."""
    former_members: frozenset[int] = frozenset()
    """Until the first change of the SyncStateSet after an election: its other members of before, which had
    every acknowledged message. Derived from the events, so Java's controllers need not know it.

    Invariants: disjoint from the SyncStateSet; a subset of `replicas`; empty unless the SyncStateSet is one
    replica, which was elected and which none has joined."""
    confirmed_offset: int = -1
    """While the group has no master: the offset that every member had before, -1 if it is unknown. A member
    whose log ends before it has lost acknowledged messages. Only a successful election drops it."""

    min_in_sync_replicas: int = 1
    """With how many members the SyncStateSet acknowledges messages. With fewer it acknowledges none."""
    eligible_members: frozenset[int] = frozenset()
    """The replicas that have left the SyncStateSet by the change that made it too small to acknowledge, or
    since. So they have every acknowledged message, and may be elected (Kafka's eligible leader replicas,
    KIP-966). Derived from the events, as `former_members` is.

    Invariants: disjoint from the SyncStateSet; a subset of `replicas`; empty unless the SyncStateSet has
    fewer than `min_in_sync_replicas` members."""

    @property
    def electable_members(self) -> frozenset[int]:
        """The replicas that have every acknowledged message: the SyncStateSet, and the eligible members."""
        return self.sync_state_set | self.eligible_members

    @property
    def master_address(self) -> str | None:
        """The master's address, None without a master or if its id was cleaned."""
        replica = self.replicas.get(self.master_id) if self.master_id is not None else None
        return replica.address if replica is not None else None

    def check_invariants(self) -> None:
        """Raises InvariantError if the group contradicts the rules at its fields. O(replicas)."""
        name, members, replicas = self.broker_name, self.sync_state_set, self.replicas
        if self.next_broker_id <= len(replicas):
            raise InvariantError(
                "ReplicaGroup",
                "next_broker_id is greater than the number of replicas",
                group=name,
                next_broker_id=self.next_broker_id,
                replicas=sorted(replicas),
            )
        if bool(members) is not (self.sync_state_set_epoch > 0) or (members and self.master_epoch < 1):
            raise InvariantError(
                "ReplicaGroup",
                "the SyncStateSet is empty exactly before the first election",
                group=name,
                sync_state_set=sorted(members),
                sync_state_set_epoch=self.sync_state_set_epoch,
                master_epoch=self.master_epoch,
            )
        if not members <= replicas.keys():
            raise InvariantError(
                "ReplicaGroup",
                "the SyncStateSet is a subset of the replicas",
                group=name,
                sync_state_set=sorted(members),
                replicas=sorted(replicas),
            )
        if self.master_id in replicas and self.master_id not in members:
            raise InvariantError(
                "ReplicaGroup",
                "the master is in the SyncStateSet",
                group=name,
                master_id=self.master_id,
                sync_state_set=sorted(members),
            )
        if self.confirmed_offset < -1 or (self.confirmed_offset >= 0 and self.master_id is not None):
            raise InvariantError(
                "ReplicaGroup",
                "the confirmed offset is kept while the group has no master",
                group=name,
                confirmed_offset=self.confirmed_offset,
                master_id=self.master_id,
            )
        self._check_former_members()
        self._check_eligible_members()

    def _check_eligible_members(self) -> None:
        eligible, members, least = self.eligible_members, self.sync_state_set, self.min_in_sync_replicas
        if eligible and (eligible & members or len(members) >= least or not eligible <= self.replicas.keys()):
            raise InvariantError(
                "ReplicaGroup",
                "eligible members are replicas outside a SyncStateSet that is too small to acknowledge",
                group=self.broker_name,
                eligible_members=sorted(eligible),
                sync_state_set=sorted(members),
                min_in_sync_replicas=least,
                replicas=sorted(self.replicas),
            )

    def take_members(self, members: frozenset[int], least: int | None) -> None:
        """Sets the SyncStateSet, which acknowledges with `least` members. If it is too small, all replicas
        that could be elected so far still can: nothing is acknowledged that they lack."""
        electable = self.electable_members
        self.sync_state_set = members
        self.sync_state_set_epoch += 1
        self.min_in_sync_replicas = least if least is not None else 1
        is_too_small = len(members) < self.min_in_sync_replicas
        self.eligible_members = (electable - members) & self.replicas.keys() if is_too_small else frozenset()

    def _check_former_members(self) -> None:
        former, members = self.former_members, self.sync_state_set
        if former and (former & members or len(members) != 1 or not former <= self.replicas.keys()):
            raise InvariantError(
                "ReplicaGroup",
                "former members are the replicas that a new master without any other member has replaced",
                group=self.broker_name,
                former_members=sorted(former),
                sync_state_set=sorted(members),
                replicas=sorted(self.replicas),
            )


class ReplicaGroups:
    """All groups, by broker name."""

    def __init__(self) -> None:
        self.groups: dict[str, ReplicaGroup] = {}
        """Invariant: the key is the group's `broker_name`."""

    def get(self, broker_name: str) -> ReplicaGroup | None:
        """The group of this name, None if there is none."""
        return self.groups.get(broker_name)

    def check_invariants(self) -> None:
        """Raises InvariantError if a group contradicts its rules. O(replicas of all groups)."""
        for name, group in self.groups.items():
            if group.broker_name != name:
                raise InvariantError(
                    "ReplicaGroups",
                    "the key of a group is its name",
                    key=name,
                    broker_name=group.broker_name,
                )
            group.check_invariants()

    def apply(self, event: ControllerEvent) -> None:
        """Applies one committed event. An event that no longer fits, such as one of a removed group, changes
        nothing."""
        group = self.groups.get(event.broker_name)
        match event:
            case ApplyBrokerIdEvent():
                self._apply_broker_id(group, event)
            case AlterSyncStateSetEvent() if group is not None:
                if event.new_sync_state_set != group.sync_state_set:
                    group.former_members = frozenset()
                group.take_members(event.new_sync_state_set, event.min_in_sync_replicas)
            case ElectMasterEvent() if group is not None:
                self._elect(group, event)
            case CleanBrokerDataEvent() if group is not None:
                self._clean(group, event.broker_id_set_to_clean)
            case UpdateBrokerAddressEvent() if group is not None:
                replica = group.replicas.get(event.broker_id) if event.broker_id is not None else None
                if replica is not None and event.broker_address is not None:
                    replica.address = event.broker_address
                if replica is not None and event.incarnation is not None:
                    replica.incarnation = event.incarnation
            case _:
                pass

    def _apply_broker_id(self, group: ReplicaGroup | None, event: ApplyBrokerIdEvent) -> None:
        if group is None:
            group = ReplicaGroup(event.cluster_name or "", event.broker_name)
            self.groups[event.broker_name] = group
        if event.new_broker_id not in group.replicas:
            group.replicas[event.new_broker_id] = RegisteredReplica(
                event.broker_address or "", event.register_check_code or ""
            )
            group.next_broker_id += 1

    def _elect(self, group: ReplicaGroup, event: ElectMasterEvent) -> None:
        group.master_epoch += 1
        if event.new_master_elected and event.new_master_broker_id is not None:
            group.master_id = event.new_master_broker_id
            known = group.sync_state_set | group.former_members
            group.take_members(frozenset({event.new_master_broker_id}), event.min_in_sync_replicas)
            group.former_members = known - group.sync_state_set
            group.confirmed_offset = -1
        else:
            group.master_id = None
            group.confirmed_offset = max(group.confirmed_offset, event.confirmed_offset or -1)

    def _clean(self, group: ReplicaGroup, ids: frozenset[int] | None) -> None:
        if not ids:
            del self.groups[group.broker_name]
            return
        for broker_id in ids:
            group.replicas.pop(broker_id, None)
        group.sync_state_set -= ids
        group.former_members -= ids
        group.eligible_members -= ids
        # Java keeps two tables, and removes a group from a table in which it is empty. A group must be in
        # both.
        if not group.replicas or not group.sync_state_set:
            del self.groups[group.broker_name]
