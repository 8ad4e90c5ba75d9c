"""A fake controller for brokers: responds as the test says, and records the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from epochmq_broker.broker import Broker
from epochmq_broker.config.broker_config import from_properties
from epochmq_protocol.bodies import ElectMasterResponseBody, SyncStateSet, from_json, to_json
from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.headers_controller import (
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoResponseHeader,
    NotifyBrokerRoleChangedRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.server import RemotingServer
from tests.support.net import free_port, loopback
from tests.unit.broker.kit import SMALL

OCTET = 76


class FakeController:
    """A leading controller. `grants`: it is one of ours, and grants leases of `lease_ms`; with 0 it rejects
    them. `silent`: it does not respond to heartbeats."""

    def __init__(self, *, grants: bool = True, lease_ms: int = 20_000) -> None:
        self.grants = grants
        self.lease_ms = lease_ms
        self.silent = False
        self.leads = True
        self.next_id = 1
        self.master_id: int | None = None
        self.master_address: str | None = None
        self.epoch = 0
        self.members: set[int] = set()
        self.set_epoch = 0
        self.asked: list[Command] = []
        self.heartbeats: list[dict[str, str]] = []
        self.elects = True
        self.elects_from = asyncio.Event()
        """Until it is set, who asks for an election waits."""
        self.elects_from.set()
        handlers = {
            Code.CONTROLLER_GET_METADATA_INFO: self._metadata,
            Code.CONTROLLER_GET_NEXT_BROKER_ID: self._next_id,
            Code.CONTROLLER_APPLY_BROKER_ID: self._apply,
            Code.CONTROLLER_REGISTER_BROKER: self._register,
            Code.CONTROLLER_ELECT_MASTER: self._elect,
            Code.CONTROLLER_GET_REPLICA_INFO: self._look,
            Code.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter,
            Code.BROKER_HEARTBEAT: self._beat,
        }
        self._server = RemotingServer({int(code): handler for code, handler in handlers.items()})
        self.address = ""

    async def start(self) -> FakeController:
        """Starts to listen."""
        host = loopback(OCTET)
        port = free_port(host)
        await self._server.start(host, port)
        self.address = f"{host}:{port}"
        return self

    async def stop(self) -> None:
        """Stops listening."""
        await self._server.stop(0)

    def questions(self, code: Code) -> list[Command]:
        """The requests of this code."""
        return [one for one in self.asked if one.code == code]

    def make_master(self, master_id: int, address: str, epoch: int) -> None:
        """Makes this broker the master."""
        self.master_id, self.master_address, self.epoch = master_id, address, epoch
        self.members, self.set_epoch = {master_id}, self.set_epoch + 1

    async def notify(self, address: str) -> None:
        """Notifies the broker at this address of the master."""
        header = NotifyBrokerRoleChangedRequestHeader(
            master_address=self.master_address,
            master_epoch=self.epoch,
            sync_state_set_epoch=self.set_epoch,
            master_broker_id=self.master_id,
        )
        async with RemotingClient() as client:
            command = request(Code.NOTIFY_BROKER_ROLE_CHANGED, header, body=self._set())
            assert (await client.call(address, command, 60_000)).code == 0

    def _set(self) -> bytes:
        return to_json(SyncStateSet(set(self.members), self.set_epoch))

    def _metadata(self, _: RemotingConnection, command: Command) -> Command:
        header = GetMetaDataResponseHeader(controller_leader_address=self.address, is_leader=self.leads)
        return response(command, 0, header=header, ext={"term": "1"} if self.grants else {})

    def _next_id(self, _: RemotingConnection, command: Command) -> Command:
        self.asked.append(command)
        return response(command, 0, header=GetNextBrokerIdResponseHeader(next_broker_id=self.next_id))

    def _apply(self, _: RemotingConnection, command: Command) -> Command:
        self.asked.append(command)
        return response(command, 0)

    def _register(self, _: RemotingConnection, command: Command) -> Command:
        self.asked.append(command)
        header = RegisterBrokerToControllerResponseHeader()
        if self.master_id is not None:
            header.master_broker_id, header.master_address = self.master_id, self.master_address
            header.master_epoch, header.sync_state_set_epoch = self.epoch, self.set_epoch
        return response(command, 0, header=header, body=self._set())

    async def _elect(self, _: RemotingConnection, command: Command) -> Command:
        self.asked.append(command)
        await self.elects_from.wait()
        if not self.elects:
            return response(command, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "nobody")
        broker_id = int((command.ext or {})["brokerId"])
        register = self.questions(Code.CONTROLLER_REGISTER_BROKER)[-1]
        self.make_master(broker_id, (register.ext or {})["brokerAddress"], self.epoch + 1)
        header = ElectMasterResponseHeader(
            master_broker_id=self.master_id,
            master_address=self.master_address,
            master_epoch=self.epoch,
            sync_state_set_epoch=self.set_epoch,
        )
        return response(
            command, 0, header=header, body=to_json(ElectMasterResponseBody(sync_state_set=self.members))
        )

    def _look(self, _: RemotingConnection, command: Command) -> Command:
        self.asked.append(command)
        header = GetReplicaInfoResponseHeader(
            master_broker_id=self.master_id, master_address=self.master_address, master_epoch=self.epoch
        )
        return response(command, 0, header=header, body=self._set())

    def _alter(self, _: RemotingConnection, command: Command) -> Command:
        self.asked.append(command)
        wanted = from_json(SyncStateSet, command.body)
        self.members, self.set_epoch = set(wanted.sync_state_set or ()), self.set_epoch + 1
        return response(command, 0, body=self._set())

    async def _silence(self, command: Command) -> Command:
        await asyncio.Event().wait()
        raise AssertionError

    def _beat(self, _: RemotingConnection, command: Command) -> object:
        ext = command.ext or {}
        self.heartbeats.append(ext)
        if self.silent:
            return self._silence(command)
        granted = self.grants and self.lease_ms and ext.get("writeLeaseEpoch") == str(self.epoch)
        return response(command, 0, ext={"writeLeaseMs": str(self.lease_ms)} if granted else {})


@asynccontextmanager
async def broker(
    directory: Path, controllers: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Broker]:
    """Runs a broker with its ports, under these controllers."""
    host = loopback(OCTET)
    port = free_port(host)
    values = {
        **SMALL,
        "brokerName": "group-a",
        "bindAddress": host,
        "brokerIP1": host,
        "brokerIP2": host,
        "listenPort": str(port),
        "haListenPort": str(port + 1),
        "storePathRootDir": str(directory),
        "enableControllerMode": "true",
        "controllerAddr": controllers,
        "brokerHeartbeatInterval": "50",
        "syncBrokerMetadataPeriod": "100",
        "syncControllerMetadataPeriod": "200",
        **(settings or {}),
    }
    made = Broker(from_properties(values))
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
