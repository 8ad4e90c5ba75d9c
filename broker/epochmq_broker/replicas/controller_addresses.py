"""Keeps the addresses of the controllers: those of the configuration, or those behind one DNS name."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

LOOKUP_INTERVAL_S: Final = 120.0
"""How often the name is looked up (fetchControllerAddrByDnsLookup)."""
FIRST_LOOKUP_INTERVAL_S: Final = 1.0
"""How often it is looked up before an address is known."""


class ControllerAddresses:
    """The addresses as `host:port`. `on_change` is called after each change."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.current = addresses
        self.on_change: Callable[[], None] = lambda: None

    def replace(self, addresses: tuple[str, ...]) -> None:
        """Uses these addresses from now on."""
        self.current = addresses
        self.on_change()

    async def look_up(self, name_and_port: str) -> None:
        """Looks up the addresses behind one name, again and again. A failed lookup changes nothing
        (#6873)."""
        host, _, port = name_and_port.rpartition(":")
        loop = asyncio.get_running_loop()
        while True:
            try:
                found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
                addresses = tuple(sorted({f"{one[4][0]!s}:{port}" for one in found}))
                if addresses and addresses != self.current:
                    log.info("the controllers are at %s", ", ".join(addresses))
                    self.replace(addresses)
            except OSError as error:
                log.warning("the name %s of the controllers could not be looked up: %s", host, error)
            await asyncio.sleep(LOOKUP_INTERVAL_S if self.current else FIRST_LOOKUP_INTERVAL_S)
