"""Bounds what peers can make a process hold of frames that they do not complete: bytes and time.

Each server has its own table; the bytes of all of them together have one limit. Above it the connection whose
frame began first is aborted: frames of clients that work complete within moments.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from epochmq_protocol.memory_limit import memory_bytes
from epochmq_protocol.transport import port_counts
from epochmq_protocol.transport.descriptors import RejectionCounter
from epochmq_protocol.transport.port_counts import PortRejection

log = logging.getLogger(__name__)

DERIVED_MIN: Final = 64 << 20
DERIVED_MAX: Final = 2 << 30
PERIOD_MAX_S: Final = 5.0

_tables: set[UnfinishedFrames] = set()
"""The tables of all servers of this process that have an unfinished frame."""


def derived_bytes_max() -> int:
    """The limit without a setting: a quarter of the memory that this process may use, between DERIVED_MIN and
    DERIVED_MAX."""
    return min(max(memory_bytes() // 4, DERIVED_MIN), DERIVED_MAX)


class ReceivingConnection(Protocol):
    """What a table needs of a connection."""

    remote: str

    @property
    def reads_later(self) -> bool:
        """Whether it holds whole frames, too, until its peer takes the responses to earlier ones."""

    def drop_unfinished(self) -> None:
        """Aborts the connection, and drops what it holds."""


class UnfinishedFrames:
    """The connections of one server that hold a part of a frame."""

    def __init__(self, timeout_ms: int, bytes_max: int) -> None:
        """`timeout_ms` 0: a frame may take for ever. `bytes_max` 0: `derived_bytes_max`."""
        self._timeout_s = timeout_ms / 1000
        self._period_s = min(self._timeout_s / 10, PERIOD_MAX_S)
        self._bytes_max = bytes_max or derived_bytes_max()
        self._began_s: dict[ReceivingConnection, float] = {}
        """When the first bytes of its frame arrived, in this order."""
        self._timer: asyncio.TimerHandle | None = None
        self._timeouts = RejectionCounter()
        self._evictions = RejectionCounter()

    # called by a connection

    def add(self, connection: ReceivingConnection, size: int) -> None:
        """The first bytes of a frame have arrived, and the frame is not complete. May abort connections."""
        if not self._began_s:
            _tables.add(self)
        self._began_s[connection] = asyncio.get_running_loop().time()
        self.grow(size)

    def grow(self, size: int) -> None:
        """Further bytes have arrived. May abort connections."""
        port_counts.unfinished_bytes += size
        if port_counts.unfinished_bytes > self._bytes_max:
            self._relieve()

    def remove(self, connection: ReceivingConnection, size: int) -> None:
        """The frame is complete, or its connection is closed: `size` bytes are no longer held."""
        if self._began_s.pop(connection, None) is not None:
            port_counts.unfinished_bytes -= size
            if not self._began_s:
                _tables.discard(self)

    # called by the server

    def start(self) -> None:
        """Starts the timer on the running loop."""
        if self._timeout_s > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._sweep)

    def stop(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # inside

    @property
    def _oldest(self) -> tuple[float, ReceivingConnection]:
        connection = next(iter(self._began_s))
        return self._began_s[connection], connection

    def _relieve(self) -> None:
        """Aborts connections until the process holds no more bytes than it may."""
        while port_counts.unfinished_bytes > self._bytes_max and _tables:
            held = port_counts.unfinished_bytes
            _, connection = min((table._oldest for table in _tables), key=lambda found: found[0])
            port_counts.rejections[PortRejection.RECEIVED_BYTES] += 1
            if count := self._evictions.add():
                log.warning(
                    "aborted %d connections, the last one of %s: %d bytes of unfinished frames, expected at "
                    "most %d (maxReceivedBytes)",
                    count,
                    connection.remote,
                    held,
                    self._bytes_max,
                )
            connection.drop_unfinished()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._timer = loop.call_later(self._period_s, self._sweep)
        late = [one for one, began_s in self._began_s.items() if now_s - began_s >= self._timeout_s]
        for connection in late:
            if connection.reads_later:
                continue
            port_counts.rejections[PortRejection.FRAME_TIMEOUT] += 1
            if count := self._timeouts.add():
                log.warning(
                    "aborted %d connections, the last one of %s: it did not complete a frame within %g s "
                    "(frameTimeoutMillis)",
                    count,
                    connection.remote,
                    self._timeout_s,
                )
            connection.drop_unfinished()
