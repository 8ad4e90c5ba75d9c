"""Closes idle connections (Netty's IdleStateHandler, `…ChannelMaxIdleTimeSeconds`).

One timer serves all connections of an owner. A connection only sets a flag when it is used, so the timeout
costs the hot path nothing. An idle connection is closed after the timeout, at most a fifth of it late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from epochmq_protocol.transport.connection import RemotingConnection

PERIOD_MAX_S = 5.0


class IdleSweep:
    """The idle timer of one server or client."""

    def __init__(
        self,
        connections: Collection[RemotingConnection],
        idle_timeout_ms: int,
        on_idle: Callable[[RemotingConnection], None] | None = None,
    ) -> None:
        """`on_idle` is called before the connection is closed. `idle_timeout_ms` 0 never closes a
        connection."""
        self._connections = connections
        self._timeout_s = idle_timeout_ms / 1000
        self._period_s = min(self._timeout_s / 10, PERIOD_MAX_S)
        self._on_idle = on_idle
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the timer on the running loop."""
        if self._timeout_s > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._sweep)

    def stop(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = loop.call_later(self._period_s, self._sweep)
        for connection in list(self._connections):
            if connection.active:
                connection.active = False
                connection.idle_since = now
            elif now - connection.idle_since >= self._timeout_s and not connection.closed:
                if self._on_idle is not None:
                    self._on_idle(connection)
                connection.close()
