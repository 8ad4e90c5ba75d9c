"""Serves the scrubs of the other replicas: checksums and bytes of parts of this broker's log."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.replication.scrub.served_copies import CopiesBusyError, ServedCopies
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RemoteProtocolError, RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.replica_control import (
    LogPartsHeader,
    ReplicaControlCode,
    decode_log_parts,
    encode_checksums,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler


class LogPartsProcessor:
    """Serves them on the main port and on the VIP port."""

    def __init__(self, live: LiveConfig, copies: ServedCopies) -> None:
        self._live = live
        self._copies = copies

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            ReplicaControlCode.SCRUB_CHECKSUMS: self.checksums,
            ReplicaControlCode.SCRUB_BYTES: self.data,
        }

    async def checksums(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the checksums of parts of the log."""
        parts = self._parts(command)
        try:
            crcs = await self._copies.checksums(parts)
        except (OSError, ValueError, CopiesBusyError) as error:
            raise _request_error(error) from None
        return response(command, ResponseCode.SUCCESS, body=encode_checksums(crcs))

    async def data(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the bytes of one part of the log."""
        parts = self._parts(command)
        if len(parts) != 1:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body lists {len(parts)} parts, expected one")
        ((start, end),) = parts
        try:
            data = await self._copies.data(start, end)
        except (OSError, ValueError, CopiesBusyError) as error:
            raise _request_error(error) from None
        return response(command, ResponseCode.SUCCESS, body=data)

    def _parts(self, command: Command) -> list[tuple[int, int]]:
        """The parts that a request lists. Raises RequestError, also if another group's broker is meant: its
        log has other records at the same offsets."""
        header = LogPartsHeader.decode(command.ext)
        own = self._live.current.broker_name
        if header.broker_name != own:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"brokerName={header.broker_name}: expected {own}, the group of this broker",
            )
        try:
            return decode_log_parts(command.body)
        except RemoteProtocolError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None


def _request_error(error: Exception) -> RequestError:
    if isinstance(error, CopiesBusyError):
        return RequestError(ResponseCode.SYSTEM_BUSY, "other replicas read this broker's log")
    return RequestError(ResponseCode.SYSTEM_ERROR, str(error))
