"""Snapshots keep all groups; a directory keeps the length of leases; the members command parses its
arguments."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from epochmq_controller.controller import config, lease_file
from epochmq_controller.controller.members_command import COMMAND
from epochmq_controller.replica_groups import rules, snapshot
from epochmq_controller.replica_groups.events import (
    AlterSyncStateSetEvent,
    CleanBrokerDataEvent,
    ElectMasterEvent,
)
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import (
    ControllerStateMachineSettings,
    EntryApplied,
    LeadershipChanged,
    SnapshotRestored,
)
from epochmq_dledger.members_command import parse
from epochmq_protocol.transport.group_members import MemberChange
from tests.unit.controller.peer_settings import WHO


def tables() -> ReplicaGroups:
    """Groups in every state: without a master, with one, with a SyncStateSet, with a dead master, with a
    removed id, with a new master and the members before it."""
    found = ReplicaGroups()
    for name in ("b", "a", "n", "ü"):
        for one in (3, 1, 2):
            for event in rules.apply_broker_id(
                found, "c", name, one if found.get(name) else 1, f"h:{one};x"
            ).events:
                found.apply(event)
    found.apply(ElectMasterEvent("a", True, 1))
    found.apply(AlterSyncStateSetEvent("a", frozenset({1, 2})))
    found.apply(ElectMasterEvent("b", True, 1))
    found.apply(ElectMasterEvent("b", False))
    found.apply(ElectMasterEvent("n", True, 1))
    found.apply(AlterSyncStateSetEvent("n", frozenset({1, 2, 3})))
    found.apply(ElectMasterEvent("n", True, 2))
    found.apply(CleanBrokerDataEvent("a", frozenset({2})))
    return found


def test_groups_are_the_same_after_a_snapshot() -> None:
    for groups in (tables(), ReplicaGroups()):
        data = snapshot.encode(groups)
        assert snapshot.decode(data).groups == groups.groups
        assert snapshot.encode(snapshot.decode(data)) == data


def test_the_snapshot_of_an_earlier_release_has_no_former_members() -> None:
    groups = tables()
    assert groups.groups["n"].former_members == {1, 3}
    data = snapshot.encode(groups)
    assert data.count(b"formerMembers") == 1
    restored = snapshot.decode(data.replace(b',"formerMembers":[1,3]', b""))
    assert restored.groups["n"].former_members == frozenset()
    groups.groups["n"].former_members = frozenset()
    assert restored.groups == groups.groups


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"version":2,"groups":[]}', b'{"version":1}', b'{"version":1,"groups":[{}]}']
)
def test_other_bytes_are_rejected_as_a_snapshot(data: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot of the controller's groups"):
        snapshot.decode(data)


def test_a_state_machine_continues_from_a_snapshot() -> None:
    state_machine = ControllerStateMachine(ControllerStateMachineSettings(), 0)
    state_machine.step(SnapshotRestored(tables()), 1)
    assert state_machine.groups.groups == tables().groups
    state_machine.step(LeadershipChanged(3), 2)
    state_machine.step(EntryApplied(9, 3, b""), 3)
    assert state_machine.leads
    assert state_machine.groups.groups == tables().groups


def test_a_controller_waits_for_longer_earlier_leases_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def note(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(lease_file.asyncio, "sleep", note)
    for lease_ms in (600, 600, 900, 400, 400):
        asyncio.run(lease_file.wait_for_longer_lease(tmp_path, lease_ms))
    assert waited == [pytest.approx(0.945)]
    assert (tmp_path / "lease").read_text() == "writeLeaseMs=400\n"
    (tmp_path / "lease").write_text("writeLeaseMs=soon\n")
    with pytest.raises(ValueError, match="writeLeaseMs=soon, expected a whole number"):
        asyncio.run(lease_file.wait_for_longer_lease(tmp_path, 400))


def test_own_settings_reach_the_raft_peer() -> None:
    text = WHO + "controllerSnapshotEntries=70\njoinControllerGroup=true\nwriteLeaseMs=900\n"
    raft = config.load(text).config.raft_settings()
    assert (raft.snapshot_entries, raft.joining, raft.shared_settings) == (70, True, "writeLeaseMs=900")
    plain = config.load(WHO).config.raft_settings()
    assert (plain.snapshot_entries, plain.joining) == (0, False)


def test_arguments_of_the_members_command_are_parsed() -> None:
    assert parse(["h:1"]) == ("h:1", MemberChange())
    assert parse(["h:1", "--add", "n3-my-host:2"]) == ("h:1", MemberChange("n3", "my-host:2"))
    assert parse(["h:1", "--remove", "n3"]) == ("h:1", MemberChange("n3"))
    for wrong in (
        [],
        ["h:1", "--add"],
        ["h:1", "--add", "n3"],
        ["h:1", "--add", "n3-h:1;n4-h:2"],
        ["a", "b"],
    ):
        with pytest.raises(ValueError, match=r"invalid arguments|expected"):
            parse(wrong)


@pytest.mark.parametrize(
    ("arguments", "status"), [(["--help"], 0), ([], 2), (["127.0.0.1:1"], 1), (["nowhere"], 1)]
)
def test_the_members_command_exits_with_a_status_and_an_explanation(
    arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMAND.run(arguments) == status
    output = capsys.readouterr()
    assert "epochmq controller members" in (output.err if status else output.out)


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b'{"version":1}', b"\xff", b"null"])
def test_bytes_that_are_no_snapshot_are_named(data: bytes) -> None:
    with pytest.raises(ValueError, match="no snapshot of the controller's groups"):
        snapshot.decode(data)


@pytest.mark.parametrize("field", ["nextBrokerId", "masterEpoch", "syncStateSetEpoch", "confirmedOffset"])
def test_a_snapshot_has_no_number_beyond_javas_range(field: str) -> None:
    group = {
        "clusterName": "c",
        "brokerName": "b",
        "nextBrokerId": 2,
        "masterId": 1,
        "masterEpoch": 1,
        "syncStateSet": [1],
        "syncStateSetEpoch": 1,
        "replicas": [[1, "h:1", "code"]],
        "confirmedOffset": 0,
    }
    assert snapshot.decode(json.dumps({"version": 1, "groups": [group]}).encode()).groups
    group[field] = 1 << 63
    with pytest.raises(ValueError, match="no snapshot of the controller's groups"):
        snapshot.decode(json.dumps({"version": 1, "groups": [group]}).encode())
