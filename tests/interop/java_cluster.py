"""RocketMQ's own nameserver and broker as processes, with the interface of `tests.support.cluster`; and each
of them together with EpochMQ's counterpart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.interop.java_env import NO_TLS, TLS, JavaProcess
from tests.support.cluster import Cluster, Settings, our_process
from tests.support.process import ManagedProcess

NO_TIMER_MESSAGES: Settings = {"timerFlushIntervalMs": 60_000}
"""Settings of brokers that get no timer messages. At each flush, by default once a second, RocketMQ's broker
compares 39 MB of the timer wheel byte by byte, which takes 13 % of a core."""


def tls_mode(config: Path) -> tuple[str, ...]:
    """Options of a JVM whose configuration names a certificate, or none. RocketMQ's servers do not use that
    certificate: they make one themselves."""
    return TLS if "tls.server.certPath" in config.read_text() else NO_TLS


def java_nameserver(config: Path, *, jvm: Sequence[str] = ()) -> ManagedProcess:
    """RocketMQ's nameserver, with its files in the folder of its configuration. `jvm`: further options."""
    return JavaProcess(
        "org.apache.rocketmq.namesrv.NamesrvStartup",
        ["-c", str(config)],
        home=config.parent,
        name="java nameserver",
        heap_mb=128,
        jvm=[*tls_mode(config), *jvm],
    )


def java_broker(config: Path, *, jvm: Sequence[str] = ()) -> ManagedProcess:
    """RocketMQ's broker, with its files in the folder of its configuration. `jvm`: further options."""
    return JavaProcess(
        "org.apache.rocketmq.broker.BrokerStartup",
        ["-c", str(config)],
        home=config.parent,
        name="java broker",
        heap_mb=512,
        jvm=["-XX:MaxDirectMemorySize=512m", *tls_mode(config), *jvm],
    )


class JavaCluster(Cluster):
    """RocketMQ's nameserver and broker: the reference for the tests."""

    def _nameserver(self, config: Path) -> ManagedProcess:
        return java_nameserver(config)

    def _broker(self, config: Path) -> ManagedProcess:
        return java_broker(config)


class OurBrokerCluster(Cluster):
    """EpochMQ's broker, registered at RocketMQ's nameserver."""

    def _nameserver(self, config: Path) -> ManagedProcess:
        return java_nameserver(config)

    def _broker(self, config: Path) -> ManagedProcess:
        return our_process("broker", config)


class OurNameserverCluster(Cluster):
    """RocketMQ's broker, registered at EpochMQ's nameserver."""

    def _nameserver(self, config: Path) -> ManagedProcess:
        return our_process("nameserver", config)

    def _broker(self, config: Path) -> ManagedProcess:
        return java_broker(config)
