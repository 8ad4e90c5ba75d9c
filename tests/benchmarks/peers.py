"""Starts the two programs that are measured, with the same settings."""

from __future__ import annotations

import os
from pathlib import Path

from tests.benchmarks.machine import memory_dict
from tests.interop.java_env import OPEN_INTERNALS, java_classpath
from tests.support.cluster import Cluster, OurCluster, Settings, our_process
from tests.support.process import ManagedProcess
from tests.support.remoting import call

UPDATE_AND_CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
QUEUES = 8
OCTET = 57

# All other settings are RocketMQ's defaults. The long queue time-outs avoid rejections on a busy machine.
SETTINGS: Settings = {
    "mappedFileSizeCommitLog": 1024 * 1024 * 1024,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "flushDiskType": "ASYNC_FLUSH",
    "traceTopicEnable": False,
}
FILTER_SETTINGS: Settings = {"enablePropertyFilter": True}
"""What pulls with expressions need besides."""
BROKER_HEAP_MB = 2048
NAMESERVER_HEAP_MB = 256


def java_process(main: str, config: Path, home: Path, heap_mb: int, name: str) -> ManagedProcess:
    """A Java process with the G1 collector and a heap of fixed size."""
    command = [
        "java",
        "-server",
        f"-Xms{heap_mb}m",
        f"-Xmx{heap_mb}m",
        "-XX:+UseG1GC",
        "-Djava.net.preferIPv4Stack=true",
        f"-Duser.home={home}",
        *OPEN_INTERNALS,
        "-cp",
        java_classpath(),
        main,
        "-c",
        str(config),
    ]
    return ManagedProcess(command, name=name, directory=home, env={"ROCKETMQ_HOME": str(home)})


class FullSizeJavaCluster(Cluster):
    """RocketMQ with the G1 collector and a heap of 2 GB for the broker."""

    def _nameserver(self, config: Path) -> ManagedProcess:
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        return java_process(
            main, config, self.directory / "nameserver", NAMESERVER_HEAP_MB, "java nameserver"
        )

    def _broker(self, config: Path) -> ManagedProcess:
        main = "org.apache.rocketmq.broker.BrokerStartup"
        return java_process(main, config, self.directory / "broker", BROKER_HEAP_MB, "java broker")


class CheckoutCluster(OurCluster):
    """EpochMQ of another checkout, which has its own virtual environment."""

    def __init__(self, checkout: Path, directory: Path, *, broker: Settings, octet: int) -> None:
        self._python = str(checkout / ".venv" / "bin" / "python")
        super().__init__(directory, broker=broker, octet=octet)

    def _nameserver(self, config: Path) -> ManagedProcess:
        return our_process("nameserver", config, self._python)

    def _broker(self, config: Path) -> ManagedProcess:
        return our_process("broker", config, self._python)


class Peer:
    """A running nameserver and broker that are measured."""

    cluster: Cluster

    def __init__(
        self, name: str, directory: Path, checkout: Path | None = None, *, filters: bool = False
    ) -> None:
        """`name` is ours or java, or any name of the EpochMQ in `checkout`. `filters`: it serves pulls with
        expressions, which an earlier EpochMQ may not know."""
        self.name = name
        settings = {**SETTINGS, **FILTER_SETTINGS} if filters else SETTINGS
        if checkout is not None:
            self.cluster = CheckoutCluster(checkout, directory / name, broker=settings, octet=OCTET)
        else:
            kind = {"ours": OurCluster, "java": FullSizeJavaCluster}[name]
            self.cluster = kind(directory / name, broker=settings, octet=OCTET)

    @property
    def broker_pid(self) -> int:
        """The process id of the broker."""
        return self.cluster.broker_process.pid

    def create_topic(self, topic: str) -> None:
        """Creates a topic of `QUEUES` queues."""
        header = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        response = call(self.cluster.broker_address, UPDATE_AND_CREATE_TOPIC, header)
        assert response.code == 0, f"{self.name}: topic {topic} not created: {response}"

    def messages(self, topic: str) -> int:
        """The number of messages in the queues of the topic."""
        return sum(self.max_offset(topic, queue) for queue in range(QUEUES))

    def max_offset(self, topic: str, queue: int) -> int:
        """The offset behind the last message of a queue."""
        header = {"topic": topic, "queueId": str(queue)}
        return int(call(self.cluster.broker_address, GET_MAX_OFFSET, header).ext["offset"])

    def memory(self) -> dict[str, dict[str, float]]:
        """The present resident memory of both processes."""
        return {
            "broker": memory_dict(self.broker_pid),
            "nameserver": memory_dict(self.cluster.nameserver_process.pid),
        }

    def cpu_s(self) -> float:
        """The CPU time of the broker so far, in seconds."""
        stat = Path(f"/proc/{self.broker_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
