"""Serves the admin API of a broker at its admin socket."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from itertools import chain

from epochmq_broker.admin.broker_view import BrokerView
from epochmq_broker.admin.consumer_lags import ConsumerLags
from epochmq_broker.admin.control_operations import ControlOperations
from epochmq_broker.admin.dependencies import AdminApiDependencies
from epochmq_broker.admin.metric_values import metric_values
from epochmq_broker.admin.rocketmq_metrics import RocketMQMetrics
from epochmq_broker.admin.rocketmq_service_metrics import service_samples
from epochmq_protocol import properties
from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.common_operations import installed_version, redacted_config, set_log_level
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    AdminArguments,
    AdminOperation,
    ChangeConfigArguments,
    LogLevelArguments,
    ReadinessLimits,
    ReloadConfigArguments,
)
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.frame import request
from epochmq_protocol.transport import port_counts
from epochmq_protocol.transport.admin_socket import AdminOperationHandler, AdminSocketServer
from epochmq_protocol.transport.in_process_calls import InProcessCalls
from epochmq_protocol.transport.outgoing_tls import outgoing_metric_values

log = logging.getLogger(__name__)


class BrokerAdminApi:
    """The admin API of one broker. `start` it when the broker serves, `stop` it before the broker stops
    serving."""

    def __init__(self, components: AdminApiDependencies, calls: InProcessCalls) -> None:
        """Raises ConfigError if the socket's path is invalid."""
        self._components = components
        self._calls = calls
        self._view = BrokerView(components)
        self._rocketmq = RocketMQMetrics(
            components.store,
            components.tables,
            ConsumerLags(components.store, components.tables, components.pop),
            lambda: chain(
                service_samples(components.transactions, components.pop, components.timer),
                components.request_samples(),
            ),
        )
        self._control = ControlOperations(components, self._view, calls)
        self._server = AdminSocketServer(components.live.current.admin_socket_path, self.operations())

    async def start(self) -> None:
        """Starts serving. Raises ConfigError if the socket cannot be created."""
        self._view.poller.start()
        await self._server.start()

    async def stop(self) -> None:
        """Stops serving; waits for a running switchover."""
        await self._server.stop()
        await self._control.stop()
        await self._view.poller.stop()

    def operations(self) -> Mapping[str, AdminOperationHandler]:
        """Operation → handler."""
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
            AdminOperation.LOG_LEVEL: AdminOperationHandler(LogLevelArguments, self._log_level),
            AdminOperation.CHANGE_CONFIG: AdminOperationHandler(ChangeConfigArguments, self._change_config),
            AdminOperation.RELOAD_CONFIG: AdminOperationHandler(ReloadConfigArguments, self._reload_config),
            **self._control.operations(),
        }

    async def _live(self, _: AdminArguments, timeout_ms: float) -> results.ProcessLiveness:
        return results.ProcessLiveness(component="broker", pid=os.getpid(), version=installed_version())

    async def _state(self, limits: ReadinessLimits, timeout_ms: float) -> results.BrokerState:
        return self._view.state(limits)

    async def _epochs(self, _: AdminArguments, timeout_ms: float) -> results.EpochHistory:
        epochs = self._components.ha.epochs.epochs
        ends = ((entry, epochs.end_of(entry)) for entry in epochs.entries)
        return results.EpochHistory(
            broker_id=self._view.broker_id(),
            max_offset=self._components.store.max_phy_offset,
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
        path = self._components.ha.epochs.path
        try:
            content = await asyncio.to_thread(path.read_bytes)
        except FileNotFoundError:
            raise AdminError(
                FaultKind.REFUSED, f"{path} does not exist, because the log has no epoch yet"
            ) from None
        return results.EpochFileContent(path=str(path), content=content)

    async def _sync_state_set(self, _: AdminArguments, timeout_ms: float) -> results.SyncStateSetState:
        members, set_epoch = self._view.sync_state_set()
        replicas, sync = self._components.replicas, self._components.ha.sync_state
        role = replicas.state_machine.role if replicas is not None else None
        return results.SyncStateSetState(
            master_broker_id=role.master_id if role is not None else None,
            master_epoch=self._view.master_epoch(),
            members=sorted(members),
            epoch=set_epoch,
            proposed=sorted(sync.proposed) if sync is not None and sync.proposed is not None else None,
        )

    async def _lag(self, _: AdminArguments, timeout_ms: float) -> results.ReplicationLag:
        facts, sync = self._view.readiness(), self._components.ha.sync_state
        end = self._view.max_offset()
        if facts.dledger is not None:
            return results.ReplicationLag(
                role=facts.role,
                max_offset=end,
                lag_bytes=facts.lag_bytes,
                lag_ms=facts.lag_ms,
                replicas=[_peer_lag(end, peer) for peer in facts.dledger.peers if peer.lag_bytes is not None],
            )
        replicas = sync.replicas.values() if sync is not None else ()
        return results.ReplicationLag(
            role=facts.role,
            max_offset=end,
            lag_bytes=facts.lag_bytes,
            lag_ms=facts.lag_ms,
            replicas=[
                results.ReplicaLag(
                    broker_id=replica.broker_id,
                    ack_offset=replica.ack_offset,
                    lag_bytes=end - max(0, replica.ack_offset),
                    in_sync=replica.broker_id in facts.sync_state_set,
                    learner=replica.async_learner,
                )
                for replica in sorted(replicas, key=lambda replica: replica.broker_id)
            ],
        )

    async def _lease(self, _: AdminArguments, timeout_ms: float) -> results.LeaseState:
        replicas = self._components.replicas
        return results.LeaseState(
            epoch=replicas.lease.epoch if replicas is not None else None,
            lease=self._view.lease(),
            granted_by_leader=replicas.lease.leader_grants if replicas is not None else None,
            may_write=self._view.may_write(),
        )

    async def _config(self, _: AdminArguments, timeout_ms: float) -> results.EffectiveConfig:
        return redacted_config(self._components.live.as_properties())

    async def _metrics(self, limits: ReadinessLimits, timeout_ms: float) -> results.MetricValues:
        components, config = self._components, self._components.live.current
        return results.MetricValues(
            state=self._view.state(limits),
            values=metric_values(
                components.store,
                components.ha,
                components.stats,
                components.replicas,
                components.cold_reads,
                components.scrub,
                components.transactions,
                components.pop,
                components.access,
                components.timer,
                components.escape,
                components.quarantine,
                components.certificates,
                log_diverged=self._view.log_diverged(),
            )
            | port_counts.metric_values()
            | outgoing_metric_values(components.client.certificates, "broker"),
            rocketmq=await self._rocketmq.collect(config),
            rocketmq_labels={
                "cluster": config.broker_cluster_name,
                "node_type": "broker",
                "node_id": config.broker_name,
            },
        )

    async def _log_level(self, wanted: LogLevelArguments, timeout_ms: float) -> results.LogLevelResult:
        return set_log_level(wanted)

    async def _change_config(
        self, wanted: ChangeConfigArguments, timeout_ms: float
    ) -> results.EffectiveConfig:
        body = properties.rewrite("", wanted.changes).encode()
        await self._calls.call(request(RequestCode.UPDATE_BROKER_CONFIG, body=body))
        return redacted_config(self._components.live.as_properties())

    async def _reload_config(
        self, wanted: ReloadConfigArguments, timeout_ms: float
    ) -> results.EffectiveConfig:
        """Applies a configuration file that was changed where the broker cannot read it. AdminError REFUSED
        for an invalid value and for another value of a fixed key."""
        live = self._components.live
        try:
            warnings = live.reload(wanted.config, wanted.version)
        except ConfigError as error:
            raise AdminError(FaultKind.REFUSED, str(error)) from None
        for warning in warnings:
            log.warning("configuration %s: %s", wanted.version, warning)
        log.info("the configuration %s is in force", wanted.version)
        return redacted_config(live.as_properties())


def _peer_lag(end: int, peer: results.DLedgerPeerState) -> results.ReplicaLag:
    """A peer of a DLedger group in its leader's view. Every peer counts for the quorum."""
    lag = peer.lag_bytes or 0
    return results.ReplicaLag(
        broker_id=peer.broker_id, ack_offset=end - lag, lag_bytes=lag, in_sync=bool(peer.alive), learner=False
    )
