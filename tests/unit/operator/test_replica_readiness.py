"""Tests that a replica is ready when it serves requests, its nameservers list it, and it is in the
SyncStateSet of a master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from epochmq_operator.local.readiness import probe_pod
from epochmq_operator.pods import BrokerProbe
from epochmq_protocol.bodies import (
    BrokerMemberGroup,
    BrokerReplicasInfo,
    GetBrokerMemberGroupResponseBody,
    KVTable,
    ReplicaIdentity,
    ReplicasInfo,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, response
from epochmq_protocol.transport import RemotingClient, RemotingConnection, RemotingServer, ServerSettings
from tests.support.net import free_port, loopback

NOBODY = "127.0.0.9:9"


class Fake:
    """A broker, its nameserver and its controllers' leader in one, at one address."""

    def __init__(self) -> None:
        self.runtime_info: dict[str, str] = {"commitLogMaxOffset": "7"}
        self.registered: int | None = 2
        self.leader: str | None = None
        self.info: ReplicasInfo | None = ReplicasInfo(1, "h:1", 3, 4)
        self.in_sync, self.alive = True, True
        self.former: list[ReplicaIdentity] = []
        self.address = ""

    def runtime(self, _: RemotingConnection, command: Command) -> Command:
        return response(command, 0, body=to_json(KVTable(table=self.runtime_info)))

    def members(self, _: RemotingConnection, command: Command) -> Command:
        addresses = {} if self.registered is None else {self.registered: self.address}
        group = BrokerMemberGroup(cluster="c", broker_name="a", broker_addrs=addresses)
        return response(command, 0, body=to_json(GetBrokerMemberGroupResponseBody(broker_member_group=group)))

    def metadata(self, _: RemotingConnection, command: Command) -> Command:
        ext = {} if self.leader is None else {"controllerLeaderAddress": self.leader}
        return response(command, 0, ext=ext)

    def sync_state(self, _: RemotingConnection, command: Command) -> Command:
        body = BrokerReplicasInfo()
        if self.info is not None:
            here = ReplicaIdentity("a", 2, self.address, self.alive)
            self.info.in_sync_replicas = [here] if self.in_sync else []
            self.info.not_in_sync_replicas = [*self.former, *([] if self.in_sync else [here])]
            body.replicas_info_table["a"] = self.info
        return response(command, ResponseCode.SUCCESS, body=to_json(body))


@asynccontextmanager
async def running(fake: Fake) -> AsyncIterator[RemotingClient]:
    handlers = {
        RequestCode.GET_BROKER_RUNTIME_INFO: fake.runtime,
        RequestCode.GET_BROKER_MEMBER_GROUP: fake.members,
        RequestCode.CONTROLLER_GET_METADATA_INFO: fake.metadata,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: fake.sync_state,
    }
    server = RemotingServer({int(code): one for code, one in handlers.items()}, settings=ServerSettings())
    host = loopback(61)
    port = free_port(host, beside=())
    await server.start(host, port)
    fake.address = fake.leader = f"{host}:{port}"
    try:
        async with RemotingClient() as client:
            yield client
    finally:
        await server.stop(1)


def probe(fake: Fake, *controllers: str) -> BrokerProbe:
    return BrokerProbe(fake.address, "c", "a", (fake.address,), controllers or (NOBODY, fake.address))


async def test_a_replica_in_sync_is_ready_and_reports_its_group() -> None:
    fake = Fake()
    async with running(fake) as client:
        found = await probe_pod(client, probe(fake))
    assert (found.ready, found.reason, found.broker_id) == (True, "", 2)
    assert found.runtime_info == fake.runtime_info
    assert found.group is not None
    assert (found.group.master_id, found.group.sync_state_set) == (1, [2])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"registered": None}, "not registered at ADDRESS as a of c"),
        ({"in_sync": False}, "not in the SyncStateSet []"),
        ({"alive": False}, "its heartbeats do not reach the controllers"),
        ({"info": ReplicasInfo(None, None, 3, 4)}, "the group has no master"),
        ({"info": None}, "the controllers know no replica group a"),
        ({"leader": None}, "no controller leads: "),
    ],
    ids=["not registered", "not in sync", "not alive", "no master", "unknown", "no leader"],
)
async def test_a_replica_that_is_not_ready_has_a_reason(change: dict[str, object], reason: str) -> None:
    fake = Fake()
    async with running(fake) as client:
        for name, value in change.items():
            setattr(fake, name, value)
        found = await probe_pod(client, probe(fake))
    assert not found.ready
    assert found.reason.startswith(reason.replace("ADDRESS", fake.address))
    assert found.runtime_info == fake.runtime_info


async def test_a_former_replica_at_the_same_address_does_not_count() -> None:
    """A store that was replaced by an empty one has a new broker id."""
    fake = Fake()
    async with running(fake) as client:
        fake.former = [ReplicaIdentity("a", 1, fake.address, False)]
        found = await probe_pod(client, probe(fake))
    assert (found.ready, found.reason) == (True, "")
    assert found.group is not None
    known = found.group.replica_at(fake.address)
    assert known is not None
    assert known.broker_id == 2


async def test_a_drained_replica_is_ready_outside_the_set_while_it_is_alive() -> None:
    fake = Fake()
    fake.runtime_info["drained"] = "true"
    fake.in_sync = False
    async with running(fake) as client:
        assert (await probe_pod(client, probe(fake))).ready
        fake.alive = False
        assert not (await probe_pod(client, probe(fake))).ready


async def test_a_broker_without_controllers_is_ready_when_it_is_registered() -> None:
    fake = Fake()
    fake.registered, fake.leader = 0, None
    async with running(fake) as client:
        found = await probe_pod(client, BrokerProbe(fake.address, "c", "a", (fake.address,)))
    assert (found.ready, found.broker_id, found.group) == (True, 0, None)
