"""A group that the controllers have forgotten is rebuilt from its brokers: with their ids, under a greater
epoch, with one elected master, and with no chance for another election meanwhile."""

from __future__ import annotations

import pytest

from epochmq_controller.replica_groups import group_adoption, rules
from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.events import ApplyBrokerIdEvent, ElectMasterEvent, decode, encode
from epochmq_controller.replica_groups.replicated_state import ReplicaGroup, ReplicaGroups
from epochmq_controller.replica_groups.rules import Decision
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.replica_control import AdoptedGroup, AdoptedReplica


def plan(ids: tuple[int, ...] = (1, 2, 3), *, master: int = 2, epoch: int = 7) -> AdoptedGroup:
    replicas = [AdoptedReplica(one, f"10.0.0.{one}:10911") for one in ids]
    return AdoptedGroup("c", "b", master, epoch, replicas)


def adopt(groups: ReplicaGroups, wanted: AdoptedGroup, *, living: tuple[int, ...] = (1, 2, 3)) -> Decision:
    """Decides once, and applies the events."""
    found = rules.adopt_group(
        groups, wanted, lambda _c, _n, one: ReplicaLiveInfo() if one in living else None, living
    )
    for event in found.events:
        groups.apply(decode(encode(event)))  # type: ignore[arg-type]
    groups.check_invariants()
    return found


def group_of(groups: ReplicaGroups) -> ReplicaGroup:
    found = groups.get("b")
    assert found is not None
    return found


def test_the_chosen_replica_is_master_of_a_greater_epoch() -> None:
    groups = ReplicaGroups()
    decision = adopt(groups, plan())
    assert (decision.code, decision.remaining_epochs) == (ResponseCode.SUCCESS, 0)
    group = group_of(groups)
    assert (group.master_id, group.master_epoch, group.sync_state_set) == (2, 8, frozenset({2}))
    assert {one: replica.address for one, replica in group.replicas.items()} == {
        1: "10.0.0.1:10911",
        2: "10.0.0.2:10911",
        3: "10.0.0.3:10911",
    }
    assert group.next_broker_id == 4


def test_unused_ids_are_not_given_again_and_have_no_replica() -> None:
    groups = ReplicaGroups()
    adopt(groups, plan((2, 5)), living=(2, 5))
    group = group_of(groups)
    assert sorted(group.replicas) == [2, 5]
    assert rules.next_broker_id(groups, "b") == 6


def test_many_epochs_take_several_requests_and_no_broker_is_elected_between_them() -> None:
    groups, wanted = ReplicaGroups(), plan(epoch=2 * group_adoption.EPOCHS_PER_REQUEST + 1)
    remaining: list[int] = []
    while not remaining or remaining[-1]:
        remaining.append(adopt(groups, wanted).remaining_epochs)
        if remaining[-1]:
            elected = rules.elect_master(
                groups, "b", 1, designate=False, unclean=False, alive=lambda *_: ReplicaLiveInfo()
            )
            assert elected.events == []
    assert remaining == [group_adoption.EPOCHS_PER_REQUEST + 1, 1, 0]
    assert group_of(groups).master_epoch == wanted.master_epoch + 1
    assert group_of(groups).next_broker_id == 4


def test_brokers_without_any_epoch_get_one() -> None:
    groups = ReplicaGroups()
    adopt(groups, plan(epoch=0))
    assert group_of(groups).master_epoch == 2


@pytest.mark.parametrize(
    ("wanted", "living", "part"),
    [
        (plan((1, 1), master=1), (1,), "broker ids [1, 1]"),
        (plan((0, 1), master=1), (1,), "broker ids [0, 1]"),
        (plan((1, 3), master=2), (1, 3), "masterBrokerId=2"),
        (plan(epoch=-1), (1, 2, 3), "masterEpoch=-1"),
        (plan(), (1, 3), "heartbeats of broker 2"),
        (plan((1, 2)), (1, 2, 3), "brokers [3]"),
    ],
)
def test_a_plan_that_cannot_be_right_changes_nothing(
    wanted: AdoptedGroup, living: tuple[int, ...], part: str
) -> None:
    groups = ReplicaGroups()
    decision = adopt(groups, wanted, living=living)
    assert part in (decision.remark or "")
    assert groups.groups == {}


def test_a_group_that_the_controllers_know_is_left_alone() -> None:
    groups = ReplicaGroups()
    groups.apply(ApplyBrokerIdEvent("b", "c", "10.0.0.1:1", 1, "code"))
    groups.apply(ElectMasterEvent("b", True, 1))
    decision = adopt(groups, plan())
    assert decision.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert "nothing to adopt" in (decision.remark or "")
    assert group_of(groups).master_epoch == 1
