"""Builds the broker from its components, and starts and stops them in order.

Start: recover the store, load the tables, deliver delayed messages, listen, and only then register with the
nameservers. Stop, in reverse: unregister, finish held and running requests, write the tables, flush and close
the store. Closing removes the `abort` file, which marks a broker that did not stop in order.

The module is longer than 600 lines because it names every component once, in the order in which they depend
on each other; what they do is elsewhere.
"""

from __future__ import annotations

import enum
import gc
import logging
import time
from functools import partial

from epochmq_broker.admin.dependencies import AdminApiDependencies, DLedgerBroker
from epochmq_broker.admin.operations import BrokerAdminApi
from epochmq_broker.auth.access_control import AccessControl
from epochmq_broker.auth.access_settings import AccessSettings, parse_credentials
from epochmq_broker.auth.provisioning import provide_users
from epochmq_broker.config.addresses import client_ip_address
from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig, LoadedBrokerConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.membership.acting.group_report import GroupReporter
from epochmq_broker.membership.acting.isolation import IsolationGate, starts_isolated
from epochmq_broker.membership.acting.member_group_service import MemberGroupDependencies, MemberGroupService
from epochmq_broker.membership.acting.pre_online import PreOnlineStep
from epochmq_broker.membership.acting.pre_online_service import PreOnlineService, poll_all_members
from epochmq_broker.membership.acting.table_return import TableReturn
from epochmq_broker.membership.controlled.manager import ReplicasManager
from epochmq_broker.membership.controlled.replica_control import ReplicaControl
from epochmq_broker.membership.controlled.role_transitions import ReplicaDependencies
from epochmq_broker.membership.dledger.commit_log_peer import (
    CommitLogPeer,
    broker_id_of,
    make_store,
    store_config_of,
)
from epochmq_broker.membership.dledger.group_state import runtime_info
from epochmq_broker.membership.dledger.leadership import DRAIN_CHECK_MS, Leadership
from epochmq_broker.membership.dledger.log_upgrade import needs_upgrade, reject_divided_log, upgrade
from epochmq_broker.membership.dledger.roles import DLedgerRoles
from epochmq_broker.membership.nameserver_lookup import NameserverLookup
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.replication.ha.service import HAService
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
from epochmq_broker.writing.topic_routes import TopicRoutes
from epochmq_protocol.headers import RegisterBrokerResponseHeader
from epochmq_protocol.message import encode_host
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.in_process_calls import InProcessCalls

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
        if loaded.config.enable_dledger_commit_log:
            live.set_role(broker_id_of(loaded.config), "SLAVE")
        config = live.current
        client_ip = client_ip_address(config)
        self.tables = tables = BrokerTables(config, self._state_version)
        self.topics, self.groups, self.offsets = tables.topics, tables.groups, tables.offsets
        store_host = self.store_host = encode_host(client_ip, config.listen_port)
        computes_bit_maps = config.enable_calc_filter_bit_map and config.enable_consume_queue_ext
        self.store = make_store(
            config,
            store_host,
            is_batch_topic=tables.topics.is_batch_cq,
            bit_map=partial(bit_map_of, tables.filters) if computes_bit_maps else None,
        )
        tables.files.write_offsets_after_queues(self.store.when_queues_written)
        timers = TimerStore.of(config) if config.timer_wheel_enable else None
        timer_hook = None if timers is None else TimerPutHook(live, timers.wheel.num)
        self.writer = MessageWriter(live, self.store, timer_hook)
        self.ha = HAService(live, self.store, self.writer, controlled=config.enable_controller_mode)
        credentials = parse_credentials(config.inner_client_authentication_credentials)
        self.client = RemotingClient(credentials=credentials)
        self.routes = TopicRoutes(live, self.client)
        self.escape = EscapeBridge(
            live,
            writer=self.writer,
            routes=self.routes,
            client=self.client,
            revive_topic=revive_topic(config.broker_cluster_name),
        )
        self.cold_reads = ColdReadPool()
        context = self.service_context = ServiceContext(
            live=live,
            store=self.store,
            tables=tables,
            cold_reads=self.cold_reads,
            store_host=store_host,
            write_file=tables.file_writer.write,
        )
        self.delays = DelayService(context, sink_of_level=lambda _level: self.escape.lane(EscapeKind.DELAY))
        self.timer = None if timers is None else self._make_timer(context, timers)
        self.transactions = TransactionService(
            context, writer=self.writer, sink=self.escape.lane(EscapeKind.TRANSACTION)
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
        self.access = AccessControl(AccessSettings.of(config), tables.auth, now_ms)
        self.registration = NameserverRegistration(live, self.topics, tables.static_topics, self.client)
        self.registration.on_response.append(self._registered)
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
                live,
                self.store,
                self.writer,
                self.ha,
                tables,
                self.delays,
                self.registration,
                self.slave_sync,
                self.replica_control,
                self.cold_reads,
                self.cold_control,
                self.compaction,
                self.remote_queues,
                self.timer,
                self.transactions,
                self.pop,
                self.client,
                self.routes,
                self.access,
                client_ip,
                store_host,
            )
        )
        self.replicas = self._make_replicas() if config.enable_controller_mode else None
        self._dledger_roles: DLedgerRoles | None = None
        self.dledger = self._make_dledger() if config.enable_dledger_commit_log else None
        self.member_group = self._make_member_group() if self._takes_part_in_group() else None
        self.pre_online: PreOnlineService | None = None
        self._group_reporter: GroupReporter | None = None
        self._leadership: Leadership | None = None
        if self.dledger is not None:
            self._leadership = Leadership(self.dledger, self._leaves_leadership)
            self.handlers = self.processors.handlers(
                None, None, partial(self._dledger_info, self.dledger), self._leadership
            )
        elif self.member_group is None:
            self.handlers = self.processors.handlers(self.replicas, None)
        else:
            self.escape.take_role(self.member_group)
            reporter = GroupReporter(self.member_group, self.escape, self._pre_online_step)
            self._group_reporter = reporter
            self.handlers = self.processors.handlers(None, self.member_group, reporter.runtime_info)
        isolation = IsolationGate(closed=config.broker_id == 0) if starts_isolated(config) else None
        self.ports = ClientPorts(
            config,
            self.processors,
            self.handlers,
            tables.clients.channel_closed,
            FastFailure(live),
            isolation,
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
        if self.dledger is None:
            await self.ha.start()
        await self.ports.start()
        self.nameserver_lookup.start()
        if self.replicas is not None:
            self.replicas.start()  # registers the broker as soon as it has a role
        elif self.dledger is not None:
            await self.dledger.start()  # as above
        elif self.member_group is not None:
            self._start_in_group(self.member_group)
        else:
            self.registration.start()
        if self._admin_api is not None:
            await self._admin_api.start()
        # Objects that exist now live as long as the process; the garbage collector can ignore them.
        gc.collect()
        gc.freeze()
        config = self.live.current
        log.info("broker %s serves clients at %s", config.broker_name, config.broker_addr)

    async def start_without_ports(self) -> None:
        """Starts everything but the ports and the registration."""
        if self.replicas is not None:
            self.replicas.load()
        self.tables.files.load()  # recovery asks for the types of queues
        self._prepare_log()
        self.store.load()
        if self.dledger is not None:
            self.dledger.loaded()
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
        self.compaction.start()
        if self.timer is not None:
            self.timer.run()
        self.processors.start_polling()
        if self.live.current.broker_role != "SLAVE" and self.member_group is None:
            self.master_services.start()
        self._start_periodic_tasks()
        self._phase = BrokerPhase.RUNNING

    def _prepare_log(self) -> None:
        """Upgrades a plain commit log before the first start with a DLedger log."""
        config = self.live.current
        if self.dledger is None:
            reject_divided_log(self.store.config)
        elif needs_upgrade(config):
            log.info("the plain commit log in %s becomes the old part of a DLedger log", config.root_dir)
            upgrade(config, self.store_host, is_batch_topic=self.topics.is_batch_cq)

    async def stop(self) -> None:
        """Stops in order; acknowledged messages are on disk afterwards. After a start that failed half way,
        stops what was started."""
        if self._admin_api is not None:
            await self._admin_api.stop()
        if self._leadership is not None:
            await self._leadership.stop_leading()
        if self.replicas is not None:
            await self.replicas.stop()
        if self.pre_online is not None:
            await self.pre_online.stop()
        if self.member_group is not None:
            await self.member_group.stop()
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
        if self.dledger is not None:
            await self.dledger.stop()
        if self._dledger_roles is not None:
            self._dledger_roles.stop()
        if self._leadership is not None:
            await self._leadership.stop()
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

    def _make_timer(self, context: ServiceContext, timers: TimerStore) -> TimerService:
        return TimerService(
            context,
            timers=timers,
            sink=self.escape.lane(EscapeKind.TIMER),
            state_version=self._state_version,
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

    def _make_replicas(self) -> ReplicasManager:
        return ReplicasManager(
            ReplicaDependencies(
                self.live,
                self.store,
                self.writer,
                self.ha,
                self.topics,
                self.master_services,
                self.processors.pull.hold,
                self.registration,
                self.client,
                self.slave_sync,
            )
        )

    def _make_dledger(self) -> CommitLogPeer:
        live = self.live
        roles = self._dledger_roles = DLedgerRoles(
            live,
            broker_id_of(live.current),
            self.topics,
            self.master_services,
            self.processors.pull.hold,
            self.registration,
            self.slave_sync,
        )
        return CommitLogPeer(
            live,
            self.store,
            self.writer,
            self.client,
            on_master=roles.become_master,
            on_slave=roles.become_slave,
        )

    def _leaves_leadership(self) -> bool:
        """Whether this broker leaves the leadership of its DLedger group to others."""
        missing = self.dledger is not None and self.dledger.queue_ends.are_missing
        return self.replica_control.state.drained or missing

    def _take_queue_ends(self) -> None:
        assert self.dledger is not None
        self.dledger.queue_ends.take_soon(self.client, self.store, self.topics, self.slave_sync)

    def _dledger_info(self, commit_log: CommitLogPeer) -> dict[str, str]:
        """The entries of the runtime information about the DLedger peer, and about its control."""
        control = self.replica_control.state
        return {
            **runtime_info(commit_log),
            "confirmOffset": str(self.store.max_phy_offset),
            "fenced": str(control.fenced).lower(),
            "drained": str(control.drained).lower(),
        }

    def _dledger_parts(self) -> DLedgerBroker | None:
        if self.dledger is None or self._leadership is None:
            return None
        return DLedgerBroker(self.dledger, self._leadership)

    def _takes_part_in_group(self) -> bool:
        """Whether the group's brokers decide among themselves who acts for a master that is down."""
        config = self.live.current
        return config.enable_slave_acting_master and not config.enable_controller_mode

    def _make_member_group(self) -> MemberGroupService:
        return MemberGroupService(
            MemberGroupDependencies(
                self.live,
                self.client,
                self.registration,
                self.ha,
                self.slave_sync,
                self.master_services,
                self.special_services,
                self.processors.pull.hold.release,
            )
        )

    def _start_in_group(self, group: MemberGroupService) -> None:
        """Goes into service by the steps of pre-online, or at once if this broker does not start isolated
        (startServiceWithoutCondition)."""
        config = self.live.current
        self.processors.lock_quorum.members = group.members
        group.start()
        if not starts_isolated(config):
            group.start_service(0, config.client_addr if config.broker_id == 0 else None)
            return

        def go_online(min_broker_id: int, min_broker_address: str) -> None:
            self.ports.end_isolation()
            group.start_service(min_broker_id, min_broker_address)

        tables = TableReturn(
            self.client,
            self.store,
            self.offsets,
            self.delays,
            self.timer,
            self.tables.files.persist_offsets,
        )
        members = partial(poll_all_members, self.client, self.live)
        self.pre_online = PreOnlineService(self.live, self.ha, self.client, tables, members, go_online)
        self.pre_online.start()

    def _pre_online_step(self) -> PreOnlineStep | None:
        return None if self.pre_online is None else self.pre_online.core.step

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
            self.replicas,
            self.cold_reads,
            self.transactions,
            self.pop,
            self.access,
            self.tables,
            self.timer,
            self.escape,
            self._group_reporter,
            self._dledger_parts(),
            self.ports.metric_samples,
            self.ports.certificates,
        )
        return BrokerAdminApi(components, InProcessCalls(self.handlers))

    def _state_version(self) -> int:
        """The master epoch, 0 without a controller: the state version of the tables."""
        return self.replicas.role_transitions.epoch if self.replicas is not None else 0

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
        if self._leadership is not None:
            every(lambda: DRAIN_CHECK_MS, "leave the leadership if drained", self._leadership.check_drained)
            every(lambda: DRAIN_CHECK_MS, "take the ends of queues", self._take_queue_ends)
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

    def _registered(self, response: RegisterBrokerResponseHeader) -> None:
        """Follows the master that a nameserver names: its HA address, unless one is configured, and for table
        copies its client address."""
        if self.replicas is not None:
            return  # controllers determine the master; a nameserver may still name the former one
        if self.member_group is not None:
            self.member_group.registered(response)
            return
        if response.ha_server_addr and not self.live.current.ha_master_address:
            self.ha.follow(response.ha_server_addr)
        if self.live.current.broker_role == "SLAVE" and response.master_addr:
            self.slave_sync.follow(response.master_addr)

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
        self.store.configure(store_config_of(after))
