"""A broker goes online by asking the members of its group and watching its HA connections: two brokers in one
process, joined by real HA connections and by a client that reaches both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.membership.acting import pre_online, pre_online_service
from epochmq_broker.membership.acting.pre_online import AwaitRetry, MeasureLag
from epochmq_broker.membership.acting.pre_online_service import PreOnlineService, poll_all_members
from epochmq_broker.membership.acting.table_return import TableReturn
from epochmq_broker.replication.ha.client import HAClientPhase
from epochmq_formats.abort_file import TailState
from epochmq_protocol.bodies import HARuntimeInfo, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import CallTimeoutError, ConnectError, EpochMQError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.route import BrokerData, TopicRouteData
from epochmq_protocol.topics import DataVersion
from tests.support.net import free_port
from tests.unit.broker.kit import HOST, Bench, running, send_command, until

GROUP = {"enableSlaveActingMaster": "true", "totalReplicas": "2", "brokerIP2": HOST}
SLAVE = {**GROUP, "brokerRole": "SLAVE", "brokerId": "1"}


class Network:
    """Replaces the RemotingClient of both brokers. `alter` may change the responses."""

    def __init__(self, **benches: Bench) -> None:
        self.peers = {bench.broker.live.current.client_addr: bench.peer() for bench in benches.values()}
        self.dead: set[str] = set()
        self.alter: Callable[[Command, Command], Command] = lambda command, answer: answer
        self.asked: list[tuple[str, int]] = []

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """RemotingClient.call."""
        self.asked.append((address, command.code))
        if address in self.dead:
            raise ConnectError(f"no connection to {address}")
        peer = self.peers[address]
        return self.alter(command, await peer.answer(peer.send(command)))


class TwoBrokers:
    """A master and a slave with running replication."""

    def __init__(self, master: Bench, slave: Bench) -> None:
        self.master, self.slave = master, slave
        self.network = Network(master=master, slave=slave)
        self.online: list[tuple[int, str]] = []
        self.services: list[PreOnlineService] = []

    def address(self, bench: Bench) -> str:
        return bench.broker.live.current.client_addr

    def start(self, bench: Bench, members: dict[int, str]) -> PreOnlineService:
        """Starts the pre-online of one of the brokers."""
        broker = bench.broker
        tables = TableReturn(
            self.network, broker.store, broker.offsets, broker.delays, broker.timer, lambda: None
        )

        async def ask() -> dict[int, str]:
            return members

        service = PreOnlineService(
            broker.live, broker.ha, self.network, tables, ask, lambda *smallest: self.online.append(smallest)
        )
        self.services.append(service)
        service.start()
        return service


@pytest.fixture
async def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TwoBrokers]:
    monkeypatch.setattr(pre_online, "RETRY_MS", 20)
    async with contextlib.AsyncExitStack() as stack:
        benches = []
        for name, settings in (("master", GROUP), ("slave", SLAVE)):
            port = free_port(HOST)
            ports = {"listenPort": str(port), "haListenPort": str(port + 1)}
            benches.append(await stack.enter_async_context(running(tmp_path / name, settings | ports)))
        brokers = TwoBrokers(*benches)
        for bench in benches:
            await bench.broker.ha.start()
        yield brokers
        for service in brokers.services:
            await service.stop()


async def test_a_master_goes_online_with_the_offsets_of_its_slave(two: TwoBrokers) -> None:
    two.master.peer().call(send_command("orders"))
    two.slave.broker.offsets.restore({"orders@g": {0: 1}}, DataVersion(9, 0, 9))
    two.start(two.master, {1: two.address(two.slave)})
    await until(lambda: two.online)
    assert two.online == [(0, two.address(two.master))]
    assert two.master.broker.offsets.table == {"orders@g": {0: 1}}
    client = two.slave.broker.ha.client
    assert client is not None
    await until(lambda: client.phase is HAClientPhase.FOLLOWING)
    assert client.address == two.master.broker.live.current.ha_server_addr
    codes = [code for _, code in two.network.asked]
    assert codes[0] == RequestCode.EXCHANGE_BROKER_HA_INFO
    assert RequestCode.GET_ALL_CONSUMER_OFFSET in codes


async def test_a_master_whose_slave_does_not_respond_stays_isolated_and_says_so_once(
    two: TwoBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    slave = two.address(two.slave)
    two.network.dead.add(slave)
    with caplog.at_level(logging.WARNING):
        service = two.start(two.master, {1: slave})
        await until(lambda: service.core.attempts >= 3)
    assert isinstance(service.core.step, AwaitRetry) or not service.core.is_done
    assert two.online == []
    said = [record.getMessage() for record in caplog.records if record.name == pre_online_service.__name__]
    assert [text.count(slave) for text in said] == [1]
    two.network.dead.clear()
    await until(lambda: two.online)


async def test_an_unexpected_error_fails_the_attempt_only(
    two: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No response, however wrong, may keep a master isolated for good."""
    failures = [KeyError("offsetTable")]
    take_back = TableReturn.take_back

    async def fails_once(tables: TableReturn, address: str) -> None:
        if failures:
            raise failures.pop()
        await take_back(tables, address)

    monkeypatch.setattr(TableReturn, "take_back", fails_once)
    service = two.start(two.master, {1: two.address(two.slave)})
    await until(lambda: two.online)
    assert service.core.attempts == 2


@pytest.mark.parametrize("lost", list(TailState))
async def test_a_master_whose_slave_has_a_longer_log_goes_online_only_after_a_power_loss(
    two: TwoBrokers, lost: TailState
) -> None:
    """After a power loss the master has lost its unflushed tail, and the two logs differ from now on.
    RocketMQ's goes online, too. Otherwise its volume is not the one that the slave has copied."""
    master, slave = two.master.broker, two.slave.broker
    server = master.ha.server
    assert server is not None
    two.master.peer().call(send_command("orders"))
    first_end = master.store.max_phy_offset
    two.master.peer().call(send_command("orders"))
    slave.ha.follow(master.live.current.ha_server_addr)
    await until(lambda: slave.store.max_phy_offset == master.store.max_phy_offset)
    slave.ha.follow(None)
    await until(lambda: not server.connections)
    server.known_hosts.clear()
    end = master.store.max_phy_offset
    master.store.truncate(first_end)
    master.store.tail = msgspec.structs.replace(master.store.tail, state=lost)
    service = two.start(two.master, {1: two.address(two.slave)})
    if lost is TailState.UNFLUSHED_LOST:
        await until(lambda: two.online)
        return
    await until(lambda: isinstance(service.core.step, AwaitRetry))
    assert isinstance(service.core.step, AwaitRetry)
    why = f"the log of the slave at {two.address(two.slave)} ends at {end}, this master's at {first_end}"
    assert why in service.core.step.why
    assert "copy the store of the slave" in service.core.step.why
    assert two.online == []
    slave.store.truncate(first_end)
    await until(lambda: two.online)


async def test_a_slave_goes_online_when_its_log_has_caught_up(
    two: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pre_online_service, "LAG_POLL_S", 0.01)
    far = to_json(HARuntimeInfo(master=True, master_commit_log_max_offset=1 << 40))
    measured = 0

    def alter(command: Command, answer: Command) -> Command:
        nonlocal measured
        if command.code == RequestCode.GET_BROKER_HA_STATUS:
            measured += 1
            if measured < 3:
                return response(command, ResponseCode.SUCCESS, body=far)
        return answer

    two.network.alter = alter
    service = two.start(two.slave, {0: two.address(two.master)})
    await until(lambda: measured == 2)
    assert isinstance(service.core.step, MeasureLag)
    assert two.online == []
    await until(lambda: two.online)
    assert two.online == [(0, two.address(two.master))]
    assert measured == 3


async def test_a_slave_whose_connection_is_lost_before_it_has_the_log_begins_again(two: TwoBrokers) -> None:
    far = to_json(HARuntimeInfo(master=True, master_commit_log_max_offset=1 << 40))
    followed = True

    def alter(command: Command, answer: Command) -> Command:
        nonlocal followed
        if command.code == RequestCode.GET_BROKER_HA_STATUS and followed:
            two.slave.broker.ha.follow(None)
            followed = False
            return response(command, ResponseCode.SUCCESS, body=far)
        return answer

    two.network.alter = alter
    service = two.start(two.slave, {0: two.address(two.master)})
    await until(lambda: two.online)
    assert service.core.attempts == 2


async def test_the_end_of_the_service_ends_its_step(two: TwoBrokers) -> None:
    two.network.dead.add(two.address(two.slave))
    service = two.start(two.master, {1: two.address(two.slave)})
    await until(lambda: service.core.attempts >= 2)
    await service.stop()
    assert "pre-online" not in [task.get_name() for task in asyncio.all_tasks()]


class Nameservers:
    """Replaces the client of nameservers: each knows some members, or fails."""

    def __init__(self, **known: dict[int, str] | None) -> None:
        self.known = {f"{name}:9876": members for name, members in known.items()}
        settings = {"namesrvAddr": ";".join(self.known), "brokerName": "b", "brokerClusterName": "c"}
        self.live = LiveConfig(from_properties(settings).config)

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """RemotingClient.call."""
        members = self.known[address]
        if members is None:
            raise CallTimeoutError(f"{address} is dead")
        route = TopicRouteData(broker_datas=[BrokerData("c", "b", members)])
        return response(command, ResponseCode.SUCCESS, body=to_json(route))


async def test_a_member_that_one_nameserver_knows_is_alive() -> None:
    servers = Nameservers(one={1: "s1:1"}, two=None, three={2: "s2:1", 1: "old:1"})
    assert await poll_all_members(servers, servers.live) == {1: "s1:1", 2: "s2:1"}


async def test_without_a_nameserver_nobody_is_known() -> None:
    servers = Nameservers(one=None, two=None)
    with pytest.raises(EpochMQError, match="one:9876 is dead; two:9876 is dead"):
        await poll_all_members(servers, servers.live)
    with pytest.raises(EpochMQError, match="none is configured"):
        await poll_all_members(servers, LiveConfig(from_properties({}).config))
