"""Bundles the broker's components that the admin API reads and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from epochmq_broker.auth.access_control import AccessControl
from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.membership.acting.group_report import GroupReporter
from epochmq_broker.membership.controlled.manager import ReplicasManager
from epochmq_broker.membership.controlled.replica_control import ReplicaControl
from epochmq_broker.membership.modes.acting import ActingMasterMode
from epochmq_broker.membership.modes.availability_mode import AvailabilityMode
from epochmq_broker.membership.modes.controlled import ControlledMode
from epochmq_broker.membership.modes.dledger import DLedgerMode
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.replication.ha.service import HAService
from epochmq_broker.replication.scrub.log_scrub import LogScrub
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.services.cold_reads import ColdReadPool
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_broker.services.transactions.transaction_service import TransactionService
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.tables.metric_tables import Sample
from epochmq_broker.tables.stats import BrokerStats
from epochmq_broker.writing.escape.bridge import EscapeBridge
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_broker.writing.quarantine import Quarantine
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.server_certificates import ServerCertificates
from epochmq_store.message_store import MessageStore


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
    mode: AvailabilityMode
    cold_reads: ColdReadPool
    scrub: LogScrub
    transactions: TransactionService
    pop: PopService
    access: AccessControl
    tables: BrokerTables
    timer: TimerService | None
    escape: EscapeBridge
    quarantine: Quarantine
    request_samples: Callable[[], Iterable[Sample | None]]
    """The samples of RocketMQ's metrics of requests, and None where the caller should pause."""
    certificates: ServerCertificates

    @property
    def replicas(self) -> ReplicasManager | None:
        """The broker under controllers; None in the other modes."""
        return self.mode.replicas if isinstance(self.mode, ControlledMode) else None

    @property
    def group(self) -> GroupReporter | None:
        """The report of a broker in a group with an acting master; None in the other modes."""
        return self.mode.reporter if isinstance(self.mode, ActingMasterMode) else None

    @property
    def dledger(self) -> DLedgerMode | None:
        """The broker whose commit log is a DLedger log; None in the other modes."""
        return self.mode if isinstance(self.mode, DLedgerMode) else None
