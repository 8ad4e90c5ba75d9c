"""Each invariant of groups and write leases is broken once, and the check names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochmq_controller.replica_groups.controller_tables import ControllerTables
from epochmq_controller.replica_groups.events import (
    AlterSyncStateSetEvent,
    ApplyBrokerIdEvent,
    ElectMasterEvent,
    encode,
)
from epochmq_controller.replica_groups.leases import GrantedLease, LeaseTable
from epochmq_controller.replica_groups.offset_confirmed_by_all import OffsetConfirmedByAll
from epochmq_controller.replica_groups.replicated_state import ReplicaGroup, ReplicaGroups
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import (
    ControllerStateMachineSettings,
    EntryApplied,
    LeadershipChanged,
    LogMessage,
)
from epochmq_protocol.errors import InvariantError

NAME = "orders"


def groups() -> ReplicaGroups:
    """Broker 1 is the new master of epoch 2, which no replica has joined; 2 and 3 are former members."""
    found = ReplicaGroups()
    for one in (1, 2, 3):
        found.apply(ApplyBrokerIdEvent(NAME, "c", f"10.0.0.{one}:1", one, "code"))
    found.check_invariants()
    found.apply(ElectMasterEvent(NAME, True, 2))
    found.apply(AlterSyncStateSetEvent(NAME, frozenset({1, 2, 3})))
    found.apply(ElectMasterEvent(NAME, True, 1))
    return found


BREAKS: list[tuple[str, Callable[[ReplicaGroup], object]]] = [
    ("greater than the number of replicas", lambda g: setattr(g, "next_broker_id", 3)),
    ("empty exactly before the first election", lambda g: setattr(g, "sync_state_set", frozenset())),
    ("empty exactly before the first election", lambda g: setattr(g, "sync_state_set_epoch", 0)),
    ("empty exactly before the first election", lambda g: setattr(g, "master_epoch", 0)),
    ("a subset of the replicas", lambda g: setattr(g, "sync_state_set", frozenset({1, 9}))),
    ("the master is in the SyncStateSet", lambda g: setattr(g, "master_id", 2)),
    ("former members", lambda g: setattr(g, "former_members", frozenset({1, 2}))),
    ("former members", lambda g: setattr(g, "former_members", frozenset({9}))),
    ("former members", lambda g: setattr(g, "sync_state_set", frozenset({1, 2}))),
]


@pytest.mark.parametrize(("rule", "breaks"), BREAKS)
def test_a_broken_group_is_named(rule: str, breaks: Callable[[ReplicaGroup], object]) -> None:
    found = groups()
    found.check_invariants()
    breaks(found.groups[NAME])
    with pytest.raises(InvariantError, match=rule):
        found.check_invariants()


def test_a_group_under_another_name_is_named() -> None:
    found = groups()
    found.groups["payments"] = found.groups.pop(NAME)
    with pytest.raises(InvariantError, match="the key of a group is its name"):
        found.check_invariants()


def test_a_dead_master_whose_id_was_removed_breaks_no_rule() -> None:
    found = groups()
    group = found.groups[NAME]
    group.master_id = 4
    found.check_invariants()


def leases() -> LeaseTable:
    """Leases of 600 ms, of a leadership since 1000; broker 1 holds one that was requested at 2000."""
    found = LeaseTable(600, 50, 1000)
    assert found.grant(NAME, 1, 5, 2000)
    return found


def test_a_lease_that_outlasts_its_request_is_named() -> None:
    table = leases()
    table.check_invariants(2000)
    with pytest.raises(InvariantError, match="measured from the arrival of its request"):
        table.check_invariants(1999)
    table.last_end_ms -= 1
    with pytest.raises(InvariantError, match="measured from the arrival of its request"):
        table.check_invariants(2000)


def test_a_wait_for_earlier_leaders_that_is_too_long_is_named() -> None:
    table = leases()
    table.unknown_leases_until_ms = table.last_end_ms + 1
    with pytest.raises(InvariantError, match="leases of earlier leaders end within one bound"):
        table.check_invariants(5000)


def test_another_master_beside_the_holder_of_a_lease_is_named() -> None:
    table = leases()
    table.check_holder(NAME, 1, 2100)
    table.check_holder(NAME, None, 2100)
    table.check_holder(NAME, 2, table.granted[NAME].ends_ms)
    with pytest.raises(InvariantError, match="no other broker is master while the holder of a lease may"):
        table.check_holder(NAME, 2, 2100)
    table.confirm_fenced(NAME, 5)
    table.check_holder(NAME, 2, 2100)


def test_the_tables_compare_leases_with_masters() -> None:
    tables = ControllerTables(ControllerStateMachineSettings(), 2000)
    tables.groups, tables.leases = groups(), LeaseTable(600, 50, 2000)
    tables.leases.granted[NAME] = GrantedLease(2, 1, 2500)
    with pytest.raises(InvariantError, match="no other broker is master"):
        tables.check_leases()


def test_a_confirmed_offset_that_falls_is_named() -> None:
    confirmed = OffsetConfirmedByAll()
    confirmed.record(10)
    confirmed.record(5)
    confirmed.check_invariants()
    confirmed.latest = 5
    with pytest.raises(InvariantError, match="-1 <= previous <= latest"):
        confirmed.check_invariants()


def test_a_controller_that_begins_to_lead_logs_a_group_that_breaks_a_rule() -> None:
    """RocketMQ's controllers elect a first master that is not registered. Every controller has the same
    entries, so none could lead if this one refused."""
    machine = ControllerStateMachine(ControllerStateMachineSettings(), 0)
    machine.step(LeadershipChanged(1), 0)
    entries = [ApplyBrokerIdEvent(NAME, "c", "10.0.0.1:1", 1, "code"), ElectMasterEvent(NAME, True, 7)]
    for index, event in enumerate(entries):
        machine.step(EntryApplied(index, 1, encode(event)), 0)
    effects = machine.step(EntryApplied(2, 1, b""), 0)
    warnings = [one.text for one in effects if isinstance(one, LogMessage) and one.is_warning]
    assert machine.leads
    assert any("the SyncStateSet is a subset of the replicas" in text for text in warnings), warnings
    with pytest.raises(InvariantError, match="a subset of the replicas"):
        machine.check_invariants()
