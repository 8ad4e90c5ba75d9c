"""Holds clients' requests while a new master waits for its first lease and for enough replicas.

Without it, the new master would reject requests that it can serve a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from epochmq_broker.membership.controlled.request_gate import RequestGate

LEASE_WAIT_S: Final = 1.0
"""How long requests are held at most; then they are served or rejected as the lease permits."""


class LeaseHold:
    """The hold of one broker. `is_ready` says whether it may take messages now, apart from the hold."""

    def __init__(self, gate: RequestGate, is_ready: Callable[[], bool]) -> None:
        self._gate = gate
        self._is_ready = is_ready
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Holds requests from now on."""
        self.cancel()
        self._gate.hold()
        self._timer = asyncio.get_running_loop().call_later(LEASE_WAIT_S, self.release)

    def release_if_ready(self) -> None:
        """Opens the gate if requests are held and the master may take messages now."""
        if self._timer is not None and self._is_ready():
            self.release()

    def release(self) -> None:
        """Opens the gate if requests are held."""
        if self.cancel():
            self._gate.open()

    def cancel(self) -> bool:
        """Ends the hold and leaves the gate as it is; whether requests were held."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return timer is not None
