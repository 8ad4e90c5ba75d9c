"""The operations of a broker at its local socket."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from epochmq_broker.cold_reads import ColdReadPool
from epochmq_broker.config import LiveConfig
from epochmq_broker.ha.client import HAClientPhase
from epochmq_broker.ha.service import HARole, HAService
from epochmq_broker.local_api.master_poller import MasterPoller
from epochmq_broker.local_api.metric_values import metric_values
from epochmq_broker.local_api.readiness import ReadinessFacts, not_ready_reasons
from epochmq_broker.local_api.switchover import SwitchoverOperations
from epochmq_broker.message_writer import MessageWriter
from epochmq_broker.registration import NameserverRegistration
from epochmq_broker.replicas.heartbeats import clock_ms
from epochmq_broker.replicas.manager import ReplicasManager
from epochmq_broker.replicas.replica_control import ReplicaControl
from epochmq_broker.slave_sync import SlaveSync
from epochmq_broker.stats import BrokerStats
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.statuses import RunningFlags
from epochmq_protocol import properties
from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.common_operations import installed_version, redacted_config, set_log_level
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    AdminArguments,
    AdminOperation,
    ChangeConfigArguments,
    HandoverArguments,
    LogLevelArguments,
    PromoteArguments,
    ReadinessLimits,
)
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_protocol.frame import request
from epochmq_protocol.replica_control import ReplicaControlCode, ReplicaControlStateHeader
from epochmq_protocol.transport.admin_socket import AdminOperationHandler, AdminSocketServer
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.in_process_calls import InProcessCalls

log = logging.getLogger(__name__)

LOOK_S: Final = 0.05
ANSWER_MS: Final = 100
"""What is left of an operation's time to answer in."""
FLAWS: Final = {
    RunningFlags.NOT_READABLE: "the store cannot be read",
    RunningFlags.NOT_WRITEABLE: "the store cannot be written",
    RunningFlags.WRITE_LOGICS_QUEUE_ERROR: "a consume queue could not be written",
    RunningFlags.WRITE_INDEX_FILE_ERROR: "an index file could not be written",
    RunningFlags.DISK_FULL: "the disk is full",
    RunningFlags.LOGIC_DISK_FULL: "the disk of the consume queues is full",
    RunningFlags.FLUSH_FAILED: "what was written could not be synced to the disk",
}

RoleName = Literal["master", "replica", "none"]


@dataclass(frozen=True, slots=True)
class LocalApiDependencies:
    """What is looked at."""

    live: LiveConfig
    store: MessageStore
    ha: HAService
    writer: MessageWriter
    stats: BrokerStats
    registration: NameserverRegistration
    client: RemotingClient
    slave_sync: SlaveSync
    steering: ReplicaControl
    replicas: ReplicasManager | None
    cold_reads: ColdReadPool


class BrokerLocalApi:
    """The local socket of one broker. `start` when it serves, `stop` before it stops serving."""

    def __init__(self, parts: LocalApiDependencies, calls: InProcessCalls) -> None:
        """ConfigError for a path that no socket can have."""
        self._parts = parts
        self._calls = calls
        self._switches = SwitchoverOperations(parts.live, parts.ha, parts.client, parts.replicas)
        self._watch = MasterPoller(parts.client, parts.ha, self._master_address)
        self._server = AdminSocketServer(parts.live.current.admin_socket_path, self.operations())

    async def start(self) -> None:
        """Answers from now on. ConfigError when the socket cannot be made."""
        self._watch.start()
        await self._server.start()

    async def stop(self) -> None:
        """Answers no more; a switch under way is waited for."""
        await self._server.stop()
        await self._switches.stop()
        await self._watch.stop()

    def operations(self) -> Mapping[str, AdminOperationHandler]:
        """By name."""
        nothing = AdminArguments
        return {
            AdminOperation.LIVE: AdminOperationHandler(nothing, self._live),
            AdminOperation.STATE: AdminOperationHandler(ReadinessLimits, self._state),
            AdminOperation.EPOCHS: AdminOperationHandler(nothing, self._epochs),
            AdminOperation.EPOCH_FILE: AdminOperationHandler(nothing, self._epoch_file),
            AdminOperation.SYNC_STATE_SET: AdminOperationHandler(nothing, self._sync_state_set),
            AdminOperation.LAG: AdminOperationHandler(nothing, self._lag),
            AdminOperation.LEASE: AdminOperationHandler(nothing, self._lease),
            AdminOperation.CONFIG: AdminOperationHandler(nothing, self._config),
            AdminOperation.METRICS: AdminOperationHandler(ReadinessLimits, self._metrics),
            AdminOperation.PROMOTE: AdminOperationHandler(PromoteArguments, self._promote),
            AdminOperation.HANDOVER: AdminOperationHandler(HandoverArguments, self._handover),
            AdminOperation.FENCE: AdminOperationHandler(nothing, self._fence),
            AdminOperation.UNFENCE: AdminOperationHandler(nothing, self._unfence),
            AdminOperation.DRAIN: AdminOperationHandler(nothing, self._drain),
            AdminOperation.UNDRAIN: AdminOperationHandler(nothing, self._undrain),
            AdminOperation.LOG_LEVEL: AdminOperationHandler(LogLevelArguments, self._log_level),
            AdminOperation.CHANGE_CONFIG: AdminOperationHandler(ChangeConfigArguments, self._change_config),
        }

    # How it is ----------------------------------------------------------------------------------------------

    async def _live(self, _: AdminArguments, timeout_ms: float) -> results.ProcessLiveness:
        return results.ProcessLiveness(component="broker", pid=os.getpid(), version=installed_version())

    async def _state(self, limits: ReadinessLimits, timeout_ms: float) -> results.BrokerState:
        return self.state(limits)

    def state(self, limits: ReadinessLimits) -> results.BrokerState:
        """Everything at a glance."""
        parts, facts = self._parts, self._facts()
        config, replicas = parts.live.current, parts.replicas
        reasons = not_ready_reasons(facts, limits)
        role = replicas.state_machine.role if replicas is not None else None
        return results.BrokerState(
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=facts.broker_id,
            role=facts.role,
            master_epoch=self._epoch(),
            sync_state_set=sorted(facts.sync_state_set),
            sync_state_set_epoch=self._members()[1],
            confirm_offset=parts.ha.confirm_offset,
            max_offset=parts.store.max_phy_offset,
            lag_bytes=facts.lag_bytes,
            lag_ms=facts.lag_ms,
            lease=self._lease_now(),
            fenced=facts.fenced,
            drained=facts.drained,
            takes_messages=parts.store.state.writable and (replicas is None or replicas.takes_messages()),
            confirmed_by_all=replicas is not None and config.all_ack_in_sync_state_set,
            may_lack_acknowledged=parts.ha.may_lack_acknowledged,
            controlled=replicas is not None,
            address=config.broker_addr,
            ha_address=config.ha_server_addr,
            master_broker_id=role.master_id if role is not None else None,
            master_address=self._master_address(),
            leading_controller=facts.leading_controller,
            ready=not reasons,
            not_ready=reasons,
        )

    def _facts(self) -> ReadinessFacts:
        parts = self._parts
        config, ha, store, replicas = parts.live.current, parts.ha, parts.store, parts.replicas
        role = self._role()
        lag_bytes, lag_ms = (0, 0) if role == "master" else self._watch.lag(store.max_phy_offset)
        known = parts.registration.registered
        step = ha.client.phase if ha.client is not None else None
        return ReadinessFacts(
            role=role,
            controlled=replicas is not None,
            broker_id=self._broker_id(),
            sync_state_set=self._members()[0],
            min_in_sync_replicas=config.min_in_sync_replicas,
            may_write=replicas is None or replicas.lease.is_open(clock_ms()),
            replicas_enough=parts.writer.has_replicas_enough,
            fenced=bool(store.state.flags & RunningFlags.FENCED),
            drained=parts.steering.now.drained,
            learner=config.async_learner,
            in_doubt=ha.doubt.in_doubt,
            flaws=tuple(text for flag, text in FLAWS.items() if store.state.flags & flag),
            leading_controller=replicas.state_machine.leader if replicas is not None else None,
            following=step is HAClientPhase.FOLLOWING,
            step=step.value if step is not None else "",
            registered=any(known.values()) if config.nameservers else None,
            lag_bytes=lag_bytes,
            lag_ms=lag_ms,
        )

    def _role(self) -> RoleName:
        ha, replicas = self._parts.ha, self._parts.replicas
        if ha.role is HARole.MASTER:
            # A master that was told of another is none any more, before it has taken its new role.
            return "master" if replicas is None or replicas.lease.epoch is not None else "none"
        return "replica" if ha.role is HARole.REPLICA else "none"

    def _broker_id(self) -> int | None:
        replicas = self._parts.replicas
        if replicas is None:
            return self._parts.live.current.broker_id
        identity = replicas.state_machine.identity
        return identity.id if identity is not None else None

    def _epoch(self) -> int:
        replicas = self._parts.replicas
        return replicas.role_transitions.epoch if replicas is not None else 0

    def _master_address(self) -> str | None:
        """Where the master serves clients, as far as is known."""
        parts = self._parts
        if parts.ha.role is HARole.MASTER:
            return parts.live.current.broker_addr
        if parts.replicas is None:
            return parts.slave_sync.master
        role = parts.replicas.state_machine.role
        return role.address if role is not None else None

    def _members(self) -> tuple[frozenset[int], int]:
        """(the SyncStateSet, its epoch): the master's own, what it showed this replica, or what the
        controllers said last, whichever is the newest."""
        parts = self._parts
        if parts.replicas is None:
            return frozenset(), 0
        sync = parts.ha.sync_state
        if sync is not None:
            return sync.members, sync.set_epoch
        told = parts.replicas.state_machine.latest_master_view
        found = (told.members, told.set_epoch) if told is not None else (frozenset[int](), 0)
        shown = self._watch.shown
        if shown is not None and shown.set_epoch >= found[1]:
            return shown.member_ids, shown.set_epoch
        return found

    def _lease_now(self) -> results.Lease | None:
        replicas = self._parts.replicas
        if replicas is None or replicas.lease.epoch is None or replicas.lease.leader_grants is False:
            return None
        lease = replicas.lease
        left_ms = 0 if lease.fenced else max(0, int(lease.until_ms - clock_ms()))
        return results.Lease(remaining_ms=left_ms, duration_ms=lease.duration_ms)

    async def _epochs(self, _: AdminArguments, timeout_ms: float) -> results.EpochHistory:
        epochs = self._parts.ha.epochs.epochs
        ends = ((entry, epochs.end_of(entry)) for entry in epochs.entries)
        return results.EpochHistory(
            broker_id=self._broker_id(),
            max_offset=self._parts.store.max_phy_offset,
            epochs=[
                results.EpochRange(
                    epoch=entry.epoch,
                    start_offset=entry.start_offset,
                    end_offset=None if end == OFFSET_MAX else end,
                )
                for entry, end in ends
            ],
        )

    async def _epoch_file(self, _: AdminArguments, timeout_ms: float) -> results.EpochFileContent:
        path = self._parts.ha.epochs.path
        try:
            content = await asyncio.to_thread(path.read_bytes)
        except FileNotFoundError:
            raise AdminError(FaultKind.REFUSED, f"{path}: there is none; the log has no epoch yet") from None
        return results.EpochFileContent(path=str(path), content=content)

    async def _sync_state_set(self, _: AdminArguments, timeout_ms: float) -> results.SyncStateSetState:
        members, set_epoch = self._members()
        replicas, sync = self._parts.replicas, self._parts.ha.sync_state
        role = replicas.state_machine.role if replicas is not None else None
        return results.SyncStateSetState(
            master_broker_id=role.master_id if role is not None else None,
            master_epoch=self._epoch(),
            members=sorted(members),
            epoch=set_epoch,
            proposed=sorted(sync.proposed) if sync is not None and sync.proposed is not None else None,
        )

    async def _lag(self, _: AdminArguments, timeout_ms: float) -> results.ReplicationLag:
        facts, sync = self._facts(), self._parts.ha.sync_state
        end = self._parts.store.max_phy_offset
        replicas = sync.replicas.values() if sync is not None else ()
        return results.ReplicationLag(
            role=facts.role,
            max_offset=end,
            lag_bytes=facts.lag_bytes,
            lag_ms=facts.lag_ms,
            replicas=[
                results.ReplicaLag(
                    broker_id=one.broker_id,
                    ack_offset=one.ack_offset,
                    lag_bytes=end - max(0, one.ack_offset),
                    in_sync=one.broker_id in facts.sync_state_set,
                    learner=one.async_learner,
                )
                for one in sorted(replicas, key=lambda one: one.broker_id)
            ],
        )

    async def _lease(self, _: AdminArguments, timeout_ms: float) -> results.LeaseState:
        replicas = self._parts.replicas
        return results.LeaseState(
            epoch=replicas.lease.epoch if replicas is not None else None,
            lease=self._lease_now(),
            granted_by_leader=replicas.lease.leader_grants if replicas is not None else None,
            may_write=replicas is None or replicas.lease.is_open(clock_ms()),
        )

    async def _config(self, _: AdminArguments, timeout_ms: float) -> results.EffectiveConfig:
        return redacted_config(self._parts.live.as_properties())

    async def _metrics(self, limits: ReadinessLimits, timeout_ms: float) -> results.MetricValues:
        parts = self._parts
        return results.MetricValues(
            state=self.state(limits),
            values=metric_values(parts.store, parts.ha, parts.stats, parts.replicas, parts.cold_reads),
        )

    # What is asked of it ------------------------------------------------------------------------------------

    async def _promote(self, arguments: PromoteArguments, timeout_ms: float) -> results.SwitchoverResult:
        return await self._switches.promote(arguments.broker_id, timeout_ms)

    async def _handover(self, arguments: HandoverArguments, timeout_ms: float) -> results.SwitchoverResult:
        loop = asyncio.get_running_loop()
        over_s = loop.time() + timeout_ms / 1000
        switched = await self._switches.handover(timeout_ms)
        left_ms = (over_s - loop.time()) * 1000 - ANSWER_MS
        await self._switches.linger(min(arguments.linger_ms, left_ms))
        return switched

    async def _fence(self, _: AdminArguments, timeout_ms: float) -> results.ReplicaControlResult:
        return await self._steer(fenced=True)

    async def _unfence(self, _: AdminArguments, timeout_ms: float) -> results.ReplicaControlResult:
        return await self._steer(fenced=False)

    async def _drain(self, _: AdminArguments, timeout_ms: float) -> results.ReplicaControlResult:
        """A mastership goes to another; then this replica leaves the SyncStateSet."""
        switched = None
        if self._parts.replicas is not None and self._parts.ha.role is HARole.MASTER:
            switched = await self._switches.handover(timeout_ms / 2)
            if self._parts.ha.role is HARole.MASTER and not switched.moved:
                raise AdminError(FaultKind.REFUSED, f"nobody else could be the master: {switched.reason}")
            await self._until(lambda: self._parts.ha.role is HARole.REPLICA)
        done = await self._steer(drained=True)
        await self._until(self._is_out_for_good)
        return results.ReplicaControlResult(
            fenced=done.fenced, drained=done.drained, takes_messages=done.takes_messages, switched=switched
        )

    def _is_out_for_good(self) -> bool:
        """As the master says; one of RocketMQ's does not, and then it is the controllers' word."""
        broker_id, shown = self._broker_id(), self._watch.shown
        if shown is not None and broker_id is not None:
            return shown.is_permanent_learner(broker_id)
        return self._watch.master_is_rocketmq and broker_id not in self._members()[0]

    async def _undrain(self, _: AdminArguments, timeout_ms: float) -> results.ReplicaControlResult:
        return await self._steer(drained=False)

    async def _steer(
        self, *, fenced: bool | None = None, drained: bool | None = None
    ) -> results.ReplicaControlResult:
        command = request(
            ReplicaControlCode.SET_CONTROL_STATE, ReplicaControlStateHeader(fenced=fenced, drained=drained)
        )
        answer = ReplicaControlStateHeader.decode((await self._calls.call(command)).ext)
        return results.ReplicaControlResult(
            fenced=answer.fenced is True,
            drained=answer.drained is True,
            takes_messages=answer.takes_messages is True,
        )

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Waits; the operation's deadline ends it."""
        while True:
            if holds():
                return
            await asyncio.sleep(LOOK_S)

    async def _log_level(self, wanted: LogLevelArguments, timeout_ms: float) -> results.LogLevelResult:
        return set_log_level(wanted)

    async def _change_config(
        self, wanted: ChangeConfigArguments, timeout_ms: float
    ) -> results.EffectiveConfig:
        body = properties.rewrite("", wanted.changes).encode()
        await self._calls.call(request(RequestCode.UPDATE_BROKER_CONFIG, body=body))
        return redacted_config(self._parts.live.as_properties())
