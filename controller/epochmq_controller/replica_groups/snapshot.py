# pure: the groups as bytes
"""Encodes and decodes all replica groups as a snapshot: sorted JSON, so that equal groups give equal bytes.
Java's DLedger controllers have no snapshots."""

from __future__ import annotations

from typing import Annotated

import msgspec

from epochmq_controller.replica_groups.replicated_state import RegisteredReplica, ReplicaGroup, ReplicaGroups
from epochmq_protocol.integers import LONG_MAX, LONG_MIN

VERSION = 1
Long = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]
"""An integer of Java's range: every number here goes into responses."""


class GroupRow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One group. `replicas`: id, address, check code. Earlier releases do not write the fields that
    have a default, and ignore them."""

    cluster_name: str
    broker_name: str
    next_broker_id: Long
    master_id: Long | None
    master_epoch: Long
    sync_state_set: list[Long]
    sync_state_set_epoch: Long
    replicas: list[tuple[Long, str, str]]
    former_members: list[Long] = []
    confirmed_offset: Long = -1
    incarnations: list[tuple[Long, str]] = []
    min_in_sync_replicas: Long = 1
    eligible_members: list[Long] = []


class GroupTables(msgspec.Struct, frozen=True, rename="camel"):
    """All groups, by name."""

    version: int
    groups: list[GroupRow]


def encode(groups: ReplicaGroups) -> bytes:
    """Encodes all groups."""
    rows = [_row(groups.groups[name]) for name in sorted(groups.groups)]
    return msgspec.json.encode(GroupTables(VERSION, rows))


def _row(group: ReplicaGroup) -> GroupRow:
    replicas = sorted(group.replicas.items())
    return GroupRow(
        cluster_name=group.cluster_name,
        broker_name=group.broker_name,
        next_broker_id=group.next_broker_id,
        master_id=group.master_id,
        master_epoch=group.master_epoch,
        sync_state_set=sorted(group.sync_state_set),
        sync_state_set_epoch=group.sync_state_set_epoch,
        replicas=[(number, one.address, one.register_check_code) for number, one in replicas],
        former_members=sorted(group.former_members),
        confirmed_offset=group.confirmed_offset,
        incarnations=[(number, one.incarnation) for number, one in replicas if one.incarnation],
        min_in_sync_replicas=group.min_in_sync_replicas,
        eligible_members=sorted(group.eligible_members),
    )


def decode(data: bytes) -> ReplicaGroups:
    """Decodes what `encode` returned. ValueError for other bytes."""
    try:
        tables = msgspec.json.decode(data, type=GroupTables)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"this is no snapshot of the controller's groups: {error}") from None
    if tables.version != VERSION:
        raise ValueError(
            f"the snapshot of the controller's groups has version {tables.version}, expected {VERSION}"
        )
    groups = ReplicaGroups()
    for row in tables.groups:
        incarnations = dict(row.incarnations)
        groups.groups[row.broker_name] = ReplicaGroup(
            row.cluster_name,
            row.broker_name,
            row.next_broker_id,
            {
                number: RegisteredReplica(address, code, incarnations.get(number, ""))
                for number, address, code in row.replicas
            },
            row.master_epoch,
            row.sync_state_set_epoch,
            frozenset(row.sync_state_set),
            row.master_id,
            frozenset(row.former_members),
            row.confirmed_offset,
            row.min_in_sync_replicas,
            frozenset(row.eligible_members),
        )
    return groups
