"""Asks the other replicas of the group for their copies of parts of the log: for checksums, and for bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.replica_control import (
    LogPartsHeader,
    ReplicaControlCode,
    decode_checksums,
    encode_log_parts,
)
from epochmq_protocol.transport.request_client import RequestClient

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 60_000
CHUNK_BYTES: Final = 1 << 20
"""Bytes that one request asks for."""
PEERS_MAX: Final = 16

Members = Callable[[], Awaitable[Sequence[str]]]
"""Returns the addresses of the other replicas. Raises EpochMQError while they are not known."""


class PeerCopies:
    """The copies of the other replicas. RocketMQ's brokers, and replicas that do not answer, have none."""

    def __init__(self, live: LiveConfig, client: RequestClient, members: Members) -> None:
        self._live = live
        self._client = client
        self._members = members

    async def checksums(self, parts: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
        """The CRC-32 of each part [start, end), by the address of each replica that has all of them."""
        try:
            addresses = list(await self._members())[:PEERS_MAX]
        except EpochMQError as error:
            log.debug("the scrub does not know the other replicas: %s", error)
            return {}
        found = await asyncio.gather(*(self._checksums_of(address, parts) for address in addresses))
        return {address: crcs for address, crcs in zip(addresses, found, strict=True) if crcs is not None}

    async def data(self, address: str, start: int, end: int) -> bytes | None:
        """The bytes [start, end) of the log of the replica at this address; None if it does not send them."""
        chunks = []
        while start < end:
            size = min(end - start, CHUNK_BYTES)
            response = await self._ask(address, ReplicaControlCode.SCRUB_BYTES, [(start, start + size)])
            if response is None or len(response.body) != size:
                return None
            chunks.append(response.body)
            start += size
        return b"".join(chunks)

    async def _checksums_of(self, address: str, parts: Sequence[tuple[int, int]]) -> list[int] | None:
        response = await self._ask(address, ReplicaControlCode.SCRUB_CHECKSUMS, parts)
        if response is None:
            return None
        try:
            crcs = decode_checksums(response.body)
        except EpochMQError:
            crcs = []
        if len(crcs) == len(parts):
            return crcs
        log.warning("the replica at %s sent %d checksums, expected %d", address, len(crcs), len(parts))
        return None

    async def _ask(
        self, address: str, code: ReplicaControlCode, parts: Sequence[tuple[int, int]]
    ) -> Command | None:
        header = LogPartsHeader(broker_name=self._live.current.broker_name)
        command = request(code, header, body=encode_log_parts(parts))
        try:
            response = await self._client.call(address, command, TIMEOUT_MS)
        except EpochMQError as error:
            log.debug("the replica at %s did not answer the scrub: %s", address, error)
            return None
        if response.code == ResponseCode.SUCCESS:
            return response
        log.debug("the replica at %s rejected request %d: %s", address, code, response.remark)
        return None
