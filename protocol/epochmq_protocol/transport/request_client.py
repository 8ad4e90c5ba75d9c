"""Describes the part of `RemotingClient` that sends requests and returns their responses."""

from __future__ import annotations

from typing import Protocol

from epochmq_protocol.frame import Command


class RequestClient(Protocol):
    """Sends requests to other processes (`client.RemotingClient`)."""

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """Sends a request to the peer at `address` (host:port) and returns its response, whatever its code.
        Raises EpochMQError if there is no response."""
        ...
