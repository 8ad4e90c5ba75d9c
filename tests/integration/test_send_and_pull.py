"""A nameserver and a broker as processes: sends, pulls, long polling, delayed messages, restarts and
routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import (
    GetMaxOffsetRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from epochmq_protocol.headers_namesrv import GetRouteInfoRequestHeader
from epochmq_protocol.transport.client import RemotingClient
from tests.support.cluster import OurCluster
from tests.support.process import PATIENCE_S, ManagedProcess, wait_until

OCTET = 53
IDLE_RSS_MAX_KIB = 64 * 1024
ALARM_MS = 1000
"""How long the broker holds a pull to which no message comes."""
CHECKS_MAX = 1 + ALARM_MS // 200
"""How often the broker looks for grown queues in this time. A pull that is not woken waits for that."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    with OurCluster(tmp_path_factory.mktemp("cluster"), octet=OCTET) as started:
        yield started


class Client(RemotingClient):
    """A client with longer timeouts than usual."""

    async def call(self, address: str, command: Command, timeout_ms: float = PATIENCE_S * 1000) -> Command:
        return await super().call(address, command, timeout_ms)


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = Client()
    yield made
    await made.close()


def send_command(topic: str, body: bytes, **properties: str) -> Command:
    """A send to queue 0."""
    header = SendMessageRequestHeaderV2(
        producer_group="producers",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=records.format_properties({"UNIQ_KEY": f"{time.time_ns():032X}"} | properties).decode(),
    )
    return request(RequestCode.SEND_MESSAGE_V2, header, body)


def pull_command(topic: str, offset: int = 0, *, wait_ms: int = 0) -> Command:
    """A pull from queue 0 by group `group`."""
    header = PullMessageRequestHeader(
        consumer_group="group",
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=4 | (2 if wait_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=wait_ms,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    return request(RequestCode.PULL_MESSAGE, header)


def bodies(response: Command) -> list[bytes]:
    """The message bodies of a pull's response."""
    return [record.body for record in records.decode_records(response.body)]


async def received(client: RemotingClient, address: str) -> None:
    """Waits until the broker has taken what was sent to it: a request on the same connection that is answered
    came after that."""
    header = GetMaxOffsetRequestHeader(topic="Kept", queue_id=0)
    await client.call(address, request(RequestCode.GET_MAX_OFFSET, header))


async def route(client: RemotingClient, cluster: OurCluster, topic: str) -> dict[str, Any] | None:
    """The topic's route at the nameserver, None when it knows none."""
    header = GetRouteInfoRequestHeader(topic=topic)
    response = await client.call(
        cluster.nameserver_address, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
    )
    return json.loads(response.body) if response.code == ResponseCode.SUCCESS else None


async def test_a_sent_message_is_pulled(cluster: OurCluster, client: RemotingClient) -> None:
    for number in range(100):
        response = await client.call(cluster.broker_address, send_command("Plain", b"%d" % number))
        assert response.code == ResponseCode.SUCCESS
    offset, found = 0, []
    while offset < 100:
        response = await client.call(cluster.broker_address, pull_command("Plain", offset))
        found += bodies(response)
        offset = int((response.ext or {})["nextBeginOffset"])
    assert found == [b"%d" % number for number in range(100)]


async def test_a_new_topic_is_known_to_the_nameserver_at_once(
    cluster: OurCluster, client: RemotingClient
) -> None:
    assert await route(client, cluster, "Fresh") is None
    await client.call(cluster.broker_address, send_command("Fresh", b"x"))
    async with asyncio.timeout(PATIENCE_S):
        while (found := await route(client, cluster, "Fresh")) is None:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": cluster.broker_address}
    assert found["queueDatas"][0]["writeQueueNums"] == 4


async def test_a_waiting_pull_gets_a_message_when_it_arrives_not_at_the_next_check(
    cluster: OurCluster, client: RemotingClient
) -> None:
    """More messages are delivered to waiting pulls, one after another, than the broker checks queues while
    it holds another pull. A stall of the machine delays all of that, and is repeated."""
    producer, offset, address = Client(), 0, cluster.broker_address
    await client.call(address, send_command("Silent", b"first"))
    await client.call(address, send_command("Wait", b"%d" % offset))

    async def deliver_during_one_alarm() -> int:
        nonlocal offset
        first = offset
        alarm = asyncio.create_task(client.call(address, pull_command("Silent", 1, wait_ms=ALARM_MS)))
        while not alarm.done():
            offset += 1
            waiting = asyncio.create_task(client.call(address, pull_command("Wait", offset, wait_ms=15_000)))
            await received(client, address)
            await producer.call(address, send_command("Wait", b"%d" % offset))
            assert bodies(await waiting) == [b"%d" % offset]
        assert bodies(await alarm) == []
        return offset - first

    async with asyncio.timeout(PATIENCE_S):
        while await deliver_during_one_alarm() <= 2 * CHECKS_MAX:
            pass
    await producer.close()


async def test_a_delayed_message_comes_after_its_delay(cluster: OurCluster, client: RemotingClient) -> None:
    sent = time.time()
    await client.call(cluster.broker_address, send_command("Late", b"later", DELAY="1"))
    response = await client.call(cluster.broker_address, pull_command("Late", wait_ms=15_000))
    assert bodies(response) == [b"later"]
    assert time.time() - sent > 0.9


async def test_the_vip_port_serves_sends_but_no_pulls(cluster: OurCluster, client: RemotingClient) -> None:
    host, _, port = cluster.broker_address.rpartition(":")
    vip = f"{host}:{int(port) - 2}"
    assert (await client.call(vip, send_command("Vip", b"x"))).code == ResponseCode.SUCCESS
    assert (await client.call(vip, pull_command("Vip"))).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def resident_kib(process: ManagedProcess) -> int:
    """Resident memory of a process that is not a mapped file's, in KiB."""
    assert process.pid is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    return sum(
        int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon:", "RssFile:"))
    )


def test_an_idle_broker_is_small(tmp_path: Path) -> None:
    with OurCluster(tmp_path, octet=OCTET) as cluster:
        assert resident_kib(cluster.broker_process) < IDLE_RSS_MAX_KIB


async def test_a_clean_stop_answers_held_pulls_and_a_restart_has_everything(
    tmp_path: Path, client: RemotingClient
) -> None:
    cluster = OurCluster(tmp_path, octet=OCTET)
    cluster.start()
    try:
        address = cluster.broker_address
        await client.call(address, send_command("Kept", b"before"))
        waiting = asyncio.create_task(client.call(address, pull_command("Kept", 1, wait_ms=60_000)))
        await asyncio.sleep(0)
        await received(client, address)
        assert await asyncio.to_thread(cluster.stop_broker) == 0
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND
        assert not (cluster.store / "abort").exists()
        # A nameserver unregisters brokers in batches, after its response.
        await asyncio.to_thread(
            wait_until, lambda: not cluster.broker_registered(), what="the nameserver no longer lists it"
        )
        await asyncio.to_thread(cluster.start_broker)
        response = await client.call(address, pull_command("Kept"))
        assert bodies(response) == [b"before"]
        header = GetMaxOffsetRequestHeader(topic="Kept", queue_id=0)
        end = await client.call(address, request(RequestCode.GET_MAX_OFFSET, header))
        assert end.ext == {"offset": "1"}
        assert (await client.call(address, send_command("Kept", b"after"))).code == ResponseCode.SUCCESS
        assert bodies(await client.call(address, pull_command("Kept", 1))) == [b"after"]
    finally:
        await asyncio.to_thread(cluster.stop)


async def test_a_nameserver_that_comes_back_gets_all_registrations_soon(
    tmp_path: Path, client: RemotingClient
) -> None:
    cluster = OurCluster(tmp_path, octet=OCTET, broker={"registerNameServerPeriod": 60_000})
    cluster.start()
    try:
        await client.call(cluster.broker_address, send_command("Remembered", b"x"))
        await asyncio.to_thread(cluster.nameserver_process.kill)
        await asyncio.to_thread(cluster.start_nameserver)
        found = None
        async with asyncio.timeout(45):  # without a lost connection a registration comes every 60 s
            while found is None:
                with contextlib.suppress(ConnectError):
                    found = await route(client, cluster, "Remembered")
                await asyncio.sleep(0.05)
    finally:
        await asyncio.to_thread(cluster.stop)


def test_an_invalid_configuration_is_rejected_by_name(tmp_path: Path) -> None:
    cluster = OurCluster(tmp_path, octet=OCTET, broker={"flushDiskType": "SOMETIMES"})
    cluster.start_nameserver()
    try:
        cluster.broker_process.start()
        assert cluster.broker_process.wait() != 0
        output = cluster.broker_process.output(3000)
        for word in ("flushDiskType", "SOMETIMES", "SYNC_FLUSH"):
            assert word in output
    finally:
        cluster.stop()
