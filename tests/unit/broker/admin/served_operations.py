"""A broker whose admin operations are called in the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from epochmq_broker.broker import Broker
from epochmq_broker.config.broker_config import from_properties
from epochmq_protocol.admin_api.operations import (
    AdminArguments,
)
from epochmq_protocol.transport.admin_socket import call_admin_socket
from tests.support.net import free_port, loopback
from tests.unit.broker.kit import SMALL

T = Any


class Served:
    """A running broker and its admin socket."""

    def __init__(self, directory: Path, **settings: str) -> None:
        host = loopback(73)
        port = free_port(host)
        self.socket = str(directory / "admin.sock")
        self.config = directory / "broker.conf"
        self.config.write_text("# mine\nfileReservedTime=72\n")
        self.broker = Broker(
            from_properties(
                SMALL
                | {
                    "bindAddress": host,
                    "brokerIP1": host,
                    "listenPort": str(port),
                    "haListenPort": str(port + 1),
                    "storePathRootDir": str(directory / "store"),
                    "adminSocketPath": self.socket,
                    "brokerConfigPath": str(self.config),
                }
                | settings
            )
        )

    async def ask(self, operation: str, kind: type[T], arguments: AdminArguments | None = None) -> T:
        found = await call_admin_socket(self.socket, operation, arguments, timeout_ms=60_000)
        return msgspec.json.decode(found, type=kind)
