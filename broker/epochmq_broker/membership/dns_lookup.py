"""Keeps the addresses behind a DNS name up to date."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

FIRST_LOOKUP_INTERVAL_S: Final = 1.0
"""How often a name is looked up before an address is known."""


async def follow_name(
    name_and_port: str,
    of: str,
    known: Callable[[], tuple[str, ...]],
    replace: Callable[[tuple[str, ...]], None],
    interval_s: Callable[[], float],
) -> None:
    """Looks up the addresses behind one `host:port`, again and again, every `interval_s` seconds. `known` are
    the present addresses, `host:port` each; `replace` gets other ones, sorted. A failed lookup changes
    nothing (#6873). `of` says in the log whose name it is."""
    host, _, port = name_and_port.rpartition(":")
    loop = asyncio.get_running_loop()
    while True:
        try:
            found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            addresses = tuple(sorted({f"{one[4][0]!s}:{port}" for one in found}))
            if addresses and addresses != known():
                log.info("the %s are at %s", of, ", ".join(addresses))
                replace(addresses)
        except OSError as error:
            log.warning("the name %s of the %s could not be looked up: %s", host, of, error)
        await asyncio.sleep(interval_s() if known() else FIRST_LOOKUP_INTERVAL_S)
