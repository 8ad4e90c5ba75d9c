"""Pairs of brokers whose slave acts for the master, and their clients."""

from __future__ import annotations

import json
from pathlib import Path

from tests.interop.java_env import JavaProcess, compile_java
from tests.support.cluster import Settings
from tests.support.pair import Pair
from tests.support.process import ManagedProcess
from tests.support.remoting import call

GET_ROUTE, RUNTIME_INFO, ALL_CONSUMER_OFFSETS, UPDATE_AND_CREATE_TOPIC = 105, 28, 43, 17
NOT_ACTIVE_MS = 5000
ACTING: Settings = {
    "enableSlaveActingMaster": True,
    "slaveReadEnable": True,
    "enableAutoInSyncReplicas": True,
    "inSyncReplicas": 2,
    "recallMessageEnable": True,
    "totalReplicas": 1,  # no pre-online phase: each broker goes into service at once
    "brokerNotActiveTimeoutMillis": NOT_ACTIVE_MS,
}
SUPPORTING = {
    "supportActingMaster": True,
    "notifyMinBrokerIdChanged": True,
    "scanNotActiveBrokerInterval": 500,
}


def is_active(address: str) -> bool:
    """Whether a broker runs the special services, as it says itself."""
    response = call(address, RUNTIME_INFO)
    # RocketMQ's broker answers with an error while it starts.
    return response.code == 0 and json.loads(response.body)["table"]["brokerActive"] == "true"


class Consumer:
    """A consumer of RocketMQ's Java client, as a process."""

    def __init__(
        self,
        pair: Pair,
        home: Path,
        *,
        orderly: bool = False,
        pause_ms: int = 0,
        group: str = "readers",
        topic: str = "orders",
    ) -> None:
        mode = "orderly" if orderly else "concurrent"
        self.process: ManagedProcess = JavaProcess(
            "SteadyConsumer",
            [pair.nameserver.address, topic, group, mode, str(pause_ms)],
            home=home,
            classes=compile_java("SteadyConsumer.java"),
            heap_mb=128,
            # A lock that the broker does not renew ends after 6 s instead of 30 s.
            jvm=[
                "-Drocketmq.client.rebalance.lockInterval=1000",
                "-Drocketmq.client.rebalance.lockMaxLiveTime=6000",
                "-Drocketmq.client.rebalance.waitInterval=1000",
            ],
        )

    def __enter__(self) -> Consumer:
        self.process.start()
        self.process.wait_until(lambda: "started" in self.process.output(100_000), what="started")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self.process.report())
        self.process.stop()

    @property
    def sightings(self) -> list[tuple[int, int, str, str]]:
        """What it has consumed: queue, offset, body, name of the broker."""
        found = []
        for line in self.process.output(10_000_000).splitlines():
            words = line.split()
            if len(words) == 6 and words[0] == "message":
                found.append((int(words[1]), int(words[2]), words[4], words[5]))
        return found

    @property
    def messages(self) -> list[tuple[int, int, str]]:
        """What it has consumed: queue, offset, body."""
        return [sighting[:3] for sighting in self.sightings]

    @property
    def bodies(self) -> list[str]:
        """The bodies of what it has consumed."""
        return [body for _, _, body in self.messages]
