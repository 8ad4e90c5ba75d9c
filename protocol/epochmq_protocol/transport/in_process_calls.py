"""Calls the request handlers of this process without a connection.

Some operations of the admin API are also remoting requests. The admin socket serves them with the same
handlers and the same checks."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import cast

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler


class _InProcessConnection:
    """Stands in for a connection. The handlers of administration requests read only `remote`, which is a
    connection's address in log messages."""

    remote = "the admin socket"


class InProcessCalls:
    """The request handlers of one process, by request code."""

    def __init__(self, handlers: Mapping[int, RequestHandler]) -> None:
        self._handlers = handlers

    async def call(self, command: Command) -> Command:
        """Returns the response. Raises RequestError if the handler rejects the request."""
        result = self._handlers[command.code](cast(RemotingConnection, _InProcessConnection()), command)
        response = await result if isinstance(result, Awaitable) else result
        assert response is not None, "the handler deferred the request"
        if response.code != ResponseCode.SUCCESS:
            raise RequestError(response.code, response.remark or f"code {response.code}")
        return response
