"""Reads the state of a broker for the admin API."""

from __future__ import annotations

from typing import Literal

from epochmq_broker.admin.dependencies import AdminApiDependencies
from epochmq_broker.admin.master_poller import MasterPoller
from epochmq_broker.admin.readiness import ReadinessFacts, not_ready_reasons
from epochmq_broker.config.clock import boot_ms
from epochmq_broker.membership.dledger.group_state import dledger_state
from epochmq_broker.membership.store_faults import store_faults
from epochmq_broker.replication.ha.client import HAClientPhase
from epochmq_broker.replication.ha.service import HARole
from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.operations import ReadinessLimits
from epochmq_store.statuses import RunningFlags

RoleName = Literal["master", "replica", "none"]


class BrokerView:
    """The state of one broker. On a replica `poller` keeps the data about the master up to date."""

    def __init__(self, components: AdminApiDependencies) -> None:
        self._components = components
        self.poller = MasterPoller(components.client, lambda: self.role() == "replica", self.master_address)

    def state(self, limits: ReadinessLimits) -> results.BrokerState:
        """Returns the whole state."""
        components, facts = self._components, self.readiness()
        config, replicas = components.live.current, components.replicas
        reasons = not_ready_reasons(facts, limits)
        return results.BrokerState(
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=facts.broker_id,
            role=facts.role,
            master_epoch=self.master_epoch(),
            sync_state_set=sorted(facts.sync_state_set),
            sync_state_set_epoch=self.sync_state_set()[1],
            confirm_offset=self.confirm_offset(),
            max_offset=self.max_offset(),
            lag_bytes=facts.lag_bytes,
            lag_ms=facts.lag_ms,
            lease=self.lease(),
            fenced=facts.fenced,
            drained=facts.drained,
            takes_messages=components.mode.takes_messages()
            and (facts.group is None or facts.group.role != "isolated")
            and (facts.dledger is None or facts.dledger.serves),
            confirmed_by_all=replicas is not None and config.all_ack_in_sync_state_set,
            may_lack_acknowledged=components.ha.doubt.may_lack_acknowledged,
            controlled=replicas is not None,
            address=config.broker_addr,
            ha_address=config.ha_server_addr,
            master_broker_id=self.master_broker_id(),
            master_address=self.master_address(),
            leading_controller=facts.leading_controller,
            refusal=facts.refusal,
            group=facts.group,
            config_version=components.live.version,
            dledger=facts.dledger,
            damage=components.scrub.damage_texts(),
            ready=not reasons,
            not_ready=reasons,
        )

    def readiness(self) -> ReadinessFacts:
        """Returns the inputs of the decision whether the broker is ready."""
        components = self._components
        config, ha, store, replicas, dledger = (
            components.live.current,
            components.ha,
            components.store,
            components.replicas,
            components.dledger,
        )
        role = self.role()
        lag_bytes, lag_ms = (0, 0) if role == "master" else self.poller.lag(store.max_phy_offset)
        known = components.registration.registered
        step = ha.client.phase if ha.client is not None else None
        return ReadinessFacts(
            role=role,
            controlled=replicas is not None,
            broker_id=self.broker_id(),
            sync_state_set=self.sync_state_set()[0],
            min_in_sync_replicas=config.min_in_sync_replicas,
            may_write=self.may_write(),
            waits_for=components.live.standing.waits_for(),
            replicas_enough=components.writer.has_enough_replicas,
            fenced=bool(store.state.flags & RunningFlags.FENCED),
            drained=components.replica_control.state.drained,
            learner=config.async_learner,
            in_doubt=ha.doubt.current.in_doubt,
            divergence=ha.client.divergence if ha.client is not None else "",
            store_faults=store_faults(store.state.flags, store.disk_used_ratio),
            refusal=replicas.state_machine.refusal if replicas is not None else None,
            leading_controller=replicas.state_machine.leader if replicas is not None else None,
            following=step is HAClientPhase.FOLLOWING,
            step=step.value if step is not None else "",
            registered=any(known.values()) if config.namesrv_addr else None,
            lag_bytes=lag_bytes,
            lag_ms=lag_ms,
            group=components.group.state() if components.group is not None else None,
            dledger=dledger_state(dledger.commit_log) if dledger is not None else None,
        )

    def log_diverged(self) -> bool:
        """Whether this log differs from the master's where messages are committed."""
        client, dledger = self._components.ha.client, self._components.dledger
        if dledger is not None:
            return dledger.commit_log.has_joined and dledger.commit_log.peer.divergence != ""
        return client is not None and client.divergence != ""

    def role(self) -> RoleName:
        """The broker's role. The leader of a DLedger group is the master once it accepts messages."""
        ha, replicas, dledger = self._components.ha, self._components.replicas, self._components.dledger
        if dledger is not None:
            if dledger.commit_log.is_ready:
                return "master"
            follows = dledger.leadership.leader_id is not None and not dledger.leadership.leads
            return "replica" if follows else "none"
        if ha.role is HARole.MASTER:
            # A master that knows of a newer master is no longer one, even before its role changes.
            return "master" if replicas is None or replicas.lease.epoch is not None else "none"
        return "replica" if ha.role is HARole.REPLICA else "none"

    def broker_id(self) -> int | None:
        """The broker's id; None before the controllers have assigned one. In a DLedger group its id as a
        slave, which does not change."""
        replicas, dledger = self._components.replicas, self._components.dledger
        if dledger is not None:
            return dledger.leadership.broker_id
        if replicas is None:
            return self._components.live.current.broker_id
        identity = replicas.state_machine.identity
        return identity.id if identity is not None else None

    def master_epoch(self) -> int:
        """The epoch of the latest role, in a DLedger group the term; 0 without either."""
        dledger = self._components.dledger
        return dledger.leadership.term if dledger is not None else self._components.live.master_epoch

    def master_broker_id(self) -> int | None:
        """The id of the master, if known; None without controllers and without DLedger."""
        replicas, dledger = self._components.replicas, self._components.dledger
        if dledger is not None:
            return dledger.leadership.leader_id
        role = replicas.state_machine.role if replicas is not None else None
        return role.master_id if role is not None else None

    def max_offset(self) -> int:
        """The end of the log. In a DLedger group it may be ahead of what is committed."""
        dledger = self._components.dledger
        if dledger is not None:
            return dledger.commit_log.peer.log.end_pos
        return self._components.store.max_phy_offset

    def confirm_offset(self) -> int:
        """Up to this offset consumers see messages: in a DLedger group, up to where the log is committed."""
        components = self._components
        if components.dledger is not None:
            return components.store.max_phy_offset
        return components.ha.confirm_offset

    def master_address(self) -> str | None:
        """The address at which the master serves clients, if known."""
        components = self._components
        if self.role() == "master" or components.ha.role is HARole.MASTER:
            return components.live.current.broker_addr
        if components.replicas is None:
            return components.slave_sync.master
        role = components.replicas.state_machine.role
        return role.address if role is not None else None

    def sync_state_set(self) -> tuple[frozenset[int], int]:
        """Returns (the SyncStateSet, its epoch) from the newest source: the master itself, the master's
        report to this replica, or the controllers."""
        components = self._components
        if components.replicas is None:
            return frozenset(), 0
        sync = components.ha.sync_state
        if sync is not None:
            return sync.members, sync.set_epoch
        view = components.replicas.state_machine.latest_master_view
        newest = (view.members, view.set_epoch) if view is not None else (frozenset[int](), 0)
        polled = self.poller.latest
        if polled is not None and polled.set_epoch >= newest[1]:
            return polled.member_ids, polled.set_epoch
        return newest

    def may_write(self) -> bool:
        """Whether the write lease, if one is needed, allows writing."""
        return self._components.live.standing.capabilities.may_acknowledge(boot_ms())

    def lease(self) -> results.Lease | None:
        """The write lease; None if this broker has or needs none."""
        replicas = self._components.replicas
        if replicas is None or replicas.lease.epoch is None or replicas.lease.leader_grants is False:
            return None
        lease = replicas.lease
        left_ms = 0 if lease.fenced else max(0, int(lease.until_ms - boot_ms()))
        promised_ms = 0 if lease.fenced else max(0, int(max(lease.promised_until_ms, 0.0) - boot_ms()))
        return results.Lease(remaining_ms=left_ms, duration_ms=lease.duration_ms, promised_ms=promised_ms)
