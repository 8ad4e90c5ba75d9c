"""Registration with every nameserver independently: in full first, then changes, and the unregistration."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

import pytest

from epochmq_broker.membership import registration
from epochmq_broker.tables.topics import topic_config
from epochmq_protocol.bodies import from_json
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.headers_namesrv import RegisterBrokerRequestHeader, UnRegisterBrokerRequestHeader
from epochmq_protocol.topics import (
    DataVersion,
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
)
from tests.unit.broker.kit import until
from tests.unit.broker.membership.registration_bench import FIRST, SECOND, Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.registration.stop()


async def test_at_start_every_nameserver_gets_all_topics(bench: Bench) -> None:
    bench.registration.start()
    assert await bench.registration.wait_until_registered(60_000)
    for addr in (FIRST, SECOND):
        (body,) = bench.servers.registrations(addr)
        wrapper = body.topic_config_serialize_wrapper
        assert set(wrapper.topic_config_table) == set(bench.topics)
        assert wrapper.data_version == bench.topics.data_version
    header = RegisterBrokerRequestHeader.decode(bench.servers.requests[0][1].ext)
    assert (header.broker_name, header.broker_addr, header.broker_id) == ("b", "127.53.8.9:20911", 0)
    assert header.ha_server_addr == "127.53.8.9:20912"
    assert header.body_crc32 == zlib.crc32(bench.servers.requests[0][1].body) & 0x7FFFFFFF
    assert header.heartbeat_timeout_millis is None
    assert bench.registration.registered == {FIRST: True, SECOND: True}


async def test_nameservers_get_the_address_for_clients() -> None:
    bench = Bench(clientIP="127.53.8.10", brokerIP1="orders-broker-0.orders-brokers.shop.svc")
    bench.registration.start()
    assert await bench.registration.wait_until_registered(60_000)
    header = RegisterBrokerRequestHeader.decode(bench.servers.requests[0][1].ext)
    assert header.broker_addr == "127.53.8.10:20911"
    assert header.ha_server_addr.endswith(":20912")
    await bench.registration.stop()
    assert bench.servers.requests[-1][1].code == RequestCode.UNREGISTER_BROKER
    assert bench.servers.requests[-1][1].ext["brokerAddr"] == "127.53.8.10:20911"


async def test_nameservers_get_the_external_address_and_its_changes() -> None:
    bench = Bench(externalListenPort="20921", externalIP="a.example.com", forceRegister="false")
    bench.registration.start()
    assert await bench.registration.wait_until_registered(60_000)

    def external() -> set[str | None]:
        found = [one.ext for _, one in bench.servers.requests if one.code == RequestCode.REGISTER_BROKER]
        return {(ext or {}).get("externalAddr") for ext in found}

    assert external() == {"a.example.com:20921"}
    bench.live.update({"externalIP": "b.example.com", "externalPort": "31000"})
    await bench.servers.until(lambda: "b.example.com:31000" in external())
    await bench.registration.stop()


async def test_a_broker_without_an_external_listener_registers_as_rocketmqs_does(bench: Bench) -> None:
    bench.registration.start()
    assert await bench.registration.wait_until_registered(60_000)
    assert "externalAddr" not in (bench.servers.requests[0][1].ext or {})


async def test_nameservers_get_the_queues_of_static_topics_that_the_broker_leads(bench: Bench) -> None:
    bench.topics.put(topic_config("static", 2))
    led, lost = (
        LogicQueueMappingItem(bname="b", queue_id=1),
        LogicQueueMappingItem(gen=1, bname="other", logic_offset=9),
    )
    mapping = TopicQueueMappingDetail(
        topic="static", bname="b", total_queues=2, epoch=5, hosted_queues={0: [led], 1: [led, lost]}
    )
    bench.static.update(mapping, force=False)
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    bench.topics.put(topic_config("static", 3))
    await bench.registration.wait_until_registered(60_000)
    for body in bench.servers.registrations(SECOND):
        infos = body.topic_config_serialize_wrapper.topic_queue_mapping_info_map
        assert set(infos) == {"static"}
        assert infos["static"].curr_id_map == {0: 1}
        assert (infos["static"].epoch, infos["static"].total_queues) == (5, 2)


async def test_a_changed_topic_is_registered_alone_and_at_once(bench: Bench) -> None:
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    bench.topics.put(topic_config("New", 4))
    bench.topics.put(topic_config("Newer", 4))
    assert await bench.registration.wait_until_registered(60_000)
    body = bench.servers.registrations(SECOND)[-1]
    assert set(body.topic_config_serialize_wrapper.topic_config_table) == {"New", "Newer"}
    assert body.topic_config_serialize_wrapper.data_version == bench.topics.data_version
    assert len(bench.servers.registrations(SECOND)) == 2


async def test_a_deleted_topic_is_not_registered_again(bench: Bench) -> None:
    bench.topics.put(topic_config("Old", 4))
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    bench.topics.delete("Old")
    assert await bench.registration.wait_until_registered(60_000)
    assert len(bench.servers.registrations(FIRST)) == 1


async def test_a_change_does_not_wait_for_a_nameserver_that_is_down(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RETRY_MIN_S", 3600.0)
    bench.servers.dead.add(SECOND)
    bench.registration.start()
    assert await bench.registration.wait_until_registered(60_000)
    bench.topics.put(topic_config("New", 4))
    async with asyncio.timeout(60):
        assert await bench.registration.wait_until_registered(60_000)
    bench.registration.refresh()
    async with asyncio.timeout(60):
        assert await bench.registration.wait_until_registered(60_000)
    table = bench.servers.registrations(FIRST)[1].topic_config_serialize_wrapper.topic_config_table
    assert set(table) == {"New"}


async def test_only_the_first_change_waits_for_a_nameserver_that_hangs(bench: Bench) -> None:
    bench.registration.start()
    assert await bench.registration.wait_until_registered(60_000)
    bench.servers.hanging.add(SECOND)
    bench.topics.put(topic_config("New", 4))
    assert not await bench.registration.wait_until_registered(50)
    bench.topics.put(topic_config("Newer", 4))
    assert await bench.registration.wait_until_registered(60_000)
    bench.servers.hanging.clear()


async def test_a_change_waits_again_for_a_nameserver_that_is_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RETRY_MIN_S", 0.001)
    bench.servers.dead.add(SECOND)
    bench.registration.start()
    assert await bench.registration.wait_until_registered(60_000)
    bench.servers.dead.clear()
    await bench.servers.until(lambda: bool(bench.servers.registrations(SECOND)))
    await until(lambda: bench.registration.registered[SECOND])
    bench.servers.hanging.add(SECOND)
    bench.topics.put(topic_config("New", 4))
    assert not await bench.registration.wait_until_registered(50)
    bench.servers.hanging.clear()


async def test_a_nameserver_that_hangs_does_not_delay_the_other(bench: Bench) -> None:
    bench.servers.hanging.add(FIRST)
    bench.registration.start()
    await bench.servers.until(lambda: bool(bench.servers.registrations(SECOND)))
    bench.topics.put(topic_config("New", 4))
    await bench.servers.until(lambda: len(bench.servers.registrations(SECOND)) == 2)
    assert bench.registration.registered == {FIRST: False, SECOND: True}


async def test_a_nameserver_that_comes_back_gets_a_full_registration_first(bench: Bench) -> None:
    bench.servers.dead.add(FIRST)
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    assert bench.registration.registered[FIRST] is False
    bench.topics.put(topic_config("New", 4))
    bench.servers.dead.clear()
    await bench.servers.until(lambda: bool(bench.servers.registrations(FIRST)))
    body = bench.servers.registrations(FIRST)[0]
    assert set(body.topic_config_serialize_wrapper.topic_config_table) == set(bench.topics)


async def test_a_full_registration_follows_a_lost_connection_at_once(bench: Bench) -> None:
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    bench.servers.lose(FIRST)
    assert bench.registration.registered == {FIRST: False, SECOND: True}
    await bench.servers.until(lambda: len(bench.servers.registrations(FIRST)) == 2)
    table = bench.servers.registrations(FIRST)[1].topic_config_serialize_wrapper.topic_config_table
    assert set(table) == set(bench.topics)


async def test_the_brokers_permission_masks_that_of_its_topics() -> None:
    bench = Bench(brokerPermission="4")
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    table = bench.servers.registrations(FIRST)[0].topic_config_serialize_wrapper.topic_config_table
    assert table["BenchmarkTest"].perm == 4
    before = bench.topics.data_version
    bench.live.update({"brokerPermission": "6"})
    await bench.servers.until(lambda: len(bench.servers.registrations(FIRST)) == 2)
    wrapper = bench.servers.registrations(FIRST)[1].topic_config_serialize_wrapper
    assert wrapper.topic_config_table["BenchmarkTest"].perm == 6
    assert wrapper.data_version != before
    await bench.registration.stop()


async def test_topics_of_the_order_configuration_become_ordered(bench: Bench) -> None:
    bench.servers.order_config["BenchmarkTest"] = "b:8"
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    assert bench.topics.is_order("BenchmarkTest")


async def test_a_stop_unregisters_from_every_nameserver_that_knows_the_broker() -> None:
    bench = Bench()
    bench.servers.dead.add(SECOND)
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    await bench.registration.stop()
    (goodbye,) = [
        (addr, command)
        for addr, command in bench.servers.requests
        if command.code == RequestCode.UNREGISTER_BROKER
    ]
    assert goodbye[0] == FIRST
    assert UnRegisterBrokerRequestHeader.decode(goodbye[1].ext).broker_addr == "127.53.8.9:20911"


async def test_nameservers_can_be_added_and_removed(bench: Bench) -> None:
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    third = "127.53.8.3:9876"
    bench.live.update({"namesrvAddr": f"{SECOND};{third}"})
    await bench.servers.until(lambda: bool(bench.servers.registrations(third)))
    assert bench.registration.registered == {SECOND: True, third: True}


@pytest.mark.parametrize("compatible", ["true", "false"])
async def test_with_an_acting_master_the_broker_sends_heartbeats_and_their_timeout(compatible: str) -> None:
    """Old nameservers take the question for the version of the topics for a heartbeat."""
    bench = Bench(
        enableSlaveActingMaster="true", brokerHeartbeatInterval="10", compatibleWithOldNameSrv=compatible
    )
    code = RequestCode.QUERY_DATA_VERSION if compatible == "true" else RequestCode.BROKER_HEARTBEAT
    bench.registration.start()
    await bench.servers.until(lambda: any(command.code == code for _, command in bench.servers.requests))
    header = RegisterBrokerRequestHeader.decode(bench.servers.requests[0][1].ext)
    assert header.heartbeat_timeout_millis == 10_000
    assert header.enable_acting_master is True
    heartbeat = next(command for _, command in bench.servers.requests if command.code == code)
    fields = {"clusterName": "DefaultCluster", "brokerAddr": "127.53.8.9:20911", "brokerName": "b"}
    if compatible == "true":
        assert from_json(DataVersion, heartbeat.body) == bench.topics.data_version
        fields["brokerId"] = "0"
    else:
        assert not heartbeat.body
    assert heartbeat.ext == fields
    await bench.registration.stop()


@pytest.fixture
def pauses_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the registration's tasks, which are short now."""
    found: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        found.append(seconds)
        await sleep(0.001)

    monkeypatch.setattr(registration.asyncio, "sleep", pause)
    return found


async def test_heartbeats_go_one_way_every_interval_to_each_nameserver(pauses_s: list[float]) -> None:
    bench = Bench(
        enableSlaveActingMaster="true",
        brokerHeartbeatInterval="700",
        sendHeartbeatTimeoutMillis="300",
        compatibleWithOldNameSrv="false",
    )
    bench.registration.start()
    servers = bench.servers
    await servers.until(lambda: {addr for addr, *_ in servers.oneways} == {FIRST, SECOND})
    assert {tuple(rest) for _, *rest in servers.oneways} == {(RequestCode.BROKER_HEARTBEAT, 300)}
    assert set(pauses_s) == {0.7}
    await bench.registration.stop()


async def test_without_an_acting_master_no_heartbeat_is_sent(pauses_s: list[float]) -> None:
    """A registration alone keeps such a broker, for the time that nameservers choose."""
    bench = Bench()
    bench.registration.start()
    assert await bench.registration.wait_until_registered(60_000)
    header = RegisterBrokerRequestHeader.decode(bench.servers.requests[0][1].ext)
    assert header.heartbeat_timeout_millis is None
    assert header.enable_acting_master is False
    some = pauses_s.count(1.0) + 10
    await until(lambda: pauses_s.count(1.0) >= some)
    assert bench.servers.oneways == []
    await bench.registration.stop()


async def test_no_heartbeat_goes_to_a_nameserver_that_does_not_have_the_registration() -> None:
    bench = Bench(enableSlaveActingMaster="true", brokerHeartbeatInterval="10")
    bench.servers.hanging.add(FIRST)
    bench.registration.start()

    def heartbeats(addr: str) -> int:
        return [(at, one.code) for at, one in bench.servers.requests].count(
            (addr, RequestCode.QUERY_DATA_VERSION)
        )

    await bench.servers.until(lambda: heartbeats(SECOND) >= 3)
    assert heartbeats(FIRST) == 0
    await bench.registration.stop()


async def test_a_nameserver_that_has_lost_the_broker_gets_a_full_registration(bench: Bench) -> None:
    bench.registration.start()
    await bench.registration.wait_until_registered(60_000)
    bench.registration.refresh_at(FIRST)
    bench.registration.refresh_at("127.53.8.7:9876")
    await bench.servers.until(lambda: len(bench.servers.registrations(FIRST)) == 2)
    assert len(bench.servers.registrations(SECOND)) == 1


async def test_a_former_master_registers_as_slave_after_the_next_master_has_registered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the group would have no master for a moment, and a client that asks then would have nowhere
    to send."""
    own, servers = bench.live.current.broker_addr, bench.servers
    bench.registration.start()
    assert await bench.registration.wait_until_registered(60_000)
    servers.requests.clear()
    servers.masters = [own, own, own, "127.53.8.10:20911"]
    bench.live.set_role(2, "SLAVE")
    bench.topics.bump_version()
    bench.registration.refresh()
    assert await bench.registration.wait_until_registered(60_000)
    order = [command.code for addr, command in servers.requests if addr == FIRST]
    first = order.index(RequestCode.REGISTER_BROKER)
    assert RequestCode.GET_BROKER_CLUSTER_INFO in order[:first]
    assert servers.masters == ["127.53.8.10:20911"]
    header = RegisterBrokerRequestHeader.decode(
        next(command.ext for _, command in servers.requests if command.code == RequestCode.REGISTER_BROKER)
    )
    assert header.broker_id == 2
    # Without a successor the broker registers, too.
    monkeypatch.setattr(registration, "SUCCESSOR_WAIT_S", 0.05)
    bench.live.set_role(0, "SYNC_MASTER")
    bench.topics.bump_version()
    bench.registration.refresh()
    assert await bench.registration.wait_until_registered(60_000)
    servers.masters = [own]
    servers.requests.clear()
    bench.live.set_role(2, "SLAVE")
    bench.topics.bump_version()
    bench.registration.refresh()
    assert await bench.registration.wait_until_registered(60_000)
    assert RequestCode.REGISTER_BROKER in [command.code for _, command in servers.requests]
