"""While a returning master is isolated, clients cannot use it; members and administrators can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.config.broker_config import from_properties
from epochmq_broker.membership.acting.isolation import REMARK, starts_isolated
from epochmq_broker.requests.fast_handler import GateName
from epochmq_broker.requests.pipeline import compose
from epochmq_protocol.bodies import HARuntimeInfo, LockBatchRequestBody, from_json, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_client import QueryConsumerOffsetRequestHeader
from epochmq_protocol.headers_controller import ExchangeHAInfoRequestHeader, ExchangeHAInfoResponseHeader
from epochmq_protocol.transport.request_dispatcher import RequestDispatcher
from tests.support.net import free_port
from tests.unit.broker.kit import HOST, Bench, Peer, command, pull_command, running, send_command

GROUP = {"enableSlaveActingMaster": "true", "totalReplicas": "2"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


@pytest.mark.parametrize(
    ("settings", "isolated"),
    [
        ({}, True),
        ({"brokerRole": "SLAVE", "brokerId": "1"}, True),
        ({"enableSlaveActingMaster": "false"}, False),
        ({"totalReplicas": "1"}, False),
        ({"skipPreOnline": "true"}, False),
        ({"enableControllerMode": "true", "controllerAddr": "127.0.0.1:1"}, False),
    ],
)
def test_a_broker_starts_isolated_only_in_an_acting_group_of_several(
    settings: dict[str, str], isolated: bool
) -> None:
    assert starts_isolated(from_properties(GROUP | settings).config) is isolated


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, GROUP) as made:
        yield made


def dispatcher_of(bench: Bench) -> RequestDispatcher:
    """The dispatcher of the main port, as in production."""
    return bench.broker.ports.main.dispatcher


CLIENT_REQUESTS: list[Command] = [
    send_command("orders"),
    pull_command("orders"),
    command(
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetRequestHeader(consumer_group="g", topic="orders", queue_id=0),
    ),
    command(RequestCode.LOCK_BATCH_MQ, body=to_json(LockBatchRequestBody(consumer_group="g", client_id="c"))),
]


async def test_clients_are_served_only_after_pre_online(bench: Bench) -> None:
    peer = Peer(dispatcher_of(bench))
    for each in CLIENT_REQUESTS:
        answer = peer.call(each)
        assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, REMARK)
    assert bench.count("orders") == 0
    assert peer.call(command(RequestCode.GET_ALL_CONSUMER_OFFSET)).code == 0
    assert peer.call(command(RequestCode.GET_BROKER_CONFIG)).code == 0
    bench.broker.mode.isolation.open()
    assert dispatcher_of(bench).fast, "sends and pulls take the fast path again"
    assert [peer.call(each).code for each in CLIENT_REQUESTS[:1]] == [0]
    assert bench.count("orders") == 1
    assert ResponseCode.SERVICE_NOT_AVAILABLE not in [peer.call(each).code for each in CLIENT_REQUESTS[2:]]


async def test_an_isolated_master_runs_no_special_services(bench: Bench) -> None:
    broker = bench.broker
    assert broker.timer is not None
    assert not broker.timer.is_master
    assert not broker.delays.is_running


async def test_a_slave_is_open_from_the_start(tmp_path: Path) -> None:
    async with running(tmp_path, {**GROUP, **SLAVE, "slaveReadEnable": "true"}) as slave:
        assert dispatcher_of(slave).fast
        answer = Peer(dispatcher_of(slave)).call(command(RequestCode.GET_ALL_DELAY_OFFSET))
        assert answer.code == 0


async def test_the_gate_leaves_other_requests_alone(bench: Bench) -> None:
    def handler(connection: object, command: Command) -> None:
        return None

    (gate,) = (one for one in bench.broker.pipeline.gates if one.name is GateName.ISOLATION)
    guarded = compose([gate], {RequestCode.GET_BROKER_CONFIG: handler, RequestCode.SEND_MESSAGE: handler})
    assert guarded[RequestCode.GET_BROKER_CONFIG] is handler
    assert guarded[RequestCode.SEND_MESSAGE] is not handler


# The exchange of HA addresses (906)


def exchange(peer: Peer, **fields: str | int) -> ExchangeHAInfoResponseHeader:
    header = ExchangeHAInfoRequestHeader(**fields)  # type: ignore[arg-type]
    answer = peer.call(command(RequestCode.EXCHANGE_BROKER_HA_INFO, header))
    assert answer.code == ResponseCode.SUCCESS
    return ExchangeHAInfoResponseHeader.decode(answer.ext)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_slave_follows_a_returning_master(tmp_path: Path, kept: bool) -> None:
    settings = {**GROUP, **SLAVE, "syncMasterFlushOffsetWhenStartup": str(kept).lower()}
    async with running(tmp_path, settings) as slave:
        await slave.broker.ha.start()
        peer = slave.peer()
        for offset in (700, 900):
            answer = exchange(peer, master_ha_address="127.53.7.3:1", master_flush_offset=offset)
            assert answer == ExchangeHAInfoResponseHeader()
        client = slave.broker.ha.client
        assert client is not None
        assert client.address == "127.53.7.3:1"
        answer = peer.call(command(RequestCode.GET_BROKER_HA_STATUS))
        info = from_json(HARuntimeInfo, answer.body).ha_client_runtime_info
        assert info.master_flush_offset == (700 if kept else 0), "the first one is kept"
        assert exchange(peer) == ExchangeHAInfoResponseHeader(), "a slave has no HA address to tell"


async def test_a_master_tells_its_ha_address_and_where_its_log_ended_at_the_start(tmp_path: Path) -> None:
    async with running(tmp_path, GROUP) as master:
        assert master.peer().call(send_command("orders")).code == 0
    async with running(tmp_path, {**GROUP, "haListenPort": str(free_port(HOST))}) as master:
        broker = master.broker
        end = broker.store.max_phy_offset
        assert end > 0
        broker.mode.isolation.open()
        assert master.peer().call(send_command("orders")).code == 0
        await broker.ha.start()
        config = broker.live.current
        assert exchange(master.peer()) == ExchangeHAInfoResponseHeader(
            master_ha_address=config.ha_server_addr,
            master_flush_offset=end,
            master_address=config.broker_addr,
        )
