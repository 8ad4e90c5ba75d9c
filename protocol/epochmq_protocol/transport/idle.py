"""Closes connections over which nothing comes or goes (Netty's IdleStateHandler,
`…ChannelMaxIdleTimeSeconds`).

One timer for all connections of an owner: a connection only sets a flag when it is used, so that the hot
path pays nothing for its time-out. A connection is closed when the time-out has passed, at most a fifth of
it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from epochmq_protocol.transport.connection import Connection

PERIOD_MAX_S = 5.0


class IdleSweep:
    """The timer of one server or client."""

    def __init__(
        self,
        connections: Collection[Connection],
        idle_timeout_ms: int,
        on_idle: Callable[[Connection], None] | None = None,
    ) -> None:
        """`on_idle` is told before the connection is closed. `idle_timeout_ms` 0 closes none."""
        self._connections = connections
        self._timeout_s = idle_timeout_ms / 1000
        self._period_s = min(self._timeout_s / 10, PERIOD_MAX_S)
        self._on_idle = on_idle
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to look, on the running loop."""
        if self._timeout_s > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._sweep)

    def stop(self) -> None:
        """Looks no more."""
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
                connection.quiet_since = now
            elif now - connection.quiet_since >= self._timeout_s and not connection.closed:
                if self._on_idle is not None:
                    self._on_idle(connection)
                connection.close()
