"""A broker that stores no messages says why: the state, the cause and the next command. The remark of the
rejected send and the runtime information, which `epochmq status` shows, have the same words."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from epochmq_broker.broker import Broker
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_broker.replication.ha.log_doubt_tracker import FILE
from epochmq_broker.replication.ha.service import HARole
from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.frame import request
from epochmq_protocol.transport.client import RemotingClient
from epochmq_store.statuses import RunningFlags
from tests.unit.broker.kit import running, send_command
from tests.unit.broker.membership.controlled.fake_controller import broker
from tests.unit.broker.membership.controlled.managed_broker import fake_controller, send
from tests.unit.broker.replication.ha.broker_node import until

UNAVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE


async def runtime_info(one: Broker) -> dict[str, str]:
    async with RemotingClient() as client:
        command = request(Code.GET_BROKER_RUNTIME_INFO)
        found = await client.call(one.live.current.broker_addr, command, 60_000)
    table: dict[str, str] = json.loads(found.body)["table"]
    return table


async def rejected(one: Broker, number: int = 0) -> tuple[int, str, dict[str, str]]:
    """(code, remark, runtime information) of a broker that rejects a send."""
    response = await send(one, number)
    return response.code, response.remark or "", await runtime_info(one)


async def test_a_broker_that_stores_messages_refuses_none(tmp_path: Path) -> None:
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        await until(one.mode.replicas.may_write, "it has a lease")
        await until(lambda: one.live.standing.refusal() is None, "it stores messages")
        assert not {"refusesMessages", "refusalState"} & (await runtime_info(one)).keys()


async def test_a_fenced_master_names_the_command_that_unfences_it(tmp_path: Path) -> None:
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        await until(one.mode.replicas.may_write, "it has a lease")
        one.store.state.set_flag(RunningFlags.FENCED, True)
        code, remark, info = await rejected(one)
        assert (code, info["refusalState"]) == (UNAVAILABLE, "fenced")
        words = "fenced: it stores no messages until it is unfenced; next: epochmq fence GROUP/REPLICA --off"
        address = one.live.current.broker_addr
        assert remark == f"service not available now. Broker group-a at {address}: {words}"
        assert info["refusesMessages"] == words


async def test_a_full_disk_says_how_full_it_is(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.broker.store.state.set_flag(RunningFlags.DISK_FULL, True)
        # Without a pause, in which the broker would measure its disk, and find that it has space.
        answer = bench.peer().call(send_command("orders"))
        table = json.loads(bench.peer().call(request(Code.GET_BROKER_RUNTIME_INFO)).body)["table"]
        assert (answer.code, table["refusalState"]) == (UNAVAILABLE, "disk full")
        assert (answer.remark or "").endswith(table["refusesMessages"])
        assert "disk full: the disk is full, " in table["refusesMessages"]
        assert "used; next: free space on its disk" in table["refusesMessages"]


async def test_a_failed_flush_is_named(tmp_path: Path) -> None:
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        await until(one.mode.replicas.may_write, "it has a lease")
        one.store.state.set_flag(RunningFlags.FLUSH_FAILED, True)
        code, remark, info = await rejected(one)
        assert (code, info["refusalState"]) == (UNAVAILABLE, "store fault")
        assert "store fault: flushing the log to the disk failed; next: restart it" in remark


async def test_a_master_without_a_lease_says_what_it_waits_for(tmp_path: Path) -> None:
    async with fake_controller(lease_ms=0) as controller, broker(tmp_path, controller.address) as one:
        await until(lambda: one.ha.role is HARole.MASTER, "it is the master")
        code, remark, info = await rejected(one)
        assert (code, info["refusalState"]) == (UNAVAILABLE, "no lease")
        assert remark.endswith(
            "no lease: the master has no write lease and waits for the controllers: they have granted no "
            "lease; next: epochmq controller list"
        )
        assert remark.endswith(info["refusesMessages"])


async def test_a_master_without_enough_replicas_says_how_many_it_has(tmp_path: Path) -> None:
    settings = {"minInSyncReplicas": "2", "allAckInSyncStateSet": "true"}
    async with fake_controller() as controller, broker(tmp_path, controller.address, settings) as one:
        await until(one.mode.replicas.may_write, "it has a lease")
        code, remark, info = await rejected(one)
        assert (code, info["refusalState"]) == (ResponseCode.SYSTEM_ERROR, "waits for replicas")
        assert remark.startswith("in-sync replicas not enough. Broker group-a at ")
        words = "waits for replicas: 1 replicas are in sync, but minInSyncReplicas=2; next: epochmq status"
        assert remark.endswith(words)
        assert info["refusesMessages"] == words


async def test_a_broker_without_a_role_is_starting(tmp_path: Path) -> None:
    async with broker(tmp_path, "127.76.250.250:1") as one:
        code, remark, info = await rejected(one)
        assert (code, info["refusalState"]) == (ResponseCode.SYSTEM_BUSY, "starting")
        assert remark == (
            "[REJECTREQUEST]system busy, start flow control for a while. starting: no leading controller is "
            "known; next: epochmq status"
        )


async def test_a_broker_in_doubt_says_so(tmp_path: Path) -> None:
    async with fake_controller() as controller:
        async with broker(tmp_path, controller.address) as one:
            await until(lambda: one.ha.role is HARole.MASTER)
        (tmp_path / FILE).write_bytes(msgspec.json.encode(LogDoubt(in_doubt=True, gives_up=True)))
        controller.elects = False
        async with broker(tmp_path, controller.address) as one:
            await until(lambda: one.live.standing.refusal() is not None)
            code, remark, info = await rejected(one)
            assert (code, info["refusalState"]) == (ResponseCode.SYSTEM_BUSY, "in doubt")
            assert "while. in doubt: its log may lack acknowledged messages" in remark
            assert remark.endswith(info["refusesMessages"])


async def test_a_replica_in_order_rejects_sends_in_rocketmqs_words(tmp_path: Path) -> None:
    async with fake_controller() as controller:
        controller.elects = False
        async with broker(tmp_path, controller.address) as one:
            controller.make_master(9, "127.76.250.250:1", 1)
            await until(lambda: one.ha.role is HARole.REPLICA, "it follows a master")
            code, remark, info = await rejected(one)
        assert code == ResponseCode.SYSTEM_BUSY
        assert remark == "[REJECTREQUEST]system busy, start flow control for a while"
        assert "refusesMessages" not in info


async def test_a_fenced_broker_without_controllers_says_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.broker.store.state.set_flag(RunningFlags.FENCED, True)
        answer = bench.peer().call(send_command("orders"))
        assert answer.code == UNAVAILABLE
        found = bench.peer().call(request(Code.GET_BROKER_RUNTIME_INFO))
        table = json.loads(found.body)["table"]
        assert (answer.remark or "").endswith(table["refusesMessages"])
        assert table["refusalState"] == "fenced"


async def test_a_broker_that_is_being_stopped_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        standing = bench.broker.live.standing
        standing.begin_stop()
        assert str(standing.refusal()) == "stopping: it is being stopped; next: epochmq status"
