"""What a broker decides about its part in a group with an acting master. Times are in milliseconds."""

from __future__ import annotations

from epochmq_broker.membership.acting.member_group import (
    FollowMaster,
    ForgetMaster,
    GroupEffect,
    GroupMember,
    GroupRole,
    MasterPresence,
    MemberGroup,
    MinBrokerIdChange,
    PollGroup,
    RegisterAgain,
    ReleaseHeldPulls,
    RunSpecialServices,
    SetAliveReplicas,
)

MASTER, FIRST, SECOND = "m:10911", "a:10911", "b:10911"
MASTER_HA = "m:10912"
ADDRESSES = {0: MASTER, 1: FIRST, 2: SECOND}
ALL = {0: MASTER, 1: FIRST, 2: SECOND}
SLAVES = {1: FIRST, 2: SECOND}
NS, OTHER_NS = "n:9876", "o:9876"


def group(broker_id: int, *, in_service: bool = True, timeout_ms: int = 10_000) -> MemberGroup:
    """A broker of the group; in service since time 0 as a broker that follows the known master."""
    found = MemberGroup(GroupMember(broker_id, ADDRESSES[broker_id], 1000, timeout_ms), isolated=True)
    if in_service:
        found.service_started(0, MASTER, 0)
    return found


def following(broker_id: int = 1) -> MemberGroup:
    """A slave that follows the master."""
    found = group(broker_id)
    found.registered(MASTER, MASTER_HA, 10)
    found.poll_answered(NS, ALL, 100, 100)
    return found


def of_type(effects: list[GroupEffect], *types: type) -> list[GroupEffect]:
    return [effect for effect in effects if isinstance(effect, types)]


def test_an_isolated_broker_only_counts_the_living_brokers() -> None:
    for broker_id in ADDRESSES:
        found = group(broker_id, in_service=False)
        assert found.poll_answered(NS, SLAVES, 100, 100) == [SetAliveReplicas(2 + (broker_id == 0))]
        assert found.min_id_changed(MinBrokerIdChange(broker_id, "x:1"), 200) == []
        assert found.role is GroupRole.ISOLATED
        assert not found.runs_special_services


def test_going_into_service_starts_the_special_services_on_the_smallest_id_only() -> None:
    master, slave, acting = (group(broker_id, in_service=False) for broker_id in (0, 1, 1))
    assert master.service_started(0, MASTER, 0) == [RunSpecialServices(True)]
    assert slave.service_started(0, MASTER, 0) == []
    assert acting.service_started(1, FIRST, 0) == [RunSpecialServices(True)]
    assert [one.role for one in (master, slave, acting)] == [
        GroupRole.MASTER,
        GroupRole.SLAVE,
        GroupRole.ACTING_MASTER,
    ]


def test_a_slave_with_the_smallest_id_that_starts_after_a_larger_one_acts_after_its_first_poll() -> None:
    found = group(1, in_service=False)
    assert found.service_started(2, SECOND, 0) == []
    assert RunSpecialServices(True) in found.poll_answered(NS, SLAVES, 500, 501)


def test_the_slave_with_the_smallest_id_acts_when_a_poll_does_not_list_the_master() -> None:
    first, second = following(1), following(2)
    assert first.poll_answered(NS, SLAVES, 1100, 1101) == [
        SetAliveReplicas(2),
        RunSpecialServices(True),
        ForgetMaster(MASTER),
    ]
    assert second.poll_answered(NS, SLAVES, 1100, 1101) == [SetAliveReplicas(2), ForgetMaster(MASTER)]
    assert (first.role, second.role) == (GroupRole.ACTING_MASTER, GroupRole.SLAVE)
    assert (first.min_broker_id, second.min_broker_id) == (1, 1)
    assert first.master is MasterPresence.OFFLINE
    assert first.master_address is None
    assert first.acting_since_ms == 1101


def test_a_notification_makes_a_slave_act_at_once() -> None:
    found = following()
    effects = found.min_id_changed(MinBrokerIdChange(1, FIRST, offline_address=MASTER), 1000)
    assert effects == [RunSpecialServices(True), ForgetMaster(MASTER), PollGroup()]


def test_what_was_polled_before_a_notification_does_not_undo_it() -> None:
    found = following()
    found.min_id_changed(MinBrokerIdChange(1, FIRST, offline_address=MASTER), 150)
    assert found.role is GroupRole.ACTING_MASTER
    assert found.tick(200) == []
    assert found.role is GroupRole.ACTING_MASTER


def test_the_master_obeys_neither_notifications_nor_polls() -> None:
    found = group(0)
    assert found.min_id_changed(MinBrokerIdChange(1, FIRST), 100) == []
    found.poll_answered(NS, SLAVES, 200, 200)
    assert found.role is GroupRole.MASTER
    assert found.min_broker_id == 0


def test_an_acting_master_stops_when_a_slave_with_a_smaller_id_is_listed() -> None:
    """That slave follows no master, and neither does this one."""
    for source in ("poll", "notification"):
        found = following(2)
        assert RunSpecialServices(True) in found.poll_answered(NS, {2: SECOND}, 1000, 1001)
        if source == "poll":
            effects = found.poll_answered(NS, SLAVES, 2000, 2001)
        else:
            effects = found.min_id_changed(MinBrokerIdChange(1, FIRST, ha_address="a:10912"), 2000)
        assert RunSpecialServices(False) in effects
        assert of_type(effects, FollowMaster, ReleaseHeldPulls) == []
        assert (found.role, found.master) == (GroupRole.SLAVE, MasterPresence.OFFLINE)
        assert found.min_broker_address == FIRST


def test_the_hand_back_follows_the_master_and_releases_the_held_pulls() -> None:
    found = following()
    found.min_id_changed(MinBrokerIdChange(1, FIRST, offline_address=MASTER), 1000)
    effects = found.min_id_changed(MinBrokerIdChange(0, "m2:10911", ha_address="m2:10912"), 5000)
    assert effects == [
        RunSpecialServices(False),
        FollowMaster("m2:10911", "m2:10912"),
        ReleaseHeldPulls(),
        PollGroup(),
    ]
    assert (found.role, found.master) == (GroupRole.SLAVE, MasterPresence.ONLINE)
    assert found.acting_since_ms is None


def test_a_poll_that_lists_the_master_again_asks_for_its_ha_address_until_it_is_known() -> None:
    found = following()
    found.min_id_changed(MinBrokerIdChange(1, FIRST, offline_address=MASTER), 1000)
    assert found.poll_answered(NS, ALL, 2000, 2001) == [
        RunSpecialServices(False),
        FollowMaster(MASTER, None),
        ReleaseHeldPulls(),
    ]
    assert found.poll_answered(NS, ALL, 2500, 2501) == [FollowMaster(MASTER, None)]
    assert found.ha_address_learned(SECOND, "b:10912") == []
    assert found.ha_address_learned(MASTER, MASTER_HA) == [FollowMaster(MASTER, MASTER_HA)]
    assert found.poll_answered(NS, ALL, 3000, 3001) == []


def test_a_repeated_notification_has_no_effect_but_a_poll() -> None:
    found = following()
    assert found.min_id_changed(MinBrokerIdChange(0, MASTER, ha_address=MASTER_HA), 1000) == [PollGroup()]
    found.min_id_changed(MinBrokerIdChange(1, FIRST, offline_address=MASTER), 2000)
    assert found.min_id_changed(MinBrokerIdChange(1, FIRST, offline_address=MASTER), 2001) == [PollGroup()]


def test_a_slave_follows_a_master_that_moved_to_another_address() -> None:
    found = following()
    assert found.poll_answered(NS, ALL | {0: "m2:10911"}, 1000, 1000) == [FollowMaster("m2:10911", None)]


def test_a_broker_never_follows_itself() -> None:
    found = group(1)
    assert found.poll_answered(NS, {0: FIRST, 1: FIRST}, 100, 100) == [SetAliveReplicas(2)]


def test_an_answer_to_a_poll_from_before_a_notification_is_ignored() -> None:
    found = following()
    found.min_id_changed(MinBrokerIdChange(1, FIRST, offline_address=MASTER), 1000)
    assert found.poll_answered(NS, ALL, 999, 1002) == []
    assert found.role is GroupRole.ACTING_MASTER


def test_the_master_is_online_if_one_nameserver_lists_it() -> None:
    found = following()
    found.poll_answered(OTHER_NS, ALL, 100, 100)
    assert found.poll_answered(NS, SLAVES, 600, 600) == []
    change = MinBrokerIdChange(1, FIRST, offline_address=MASTER)
    assert found.min_id_changed(change, 700) == [PollGroup()], "the other nameserver is asked first"
    assert RunSpecialServices(True) in found.poll_answered(OTHER_NS, SLAVES, 800, 801)


def test_the_answer_of_a_nameserver_that_fails_does_not_count_for_ever() -> None:
    found = following()
    found.poll_answered(OTHER_NS, ALL, 100, 100)
    found.poll_answered(NS, SLAVES, 3000, 3000)
    assert found.role is GroupRole.SLAVE
    assert RunSpecialServices(True) in found.poll_answered(NS, SLAVES, 3101, 3101)


def test_a_nameserver_that_is_no_longer_configured_does_not_count() -> None:
    found = following()
    found.poll_answered(OTHER_NS, SLAVES, 200, 200)
    found.nameservers_changed(frozenset({OTHER_NS}))
    assert RunSpecialServices(True) in found.tick(300)


def test_a_nameserver_that_does_not_know_the_group_changes_nothing() -> None:
    found = following()
    assert found.poll_answered(NS, {}, 1000, 1000) == [RegisterAgain(NS)]
    assert found.role is GroupRole.SLAVE
    assert found.alive_replicas == 3


def test_a_broker_registers_again_where_it_is_not_listed_and_counts_itself() -> None:
    found = following()
    assert found.poll_answered(NS, {0: MASTER}, 1000, 1000) == [RegisterAgain(NS), SetAliveReplicas(2)]


def test_registrations_that_do_not_help_are_repeated_after_growing_pauses() -> None:
    found = following()
    times = [
        now_ms
        for now_ms in range(1000, 101_000, 500)
        if RegisterAgain(NS) in found.poll_answered(NS, {0: MASTER}, now_ms, now_ms)
    ]
    assert times == [1000, 2000, 4000, 8000, 16_000, 32_000, 62_000, 92_000]
    found.poll_answered(NS, ALL, 101_000, 101_000)
    assert RegisterAgain(NS) in found.poll_answered(NS, {0: MASTER}, 101_500, 101_500)


def test_an_acting_master_that_no_nameserver_answers_stops_after_the_time_out() -> None:
    found = following()
    found.poll_answered(NS, SLAVES, 1000, 1020)
    assert found.tick(11_000) == []
    assert found.tick(11_001) == [RunSpecialServices(False)]
    assert found.role is GroupRole.SLAVE
    assert RunSpecialServices(True) in found.poll_answered(NS, SLAVES, 12_000, 12_001)


def test_a_master_that_no_nameserver_answers_goes_on() -> None:
    found = group(0)
    assert found.tick(10_000_000) == []
    assert found.role is GroupRole.MASTER


def test_a_slave_follows_the_master_that_its_registration_names() -> None:
    found = group(1)
    assert found.registered(MASTER, MASTER_HA, 10) == [FollowMaster(MASTER, MASTER_HA)]
    assert found.registered(MASTER, MASTER_HA, 20) == []
    assert found.registered(None, None, 30) == []
    assert found.master_address == MASTER
    assert group(0).registered(FIRST, "a:10912", 10) == []


def test_a_registration_that_names_a_master_that_is_offline_causes_a_poll_only() -> None:
    found = following()
    found.min_id_changed(MinBrokerIdChange(1, FIRST, offline_address=MASTER), 1000)
    assert found.registered(MASTER, MASTER_HA, 1001) == [PollGroup()]
    assert found.master_address is None


def test_only_effects_of_a_change_are_returned() -> None:
    found = following()
    for at_ms in range(600, 10_000, 500):
        assert found.poll_answered(NS, ALL, at_ms, at_ms + 1) == []
        assert found.tick(at_ms + 2) == []
    assert of_type(found.tick(9_999), RunSpecialServices) == []
