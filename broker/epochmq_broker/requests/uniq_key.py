"""Generates unique keys for messages that arrive without one (RocketMQ's MessageClientIDSetter)."""

from __future__ import annotations

import os
import secrets
import socket
import time


class UniqKeyGenerator:
    """Generates unique keys of 32 hex digits: address, process id, a random number of this instance,
    milliseconds since the month began, and a counter.

    Time and address only make the keys distinct. The broker reads nothing back from a key; clients display
    its time.
    """

    def __init__(self, address: str) -> None:
        try:
            host = socket.inet_aton(address)
        except OSError:
            host = secrets.token_bytes(4)
        process = (os.getpid() & 0xFFFF).to_bytes(2, "big")
        self._prefix = (host + process + secrets.token_bytes(4)).hex().upper()
        self._counter = 0
        self._month_ms = self._next_month_ms = 0

    def next(self, now_ms: int) -> str:
        """Returns a new unique key. The keys of one instance are distinct unless it generates more than
        65,536 in a millisecond."""
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._turn_month(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._prefix}{(now_ms - self._month_ms) & 0xFFFFFFFF:08X}{self._counter:04X}"

    def _turn_month(self, now_ms: int) -> None:
        today = time.localtime(now_ms / 1000)
        year, month = today.tm_year, today.tm_mon
        first = time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
        next_first = time.mktime((year + month // 12, month % 12 + 1, 1, 0, 0, 0, 0, 0, -1))
        self._month_ms, self._next_month_ms = int(first) * 1000, int(next_first) * 1000
