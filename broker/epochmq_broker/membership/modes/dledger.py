"""The mode of a broker whose commit log is a DLedger log (enableDLegerCommitLog)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from epochmq_broker.config import refusals
from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.config.refusals import SendRefusal
from epochmq_broker.membership.dledger.commit_log_peer import (
    CommitLogPeer,
    broker_id_of,
    make_store,
    store_config_of,
)
from epochmq_broker.membership.dledger.group_state import runtime_info
from epochmq_broker.membership.dledger.leadership import DRAIN_CHECK_MS, Leadership
from epochmq_broker.membership.dledger.log_upgrade import needs_upgrade, upgrade
from epochmq_broker.membership.dledger.roles import DLedgerRoles
from epochmq_broker.membership.modes.availability_mode import AvailabilityMode, Every, GroupParts
from epochmq_protocol.replica_control import (
    MasterLogStateHeader,
    SwitchoverRequestHeader,
    SwitchoverResponseHeader,
)
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.queue_extension import BitMapOf
from epochmq_store.store_config import StoreConfig

log = logging.getLogger(__name__)


class DLedgerMode(AvailabilityMode):
    """The brokers of the group elect the master by Raft, and their log is its log. The broker registers with
    the nameservers as soon as it has a role."""

    can_drain = True

    def __init__(self, parts: GroupParts) -> None:
        super().__init__(parts)
        self._roles = roles = DLedgerRoles(
            parts.live,
            broker_id_of(parts.live.current),
            parts.tables.topics,
            parts.master_services,
            parts.held_pulls,
            parts.registration,
            parts.slave_sync,
        )
        self.commit_log = CommitLogPeer(
            parts.live,
            parts.store,
            parts.writer,
            parts.client,
            members=parts.members,
            on_master=roles.become_master,
            on_slave=roles.become_slave,
        )
        self.leadership = Leadership(self.commit_log, self._leaves_leadership)

    @classmethod
    def take_first_role(cls, live: LiveConfig) -> None:
        """A slave, before the peer has joined its group."""
        live.set_role(broker_id_of(live.current), "SLAVE")

    @classmethod
    def store_config(cls, config: BrokerConfig) -> StoreConfig:
        """See `store_config_of`."""
        return store_config_of(config)

    @classmethod
    def make_store(
        cls,
        config: BrokerConfig,
        store_host: bytes,
        *,
        is_batch_topic: Callable[[str], bool | None],
        bit_map: BitMapOf | None,
    ) -> MessageStore:
        """The store over a DLedger log."""
        return make_store(config, store_host, is_batch_topic=is_batch_topic, bit_map=bit_map)

    def prepare_log(self) -> None:
        """Upgrades a plain commit log before the first start with a DLedger log."""
        parts = self._parts
        config = parts.live.current
        if needs_upgrade(config):
            log.info("the plain commit log in %s becomes the old part of a DLedger log", config.root_dir)
            upgrade(config, parts.store.appender.store_host, is_batch_topic=parts.tables.topics.is_batch_cq)

    def log_loaded(self) -> None:
        """See `AvailabilityMode`."""
        self.commit_log.loaded()

    async def start_replication(self) -> None:
        """Nothing: the peer replicates the log."""

    async def start(self) -> None:
        """See `AvailabilityMode`."""
        await self.commit_log.start()

    async def leave(self) -> None:
        """See `AvailabilityMode`."""
        await self.leadership.stop_leading()

    async def stop(self) -> None:
        """Leaves the Raft group: the tables are written, and nothing is appended any more."""
        await self.commit_log.stop()
        self._roles.stop()
        await self.leadership.stop()

    def add_periodic_tasks(self, every: Every) -> None:
        """See `AvailabilityMode`."""
        every(lambda: DRAIN_CHECK_MS, "watch the log", self.commit_log.check_progress)
        every(lambda: DRAIN_CHECK_MS, "leave the leadership if drained", self.leadership.check_drained)
        every(lambda: DRAIN_CHECK_MS, "take the ends of queues", self._take_queue_ends)

    def _leaves_leadership(self) -> bool:
        """Whether this broker leaves the leadership of its group to others."""
        commit_log = self.commit_log
        drained = self._parts.replica_control.state.drained
        return drained or commit_log.queue_ends.are_missing or commit_log.cannot_serve

    def _take_queue_ends(self) -> None:
        parts = self._parts
        self.commit_log.queue_ends.take_soon(parts.client, parts.store, parts.tables.topics, parts.slave_sync)

    @property
    def leads(self) -> bool:
        """See `AvailabilityMode`."""
        return self.leadership.leads

    def master_log_state(self) -> MasterLogStateHeader:
        """See `AvailabilityMode`. There is no SyncStateSet; the epoch is the term."""
        if not self.leadership.leads:
            return super().master_log_state()
        return MasterLogStateHeader(
            broker_id=self.leadership.broker_id,
            master_epoch=self.leadership.term,
            max_offset=self._parts.store.max_phy_offset,
        )

    def _refusal_of_master(self) -> SendRefusal | None:
        return None if self.commit_log.is_ready else self._refusal_of_replica()

    def _refusal_of_replica(self) -> SendRefusal | None:
        commit_log = self.commit_log
        if commit_log.problem:
            return refusals.store_fault((commit_log.problem,))
        if self.leadership.leads:
            return refusals.starting("it leads, but its log is not committed and dispatched yet")
        if self.leadership.leader_id is None:
            return refusals.starting("the group has no leader, as far as it knows")
        return None

    def runtime_info(self) -> Mapping[str, str]:
        """The entries about the peer, and about its control."""
        control = self._parts.replica_control.state
        return {
            **runtime_info(self.commit_log),
            "confirmOffset": str(self._parts.store.max_phy_offset),
            "fenced": str(control.fenced).lower(),
            "drained": str(control.drained).lower(),
        }

    async def switch_over(self, header: SwitchoverRequestHeader, timeout_ms: int) -> SwitchoverResponseHeader:
        """Transfers the leadership."""
        done = await self.leadership.transfer(header.broker_id, timeout_ms)
        return SwitchoverResponseHeader(
            master_broker_id=done.master_id,
            master_address=header.address or None,
            master_epoch=done.term,
            held_ms=done.took_ms,
        )
