"""Sends the core's requests to other peers, and passes their responses back."""

from __future__ import annotations

import asyncio
import logging

from epochmq_dledger.core.types import CallCompleted, SendRequest
from epochmq_dledger.peer_context import PeerContext
from epochmq_protocol.dledger import (
    REQUEST_CODES,
    RESPONSE_TYPES,
    RequestOrResponse,
    decode_body,
    encode_body,
)
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request as make_request
from epochmq_protocol.transport.client import RemotingClient

log = logging.getLogger(__name__)


class PeerCalls:
    """The requests of one peer that are in flight."""

    def __init__(self, context: PeerContext, client: RemotingClient, addresses: dict[str, str]) -> None:
        self._context = context
        self._client = client
        self._addresses = addresses
        self._calls: set[asyncio.Task[None]] = set()

    def start(self, effect: SendRequest) -> None:
        """Sends a request in a task of its own."""
        if self._context.is_stopping:
            return
        task = asyncio.get_running_loop().create_task(self._send(effect))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def stop(self) -> None:
        """Cancels all requests in flight."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _send(self, effect: SendRequest) -> None:
        code = REQUEST_CODES[type(effect.request)]
        response: RequestOrResponse | None = None
        try:
            command = await self._client.call(
                self._addresses[effect.peer],
                make_request(code, body=encode_body(effect.request)),
                self._context.settings.rpc_timeout_ms,
            )
            response = decode_body(RESPONSE_TYPES[code], command.body)
        except EpochMQError as error:
            log.debug("%s to %s failed: %s", type(effect.request).__name__, effect.peer, error)
        self._context.feed(CallCompleted(effect.peer, effect.context, effect.request, response))
