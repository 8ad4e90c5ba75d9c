"""Observes what runs in a namespace of a cluster, and reports it as `epochmq status` prints it. The requests
to replicas go through the API server, so that everybody with access to pods can make them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from epochmq_operator.kube.api import Api
from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.kube.sidecar_client import open_sidecar_client
from epochmq_operator.kube.sidecar_credentials import SidecarCredentials
from epochmq_operator.manifests import MANAGED_BY, MANAGER, claim_name
from epochmq_operator.manifests.names import COMPONENT_LABEL, GROUP_LABEL, KIND_LABEL, address
from epochmq_operator.plans.group_status import ResourcePhase
from epochmq_operator.plans.member_modes import mode_in
from epochmq_operator.plans.objects import Manifest, controller_group_of, metadata, status_of
from epochmq_operator.plans.observed_state import observed_pod
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedControllerState,
    ReportedReplicaGroup,
    ReportedState,
)
from epochmq_operator.pod_rendering import (
    ADMIN_PORT,
    BROKER_DLEDGER_PORT,
    BROKER_HA_PORT,
    BROKER_PORT,
    CONTROLLER_PORT,
    NAMESERVER_PORT,
)
from epochmq_operator.pods import Component
from epochmq_operator.resources import GroupMode
from epochmq_operator.status_model import (
    ActingMasterStatus,
    BrokerGroupStatus,
    ControllerGroupStatus,
    ControllerStatus,
    GroupPhase,
    ListedReplica,
    ListedReplicaGroup,
    PodPhase,
    PodStatus,
    ReplicaStatus,
    StatusReport,
)

PROGRESSING_PHASES = (ResourcePhase.CREATING, ResourcePhase.SCALING, ResourcePhase.UPDATING)
PORTS = {
    Component.BROKER: BROKER_PORT,
    Component.CONTROLLER: CONTROLLER_PORT,
    Component.NAMESERVER: NAMESERVER_PORT,
}


@dataclass(frozen=True, slots=True)
class ObservedNamespace:
    """An observed namespace: its groups, their pods by name, and the states that these report."""

    namespace: str
    groups: tuple[Manifest, ...]
    pods: Mapping[str, Manifest]
    states: Mapping[str, ReportedState]

    def of(self, group: Manifest, component: Component) -> list[Manifest]:
        """A group's pods of a component, by ordinal."""
        found = [pod for pod in self.pods.values() if _labels(pod) == (*_kind_and_name(group), component)]
        return sorted(found, key=lambda pod: _ordinal(_name(pod)))

    def kind(self, kind: str) -> list[Manifest]:
        """The groups of a kind."""
        return [group for group in self.groups if group.get("kind") == kind]


async def observe_namespace(connection: ClusterConnection, namespace: str) -> ObservedNamespace:
    """Observes the namespace. ApiError if the cluster cannot be reached."""
    api = Api(connection)
    try:
        groups = [*(await api.list("ControllerGroup", namespace, ""))[0]]
        groups += (await api.list("BrokerGroup", namespace, ""))[0]
        pods, _ = await api.list("Pod", namespace, f"{MANAGED_BY}={MANAGER}")
        async with open_sidecar_client(api, by_proxy=True) as asked:
            states: dict[str, ReportedState] = {}
            for group in groups:
                mine = [
                    pod for pod in pods if _has_sidecar(pod) and _labels(pod)[:2] == _kind_and_name(group)
                ]
                # The API server checks no certificate; it only needs to know that the sidecar uses TLS.
                admin = (group.get("spec") or {}).get("admin") or {}
                secured = SidecarCredentials(ssl.create_default_context()) if admin.get("tlsSecret") else None
                states.update(await asked.states(namespace, mine, secured))
    finally:
        await api.close()
    return ObservedNamespace(namespace, tuple(groups), {_name(pod): pod for pod in pods}, states)


def _has_sidecar(pod: Manifest) -> bool:
    return _labels(pod)[2] in (Component.BROKER, Component.CONTROLLER)


def _name(manifest: Manifest) -> str:
    return str(metadata(manifest).get("name", ""))


def _labels(pod: Manifest) -> tuple[str, str, str]:
    labels = metadata(pod).get("labels") or {}
    return labels.get(KIND_LABEL, ""), labels.get(GROUP_LABEL, ""), labels.get(COMPONENT_LABEL, "")


def _kind_and_name(group: Manifest) -> tuple[str, str]:
    return str(group.get("kind")), _name(group)


def _ordinal(pod: str) -> int:
    text = pod.rpartition("-")[2]
    return int(text) if text.isdigit() else 0


def report(connection: ClusterConnection, observed: ObservedNamespace) -> StatusReport:
    """The report for users and scripts. `state` names the cluster and the namespace. On a cluster there is no
    supervisor and no process id."""
    controller_groups = observed.kind("ControllerGroup")
    return StatusReport(
        state=f"{connection.server} {observed.namespace}",
        supervisor_pid=None,
        nameservers=[one for controllers in controller_groups for one in _nameservers(observed, controllers)],
        nameserver_pods=[
            _pod(observed, pod, Component.NAMESERVER, "data")
            for controllers in controller_groups
            for pod in observed.of(controllers, Component.NAMESERVER)
        ],
        controllers=[
            _controller(observed, controllers, pod)
            for controllers in controller_groups
            for pod in observed.of(controllers, Component.CONTROLLER)
        ],
        controller_groups=[_controller_group(observed, controllers) for controllers in controller_groups],
        broker_groups=[_broker_group(observed, group) for group in observed.kind("BrokerGroup")],
    )


def _address(observed: ObservedNamespace, pod: Manifest, component: Component, port: int) -> str:
    _, group, _ = _labels(pod)
    return f"{address(_name(pod), group, component, observed.namespace)}:{port}"


def _pod(observed: ObservedNamespace, pod: Manifest, component: Component, volume: str) -> PodStatus:
    found = observed_pod(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    ready = found.ready
    return PodStatus(
        pod=_name(pod),
        address=_address(observed, pod, component, PORTS[component]),
        pid=None,
        data_dir=claim_name(volume, _name(pod)),
        ready=ready,
        phase=_pod_phase(pod, ready=ready, stuck=found.stuck),
        reason=found.unready_reason,
        admin_address=None
        if component is Component.NAMESERVER
        else _address(observed, pod, component, ADMIN_PORT),
        restarts=sum(int(one.get("restartCount") or 0) for one in statuses),
    )


def _pod_phase(pod: Manifest, *, ready: bool, stuck: bool) -> PodPhase:
    if metadata(pod).get("deletionTimestamp"):
        return PodPhase.STOPPING
    if ready:
        return PodPhase.READY
    if stuck:
        return PodPhase.BACK_OFF
    running = (pod.get("status") or {}).get("phase") == "Running"
    return PodPhase.UNREADY if running else PodPhase.STARTING


def _embeds(controllers: Manifest) -> bool:
    nameserver = (controllers.get("spec") or {}).get("nameserver") or {}
    return nameserver.get("embedded", True) is True


def _nameservers(observed: ObservedNamespace, controllers: Manifest) -> list[str]:
    component = Component.CONTROLLER if _embeds(controllers) else Component.NAMESERVER
    return [
        _address(observed, pod, component, NAMESERVER_PORT) for pod in observed.of(controllers, component)
    ]


def _controller(observed: ObservedNamespace, controllers: Manifest, pod: Manifest) -> ControllerStatus:
    state = observed.states.get(_name(pod))
    reported = state if isinstance(state, ReportedControllerState) else None
    base = _pod(observed, pod, Component.CONTROLLER, "data")
    return ControllerStatus(
        **{name: getattr(base, name) for name in PodStatus.__struct_fields__},
        group=_name(controllers),
        role=reported.role if reported else None,
        term=reported.term if reported else None,
        committed_index=reported.committed_index if reported else None,
        nameserver=_address(observed, pod, Component.CONTROLLER, NAMESERVER_PORT)
        if _embeds(controllers)
        else None,
    )


def _leading(
    observed: ObservedNamespace, controllers: Manifest
) -> tuple[str, ReportedControllerState] | None:
    found = [
        (state.term or 0, _name(pod), state)
        for pod in observed.of(controllers, Component.CONTROLLER)
        if isinstance(state := observed.states.get(_name(pod)), ReportedControllerState)
        and state.role == "leader"
    ]
    if not found:
        return None
    _, name, state = max(found, key=lambda one: one[:2])
    return name, state


def _controller_group(observed: ObservedNamespace, controllers: Manifest) -> ControllerGroupStatus:
    leading = _leading(observed, controllers)
    state = leading[1] if leading else None
    return ControllerGroupStatus(
        name=_name(controllers),
        phase=_phase(controllers),
        leader=leading[0] if leading else None,
        term=state.term if state else None,
        committed_index=state.committed_index if state else None,
        nameservers=_nameservers(observed, controllers),
        replica_groups=[_replica_group(one) for one in state.groups] if state else None,
        member_authentication=mode_in(status_of(controllers)),
    )


def _replica_group(group: ReportedReplicaGroup) -> ListedReplicaGroup:
    return ListedReplicaGroup(
        broker_name=group.broker_name,
        master_id=group.master_broker_id,
        master_address=next(
            (one.address for one in group.replicas if one.broker_id == group.master_broker_id), None
        ),
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.sync_state_set_epoch or 0,
        sync_state_set=sorted(group.sync_state_set),
        replicas=[
            ListedReplica(
                broker_id=one.broker_id,
                address=one.address,
                alive=one.alive,
                in_sync=one.broker_id in group.sync_state_set,
            )
            for one in sorted(group.replicas, key=lambda one: one.broker_id)
        ],
    )


def _phase(group: Manifest) -> GroupPhase:
    phase = (group.get("status") or {}).get("phase")
    if phase in (ResourcePhase.READY, ResourcePhase.HIBERNATED):
        return GroupPhase(phase)
    return GroupPhase.PROGRESSING if phase is None or phase in PROGRESSING_PHASES else GroupPhase.DEGRADED


def _broker_group(observed: ObservedNamespace, group: Manifest) -> BrokerGroupStatus:
    spec, name = group.get("spec") or {}, _name(group)
    controllers = next(
        (one for one in observed.kind("ControllerGroup") if _name(one) == controller_group_of(group)), None
    )
    broker_name = spec.get("brokerName") or name
    mode = GroupMode(spec.get("mode") or GroupMode.CONTROLLER)
    leading = _leading(observed, controllers) if controllers is not None else None
    kept = (
        next((one for one in leading[1].groups if one.broker_name == broker_name), None) if leading else None
    )
    is_dledger = mode is GroupMode.DLEDGER
    replicas = [
        _replica(observed, pod, kept, is_dledger=is_dledger) for pod in observed.of(group, Component.BROKER)
    ]
    return BrokerGroupStatus(
        name=name,
        broker_name=broker_name,
        cluster=spec.get("cluster") or "DefaultCluster",
        controller_group=controller_group_of(group) if mode is GroupMode.CONTROLLER else None,
        phase=_phase(group),
        mode=mode,
        acting_master=_acting_master((group.get("status") or {}).get("actingMaster")),
        nameservers=_nameservers(observed, controllers) if controllers is not None else [],
        master_epoch=kept.master_epoch if kept else _leaders_term(replicas, mode),
        sync_state_set=sorted(kept.sync_state_set) if kept else [],
        member_authentication=mode_in(status_of(group)),
        replicas=replicas,
    )


def _leaders_term(replicas: list[ReplicaStatus], mode: GroupMode) -> int | None:
    """The term of the master of a DLedger group; None without one, and in other modes."""
    if mode is not GroupMode.DLEDGER:
        return None
    return max((one.epoch or 0 for one in replicas if one.role == "master"), default=None)


def _acting_master(reported: Any) -> ActingMasterStatus | None:
    """The acting master by the status that the operator wrote."""
    if not isinstance(reported, Mapping):
        return None
    since_ms: int | None
    try:
        since_ms = int(datetime.fromisoformat(str(reported.get("since"))).timestamp() * 1000)
    except ValueError:
        since_ms = None
    return ActingMasterStatus(
        pod=str(reported.get("pod", "")),
        since_ms=since_ms,
        escaped=reported.get("escaped"),
        escape_waiting=reported.get("waiting"),
    )


def _replica(
    observed: ObservedNamespace, pod: Manifest, kept: ReportedReplicaGroup | None, *, is_dledger: bool
) -> ReplicaStatus:
    found = observed.states.get(_name(pod))
    state = found if isinstance(found, ReportedBrokerState) else None
    base = _pod(observed, pod, Component.BROKER, "store")
    known = state.broker_id if state else None
    role = None
    member = state.group if state else None
    if member is not None:
        role = str(member.role)
    elif known is not None and kept is not None:
        role = "master" if kept.master_broker_id == known else "slave"
    elif state is not None and not state.controlled:
        role = "master" if state.role == "master" else "slave"
    return ReplicaStatus(
        **{name: getattr(base, name) for name in PodStatus.__struct_fields__},
        broker_id=known,
        role=role,
        in_sync=known in kept.sync_state_set
        if kept is not None
        else state is not None and not state.controlled and base.ready,
        epoch=state.master_epoch if state else None,
        max_offset=state.max_offset if state else None,
        confirm_offset=state.confirm_offset if state else None,
        fenced=state is not None and state.fenced,
        drained=state is not None and state.drained,
        ha_address=None if is_dledger else _address(observed, pod, Component.BROKER, BROKER_HA_PORT),
        dledger_address=_address(observed, pod, Component.BROKER, BROKER_DLEDGER_PORT)
        if is_dledger
        else None,
        escaped=sum(one.escaped for one in member.escape) if member is not None else None,
        escape_waiting=sum(one.waiting for one in member.escape) if member is not None else None,
    )
