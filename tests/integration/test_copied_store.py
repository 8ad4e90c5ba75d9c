"""Two processes never act under one broker id: the copy of a replica's store is refused, by name, until a
person decides."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import acknowledged, check_equal, deliver_to
from tests.support.process import wait_until
from tests.support.remoting import Response, call
from tests.support.replica_group import ReplicaGroup

SETTLE_STORE = 20_011
SETTINGS = {"allAckInSyncStateSet": True, "minInSyncReplicas": 1, "registerNameServerPeriod": 10_000}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[ReplicaGroup, Member]]:
    """A group of three, and a broker with an empty store that is not started."""
    made = ReplicaGroup(tmp_path, [our_controller] * 3, [our_broker] * 4, broker=SETTINGS, octet=124)
    brokers = made.brokers.copy()
    copy = made.brokers.pop()
    try:
        made.start()
        deliver_to(made, b"first")
        yield made, copy
    finally:
        for one in brokers:
            one.process.kill()
        made.kill()


def replica_of(group: ReplicaGroup) -> tuple[Member, int]:
    """A replica that is not the master, and its broker id."""
    master = group.wait_master()
    replica = next(one for one in group.brokers if one is not master)
    group.wait_in_sync(3)
    found = group.wait_replicas()
    known = [*found["inSyncReplicas"], *found["notInSyncReplicas"]]
    ids = {one["brokerAddress"]: one["brokerId"] for one in known}
    return replica, ids[replica.address]


def copy_store(group: ReplicaGroup, replica: Member, copy: Member) -> None:
    """Stops a replica, copies its store, and starts the replica again."""
    replica.process.stop()
    source = group.store(group.brokers.index(replica))
    shutil.copytree(source, copy.config.parent / "store")
    replica.start()
    group.wait_in_sync(3)


def wait_output(member: Member, *texts: str) -> None:
    """Waits for a line of a process's output with all these texts."""

    def found() -> bool:
        lines = member.process.output_path.read_text().splitlines()
        return any(all(text in line for text in texts) for line in lines)

    wait_until(found, what=f"{member.name} logs {texts}")


def test_a_copy_of_a_running_replicas_store_gets_no_lease_and_no_role(
    group: tuple[ReplicaGroup, Member],
) -> None:
    made, copy = group
    replica, broker_id = replica_of(made)
    copy_store(made, replica, copy)
    copy.start()
    name = f"{made.NAME}/{broker_id}"
    wait_output(copy, replica.address, copy.address, f"`epochmq replica discard {name}`")
    for _ in range(5):
        deliver_to(made, b"beside the copy")
    made.wait_in_sync(3)
    made.elect(replica)
    wait_until(lambda: acknowledged(replica), what="the replica acknowledges")
    assert not acknowledged(copy)
    assert "is master under epoch" not in copy.process.output_path.read_text()


def test_a_restart_of_the_same_store_at_another_address_keeps_its_broker_id(
    group: tuple[ReplicaGroup, Member],
) -> None:
    made, moved = group
    replica, broker_id = replica_of(made)
    replica.process.stop()
    made.store(made.brokers.index(replica)).rename(moved.config.parent / "store")
    moved.start()
    made.brokers[made.brokers.index(replica)] = moved
    made.wait_in_sync(3)
    found = made.wait_replicas()
    assert {"brokerId": broker_id, "brokerAddress": moved.address}.items() <= next(
        one for one in found["inSyncReplicas"] if one["brokerId"] == broker_id
    ).items()


def test_an_older_copy_is_refused_also_after_the_newer_store_is_gone(
    group: tuple[ReplicaGroup, Member],
) -> None:
    made, copy = group
    replica, broker_id = replica_of(made)
    copy_store(made, replica, copy)
    replica.process.kill()
    copy.start()
    name = f"{made.NAME}/{broker_id}"
    wait_output(copy, "is older than", copy.address, f"`epochmq replica adopt {name}`")
    made.wait_in_sync(2)
    assert broker_id not in {one["brokerId"] for one in made.wait_replicas()["inSyncReplicas"]}


def settle(member: Member, *, adopt: bool) -> Response:
    """Decides about a refused store."""
    ext = {"adopt": str(adopt).lower(), "timeoutMs": "60000"}
    return call(member.address, SETTLE_STORE, ext, timeout_s=90)


def test_an_adopted_older_copy_catches_up_under_the_same_broker_id(
    group: tuple[ReplicaGroup, Member],
) -> None:
    made, copy = group
    replica, broker_id = replica_of(made)
    copy_store(made, replica, copy)
    deliver_to(made, b"after the copy")
    replica.process.kill()
    copy.start()
    wait_output(copy, "is older than")
    response = settle(copy, adopt=True)
    assert (response.code, response.ext.get("brokerId")) == (0, str(broker_id)), response
    made.brokers[made.brokers.index(replica)] = copy
    made.wait_in_sync(3)
    check_equal(made)
    replica.start()
    wait_output(replica, "older or diverged copy", copy.address)
    again = settle(replica, adopt=True)
    assert again.code != 0
    assert copy.address in (again.remark or "")
    replica.process.kill()


def test_a_discarded_copy_joins_the_group_under_another_broker_id(
    group: tuple[ReplicaGroup, Member],
) -> None:
    made, copy = group
    replica, broker_id = replica_of(made)
    copy_store(made, replica, copy)
    copy.start()
    wait_output(copy, "`epochmq replica discard")
    response = settle(copy, adopt=False)
    assert (response.code, response.ext.get("brokerId")) == (0, "4"), response
    made.brokers.append(copy)
    made.wait_in_sync(4)
    assert broker_id in {one["brokerId"] for one in made.wait_replicas()["inSyncReplicas"]}
    refused = settle(copy, adopt=True)
    assert "do not refuse" in (refused.remark or "")
    copy.process.stop()
    copy.start()
    made.wait_in_sync(4)
