"""Loopback addresses and ports for tests. Every process of a test gets an address of its own in 127/8, so
that several brokers may share a port number and parallel test runs stay apart."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator, Sequence

_PORT_FIRST, _PORT_LAST = 20_000, 32_000  # below the range the kernel hands out to outgoing connections
_numbers: dict[int, Iterator[int]] = {}
_ports = itertools.cycle(range(_PORT_FIRST + os.getpid() % 1000 * 8, _PORT_LAST, 8))


def loopback(octet: int = 56) -> str:
    """An address 127.`octet`.x.y nobody else in this process got; x goes by the process id."""
    count = _numbers.setdefault(octet, itertools.count(1))
    number = next(count)
    return f"127.{octet}.{(os.getpid() + number // 250) % 250 + 1}.{number % 250 + 1}"


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str, *, beside: Sequence[int] = (-2, 1)) -> int:
    """A port that is free on `host` together with its neighbours at these distances: a broker also listens
    two below (VIP) and one above (HA, on every address)."""
    for _ in range(2000):
        port = next(_ports) + 4
        if all(_is_free(host, port + d) and _is_free("0.0.0.0", port + d) for d in (0, *beside)):
            return port
    raise AssertionError(f"no free port on {host}")
