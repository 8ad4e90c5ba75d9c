"""A master that the controllers do not hear keeps its place as long as a member of its set hears it."""

from __future__ import annotations

import pytest

from epochmq_controller.replica_groups.heartbeats import HEARSAY_MS, Heartbeat
from epochmq_controller.replica_groups.requests import RegisterBrokerRequest
from epochmq_controller.replica_groups.state_machine_types import (
    ChannelClosed,
    ControllerStateMachineSettings,
    GroupRequestReceived,
    HeartbeatReceived,
    LeadershipChanged,
    RespondToRequest,
)
from tests.unit.controller.test_logs_in_doubt import NAME, Stage

HEARTBEAT_MS = 1000
TIMEOUT_MS = 4000
SCAN_MS = ControllerStateMachineSettings().scan_masters_ms


def beat(stage: Stage, broker_id: int, *, hears: int = -1) -> None:
    """A heartbeat. `hears`: the epoch of the master that the sender hears."""
    address = f"10.0.0.{broker_id}:10911"
    said = Heartbeat(stage.now_ms, TIMEOUT_MS, broker_id, address, 1, 100, 0, None, hears_epoch=hears)
    stage.feed(HeartbeatReceived(("c", NAME, broker_id), said, None, None, 77))


@pytest.fixture
def stage() -> Stage:
    """All brokers have sent heartbeats, 1 is the master of epoch 1."""
    made = Stage()
    for broker_id in (1, 2, 3):
        beat(made, broker_id)
    return made


def beats(stage: Stage, seconds: int, *, hears: int) -> None:
    """The replicas send heartbeats for so long, the master none."""
    for _ in range(seconds * 1000 // HEARTBEAT_MS):
        beat(stage, 2, hears=hears)
        beat(stage, 3)
        stage.later(HEARTBEAT_MS)


def test_a_silent_master_is_replaced(stage: Stage) -> None:
    beats(stage, 8, hears=-1)
    assert stage.master in (2, 3)


def test_a_silent_master_that_a_member_hears_stays(stage: Stage) -> None:
    beats(stage, 30, hears=1)
    assert stage.master == 1
    assert any("broker 1 of group b (c) is heard by its replicas only" in text for text in stage.log_lines)
    beats(stage, 4, hears=-1)
    assert stage.master in (2, 3)


def test_another_epoch_and_an_old_word_do_not_count(stage: Stage) -> None:
    beats(stage, 8, hears=2)
    assert stage.master in (2, 3)


def test_the_word_of_a_member_ends(stage: Stage) -> None:
    stage.later(TIMEOUT_MS - HEARTBEAT_MS)
    beat(stage, 2, hears=1)
    stage.later(HEARSAY_MS - 100)
    assert stage.master == 1
    stage.later(100 + SCAN_MS)
    assert stage.master == 2


def test_a_new_leader_that_hears_a_replica_first_waits_for_the_master() -> None:
    """The controllers were cut off: they have forgotten all heartbeats."""
    stage = Stage()
    beats(stage, 3, hears=1)
    assert stage.master == 1
    beat(stage, 1)
    stage.later(HEARTBEAT_MS)
    assert stage.master == 1


def test_a_master_whose_connection_closed_is_replaced_at_once(stage: Stage) -> None:
    """A replica has heard it until just before."""
    beat(stage, 2, hears=1)
    stage.feed(ChannelClosed(1))
    assert stage.master in (2, 3)


def test_a_master_that_came_back_may_be_heard_again(stage: Stage) -> None:
    stage.feed(LeadershipChanged(None))
    stage.feed(ChannelClosed(1))
    beat(stage, 1)
    stage.feed(LeadershipChanged(2))
    stage.apply(b"")
    beats(stage, 8, hears=1)
    assert stage.master == 1


def test_a_replica_that_registers_is_told_of_a_master_that_another_one_hears() -> None:
    stage = Stage()
    beat(stage, 2, hears=1)
    effects = stage.feed(GroupRequestReceived(5, RegisterBrokerRequest(NAME, "c", 3, "10.0.0.3:10911")))
    (answered,) = [one for one in effects if isinstance(one, RespondToRequest)]
    assert answered.decision.view is not None
    assert (answered.decision.view.master_id, answered.decision.view.master_address) == (1, "10.0.0.1:10911")
