"""Clients that ask at the nameserver's external port get the external addresses of brokers, and may not
change anything there."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_controller.nameserver import config
from epochmq_controller.nameserver.server import Nameserver
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConfigError, ConnectError
from epochmq_protocol.frame import request
from epochmq_protocol.transport import RemotingClient, TlsSettings
from tests.support.certificates import Authority
from tests.support.net import free_port, loopback
from tests.unit.controller.nameserver.asking_nameserver import MASTER, SLAVE, Asker, asking, plain

Code = RequestCode
OUTER_MASTER, OUTER_SLAVE = "broker-0.example.com:30911", "203.0.113.7:30912"


def with_port(text: str = "") -> tuple[str, int]:
    port = free_port("0.0.0.0")
    return f"externalListenPort={port}\n{text}", port


def outside(ns: Asker, port: int) -> Asker:
    """The same nameserver, asked at its external port."""
    asker = Asker(ns.nameserver, ns.client)
    asker.address = f"{ns.nameserver.server.host}:{port}"
    return asker


async def test_each_port_gives_its_own_kind_of_addresses(tmp_path: Path) -> None:
    text, port = with_port()
    async with asking(tmp_path, text) as ns:
        outer = outside(ns, port)
        await ns.register(externalAddr=OUTER_MASTER)
        await ns.register(1, SLAVE, externalAddr=OUTER_SLAVE)
        route = plain(await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1"))
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": MASTER, "1": SLAVE}
        outer_route = plain(await outer.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1"))
        assert outer_route["brokerDatas"][0]["brokerAddrs"] == {"0": OUTER_MASTER, "1": OUTER_SLAVE}
        assert outer_route["queueDatas"] == route["queueDatas"]
        info = plain(await outer.ask(Code.GET_BROKER_CLUSTER_INFO))
        assert info["clusterAddrTable"] == {"c": ["broker-a"]}
        (addresses,) = (broker["brokerAddrs"] for broker in info["brokerAddrTable"].values())
        assert set(addresses.values()) == {OUTER_MASTER, OUTER_SLAVE}
        system = plain(await outer.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS))
        assert system == {"brokerAddr": OUTER_MASTER, "topicList": ["c", "broker-a"]}
        await ns.register(externalAddr="moved.example.com:1")
        outer_route = plain(await outer.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1"))
        assert outer_route["brokerDatas"][0]["brokerAddrs"]["0"] == "moved.example.com:1"


async def test_brokers_without_an_external_listener_are_left_out(tmp_path: Path) -> None:
    text, port = with_port()
    async with asking(tmp_path, text) as ns:
        outer = outside(ns, port)
        await ns.register()
        missing = await outer.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1")
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST
        info = plain(await outer.ask(Code.GET_BROKER_CLUSTER_INFO))
        assert info == {"brokerAddrTable": {}, "clusterAddrTable": {}}
        await ns.register(brokerName="broker-b", address="10.0.0.9:10911", externalAddr="b.example.com:1")
        route = plain(await outer.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1"))
        assert [broker["brokerName"] for broker in route["brokerDatas"]] == ["broker-b"]
        assert [queues["brokerName"] for queues in route["queueDatas"]] == ["broker-b"]


async def test_nothing_can_be_changed_at_the_external_port(tmp_path: Path) -> None:
    text, port = with_port()
    async with asking(tmp_path, text) as ns:
        outer = outside(ns, port)
        answer = await outer.register(externalAddr=OUTER_MASTER)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "does not serve request code 103" in (answer.remark or "")
        changing = (Code.UNREGISTER_BROKER, Code.PUT_KV_CONFIG, Code.DELETE_TOPIC_IN_NAMESRV)
        for code in (*changing, Code.UPDATE_NAMESRV_CONFIG, Code.BROKER_HEARTBEAT, 9999):
            assert (await outer.ask(code)).code == ResponseCode.NO_PERMISSION
        assert plain(await ns.ask(Code.GET_BROKER_CLUSTER_INFO))["brokerAddrTable"] == {}


async def test_the_external_port_may_require_tls_while_brokers_register_without(tmp_path: Path) -> None:
    crt, key = Authority("authority").issue(tmp_path, "server")
    text, port = with_port(
        f"externalTlsMode=enforcing\ntls.server.certPath={crt}\ntls.server.keyPath={key}\n"
    )
    async with asking(tmp_path, text) as ns:
        assert (await ns.register(externalAddr=OUTER_MASTER)).code == ResponseCode.SUCCESS
        outer = outside(ns, port)
        with pytest.raises(Exception, match=r"lost|reset"):
            await outer.ask(Code.GET_BROKER_CLUSTER_INFO)
        async with RemotingClient(tls=TlsSettings()) as client:
            answer = await client.call(outer.address, request(Code.GET_BROKER_CLUSTER_INFO), 60_000)
        assert answer.code == ResponseCode.SUCCESS


async def test_a_disabled_external_mode_rejects_handshakes(tmp_path: Path) -> None:
    crt, key = Authority("authority").issue(tmp_path, "server")
    text, port = with_port(f"externalTlsMode=disabled\ntls.server.certPath={crt}\ntls.server.keyPath={key}\n")
    async with asking(tmp_path, text) as ns, RemotingClient(tls=TlsSettings()) as client:
        answer = await client.call(ns.address, request(Code.GET_BROKER_CLUSTER_INFO), 60_000)
        assert answer.code == ResponseCode.SUCCESS
        with pytest.raises(ConnectError):
            await client.call(outside(ns, port).address, request(Code.GET_BROKER_CLUSTER_INFO), 60_000)


def test_impossible_settings_are_rejected() -> None:
    for text, key in (
        ("externalListenPort=9876", "externalListenPort"),
        ("externalListenPort=0", "externalListenPort"),
        ("externalTlsMode=enforcing", "externalTlsMode"),
        ("externalListenPort=9976\nexternalTlsMode=always", "externalTlsMode"),
    ):
        with pytest.raises(ConfigError, match=key):
            config.load(text, {"listenPort": "9876", "bindAddress": loopback(51)})
    loaded = config.load("externalListenPort=9976\nexternalTlsMode=enforcing", {"bindAddress": loopback(51)})
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath=None.*externalTlsMode"):
        Nameserver(loaded)
