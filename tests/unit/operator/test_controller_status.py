"""Tests requests to controllers and the handling of their responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from epochmq_operator.local.readiness import ControllerRaftState, Readiness, probe_pod
from epochmq_operator.local.replica_groups import fetch_replica_groups
from epochmq_operator.pods import ControllerProbe
from epochmq_protocol.bodies import BrokerReplicasInfo, ReplicaIdentity, ReplicasInfo, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.transport import RemotingClient, RemotingConnection, RemotingServer, ServerSettings
from tests.support.net import free_port, loopback

PAGE = 2


class FakeController:
    """A controller that leads many groups and lists two names a page; `ext` are the fields of its metadata
    response."""

    def __init__(self) -> None:
        self.ext: dict[str, str] = {"group": "q", "term": "7", "committedIndex": "42", "isLeader": "true"}
        self.groups = ["a", "b", "c", "d", "e"]
        self.leads = True
        self.address = ""

    def metadata(self, _: RemotingConnection, command: Command) -> Command:
        """Handles CONTROLLER_GET_METADATA_INFO."""
        ext = dict(self.ext)
        after = (command.ext or {}).get("brokerNamesAfter")
        if after is not None:
            ext["brokerNames"] = json.dumps([name for name in self.groups if name > after][:PAGE])
        return response(command, ResponseCode.SUCCESS, ext=ext)

    def sync_state(self, _: RemotingConnection, command: Command) -> Command:
        """Handles CONTROLLER_GET_SYNC_STATE_DATA."""
        if not self.leads:
            return response(command, ResponseCode.CONTROLLER_NOT_LEADER, "not me")
        body = BrokerReplicasInfo()
        for name in json.loads(command.body):
            info = ReplicasInfo(2, "h:2", 3, 4)
            info.in_sync_replicas = [ReplicaIdentity(name, 2, "h:2", True)]
            info.not_in_sync_replicas = [ReplicaIdentity(name, 1, "h:1", False)]
            body.replicas_info_table[name] = info
        return response(command, ResponseCode.SUCCESS, body=to_json(body))


@asynccontextmanager
async def running(fake: FakeController) -> AsyncIterator[RemotingClient]:
    """Serves the fake at `fake.address`; yields a client."""
    handlers = {
        RequestCode.CONTROLLER_GET_METADATA_INFO: fake.metadata,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: fake.sync_state,
    }
    server = RemotingServer(
        {int(code): handler for code, handler in handlers.items()}, settings=ServerSettings()
    )
    host = loopback(61)
    port = free_port(host, beside=())
    client = RemotingClient()
    await server.start(host, port)
    fake.address = f"{host}:{port}"
    try:
        yield client
    finally:
        await client.close()
        await server.stop(1)


ELSEWHERE = "127.0.0.9:9878"


@pytest.mark.parametrize(
    ("ext", "expected"),
    [
        (
            {"controllerLeaderAddress": "self"},
            Readiness(True, "", None, {}, ControllerRaftState("leader", "self", 7, 42)),
        ),
        (
            {"controllerLeaderAddress": ELSEWHERE, "isLeader": "false"},
            Readiness(True, "", None, {}, ControllerRaftState("follower", ELSEWHERE, 7, 42)),
        ),
        (
            {"isLeader": "false", "term": "x", "committedIndex": ""},
            Readiness(False, "no leader yet", None, {}, ControllerRaftState("candidate", None, None, None)),
        ),
        (
            {"controllerLeaderAddress": "self", "isLeader": "false", "committedIndex": "-1"},
            Readiness(
                False,
                "elected, but has not applied its log yet",
                None,
                {},
                ControllerRaftState("candidate", "self", 7, -1),
            ),
        ),
        (
            {"controllerLeaderAddress": "self", "group": "other"},
            Readiness(
                False,
                "this is a controller of group other",
                None,
                {},
                ControllerRaftState("leader", "self", 7, 42),
            ),
        ),
    ],
    ids=["leader", "follower", "no leader", "elected", "another group"],
)
async def test_a_controller_is_ready_when_it_knows_the_leader(
    ext: dict[str, str], expected: Readiness
) -> None:
    fake = FakeController()
    fake.ext |= ext
    async with running(fake) as client:
        if fake.ext.get("controllerLeaderAddress") == "self":
            fake.ext["controllerLeaderAddress"] = fake.address
        found = await probe_pod(client, ControllerProbe(fake.address, "q", None))
        text = repr(found).replace(fake.address, "self")
        assert text == repr(expected)
        nowhere = ControllerProbe(fake.address, "q", "127.0.0.1:1")
        assert not (await probe_pod(client, nowhere)).ready


async def test_all_groups_are_listed_page_by_page() -> None:
    fake = FakeController()
    async with running(fake) as client:
        found = await fetch_replica_groups(client, fake.address)
    assert [group.broker_name for group in found] == ["a", "b", "c", "d", "e"]
    first = found[0]
    assert (first.master_id, first.master_address, first.master_epoch) == (2, "h:2", 3)
    assert (first.sync_state_set_epoch, first.sync_state_set) == (4, [2])
    assert [(r.broker_id, r.alive, r.in_sync) for r in first.replicas] == [(1, False, False), (2, True, True)]


async def test_a_former_leader_is_an_error_and_an_empty_list_means_no_groups() -> None:
    fake = FakeController()
    async with running(fake) as client:
        fake.leads = False
        with pytest.raises(EpochMQError, match="not me"):
            await fetch_replica_groups(client, fake.address)
        fake.groups = []
        assert await fetch_replica_groups(client, fake.address) == []
