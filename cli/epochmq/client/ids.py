"""Generates the ids of clients and the unique keys of messages."""

from __future__ import annotations

import os
import secrets
import socket
import time


def client_id() -> str:
    """A unique client id in the format of RocketMQ's clients: `host@pid#nanoseconds`."""
    return f"{socket.gethostname()}@{os.getpid()}#{time.monotonic_ns()}"


class ClientUniqKeyGenerator:
    """Generates unique keys in the format of RocketMQ's MessageClientIDSetter, 32 upper-case hex digits: the
    address 127.0.0.1, the process id, a random number of this instance, the ms since the beginning of the
    month in which the instance was made, and a counter. Brokers do not parse the keys; some tools read the
    time from them."""

    def __init__(self) -> None:
        process = (os.getpid() & 0xFFFF).to_bytes(2, "big")
        self._prefix = (bytes([127, 0, 0, 1]) + process + secrets.token_bytes(4)).hex().upper()
        today = time.localtime()
        self._month_ms = int(time.mktime((today.tm_year, today.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
        self._counter = 0

    def next(self) -> str:
        """A new unique key. Up to 65,536 keys in one millisecond are distinct."""
        self._counter = (self._counter + 1) & 0xFFFF
        now_ms = time.time_ns() // 1_000_000
        return f"{self._prefix}{(now_ms - self._month_ms) & 0xFFFFFFFF:08X}{self._counter:04X}"
