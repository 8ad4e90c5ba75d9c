"""Tests a broker under a fake controller, with real ports in one process."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.broker import Broker
from epochmq_broker.config.broker_config import from_properties
from epochmq_broker.replication.ha.service import HARole
from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.replica_control import MasterLogStateHeader, ReplicaControlCode
from epochmq_protocol.transport.client import RemotingClient
from epochmq_store.statuses import PutStatus
from tests.unit.broker.kit import SMALL
from tests.unit.broker.membership.controlled.fake_controller import broker
from tests.unit.broker.membership.controlled.managed_broker import fake_controller, send
from tests.unit.broker.replication.ha.broker_node import until


async def pull(one: Broker) -> Command:
    """Pulls the first message of the queue."""
    ext = {
        "consumerGroup": "readers", "topic": "orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    async with RemotingClient() as client:
        return await client.call(one.live.current.broker_addr, request(Code.PULL_MESSAGE, ext=ext), 60_000)


def role_of(one: Broker) -> tuple[HARole, int, str]:
    """(its HA role, its brokerId, its brokerRole)."""
    config = one.live.current
    return one.ha.role, config.broker_id, config.broker_role


async def test_a_new_broker_gets_an_id_is_elected_and_takes_messages(tmp_path: Path) -> None:
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        controller.next_id = 1
        await until(lambda: one.ha.role is HARole.MASTER, "it is the master")
        await until(one.mode.replicas.may_write, "it has a lease")
        assert role_of(one) == (HARole.MASTER, 0, "SYNC_MASTER")
        assert (await send(one)).code == 0
        assert (tmp_path / "brokerIdentity").read_text() == "TestCluster#group-a#1"
        assert not (tmp_path / "brokerIdentity-temp").exists()
        applied = controller.questions(Code.CONTROLLER_APPLY_BROKER_ID)[-1].ext or {}
        assert applied["registerCheckCode"].split(";")[0] == one.live.current.broker_addr
        assert one.topics.data_version.state_version == 1


async def test_a_master_tells_its_epoch_and_the_end_of_its_log(tmp_path: Path) -> None:
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        await until(one.mode.replicas.may_write, "it has a lease")
        assert (await send(one)).code == 0
        async with RemotingClient() as client:
            question = request(ReplicaControlCode.GET_MASTER_LOG_STATE)
            answer = await client.call(one.live.current.broker_addr, question, 60_000)
        found = MasterLogStateHeader.decode(answer.ext)
        assert (found.broker_id, found.master_epoch, found.members) == (1, 1, "1")
        assert found.max_offset == one.store.max_phy_offset > 0


async def test_before_a_controller_responds_the_broker_serves_no_client(tmp_path: Path) -> None:
    """(#6508, #6609, #6703)"""
    async with broker(tmp_path, "127.76.250.250:1") as one:
        topics = set(one.topics)
        assert (await send(one)).code == ResponseCode.SYSTEM_BUSY
        assert set(one.topics) == topics, "a refused message makes no topic"
        assert one.live.current.broker_role == "SLAVE"
        assert not one.registration.registered


async def test_sends_are_rejected_without_a_lease_and_accepted_with_one(tmp_path: Path) -> None:
    """The status is SERVICE_NOT_AVAILABLE, upon which a Java client retries at another broker."""
    async with fake_controller(lease_ms=0) as controller, broker(tmp_path, controller.address) as one:
        await until(lambda: one.ha.role is HARole.MASTER, "it is the master")
        end = one.store.max_phy_offset
        assert (await send(one)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert one.store.max_phy_offset == end, "rejected at once, not after a wait for replicas"
        controller.lease_ms = 1000
        await until(one.mode.replicas.may_write, "it has a lease")
        while (await send(one)).code != 0:  # one that stood still has lost it again
            await until(one.mode.replicas.may_write, "it has a lease again")
        controller.silent = True
        await until(lambda: not one.mode.replicas.may_write(), "the lease has run out")
        assert (await send(one)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert one.store.max_phy_offset > 0


async def test_a_message_whose_acknowledgement_comes_without_a_lease_is_not_acknowledged(
    tmp_path: Path,
) -> None:
    settings = {"flushDiskType": "SYNC_FLUSH"}
    async with fake_controller() as controller, broker(tmp_path, controller.address, settings) as one:
        await until(one.mode.replicas.may_write, "it has a lease")
        assert (await send(one)).code == 0
        flushed: list[Any] = []
        one.store.when_flushed = lambda end, done: flushed.append(done)  # type: ignore[method-assign]
        for number, lose in ((1, False), (2, True)):
            sending = asyncio.create_task(send(one, number))
            await until(lambda: flushed, "the message waits for the disk")
            one.mode.replicas.gate.hold()  # a planned switch: what is under way ends as ever
            if lose:
                one.mode.replicas.lease.fence()
            flushed.pop()(PutStatus.PUT_OK)
            expected = ResponseCode.FLUSH_SLAVE_TIMEOUT if lose else ResponseCode.SUCCESS
            assert (await sending).code == expected
            one.mode.replicas.gate.open()


async def test_under_a_java_controller_it_needs_no_lease(tmp_path: Path) -> None:
    async with fake_controller(grants=False) as controller, broker(tmp_path, controller.address) as one:
        await until(one.mode.replicas.may_write, "it writes as RocketMQ does")
        assert (await send(one)).code == 0


async def test_leases_count_again_when_an_epochmq_controller_leads_after_a_rocketmq_one(
    tmp_path: Path,
) -> None:
    async with fake_controller(grants=False, lease_ms=1000) as controller:
        settings = {"syncControllerMetadataPeriod": "600000"}
        async with broker(tmp_path, controller.address, settings) as one:
            lease = one.mode.replicas.lease
            await until(one.mode.replicas.may_write, "it writes as RocketMQ does")
            controller.grants = True
            await until(lambda: lease.leader_grants, "it has a lease")
            controller.lease_ms = 0
            await until(lambda: not one.mode.replicas.may_write(), "the lease has run out")


async def test_a_notification_changes_the_role_and_an_old_one_does_not(tmp_path: Path) -> None:
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        await until(one.mode.replicas.may_write, "it is the master, and takes messages")
        address = one.live.current.broker_addr
        controller.make_master(2, "127.76.250.251:10911", 7)
        await controller.notify(address)
        await until(lambda: role_of(one) == (HARole.REPLICA, 1, "SLAVE"), "it is a replica")
        assert (await send(one)).code == ResponseCode.SYSTEM_BUSY
        assert (await pull(one)).code == ResponseCode.SYSTEM_BUSY
        assert one.topics.data_version.state_version == 7
        controller.make_master(1, address, 3)
        await controller.notify(address)
        controller.make_master(1, address, 8)
        await controller.notify(address)
        await until(lambda: role_of(one) == (HARole.MASTER, 0, "SYNC_MASTER"), "it is the master again")
        epochs = [entry.epoch for entry in one.ha.epochs.epochs.entries]
        assert epochs == [8], "epochs without a byte are replaced, and 3 was never taken"


async def test_a_change_without_a_notification_is_found_by_polling(tmp_path: Path) -> None:
    """A lost notification only delays the change."""
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        await until(lambda: one.ha.role is HARole.MASTER, "it is the master")
        controller.make_master(2, "127.76.250.251:10911", 7)
        await until(lambda: role_of(one) == (HARole.REPLICA, 1, "SLAVE"), "it is a replica")


async def test_a_restarted_broker_keeps_its_id_and_tells_its_new_address(tmp_path: Path) -> None:
    """(#5745, #4808, #5989)"""
    async with fake_controller() as controller:
        async with broker(tmp_path, controller.address) as one:
            await until(lambda: one.ha.role is HARole.MASTER, "it is the master")
            before = one.live.current.broker_addr
        controller.next_id = 9
        async with broker(tmp_path, controller.address) as one:
            after = one.live.current.broker_addr
            assert after != before
            await until(
                lambda: one.mode.replicas.state_machine.role is not None,
                "it has a role",
            )
        asked = [one.ext or {} for one in controller.questions(Code.CONTROLLER_REGISTER_BROKER)]
        assert {one["brokerId"] for one in asked} == {"1"}
        assert asked[-1]["brokerAddress"] == after


async def test_slow_and_dead_controllers_delay_no_heartbeats_to_others(tmp_path: Path) -> None:
    """(#5929)"""
    with socket.socket() as deaf:
        deaf.bind(("127.76.249.1", 0))
        deaf.listen(0)
        filler = [socket.socket() for _ in range(3)]
        for one_of_many in filler:
            one_of_many.setblocking(False)
            one_of_many.connect_ex(deaf.getsockname())
        try:
            async with fake_controller() as slow, fake_controller() as quick:
                slow.silent, slow.leads = True, False
                dead = f"127.76.249.1:{deaf.getsockname()[1]}"
                addresses = ";".join([dead, slow.address, quick.address])
                async with broker(tmp_path, addresses) as one:
                    await until(one.mode.replicas.may_write, "it has a lease")
                    heard = len(quick.heartbeats)
                    await until(lambda: len(quick.heartbeats) > heard + 10, "heartbeats continue")
                    assert one.mode.replicas.may_write()
        finally:
            for one_of_many in filler:
                one_of_many.close()


async def test_a_heartbeat_carries_what_an_election_needs(tmp_path: Path) -> None:
    settings = {"brokerElectionPriority": "7", "controllerHeartBeatTimeoutMills": "4000"}
    async with (
        fake_controller(grants=False) as controller,
        broker(tmp_path, controller.address, settings) as one,
    ):
        await until(one.mode.replicas.may_write, "it is the master")
        assert (await send(one)).code == 0
        heard = len(controller.heartbeats)
        await until(lambda: len(controller.heartbeats) > heard + 1, "another heartbeat")
        beat = controller.heartbeats[-1]
        assert beat["brokerId"] == "1"
        assert (beat["epoch"], beat["electionPriority"], beat["heartbeatTimeoutMills"]) == ("1", "7", "4000")
        assert int(beat["maxOffset"]) == one.store.max_phy_offset == int(beat["confirmOffset"])


async def test_a_master_that_stops_says_that_it_is_fenced(tmp_path: Path) -> None:
    """The controllers need not wait for its lease to expire."""
    async with fake_controller() as controller:
        async with broker(tmp_path, controller.address) as one:
            await until(one.mode.replicas.may_write, "it has a lease")
        assert controller.heartbeats[-1]["fencedEpoch"] == "1"
        assert "writeLeaseEpoch" not in controller.heartbeats[-1]


async def test_heartbeats_report_no_fence_before_the_election_request_has_ended(
    tmp_path: Path,
) -> None:
    """Otherwise the controllers would elect a replica of their own choice, and reject the chosen one."""
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        await until(one.mode.replicas.may_write, "it has a lease")
        controller.elects_from.clear()
        controller.elects = False
        asked = len(controller.questions(Code.CONTROLLER_ELECT_MASTER))
        naming = asyncio.create_task(one.mode.replicas.successor_election.elect(2))
        await until(lambda: len(controller.questions(Code.CONTROLLER_ELECT_MASTER)) > asked, "it names one")
        assert not one.mode.replicas.may_write()
        heard = len(controller.heartbeats)
        one.mode.replicas.heartbeats.send_now()
        await until(lambda: len(controller.heartbeats) > heard, "a heartbeat in between")
        assert all("fencedEpoch" not in beat for beat in controller.heartbeats[heard:])
        controller.elects_from.set()
        await naming
        heard = len(controller.heartbeats)
        one.mode.replicas.heartbeats.send_now()
        await until(lambda: len(controller.heartbeats) > heard, "a heartbeat afterwards")
        assert controller.heartbeats[-1]["fencedEpoch"] == "1"
        first, *_, last = controller.questions(Code.CONTROLLER_ELECT_MASTER)
        assert "fencedEpoch" not in (first.ext or {}), "it was no master when it asked first"
        assert (last.ext or {})["fencedEpoch"] == "1"


async def test_a_master_whose_disk_has_failed_lets_another_take_its_place(tmp_path: Path) -> None:
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        await until(one.mode.replicas.may_write, "it has a lease")
        one.store.state.report_fsync_failure(OSError(5, "Input/output error"))
        await until(lambda: controller.heartbeats[-1].get("fencedEpoch") == "1", "it says so")
        assert not one.mode.replicas.may_write()
        controller.make_master(1, one.live.current.broker_addr, 2)
        await until(lambda: controller.heartbeats[-1].get("writeLeaseEpoch") == "2", "it is all there is")


async def test_names_that_cannot_be_looked_up_leave_the_controllers_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(#6873)"""
    monkeypatch.setattr("epochmq_broker.membership.controlled.controller_addresses.LOOKUP_INTERVAL_S", 0.05)
    async with fake_controller() as controller:
        host, _, port = controller.address.partition(":")
        loop = asyncio.get_running_loop()
        responses: list[list[Any] | OSError] = [[(0, 0, 0, "", (host, int(port)))]]
        asked: list[str] = []

        async def look_up(name: str, *args: Any, **kwargs: Any) -> list[Any]:
            if name != "controllers.test":
                return await real(name, *args, **kwargs)
            asked.append(name)
            response = responses[0]
            if isinstance(response, OSError):
                raise response
            return response

        real = loop.getaddrinfo
        monkeypatch.setattr(loop, "getaddrinfo", look_up, raising=False)
        settings = {"fetchControllerAddrByDnsLookup": "true"}
        async with broker(tmp_path, f"controllers.test:{port}", settings) as one:
            await until(one.mode.replicas.may_write, "it has a lease")
            responses[0] = OSError("Name or service not known")
            count = len(asked)
            await until(lambda: len(asked) > count + 2, "names are looked up again")
            heard = len(controller.heartbeats)
            await until(lambda: len(controller.heartbeats) > heard + 5, "heartbeats continue")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "controllerAddr"),
        ({"controllerAddr": "nowhere"}, "controllerAddr"),
        ({"controllerAddr": "a:1;b:99999"}, "controllerAddr"),
        ({"controllerAddr": "a:1;b:1", "fetchControllerAddrByDnsLookup": "true"}, "controllerAddr"),
        ({"controllerAddr": "a:1", "brokerName": "a#b"}, "brokerName"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_properties(SMALL | {"enableControllerMode": "true"} | settings)
    assert caught.value.key == key


def test_the_id_of_rocketmqs_examples_is_taken() -> None:
    """conf/controller/…/broker-*.conf: brokerId=-1, brokerRole=SLAVE."""
    values = {
        "enableControllerMode": "true",
        "controllerAddr": "a:1",
        "brokerId": "-1",
        "brokerRole": "SLAVE",
    }
    assert from_properties(SMALL | values).config.enable_controller_mode


async def test_a_start_with_the_store_of_another_broker_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity").write_text("TestCluster#group-b#1")
    with pytest.raises(ConfigError, match="group-b"):
        async with broker(tmp_path, "127.76.250.250:1"):
            pass
