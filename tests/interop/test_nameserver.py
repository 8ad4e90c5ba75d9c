"""RocketMQ's nameserver and EpochMQ's get the same requests; after each of them every query gets the same
response from both.

The actions of brokers and administrators are drawn from a seed, which a failure prints. One difference on
purpose is left out: RocketMQ keeps a broker name without addresses after it rejected its first registration.
"""

from __future__ import annotations

import json
import random
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from epochmq_protocol import fastjson
from tests.interop.java_cluster import java_nameserver
from tests.interop.java_env import REFERENCE, in_use
from tests.support.cluster import START_TIMEOUT_S, Settings, our_process, properties
from tests.support.net import free_port, loopback
from tests.support.process import wait_until
from tests.support.remoting import Response, call, frame, read_frame

pytestmark = pytest.mark.java

NAMES = {"broker-a": "one", "broker-b": "one", "broker-c": "two"}
TOPICS = ("T1", "T2", "T3", "rmq_sys_SYNC_BROKER_MEMBER_broker-a")
FLAGS = dict(
    zip(TOPICS, (0, 1, 2, 3), strict=True)
)  # RocketMQ looks at any broker's when it lists unit topics
ZONES = (None, "z1", "Z1", "z2")
SETTINGS = ("supportActingMaster", "orderMessageEnable", "returnOrderTopicConfigToBroker", "enableTopicList")
OF_OURS_ALONE = {
    "frameTimeoutMillis",
    "kvConfigMaxChars",
    "kvConfigMaxEntries",
    "maxConnectionsPerAddress",
    "maxHeaderSize",
    "maxNewConnectionsPerAddress",
    "allowUnauthenticatedMembers",
    "memberSecretPath",
    "maxReceivedBytes",
    "proxyProtocolFrom",
}
"""Bounds that RocketMQ's nameserver does not have."""
FIELDS_OF_PLACE = ("bindAddress", "listenPort", "kvConfigPath", "configStorePath", "rocketmqHome")


class NameserverConnection:
    """A lasting connection to a nameserver."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 479
    ) -> Response:
        data = frame(code, ext, body, opaque=7).replace(b'"version":479', b'"version":%d' % version)
        length = len(data) - 4  # the version's width may have changed
        header = int.from_bytes(data[4:8], "big") + len(str(version)) - 3
        self._socket.sendall(length.to_bytes(4, "big") + header.to_bytes(4, "big") + data[8:])
        response, content = read_frame(self._socket)
        return Response(response["code"], response.get("remark"), response.get("extFields") or {}, content)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a RocketMQ nameserver and of an EpochMQ nameserver."""
    found = []
    with ExitStack() as stack:
        for kind in ("java", "ours"):
            directory: Path = tmp_path_factory.mktemp(kind)
            host = loopback(51)
            port = free_port(host, beside=())
            places: Settings = {
                "bindAddress": host,
                "listenPort": port,
                "kvConfigPath": str(directory / "kvConfig.json"),
            }
            config = directory / "namesrv.conf"
            config.write_text(properties(places))
            process = java_nameserver(config) if kind == "java" else our_process("nameserver", config)
            process.start()
            stack.callback(process.kill)
            address = f"{host}:{port}"
            process.wait_until(
                lambda address=address: _answers(address), timeout_s=START_TIMEOUT_S, what="answering"
            )
            found.append(address)
        yield found[0], found[1]


def _answers(address: str) -> bool:
    try:
        return call(address, 106, timeout_s=2).code == 0
    except OSError:
        return False


class NameserverScenario:
    """Actions on both nameservers, drawn from a seed."""

    def __init__(self, lines: tuple[NameserverConnection, NameserverConnection], seed: int) -> None:
        self.lines = lines
        self.random = random.Random(seed)
        self.members: dict[str, dict[int, str]] = {name: {} for name in NAMES}
        self.performed: list[str] = []

    def both(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 479
    ) -> Response:
        """Sends a request to both, and asserts that the responses are the same."""
        theirs, ours = (line.ask(code, ext, body, version) for line in self.lines)
        assert _plain(ours) == _plain(theirs), f"request {code} {ext} {body!r}"
        return ours

    def step(self) -> None:
        """One action."""
        acts: list[Callable[[], None]] = [
            *[self.register] * 8,
            *[self.unregister] * 3,
            self.permission,
            self.topic,
            self.kv,
            self.setting,
            self.heartbeat,
        ]
        self.random.choice(acts)()

    def register(self) -> None:
        draw = self.random
        name = draw.choice(list(NAMES))
        broker_id = draw.choice([0, 0, 1, 2])
        address = f"10.0.0.{draw.randint(1, 3)}:1091{list(NAMES).index(name)}"
        members = self.members[name]
        topics = draw.sample(TOPICS, draw.choice([0, 1, 2, 3, 4]))
        if broker_id not in members and len(topics) == 1:
            topics = list(TOPICS[:2])  # a rejection leaves traces in RocketMQ, see the head of this module
        version = {"counter": draw.randint(1, 2), "stateVersion": draw.randint(0, 2), "timestamp": 5}
        table = {
            topic: {
                "topicName": topic,
                "perm": draw.choice([2, 4, 6, 7]),
                "readQueueNums": draw.randint(1, 3),
                "writeQueueNums": draw.randint(1, 3),
                "topicSysFlag": FLAGS[topic],
            }
            for topic in topics
        }
        filters = draw.choice([[], [], [f"f-{address}"]])
        wrapper = {"dataVersion": version, "topicConfigTable": table}
        body = json.dumps({"filterServerList": filters, "topicConfigSerializeWrapper": wrapper}).encode()
        ext = {
            "clusterName": NAMES[name],
            "brokerName": name,
            "brokerId": str(broker_id),
            "brokerAddr": address,
            "haServerAddr": f"ha-{address}",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            "heartbeatTimeoutMillis": "3600000",  # longer than the test, so that no broker expires
        }
        acting, zone = draw.choice([None, "true", "true", "false"]), draw.choice(ZONES)
        if acting is not None:
            ext["enableActingMaster"] = acting
        if zone is not None:
            ext["__ZONE_NAME"] = zone
        self.note(f"register {ext} {body.decode()}")
        self.both(103, ext, body)
        self.follow()

    def unregister(self) -> None:
        draw = self.random
        name = draw.choice(list(NAMES))
        members = self.members[name]
        broker_id, address = draw.choice([*members.items(), (0, "10.9.9.9:1")])
        ext = {
            "clusterName": NAMES[name],
            "brokerName": name,
            "brokerId": str(broker_id),
            "brokerAddr": address,
        }
        self.note(f"unregister {ext}")
        self.both(104, ext)
        # Both carry it out soon after their response.
        for line in self.lines:
            group = {"clusterName": NAMES[name], "brokerName": name}
            wait_until(
                lambda line=line, group=group: address.encode() not in line.ask(901, group).body,
                what=f"{address} gone from {line.address}",
            )
        self.follow()

    def permission(self) -> None:
        code, name = self.random.choice([205, 327]), self.random.choice([*NAMES, "nobody"])
        self.note(f"permission {code} {name}")
        self.both(code, {"brokerName": name})

    def topic(self) -> None:
        draw = self.random
        topic = draw.choice(TOPICS)
        ext = {"topic": topic}
        if draw.random() < 0.5:
            name = draw.choice(list(NAMES))
            queue = {"brokerName": name, "writeQueueNums": 9, "perm": 6, "topicSysFlag": FLAGS[topic]}
            self.note(f"register topic {ext} {queue}")
            self.both(217, ext, json.dumps({"queueDatas": [queue]}).encode())
            return
        if draw.random() < 0.5:
            ext["clusterName"] = draw.choice(["one", "two", "three"])
        self.note(f"delete topic {ext}")
        self.both(216, ext)

    def kv(self) -> None:
        namespace, key = self.random.choice(["ORDER_TOPIC_CONFIG", "other"]), self.random.choice(TOPICS)
        ext = {"namespace": namespace, "key": key}
        code = self.random.choice([100, 100, 102])
        if code == 100:
            ext["value"] = f"broker-a:{self.random.randint(1, 9)}"
        self.note(f"kv {code} {ext}")
        self.both(code, ext)

    def setting(self) -> None:
        key = self.random.choice([*SETTINGS, "kvConfigPath", "nobodys"])
        body = f"{key}={self.random.choice(['true', 'true', 'false'])}\n".encode()
        self.note(f"setting {body!r}")
        self.both(318, body=body)

    def heartbeat(self) -> None:
        name = self.random.choice(list(NAMES))
        ext = {"clusterName": NAMES[name], "brokerName": name, "brokerAddr": "10.0.0.1:10911"}
        self.note(f"heartbeat {ext}")
        self.both(904, ext)

    def note(self, what: str) -> None:
        self.performed.append(what)

    def follow(self) -> None:
        """Reads from RocketMQ which brokers are registered now."""
        table = fastjson.loads(self.lines[0].ask(106).body)["brokerAddrTable"]
        for name in NAMES:
            found = table.get(name, {}).get("brokerAddrs", {})
            self.members[name] = {int(broker_id): address for broker_id, address in found.items()}

    def compare(self) -> None:
        """Compares the responses to every query."""
        for code in (106, 206, 304, 311, 312, 313):
            self.both(code)
        for cluster in ("one", "two", "three"):
            self.both(224, {"cluster": cluster})
        for topic in TOPICS:
            for version in (479, 400):
                self.both(105, {"topic": topic}, version=version)
            self.both(105, {"topic": topic, "__ZONE_MODE": "true", "__ZONE_NAME": "z1"})
            self.both(101, {"namespace": "ORDER_TOPIC_CONFIG", "key": topic})
        for namespace in ("ORDER_TOPIC_CONFIG", "other"):
            self.both(219, {"namespace": namespace})
        for name, members in self.members.items():
            self.both(901, {"clusterName": NAMES[name], "brokerName": name})
            who = {"clusterName": NAMES[name], "brokerName": name, "brokerId": "0"}
            for address in members.values():
                version = b'{"counter":1,"stateVersion":1,"timestamp":5}'
                self.both(322, {**who, "brokerAddr": address}, version)


def _plain(response: Response) -> tuple[Any, ...]:
    """A response without what depends on hashing: the order of lists, and the address that represents all
    (304)."""
    remark = None if response.remark == "not set any response code" else response.remark
    body = _sorted(fastjson.loads(response.body)) if response.body else None
    if isinstance(body, dict) and "topicList" in body:
        body = {**body, "brokerAddr": "brokerAddr" in body}
    return response.code, remark, response.ext, body


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _sorted(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


@pytest.mark.parametrize("steps", [150, pytest.param(5000, marks=pytest.mark.soak)])
def test_both_nameservers_give_the_same_responses_whatever_brokers_do(
    addresses: tuple[str, str], steps: int
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    lines = NameserverConnection(addresses[0]), NameserverConnection(addresses[1])
    scenario = NameserverScenario(lines, seed)
    try:
        for _ in range(steps):
            scenario.step()
            scenario.compare()
    except AssertionError as error:
        error.add_note(f"seed {seed}, the last steps:\n" + "\n".join(scenario.performed[-12:]))
        raise
    finally:
        for line in lines:
            line.close()


def test_both_nameservers_show_the_same_settings(addresses: tuple[str, str]) -> None:
    shown = [
        dict(line.split("=", 1) for line in call(address, 319).body.decode().splitlines())
        for address in addresses
    ]
    for settings in shown:
        for key in FIELDS_OF_PLACE:
            settings.pop(key, None)
    java, ours = shown
    assert ours.keys() >= OF_OURS_ALONE
    assert {key: value for key, value in ours.items() if key not in OF_OURS_ALONE} == java


@pytest.mark.skipif(
    in_use() is not REFERENCE, reason=f"missing: RocketMQ {REFERENCE.version}, whose bytes EpochMQ writes"
)
def test_json_of_routes_and_groups_is_the_same_to_the_byte(addresses: tuple[str, str]) -> None:
    topics = {topic: {"topicName": topic, "perm": 6} for topic in ("Exact", "Ünïcode")}
    body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": topics}}).encode()
    ext = {"clusterName": "x", "brokerName": "exact", "haServerAddr": "h:1", "enableActingMaster": "false"}
    lines = [NameserverConnection(address) for address in addresses]
    try:
        for line in lines:
            for broker_id in ("0", "1"):
                who = {
                    **ext,
                    "brokerId": broker_id,
                    "brokerAddr": f"10.1.1.{broker_id}:1",
                    "__ZONE_NAME": "zürich",
                }
                assert line.ask(103, who, body).code == 0
        for topic in topics:
            for version in (479, 400):
                theirs, ours = (line.ask(105, {"topic": topic}, version=version).body for line in lines)
                assert ours == theirs
        group = {"clusterName": "x", "brokerName": "exact"}
        theirs, ours = (line.ask(901, group).body for line in lines)
        assert ours == theirs
    finally:
        for line in lines:
            for broker_id in ("0", "1"):
                line.ask(104, {**ext, "brokerId": broker_id, "brokerAddr": f"10.1.1.{broker_id}:1"})
            line.close()
