"""Bundles the broker's components that the admin API reads and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from epochmq_broker.acting.group_report import GroupReporter
from epochmq_broker.auth.access_control import AccessControl
from epochmq_broker.cold_reads import ColdReadPool
from epochmq_broker.config import LiveConfig
from epochmq_broker.dledger.commit_log_peer import CommitLogPeer
from epochmq_broker.dledger.leadership import Leadership
from epochmq_broker.escape.bridge import EscapeBridge
from epochmq_broker.ha.service import HAService
from epochmq_broker.message_writer import MessageWriter
from epochmq_broker.metric_tables import Sample
from epochmq_broker.pop.pop_service import PopService
from epochmq_broker.registration import NameserverRegistration
from epochmq_broker.replicas.manager import ReplicasManager
from epochmq_broker.replicas.replica_control import ReplicaControl
from epochmq_broker.slave_sync import SlaveSync
from epochmq_broker.stats import BrokerStats
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.tables import BrokerTables
from epochmq_broker.timer.timer_service import TimerService
from epochmq_broker.transactions.transaction_service import TransactionService
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.server_certificates import ServerCertificates


@dataclass(frozen=True, slots=True)
class DLedgerBroker:
    """The parts of a broker whose commit log is a DLedger log."""

    commit_log: CommitLogPeer
    leadership: Leadership


@dataclass(frozen=True, slots=True)
class AdminApiDependencies:
    """The broker's components that the admin API reads and calls."""

    live: LiveConfig
    store: MessageStore
    ha: HAService
    writer: MessageWriter
    stats: BrokerStats
    registration: NameserverRegistration
    client: RemotingClient
    slave_sync: SlaveSync
    replica_control: ReplicaControl
    replicas: ReplicasManager | None
    cold_reads: ColdReadPool
    transactions: TransactionService
    pop: PopService
    access: AccessControl
    tables: BrokerTables
    timer: TimerService | None
    escape: EscapeBridge
    group: GroupReporter | None
    dledger: DLedgerBroker | None
    request_samples: Callable[[], Iterable[Sample | None]]
    """The samples of RocketMQ's metrics of requests, and None where the caller should pause."""
    certificates: ServerCertificates
