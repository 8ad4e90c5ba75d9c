"""The ids that clients make up: of themselves and of their messages."""

from __future__ import annotations

import os
import secrets
import socket
import time


def client_id() -> str:
    """One that no other client has: `host@pid#nanoseconds`, as Java clients name themselves."""
    return f"{socket.gethostname()}@{os.getpid()}#{time.monotonic_ns()}"


class MessageIds:
    """Unique keys in the form of Java's MessageClientIDSetter: 32 hex digits, upper case. Address, process, a
    number of this instance, ms since the month began, a counter. Brokers take them as they are; people's
    tools read the time out of them."""

    def __init__(self) -> None:
        process = (os.getpid() & 0xFFFF).to_bytes(2, "big")
        self._prefix = (bytes([127, 0, 0, 1]) + process + secrets.token_bytes(4)).hex().upper()
        today = time.localtime()
        self._month_ms = int(time.mktime((today.tm_year, today.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
        self._counter = 0

    def next(self) -> str:
        """A new one; 65,536 of a millisecond are distinct."""
        self._counter = (self._counter + 1) & 0xFFFF
        now_ms = time.time_ns() // 1_000_000
        return f"{self._prefix}{(now_ms - self._month_ms) & 0xFFFFFFFF:08X}{self._counter:04X}"
