"""`epochmq down GROUP`, `logs` and `restart`, with real processes."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.up_run import COMMAND, GroupRun, UpRun
from tests.support.process import wait_until

GROUPS = """
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: orders}
spec: {replicas: 1}
---
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: bills}
spec: {replicas: 1}
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[UpRun]:
    made = UpRun(tmp_path, "groups")
    made.file.write_text(GROUPS)
    made.up()
    try:
        yield made
    finally:
        made.here("down")


def test_one_group_is_stopped_and_followed_while_the_other_serves(run: UpRun, tmp_path: Path) -> None:
    output = tmp_path / "followed"
    with output.open("wb") as file:
        following = subprocess.Popen(
            [*COMMAND, "logs", "-f", "-n", "1", "--state", str(run.state)],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        last = run.ok("logs", "bills/0", "-n", "1")
        assert last, "a broker has logged its start"
        wait_until(lambda: b"bills-broker-0" in output.read_bytes(), what="the last lines are printed")

        printed = run.ok("down", "bills")
        assert "bills-broker-0: stopped\n" in printed
        assert "bills-nameserver-0: stopped\n" in printed
        assert "orders" not in printed
        assert [group["name"] for group in run.status()["brokerGroups"]] == ["orders"]
        pods = ["orders-broker-0", "orders-nameserver-0"]
        assert sorted(run.ok("status", "-o", "name").split()) == pods
        assert yaml.safe_load(run.ok("status", "-o", "yaml"))["brokerGroups"][0]["name"] == "orders"
        assert all(pod in run.ok("status", "-o", "wide") for pod in pods)
        assert (run.state / "volumes" / "bills-broker-0").is_dir()
        run.ok("produce", "t", "hello")

        run.up()  # the other group comes back with its data
        assert {group["name"] for group in run.status()["brokerGroups"]} == {"orders", "bills"}

        def shows_the_new_start() -> bool:
            text = output.read_bytes()
            return text.count(b"bills-broker-0") > 1 and b"orders-broker-0" in text

        wait_until(shows_the_new_start, what="the logs are followed over the restart")
    finally:
        following.terminate()
        following.wait()
    assert b"Traceback" not in output.read_bytes()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[GroupRun]:
    made = GroupRun(tmp_path)
    made.up()
    try:
        yield made
    finally:
        made.here("down")


def test_the_brokers_of_a_group_restart_one_at_a_time_and_no_send_fails(three: GroupRun) -> None:
    three.until(three.whole, "all are in sync")
    three.ok("topic", "create", "orders-sent", "--queues", "1")
    before = {one["pod"]: one["pid"] for one in three.group()["replicas"]}
    master = three.wait_master()["pod"]
    done, failed = threading.Event(), list[str]()
    sent = 0

    def send() -> None:
        nonlocal sent
        while not done.is_set():
            result = three.here("produce", "orders-sent", f"message {sent}", "--timeout", "60")
            if result.returncode:
                failed.append(result.stderr)
            sent += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        printed = three.ok("restart", "orders", "--timeout", "120").splitlines()
    finally:
        done.set()
        sender.join()
    assert not failed, failed
    assert sent > 0
    assert [line.partition(":")[0] for line in printed][-1] == master, "the master restarts last"
    after = {one["pod"]: one["pid"] for one in three.group()["replicas"]}
    assert sorted(line.partition(":")[0] for line in printed) == sorted(after)
    assert all(after[pod] not in (None, before[pod]) for pod in before)
