"""Tests that a broker whose log may have lost its end gives up its mastership, and reports that to the
controllers.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epochmq_broker.membership.controlled import heartbeats
from epochmq_broker.membership.controlled.identity import BrokerIdentity
from epochmq_broker.membership.controlled.state_machine_types import (
    AskController,
    GiveUpEpoch,
    LogCaughtUp,
    ReplicaInfoQuestion,
    RoleNotification,
    TakeRole,
)
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_broker.replication.ha.log_doubt_tracker import FILE
from epochmq_broker.replication.ha.service import HARole
from epochmq_protocol.codes import RequestCode as Code
from tests.unit.broker.membership.controlled.fake_controller import broker
from tests.unit.broker.membership.controlled.managed_broker import fake_controller, send
from tests.unit.broker.membership.controlled.state_machine_harness import StateMachineHarness, view
from tests.unit.broker.replication.ha.broker_node import until

ME = BrokerIdentity("c", "g", 1)


def returned(
    *, gives_up: bool = True, given_up_epoch: int = 0, in_doubt: bool = False
) -> StateMachineHarness:
    """A broker whose log may have lost its end; its registration is under way."""
    harness = StateMachineHarness(ME, gives_up=gives_up, given_up_epoch=given_up_epoch, in_doubt=in_doubt)
    harness.meet()
    return harness


def test_the_first_mastership_is_given_up_and_only_a_newer_one_is_taken() -> None:
    harness = returned()
    harness.answer(view(1, 5))
    assert harness.only(GiveUpEpoch).epoch == 5
    assert harness.all(TakeRole) == []
    assert harness.state_machine.gives_up_epoch == 5
    harness.feed(RoleNotification(view(1, 5, set_epoch=2)))
    assert harness.all(TakeRole) == harness.all(GiveUpEpoch) == []
    harness.feed(RoleNotification(view(1, 6, set_epoch=3)))
    assert harness.only(TakeRole).view.epoch == 6
    assert harness.state_machine.gives_up_epoch is None


def test_it_asks_soon_who_was_elected_in_its_place() -> None:
    harness = returned()
    harness.answer(view(1, 5))
    asked = [one for one in harness.pass_ms(400) if isinstance(one, AskController)]
    assert [type(one.question) for one in asked] == [ReplicaInfoQuestion]


def test_another_s_mastership_is_followed_at_once() -> None:
    harness = returned()
    harness.answer(view(2, 6))
    assert harness.only(TakeRole).view.master_id == 2


@pytest.mark.parametrize("master", [2, None])
def test_a_mastership_decided_after_the_registration_is_taken(master: int | None) -> None:
    """The controllers registered the broker while it was no master, so its election came later."""
    harness = returned()
    harness.answer(view(master, 6))
    assert harness.only(GiveUpEpoch).epoch == 6  # and those before it
    if master is not None:
        harness.take()
    harness.feed(RoleNotification(view(1, 7, set_epoch=2)))
    assert harness.all(GiveUpEpoch) == []
    assert harness.only(TakeRole).view.epoch == 7


def test_a_mastership_heard_of_before_the_registration_is_given_up() -> None:
    harness = StateMachineHarness(ME, gives_up=True)
    harness.feed(RoleNotification(view(2, 6)))
    harness.feed(RoleNotification(view(1, 7, set_epoch=2)))
    assert harness.only(GiveUpEpoch).epoch == 7


def test_a_broker_in_doubt_gives_up_the_first_mastership_whenever_it_was_decided() -> None:
    """The controllers may have elected it by a heartbeat from before its start, which named no doubt."""
    harness = returned(in_doubt=True)
    harness.answer(view(2, 6))
    harness.take()
    harness.feed(RoleNotification(view(1, 7, set_epoch=2)))
    assert harness.only(GiveUpEpoch).epoch == 7


def test_a_broker_that_has_caught_up_gives_nothing_up() -> None:
    harness = returned()
    harness.answer(view(2, 6))
    harness.take()
    harness.feed(LogCaughtUp())
    harness.feed(RoleNotification(view(1, 7, set_epoch=2)))
    assert harness.all(GiveUpEpoch) == []
    assert harness.only(TakeRole).view.epoch == 7


def test_a_given_up_epoch_stays_given_up_after_a_restart() -> None:
    harness = returned(gives_up=False, given_up_epoch=5)
    harness.answer(view(1, 5))
    assert harness.all(TakeRole) == harness.all(GiveUpEpoch) == []
    assert harness.state_machine.gives_up_epoch == 5
    harness.feed(RoleNotification(view(1, 6, set_epoch=2)))
    assert harness.only(TakeRole).view.epoch == 6


def doubt(directory: Path, left: LogDoubt) -> None:
    """Writes the doubt that the previous run left."""
    (directory / FILE).write_bytes(msgspec.json.encode(left))


async def test_a_master_that_comes_back_in_doubt_takes_no_message_before_a_new_election(
    tmp_path: Path,
) -> None:
    async with fake_controller() as controller:
        async with broker(tmp_path, controller.address) as one:
            await until(lambda: one.ha.role is HARole.MASTER)
            assert (await send(one)).code == 0
        epoch = controller.epoch
        doubt(tmp_path, LogDoubt(in_doubt=True, gives_up=True))
        controller.heartbeats.clear()
        async with broker(tmp_path, controller.address) as one:
            await until(lambda: any("fencedEpoch" in beat for beat in controller.heartbeats))
            assert one.ha.role is HARole.IDLE
            assert (await send(one)).code != 0
            heartbeat = controller.heartbeats[-1]
            assert (heartbeat["fencedEpoch"], heartbeat["mayLackAcknowledged"]) == (str(epoch), "true")
            assert "writeLeaseEpoch" not in heartbeat
            # The controllers have elected it again.
            controller.make_master(1, one.live.current.broker_addr, epoch + 1)
            await until(lambda: one.ha.role is HARole.MASTER)
            assert (await send(one, 1)).code == 0
            assert not one.ha.doubt.may_lack_acknowledged
            controller.heartbeats.clear()
            await until(lambda: controller.heartbeats)
            assert "mayLackAcknowledged" not in controller.heartbeats[-1]
        assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("left", [LogDoubt(gives_up=True), LogDoubt(in_doubt=True, gives_up=True)])
async def test_rocketmq_s_controllers_get_no_heartbeats_of_a_master_that_gave_up(
    tmp_path: Path, left: LogDoubt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They know no given-up epochs, and replace a master only if its heartbeats stop."""
    async with fake_controller(grants=False) as controller:
        async with broker(tmp_path, controller.address) as one:
            await until(lambda: one.ha.role is HARole.MASTER)
        epoch = controller.epoch
        doubt(tmp_path, left)
        async with broker(tmp_path, controller.address) as one:
            manager = one.mode.replicas
            await until(
                lambda: manager.state_machine.gives_up_epoch == epoch and manager.heartbeats.suspended
            )
            controller.heartbeats.clear()
            looks = len(controller.questions(Code.CONTROLLER_GET_REPLICA_INFO))
            await until(lambda: len(controller.questions(Code.CONTROLLER_GET_REPLICA_INFO)) > looks + 2)
            assert controller.heartbeats == []
            assert one.ha.role is HARole.IDLE
            # One that was restarted must hear of the master to look whether it lives: for a millisecond.
            monkeypatch.setattr(heartbeats, "HEARTBEAT_SUSPENSION_MS", 1)
            await until(lambda: bool(controller.heartbeats))
            assert {beat["heartbeatTimeoutMills"] for beat in controller.heartbeats} == {"1"}
            monkeypatch.undo()
            controller.make_master(1, one.live.current.broker_addr, epoch + 1)
            await until(lambda: one.ha.role is HARole.MASTER)
            await until(lambda: bool(controller.heartbeats))
