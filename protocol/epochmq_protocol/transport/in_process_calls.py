"""Calls the request handlers of the own process without a connection.

The admin socket serves an operation that remoting clients have, too, through the same handler and the same
checks."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import cast

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler


class _InProcessConnection:
    """Stands in for a connection. The handlers of administration requests read its name only."""

    remote = "the admin socket"


class InProcessCalls:
    """The request handlers of one process, by request code."""

    def __init__(self, handlers: Mapping[int, RequestHandler]) -> None:
        self._handlers = handlers

    async def call(self, command: Command) -> Command:
        """Returns the response. RequestError: the handler rejected the request."""
        result = self._handlers[command.code](cast(RemotingConnection, _InProcessConnection()), command)
        response = await result if isinstance(result, Awaitable) else result
        assert response is not None, "the handler deferred the request"
        if response.code != ResponseCode.SUCCESS:
            raise RequestError(response.code, response.remark or f"code {response.code}")
        return response
