"""`epochmq up` of a master and a slave without controllers."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.up_run import GroupRun
from tests.support.process import wait_until
from tests.support.remoting import call, split_address

SEND_MESSAGE_V2, UPDATE_AND_CREATE_TOPIC, ALL_TOPIC_CONFIG, RUNTIME_INFO = 310, 17, 21, 28
GROUPS = """\
apiVersion: epochmq.io/v1alpha1
kind: ControllerGroup
metadata: {name: names}
spec: {replicas: 1}
---
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: pair}
spec:
  mode: MasterSlave
  replicas: 2
  brokerName: pair-a
  controllerGroup: names
  config: {mappedFileSizeCommitLog: 33554432, messageDelayLevel: 1s 20s%s}
---
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: single}
spec:
  mode: MasterSlave
  replicas: 1
  brokerName: single-b
  controllerGroup: names
  config: {mappedFileSizeCommitLog: 33554432}
"""


class PairRun(GroupRun):
    """A run of a group of two replicas and of another group, with one nameserver."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.file.write_text(GROUPS % "")

    def group(self) -> Any:
        """The status of the pair as JSON."""
        groups = self.status()["brokerGroups"]
        return next(one for one in groups if one["name"] == "pair")

    def other_master(self) -> str:
        """The address of the other group's only replica."""
        groups = self.status()["brokerGroups"]
        return str(next(one for one in groups if one["name"] == "single")["replicas"][0]["address"])

    def wait_settled(self) -> None:
        """Waits until the master serves and no slave acts for it."""

        def settled() -> bool:
            group = self.group()
            roles = [one["role"] for one in group["replicas"]]
            return (
                group["phase"] == "Ready" and group["actingMaster"] is None and roles == ["master", "slave"]
            )

        self.until(settled, "the master serves")

    def roles(self) -> list[str | None]:
        """The roles of the pair's replicas."""
        return [one["role"] for one in self.group()["replicas"]]

    @contextmanager
    def without_master(self, master: Any) -> Iterator[None]:
        """Kills the master, given its status, and keeps it from starting again: its port is in use."""
        host, port = split_address(master["address"])
        os.kill(master["pid"], signal.SIGKILL)
        with socket.socket() as claim:
            claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

            def claimed() -> bool:
                try:
                    claim.bind((host, port))
                except OSError:
                    return False
                return True

            wait_until(claimed, what="the master's port is free")
            claim.listen()
            yield


def end_of_log(address: str) -> str:
    """The end of a broker's log."""
    return str(json.loads(call(address, RUNTIME_INFO).body)["table"]["commitLogMaxOffset"])


def wait_copied(master: str, slave: str) -> None:
    """Waits until the slave has the master's log."""
    wait_until(lambda: end_of_log(slave) == end_of_log(master), what="the slave has the log")


def create_topic(address: str) -> None:
    """Creates the topic `orders` with four queues at a master."""
    ext = {
        "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert call(address, UPDATE_AND_CREATE_TOPIC, ext).code == 0


def send(address: str, body: bytes, properties: str = "") -> None:
    """Stores a message in queue 0."""
    ext = {
        "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
        "h": "0", "i": f"WAIT\x01true\x02{properties}", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    answer = call(address, SEND_MESSAGE_V2, ext, body)
    assert answer.code == 0, answer
