"""`epochmq up` with another number of controllers: the quorum changes one controller at a time, while clients
send."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.up_run import UpRun, alive
from tests.support.cluster import NEVER_BUSY_YAML
from tests.support.group_traffic import SEND_MESSAGE_V2, SUCCESS, send_header
from tests.support.process import wait_until
from tests.support.remoting import call

METADATA, GET_MAX_OFFSET = 1005, 30
PAUSE_S = 0.02
CONTROLLERS = """\
apiVersion: epochmq.io/v1alpha1
kind: ControllerGroup
metadata: {name: quorum}
spec: {replicas: %d, config: {heartBeatTimeIntervalMs: 500}}
"""
BROKERS = f"""\
---
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {{name: orders}}
spec:
  replicas: 1
  controllerGroup: quorum
  config: {{mappedFileSizeCommitLog: 33554432, {NEVER_BUSY_YAML}}}
"""


class QuorumRun(UpRun):
    """A run of controllers whose number changes, with or without a broker."""

    def __init__(self, directory: Path, brokers: str = "") -> None:
        super().__init__(directory, "quorum")
        self.brokers = brokers

    def write(self, controllers: int) -> None:
        """Writes the resources with this number of controllers."""
        self.file.write_text(CONTROLLERS % controllers + self.brokers)

    def up_with(self, controllers: int) -> None:
        """Runs `up` with this number of controllers."""
        self.write(controllers)
        self.up()

    def controllers(self) -> list[Any]:
        """The controllers that status shows."""
        return list(self.status()["controllers"])

    def members(self, controllers: list[Any]) -> set[str]:
        """The ids of the members as the leader knows them, once there is one: a leader that is starved for
        a moment is none."""
        found: set[str] = set()

        def led() -> bool:
            for one in controllers:
                ext = call(one["address"], METADATA).ext
                if ext.get("isLeader") == "true":
                    found.update(part.partition(":")[0] for part in ext["peers"].split(";") if part)
                    return True
            return False

        wait_until(led, what="a controller leads")
        return found

    def broker(self) -> Any:
        """The only broker."""
        return self.status()["brokerGroups"][0]["replicas"][0]

    def processes(self) -> set[str]:
        """The pods whose processes the supervisor has recorded."""
        records = json.loads((self.state / "pods.json").read_text())["pods"]
        return {one["pod"] for one in records if one["process"]}

    def configuration(self, controller: int) -> str:
        """The configuration that the controller reads at its next start."""
        return (self.state / "config" / f"quorum-controller-{controller}" / "namesrv.conf").read_text()


class Sender:
    """Sends messages to a broker, each until it is acknowledged, one after the other until it is closed."""

    def __init__(self, address: str) -> None:
        self.acknowledged: list[str] = []
        self._address = address
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        while not self._end.wait(PAUSE_S):
            body = f"message {len(self.acknowledged)}"
            header = send_header(0, f"{len(self.acknowledged):032X}")
            try:
                if call(self._address, SEND_MESSAGE_V2, header, body.encode()).code == SUCCESS:
                    self.acknowledged.append(body)
            except OSError:
                continue

    def wait_acknowledged(self) -> None:
        """Returns when a further message was acknowledged."""
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) > before, what="a message is acknowledged")

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[QuorumRun]:
    """A run that is stopped at the end."""
    made = QuorumRun(tmp_path)
    yield made
    made.here("down")


@pytest.mark.soak
def test_controllers_grow_from_one_to_five_and_shrink_to_three_while_messages_are_sent(
    run: QuorumRun,
) -> None:
    run.brokers = BROKERS
    run.up_with(1)
    broker, before = run.broker(), {one["pod"]: one["pid"] for one in run.controllers()}
    with Sender(broker["address"]) as sender:
        sender.wait_acknowledged()
        for number in (3, 5, 3):
            run.up_with(number)
            controllers = run.controllers()
            after = {one["pod"]: one["pid"] for one in controllers}
            assert run.members(controllers) == {f"n{n}" for n in range(number)}
            assert len(after) == number
            stay = before.keys() & after.keys()
            assert {pod: after[pod] for pod in stay} == {pod: before[pod] for pod in stay}, "none restarted"
            assert not any(alive(before[pod]) for pod in before.keys() - after.keys())
            sender.wait_acknowledged()
            before = after
    assert run.broker()["pid"] == broker["pid"], "the broker got the new addresses without a restart"
    # More than were acknowledged: a message without a response was sent again, or was the last one.
    queue = {"topic": "orders", "queueId": "0"}
    stored = call(broker["address"], GET_MAX_OFFSET, queue).ext["offset"]
    read = run.ok("consume", "orders", "--count", stored, "--timeout", "120")
    assert set(sender.acknowledged) <= set(read.splitlines())
    # The first controller, which once was a quorum of its own, now joins if it finds no log.
    os.kill(before["quorum-controller-0"], signal.SIGKILL)
    wait_until(lambda: "joinControllerGroup=true" in run.configuration(0), what="it starts again")
    run.up_with(3)
    assert run.members(run.controllers()) == {"n0", "n1", "n2"}


def test_a_change_that_a_killed_supervisor_began_is_completed(run: QuorumRun) -> None:
    run.up_with(1)
    run.write(3)
    killed = threading.Thread(target=run.try_up)
    killed.start()
    # A process that the supervisor started and has not recorded outlives a kill of the supervisor.
    wait_until(lambda: "quorum-controller-1" in run.processes(), what="the second controller's process")
    assert json.loads((run.state / "quorums.json").read_text())["quorum"]["running"] > 1
    pid = json.loads((run.state / "supervisor.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), what="the supervisor is gone")
    killed.join()
    run.up_with(3)
    assert run.members(run.controllers()) == {"n0", "n1", "n2"}
    run.ok("down")
    run.up_with(1)
    (controller,) = run.controllers()
    assert run.members([controller]) == {"n0"}
