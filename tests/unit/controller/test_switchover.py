"""A master that names its successor is fenced and replaced by one request, without a wait for its lease."""

from __future__ import annotations

import pytest

from epochmq_controller.replica_groups.events import (
    AlterSyncStateSetEvent,
    ApplyBrokerIdEvent,
    ControllerEvent,
    ElectMasterEvent,
    decode,
    encode,
)
from epochmq_controller.replica_groups.heartbeats import Heartbeat
from epochmq_controller.replica_groups.requests import ElectMasterRequest
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import (
    LEASE_OF_ANOTHER_MS,
    CheckLeadership,
    ControllerEffect,
    ControllerInput,
    ControllerStateMachineSettings,
    EntryApplied,
    GroupRequestReceived,
    HeartbeatReceived,
    LeadershipChanged,
    LeadershipCheckCompleted,
    ProposalCompleted,
    ProposeEvents,
    RespondToLeaseRequests,
    RespondToRequest,
)
from epochmq_protocol.codes import ResponseCode

NAME = "b"


class Stage:
    """A leading controller. Its group has the replicas 1, 2 and 3, all in sync; 1 is master of epoch 1."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.state_machine = ControllerStateMachine(ControllerStateMachineSettings(lease_ms=600), 0)
        self.index = 0
        self.state_machine.step(LeadershipChanged(1), 0)
        self.apply(b"")
        for broker_id in (1, 2, 3):
            self.commit(ApplyBrokerIdEvent(NAME, "c", f"10.0.0.{broker_id}:10911", broker_id, "code"))
        self.commit(ElectMasterEvent(NAME, True, 1))
        self.commit(AlterSyncStateSetEvent(NAME, frozenset({1, 2, 3})))
        self.later(5000)
        for broker_id in (1, 2, 3):
            self.beat(broker_id)

    def feed(self, event: ControllerInput) -> list[ControllerEffect]:
        return self.state_machine.step(event, self.now_ms)

    def later(self, ms: int) -> None:
        """Lets time pass in small steps."""
        for _ in range(ms // 10):
            self.now_ms += 10
            self.state_machine.step(LeadershipChanged(1), self.now_ms)

    def apply(self, body: bytes) -> None:
        self.feed(EntryApplied(self.index, 1, body))
        self.index += 1

    def commit(self, event: ControllerEvent) -> None:
        self.apply(encode(event))

    def beat(
        self, broker_id: int, lease_epoch: int | None = None, *, fenced: int | None = None
    ) -> list[ControllerEffect]:
        beat = Heartbeat(self.now_ms, 60_000, broker_id, f"10.0.0.{broker_id}:10911", 1, 0, 0, None)
        return self.feed(HeartbeatReceived(("c", NAME, broker_id), beat, fenced, lease_epoch, 77))

    def lease(self, broker_id: int, epoch: int) -> int:
        """The lease that this replica gets, ms."""
        for effect in self.beat(broker_id, epoch):
            if isinstance(effect, RespondToLeaseRequests):
                return effect.lease_ms
            if isinstance(effect, CheckLeadership):
                (granted,) = self.feed(LeadershipCheckCompleted(effect.token, True))
                assert isinstance(granted, RespondToLeaseRequests)
                return granted.lease_ms
        raise AssertionError("no answer")

    def elect(self, request: ElectMasterRequest) -> list[ControllerEvent | None]:
        """The events that an election request proposes at once."""
        self.effects = self.feed(GroupRequestReceived(5, request))
        return [decode(body) for one in self.effects if isinstance(one, ProposeEvents) for body in one.bodies]


def test_a_designated_election_waits_for_the_lease_of_a_silent_master() -> None:
    stage = Stage()
    assert stage.lease(1, 1) == 600
    assert stage.elect(ElectMasterRequest(NAME, 3, True)) == []


@pytest.mark.parametrize("waiting", [False, True], ids=["at once", "behind a trigger"])
def test_a_fenced_master_is_replaced_by_its_successor_at_once(waiting: bool) -> None:
    stage = Stage()
    assert stage.lease(1, 1) == 600
    if waiting:
        assert stage.elect(ElectMasterRequest(NAME, 3, True)) == []
    assert stage.elect(ElectMasterRequest(NAME, 3, True, fenced_epoch=1)) == [ElectMasterEvent(NAME, True, 3)]
    assert stage.lease(1, 1) == 0
    token = next(one.token for one in stage.effects if isinstance(one, ProposeEvents))
    stage.commit(ElectMasterEvent(NAME, True, 3))
    responses = [one for one in stage.feed(ProposalCompleted(token)) if isinstance(one, RespondToRequest)]
    assert responses[0].decision.code == ResponseCode.SUCCESS
    assert stage.lease(1, 1) == LEASE_OF_ANOTHER_MS
    assert stage.lease(3, 2) == 600


def test_only_the_master_of_this_epoch_can_fence_itself() -> None:
    stage = Stage()
    assert stage.lease(1, 1) == 600
    for epoch in (0, 2):
        assert stage.elect(ElectMasterRequest(NAME, 3, True, fenced_epoch=epoch)) == []
    assert stage.elect(ElectMasterRequest("unknown", 3, True, fenced_epoch=1)) == []


def test_if_the_successor_cannot_be_elected_the_next_heartbeat_elects_another() -> None:
    stage = Stage()
    assert stage.lease(1, 1) == 600
    assert stage.elect(ElectMasterRequest(NAME, 4, True, fenced_epoch=1)) == []
    (response,) = [one for one in stage.effects if isinstance(one, RespondToRequest)]
    assert response.decision.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    proposed = [one for one in stage.beat(1, fenced=1) if isinstance(one, ProposeEvents)]
    assert [decode(one.bodies[0]) for one in proposed] == [ElectMasterEvent(NAME, True, 2)]
