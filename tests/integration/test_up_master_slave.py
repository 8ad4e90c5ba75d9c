"""`epochmq up` of groups in the mode MasterSlave: a slave acts for a killed master, its due messages leave
for another group, `epochmq status` says so, the master returns, and a change restarts the master last."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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
  config: {mappedFileSizeCommitLog: 33554432, messageDelayLevel: 1s 7s%s}
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PairRun]:
    """A run that all tests share; each leaves it ready."""
    made = PairRun(tmp_path_factory.mktemp("pair"))
    try:
        made.up()
        yield made
    finally:
        made.ok("down")


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


def test_a_slave_acts_for_a_killed_master_and_the_status_says_so(run: PairRun) -> None:
    run.wait_settled()
    group = run.group()
    assert (group["mode"], group["controllerGroup"]) == ("MasterSlave", None)
    assert [one["brokerId"] for one in group["replicas"]] == [0, 1]
    master, slave = (one["address"] for one in group["replicas"])
    # The topic exists in both groups, so that due messages find a way.
    for address, body in ((master, b"first"), (run.other_master(), b"other")):
        create_topic(address)
        send(address, body)
    run.until(lambda: b'"orders"' in call(slave, ALL_TOPIC_CONFIG).body, "the slave has the topic")
    send(master, b"delayed", "DELAY\x012\x02")  # due in 7 s
    wait_copied(master, slave)
    killed_ms = time.time() * 1000
    with run.without_master(group["replicas"][0]):
        run.until(lambda: run.group()["actingMaster"] is not None, "a replica acts")
        acting = run.group()["actingMaster"]
        assert acting["pod"] == "pair-broker-1"
        assert killed_ms - 1000 <= acting["sinceMs"] <= time.time() * 1000
        assert run.roles()[1] == "acting"
        table = run.ok("status")
        assert "acting" in table
        run.until(lambda: run.group()["actingMaster"]["escaped"] == 1, "the delayed message has left")
        assert run.group()["actingMaster"]["escapeWaiting"] == 0
        output = run.ok(
            "consume", "orders", "--group", "readers", "--count", "3", "--timeout", "120",
            "--broker-group", "pair",
        )  # fmt: skip
        assert sorted(output.split()) == ["delayed", "first", "other"]
    run.wait_settled()
    assert run.group()["replicas"][1]["escaped"] == 1
    run.ok("produce", "orders", "second", "--broker-group", "pair")


def started(pid: int) -> int:
    """When a process started, in clock ticks since the start of the machine."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(") ")[2].split()[19])


def test_a_change_restarts_the_slave_first_and_then_the_master(run: PairRun) -> None:
    before = [one["pid"] for one in run.group()["replicas"]]
    run.file.write_text(GROUPS % ", maxMessageSize: 65536")
    run.up()
    group = run.group()
    assert group["phase"] == "Ready", "up returns when both have been restarted"
    master, slave = (one["pid"] for one in group["replicas"])
    assert not {master, slave} & set(before)
    assert started(slave) < started(master)


def test_promote_and_drain_say_that_the_master_is_fixed(run: PairRun) -> None:
    for verb in ("promote", "drain"):
        done = run.here(verb, "pair/1")
        assert done.returncode != 0
        assert "has no controllers" in done.stderr


def test_data_of_the_mode_is_not_used_under_controllers(run: PairRun) -> None:
    text = GROUPS % ", maxMessageSize: 65536"
    run.file.write_text(text.replace("mode: MasterSlave\n  replicas: 2", "replicas: 2"))
    done = run.here("up", "-f", str(run.file), "--detach")
    run.file.write_text(text)
    assert done.returncode != 0
    assert "was written without controllers and cannot be used with them" in done.stderr
    run.wait_settled()
