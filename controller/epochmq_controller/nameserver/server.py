"""Runs a nameserver (`NamesrvController`): its port, its timers, and the effects of its route tables."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from epochmq_controller.nameserver.config import LoadedNamesrvConfig
from epochmq_controller.nameserver.kv_config import KVConfig, KVLimits
from epochmq_controller.nameserver.processor import NamesrvProcessor
from epochmq_controller.nameserver.routes import CloseChannel, NotifyMinBrokerId, RouteEffect, RouteTables
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.errors import ConfigError, EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_controller import NotifyMinBrokerIdChangeRequestHeader
from epochmq_protocol.member_requests import NAMESERVER_REQUESTS
from epochmq_protocol.transport import RemotingClient, RemotingConnection, RemotingServer, TlsMode
from epochmq_protocol.transport.in_process_calls import InProcessCalls
from epochmq_protocol.transport.member_authentication import guarded
from epochmq_protocol.transport.outgoing_tls import ClientCertificates
from epochmq_protocol.transport.server_certificates import ServerCertificates

log = logging.getLogger(__name__)

NOTIFY_TIMEOUT_MS = 300
NOTIFICATIONS_MAX = 1_000
"""Pending notifications. Further ones are dropped: brokers also poll their group every second."""


def checked_mode(key: str, mode: TlsMode, certificates: ServerCertificates) -> TlsMode:
    """`mode`. ConfigError: it needs a certificate, and there is none."""
    if mode is TlsMode.ENFORCING and not certificates.exist:
        raise ConfigError("tls.server.certPath", None, f"a PEM certificate, since {key} is enforcing")
    return mode


def now_ms() -> int:
    """The wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Nameserver:
    """One nameserver: construct it, `start`, `stop`."""

    def __init__(self, loaded: LoadedNamesrvConfig) -> None:
        """ConfigError if the TLS files, or the secrets of the members, cannot be used."""
        config = loaded.config
        self.tables = RouteTables(config)
        self._kv = KVConfig(Path(config.kv_config_path), self._kv_limits)
        processor = NamesrvProcessor(
            self.tables,
            self._kv,
            extra=dict(loaded.extra),
            now_ms=now_ms,
            apply=self._apply,
            schedule_unregister=self._schedule_unregister,
        )
        handlers = processor.handlers()
        self.calls = InProcessCalls(handlers)
        external_mode = loaded.tls.mode
        if config.external_tls_mode is not None:
            external_mode = TlsMode(config.external_tls_mode)
        certificates = ServerCertificates.for_ports(loaded.tls, loaded.tls.mode, external_mode)
        members = config.members()
        self.server = RemotingServer(
            guarded(members, handlers, NAMESERVER_REQUESTS),
            settings=config.server_settings(),
            tls=certificates,
            tls_mode=checked_mode("tls.server.mode", loaded.tls.mode, certificates),
            on_close=self._on_close,
        )
        self.external: RemotingServer | None = None
        if config.external_listen_port is not None:
            self.external = RemotingServer(
                processor.external_handlers(),
                default=processor.reject_external,
                settings=config.server_settings(),
                tls=certificates,
                tls_mode=checked_mode("externalTlsMode", external_mode, certificates),
            )
        self.outgoing = ClientCertificates.of_member(loaded.outgoing_tls)
        self._client = RemotingClient(members=members, tls=self.outgoing)
        self._scan_timer: asyncio.TimerHandle | None = None
        self._unregister: asyncio.Handle | None = None
        self._notifications: set[asyncio.Task[None]] = set()

    def _kv_limits(self) -> KVLimits:
        config = self.tables.config
        return KVLimits(config.kv_config_max_entries, config.kv_config_max_chars)

    async def start(self) -> None:
        """Loads the file of the KV configuration (`kvConfigPath`) and listens. ConfigError if the file is
        damaged, OSError if the address cannot be bound."""
        config = self.tables.config
        self._kv.load()
        await self.server.start(config.bind_address, config.listen_port)
        if self.external is not None and config.external_listen_port is not None:
            await self.external.start(config.bind_address, config.external_listen_port)
            log.info("clients outside are served at port %d", self.external.port)
        self._scan_live_brokers()

    async def stop(self) -> None:
        """Completes the pending requests, then closes all connections."""
        servers = [self.server] if self.external is None else [self.server, self.external]
        await asyncio.gather(*(one.stop(self.tables.config.stop_grace_s()) for one in servers))
        for handle in (self._scan_timer, self._unregister):
            if handle is not None:
                handle.cancel()
        notifications = list(self._notifications)
        for task in notifications:
            task.cancel()
        await asyncio.gather(*notifications, return_exceptions=True)
        await self._client.close()

    # effects

    def _scan_live_brokers(self) -> None:
        """Closes the connections of brokers that have been silent for too long. Repeats itself."""
        loop = asyncio.get_running_loop()
        period_s = self.tables.config.scan_not_active_broker_interval / 1000
        self._scan_timer = loop.call_later(period_s, self._scan_live_brokers)
        self._apply(self.tables.scan(now_ms()))
        self._schedule_unregister()

    def _on_close(self, connection: RemotingConnection) -> None:
        if self.server.dispatcher.stopping:
            return  # the nameserver itself closes all connections
        if self.tables.channel_closed(connection):
            log.warning("the connection of broker %s closed", connection.remote)
            self._schedule_unregister()

    def _schedule_unregister(self) -> None:
        """Collects all unregistrations of this turn of the event loop in one batch."""
        if self._unregister is None and self.tables.has_pending:
            self._unregister = asyncio.get_running_loop().call_soon(self._unregister_pending)

    def _unregister_pending(self) -> None:
        self._unregister = None
        self._apply(self.tables.unregister_pending())

    def _apply(self, effects: list[RouteEffect]) -> None:
        for effect in effects:
            if isinstance(effect, CloseChannel):
                log.warning(
                    "broker %s timed out: it sent neither a registration nor a heartbeat for %d ms",
                    effect.address,
                    effect.timeout_ms,
                )
                if isinstance(effect.channel, RemotingConnection):
                    effect.channel.close()
            else:
                self._notify(effect)

    def _notify(self, effect: NotifyMinBrokerId) -> None:
        log.info(
            "the smallest broker id is now %d at %s: notifying %s",
            effect.min_broker_id,
            effect.min_broker_address,
            ", ".join(effect.addresses),
        )
        for address in effect.addresses:
            if len(self._notifications) >= NOTIFICATIONS_MAX:
                log.warning("dropped a notification of broker %s: too many are pending", address)
                continue
            task = asyncio.get_running_loop().create_task(self._send(address, effect))
            self._notifications.add(task)
            task.add_done_callback(self._notifications.discard)

    async def _send(self, address: str, effect: NotifyMinBrokerId) -> None:
        header = NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=effect.min_broker_id,
            min_broker_addr=effect.min_broker_address,
            offline_broker_addr=effect.offline_address,
            ha_broker_addr=effect.ha_address,
        )
        try:
            command = request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)
            await self._client.oneway(address, command, NOTIFY_TIMEOUT_MS)
        except EpochMQError as error:
            log.warning("cannot notify broker %s of the smallest broker id: %s", address, error)
