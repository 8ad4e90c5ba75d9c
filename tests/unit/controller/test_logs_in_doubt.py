"""A replica whose log is in doubt is not elected while another member may hold more messages. If all live
members are in doubt, the group waits for the missing ones, and says so."""

from __future__ import annotations

import pytest

from epochmq_controller.replica_groups import election_policy, rules, snapshot
from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.events import (
    AlterSyncStateSetEvent,
    ApplyBrokerIdEvent,
    CleanBrokerDataEvent,
    ControllerEvent,
    ElectMasterEvent,
    decode,
    encode,
)
from epochmq_controller.replica_groups.heartbeats import Heartbeat
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.requests import ElectMasterRequest
from epochmq_controller.replica_groups.rules import Decision
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import (
    LEASE_OF_ANOTHER_MS,
    ChannelClosed,
    CheckLeadership,
    ControllerEffect,
    ControllerInput,
    ControllerStateMachineSettings,
    EntryApplied,
    GroupRequestReceived,
    HeartbeatReceived,
    LeadershipChanged,
    LeadershipCheckCompleted,
    LogMessage,
    ProposalCompleted,
    ProposeEvents,
    RespondToLeaseRequests,
    SnapshotRestored,
)
from epochmq_protocol.codes import ResponseCode

NAME = "b"
SOUND = ReplicaLiveInfo(1, 100)
DOUBT = ReplicaLiveInfo(1, 100, in_doubt=True)


def group(living: dict[int, ReplicaLiveInfo], *, members: set[int] | None = None) -> ReplicaGroups:
    """Replicas 1, 2 and 3, all in sync. 1 was master of epoch 1."""
    found = ReplicaGroups()
    for one in (1, 2, 3):
        found.apply(ApplyBrokerIdEvent(NAME, "c", f"10.0.0.{one}:1", one, "code"))
    found.apply(ElectMasterEvent(NAME, True, 1))
    found.apply(AlterSyncStateSetEvent(NAME, frozenset(members or {1, 2, 3})))
    return found


def elect(
    groups: ReplicaGroups,
    living: dict[int, ReplicaLiveInfo],
    broker_id: int = rules.ANY_BROKER,
    *,
    designate: bool = False,
    unclean: bool = False,
    fenced: bool = False,
    in_doubt: bool = False,
) -> Decision:
    return rules.elect_master(
        groups,
        NAME,
        broker_id,
        designate=designate,
        unclean=unclean,
        alive=lambda _cluster, _name, one: living.get(one),
        fenced=fenced,
        in_doubt=in_doubt,
    )


def chosen(decision: Decision) -> int | None:
    return decision.view.master_id if decision.view is not None else None


def test_a_member_in_doubt_is_passed_over_even_with_a_longer_log() -> None:
    living = {2: ReplicaLiveInfo(1, 900, in_doubt=True), 3: ReplicaLiveInfo(1, 100)}
    assert chosen(elect(group(living), living)) == 3


def test_if_all_members_are_alive_and_in_doubt_the_newest_log_is_elected() -> None:
    living = {
        1: ReplicaLiveInfo(1, 300, in_doubt=True),
        2: ReplicaLiveInfo(1, 400, in_doubt=True),
        3: ReplicaLiveInfo(0, 900, in_doubt=True),
    }
    groups = group(living)
    assert chosen(elect(groups, living, fenced=True)) == 2
    living[1] = ReplicaLiveInfo(1, 500, in_doubt=True)
    assert chosen(elect(groups, living, fenced=True)) == 1, "the master that gave up has the newest log"


def test_a_group_waits_for_a_missing_member_while_the_live_ones_are_in_doubt() -> None:
    living = {1: DOUBT, 2: DOUBT}
    groups = group(living)
    decision = elect(groups, living, fenced=True)
    assert decision.wait_reason is not None
    assert decision.wait_reason.startswith("waits for broker 3: brokers 1, 2 may lack acknowledged messages")
    assert decision.events == [ElectMasterEvent(NAME, False)], "the master that gave up is none any more"
    groups.apply(decision.events[0])
    assert elect(groups, living).events == [], "waiting puts nothing into the log"
    assert chosen(elect(groups, living, 2)) is None
    living[3] = SOUND
    assert chosen(elect(groups, living)) == 3


def test_a_new_master_in_doubt_waits_for_those_that_were_in_sync_before_it_was_elected() -> None:
    """An election reduces the SyncStateSet to the new master. It loses power before a replica has joined."""
    living = {1: DOUBT}
    groups = group(living)
    groups.apply(ElectMasterEvent(NAME, True, 1))
    decision = elect(groups, living, fenced=True)
    assert decision.wait_reason is not None
    assert decision.wait_reason.startswith("waits for brokers 2, 3: broker 1 may lack acknowledged messages")
    living[3] = ReplicaLiveInfo(1, 120)
    assert chosen(elect(groups, living, fenced=True)) == 3, "it has every acknowledged message"
    living[3] = ReplicaLiveInfo(1, 120, in_doubt=True)
    assert elect(groups, living, fenced=True).wait_reason is not None
    living[2] = ReplicaLiveInfo(1, 110, in_doubt=True)
    assert chosen(elect(groups, living, fenced=True)) == 3, "the newest of all"


def test_a_new_master_waits_for_former_members_only_while_its_log_is_in_doubt() -> None:
    living = {1: DOUBT}
    groups = group(living, members={1, 2})
    groups.apply(ElectMasterEvent(NAME, True, 1))
    assert "waits for broker 2:" in str(elect(groups, living, fenced=True).wait_reason)
    assert chosen(elect(groups, living, 1, designate=True, fenced=True)) == 1
    assert chosen(elect(groups, {1: SOUND}, fenced=True)) == 1
    groups.apply(CleanBrokerDataEvent(NAME, frozenset({2})))
    assert chosen(elect(groups, living, fenced=True)) == 1, "nobody else can have more"


def test_a_new_master_with_the_newest_log_is_elected_again_although_in_doubt() -> None:
    """With inSyncReplicas=1 it may have acknowledged messages that no other replica has."""
    living = {1: ReplicaLiveInfo(2, 150, in_doubt=True), 2: SOUND, 3: SOUND}
    groups = group(living)
    groups.apply(ElectMasterEvent(NAME, True, 1))
    assert chosen(elect(groups, living, fenced=True)) == 1


def test_a_new_master_whose_heartbeats_were_overtaken_is_not_replaced_by_a_former_member() -> None:
    """`lacks_confirmed` may be a false alarm. Beside a log that is as long there is no reason to change."""
    for info in (ReplicaLiveInfo(1, 100, lacks_confirmed=True), DOUBT):
        living = {2: info, 1: SOUND, 3: SOUND}
        groups = group(living)
        groups.apply(ElectMasterEvent(NAME, True, 2))
        assert chosen(elect(groups, living, fenced=True)) == 2


def test_a_changed_syncstateset_replaces_the_former_members() -> None:
    living = {1: DOUBT, 2: DOUBT}
    groups = group(living)
    groups.apply(ElectMasterEvent(NAME, True, 1))
    assert groups.groups[NAME].former_members == {2, 3}
    groups.apply(AlterSyncStateSetEvent(NAME, frozenset({1})))
    assert groups.groups[NAME].former_members == {2, 3}, "a master that restarts registers with its set"
    groups.apply(AlterSyncStateSetEvent(NAME, frozenset({1, 2})))
    assert elect(groups, living, fenced=True).wait_reason is None
    groups.apply(ElectMasterEvent(NAME, True, 2))
    groups.apply(ElectMasterEvent(NAME, True, 1))
    assert groups.groups[NAME].former_members == {2}


def test_designated_and_unclean_elections_do_not_wait() -> None:
    living = {1: DOUBT, 2: ReplicaLiveInfo(1, 200, in_doubt=True)}
    groups = group(living)
    groups.apply(ElectMasterEvent(NAME, False))
    assert chosen(elect(groups, living, 1, designate=True)) == 1
    assert chosen(elect(groups, living, unclean=True)) == 2


def test_a_member_that_lost_confirmed_bytes_counts_as_in_doubt() -> None:
    living = {2: ReplicaLiveInfo(1, 80, lacks_confirmed=True), 3: ReplicaLiveInfo(1, 70)}
    assert chosen(elect(group(living), living)) == 3
    assert elect(group(living), {2: ReplicaLiveInfo(1, 80, lacks_confirmed=True)}).wait_reason is not None


def test_a_master_that_lost_confirmed_bytes_is_replaced() -> None:
    living = {1: ReplicaLiveInfo(1, 50, lacks_confirmed=True), 2: SOUND, 3: SOUND}
    assert chosen(elect(group(living), living)) == 2


@pytest.mark.parametrize("said_by", ["heartbeat", "request"])
def test_a_replica_in_doubt_does_not_become_the_first_master(said_by: str) -> None:
    """Controllers that lost their storage have no SyncStateSet: every replica may have been a member."""
    groups = ReplicaGroups()
    for one in (1, 2):
        groups.apply(ApplyBrokerIdEvent(NAME, "c", f"10.0.0.{one}:1", one, "code"))
    living = {1: DOUBT} if said_by == "heartbeat" else {}
    asks_in_doubt = said_by == "request"
    assert "waits for brokers [2]" in str(elect(groups, living, 1, in_doubt=asks_in_doubt).wait_reason)
    living[2] = SOUND
    assert chosen(elect(groups, living, 1, in_doubt=asks_in_doubt)) is None
    assert chosen(elect(groups, living, 2)) == 2
    living = {1: DOUBT, 2: ReplicaLiveInfo(1, 700, in_doubt=True)}
    assert chosen(elect(groups, living, 1, in_doubt=asks_in_doubt)) == 2, "the newest of all"
    assert chosen(elect(groups, living, 1, designate=True)) == 1


def test_a_member_alone_is_electable() -> None:
    living = {1: DOUBT}
    found = election_policy.electable_members("c", NAME, {1}, lambda _cluster, _name, one: living.get(one))
    assert found == election_policy.ElectionCandidates(frozenset({1}))


class Stage:
    """A leading controller. 1 is master of epoch 1, and reports the offset that every member has."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.state_machine = ControllerStateMachine(
            ControllerStateMachineSettings(lease_ms=600, notify=False), 0
        )
        self.index = 0
        self.log_lines: list[str] = []
        self.feed(LeadershipChanged(1))
        self.apply(b"")
        for broker_id in (1, 2, 3):
            self.commit(ApplyBrokerIdEvent(NAME, "c", f"10.0.0.{broker_id}:10911", broker_id, "code"))
        self.commit(ElectMasterEvent(NAME, True, 1))
        self.commit(AlterSyncStateSetEvent(NAME, frozenset({1, 2, 3})))
        self.later(2000)

    def feed(self, event: ControllerInput) -> list[ControllerEffect]:
        """Feeds an input, and commits the proposals."""
        effects = self.state_machine.step(event, self.now_ms)
        for effect in effects:
            if isinstance(effect, LogMessage):
                self.log_lines.append(effect.text)
            if isinstance(effect, ProposeEvents):
                for body in effect.bodies:
                    self.apply(body)
                self.feed(ProposalCompleted(effect.token))
        return effects

    def later(self, ms: int) -> None:
        for _ in range(ms // 10):
            self.now_ms += 10
            self.feed(LeadershipChanged(1))

    def apply(self, body: bytes) -> None:
        self.index += 1
        self.feed(EntryApplied(self.index, 1, body))

    def commit(self, event: ControllerEvent) -> None:
        self.apply(encode(event))

    def beat(
        self,
        broker_id: int,
        max_offset: int,
        *,
        confirmed: int = -1,
        in_doubt: bool = False,
        fenced: int | None = None,
        lease: int | None = None,
        channel: object = None,
    ) -> list[ControllerEffect]:
        beat = Heartbeat(
            self.now_ms,
            60_000,
            channel or broker_id,
            f"10.0.0.{broker_id}:10911",
            1,
            max_offset,
            0,
            None,
            in_doubt,
            confirmed,
        )
        return self.feed(HeartbeatReceived(("c", NAME, broker_id), beat, fenced, lease, 77))

    @property
    def master(self) -> int | None:
        return self.state_machine.groups.groups[NAME].master_id


def test_a_master_that_gives_up_its_epoch_is_replaced_by_a_member_not_in_doubt() -> None:
    stage = Stage()
    stage.beat(2, 60)
    stage.beat(3, 100, in_doubt=True)
    stage.beat(1, 100, fenced=1, in_doubt=True)
    assert stage.master == 2


def test_a_waiting_group_logs_its_reason_once_and_continues_when_the_member_returns() -> None:
    stage = Stage()
    stage.beat(2, 100, in_doubt=True)
    stage.beat(1, 100, fenced=1, in_doubt=True)
    assert stage.master is None
    stage.later(5000)
    entries = stage.index
    stage.later(5000)
    assert stage.index == entries, "waiting costs no entries"
    assert sum("waits for broker 3" in text for text in stage.log_lines) == 1
    assert "waits for broker 3" in stage.state_machine.wait_reasons[NAME]
    stage.beat(3, 90)
    stage.later(1500)
    assert stage.master == 3
    assert not stage.state_machine.wait_reasons


def test_a_designated_election_ends_the_wait_of_a_group() -> None:
    stage = Stage()
    stage.beat(2, 100, in_doubt=True)
    stage.beat(1, 120, fenced=1, in_doubt=True)
    assert stage.master is None
    stage.feed(GroupRequestReceived(5, ElectMasterRequest(NAME, 1, True)))
    stage.later(1000)
    assert stage.master == 1
    assert not stage.state_machine.wait_reasons


def test_a_member_that_returns_without_confirmed_bytes_is_not_elected() -> None:
    """After a restored volume or a lying disk the broker does not know of its loss."""
    stage = Stage()
    for _ in range(2):
        stage.beat(1, 500, confirmed=400)
        stage.beat(2, 400)
        stage.beat(3, 450)
    stage.beat(3, 390, channel="after its restart")
    stage.feed(ChannelClosed(1))
    stage.later(1500)
    assert stage.master == 2
    # Alone it must wait for the others.
    stage = Stage()
    for _ in range(2):
        stage.beat(1, 500, confirmed=400)
    stage.beat(3, 390)
    stage.feed(ChannelClosed(1))
    stage.later(1500)
    assert stage.master is None
    assert "waits for brokers 1, 2" in stage.state_machine.wait_reasons[NAME]
    stage.beat(3, 400)
    stage.later(1500)
    assert stage.master == 3


def test_overtaken_heartbeats_cause_no_false_alarm() -> None:
    stage = Stage()
    for offset in (100, 200, 300):
        stage.beat(1, offset, confirmed=offset)
        stage.beat(2, offset - 50)
        stage.beat(3, offset - 50)
    stage.feed(ChannelClosed(1))
    stage.later(700)
    assert stage.master in (2, 3)


def test_a_master_whose_log_lost_confirmed_bytes_gets_no_lease() -> None:
    stage = Stage()
    for _ in range(2):
        stage.beat(1, 500, confirmed=500)
        stage.beat(2, 500)
        stage.beat(3, 500)
    stage.beat(1, 400, channel="after its restart")
    stage.later(1500)
    assert stage.master in (2, 3)
    effects = stage.beat(1, 400, lease=1, channel="after its restart")
    assert [one.lease_ms for one in effects if isinstance(one, RespondToLeaseRequests)] == [
        LEASE_OF_ANOTHER_MS
    ]


def test_an_election_resets_the_confirmed_offset() -> None:
    """After a designated election the group continues with the log of the new master."""
    stage = Stage()
    for _ in range(2):
        stage.beat(1, 500, confirmed=500)
        stage.beat(2, 300)
    stage.feed(ChannelClosed(1))
    stage.feed(GroupRequestReceived(5, ElectMasterRequest(NAME, 2, True)))
    stage.later(1500)
    assert stage.master == 2
    epoch = stage.state_machine.groups.groups[NAME].master_epoch
    effects = stage.beat(2, 300, confirmed=300, lease=epoch)
    (proof,) = [one for one in effects if isinstance(one, CheckLeadership)]
    assert [
        one.lease_ms
        for one in stage.feed(LeadershipCheckCompleted(proof.token, True))
        if isinstance(one, RespondToLeaseRequests)
    ] == [600]


def test_the_response_to_a_waiting_election_contains_the_reason() -> None:
    living = {1: DOUBT}
    groups = group(living)
    groups.apply(ElectMasterEvent(NAME, False))
    decision = elect(groups, living, 1)
    assert decision.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert "waits for brokers 2, 3" in str(decision.remark)


def test_offsets_of_before_a_restart_do_not_count() -> None:
    stage = Stage()
    stage.beat(2, 900)
    stage.beat(3, 100, in_doubt=True)
    stage.beat(2, 300, in_doubt=True, channel="after its restart")
    stage.beat(1, 400, fenced=1, in_doubt=True)
    assert stage.master == 1


def waiting_for_confirmed_bytes() -> Stage:
    """All members had the log up to 400. 1 and 2 are gone, and 3 has returned on an older volume."""
    stage = Stage()
    for _ in range(2):
        stage.beat(1, 500, confirmed=400)
        stage.beat(2, 400)
        stage.beat(3, 400)
    stage.feed(ChannelClosed(2))
    stage.feed(ChannelClosed(3))
    stage.beat(3, 100, channel="after its restart")
    stage.feed(ChannelClosed(1))
    stage.later(1500)
    assert stage.master is None
    assert "waits for brokers 1, 2" in stage.state_machine.wait_reasons[NAME]
    return stage


def test_a_member_without_confirmed_bytes_waits_for_as_long_as_the_others_are_missing() -> None:
    stage = waiting_for_confirmed_bytes()
    for _ in range(5):
        stage.beat(3, 100, channel="after its restart")
        stage.later(1000)
        assert stage.master is None
    stage.beat(2, 400, channel="after its restart, too")
    stage.later(1500)
    assert stage.master == 2
    assert stage.state_machine.groups.groups[NAME].confirmed_offset == -1


@pytest.mark.parametrize("restored", ["entries", "snapshot"])
def test_the_next_leading_controller_waits_for_the_confirmed_bytes_too(restored: str) -> None:
    """It has heard nothing from the members that have them. A heartbeat that it got before it led counts."""
    former = waiting_for_confirmed_bytes()
    stage = Stage()
    stage.feed(LeadershipChanged(None))
    if restored == "snapshot":
        groups = snapshot.decode(snapshot.encode(former.state_machine.groups))
        stage.feed(SnapshotRestored(groups))
    else:
        stage.commit(ElectMasterEvent(NAME, False, confirmed_offset=400))
    stage.beat(3, 100)
    stage.feed(LeadershipChanged(2))
    stage.index += 1
    stage.feed(EntryApplied(stage.index, 2, b""))
    for _ in range(3):
        stage.later(1500)
        assert stage.master is None
        stage.beat(3, 100)
    stage.feed(GroupRequestReceived(5, ElectMasterRequest(NAME, 3, True)))
    stage.later(1000)
    assert stage.master == 3, "a person has ordered it"
    assert stage.state_machine.groups.groups[NAME].confirmed_offset == -1


def test_an_election_without_a_result_of_another_release_keeps_what_is_known() -> None:
    groups = group({})
    groups.apply(ElectMasterEvent(NAME, False, confirmed_offset=400))
    groups.apply(ElectMasterEvent(NAME, False))
    groups.apply(ElectMasterEvent(NAME, False, confirmed_offset=300))
    assert groups.groups[NAME].confirmed_offset == 400
    body = encode(ElectMasterEvent(NAME, False))
    assert b"confirmedOffset" not in body
    kept = encode(ElectMasterEvent(NAME, False, confirmed_offset=400))
    assert decode(kept) == ElectMasterEvent(NAME, False, confirmed_offset=400)
    rows = snapshot.encode(groups).replace(b',"confirmedOffset":400', b"")
    assert b"confirmedOffset" not in rows
    assert snapshot.decode(rows).groups[NAME].confirmed_offset == -1


def test_a_person_may_order_the_election_of_a_former_member_that_has_more() -> None:
    """The new master lacks what every member had, so that no replica joins it. Any other former member may
    lack what the new master has acknowledged."""
    groups = group({})
    groups.apply(ElectMasterEvent(NAME, True, 3))
    living = {2: ReplicaLiveInfo(1, 400, confirmed_by_all=350), 3: ReplicaLiveInfo(1, 349)}
    assert groups.groups[NAME].former_members == {1, 2}
    assert chosen(elect(groups, living, 2, designate=True)) == 2
    assert chosen(elect(groups, living, 1, designate=True)) is None, "it is not alive"
    assert chosen(elect(groups, living | {3: ReplicaLiveInfo(1, 350)}, 2, designate=True)) is None
    groups.apply(AlterSyncStateSetEvent(NAME, frozenset({1, 3})))
    assert chosen(elect(groups, living, 2, designate=True)) is None, "a member may have more"
