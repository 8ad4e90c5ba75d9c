"""`epochmq cluster list` and `epochmq controller list`, as people type them, at a replica group."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import EpochmqCommand
from tests.support.group_processes import our_broker, our_controller
from tests.support.replica_group import ReplicaGroup

pytestmark = pytest.mark.timeout(300)


def test_a_replica_group_and_its_controllers_are_listed(tmp_path: Path) -> None:
    group = ReplicaGroup(tmp_path / "group", [our_controller], [our_broker] * 2, octet=79)
    (tmp_path / "home").mkdir()
    command = EpochmqCommand(group.nameserver.address, tmp_path / "home")
    group.start()
    try:
        master = group.wait_master()
        group.wait_in_sync(2)
        (cluster,) = command.json("cluster", "list")
        assert {row["address"] for row in cluster["brokers"]} == {one.address for one in group.brokers}
        assert [row["address"] for row in cluster["brokers"] if row["role"] == "master"] == [master.address]
        found = command.json("controller", "list")
        assert [row["address"] for row in found["controllers"]] == [group.controllers[0].address]
        assert found["controllers"][0]["term"] > 0
        (listed,) = found["groups"]
        assert (listed["masterAddress"], len(listed["syncStateSet"])) == (master.address, 2)
        assert "leader" in command.text("controller", "list", group.controllers[0].address)
    finally:
        print(group.logs(4000))  # shown when the test failed
        group.kill()
