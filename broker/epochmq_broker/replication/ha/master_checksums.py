"""Asks a master for checksums of its log (request LOG_CHECKSUMS, which RocketMQ's masters do not know)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from epochmq_broker.replication.ha.checksum_comparison import LogRange
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import request
from epochmq_protocol.replica_control import LogChecksumsHeader, ReplicaControlCode
from epochmq_protocol.transport.client import RemotingClient

TIMEOUT_MS: Final = 30_000


class RangeChecksums(Struct, frozen=True):
    """A master's response for one range: the first offset of its log (`begins`), and the checksums. There are
    none if the range starts before that offset."""

    begins: int
    checksums: bytes


class MasterChecksumClient:
    """Asks the master that serves clients at `address`."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.address = address
        self._client = client

    async def checksums(self, wanted: LogRange, epoch: int) -> RangeChecksums | None:
        """The checksums of a range in the log of the master of `epoch`; None if it is a RocketMQ broker.
        Raises EpochMQError if the master does not respond or is not the master of that epoch."""
        header = LogChecksumsHeader(
            epoch=epoch, start_offset=wanted.start, end_offset=wanted.end, chunk_bytes=wanted.chunk
        )
        response = await self._client.call(
            self.address, request(ReplicaControlCode.LOG_CHECKSUMS, header), TIMEOUT_MS
        )
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise RequestError(response.code, response.remark or f"code {response.code}")
        found = LogChecksumsHeader.decode(response.ext)
        return RangeChecksums(found.min_offset, response.body)
