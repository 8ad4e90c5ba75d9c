"""The asyncio transport: server, client, TLS, on uvloop where it is installed. The only part of this
package with I/O."""

from __future__ import annotations

from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import Connection
from epochmq_protocol.transport.dispatch import FastHandler, Handler
from epochmq_protocol.transport.loop import run
from epochmq_protocol.transport.server import RemotingServer
from epochmq_protocol.transport.settings import ClientSettings, ServerSettings
from epochmq_protocol.transport.tls import ClientAuth, TlsMode, TlsSettings

__all__ = [
    "ClientAuth",
    "ClientSettings",
    "Connection",
    "FastHandler",
    "Handler",
    "RemotingClient",
    "RemotingServer",
    "ServerSettings",
    "TlsMode",
    "TlsSettings",
    "run",
]
