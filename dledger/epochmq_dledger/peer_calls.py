"""Sends the core's requests to other peers, and passes their responses back.

A request over an open connection needs no task. A task opens a connection where there is none, and repeats a
request whose peer is stopping (GO_AWAY).
"""

from __future__ import annotations

import asyncio
import logging

from epochmq_dledger.call_frames import request_frame
from epochmq_dledger.core.types import CallCompleted, SendRequest
from epochmq_dledger.peer_context import PeerContext
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.dledger import (
    REQUEST_CODES,
    RESPONSE_TYPES,
    RequestOrResponse,
    decode_body,
    encode_body,
)
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command
from epochmq_protocol.frame import request as make_request
from epochmq_protocol.transport.callback_calls import start_call
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import RemotingConnection

log = logging.getLogger(__name__)


class PeerCalls:
    """The requests of one peer that are in flight."""

    def __init__(self, context: PeerContext, client: RemotingClient, addresses: dict[str, str]) -> None:
        self._context = context
        self._client = client
        self._addresses = addresses
        self._calls: set[asyncio.Task[None]] = set()

    def start(self, effect: SendRequest) -> None:
        """Sends a request. The core gets the result later."""
        if self._context.is_stopping:
            return
        connection = self._client.open_connection(self._addresses.get(effect.peer, ""))
        if connection is None:
            self._start_task(effect)
            return
        try:
            self._start_call(effect, connection)
        except EpochMQError as error:  # too many calls are in flight
            asyncio.get_running_loop().call_soon(self._complete, effect, error)

    async def stop(self) -> None:
        """Cancels all requests in flight."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _start_call(self, effect: SendRequest, connection: RemotingConnection) -> None:
        code, body = REQUEST_CODES[type(effect.request)], encode_body(effect.request)

        def done(result: Command | Exception) -> None:
            if isinstance(result, Command) and result.code == ResponseCode.GO_AWAY:
                self._start_task(effect)
            else:
                self._complete(effect, result)

        timeout_ms = self._context.settings.rpc_timeout_ms
        start_call(connection, lambda opaque: request_frame(code, opaque, body), timeout_ms, done)

    def _start_task(self, effect: SendRequest) -> None:
        if self._context.is_stopping:
            return
        task = asyncio.get_running_loop().create_task(self._send(effect))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _send(self, effect: SendRequest) -> None:
        command = make_request(REQUEST_CODES[type(effect.request)], body=encode_body(effect.request))
        result: Command | Exception
        try:
            result = await self._client.call(
                self._addresses[effect.peer], command, self._context.settings.rpc_timeout_ms
            )
        except EpochMQError as error:
            result = error
        self._complete(effect, result)

    def _complete(self, effect: SendRequest, result: Command | Exception) -> None:
        """Passes the response to the core, or None without one."""
        if self._context.is_stopping:
            return
        response: RequestOrResponse | None = None
        if isinstance(result, Command):
            try:
                response = decode_body(RESPONSE_TYPES[REQUEST_CODES[type(effect.request)]], result.body)
            except EpochMQError as error:
                result = error
        if response is None:
            log.debug("%s to %s failed: %s", type(effect.request).__name__, effect.peer, result)
        self._context.feed(CallCompleted(effect.peer, effect.context, effect.request, response))
