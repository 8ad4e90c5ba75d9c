"""Builds the broker from its components, and starts and stops them in order.

Start: recover the store, load the tables, deliver delayed messages, listen, and only then register with the
nameservers. Stop, in reverse: unregister, finish held and running requests, write the tables, flush and close
the store. Closing removes the `abort` file, which marks a broker that did not stop in order.

Components are named in the order in which they depend on each other. Which availability mode the broker has
is decided once (`membership.modes`); nothing here asks for it.
"""

from __future__ import annotations

import enum
import gc
import logging
import time
from functools import partial

from epochmq_broker.admin.dependencies import AdminApiDependencies
from epochmq_broker.admin.operations import BrokerAdminApi
from epochmq_broker.auth.access_control import AccessControl
from epochmq_broker.auth.access_settings import AccessSettings, parse_credentials
from epochmq_broker.auth.provisioning import provide_users
from epochmq_broker.config.addresses import client_ip_address
from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig, LoadedBrokerConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.config.tls_settings import outgoing_tls
from epochmq_broker.membership.acting.group_poll import other_members
from epochmq_broker.membership.controlled.replica_control import ReplicaControl
from epochmq_broker.membership.modes.availability_mode import GroupParts
from epochmq_broker.membership.modes.choice import mode_of
from epochmq_broker.membership.nameserver_lookup import NameserverLookup
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.replication.ha.service import HAService
from epochmq_broker.replication.scrub.log_scrub import LogScrub
from epochmq_broker.replication.scrub.peer_copies import PeerCopies
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.requests.client_ports import ClientPorts
from epochmq_broker.requests.fast_failure import FastFailure
from epochmq_broker.requests.processors.static_pull import StaticPull
from epochmq_broker.requests.request_processors import ProcessorDependencies, RequestProcessors
from epochmq_broker.services.cold_control.pull_control import ColdPullControl
from epochmq_broker.services.cold_reads import ColdReadPool
from epochmq_broker.services.compaction.compacted_reads import CompactedReads
from epochmq_broker.services.compaction.compaction_service import CompactionService
from epochmq_broker.services.delay_service import DelayService
from epochmq_broker.services.master_services import MasterServices
from epochmq_broker.services.periodic_tasks import PeriodicTasks
from epochmq_broker.services.pop.checkpoints import revive_topic
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.services.timer.put_hook import TimerPutHook
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_broker.services.timer.timer_store import TimerStore
from epochmq_broker.services.transactions.transaction_service import TransactionService
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.tables.filters.message_filter import bit_map_of
from epochmq_broker.tables.static_topics.cleaner import MappingCleaner
from epochmq_broker.tables.static_topics.remote_queues import RemoteQueues
from epochmq_broker.writing.escape.bridge import EscapeBridge
from epochmq_broker.writing.escape.remote_messages import RemoteMessageReader
from epochmq_broker.writing.escape.rules import EscapeKind
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_broker.writing.quarantine import Quarantine
from epochmq_broker.writing.topic_routes import TopicRoutes
from epochmq_protocol.message import encode_host
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.in_process_calls import InProcessCalls
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_protocol.transport.outgoing_tls import ClientCertificates

log = logging.getLogger(__name__)

CLIENT_SWEEP_MS = 10_000
LOCK_SWEEP_MS = 60_000
FILTERS_WRITE_MS = 10_000
SAMPLE_MS = 1000
ORDER_INFO_MS = 10_000


class BrokerPhase(enum.Enum):
    """The phases of a broker's life."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"


class Broker:
    """One broker. Construct it, `start` it, `stop` it."""

    def __init__(self, loaded: LoadedBrokerConfig) -> None:
        self.live = live = LiveConfig(loaded.config, loaded.without_effect, loaded.overrides)
        mode_type = mode_of(loaded.config)
        mode_type.take_first_role(live)
        config = live.current
        client_ip = client_ip_address(config)
        self.tables = tables = BrokerTables(config, live.state_version)
        self.topics, self.groups, self.offsets = tables.topics, tables.groups, tables.offsets
        store_host = encode_host(client_ip, config.listen_port)
        computes_bit_maps = config.enable_calc_filter_bit_map and config.enable_consume_queue_ext
        self.store = mode_type.make_store(
            config,
            store_host,
            is_batch_topic=tables.topics.is_batch_cq,
            bit_map=partial(bit_map_of, tables.filters) if computes_bit_maps else None,
        )
        live.standing.store_changed(self.store.state.writable)
        self.store.state.on_writable.append(live.standing.store_changed)
        tables.files.write_offsets_after_queues(self.store.when_queues_written)
        timers = TimerStore.of(config) if config.timer_wheel_enable else None
        timer_hook = None if timers is None else TimerPutHook(live, timers.wheel.num)
        self.writer = MessageWriter(live, self.store, timer_hook)
        self.members = members = MemberAuthentication.of(
            config.member_secret_path, allow_unauthenticated=config.allow_unauthenticated_members
        )
        self.ha = HAService(
            live, self.store, self.writer, controlled=mode_type.is_controlled, members=members
        )
        credentials = parse_credentials(config.inner_client_authentication_credentials)
        outgoing = ClientCertificates.of_member(outgoing_tls(config))
        self.client = RemotingClient(credentials=credentials, members=members, tls=outgoing)
        self.routes = TopicRoutes(live, self.client)
        peers = PeerCopies(live, self.client, partial(other_members, self.client, live))
        self.scrub = LogScrub(live, self.store, confirmed=self._confirmed, peers=peers)
        self.quarantine = Quarantine(
            live, writer=self.writer, create_topic=tables.topics.create_in_send_back, store_host=store_host
        )
        self.escape = EscapeBridge(
            live,
            writer=self.writer,
            routes=self.routes,
            client=self.client,
            revive_topic=revive_topic(config.broker_cluster_name),
            quarantine=self.quarantine,
        )
        self.cold_reads = ColdReadPool()
        context = self.service_context = ServiceContext(
            live=live,
            store=self.store,
            tables=tables,
            cold_reads=self.cold_reads,
            store_host=store_host,
            write_file=tables.file_writer.write,
            quarantine=self.quarantine,
        )
        self.delays = DelayService(context, sink_of_level=lambda _level: self.escape.lane(EscapeKind.DELAY))
        self.timer = None if timers is None else self._make_timer(context, timers)
        self.access = AccessControl(AccessSettings.of(config), tables.auth, now_ms)
        tables.clients.may_take_over = self.access.is_same_user
        self.transactions = TransactionService(
            context,
            writer=self.writer,
            sink=self.escape.lane(EscapeKind.TRANSACTION),
            may_publish=self.access.may_publish,
        )
        self.compaction = CompactionService(
            context, client=self.client, master=lambda: self.slave_sync.master
        )
        self.pop = self._make_pop(context)
        self.remote_queues = RemoteQueues(live, self.client)
        self.special_services = MasterServices(
            self.escape,
            self.delays,
            self.transactions.ops,
            self.transactions.checks,
            *([] if self.timer is None else [self.timer]),
            self.pop,
        )
        self.master_services = MasterServices(
            self.special_services,
            MappingCleaner(live, tables.static_topics, self.remote_queues),
            before_fence=(self.transactions.ops.flush, self.pop.store_buffered),
            when_replicated=(self.pop.commit_safe,),
        )
        self.registration = NameserverRegistration(live, self.topics, tables.static_topics, self.client)
        self.nameserver_lookup = NameserverLookup(live)
        self.slave_sync = SlaveSync(
            client=self.client,
            store=self.store,
            tables=tables,
            delays=self.delays,
            timer=self.timer,
        )
        self.cold_control = ColdPullControl(live, self.store, tables.clients)
        self.replica_control = ReplicaControl(live, self.store)
        self.periodic_tasks = PeriodicTasks()
        self.processors = RequestProcessors(
            ProcessorDependencies(
                live=live,
                store=self.store,
                writer=self.writer,
                ha=self.ha,
                tables=tables,
                delays=self.delays,
                registration=self.registration,
                slave_sync=self.slave_sync,
                replica_control=self.replica_control,
                cold_reads=self.cold_reads,
                cold_control=self.cold_control,
                compaction=self.compaction,
                remote_queues=self.remote_queues,
                timer=self.timer,
                transactions=self.transactions,
                pop=self.pop,
                client=self.client,
                routes=self.routes,
                access=self.access,
                members=members,
                copies=self.scrub.served,
                client_ip=client_ip,
                store_host=store_host,
            )
        )
        self.mode = mode_type(
            GroupParts(
                live,
                self.store,
                self.writer,
                self.ha,
                tables,
                self.delays,
                self.timer,
                self.master_services,
                self.special_services,
                self.processors.pull.hold,
                self.registration,
                self.client,
                self.slave_sync,
                self.replica_control,
                self.escape,
                self.processors.lock_quorum,
                members,
            )
        )
        live.standing.refusal = self.mode.refusal
        self.registration.on_response.append(self.mode.registered)
        self.pipeline = self.processors.pipeline(self.mode)
        self.ports = ClientPorts(
            config,
            self.pipeline,
            self.processors.latencies,
            tables.clients.channel_closed,
            FastFailure(live),
            self.mode.isolation,
            members,
        )
        self._admin_api = self._make_admin_api() if config.admin_socket_path else None
        self._phase = BrokerPhase.NEW

    # start and stop

    async def start(self) -> None:
        """Starts the broker; it serves when this returns. Raises ConfigError, OSError or StoreDamagedError;
        `stop` is needed even then."""
        gc.disable()  # the tables grow; each collection would scan all of their objects again
        try:
            await self._start()
        finally:
            gc.enable()

    async def _start(self) -> None:
        await self.start_without_ports()
        await self.mode.start_replication()
        await self.ports.start()
        self.nameserver_lookup.start()
        await self.mode.start()
        if self._admin_api is not None:
            await self._admin_api.start()
        # Objects that exist now live as long as the process; the garbage collector can ignore them.
        gc.collect()
        gc.freeze()
        config = self.live.current
        log.info("broker %s serves clients at %s", config.broker_name, config.broker_addr)

    async def start_without_ports(self) -> None:
        """Starts everything but the ports and the registration."""
        self.mode.load()
        self.tables.files.load()  # recovery asks for the types of queues
        self.mode.prepare_log()
        self.store.load()
        self.mode.log_loaded()
        self.compaction.load()
        self.replica_control.load()
        self.ha.load()
        self.delays.load()
        if self.timer is not None:
            self.timer.load()
        self.tables.request_modes.load()
        self.pop.load()
        self.tables.filter_file.load(now_ms())
        self.tables.static_topics.load()
        self.transactions.metrics.load()
        self.tables.auth_file.load()
        provide_users(self.live.current, self.tables.auth)
        self._write_tables()
        self.store.on_arrival.append(self.processors.pull.hold.message_arrived)
        self.store.start()
        self.live.on_change.append(self._reconfigured)
        self.topics.on_change.append(self._topics_changed)
        self.tables.static_topics.on_change.append(self._mappings_changed)
        self.cold_reads.start()
        self.scrub.start()
        self.compaction.start()
        if self.timer is not None:
            self.timer.run()
        self.processors.start_polling()
        self.mode.start_services()
        self._start_periodic_tasks()
        self._phase = BrokerPhase.RUNNING

    async def stop(self) -> None:
        """Stops in order; acknowledged messages are on disk afterwards. After a start that failed half way,
        stops what was started."""
        if self._admin_api is not None:
            await self._admin_api.stop()
        await self.mode.leave()
        await self.processors.lock_quorum.stop()
        await self.registration.stop()
        await self.nameserver_lookup.stop()
        self.cold_control.release()
        self.processors.static_pulls.stop()
        self.processors.stop_polling()
        await self.ports.stop()
        await self.slave_sync.stop()
        await self.ha.stop()
        await self.compaction.stop()
        await self.scrub.stop()
        self.cold_reads.stop()
        self.periodic_tasks.stop()
        if self._phase is BrokerPhase.RUNNING:
            self._phase = BrokerPhase.STOPPED
            self.master_services.stop()
            self.special_services.stop()
            self.delays.persist()
            self.pop.persist()
            self._write_filters()
            if self.timer is not None:
                self.timer.close()
            self.transactions.metrics.persist()
            self._write_tables()
        await self.mode.stop()
        self.store.stop()
        await self.client.close()
        log.info("broker %s stopped", self.live.current.broker_name)

    def _write_tables(self) -> None:
        """Writes the tables before the broker serves, and after. A full disk prevents neither start nor stop:
        expiry may free space, and the writer retries."""
        try:
            self.tables.files.persist()
        except OSError as error:
            log.error("could not write the tables in %s: %s", self.live.current.config_dir, error)

    # components

    def _confirmed(self) -> int:
        """Up to where the log is the group's, and on this disk. Without controllers nobody confirms it; a
        DLedger log shows only what is committed."""
        if self.live.current.enable_dledger_commit_log:
            return self.store.max_phy_offset
        flushed = self.store.flushed_where
        return min(self.ha.confirm_offset, flushed) if self.ha.controlled else flushed

    def _make_timer(self, context: ServiceContext, timers: TimerStore) -> TimerService:
        return TimerService(
            context,
            timers=timers,
            sink=self.escape.lane(EscapeKind.TIMER),
            state_version=self.live.state_version,
        )

    def _make_pop(self, context: ServiceContext) -> PopService:
        timer = self.timer
        return PopService(
            context,
            sink=self.escape.lane(EscapeKind.CHECKPOINT),
            sink_of_queue=lambda _queue_id: self.escape.lane(EscapeKind.RETRY),
            remote=RemoteMessageReader(self.live, self.routes, self.client),
            compacted=CompactedReads(self.compaction, self.store),
            timer_is_behind=lambda: timer is not None and timer.is_behind,
        )

    def _make_admin_api(self) -> BrokerAdminApi:
        components = AdminApiDependencies(
            self.live,
            self.store,
            self.ha,
            self.writer,
            self.tables.stats,
            self.registration,
            self.client,
            self.slave_sync,
            self.replica_control,
            self.mode,
            self.cold_reads,
            self.scrub,
            self.transactions,
            self.pop,
            self.access,
            self.tables,
            self.timer,
            self.escape,
            self.quarantine,
            self.ports.metric_samples,
            self.ports.certificates,
        )
        return BrokerAdminApi(components, InProcessCalls(self.pipeline.in_process))

    # periodic work

    def _start_periodic_tasks(self) -> None:
        live, every = self.live, self.periodic_tasks.every
        locks, files = self.tables.locks, self.tables.files
        every(lambda: SAMPLE_MS, "sample statistics", self._sample_statistics)
        every(
            lambda: live.current.flush_consumer_offset_interval,
            "write consumer offsets",
            files.persist_offsets,
        )
        every(lambda: FILTERS_WRITE_MS, "write consumer filters", self._write_filters)
        every(lambda: live.current.flush_delay_offset_interval, "write delay offsets", self.delays.persist)
        every(
            lambda: live.current.transaction_metric_flush_interval,
            "write the numbers of half messages",
            self.transactions.metrics.persist,
        )
        every(lambda: ORDER_INFO_MS, "write the state of orderly POPs", self.pop.persist)
        every(lambda: CLIENT_SWEEP_MS, "remove silent clients", self._sweep_clients)
        every(lambda: LOCK_SWEEP_MS, "remove expired locks", lambda: locks.sweep(now_ms()))
        cold = self.cold_control
        every(lambda: cold.check_interval_ms, "check the flow control of cold data", cold.check)
        every(
            lambda: live.current.timer_cold_data_check_interval_ms,
            "scan the page cache",
            cold.pages.start_scan,
        )
        self.mode.add_periodic_tasks(every)
        self.periodic_tasks.start()

    def _sample_statistics(self) -> None:
        self.tables.stats.sample(now_ms(), time.localtime().tm_yday)

    def _write_filters(self) -> None:
        self.tables.filter_file.persist(now_ms(), self.live.current.filter_data_clean_time_span)

    def _sweep_clients(self) -> None:
        for channel in self.tables.clients.sweep(now_ms()):
            if isinstance(channel, RemotingConnection):
                channel.close()

    # listeners

    def _topics_changed(self, names: tuple[str, ...]) -> None:
        """Releases the requests that wait on queues of a deleted topic: if the topic is created again, its
        queues are different ones. Queues that existed before their topic's settings get its type."""
        for name in names:
            if self.topics.is_batch_cq(name):
                self.store.queues.replace_by_batch_queues(name)
        gone = {name for name in names if name not in self.topics}
        if gone:
            self.processors.release_topics(gone)
            self.pop.topics_changed(gone)

    def _mappings_changed(self) -> None:
        """Runs the pulls that wait on static topics again: their queue may have moved to another broker."""
        self.processors.pull.hold.release(lambda pull: isinstance(pull.request, StaticPull))

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Passes new settings on to objects that keep a copy."""
        self.tables.reconfigure(after)
        self.store.configure(self.mode.store_config(after))
