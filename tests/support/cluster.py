"""A nameserver and a broker as real processes, configured by RocketMQ's own keys. `OurCluster` runs EpochMQ;
`tests.interop.java_cluster.JavaCluster` runs RocketMQ behind the same interface."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.net import free_port, loopback
from tests.support.process import ManagedProcess, ProcessFailedError
from tests.support.remoting import call

GET_BROKER_CLUSTER_INFO = 106
START_TIMEOUT_S = 180  # a JVM on a busy machine; ours takes a second

Value = str | int | bool
Settings = Mapping[str, Value]
User = tuple[str, str]
"""Name and password."""


class ClientAccess(NamedTuple):
    """How clients reach a cluster."""

    nameserver: str
    jvm: tuple[str, ...] = ()
    """Options of a JVM, such as those of TLS."""
    user: User | None = None
    """Who signs requests; None: they are not signed."""
    administrator: User | None = None
    """Who signs those of `mqadmin`."""


def access_of(cluster: Cluster | ClientAccess | str) -> ClientAccess:
    """That of clients of a cluster. A string is the nameserver's address of one that serves everybody."""
    if isinstance(cluster, str):
        return ClientAccess(cluster)
    return cluster.access if isinstance(cluster, Cluster) else cluster


NEVER_BUSY: Settings = {
    "waitTimeMillsInSendQueue": 60_000,
    "waitTimeMillsInPullQueue": 60_000,
    "waitTimeMillsInLitePullQueue": 60_000,
    "waitTimeMillsInAckQueue": 60_000,
    "waitTimeMillsInTransactionQueue": 60_000,
    "waitTimeMillsInHeartbeatQueue": 60_000,
    "waitTimeMillsInAdminBrokerQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
    "syncFlushTimeout": 60_000,
}
"""A busy machine must not look like a busy broker, nor its disk like a broken one."""
NEVER_BUSY_YAML = json.dumps(dict(NEVER_BUSY))[1:-1]
"""The same as entries of a resource's `config`, between braces."""


def properties(settings: Settings) -> str:
    """Settings as the text of a `.conf` file."""
    lines = (
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    )
    return "\n".join(lines) + "\n"


class Cluster:
    """A nameserver and one broker under `directory`; `broker` and `nameserver` add to the settings or win.

    `start` returns once the nameserver lists the broker, which is when clients can use it."""

    def __init__(
        self,
        directory: Path,
        *,
        broker: Settings | None = None,
        nameserver: Settings | None = None,
        octet: int = 56,
    ) -> None:
        self.directory = directory
        nameserver_host, broker_host = loopback(octet), loopback(octet)
        nameserver_port, broker_port = free_port(nameserver_host), free_port(broker_host)
        self.nameserver_settings: dict[str, Value] = {
            "listenPort": nameserver_port,
            "bindAddress": nameserver_host,
            "kvConfigPath": str(directory / "nameserver" / "kvConfig.json"),
            "configStorePath": str(directory / "nameserver" / "namesrv.properties"),
            **(nameserver or {}),
        }
        self.nameserver_address = f"{nameserver_host}:{nameserver_port}"
        self.broker_address = f"{broker_host}:{broker_port}"
        self.store = directory / "broker" / "store"
        self.broker_settings: dict[str, Value] = {
            "brokerClusterName": "TestCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": broker_host,
            "brokerIP2": broker_host,
            "bindAddress": broker_host,
            "listenPort": broker_port,
            "haListenPort": broker_port + 1,
            "namesrvAddr": self.nameserver_address,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "mappedFileSizeCommitLog": 128 * 1024 * 1024,
            "maxHashSlotNum": 500_000,
            "maxIndexNum": 2_000_000,
            "flushDiskType": "ASYNC_FLUSH",
            "autoCreateTopicEnable": True,
            "traceTopicEnable": True,
            **NEVER_BUSY,
            **(broker or {}),
        }
        self.nameserver_process = self._nameserver(self._write("nameserver", self.nameserver_settings))
        self.broker_process = self._broker(self._write("broker", self.broker_settings))

    @property
    def cluster_name(self) -> str:
        """Name the broker registers its cluster under."""
        return str(self.broker_settings["brokerClusterName"])

    @property
    def broker_name(self) -> str:
        """Name of the broker group."""
        return str(self.broker_settings["brokerName"])

    @property
    def access(self) -> ClientAccess:
        """How clients reach it that can use TLS."""
        return ClientAccess(self.nameserver_address)

    @property
    def inner_access(self) -> ClientAccess:
        """How `mqadmin` and the other clients reach it."""
        return self.access

    def _write(self, name: str, settings: Settings) -> Path:
        path = self.directory / name / f"{name}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(properties(settings))
        return path

    def _nameserver(self, config: Path) -> ManagedProcess:
        raise NotImplementedError

    def _broker(self, config: Path) -> ManagedProcess:
        raise NotImplementedError

    def start(self) -> None:
        """Starts both; on failure both are ended and their last output is in the error."""
        try:
            self.start_nameserver()
            self.start_broker()
        except BaseException:
            self.stop()
            raise

    def start_nameserver(self) -> None:
        """Starts the nameserver and waits until it answers."""
        self.nameserver_process.start()
        self.nameserver_process.wait_until(
            lambda: self._cluster_info() is not None, timeout_s=START_TIMEOUT_S, what="answering"
        )

    def start_broker(self) -> None:
        """Starts the broker, or restarts it with its present settings, and waits until it is registered."""
        self._write("broker", self.broker_settings)
        self.broker_process.start()
        self.broker_process.wait_until(
            lambda: self.broker_registered() and self.broker_answers(),
            timeout_s=START_TIMEOUT_S,
            what=f"registered at {self.nameserver_address}",
        )

    def stop_broker(self) -> int | None:
        """Orderly stop (SIGTERM) of the broker; its exit status."""
        return self.broker_process.stop()

    def kill_broker(self) -> None:
        """kill -9 of the broker."""
        self.broker_process.kill()

    def abandon(self) -> None:
        """kill -9 of both, after the last look at the store."""
        self.broker_process.kill()
        self.nameserver_process.kill()

    def stop(self) -> None:
        """Orderly end of the broker, then of the nameserver."""
        self.broker_process.stop()
        self.nameserver_process.stop()

    def broker_registered(self) -> bool:
        """Whether the nameserver lists the broker's address."""
        info = self._cluster_info()
        return info is not None and f'"{self.broker_address}"' in info

    def _cluster_info(self) -> str | None:
        try:
            response = call(self.nameserver_address, GET_BROKER_CLUSTER_INFO, timeout_s=2)
        except OSError:
            return None
        return response.body.decode() if response.code == 0 else None

    def broker_answers(self) -> bool:
        """Whether the broker takes requests. (A nameserver lists one that was killed a moment longer.)"""
        try:
            call(self.broker_address, 0, timeout_s=2)
        except OSError:
            return False
        return True

    def logs(self, characters: int = 3000) -> str:
        """The end of what both processes wrote, for the report of a failure."""
        processes = (self.nameserver_process, self.broker_process)
        return "\n".join(process.report(characters) for process in processes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, ProcessFailedError):
            error.add_note(self.logs())
        self.stop()


def our_process(role: str, config: Path, python: str = sys.executable) -> ManagedProcess:
    """`epochmq ROLE` (nameserver or broker), living in the folder of its configuration."""
    command = [python, "-m", "epochmq", role, "--config", str(config)]
    return ManagedProcess(command, name=role, directory=config.parent)


class OurCluster(Cluster):
    """EpochMQ's nameserver and broker."""

    def _nameserver(self, config: Path) -> ManagedProcess:
        return our_process("nameserver", config)

    def _broker(self, config: Path) -> ManagedProcess:
        return our_process("broker", config)
