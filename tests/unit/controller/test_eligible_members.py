"""Replicas that leave a SyncStateSet which is too small to acknowledge keep every acknowledged message. They
may be elected, exactly while it is too small."""

from __future__ import annotations

import pytest

from epochmq_controller.replica_groups import rules, snapshot
from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.events import (
    AlterSyncStateSetEvent,
    ApplyBrokerIdEvent,
    CleanBrokerDataEvent,
    ElectMasterEvent,
    decode,
    encode,
)
from epochmq_controller.replica_groups.replicated_state import ReplicaGroup, ReplicaGroups
from epochmq_controller.replica_groups.requests import ElectMasterRequest, decide
from epochmq_controller.replica_groups.rules import Decision
from epochmq_controller.replica_groups.short_sets import ShortSets
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import InvariantError

NAME = "b"
SOUND = ReplicaLiveInfo(1, 100)
DOUBT = ReplicaLiveInfo(1, 100, in_doubt=True)


@pytest.fixture
def groups() -> ReplicaGroups:
    """Replicas 1 to 4. 1 is master of epoch 1, and 1, 2 and 3 are in sync."""
    found = ReplicaGroups()
    for one in (1, 2, 3, 4):
        found.apply(ApplyBrokerIdEvent(NAME, "c", f"10.0.0.{one}:1", one, "code"))
    found.apply(ElectMasterEvent(NAME, True, 1))
    set_members(found, {1, 2, 3})
    return found


def set_members(groups: ReplicaGroups, members: set[int], least: int | None = 2) -> ReplicaGroup:
    """Commits a SyncStateSet."""
    groups.apply(AlterSyncStateSetEvent(NAME, frozenset(members), least))
    groups.check_invariants()
    return groups.groups[NAME]


def elect(
    groups: ReplicaGroups,
    living: dict[int, ReplicaLiveInfo],
    broker_id: int = rules.ANY_BROKER,
    *,
    designate: bool = False,
    fenced: bool = False,
) -> Decision:
    decision = rules.elect_master(
        groups,
        NAME,
        broker_id,
        designate=designate,
        unclean=False,
        alive=lambda _cluster, _name, one: living.get(one),
        fenced=fenced,
    )
    for event in decision.events:
        groups.apply(event)
    groups.check_invariants()
    return decision


def test_who_leaves_by_the_change_that_makes_the_set_too_small_and_since_is_eligible(
    groups: ReplicaGroups,
) -> None:
    assert set_members(groups, {1, 2}).eligible_members == frozenset(), "3 may lack what 1 and 2 acknowledge"
    assert set_members(groups, {1}).eligible_members == {2}
    assert set_members(groups, {1, 4}).eligible_members == frozenset()
    assert set_members(groups, {1, 2, 3}).eligible_members == frozenset()
    assert set_members(groups, {1}).eligible_members == {2, 3}
    assert set_members(groups, {1, 4}, 3).eligible_members == {2, 3}
    assert set_members(groups, {1}, 3).eligible_members == {2, 3, 4}


def test_a_minimum_that_is_lowered_or_unknown_leaves_nobody_eligible(groups: ReplicaGroups) -> None:
    """RocketMQ's controllers and earlier releases write no minimum. Their masters acknowledge alone."""
    for least in (1, None):
        set_members(groups, {1, 2, 3})
        assert set_members(groups, {1}).eligible_members == {2, 3}
        group = set_members(groups, {1}, least)
        assert (group.eligible_members, group.min_in_sync_replicas) == (frozenset(), 1)


def test_an_eligible_replica_is_elected_when_no_member_lives_and_the_others_stay_eligible(
    groups: ReplicaGroups,
) -> None:
    set_members(groups, {1})
    assert elect(groups, {1: SOUND, 2: SOUND, 3: SOUND}).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    decision = elect(groups, {2: SOUND, 3: ReplicaLiveInfo(1, 200), 4: ReplicaLiveInfo(9, 900)})
    assert decision.view is not None
    assert (decision.view.master_id, decision.view.least) == (3, 2)
    group = groups.groups[NAME]
    assert (group.sync_state_set, group.eligible_members) == ({3}, {1, 2})
    decision = elect(groups, {1: DOUBT, 2: SOUND})
    assert decision.view is not None
    assert decision.view.master_id == 2
    assert set_members(groups, {2, 4}).eligible_members == frozenset()


def test_an_eligible_replica_whose_log_is_in_doubt_is_not_elected(groups: ReplicaGroups) -> None:
    set_members(groups, {1})
    decision = elect(groups, {2: DOUBT, 3: ReplicaLiveInfo(1, 100, lacks_confirmed=True)})
    assert decision.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert (decision.wait_reason or "").startswith(
        "waits for brokers 1, 2, 3 with every acknowledged message"
    )
    assert groups.groups[NAME].master_id is None
    assert groups.groups[NAME].eligible_members == {2, 3}
    assert rules.groups_needing_election(groups, lambda _cluster, _name, one: one == 2) == [NAME]


def test_a_sound_eligible_replica_is_elected_beside_members_in_doubt(groups: ReplicaGroups) -> None:
    set_members(groups, {1})
    decision = elect(groups, {1: DOUBT, 2: SOUND}, fenced=True)
    assert decision.view is not None
    assert decision.view.master_id == 2


def test_a_last_member_that_is_stopped_gives_its_place_to_an_eligible_replica(groups: ReplicaGroups) -> None:
    set_members(groups, {1})
    decision = elect(groups, {1: SOUND, 2: SOUND, 3: SOUND}, fenced=True)
    assert decision.view is not None
    assert decision.view.master_id in (2, 3)


def test_an_administrator_may_name_an_eligible_replica_and_no_other(groups: ReplicaGroups) -> None:
    set_members(groups, {1})
    refused = elect(groups, {2: SOUND, 4: SOUND}, 4, designate=True)
    assert refused.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert "broker 4 may lack acknowledged messages; brokers 1, 2, 3 have all" in (refused.remark or "")
    assert "enableElectUncleanMaster=true" in (refused.remark or "")
    assert elect(groups, {2: SOUND, 4: SOUND}, 2, designate=True).code == ResponseCode.SUCCESS


def test_a_master_with_too_few_replicas_gives_way_to_an_eligible_one_that_may_reach_enough(
    groups: ReplicaGroups,
) -> None:
    living = {1: SOUND, 2: SOUND, 3: SOUND}

    def alive(_cluster: str, _name: str, one: int) -> ReplicaLiveInfo | None:
        return living.get(one)

    short = ShortSets()

    def due(now_ms: int) -> list[str]:
        return short.masters_to_replace(groups, alive, now_ms)

    assert [due(now_ms) for now_ms in (0, 20_000)] == [[], []], "the set is large enough"
    set_members(groups, {1})
    assert [due(now_ms) for now_ms in (20_000, 29_999, 30_000)] == [[], [], [NAME]]
    assert [due(now_ms) for now_ms in (49_999, 50_000)] == [[], [NAME]], "after twice the time"
    del living[3]
    assert [due(now_ms) for now_ms in (50_001, 200_000)] == [[], []], "2 could form no set without 1"
    living[3] = DOUBT
    assert [due(now_ms) for now_ms in (239_999, 240_000)] == [[], [NAME]]
    request = ElectMasterRequest(NAME, gives_way=True)
    decision = decide(request, groups, alive)
    assert decision.view is not None
    assert decision.view.master_id == 2
    living[2] = DOUBT
    assert due(900_000) == []
    assert decide(request, groups, alive).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    living[2] = SOUND
    set_members(groups, {1, 2})
    assert due(1_000_000) == []
    set_members(groups, {1})
    assert [due(now_ms) for now_ms in (1_000_000, 1_010_000)] == [[], [NAME]], "patience begins anew"


def test_an_election_without_a_result_and_a_registration_keep_the_eligible_replicas(
    groups: ReplicaGroups,
) -> None:
    group = set_members(groups, {1})
    groups.apply(ElectMasterEvent(NAME, False))
    assert group.eligible_members == {2, 3}
    groups.apply(ElectMasterEvent(NAME, True, 1, min_in_sync_replicas=2))
    decision = rules.register_broker(groups, "c", NAME, 1, "10.0.0.1:1", lambda *_: SOUND)
    for event in decision.events:
        groups.apply(event)
    assert group.eligible_members == {2, 3}
    assert decision.view is not None
    assert decision.view.least == 2
    groups.apply(CleanBrokerDataEvent(NAME, frozenset({2})))
    assert group.eligible_members == {3}


def test_the_same_set_with_another_minimum_is_a_change(groups: ReplicaGroups) -> None:
    def alter(least: int) -> ResponseCode:
        group = groups.groups[NAME]
        return rules.alter_sync_state_set(
            groups, NAME, 1, 1, group.sync_state_set, group.sync_state_set_epoch, lambda *_: SOUND, least
        ).code

    assert alter(2) == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert alter(1) == ResponseCode.SUCCESS


def test_events_without_a_minimum_are_java_s_and_those_with_one_are_read_again() -> None:
    assert b"min" not in encode(AlterSyncStateSetEvent(NAME, frozenset({1})))
    assert b"min" not in encode(ElectMasterEvent(NAME, True, 1))
    for event in (
        AlterSyncStateSetEvent(NAME, frozenset({1}), 2),
        ElectMasterEvent(NAME, True, 1, min_in_sync_replicas=2),
    ):
        assert decode(encode(event)) == event


def test_snapshots_keep_eligible_replicas_and_those_of_earlier_releases_have_none(
    groups: ReplicaGroups,
) -> None:
    set_members(groups, {1})
    data = snapshot.encode(groups)
    kept = snapshot.decode(data).groups[NAME]
    assert (kept.eligible_members, kept.min_in_sync_replicas) == ({2, 3}, 2)
    earlier = data.replace(b',"minInSyncReplicas":2,"eligibleMembers":[2,3]', b"")
    assert earlier != data
    kept = snapshot.decode(earlier).groups[NAME]
    assert (kept.eligible_members, kept.min_in_sync_replicas) == (frozenset(), 1)


@pytest.mark.parametrize(
    ("members", "eligible"), [({1}, {1, 2}), ({1, 2}, {3}), ({1}, {9})], ids=["a member", "enough", "unknown"]
)
def test_the_invariants_of_eligible_replicas(
    groups: ReplicaGroups, members: set[int], eligible: set[int]
) -> None:
    group = set_members(groups, members)
    group.eligible_members = frozenset(eligible)
    with pytest.raises(InvariantError, match="eligible members"):
        groups.check_invariants()
