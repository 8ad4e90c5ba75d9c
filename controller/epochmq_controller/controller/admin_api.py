"""Serves the operations of a controller's local socket (`epochmq_protocol.admin_api`), alone or inside a
nameserver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

import msgspec

from epochmq_controller.controller.config import KEYS
from epochmq_controller.controller.controller import Controller
from epochmq_dledger.core.types import RaftRole
from epochmq_dledger.requested_changes import change_members, member_states
from epochmq_dledger.results import RaftOperationError
from epochmq_protocol import properties
from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.common_operations import installed_version, redacted_config, set_log_level
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    AdminArguments,
    AdminOperation,
    ChangeConfigArguments,
    ChangeMembersArguments,
    HandoverArguments,
    LogLevelArguments,
    ReadinessLimits,
)
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import request
from epochmq_protocol.transport import port_counts
from epochmq_protocol.transport.admin_socket import AdminOperationHandler
from epochmq_protocol.transport.group_members import CONTROLLERS
from epochmq_protocol.transport.in_process_calls import InProcessCalls

POLL_INTERVAL_S: Final = 0.02
ROLES: Final = {RaftRole.LEADER: "leader", RaftRole.FOLLOWER: "follower", RaftRole.CANDIDATE: "candidate"}


class ControllerAdminApi:
    """The admin API of one controller. `nameserver` returns the counts of a nameserver in the same
    process, `metric_values` the metrics that the state does not contain, by name."""

    def __init__(
        self,
        *,
        controller: Controller,
        calls: InProcessCalls,
        nameserver: Callable[[], results.NameserverCounts] | None = None,
        metric_values: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self._controller = controller
        self._calls = calls
        self._nameserver = nameserver
        self._metric_values = metric_values

    def operations(self) -> dict[str, AdminOperationHandler]:
        """The handlers by operation."""
        return {
            AdminOperation.LIVE: AdminOperationHandler(AdminArguments, self._live),
            AdminOperation.STATE: AdminOperationHandler(ReadinessLimits, self._state),
            AdminOperation.METRICS: AdminOperationHandler(ReadinessLimits, self._metrics),
            AdminOperation.CONFIG: AdminOperationHandler(AdminArguments, self._config),
            AdminOperation.LOG_LEVEL: AdminOperationHandler(LogLevelArguments, self._log_level),
            AdminOperation.HANDOVER: AdminOperationHandler(HandoverArguments, self._handover),
            AdminOperation.CHANGE_CONFIG: AdminOperationHandler(ChangeConfigArguments, self._change_config),
            AdminOperation.CHANGE_MEMBERS: AdminOperationHandler(
                ChangeMembersArguments, self._change_members
            ),
        }

    async def _live(self, _: AdminArguments, timeout_ms: float) -> results.ProcessLiveness:
        return results.ProcessLiveness(component="controller", pid=os.getpid(), version=installed_version())

    async def _state(self, _: ReadinessLimits, timeout_ms: float) -> results.ControllerState:
        return self.state()

    def state(self) -> results.ControllerState:
        """The state of the controller and its groups, as far as this controller knows."""
        controller = self._controller
        peer = controller.peer
        state = results.ControllerState(
            id=peer.settings.self_id,
            group=peer.settings.group,
            address=controller.addresses[peer.settings.self_id],
            role=ROLES[peer.role],  # type: ignore[arg-type]
            term=peer.term,
            leader=peer.leader_id,
            leader_address=controller.leader_address,
            leads=controller.leads,
            peers=member_states(peer),
            committed_index=peer.committed_index,
            applied_index=peer.applied_index,
            messages_rejected=peer.messages_rejected,
            groups=[
                results.ReplicaGroupState(
                    broker_name=name,
                    cluster=group.cluster_name,
                    master_broker_id=group.master_id,
                    master_epoch=group.master_epoch,
                    sync_state_set=sorted(group.sync_state_set),
                    sync_state_set_epoch=group.sync_state_set_epoch,
                    replicas=[
                        results.ReplicaGroupMember(
                            broker_id=broker_id,
                            address=replica.address,
                            alive=info is not None,
                            in_doubt=info is not None and info.in_doubt,
                        )
                        for broker_id, replica in sorted(group.replicas.items())
                        for info in (controller.alive(group.cluster_name, name, broker_id),)
                    ],
                    eligible=sorted(group.eligible_members),
                    refused=[
                        results.RefusedProcess(broker_id=broker_id, address=one.address, reason=one.text)
                        for broker_id, one in controller.state_machine.refused_processes(name)
                    ],
                    waits=controller.state_machine.wait_reasons.get(name),
                )
                for name, group in sorted(controller.groups.groups.items())
            ],
            ready=True,
            not_ready=[],
            nameserver=self._nameserver() if self._nameserver is not None else None,
        )
        reasons = not_ready_reasons(state)
        return msgspec.structs.replace(state, ready=not reasons, not_ready=reasons)

    async def _metrics(self, _: ReadinessLimits, timeout_ms: float) -> results.MetricValues:
        return results.MetricValues(
            state=self.state(), values=self._metric_values() | port_counts.metric_values()
        )

    async def _config(self, _: AdminArguments, timeout_ms: float) -> results.EffectiveConfig:
        return redacted_config(await self.config())

    async def config(self) -> dict[str, str]:
        """All settings in effect."""
        response = await self._calls.call(request(RequestCode.GET_CONTROLLER_CONFIG))
        return properties.parse(response.body.decode())

    async def _handover(self, _: HandoverArguments, timeout_ms: float) -> results.LeadershipTransferResult:
        """Transfers the leadership to the live peer with the longest log, and waits until the new leader is
        known. AdminError if that peer does not take over."""
        peer = self._controller.peer
        leader = peer.node.leader
        if leader is None:
            return self._not_transferred("this controller does not lead")
        others = leader.voters()
        if not others:
            return self._not_transferred("it is the only controller")
        best = max(others, key=lambda one: (one.alive, one.match_index))
        try:
            await peer.transfer_leadership(best.name)
        except RaftOperationError as error:
            raise AdminError(
                FaultKind.REFUSED, f"controller {best.name} does not take over the leadership: {error}"
            ) from None
        while True:
            if peer.leader_id is not None:
                return results.LeadershipTransferResult(moved=True, leader=peer.leader_id, term=peer.term)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _change_members(
        self, wanted: ChangeMembersArguments, timeout_ms: float
    ) -> results.MembersResult:
        """Adds or removes one member. AdminError if the change cannot be made now."""
        return await change_members(self._controller.peer, wanted, CONTROLLERS)

    def _not_transferred(self, reason: str) -> results.LeadershipTransferResult:
        peer = self._controller.peer
        return results.LeadershipTransferResult(
            moved=False, reason=reason, leader=peer.leader_id, term=peer.term
        )

    async def _log_level(self, wanted: LogLevelArguments, timeout_ms: float) -> results.LogLevelResult:
        return set_log_level(wanted)

    async def _change_config(
        self, wanted: ChangeConfigArguments, timeout_ms: float
    ) -> results.EffectiveConfig:
        await self.change(wanted.changes)
        return redacted_config(await self.config())

    async def change(self, changes: dict[str, str]) -> None:
        """Changes all of these settings or none. RequestError for invalid ones."""
        body = properties.rewrite("", changes).encode()
        await self._calls.call(request(RequestCode.UPDATE_CONTROLLER_CONFIG, body=body))

    @staticmethod
    def knows(key: str) -> bool:
        """Whether a key is a setting of the controller."""
        return key in KEYS


def not_ready_reasons(state: results.ControllerState) -> list[str]:
    """Why a controller is not ready. A ready one belongs to the quorum and knows the leader. A leader that
    has lost its quorum steps down after a few heartbeats, and then knows no leader."""
    reasons = []
    if state.id not in {peer.id for peer in state.peers}:
        reasons.append(f"{state.id} does not belong to the quorum")
    if state.leader is None:
        reasons.append(f"it knows no leader of the {len(state.peers)} controllers in term {state.term}")
    elif state.role == "leader" and not state.leads:
        reasons.append("it leads, but has not yet applied what earlier leaders committed")
    return reasons
