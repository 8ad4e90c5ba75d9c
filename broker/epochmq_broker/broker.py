"""The broker put together: which parts there are, who knows whom, and the order in which they start and stop.

Start: recover the store, read the tables, deliver delayed messages, listen, and only then tell the
nameservers. Stop is the way back: take leave of the nameservers, answer what is held and under way, write the
tables, flush and close the store (which removes the `abort` file, the mark of a broker that did not stop).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import gc
import logging
import socket
import time
from collections.abc import Mapping

from epochmq_broker.clients import ClientRegistry
from epochmq_broker.cold_reads import ColdReads, OffLoop
from epochmq_broker.config import BrokerConfig, LiveConfig, Loaded, advertised_address
from epochmq_broker.groups import SubscriptionGroupTable
from epochmq_broker.ha.service import HAService
from epochmq_broker.local_admin.answers import BrokerAdmin
from epochmq_broker.local_admin.answers import Parts as LookedAt
from epochmq_broker.locks import RebalanceLocks
from epochmq_broker.offsets import ConsumerOffsetTable
from epochmq_broker.processors.addressee import for_this_broker
from epochmq_broker.processors.admin import admin_handlers
from epochmq_broker.processors.admin_parts import AdminParts
from epochmq_broker.processors.client import ClientProcessor
from epochmq_broker.processors.group import GroupProcessor
from epochmq_broker.processors.message_modes import MessageModes
from epochmq_broker.processors.pull import PullProcessor
from epochmq_broker.processors.query import QueryProcessor
from epochmq_broker.processors.reply import ReplyProcessor
from epochmq_broker.processors.send import SendProcessor
from epochmq_broker.processors.send_back import SendBackProcessor
from epochmq_broker.processors.send_fast import FastSend
from epochmq_broker.processors.steering import SteeringProcessor
from epochmq_broker.processors.tables import TableProcessor
from epochmq_broker.put import MessagePut
from epochmq_broker.registration import Registration
from epochmq_broker.replicas.manager import ReplicasManager
from epochmq_broker.replicas.replica_control import ReplicaControl
from epochmq_broker.replicas.role_transitions import ReplicaDependencies
from epochmq_broker.schedule import DelayService
from epochmq_broker.slave_sync import SlaveSync
from epochmq_broker.state_files import StateFiles
from epochmq_broker.stats import BrokerStats
from epochmq_broker.store.config_writer import ConfigWriter
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.store_config import StoreConfig
from epochmq_broker.ticks import Ticks
from epochmq_broker.topics import TopicTable
from epochmq_broker.uniq_key import UniqKeys
from epochmq_protocol.headers import RegisterBrokerResponseHeader
from epochmq_protocol.message import encode_host
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import FastRequestHandler, RemotingConnection, RequestHandler
from epochmq_protocol.transport.in_process_calls import InProcessCalls
from epochmq_protocol.transport.server import RemotingServer
from epochmq_protocol.transport.settings import ServerSettings
from epochmq_protocol.transport.tls import ClientAuth, TlsMode, TlsSettings

log = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
CLIENT_SWEEP_MS = 10_000
LOCK_SWEEP_MS = 60_000
SAMPLE_MS = 1000


class Phase(enum.Enum):
    """Where a broker is in its life."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"


class Broker:
    """One broker. Make it, `start`, `stop`."""

    def __init__(self, loaded: Loaded) -> None:
        self.live = LiveConfig(loaded.config, loaded.without_effect)
        config = self.live.current
        self.store_host = encode_host(_ip_of(config), config.listen_port)
        self.topics = TopicTable(config, now_ms, self._epoch)
        self.groups = SubscriptionGroupTable(config, now_ms, self._epoch)
        self.offsets = ConsumerOffsetTable(
            now_ms,
            version_step=config.consumer_offset_update_version_step,
            server_side_reset=config.use_server_side_reset_offset,
            state_version=self._epoch,
        )
        self.clients = ClientRegistry(config.channel_expired_timeout, config.subscription_expired_timeout)
        self.locks = RebalanceLocks()
        self.stats = BrokerStats(config.broker_cluster_name, now_ms(), self.topics.is_system_topic)
        self.config_writer = ConfigWriter()
        self.files = StateFiles(config.config_dir, self.topics, self.groups, self.offsets, self.config_writer)
        self.store = MessageStore(StoreConfig.of(config), self.store_host)
        self.files.before_offsets = self.store.when_queues_written
        self.put = MessagePut(self.live, self.store)
        self.ha = HAService(self.live, self.store, self.put, controlled=config.enable_controller_mode)
        self.delays = DelayService(self.live, self.store, self.put, self.stats)
        self.client = RemotingClient()
        self.delays.write = self.config_writer.write
        self.registration = Registration(self.live, self.topics, self.client)
        self.registration.on_answer.append(self._registered)
        self.ticks = Ticks()
        uniq_keys = UniqKeys(_ip_of(config))
        self.send = SendProcessor(
            self.live, self.put, self.topics, self.groups, self.locks, self.stats, self.store_host, uniq_keys
        )
        self.fast_send = FastSend(self.live, self.store, self.put, self.topics, self.stats, self.store_host)
        self.cold_reads = ColdReads()
        self.pull = PullProcessor(
            self.live,
            self.store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self.stats,
            self.cold_reads,
        )
        self.modes = MessageModes(config.config_dir, self.topics, self.groups, self.config_writer.write)
        self.slave_sync = SlaveSync(
            self.client, self.store, self.topics, self.groups, self.offsets, self.delays, self.modes
        )
        self.client_requests = ClientProcessor(
            self.live, self.store, self.topics, self.groups, self.offsets, self.clients, self.locks
        )
        self.clients.on_group_change.append(self.client_requests.notify_group_change)
        self.replicas = self._make_replicas() if config.enable_controller_mode else None
        self.steering = ReplicaControl(self.live, self.store)
        handlers = self.handlers()
        self._servers = self._make_servers(config, handlers)
        self._admin = self._make_admin(handlers) if config.admin_socket_path else None
        self._phase = Phase.NEW

    # life

    async def start(self) -> None:
        """Serves from now on. Raises ConfigError, OSError or StoreDamagedError; `stop` is needed then too."""
        await self.start_parts()
        await self.ha.start()
        config = self.live.current
        for server, port in zip(self._servers, (config.listen_port, config.vip_port), strict=True):
            await server.start(config.bind_address, port)
        if self.replicas is None:
            self.registration.start()
        else:
            self.replicas.start()  # registers as soon as there is a role
        if self._admin is not None:
            await self._admin.start()
        # What is there now stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        log.info("broker %s serves at %s", config.broker_name, config.broker_addr)

    async def start_parts(self) -> None:
        """Everything but the ports and the nameservers."""
        if self.replicas is not None:
            self.replicas.load()
        self.store.load()
        self.steering.load()
        self.ha.load()
        self.files.load()
        self.delays.load()
        self.modes.load()
        self._write_tables()
        self.store.on_arrival.append(self.pull.hold.arrived)
        self.store.start()
        self.live.on_change.append(self._reconfigured)
        self.topics.on_change.append(self._topics_changed)
        self.cold_reads.start()
        self.pull.hold.start()
        if self.live.current.broker_role != "SLAVE":
            self.delays.start()
        self._start_ticks()
        self._phase = Phase.RUNNING

    async def stop(self) -> None:
        """Stops in order; what was acknowledged is on disk afterwards. Does what there is to do after a start
        that failed half way."""
        if self._admin is not None:
            await self._admin.stop()
        if self.replicas is not None:
            await self.replicas.stop()
        await self.registration.stop()
        self.pull.hold.stop()
        await asyncio.gather(*(server.stop(STOP_GRACE_S) for server in self._servers))
        await self.slave_sync.stop()
        await self.ha.stop()
        self.cold_reads.stop()
        self.ticks.stop()
        if self._phase is Phase.RUNNING:
            self._phase = Phase.STOPPED
            self.delays.stop()
            self._write_tables()
        self.store.stop()
        await self.client.close()
        log.info("broker %s has stopped", self.live.current.broker_name)

    def _write_tables(self) -> None:
        """Before the broker serves, and when it serves no more. A full disk keeps it from neither: expiry may
        free space, and what could not be written is due."""
        try:
            self.files.persist()
        except OSError as error:
            log.error("the tables could not be written: %s", error)

    # parts

    def handlers(self) -> dict[int, RequestHandler]:
        """Request code → handler of everything but pulls, which only the main port serves."""
        parts = AdminParts(
            self.live,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.clients,
            self.stats,
            self.files,
            self.delays,
            self.registration,
            self.ha,
        )
        handlers: dict[int, RequestHandler] = {
            **admin_handlers(parts),
            **self.modes.handlers(),
            **TableProcessor(parts, self.modes).handlers(),
            **self.send.handlers(),
            **SendBackProcessor(
                self.live, self.store, self.put, self.topics, self.groups, self.stats
            ).handlers(),
            **ReplyProcessor(
                self.live, self.put, self.topics, self.clients, self.stats, self.store_host
            ).handlers(),
            **QueryProcessor(self.live, self.store).handlers(),
            **GroupProcessor(self.live, self.ha, self.replicas).handlers(),
            **SteeringProcessor(
                self.steering, self.store, self.ha, self.slave_sync, self.replicas
            ).handlers(),
            **self.client_requests.handlers(),
        }
        handlers = OffLoop(self.store.reader, self.cold_reads).wrap(handlers)
        return handlers if self.replicas is None else self.replicas.gate.guard(handlers)

    def _make_replicas(self) -> ReplicasManager:
        return ReplicasManager(
            ReplicaDependencies(
                self.live,
                self.store,
                self.put,
                self.ha,
                self.topics,
                self.delays,
                self.pull,
                self.registration,
                self.client,
                self.slave_sync,
            )
        )

    def _epoch(self) -> int:
        """The master epoch, 0 without a controller: the state version of the tables."""
        return self.replicas.role_transitions.epoch if self.replicas is not None else 0

    def _make_admin(self, handlers: Mapping[int, RequestHandler]) -> BrokerAdmin:
        parts = LookedAt(
            self.live,
            self.store,
            self.ha,
            self.put,
            self.stats,
            self.registration,
            self.client,
            self.slave_sync,
            self.steering,
            self.replicas,
            self.cold_reads,
        )
        return BrokerAdmin(parts, InProcessCalls(handlers))

    def _make_servers(
        self, config: BrokerConfig, common: Mapping[int, RequestHandler]
    ) -> tuple[RemotingServer, RemotingServer]:
        """The main port with everything, and the VIP port without pulls."""
        fast = self.fast_send.fast()
        settings = ServerSettings(idle_timeout_ms=config.server_channel_max_idle_time_seconds * 1000)
        tls = _tls_settings(config)

        def server(
            handlers: Mapping[int, RequestHandler], fast: Mapping[bytes, FastRequestHandler]
        ) -> RemotingServer:
            return RemotingServer(handlers, settings=settings, fast=fast, tls=tls, on_close=self._lost)

        return (
            server(self.served(common), {**fast, **self.pull.fast()}),
            server(for_this_broker(common, self.live), fast),
        )

    def served(self, common: Mapping[int, RequestHandler]) -> dict[int, RequestHandler]:
        """What the main port answers, besides the hot paths: `handlers`, pulls, and only what is meant for
        this broker."""
        return for_this_broker({**common, **self.pull.handlers()}, self.live)

    def _start_ticks(self) -> None:
        live, every = self.live, self.ticks.every
        every(lambda: SAMPLE_MS, "statistics", self._sample)
        every(
            lambda: live.current.flush_consumer_offset_interval,
            "writing consumer offsets",
            self.files.persist_offsets,
        )
        every(lambda: live.current.flush_delay_offset_interval, "writing delay offsets", self.delays.persist)
        every(lambda: CLIENT_SWEEP_MS, "looking for silent clients", self._sweep_clients)
        every(lambda: LOCK_SWEEP_MS, "looking for expired locks", lambda: self.locks.sweep(now_ms()))
        self.ticks.start()

    def _registered(self, answer: RegisterBrokerResponseHeader) -> None:
        """A nameserver says where the group's master serves replicas; a configured address wins. Where it
        serves clients, a slave copies its tables."""
        if self.replicas is not None:
            return  # a nameserver may still name the former master
        if answer.ha_server_addr and not self.live.current.ha_master_address:
            self.ha.follow(answer.ha_server_addr)
        if self.live.current.broker_role == "SLAVE" and answer.master_addr:
            self.slave_sync.follow(answer.master_addr)

    def _sample(self) -> None:
        self.stats.sample(now_ms(), time.localtime().tm_yday)

    def _sweep_clients(self) -> None:
        for channel in self.clients.sweep(now_ms()):
            if isinstance(channel, RemotingConnection):
                channel.close()

    def _lost(self, connection: RemotingConnection) -> None:
        self.clients.channel_closed(connection)

    def _topics_changed(self, names: tuple[str, ...]) -> None:
        """Nobody waits on the queue of a topic that is gone: one made anew under its name is another
        queue."""
        gone = {name for name in names if name not in self.topics}
        if gone:
            self.pull.hold.release(lambda pull: pull.request.topic in gone)

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Hands new settings to whoever keeps them."""
        self.topics.settings = after
        self.groups.settings = after
        self.offsets.version_step = after.consumer_offset_update_version_step
        self.offsets.server_side_reset = after.use_server_side_reset_offset
        self.store.configure(StoreConfig.of(after))


def now_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000


def _ip_of(config: BrokerConfig) -> str:
    """The address that clients reach the broker at; records and message ids hold addresses. A pod's name may
    not be in the DNS yet: then what this host itself would be reached at."""
    host = config.client_ip
    with contextlib.suppress(OSError):
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]  # type: ignore[return-value]
    address = advertised_address(config.bind_address)
    log.warning("%s cannot be resolved; message ids carry %s", host, address)
    return address


def _tls_settings(config: BrokerConfig) -> TlsSettings | None:
    if not config.tls_server_cert_path:
        return None
    return TlsSettings(
        mode=TlsMode(config.tls_server_mode),
        cert_path=config.tls_server_cert_path,
        key_path=config.tls_server_key_path,
        trust_path=config.tls_server_trust_cert_path or None,
        client_auth=ClientAuth(config.tls_server_need_client_auth),
    )
