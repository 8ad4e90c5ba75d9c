"""The controller responds to requests and changes its groups as Java's does."""

from __future__ import annotations

import pytest

from epochmq_controller.replica_groups import rules
from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.events import (
    AlterSyncStateSetEvent,
    ApplyBrokerIdEvent,
    CleanBrokerDataEvent,
    ControllerEvent,
    ElectMasterEvent,
    UpdateBrokerAddressEvent,
    decode,
    encode,
)
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.rules import Decision
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RemoteProtocolError

EVENT_BYTES: list[tuple[ControllerEvent, bytes]] = [
    (
        AlterSyncStateSetEvent("b", frozenset({2, 1})),
        b'\0\x01{"brokerName":"b","eventType":"ALTER_SYNC_STATE_SET_EVENT","newSyncStateSet":[1,2]}',
    ),
    (
        ApplyBrokerIdEvent("b", "c", "1.2.3.4:5", 1, "1.2.3.4:5;9"),
        b'\0\x02{"brokerAddress":"1.2.3.4:5","brokerName":"b","clusterName":"c",'
        b'"eventType":"APPLY_BROKER_ID_EVENT","newBrokerId":1,"registerCheckCode":"1.2.3.4:5;9"}',
    ),
    (
        ElectMasterEvent("b", True, 1),
        b'\0\x03{"brokerName":"b","eventType":"ELECT_MASTER_EVENT","newMasterBrokerId":1,"newMasterElected":true}',
    ),
    (
        ElectMasterEvent("b", False),
        b'\0\x03{"brokerName":"b","eventType":"ELECT_MASTER_EVENT","newMasterElected":false}',
    ),
    (
        CleanBrokerDataEvent("b", frozenset({1})),
        b'\0\x05{"brokerIdSetToClean":[1],"brokerName":"b","eventType":"CLEAN_BROKER_DATA_EVENT"}',
    ),
    (
        UpdateBrokerAddressEvent("b", "c", "1.2.3.4:6", 1),
        b'\0\x06{"brokerAddress":"1.2.3.4:6","brokerId":1,"brokerName":"b","clusterName":"c",'
        b'"eventType":"UPDATE_BROKER_ADDRESS"}',
    ),
]


@pytest.mark.parametrize(("event", "data"), EVENT_BYTES)
def test_events_are_java_s_bytes(event: ControllerEvent, data: bytes) -> None:
    assert encode(event) == data
    assert decode(data) == event


def test_other_entries_change_nothing_and_invalid_ones_are_rejected() -> None:
    assert decode(b"") is None
    assert decode(b"\0\x04{}") is None
    for data in (b"\0", b"\0\x03", b"\0\x03{", b'\0\x03{"brokerName":[]}', b"\0\x03" + b"[" * 100_000):
        with pytest.raises(RemoteProtocolError):
            decode(data)


class Groups(ReplicaGroups):
    """Groups whose live replicas the test sets. Decisions take effect at once."""

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, ReplicaLiveInfo] = {}

    def alive(self, _cluster: str, _name: str, broker_id: int) -> ReplicaLiveInfo | None:
        return self.living.get(broker_id)

    def lives(self, _cluster: str, _name: str, broker_id: int) -> bool:
        return broker_id in self.living

    def carry_out(self, decision: Decision) -> Decision:
        for event in decision.events:
            self.apply(event)
        return decision

    def elect(self, broker_id: int, *, designate: bool = False, unclean: bool = False) -> Decision:
        return self.carry_out(
            rules.elect_master(self, "b", broker_id, designate=designate, unclean=unclean, alive=self.alive)
        )

    def alter(
        self, ids: set[int], *, master: int = 1, epoch: int | None = None, set_epoch: int | None = None
    ) -> Decision:
        group = self.groups["b"]
        return self.carry_out(
            rules.alter_sync_state_set(
                self,
                "b",
                master,
                group.master_epoch if epoch is None else epoch,
                frozenset(ids),
                group.sync_state_set_epoch if set_epoch is None else set_epoch,
                self.alive,
            )
        )


@pytest.fixture
def groups() -> Groups:
    """Group b of cluster c with the replicas 1, 2 and 3, all alive, and no master."""
    found = Groups()
    for one in (1, 2, 3):
        assert rules.next_broker_id(found, "b") == one
        found.carry_out(rules.apply_broker_id(found, "c", "b", one, f"1.1.1.{one}:1;t{one}"))
        found.living[one] = ReplicaLiveInfo(1, 100 * one)
    return found


def test_an_id_is_given_once_and_again_to_the_same_replica(groups: Groups) -> None:
    assert rules.apply_broker_id(groups, "c", "b", 2, "1.1.1.2:1;t2").code == ResponseCode.SUCCESS
    stolen = rules.apply_broker_id(groups, "c", "b", 2, "9.9.9.9:1;x")
    assert stolen.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    assert (
        rules.apply_broker_id(groups, "c", "new", 2, "a;1").code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    )
    assert groups.groups["b"].next_broker_id == 4


def test_the_first_replica_that_requests_an_election_becomes_master(groups: Groups) -> None:
    decision = groups.elect(2)
    assert decision.view is not None
    assert (decision.view.master_id, decision.view.master_epoch, decision.view.sync_state_set_epoch) == (
        2,
        1,
        1,
    )
    assert decision.view.master_address == "1.1.1.2:1"
    again = groups.elect(1)
    assert again.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert again.view is not None
    assert again.view.master_id == 2
    assert groups.groups["b"].master_epoch == 1


def test_only_members_of_the_sync_state_set_are_elected(groups: Groups) -> None:
    groups.elect(1)
    groups.alter({1, 2})
    del groups.living[1]
    assert groups.elect(rules.ANY_BROKER).view.master_id == 2  # type: ignore[union-attr]
    assert groups.groups["b"].sync_state_set == {2}
    del groups.living[2]
    lost = groups.elect(rules.ANY_BROKER)
    assert lost.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    group = groups.groups["b"]
    assert (group.master_id, group.master_epoch, group.sync_state_set) == (None, 3, {2})
    assert groups.elect(3).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert groups.elect(3, unclean=True).view.master_id == 3  # type: ignore[union-attr]


def test_the_newest_log_wins_then_the_lowest_priority(groups: Groups) -> None:
    groups.elect(1)
    groups.alter({1, 2, 3})
    del groups.living[1]
    groups.living[2] = ReplicaLiveInfo(2, 10)
    groups.living[3] = ReplicaLiveInfo(1, 5_000_000_000)
    assert groups.elect(rules.ANY_BROKER).view.master_id == 2  # type: ignore[union-attr]
    groups.alter({2, 3}, master=2)
    groups.living = {3: ReplicaLiveInfo(1, 7, 5), 1: ReplicaLiveInfo(1, 7, 4)}
    groups.groups["b"].sync_state_set = frozenset({1, 3})
    assert groups.elect(rules.ANY_BROKER).view.master_id == 1  # type: ignore[union-attr]


def test_a_designated_replica_must_be_alive_and_in_sync(groups: Groups) -> None:
    groups.elect(1)
    groups.alter({1, 2})
    assert groups.elect(3, designate=True).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert groups.elect(1, designate=True).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert groups.elect(2, designate=True).view.master_id == 2  # type: ignore[union-attr]


def test_the_sync_state_set_changes_only_by_its_master_of_this_epoch(groups: Groups) -> None:
    groups.elect(1)
    assert groups.alter({1}).code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert groups.alter({1, 2}, master=2).code == ResponseCode.CONTROLLER_INVALID_MASTER
    assert groups.alter({1, 2}, epoch=7).code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
    assert groups.alter({1, 2}, set_epoch=7).code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert groups.alter({1, 9}).code == ResponseCode.CONTROLLER_INVALID_REPLICAS
    assert groups.alter({2, 3}).code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    del groups.living[3]
    assert groups.alter({1, 3}).code == ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    decision = groups.alter({1, 2})
    assert decision.view is not None
    assert (decision.view.sync_state_set, decision.view.sync_state_set_epoch) == ({1, 2}, 2)


def test_a_member_that_only_its_master_reaches_does_not_block_the_removal_of_another_one(
    groups: Groups,
) -> None:
    groups.elect(1)
    assert groups.alter({1, 2, 3}).code == ResponseCode.SUCCESS
    del groups.living[2], groups.living[3]
    assert groups.alter({1, 2}).code == ResponseCode.SUCCESS
    refused = groups.alter({1, 2, 3})
    assert refused.code == ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    assert "replicas {3} don't alive" in (refused.remark or "")


def test_a_registration_returns_a_live_master_and_saves_a_new_address(groups: Groups) -> None:
    groups.elect(1)
    decision = groups.carry_out(rules.register_broker(groups, "c", "b", 2, "5.5.5.5:1", groups.alive))
    assert decision.view is not None
    assert decision.view.master_id == 1
    assert groups.groups["b"].replicas[2].address == "5.5.5.5:1"
    del groups.living[1]
    decision = rules.register_broker(groups, "c", "b", 2, "5.5.5.5:1", groups.alive)
    assert decision.view is not None
    assert decision.view.master_id is None
    unknown = rules.register_broker(groups, "c", "b", 8, "x", groups.alive)
    assert unknown.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_only_dead_replicas_are_removed(groups: Groups) -> None:
    groups.elect(1)
    invalid = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA

    def clean(ids: str | None, *, include_living: bool = False) -> Decision:
        return groups.carry_out(
            rules.clean_broker_data(groups, "c", "b", ids, include_living=include_living, alive=groups.alive)
        )

    assert clean("2").code == invalid
    assert clean("2;x").code == invalid
    assert clean(None).code == invalid
    del groups.living[2]
    assert clean("2").code == ResponseCode.SUCCESS
    assert set(groups.groups["b"].replicas) == {1, 3}
    assert clean("1", include_living=True).code == ResponseCode.SUCCESS
    assert groups.get("b") is None
    assert clean(None).code == invalid


def test_a_group_with_a_dead_master_needs_an_election_once_a_replica_is_alive(groups: Groups) -> None:
    def needs() -> bool:
        return rules.groups_needing_election(groups, groups.lives) == ["b"]

    assert not needs(), "nobody has asked to be its first master"
    groups.elect(1)
    assert not needs()
    del groups.living[1]
    assert needs()
    groups.living.clear()
    assert not needs()


def test_a_group_without_a_master_says_why_until_a_member_is_alive(groups: Groups) -> None:
    groups.elect(1)
    groups.alter({1, 2})
    groups.living = {3: ReplicaLiveInfo(1, 300)}
    assert groups.elect(rules.ANY_BROKER).code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert groups.groups["b"].master_id is None
    assert rules.groups_needing_election(groups, groups.lives) == ["b"]
    epoch = groups.groups["b"].master_epoch
    waits = groups.elect(rules.ANY_BROKER)
    assert (waits.wait_reason or "").startswith(
        "waits for brokers 1, 2 with every acknowledged message: broker 3 may lack some. Start the missing"
    )
    assert "enableElectUncleanMaster=true with updateControllerConfig" in (waits.remark or "")
    assert groups.groups["b"].master_epoch == epoch, "a group that waits has no more epochs"
    assert "broker 3 may lack acknowledged messages; brokers 1, 2 have all" in (
        groups.elect(3, designate=True).remark or ""
    )
    assert "broker 2 sends no heartbeats" in (groups.elect(2, designate=True).remark or "")
    groups.living[2] = ReplicaLiveInfo(1, 200)
    assert groups.elect(rules.ANY_BROKER).code == ResponseCode.SUCCESS
    assert groups.groups["b"].master_id == 2


def test_changes_requested_before_a_master_registers_again_do_not_count(groups: Groups) -> None:
    """A change of the SyncStateSet that is delayed over a restart of the master must not take effect: the
    master would acknowledge alone while another replica counts as in sync."""
    groups.elect(1)
    before = groups.groups["b"].sync_state_set_epoch
    decision = groups.carry_out(rules.register_broker(groups, "c", "b", 1, "1.1.1.1:1", groups.alive))
    assert decision.view is not None
    assert decision.view.sync_state_set_epoch == before + 1
    assert groups.groups["b"].sync_state_set_epoch == before + 1
    late = groups.alter({1, 2}, set_epoch=before)
    assert late.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert groups.alter({1, 2}).code == ResponseCode.SUCCESS
    slave = groups.carry_out(rules.register_broker(groups, "c", "b", 2, "1.1.1.2:1", groups.alive))
    assert slave.events == []
