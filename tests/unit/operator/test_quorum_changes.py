"""Tests the local driver of changes of the number of controllers against a quorum in memory: it is killed
before every write, and a check reads every configuration that pods would start with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from epochmq_operator.local import quorum_changes
from epochmq_operator.local.keeper import PodKeeper
from epochmq_operator.local.quorum_changes import QuorumChanges, QuorumChangesContext, initial_quorums
from epochmq_operator.local.readiness import ControllerRaftState, Readiness
from epochmq_operator.local.state_directory import PodPhase, QuorumRecord, StateDirectory
from epochmq_operator.pod_rendering import (
    controller_pod_name,
    pods_of,
    render_pods,
)
from epochmq_operator.pods import (
    Component,
    PodPlacement,
)
from epochmq_operator.resources import Resources, load_resources, with_controller_count
from epochmq_protocol import properties
from epochmq_protocol.transport import RemotingClient
from epochmq_protocol.transport.group_members import GroupMembers, MemberChange

QUORUM = "apiVersion: epochmq.io/v1alpha1\nkind: ControllerGroup\nmetadata: {name: q}\nspec: {replicas: %d}\n"


class KilledError(Exception):
    """The supervisor was killed."""


class CountedStateDirectory(StateDirectory):
    """Lets a test count and prevent writes of quorums.json."""

    quorum: FakeQuorum

    def write_quorums(self, quorums: dict[str, QuorumRecord]) -> None:
        self.quorum.count_write()
        super().write_quorums(quorums)
        self.quorum.check()


class FakeQuorum:
    """A quorum and its pods. `members` is None while the log names none. `writes_left`: the supervisor is
    killed before a further write."""

    def __init__(self, directory: Path) -> None:
        self.state = CountedStateDirectory(directory)
        self.state.quorum = self
        self.state.create()
        self.members: frozenset[str] | None = None
        self.writes_left = 1000
        self.pods = 0

    def resources(self, replicas: int) -> Resources:
        return load_resources([("f", QUORUM % replicas)])

    def begin(self, replicas: int) -> None:
        """The first `up`."""
        self.state.write_quorums(initial_quorums(self.state, self.resources(replicas), ()))
        self.pods = replicas

    def count_write(self) -> None:
        if self.writes_left == 0:
            raise KilledError
        self.writes_left -= 1

    def configured(self) -> dict[str, tuple[frozenset[str], bool]]:
        """The members, and whether it joins, in the configuration of each controller that starts now."""
        record = self.state.quorums()["q"]
        group = with_controller_count(self.resources(3).controller_groups[0], record.running)
        places = {one.name: PodPlacement(one.name, "", "/c", {"data": "/d"}) for one in pods_of(group)}
        found = {}
        for pod in render_pods(group, places, founders=record.founders):
            keys = properties.parse(pod.config_files[0].text)
            peers = frozenset(part.partition("-")[0] for part in keys["controllerDLegerPeers"].split(";"))
            found[keys["controllerDLegerSelfId"]] = peers, keys.get("joinControllerGroup") == "true"
        return found

    def voters(self) -> frozenset[str]:
        if self.members is not None:
            return self.members
        return next(peers for peers, joins in self.configured().values() if not joins)

    def check(self) -> None:
        """No controller counts wrongly: one that does not join names the members, unless its log does."""
        configured, voters = self.configured(), self.voters()
        for name, (peers, joins) in configured.items():
            assert joins or self.members is not None or peers == voters, name
            assert not joins or self.members is not None or name not in voters, f"{name} never leads"
        assert len(voters & configured.keys()) * 2 > len(voters), "a majority of the members runs"

    # What the driver uses.

    async def apply(self) -> None:
        self.pods = self.state.quorums()["q"].running

    def keepers(self) -> Mapping[str, PodKeeper]:
        def keeper(ordinal: int) -> PodKeeper:
            name = controller_pod_name("q", ordinal)
            pod = SimpleNamespace(
                name=name,
                group="q",
                component=Component.CONTROLLER,
                ordinal=ordinal,
                port=lambda _: f"{name}:9878",
            )
            ready = f"n{ordinal}" in self.voters()
            record = SimpleNamespace(phase=PodPhase.READY if ready else PodPhase.STARTING, process=None)
            readiness = Readiness(ready, controller=ControllerRaftState("follower", None, 1, 1))
            return cast(PodKeeper, SimpleNamespace(pod=pod, record=record, readiness=readiness))

        return {controller_pod_name("q", n): keeper(n) for n in range(self.pods)}

    async def fetch(self, _: RemotingClient, addresses: Iterable[str]) -> GroupMembers:
        assert list(addresses)
        return GroupMembers({name: f"{name}:1" for name in self.voters()}, "n0")

    async def change(self, _: RemotingClient, address: str, change: MemberChange) -> GroupMembers:
        assert address
        assert change.peer_id is not None
        before, member = self.voters(), frozenset({change.peer_id})
        after = before - member if change.address is None else before | member
        if change.address is not None:
            assert f"{controller_pod_name('q', change.peer_id[1:])}:9878" == change.address
        if after != before:
            self.count_write()
            self.members = after
            self.check()
        return GroupMembers(dict.fromkeys(after, ""), "n0")

    async def supervise(self, client: RemotingClient, replicas: int) -> None:
        """A supervisor starts, with all pods that ran, and changes the number."""
        context = QuorumChangesContext(self.state, client, self.keepers, self.apply, lambda: None)
        resources = self.resources(replicas)
        self.state.write_quorums(initial_quorums(self.state, resources, {"q"}))
        await self.apply()
        changes = QuorumChanges(context)
        changes.begin(resources)
        if changes.pending:
            async with asyncio.timeout(30):
                await changes.run(resources)
        assert changes.lines == []


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 5), (5, 3), (3, 1)])
async def test_a_supervisor_that_is_killed_before_any_write_is_followed_by_one_that_completes_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    monkeypatch.setattr(quorum_changes, "PAUSE_S", 0)
    writes, killed = 0, True
    async with RemotingClient() as client:
        while killed:
            for then in (after, before):  # the resource may have changed again meanwhile
                quorum = FakeQuorum(tmp_path / f"{writes}-{then}")
                monkeypatch.setattr(quorum_changes, "CONTROLLERS", quorum)
                quorum.begin(before)
                quorum.writes_left = writes
                try:
                    await quorum.supervise(client, after)
                    killed = False
                except KilledError:
                    pass
                quorum.writes_left = 1000
                await quorum.supervise(client, then)
                names = frozenset(f"n{n}" for n in range(then))
                assert (quorum.pods, quorum.voters()) == (then, names)
                assert not quorum.state.quorums()["q"].changing
            writes += 1
    assert writes > 5
