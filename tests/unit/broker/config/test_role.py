"""The table of a broker's roles: every pair of roles, and what follows from a role."""

from __future__ import annotations

import math

import pytest

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig, from_properties
from epochmq_broker.config.capabilities import (
    BrokerStanding,
    Capabilities,
    StandingFacts,
    capabilities,
    role_of_settings,
)
from epochmq_broker.config.role import (
    NEXT_ROLES,
    ActingRole,
    IllegalRoleTransitionError,
    IsolatedRole,
    MasterRole,
    ReplicaRole,
    Role,
    RoleMachine,
)

ROLES: list[Role] = [IsolatedRole(1), ReplicaRole(1), ActingRole(1, 5), MasterRole(7)]
LEGAL = {
    ("IsolatedRole", "ReplicaRole"),
    ("IsolatedRole", "ActingRole"),
    ("IsolatedRole", "MasterRole"),
    ("ReplicaRole", "ReplicaRole"),
    ("ReplicaRole", "ActingRole"),
    ("ReplicaRole", "MasterRole"),
    ("ActingRole", "ReplicaRole"),
    ("MasterRole", "ReplicaRole"),
    ("MasterRole", "MasterRole"),
}
CONTROLLED = {"enableControllerMode": "true", "controllerAddr": "c:1"}
ACTING_GROUP = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true"}


@pytest.mark.parametrize("before", ROLES)
@pytest.mark.parametrize("after", ROLES)
def test_a_role_that_may_not_follow_raises_and_changes_nothing(before: Role, after: Role) -> None:
    machine = RoleMachine(before)
    if (type(before).__name__, type(after).__name__) in LEGAL:
        machine.become(after)
        assert machine.role == after
        return
    with pytest.raises(IllegalRoleTransitionError):
        machine.become(after)
    assert machine.role == before


def test_the_table_has_every_role() -> None:
    assert set(NEXT_ROLES) == {type(role) for role in ROLES}


def config(**settings: str) -> BrokerConfig:
    return from_properties(settings).config


def of(role: Role, **settings: str) -> Capabilities:
    return capabilities(StandingFacts(role), config(**settings))


@pytest.mark.parametrize(
    ("role", "settings", "sends", "pulls"),
    [
        (MasterRole(), {}, True, True),
        (ReplicaRole(1), {}, False, False),
        (ReplicaRole(1), {"slaveReadEnable": "true"}, False, True),
        (ReplicaRole(1), ACTING_GROUP, True, False),
        (ActingRole(1, 0), ACTING_GROUP, True, False),
        (IsolatedRole(1), ACTING_GROUP, True, False),
        (IsolatedRole(0), ACTING_GROUP, True, True),
    ],
)
def test_a_slave_rejects_sends_and_pulls_unless_the_settings_say_otherwise(
    role: Role, settings: dict[str, str], sends: bool, pulls: bool
) -> None:
    found = of(role, **settings)
    assert (found.accepts_sends, found.serves_pulls) == (sends, pulls)


@pytest.mark.parametrize(
    ("role", "settings", "here", "escapes"),
    [
        (MasterRole(), ACTING_GROUP, True, False),
        (IsolatedRole(0), ACTING_GROUP, True, False),
        (ReplicaRole(1), {}, True, False),
        (
            ReplicaRole(1),
            CONTROLLED | ACTING_GROUP,
            True,
            False,
        ),
        (ReplicaRole(1), ACTING_GROUP, False, False),
        (IsolatedRole(1), ACTING_GROUP, False, False),
        (ActingRole(1, 0), ACTING_GROUP, False, True),
        (ActingRole(1, 0), {"enableSlaveActingMaster": "true"}, False, False),
    ],
)
def test_only_an_acting_master_sends_to_other_groups(
    role: Role, settings: dict[str, str], here: bool, escapes: bool
) -> None:
    found = of(role, **settings)
    assert (found.delivers_here, found.escapes) == (here, escapes)


@pytest.mark.parametrize(
    ("role", "master", "special"),
    [
        (IsolatedRole(0), True, False),
        (IsolatedRole(1), False, False),
        (ReplicaRole(1), False, False),
        (ActingRole(1, 0), False, True),
        (MasterRole(3), True, True),
    ],
)
def test_the_special_services_run_on_a_master_and_on_an_acting_one(
    role: Role, master: bool, special: bool
) -> None:
    found = of(role, **ACTING_GROUP)
    assert (found.is_master, found.runs_special_services) == (master, special)


def test_without_a_lease_nothing_is_written_or_acknowledged() -> None:
    standing = BrokerStanding(MasterRole(), config())
    assert standing.capabilities.may_write(1e15), "no lease is needed"
    standing.lease_changed(-math.inf)
    assert not standing.capabilities.may_write(0)
    assert not standing.capabilities.may_acknowledge(0)
    standing.lease_changed(100.0)
    assert [standing.capabilities.may_write(at) for at in (99, 100)] == [True, False]
    assert [standing.capabilities.may_acknowledge(at) for at in (99, 100)] == [True, False]


def test_a_switchover_holds_writes_and_pops_and_acknowledges_what_is_stored() -> None:
    standing = BrokerStanding(MasterRole(), config())
    standing.handover_changed(True)
    found = standing.capabilities
    assert (found.may_write(0), found.may_acknowledge(0), found.hands_out) == (False, True, False)
    standing.handover_changed(False)
    assert standing.capabilities == BrokerStanding(MasterRole(), config()).capabilities


def test_a_broker_that_stops_writes_no_more_and_acknowledges_what_is_stored() -> None:
    standing = BrokerStanding(MasterRole(), config())
    standing.begin_stop()
    found = standing.capabilities
    assert (found.may_write(0), found.may_acknowledge(0), found.hands_out) == (False, True, True)


def test_a_full_disk_is_part_of_the_value() -> None:
    standing = BrokerStanding(MasterRole(), config())
    standing.store_changed(False)
    assert not standing.capabilities.store_is_open


def test_settings_and_role_change_the_value_at_once() -> None:
    live = LiveConfig(config(brokerRole="SLAVE", brokerId="1"))
    assert live.standing.role == role_of_settings(1, "SLAVE") == ReplicaRole(1)
    live.update({"slaveReadEnable": "true"})
    assert live.standing.capabilities.serves_pulls
    live.master_epoch = 4
    live.set_role(0, "SYNC_MASTER")
    assert live.standing.role == MasterRole(4)
    assert live.standing.capabilities.accepts_sends
