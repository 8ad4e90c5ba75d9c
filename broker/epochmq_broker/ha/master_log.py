"""Asks a master for checksums of its log (`LOG_CHECKSUMS`); RocketMQ's masters know no such request."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from epochmq_broker.ha.comparison import LogRange
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import request
from epochmq_protocol.replica_control import LogChecksumsHeader, ReplicaControlCode
from epochmq_protocol.transport.client import RemotingClient

TIMEOUT_MS: Final = 30_000


class MasterChecksums(Struct, frozen=True):
    """What a master says of a range: where its log begins, and the checksums, none where it begins behind the
    range's start."""

    begins: int
    checksums: bytes


class MasterLog:
    """The log of the master at `address`, which serves clients there."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.address = address
        self._client = client

    async def checksums(self, wanted: LogRange, epoch: int) -> MasterChecksums | None:
        """Of the master of `epoch`; None when it is one of RocketMQ's. EpochMQError when it does not answer,
        or is not the master of that epoch."""
        header = LogChecksumsHeader(
            epoch=epoch, start_offset=wanted.start, end_offset=wanted.end, chunk_bytes=wanted.chunk
        )
        answer = await self._client.call(
            self.address, request(ReplicaControlCode.LOG_CHECKSUMS, header), TIMEOUT_MS
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(answer.code, answer.remark or f"code {answer.code}")
        found = LogChecksumsHeader.decode(answer.ext)
        return MasterChecksums(found.min_offset, answer.body)
