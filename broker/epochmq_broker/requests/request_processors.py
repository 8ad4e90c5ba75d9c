"""Builds the processors of a broker, and its request pipeline from their handlers."""

from __future__ import annotations

from dataclasses import dataclass

from epochmq_broker.auth.access_control import AccessControl
from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.config.refusals import refusal_info
from epochmq_broker.membership.acting.lock_quorum import LockQuorum
from epochmq_broker.membership.controlled.replica_control import ReplicaControl
from epochmq_broker.membership.modes.availability_mode import AvailabilityMode
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.replication.ha.service import HAService
from epochmq_broker.replication.scrub.served_copies import ServedCopies
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.requests.pipeline import RequestPipeline, ordered_gates
from epochmq_broker.requests.processors.acting_master import ActingMasterProcessor
from epochmq_broker.requests.processors.auth_admin import AuthAdminProcessor
from epochmq_broker.requests.processors.client import ClientProcessor
from epochmq_broker.requests.processors.cold_control import ColdControlProcessor
from epochmq_broker.requests.processors.end_transaction import EndTransactionProcessor
from epochmq_broker.requests.processors.end_transaction_fast import FastEndTransaction
from epochmq_broker.requests.processors.log_parts import LogPartsProcessor
from epochmq_broker.requests.processors.message_request_mode import MessageRequestModeProcessor
from epochmq_broker.requests.processors.mqadmin import mqadmin_handlers
from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.requests.processors.pop import PopProcessor
from epochmq_broker.requests.processors.pop_ack import PopAckProcessor
from epochmq_broker.requests.processors.pop_ack_fast import FastPopAck
from epochmq_broker.requests.processors.pop_queries import PopQueryProcessor
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.processors.pull import PullProcessor
from epochmq_broker.requests.processors.query import QueryProcessor
from epochmq_broker.requests.processors.recall import RecallProcessor
from epochmq_broker.requests.processors.replica_control import ReplicaControlProcessor
from epochmq_broker.requests.processors.replica_group import ReplicaGroupProcessor
from epochmq_broker.requests.processors.reply import ReplyProcessor
from epochmq_broker.requests.processors.send import SendProcessor
from epochmq_broker.requests.processors.send_back import SendBackProcessor
from epochmq_broker.requests.processors.send_fast import FastSend
from epochmq_broker.requests.processors.static_pull import StaticPulls
from epochmq_broker.requests.processors.static_topics import StaticTopicProcessor
from epochmq_broker.requests.processors.table_sync import TableSyncProcessor
from epochmq_broker.requests.record_access import RecordAccess
from epochmq_broker.requests.request_latencies import RequestLatencies
from epochmq_broker.requests.uniq_key import UniqKeyGenerator
from epochmq_broker.services.cold_control.pull_control import ColdPullControl
from epochmq_broker.services.cold_reads import ColdReadPool, ColdReadRetrier
from epochmq_broker.services.compaction.compaction_service import CompactionService
from epochmq_broker.services.delay_service import DelayService
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_broker.services.transactions.transaction_service import TransactionService
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.tables.static_topics.remote_queues import RemoteQueues
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_broker.writing.topic_routes import TopicRoutes
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import RequestHandler
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorDependencies:
    """The broker's components that the processors use. Message ids contain `client_ip`, records
    `store_host`."""

    live: LiveConfig
    store: MessageStore
    writer: MessageWriter
    ha: HAService
    tables: BrokerTables
    delays: DelayService
    registration: NameserverRegistration
    slave_sync: SlaveSync
    replica_control: ReplicaControl
    cold_reads: ColdReadPool
    cold_control: ColdPullControl
    compaction: CompactionService
    remote_queues: RemoteQueues
    timer: TimerService | None
    transactions: TransactionService
    pop: PopService
    client: RemotingClient
    routes: TopicRoutes
    access: AccessControl
    members: MemberAuthentication | None
    copies: ServedCopies
    client_ip: str
    store_host: bytes


def member_info(members: MemberAuthentication | None) -> dict[str, str]:
    """What the runtime information says of the proofs of membership; nothing where nobody proves one."""
    if members is None:
        return {}
    return {"memberAuthentication": "required" if members.required else "unauthenticatedAllowed"}


class RequestProcessors:
    """The processors of one broker."""

    def __init__(self, components: ProcessorDependencies) -> None:
        self._components = components
        self.latencies = RequestLatencies()
        tables = components.tables
        context = self._context = ProcessorContext(
            live=components.live,
            store=components.store,
            writer=components.writer,
            tables=tables,
            cold_reads=components.cold_reads,
            store_host=components.store_host,
            latencies=self.latencies,
        )
        transaction_metrics = components.transactions.metrics
        self._fast_send = FastSend(context, transaction_metrics=transaction_metrics)
        self._fast_end_transaction = FastEndTransaction(context, transactions=components.transactions)
        self._fast_pop_ack = FastPopAck(context, pop=components.pop)
        self.static_pulls = StaticPulls(tables.static_topics, components.remote_queues, tables.offsets)
        self.pull = PullProcessor(
            context,
            cold_control=components.cold_control,
            compaction=components.compaction,
            static_pulls=self.static_pulls,
        )
        self.pop = PopProcessor(context, pop=components.pop)
        self.pop_queries = PopQueryProcessor(context, pop=components.pop, pops=self.pop.polling)
        components.pop.on_stop.append(self._release_pops)
        self._send = SendProcessor(
            context,
            uniq_keys=UniqKeyGenerator(components.client_ip),
            transaction_metrics=transaction_metrics,
        )
        self.lock_quorum = LockQuorum(components.live, tables.locks, components.client)
        self._client = ClientProcessor(context, locks=self.lock_quorum)
        tables.clients.on_group_change.append(self._client.notify_group_change)
        tables.clients.on_subscriptions.append(
            lambda group, subscriptions: tables.filters.register(group, subscriptions, now_ms())
        )
        tables.clients.on_group_end.append(lambda group: tables.filters.unregister(group, now_ms()))

    def pipeline(
        self,
        mode: AvailabilityMode,
    ) -> RequestPipeline:
        """All handlers behind their gates."""
        components, tables = self._components, self._components.tables
        context, live, store = self._context, components.live, components.store
        mqadmin = MqadminDependencies(
            live=live,
            store=store,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            clients=tables.clients,
            stats=tables.stats,
            files=tables.files,
            filters=tables.filters,
            delays=components.delays,
            registration=components.registration,
            ha=components.ha,
            static_topics=tables.static_topics,
            timer=components.timer,
            compacted=components.pop.compacted,
            group_info=lambda: {
                **mode.runtime_info(),
                **refusal_info(live.standing.refusal()),
                **member_info(components.members),
            },
        )
        static_topics = StaticTopicProcessor(mqadmin, tables.static_topics, components.remote_queues)
        control = ReplicaControlProcessor(
            components.replica_control, store, components.ha, components.slave_sync, mode
        )
        replica_group = ReplicaGroupProcessor(live, components.ha, mode)
        acting_master = ActingMasterProcessor(mode)
        common: dict[int, RequestHandler] = {
            **mqadmin_handlers(mqadmin),
            **static_topics.handlers(),
            **MessageRequestModeProcessor(context, routes=components.routes).handlers(),
            **PopAckProcessor(context, pop=components.pop).handlers(),
            **TableSyncProcessor(mqadmin, tables.request_modes).handlers(),
            **self._send.handlers(),
            **RecallProcessor(context).handlers(),
            **SendBackProcessor(context).handlers(),
            **ReplyProcessor(context).handlers(),
            **EndTransactionProcessor(context, transactions=components.transactions).handlers(),
            **QueryProcessor(live, store, components.pop.compacted).handlers(),
            **ColdControlProcessor(live, components.cold_control.flow).handlers(),
            **replica_group.handlers(),
            **LogPartsProcessor(live, components.copies).handlers(),
            **acting_master.handlers(),
            **control.handlers(),
            **AuthAdminProcessor(
                live,
                tables.auth,
                lambda: components.slave_sync.master is not None,
                trusts=components.access.trusts_with_accounts,
            ).handlers(),
            **self._client.handlers(),
        }
        gates = ordered_gates(
            live=live,
            isolation=mode.isolation,
            access=components.access,
            unverified={**replica_group.unverified_handlers(), **acting_master.unverified_handlers()},
            handover=mode.gate,
            static_topics=static_topics,
            cold_reads=ColdReadRetrier(store.reader, components.cold_reads),
            members=components.members,
            records=RecordAccess(store, components.access),
        )
        return RequestPipeline(
            gates,
            common=common,
            main_only={
                **self.pull.handlers(),
                **self.pop.handlers(),
                **self.pop_queries.handlers(),
            },
            fast=[
                self._fast_send.declaration(),
                self._fast_end_transaction.declaration(),
                self.pull.fast_declaration(),
                self._fast_pop_ack.declaration(),
            ],
            default=components.access.unsupported if components.access.enabled else None,
        )

    def start_polling(self) -> None:
        """Lets requests wait for messages from now on; needs a running loop."""
        self.pull.hold.start()
        self.pop.polling.start()
        self.pop_queries.polling.start()

    def stop_polling(self) -> None:
        """Responds to the requests that wait for messages. From now on none waits."""
        self.pull.hold.stop()
        self.pop.polling.stop()
        self.pop_queries.polling.stop()

    def release_topics(self, names: set[str]) -> None:
        """Runs the requests again that wait for messages of these topics."""
        self.pull.hold.release(lambda pull: pull.request.topic in names)
        for polling in (self.pop.polling, self.pop_queries.polling):
            polling.release(lambda held: held.topics[0] in names)

    def _release_pops(self) -> None:
        """Runs the waiting POPs again, because this broker is the master no longer."""
        self.pop.polling.release()
        self.pop_queries.polling.release()
