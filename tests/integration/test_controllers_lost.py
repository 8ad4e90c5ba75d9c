"""All controllers lose their storage. The brokers know their ids, epochs and logs, and `epochmq controllers
adopt` rebuilds the group from them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_processes import our_broker, our_controller
from tests.support.group_traffic import check_equal, deliver_to, read_queue
from tests.support.process import wait_until
from tests.support.replica_group import ReplicaGroup

SETTINGS = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2, "registerNameServerPeriod": 10_000}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    """A group whose master changed once, with messages of two epochs."""
    made = ReplicaGroup(tmp_path, [our_controller] * 3, [our_broker] * 3, broker=SETTINGS, octet=125)
    try:
        made.start()
        deliver_to(made, b"first")
        made.elect(next(one for one in made.brokers if one is not made.master()))
        made.wait_in_sync(3)
        deliver_to(made, b"second")
        yield made
    finally:
        made.kill()


def lose_controllers(group: ReplicaGroup) -> None:
    """Replaces the storage of every controller by an empty one."""
    for controller in group.controllers:
        controller.process.kill()
    for number, controller in enumerate(group.controllers):
        shutil.rmtree(group.directory / f"controller-{number}" / "store")
        controller.start()
    group.wait_leader()


def adopt(group: ReplicaGroup, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    arguments = [*options]
    for controller in group.controllers:
        arguments += ["--controller", controller.address]
    for broker in group.brokers:
        arguments += ["--broker", broker.address]
    command = [sys.executable, "-m", "epochmq", "controllers", "adopt", "--timeout", "60", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("restarted", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_forgotten_group_is_rebuilt_from_its_brokers(group: ReplicaGroup, *, restarted: bool) -> None:
    before = group.epoch()
    if restarted:
        for broker in group.brokers:
            broker.process.stop()
    lose_controllers(group)
    if restarted:
        for broker in group.brokers:
            broker.start()
        wait_until(lambda: "would be" in adopt(group, "--dry-run").stdout, what="all brokers respond")
    assert group.replicas() is None
    planned = adopt(group, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "would be the master of epoch" in planned.stdout
    assert group.replicas() is None
    done = adopt(group)
    assert done.returncode == 0, done.stderr
    group.wait_in_sync(3)
    assert group.epoch() > before
    master = deliver_to(group, b"third")
    assert [one.body for one in read_queue(master)] == [b"first", b"second", b"third"]
    check_equal(group)
    again = adopt(group)
    assert again.returncode != 0
    assert "there is nothing to adopt" in again.stderr


def test_a_missing_broker_prevents_it_unless_it_is_given_up(group: ReplicaGroup) -> None:
    master = group.master()
    assert master is not None
    lost = next(one for one in group.brokers if one is not master)
    lost.process.kill()
    lose_controllers(group)
    refused = adopt(group)
    assert refused.returncode != 0
    assert lost.address in refused.stderr
    assert "--accept-missing" in refused.stderr
    assert group.replicas() is None
    done = adopt(group, "--accept-missing")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: len(group.in_sync()) == 2, what="the two others are in sync")
    lost.start()
    group.wait_in_sync(3)
    master = deliver_to(group, b"third")
    assert [one.body for one in read_queue(master)] == [b"first", b"second", b"third"]
