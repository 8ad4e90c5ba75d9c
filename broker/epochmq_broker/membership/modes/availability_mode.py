"""The place of a broker in its group, as one object: who decides its role, and what follows from that for
start, stop, requests and reports.

There are four modes: no group decides (`plain`), the living brokers decide who acts for a master that is down
(`acting`), controllers elect the master (`controlled`), and the brokers elect it by Raft (`dledger`).
`choice` picks one, once. No other part of the broker asks which one it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from epochmq_broker.config import refusals
from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.config.clock import boot_ms
from epochmq_broker.config.refusals import SendRefusal
from epochmq_broker.config.role import ActingRole
from epochmq_broker.membership.acting.isolation import IsolationGate
from epochmq_broker.membership.acting.lock_quorum import LockQuorum
from epochmq_broker.membership.controlled.replica_control import ReplicaControl
from epochmq_broker.membership.controlled.request_gate import RequestGate
from epochmq_broker.membership.dledger.log_upgrade import reject_divided_log
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.membership.store_faults import refusal_of_store
from epochmq_broker.replication.ha.master_flush_offset import adopt_master_flush_offset
from epochmq_broker.replication.ha.service import HARole, HAService
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.services.delay_service import DelayService
from epochmq_broker.services.long_polling import PullHoldService
from epochmq_broker.services.master_services import MasterServices
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.writing.escape.bridge import EscapeBridge
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_controller import (
    ExchangeHAInfoRequestHeader,
    NotifyMinBrokerIdChangeRequestHeader,
)
from epochmq_protocol.headers_namesrv import RegisterBrokerResponseHeader
from epochmq_protocol.replica_control import (
    MasterLogStateHeader,
    SwitchoverRequestHeader,
    SwitchoverResponseHeader,
    format_broker_ids,
)
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_protocol.write_promise import WritePromiseRequestHeader, WritePromiseResponseHeader
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.queue_extension import BitMapOf
from epochmq_store.statuses import RunningFlags
from epochmq_store.store_config import StoreConfig


@dataclass(frozen=True, slots=True)
class GroupParts:
    """The components of the broker that change with its role. `master_services` run on the master;
    `special_services` are those of them that an acting master runs, too."""

    live: LiveConfig
    store: MessageStore
    writer: MessageWriter
    ha: HAService
    tables: BrokerTables
    delays: DelayService
    timer: TimerService | None
    master_services: MasterServices
    special_services: MasterServices
    held_pulls: PullHoldService
    registration: NameserverRegistration
    client: RemotingClient
    slave_sync: SlaveSync
    replica_control: ReplicaControl
    escape: EscapeBridge
    lock_quorum: LockQuorum
    members: MemberAuthentication | None = None


class Every(Protocol):
    """Adds a periodic task (`PeriodicTasks.every`)."""

    def __call__(self, interval_ms: Callable[[], int], name: str, function: Callable[[], object]) -> None:
        """Calls `function` every `interval_ms()`."""


class AvailabilityMode:
    """One mode of one broker. The methods of its life are called in the order in which they stand here.
    Unless a mode says otherwise, the broker has a plain commit log, and its role decides who may be asked for
    what."""

    is_controlled: ClassVar[bool] = False
    """Whether controllers decide the role, so that logs have epochs and masters a SyncStateSet."""
    can_drain: ClassVar[bool] = False
    """Whether another broker can be elected as master, so that this one can be drained."""

    gate: RequestGate | None = None
    """The gate that holds and relays requests during a switchover; None without switchovers."""
    isolation: IsolationGate | None = None
    """The gate that rejects clients' requests to an isolated master; None if this broker does not start
    isolated."""

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts

    # Before the other components exist

    @classmethod
    def take_first_role(cls, live: LiveConfig) -> None:
        """Sets the role that the broker has until its group decides another one."""

    @classmethod
    def store_config(cls, config: BrokerConfig) -> StoreConfig:
        """The settings of the store."""
        return StoreConfig.of(config)

    @classmethod
    def make_store(
        cls,
        config: BrokerConfig,
        store_host: bytes,
        *,
        is_batch_topic: Callable[[str], bool | None],
        bit_map: BitMapOf | None,
    ) -> MessageStore:
        """The store of a broker with these settings. `is_batch_topic` and `bit_map` are those of
        `MessageStore`."""
        return MessageStore(
            cls.store_config(config), store_host, is_batch_topic=is_batch_topic, bit_map=bit_map
        )

    # Life

    def load(self) -> None:
        """Reads the broker's identity, before anything else is loaded. Raises ConfigError if the store
        belongs to another broker."""

    def prepare_log(self) -> None:
        """Makes the log one of this mode, before the store is loaded. Raises StoreDamagedError or OSError if
        that is impossible."""
        reject_divided_log(self._parts.store.config)

    def log_loaded(self) -> None:
        """The store is loaded."""

    def start_services(self) -> None:
        """Starts the services of the master if the configuration makes this broker the master. Otherwise the
        group starts them."""

    async def start_replication(self) -> None:
        """Starts to serve or to follow the log, before clients are served. Raises OSError if the port is in
        use."""
        await self._parts.ha.start()

    async def start(self) -> None:
        """Takes the place in the group, once clients are served: registers with the nameservers, now or as
        soon as there is a role. Raises ConfigError."""
        self._parts.registration.start()

    async def leave(self) -> None:
        """Leaves the group before the broker stops. A master lets another broker take over, if one can."""

    async def stop(self) -> None:
        """Ends what `leave` has left, after the tables are written and before the store is closed."""

    def add_periodic_tasks(self, every: Every) -> None:
        """Adds the periodic tasks of this mode."""

    # The role

    @property
    def leads(self) -> bool:
        """Whether this broker is the master, or the leader that becomes it."""
        return self._parts.ha.role is HARole.MASTER

    def takes_messages(self) -> bool:
        """Whether a message that waits for replicas would be stored now."""
        return self._parts.live.standing.capabilities.store_is_open

    def refusal(self) -> SendRefusal | None:
        """Why this broker stores no messages of clients now, whatever the reason; None if it does, or is a
        replica in order."""
        store, standing = self._parts.store, self._parts.live.standing
        if store.state.flags & RunningFlags.FENCED:
            return refusals.FENCED
        if (fault := refusal_of_store(store)) is not None:
            return fault
        if standing.is_stopping:
            return refusals.STOPPING
        if self.isolation is not None and self.isolation.is_closed:
            return refusals.ISOLATED
        if isinstance(standing.role, ActingRole):
            return refusals.ACTING
        return self._refusal_of_master() if standing.capabilities.is_master else self._refusal_of_replica()

    def _refusal_of_master(self) -> SendRefusal | None:
        parts = self._parts
        standing, config, sync = parts.live.standing, parts.live.current, parts.ha.sync_state
        if not standing.capabilities.may_write(boot_ms()):
            return refusals.no_lease(standing.waits_for())
        if not standing.capabilities.store_is_open:
            return refusals.starting("its log is not ready for messages yet")
        if sync is None or parts.writer.has_enough_replicas:
            return None
        if self.is_controlled:
            return refusals.few_replicas(
                sync.in_sync_count, max(config.min_in_sync_replicas, sync.recorded_least)
            )
        in_sync = sync.count_within(config.ha_max_gap_not_in_sync)
        return refusals.few_replicas(in_sync, config.in_sync_replicas, "inSyncReplicas")

    def _refusal_of_replica(self) -> SendRefusal | None:
        return None

    def master_log_state(self) -> MasterLogStateHeader:
        """The end of a master's log and the members of its SyncStateSet. Raises RequestError on a replica."""
        sync = self._parts.ha.sync_state
        if self._parts.ha.role is not HARole.MASTER or sync is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master")
        return MasterLogStateHeader(
            broker_id=sync.self_id,
            master_epoch=self._parts.live.master_epoch,
            max_offset=self._parts.store.max_phy_offset,
            members=format_broker_ids(sync.members),
            proposed=format_broker_ids(sync.proposed or ()),
            learners=format_broker_ids(
                replica.broker_id for replica in sync.replicas.values() if replica.async_learner
            ),
            set_epoch=sync.set_epoch,
        )

    def runtime_info(self) -> Mapping[str, str]:
        """The entries that EpochMQ adds to RocketMQ's runtime information."""
        return {}

    # What the group says

    def registered(self, response: RegisterBrokerResponseHeader) -> None:
        """A nameserver accepted the registration, and may name the master."""
        parts = self._parts
        if response.ha_server_addr and not parts.live.current.ha_master_address:
            parts.ha.follow(response.ha_server_addr)
        if response.master_addr and not parts.live.standing.capabilities.is_master:
            parts.slave_sync.follow(response.master_addr)

    def master_announced(self, header: ExchangeHAInfoRequestHeader) -> None:
        """A returning master announces its HA address before it goes online (906, `acting.pre_online`)."""
        parts = self._parts
        parts.ha.follow(header.master_ha_address)
        adopt_master_flush_offset(parts.store, parts.live.current, header.master_flush_offset)

    def role_notified(self, command: Command, *, verified: bool = True) -> None:
        """A controller names the master (1008). `verified`: the sender is known. Raises RequestError for an
        invalid header."""

    def min_id_changed(self, header: NotifyMinBrokerIdChangeRequestHeader) -> None:
        """A nameserver says that the smallest broker id of the group has changed (905)."""

    def min_id_may_have_changed(self) -> None:
        """A sender that is not known says so."""

    def write_promised(self, header: WritePromiseRequestHeader) -> WritePromiseResponseHeader:
        """A replica promises not to become master for a while. Raises RequestError."""
        raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker has no controllers")

    async def settle_store(self, *, adopt: bool, timeout_ms: int) -> int:
        """Adopts a store that the controllers refuse, or discards its broker id; returns its broker id.
        Raises RequestError."""
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "this broker has no controllers that could refuse its store"
        )

    async def switch_over(self, header: SwitchoverRequestHeader, timeout_ms: int) -> SwitchoverResponseHeader:
        """Makes another replica the master; returns when it is. Raises RequestError or RetryableError."""
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "there are no controllers that could elect another master"
        )
