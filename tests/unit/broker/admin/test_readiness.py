"""Readiness by role, lag and quorum."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from epochmq_broker.admin.lag_estimator import LagEstimator
from epochmq_broker.admin.readiness import ReadinessFacts, not_ready_reasons
from epochmq_broker.membership.store_faults import store_faults
from epochmq_controller.controller import admin_api as of_controllers
from epochmq_protocol.admin_api.operations import ReadinessLimits
from epochmq_protocol.admin_api.results import (
    ControllerPeer,
    ControllerState,
    GroupRoleName,
    MemberGroupState,
)
from epochmq_store.log.damaged_ranges import REFILL
from epochmq_store.statuses import RunningFlags

LIMITS = ReadinessLimits(max_lag_bytes=1000, max_lag_ms=5000)
MASTER = ReadinessFacts(
    role="master", controlled=True, broker_id=1, sync_state_set=frozenset({1, 2}), registered=True,
    leading_controller="c:1", lag_bytes=0, lag_ms=0,
)  # fmt: skip
REPLICA = ReadinessFacts(
    role="replica", controlled=True, broker_id=2, sync_state_set=frozenset({1, 2}), registered=True,
    leading_controller="c:1", following=True, lag_bytes=10, lag_ms=20, may_write=False, replicas_enough=False,
)  # fmt: skip
NOBODY = ReadinessFacts(role="none", controlled=True, broker_id=None, sync_state_set=frozenset())


def reasons(facts: ReadinessFacts, **changes: Any) -> list[str]:
    return not_ready_reasons(msgspec.structs.replace(facts, **changes), LIMITS)


def test_a_master_that_stores_messages_and_a_replica_that_could_are_ready() -> None:
    assert reasons(MASTER) == []
    assert reasons(REPLICA) == []
    assert reasons(REPLICA, lag_bytes=1000, lag_ms=5000) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"may_write": False}, "the master has no write lease"),
        (
            {"may_write": False, "waits_for": "waits for the controllers: they have granted no lease"},
            "the master has no write lease and waits for the controllers: they have granted no lease",
        ),
        (
            {"replicas_enough": False, "min_in_sync_replicas": 3},
            "2 replicas are in sync, but minInSyncReplicas=3",
        ),
        ({"registered": False}, "it is not registered with a nameserver yet"),
        ({"fenced": True}, "it is fenced: it stores no messages until it is unfenced"),
        ({"store_faults": ("the disk is full",)}, "the disk is full"),
    ],
)
def test_a_master_that_stores_no_messages_is_not_ready(changes: dict[str, Any], expected: str) -> None:
    assert reasons(MASTER, **changes) == [expected]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"divergence": "broker 2 has more", "following": False}, "it follows no master: broker 2 has more"),
        ({"sync_state_set": frozenset({1})}, "it is not in the SyncStateSet [1]; it lacks 10 bytes"),
        (
            {"following": False, "step": "connects"},
            "it does not follow a master: it connects",
        ),
        ({"lag_bytes": None, "lag_ms": None}, "its lag is unknown"),
        ({"lag_bytes": 1001}, "it lacks 1001 bytes, more than the limit 1000"),
        ({"lag_ms": 5001}, "it has been behind for 5001 ms, longer than the limit 5000"),
        ({"drained": True}, "it is drained: it stays out of the SyncStateSet until it is undrained"),
        ({"fenced": True}, "it is fenced: it stores no messages until it is unfenced"),
    ],
)
def test_a_replica_that_could_not_become_master_without_a_loss_is_not_ready(
    changes: dict[str, Any], expected: str
) -> None:
    assert reasons(REPLICA, **changes) == [expected]


def test_a_configured_learner_only_has_to_follow() -> None:
    assert reasons(REPLICA, learner=True, sync_state_set=frozenset({1})) == []
    assert reasons(REPLICA, controlled=False, broker_id=1, sync_state_set=frozenset()) == []
    assert reasons(REPLICA, controlled=False, following=False) == ["it does not follow a master: it has none"]


def test_a_broker_without_a_role_names_what_it_waits_for() -> None:
    assert reasons(NOBODY) == ["no leading controller is known"]
    assert reasons(NOBODY, leading_controller="c:1") == [
        "the leading controller c:1 has not named a master yet"
    ]
    assert reasons(NOBODY, controlled=False) == ["it has not started"]


CONTROLLER = ControllerState(
    id="n0", group="g", address="a:1", role="follower", term=3, leader="n1", leader_address="a:2",
    leads=False, committed_index=1, applied_index=1, groups=[], ready=True, not_ready=[],
    peers=[ControllerPeer(id=name, address="a") for name in ("n0", "n1", "n2")],
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"role": "leader", "leader": "n0", "leads": True}, []),
        (
            {"role": "leader", "leader": "n0"},
            ["it leads, but has not yet applied what earlier leaders committed"],
        ),
        ({"role": "candidate", "leader": None}, ["it knows no leader of the 3 controllers in term 3"]),
        ({"id": "n7"}, ["n7 does not belong to the quorum"]),
    ],
)
def test_a_controller_is_ready_if_it_knows_the_leader(changes: dict[str, Any], expected: list[str]) -> None:
    assert of_controllers.not_ready_reasons(msgspec.structs.replace(CONTROLLER, **changes)) == expected


def test_lag_counts_from_the_last_time_without_missing_bytes() -> None:
    clock = LagEstimator()
    assert clock.lag(0, 0) == (None, None)
    clock.observe(1000, 500)
    assert clock.lag(1001, 500) == (0, 0)
    clock.observe(2000, 800)
    clock.observe(3000, 900)
    assert clock.lag(3100, 500) == (400, 2100)  # at 1000 the lag was 0
    assert clock.lag(3100, 850) == (50, 1100)  # the lag to the end at 2000 is 0 by now
    assert clock.lag(3100, 900) == (0, 0)
    assert clock.lag(8000, 900) == (0, 0)
    assert clock.lag(8001, 900) == (None, None)  # the last observation is stale


def test_a_replica_that_starts_far_behind_lags_since_the_first_observation() -> None:
    clock = LagEstimator()
    for second in range(1, 700):
        clock.observe(second * 1000, 10_000)
    bytes_, ms = clock.lag(700_000, 0)
    assert bytes_ == 10_000
    assert ms is not None
    assert ms >= 600_000


def test_a_busy_group_with_a_fast_replica_has_no_lag() -> None:
    clock = LagEstimator()
    for second in range(1, 100):
        clock.observe(second * 1000, second * 1_000_000)
        # The replica reaches the observed end a moment later; newer bytes are not known yet.
        assert clock.lag(second * 1000 + 5, second * 1_000_000 + 3000) == (0, 0)


def member(role: GroupRoleName, because: str = "") -> MemberGroupState:
    """The state of a broker in a group with an acting master."""
    return MemberGroupState(
        role=role,
        acting_since_ms=1 if role == "acting" else None,
        isolated_because=because,
        min_broker_id=0,
        alive_replicas=2,
        escape=[],
    )


def test_an_isolated_broker_is_not_ready_until_it_has_gone_through_pre_online() -> None:
    alone = {"controlled": False, "sync_state_set": frozenset[int]()}
    because = "waits until the slave 127.0.0.1:10911 follows its log"
    for facts in (MASTER, REPLICA):
        assert reasons(facts, **alone, group=member("isolated", because)) == [f"it is isolated: it {because}"]
        assert reasons(facts, **alone, group=member("isolated")) == [
            "it is isolated: it has not begun to go online"
        ]
    assert reasons(MASTER, **alone, group=member("master")) == []
    assert reasons(REPLICA, **alone, group=member("slave")) == []


def test_an_acting_master_is_ready_when_a_nameserver_knows_it() -> None:
    """It follows no master, because the master is down."""
    acting = {
        "controlled": False,
        "sync_state_set": frozenset[int](),
        "following": False,
        "lag_bytes": None,
        "lag_ms": None,
        "group": member("acting"),
    }
    assert reasons(REPLICA, **acting) == []
    assert reasons(REPLICA, **acting, registered=False) == ["it is not registered with a nameserver yet"]


def test_a_full_disk_says_how_full_it_is() -> None:
    flags = RunningFlags.DISK_FULL | RunningFlags.FLUSH_FAILED
    assert store_faults(flags, 0.964) == (
        "the disk is full, 96% used",
        "flushing the log to the disk failed",
    )
    assert store_faults(0, 0.964) == ()


def test_a_damaged_record_is_no_failed_flush_and_names_the_way_out() -> None:
    (fault,) = store_faults(RunningFlags.LOG_DAMAGED | RunningFlags.FLUSH_FAILED, 0.1)
    assert fault.startswith("a confirmed record of the log is damaged (see the field `damage`): ")
    assert fault.endswith(REFILL)
