"""Sends and receives remoting frames with asyncio: server, client, TLS, the admin socket. No other part of
the protocol package but `durable_files` and `log_lines` does I/O."""

from __future__ import annotations

from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import FastRequestHandler, RemotingConnection, RequestHandler
from epochmq_protocol.transport.loop import run
from epochmq_protocol.transport.server import RemotingServer
from epochmq_protocol.transport.settings import ClientSettings, ServerSettings
from epochmq_protocol.transport.tls import ClientAuth, TlsMode, TlsSettings

__all__ = [
    "ClientAuth",
    "ClientSettings",
    "FastRequestHandler",
    "RemotingClient",
    "RemotingConnection",
    "RemotingServer",
    "RequestHandler",
    "ServerSettings",
    "TlsMode",
    "TlsSettings",
    "run",
]
