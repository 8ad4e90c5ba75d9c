"""A process's own request handlers, asked without a connection: what the local socket does in the ways that
clients know goes through the same checks."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import cast

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import Connection
from epochmq_protocol.transport.dispatch import Handler


class _Here:
    """In place of a connection; handlers of administration ask it for its name only."""

    remote = "the local socket"


class LocalCalls:
    """The handlers of one process, by request code."""

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers = handlers

    async def call(self, command: Command) -> Command:
        """The answer. RequestError when it is a refusal."""
        result = self._handlers[command.code](cast(Connection, _Here()), command)
        answer = await result if isinstance(result, Awaitable) else result
        assert answer is not None, "asked only what is answered"
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(answer.code, answer.remark or f"code {answer.code}")
        return answer
