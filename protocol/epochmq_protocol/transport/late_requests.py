"""Notices requests that have waited in the kernel because the event loop was busy or blocked.

A request waits from the arrival of its bytes until the loop reads them. While the loop keeps up, no request
can have waited long, and nothing is measured. A turn is suspect after the loop was blocked, or while more
sockets are ready than one turn serves. Only then each socket is asked when its last bytes arrived (TCP_INFO).
That is the newest of its requests, so no request counts as late before it is.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, Protocol

TICK_S: Final = 0.05
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
_LAST_DATA_RECEIVED = struct.Struct("@I")
_LAST_DATA_RECEIVED_AT: Final = 52  # of struct tcp_info: milliseconds since the last bytes arrived
_INFO_BYTES: Final = _LAST_DATA_RECEIVED_AT + _LAST_DATA_RECEIVED.size


class LateRequestPolicy(Protocol):
    """Says which requests are rejected after which wait."""

    @property
    def shortest_wait_ms(self) -> int:
        """The shortest wait after which any request is rejected; 0 for never."""
        ...

    def rejection(self, code: int, waited_ms: int, ready: int) -> str | None:
        """The remark of the rejection of a request with this code that has waited so long, while so many
        sockets are ready; None for a request that is served."""
        ...


class LateRequestMonitor:
    """Knows whether requests may have waited for `shortest_wait_ms()` or longer. Call `start` and `stop` on
    the loop."""

    def __init__(
        self, shortest_wait_ms: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shortest_wait_ms = shortest_wait_ms
        self._limit_s = _seconds(shortest_wait_ms())
        self._clock = clock
        self._ticked = clock()
        self._suspect_until = 0.0
        self._full_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to watch the loop."""
        self._ticked = self._clock()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._next_tick)

    def stop(self) -> None:
        """Stops watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next_tick(self) -> None:
        self.tick()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._next_tick)

    def tick(self) -> None:
        """Notes that the loop runs. After a tick that is late, the sockets read next may hold late
        requests."""
        now = self._clock()
        self._limit_s = _seconds(self._shortest_wait_ms())
        if now - self._ticked >= self._limit_s:
            self._suspect_until = now + 2 * TICK_S
        self._ticked = now

    def is_suspect(self, now: float, *, full: bool) -> bool:
        """Whether a turn that begins at `now`, in seconds of the clock, may read late requests. `full`: more
        sockets may be ready than the turn serves."""
        since = self._full_since
        if not full:
            self._full_since = None
        elif since is None:
            self._full_since = now
        if now - self._ticked >= self._limit_s or now < self._suspect_until:
            return True
        return since is not None and now - since >= self._limit_s

    def is_late(self, waited_ms: int) -> bool:
        """Whether any request is rejected after this wait."""
        return waited_ms >= self._limit_s * 1000


def _seconds(shortest_wait_ms: int) -> float:
    return shortest_wait_ms / 1000 if shortest_wait_ms > 0 else float("inf")


def newest_wait_ms(sock: socket.socket) -> int:
    """Milliseconds since the last bytes arrived at a TCP socket; 0 where the kernel does not tell."""
    if _TCP_INFO is None:
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    except OSError:
        return 0
    if len(info) < _INFO_BYTES:
        return 0
    waited: int = _LAST_DATA_RECEIVED.unpack_from(info, _LAST_DATA_RECEIVED_AT)[0]
    return waited
