"""Sends requests about queues to the broker groups that hold earlier parts of logical queues (RocketMQ's
RpcClient with its ClientMetadata)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_protocol.bodies import ClusterInfo, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.transport.client import RemotingClient

MASTER_ID = 0
ADDRESSES_FRESH_S = 5.0
NAMESERVER_TIMEOUT_MS = 3000


class RemoteQueues:
    """The other broker groups of the cluster."""

    def __init__(self, live: LiveConfig, client: RemotingClient) -> None:
        self._live = live
        self._client = client
        self._masters: dict[str, str] = {}
        self._known_at_s = float("-inf")
        self._one_query = asyncio.Lock()

    async def call(self, broker: str, code: int, ext: Mapping[str, str], *, lo: str = "false") -> Command:
        """Sends a request to the master of a group, and returns the response, whatever its code. `lo`:
        whether it is about logical queues. Raises RequestError SYSTEM_ERROR."""
        fields = {**ext, "bname": broker, "lo": lo}
        address = await self._master(broker)
        try:
            timeout_ms = self._live.current.forward_timeout
            return await self._client.call(address, request(code, None, b"", fields), timeout_ms)
        except EpochMQError as error:
            self._known_at_s = float("-inf")  # the group may have another master
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the request to broker {broker} at {address} failed: {error}"
            ) from error

    async def nameserver(self, command: Command) -> Command:
        """Asks the nameservers in turn. Raises EpochMQError if none responds."""
        failure = EpochMQError("no nameserver is configured")
        for address in self._live.nameservers:
            try:
                return await self._client.call(address, command, NAMESERVER_TIMEOUT_MS)
            except EpochMQError as error:
                failure = error
        raise failure

    async def _master(self, broker: str) -> str:
        async with self._one_query:
            now_s = time.monotonic()
            if now_s - self._known_at_s > ADDRESSES_FRESH_S:
                await self._refresh(now_s)
        address = self._masters.get(broker)
        if address is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"cannot find addr for broker {broker}")
        return address

    async def _refresh(self, now_s: float) -> None:
        """Asks for the masters of all groups. Keeps the known ones if no nameserver responds."""
        try:
            response = await self.nameserver(request(RequestCode.GET_BROKER_CLUSTER_INFO))
            groups = from_json(ClusterInfo, response.body).broker_addr_table
        except EpochMQError:
            return
        for name, group in groups.items():
            if MASTER_ID in group.broker_addrs:
                self._masters[name] = group.broker_addrs[MASTER_ID]
        self._known_at_s = now_s
