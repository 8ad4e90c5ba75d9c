"""A remoting connection with many requests in flight, apart from the product's own protocol code."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Self, cast

from tests.support.remoting import Response, frame, split_address

CALL_TIMEOUT_S = 120


class Pipeline(asyncio.Protocol):
    """One connection; answers are matched to requests by their opaque. When it is lost every call that waits,
    and every later one, raises `ConnectionError`."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._buffer = bytearray()
        self._opaque = 0
        self._transport: asyncio.WriteTransport | None = None
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, address: str) -> Self:
        """Connects. `OSError` if no process listens at the address."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, *split_address(address))
        return connection

    async def call(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Response:
        """One request and its answer."""
        if self._transport is None or self._lost.done():
            raise ConnectionError("the connection is lost")
        self._opaque += 1
        response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[self._opaque] = response
        self._transport.write(frame(code, ext, body, opaque=self._opaque))
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await response

    async def close(self) -> None:
        """Closes and waits until it is closed."""
        if self._transport is not None:
            self._transport.close()
        await self._lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        waiting, self._waiting = self._waiting, {}
        for response in waiting.values():
            if not response.done():
                response.set_exception(ConnectionError("the connection was lost before the answer"))
        if not self._lost.done():
            self._lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._buffer += data
        done = 0
        while len(self._buffer) - done >= 4:
            (length,) = struct.unpack_from(">I", self._buffer, done)
            if len(self._buffer) - done - 4 < length:
                break
            self._answered(bytes(self._buffer[done + 4 : done + 4 + length]))
            done += 4 + length
        del self._buffer[:done]

    def _answered(self, data: bytes) -> None:
        end = 4 + (int.from_bytes(data[:4]) & 0xFFFFFF)
        header = json.loads(data[4:end])
        waiting = self._waiting.pop(header["opaque"], None) if header["flag"] & 1 else None
        if waiting is not None and not waiting.done():
            ext = header.get("extFields") or {}
            waiting.set_result(Response(header["code"], header.get("remark"), ext, data[end:]))
