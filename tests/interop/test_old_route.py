"""RocketMQ's clients with an old route, whose address now belongs to another group's broker, as it may happen
where addresses are reused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.mqadmin import MqAdmin, Step
from tests.support.admin import create_topic
from tests.support.cluster import GET_BROKER_CLUSTER_INFO, OurCluster, Value, our_process, properties
from tests.support.net import loopback
from tests.support.process import ManagedProcess
from tests.support.remoting import call

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

GET_ALL_TOPIC_CONFIG = 21
OWN, ASTRAY = "Own", "Astray"
REFUSAL = "the request is for the broker broker-b, this one is broker-a"
OTHER = "broker-b"


def other_broker(cluster: OurCluster, host: str) -> ManagedProcess:
    """A broker with another name at the same port of `host`, which registers the first broker's address."""
    directory = cluster.directory / OTHER
    directory.mkdir()
    settings: dict[str, Value] = {
        **cluster.broker_settings,
        "brokerName": OTHER,
        "bindAddress": host,
        "storePathRootDir": str(directory / "store"),
        "storePathCommitLog": str(directory / "store" / "commitlog"),
    }
    config = directory / "broker.conf"
    config.write_text(properties(settings))
    return our_process("broker", config)


def brokers(nameserver: str) -> str:
    """The nameserver's list of brokers."""
    return call(nameserver, GET_BROKER_CLUSTER_INFO).body.decode()


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[MqAdmin]:
    with OurCluster(tmp_path, octet=77) as cluster:
        host = loopback(77)
        other = other_broker(cluster, host)
        other.start()
        made = MqAdmin(cluster, tmp_path / "admin")
        try:
            port = cluster.broker_address.rpartition(":")[2]
            nameserver = cluster.nameserver_address
            other.wait_until(lambda: OTHER in brokers(nameserver), timeout_s=120, what="registered")
            create_topic(nameserver, cluster.broker_address, OWN, 1)
            create_topic(nameserver, f"{host}:{port}", ASTRAY, 1)
            yield made
        finally:
            made.close()
            other.stop()


def test_a_broker_rejects_sends_and_pulls_that_name_another_broker(admin: MqAdmin) -> None:
    own, astray = admin.run(
        [
            Step(f"sendMessage -t {OWN} -p mine -b broker-a -i 0"),
            Step(f"sendMessage -t {ASTRAY} -p astray -b {OTHER} -i 0"),
        ]
    )
    assert "SEND_OK" in own.out
    assert REFUSAL in astray.error
    own, astray = admin.run(
        [
            Step(f"consumeMessage -t {OWN} -b broker-a -i 0"),
            Step(f"consumeMessage -t {ASTRAY} -b {OTHER} -i 0"),
        ]
    )
    assert "BODY: mine" in own.out
    assert REFUSAL in astray.out
    topics = call(admin.cluster.broker_address, GET_ALL_TOPIC_CONFIG).body.decode()
    assert OWN in topics
    assert ASTRAY not in topics  # a message would have created it
