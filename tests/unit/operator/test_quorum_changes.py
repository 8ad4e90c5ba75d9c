"""Tests the local driver of changes of the number of controllers, or of brokers of a DLedger group, against
a quorum in memory: it is killed before every write, and a check reads every configuration that pods would
start with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from epochmq_operator.local import quorum_changes
from epochmq_operator.local.keeper import PodKeeper
from epochmq_operator.local.quorum_changes import QuorumChanges, QuorumChangesContext, initial_quorums
from epochmq_operator.local.readiness import ControllerRaftState, Readiness
from epochmq_operator.local.state_directory import QuorumRecord, StateDirectory
from epochmq_operator.pod_rendering import (
    component_name,
    pods_of,
    render_pods,
)
from epochmq_operator.pods import (
    Component,
    PodPlacement,
)
from epochmq_operator.resources import Resources, load_resources, with_member_count
from epochmq_operator.status_model import PodPhase
from epochmq_protocol import properties
from epochmq_protocol.transport import RemotingClient
from epochmq_protocol.transport.group_members import GroupMembers, MemberChange

HEAD = "apiVersion: epochmq.io/v1alpha1\nmetadata: {name: q}\n"


@dataclass(frozen=True)
class Kind:
    """A kind of Raft group: its resource, the component and the port of its members, and the keys of their
    configuration."""

    resource: str
    component: Component
    port: str
    client: str
    peers_key: str
    self_key: str
    joins_key: str


CONTROLLERS = Kind(
    HEAD + "kind: ControllerGroup\nspec: {replicas: %d}\n",
    Component.CONTROLLER,
    "remoting",
    "CONTROLLERS",
    "controllerDLegerPeers",
    "controllerDLegerSelfId",
    "joinControllerGroup",
)
BROKERS = Kind(
    HEAD + "kind: BrokerGroup\nspec: {mode: DLedger, replicas: %d}\n",
    Component.BROKER,
    "dledger",
    "BROKERS",
    "dLegerPeers",
    "dLegerSelfId",
    "joinDLedgerGroup",
)


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

    def __init__(self, directory: Path, kind: Kind) -> None:
        self.kind = kind
        self.state = CountedStateDirectory(directory)
        self.state.quorum = self
        self.state.create()
        self.members: frozenset[str] | None = None
        self.writes_left = 1000
        self.pods = 0

    def resources(self, replicas: int) -> Resources:
        return load_resources([("f", self.kind.resource % replicas)])

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
        kind, (group,) = self.kind, self.resources(3).groups
        group = with_member_count(group, record.running)
        volumes = {"data": "/d", "store": "/s"}
        places = {one.name: PodPlacement(one.name, "", "/c", volumes) for one in pods_of(group)}
        found = {}
        for pod in render_pods(group, places, founders=record.founders):
            if pod.component is not kind.component:
                continue
            keys = properties.parse(pod.config_files[0].text)
            peers = frozenset(part.partition("-")[0] for part in keys[kind.peers_key].split(";"))
            found[keys[kind.self_key]] = peers, keys.get(kind.joins_key) == "true"
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
            name = self.pod_name(ordinal)
            pod = SimpleNamespace(
                name=name,
                group="q",
                component=self.kind.component,
                ordinal=ordinal,
                port=lambda port: f"{name}:{port}",
            )
            ready = f"n{ordinal}" in self.voters()
            record = SimpleNamespace(phase=PodPhase.READY if ready else PodPhase.STARTING, process=None)
            readiness = Readiness(ready, controller=ControllerRaftState("follower", None, 1, 1))
            if self.kind is BROKERS:
                readiness = Readiness(ready, runtime_info={"dledgerRole": "follower"})
            return cast(PodKeeper, SimpleNamespace(pod=pod, record=record, readiness=readiness))

        return {self.pod_name(n): keeper(n) for n in range(self.pods)}

    def pod_name(self, ordinal: int) -> str:
        return f"{component_name('q', self.kind.component)}-{ordinal}"

    noun = "member"

    async def fetch(self, _: RemotingClient, addresses: Iterable[str]) -> GroupMembers:
        assert list(addresses)
        return GroupMembers({name: f"{name}:1" for name in self.voters()}, "n0")

    async def change(self, _: RemotingClient, address: str, change: MemberChange) -> GroupMembers:
        assert address
        assert change.peer_id is not None
        before, member = self.voters(), frozenset({change.peer_id})
        after = before - member if change.address is None else before | member
        if change.address is not None:
            assert f"{self.pod_name(int(change.peer_id[1:]))}:{self.kind.port}" == change.address
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
            async with asyncio.timeout(300):
                await changes.run(resources)
        assert changes.lines == []


@pytest.mark.long
@pytest.mark.parametrize("kind", [CONTROLLERS, BROKERS], ids=["controllers", "brokers"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 5), (5, 3), (3, 1)])
async def test_a_supervisor_that_is_killed_before_any_write_is_followed_by_one_that_completes_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int, kind: Kind
) -> None:
    monkeypatch.setattr(quorum_changes, "PAUSE_S", 0)
    writes, killed = 0, True
    async with RemotingClient() as client:
        while killed:
            for then in (after, before):  # the resource may have changed again meanwhile
                quorum = FakeQuorum(tmp_path / f"{writes}-{then}", kind)
                monkeypatch.setattr(quorum_changes, kind.client, quorum)
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
