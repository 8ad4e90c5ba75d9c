"""Keeps the addresses of the controllers: those of the configuration, or those behind one DNS name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from epochmq_broker.membership.dns_lookup import follow_name

LOOKUP_INTERVAL_S: Final = 120.0
"""How often the name is looked up (fetchControllerAddrByDnsLookup)."""


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
        """Looks up the addresses behind one name, again and again."""
        await follow_name(
            name_and_port, "controllers", lambda: self.current, self.replace, lambda: LOOKUP_INTERVAL_S
        )
