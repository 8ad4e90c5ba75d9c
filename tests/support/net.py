"""Loopback addresses and ports for tests. Every process of a test gets an address of its own in 127/8, so
that several brokers may share a port number. Test runs side by side have shares of the addresses and ports
that do not meet: what one has chosen and not yet taken, the other does not choose."""

from __future__ import annotations

import functools
import itertools
import os
import socket
from collections.abc import Iterator, Sequence

_PORT_FIRST = 20_000
_SHARES = 30
_PORTS = 400
"""Of one share; all of them end below the range the kernel hands out to outgoing connections."""
_BLOCKS = 8
"""Blocks of 250 addresses of one share."""
_CLAIM_PORT = 19_900
_claims: list[socket.socket] = []
_numbers: dict[int, Iterator[int]] = {}


@functools.cache
def _share() -> int:
    """The number of this process's share. It is held by a bound socket, for as long as the process lives."""
    for number in range(_SHARES):
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", _CLAIM_PORT + number))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return number
    return os.getpid() % _SHARES  # so many at once that some must share


@functools.cache
def _ports() -> Iterator[int]:
    first = _PORT_FIRST + _share() * _PORTS
    return itertools.cycle(range(first, first + _PORTS, 8))


def loopback(octet: int = 56) -> str:
    """An address 127.`octet`.x.y that neither this test run nor one beside it uses again."""
    number = next(_numbers.setdefault(octet, itertools.count(1)))
    block = _share() * _BLOCKS + number // 250 % _BLOCKS
    return f"127.{octet}.{block + 1}.{number % 250 + 1}"


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
    for port in itertools.islice(_ports(), _PORTS):
        port += 4
        if all(_is_free(host, port + d) and _is_free("0.0.0.0", port + d) for d in (0, *beside)):
            return port
    raise AssertionError(f"no free port on {host}")
