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
from epochmq_broker.cold_reads import ColdReadPool, ColdReadRetrier
from epochmq_broker.config import BrokerConfig, LiveConfig, LoadedBrokerConfig, advertised_address
from epochmq_broker.consumer_offsets import ConsumerOffsetTable
from epochmq_broker.delay_service import DelayService
from epochmq_broker.ha.service import HAService
from epochmq_broker.local_api.operations import BrokerLocalApi, LocalApiDependencies
from epochmq_broker.message_request_modes import MessageRequestModeTable
from epochmq_broker.message_writer import MessageWriter
from epochmq_broker.periodic_tasks import PeriodicTasks
from epochmq_broker.processors.broker_name_check import reject_requests_for_others
from epochmq_broker.processors.client import ClientProcessor
from epochmq_broker.processors.mqadmin import mqadmin_handlers
from epochmq_broker.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.processors.pull import PullProcessor
from epochmq_broker.processors.query import QueryProcessor
from epochmq_broker.processors.replica_control import ReplicaControlProcessor
from epochmq_broker.processors.replica_group import ReplicaGroupProcessor
from epochmq_broker.processors.reply import ReplyProcessor
from epochmq_broker.processors.send import SendProcessor
from epochmq_broker.processors.send_back import SendBackProcessor
from epochmq_broker.processors.send_fast import FastSend
from epochmq_broker.processors.table_sync import TableSyncProcessor
from epochmq_broker.rebalance_locks import RebalanceLocks
from epochmq_broker.registration import NameserverRegistration
from epochmq_broker.replicas.manager import ReplicasManager
from epochmq_broker.replicas.replica_control import ReplicaControl
from epochmq_broker.replicas.role_transitions import ReplicaDependencies
from epochmq_broker.slave_sync import SlaveSync
from epochmq_broker.state_files import StateFiles
from epochmq_broker.stats import BrokerStats
from epochmq_broker.store.config_writer import ConfigWriter
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.store_config import StoreConfig
from epochmq_broker.subscription_groups import SubscriptionGroupTable
from epochmq_broker.topics import TopicTable
from epochmq_broker.uniq_key import UniqKeyGenerator
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


class BrokerPhase(enum.Enum):
    """Where a broker is in its life."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"


class Broker:
    """One broker. Make it, `start`, `stop`."""

    def __init__(self, loaded: LoadedBrokerConfig) -> None:
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
        self.writer = MessageWriter(self.live, self.store)
        self.ha = HAService(self.live, self.store, self.writer, controlled=config.enable_controller_mode)
        self.delays = DelayService(self.live, self.store, self.writer, self.stats)
        self.client = RemotingClient()
        self.delays.write = self.config_writer.write
        self.registration = NameserverRegistration(self.live, self.topics, self.client)
        self.registration.on_response.append(self._registered)
        self.periodic_tasks = PeriodicTasks()
        uniq_keys = UniqKeyGenerator(_ip_of(config))
        self.send = SendProcessor(
            self.live,
            self.writer,
            self.topics,
            self.groups,
            self.locks,
            self.stats,
            self.store_host,
            uniq_keys,
        )
        self.fast_send = FastSend(
            self.live, self.store, self.writer, self.topics, self.stats, self.store_host
        )
        self.cold_reads = ColdReadPool()
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
        self.request_modes = MessageRequestModeTable(
            config.config_dir, self.topics, self.groups, self.config_writer.write
        )
        self.slave_sync = SlaveSync(
            self.client, self.store, self.topics, self.groups, self.offsets, self.delays, self.request_modes
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
        self._phase = BrokerPhase.NEW

    # life

    async def start(self) -> None:
        """Serves from now on. Raises ConfigError, OSError or StoreDamagedError; `stop` is needed then too."""
        gc.disable()  # else the collector looks at the growing tables again and again
        try:
            await self._start()
        finally:
            gc.enable()

    async def _start(self) -> None:
        await self.start_without_ports()
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
        # These objects stay: the collector never looks at them again.
        gc.collect()
        gc.freeze()
        log.info("broker %s serves at %s", config.broker_name, config.broker_addr)

    async def start_without_ports(self) -> None:
        """Everything but the ports and the nameservers."""
        if self.replicas is not None:
            self.replicas.load()
        self.store.load()
        self.steering.load()
        self.ha.load()
        self.files.load()
        self.delays.load()
        self.request_modes.load()
        self._write_tables()
        self.store.on_arrival.append(self.pull.hold.message_arrived)
        self.store.start()
        self.live.on_change.append(self._reconfigured)
        self.topics.on_change.append(self._topics_changed)
        self.cold_reads.start()
        self.pull.hold.start()
        if self.live.current.broker_role != "SLAVE":
            self.delays.start()
        self._start_ticks()
        self._phase = BrokerPhase.RUNNING

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
        self.periodic_tasks.stop()
        if self._phase is BrokerPhase.RUNNING:
            self._phase = BrokerPhase.STOPPED
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
        parts = MqadminDependencies(
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
            **mqadmin_handlers(parts),
            **self.request_modes.handlers(),
            **TableSyncProcessor(parts, self.request_modes).handlers(),
            **self.send.handlers(),
            **SendBackProcessor(
                self.live, self.store, self.writer, self.topics, self.groups, self.stats
            ).handlers(),
            **ReplyProcessor(
                self.live, self.writer, self.topics, self.clients, self.stats, self.store_host
            ).handlers(),
            **QueryProcessor(self.live, self.store).handlers(),
            **ReplicaGroupProcessor(self.live, self.ha, self.replicas).handlers(),
            **ReplicaControlProcessor(
                self.steering, self.store, self.ha, self.slave_sync, self.replicas
            ).handlers(),
            **self.client_requests.handlers(),
        }
        handlers = ColdReadRetrier(self.store.reader, self.cold_reads).wrap(handlers)
        return handlers if self.replicas is None else self.replicas.gate.guard(handlers)

    def _make_replicas(self) -> ReplicasManager:
        return ReplicasManager(
            ReplicaDependencies(
                self.live,
                self.store,
                self.writer,
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

    def _make_admin(self, handlers: Mapping[int, RequestHandler]) -> BrokerLocalApi:
        parts = LocalApiDependencies(
            self.live,
            self.store,
            self.ha,
            self.writer,
            self.stats,
            self.registration,
            self.client,
            self.slave_sync,
            self.steering,
            self.replicas,
            self.cold_reads,
        )
        return BrokerLocalApi(parts, InProcessCalls(handlers))

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
            server(self.main_port_handlers(common), {**fast, **self.pull.fast()}),
            server(reject_requests_for_others(common, self.live), fast),
        )

    def main_port_handlers(self, common: Mapping[int, RequestHandler]) -> dict[int, RequestHandler]:
        """What the main port answers, besides the hot paths: `handlers`, pulls, and only what is meant for
        this broker."""
        return reject_requests_for_others({**common, **self.pull.handlers()}, self.live)

    def _start_ticks(self) -> None:
        live, every = self.live, self.periodic_tasks.every
        every(lambda: SAMPLE_MS, "statistics", self._sample)
        every(
            lambda: live.current.flush_consumer_offset_interval,
            "writing consumer offsets",
            self.files.persist_offsets,
        )
        every(lambda: live.current.flush_delay_offset_interval, "writing delay offsets", self.delays.persist)
        every(lambda: CLIENT_SWEEP_MS, "looking for silent clients", self._sweep_clients)
        every(lambda: LOCK_SWEEP_MS, "looking for expired locks", lambda: self.locks.sweep(now_ms()))
        self.periodic_tasks.start()

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
