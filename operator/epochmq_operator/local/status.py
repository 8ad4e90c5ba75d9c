"""Observes what runs in a state directory and reports it as `epochmq status -o json` prints it.

The processes are those of the supervisor's records. Whether they are ready is asked of the pods themselves,
so that the report is right even if the supervisor is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from epochmq_operator.local.pod_placements import member_modes, render_all, running_resources
from epochmq_operator.local.process import is_alive
from epochmq_operator.local.readiness import Readiness, int_or_none, probe_pod
from epochmq_operator.local.replica_groups import fetch_replica_groups
from epochmq_operator.local.state_directory import PodRecord, StateDirectory
from epochmq_operator.pod_rendering import (
    MASTER_BROKER_ID,
    pods_of,
)
from epochmq_operator.pods import (
    BrokerProbe,
    Component,
    Pod,
)
from epochmq_operator.resources import BrokerGroup, ControllerGroup, MemberMode, Resources
from epochmq_operator.status_model import (
    ActingMasterStatus,
    BrokerGroupStatus,
    ControllerGroupStatus,
    ControllerStatus,
    GroupPhase,
    ListedReplicaGroup,
    PodPhase,
    PodStatus,
    ReplicaStatus,
    StatusReport,
)
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.transport import RemotingClient


class ObservedLocalPod(msgspec.Struct, kw_only=True):
    """A pod with its record and the result of probing it."""

    pod: Pod
    record: PodRecord | None
    alive: bool
    readiness: Readiness

    @property
    def serves(self) -> bool:
        """Whether the pod is ready and, as a broker, refuses no messages."""
        return self.readiness.ready and not self.readiness.refuses

    @property
    def reason(self) -> str:
        """Why the pod does not serve; empty if it does."""
        if self.serves:
            return ""
        noted = self.record.reason if self.record else ""
        return noted or self.readiness.refuses or self.readiness.reason

    @property
    def phase(self) -> PodPhase:
        """The present phase: the recorded one, corrected by the result of the probe."""
        known = self.record.phase if self.record else PodPhase.STOPPED
        if self.serves:
            return known if known is PodPhase.STOPPING else PodPhase.READY
        if not self.alive and known in (PodPhase.READY, PodPhase.UNREADY, PodPhase.STARTING):
            return PodPhase.STOPPED
        return PodPhase.UNREADY if known is PodPhase.READY else known


@dataclass(frozen=True, slots=True)
class LocalObservation:
    """The observed state of a state directory. `replica_groups` has an entry for each controller group whose
    leader responded. `member_modes` says how the members of each group (kind, name) authenticate each
    other."""

    resources: Resources
    pods: list[ObservedLocalPod]
    replica_groups: dict[str, list[ListedReplicaGroup]]
    member_modes: dict[tuple[str, str], MemberMode] = field(default_factory=dict)

    @classmethod
    def nothing(cls) -> LocalObservation:
        """The observation of a directory in which nothing runs."""
        return cls(Resources(), [], {})

    def of(self, group: BrokerGroup | ControllerGroup) -> list[ObservedLocalPod]:
        """A group's pods. The controllers of a broker group's own ControllerGroup have its name."""
        names = {identity.name for identity in pods_of(group)}
        return [o for o in self.pods if o.pod.name in names]

    def reported_group(self, group: BrokerGroup) -> ListedReplicaGroup | None:
        """The group as its controllers list it; None without controllers, or if none responds."""
        found = self.replica_groups.get(group.controlled_by or "", [])
        return next((one for one in found if one.broker_name == group.broker_name), None)


async def observe(state: StateDirectory) -> LocalObservation:
    """Probes every pod of the resources, all at once; that may take a second or two."""
    resources = running_resources(state.resources(), state.quorums())
    network, known = state.network(), state.pods()
    if network is None or not resources.groups:
        return LocalObservation.nothing()
    records = {record.pod: record for record in known.pods} if known else {}
    pods = render_all(state, resources, network)
    client = RemotingClient(members=state.members())
    try:
        answers = await asyncio.gather(*(probe_pod(client, pod.probe) for pod in pods))
        observed: list[ObservedLocalPod] = []
        for pod, answer in zip(pods, answers, strict=True):
            record = records.get(pod.name)
            alive = record is not None and is_alive(record.process)
            # Without a process of the pod, another process responds at its address.
            readiness = answer if alive else Readiness(False, "no process")
            observed.append(ObservedLocalPod(pod=pod, record=record, alive=alive, readiness=readiness))
        leaders = [
            found
            for group in resources.all_controller_groups
            if (found := leading_controller(group, observed))
        ]
        listed = await asyncio.gather(*(_listed_groups(client, leader.pod) for leader in leaders))
    finally:
        await client.close()
    lists = {
        leader.pod.group: found for leader, found in zip(leaders, listed, strict=True) if found is not None
    }
    modes = {(str(group.kind), group.name): mode for group, mode in member_modes(state, resources)}
    return LocalObservation(resources, observed, lists, modes)


async def _listed_groups(client: RemotingClient, leader: Pod) -> list[ListedReplicaGroup] | None:
    try:
        return await fetch_replica_groups(client, leader.port("remoting"))
    except EpochMQError:  # it may have lost its leadership meanwhile
        return None


def leading_controller(group: ControllerGroup, observed: list[ObservedLocalPod]) -> ObservedLocalPod | None:
    """The controller that leads: of two that claim to, the one of the later term."""
    found = [
        (o.readiness.controller.term or 0, o)
        for o in observed
        if o.pod.group == group.name and o.readiness.controller and o.readiness.controller.role == "leader"
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def report(state: StateDirectory, seen: LocalObservation) -> StatusReport:
    """The report for users and scripts."""
    supervisor = state.supervisor()
    return StatusReport(
        state=str(state.path),
        supervisor_pid=supervisor.pid if supervisor else None,
        nameservers=nameservers_of(seen.pods),
        nameserver_pods=[_pod(o, "data") for o in seen.pods if o.pod.component is Component.NAMESERVER],
        controllers=[_controller(o) for o in seen.pods if o.pod.component is Component.CONTROLLER],
        controller_groups=[
            controller_group_status(group, seen) for group in seen.resources.all_controller_groups
        ],
        broker_groups=[_group(group, seen) for group in seen.resources.broker_groups],
    )


def nameservers_of(observed: list[ObservedLocalPod]) -> list[str]:
    """The addresses of all nameservers, including those in controllers' processes."""
    return [address for o in observed if (address := _nameserver(o.pod)) is not None]


def _nameserver(pod: Pod) -> str | None:
    if pod.component is Component.NAMESERVER:
        return pod.port("remoting")
    return next((pod.port(port.name) for port in pod.ports if port.name == "nameserver"), None)


def controller_group_status(group: ControllerGroup, seen: LocalObservation) -> ControllerGroupStatus:
    """The status of a controller group."""
    pods = seen.of(group)
    leader = leading_controller(group, pods)
    raft_state = leader.readiness.controller if leader else None
    return ControllerGroupStatus(
        name=group.name,
        phase=_phase(pods),
        leader=leader.pod.name if leader else None,
        term=raft_state.term if raft_state else None,
        committed_index=raft_state.committed_index if raft_state else None,
        nameservers=nameservers_of(pods),
        replica_groups=seen.replica_groups.get(group.name),
        member_authentication=seen.member_modes.get((group.kind, group.name)),
    )


def _controller(o: ObservedLocalPod) -> ControllerStatus:
    raft_state = o.readiness.controller
    return ControllerStatus(
        **msgspec.structs.asdict(_pod(o, "data")),
        group=o.pod.group,
        role=raft_state.role if raft_state else None,
        term=raft_state.term if raft_state else None,
        committed_index=raft_state.committed_index if raft_state else None,
        nameserver=_nameserver(o.pod),
    )


def _group(group: BrokerGroup, seen: LocalObservation) -> BrokerGroupStatus:
    observed, listed = seen.of(group), seen.reported_group(group)
    brokers = [o for o in observed if o.pod.component is Component.BROKER]
    return BrokerGroupStatus(
        name=group.name,
        broker_name=group.broker_name,
        cluster=group.spec.cluster,
        controller_group=group.controlled_by,
        phase=_phase(observed),
        mode=group.spec.mode,
        acting_master=acting_master_of(brokers),
        nameservers=list(brokers[0].pod.probe.nameservers)
        if brokers and isinstance(brokers[0].pod.probe, BrokerProbe)
        else [],
        master_epoch=listed.master_epoch if listed else _leaders_term(brokers),
        sync_state_set=listed.sync_state_set if listed else [],
        member_authentication=seen.member_modes.get((group.kind, group.name)),
        replicas=[replica_of(group, o, listed) for o in brokers],
    )


def _phase(observed: list[ObservedLocalPod]) -> GroupPhase:
    if observed and all(o.serves for o in observed):
        return GroupPhase.READY
    if not any(o.alive for o in observed) and all(o.phase is PodPhase.STOPPED for o in observed):
        return GroupPhase.STOPPED
    coming = (PodPhase.WAITING, PodPhase.STARTING, PodPhase.READY)
    failing = any(o.record is not None and o.record.restarts for o in observed if not o.serves)
    if not failing and all(o.phase in coming for o in observed):
        return GroupPhase.PROGRESSING
    return GroupPhase.DEGRADED


def replica_of(group: BrokerGroup, o: ObservedLocalPod, listed: ListedReplicaGroup | None) -> ReplicaStatus:
    """The status of a replica, by its own report and by its controllers."""
    address, runtime_info = o.pod.port("remoting"), o.readiness.runtime_info
    registered = o.readiness.broker_id
    broker_id: int | None
    if group.is_dledger:
        broker_id = o.pod.ordinal + 1
        in_sync = o.readiness.ready
    elif group.controlled_by is None:
        # Replica 0 is always the master.
        broker_id = o.pod.ordinal if registered is None else registered
        in_sync = o.readiness.ready
    else:
        known = listed.replica_at(address) if listed else None
        broker_id = known.broker_id if known else None
        in_sync = known is not None and known.in_sync and known.alive
    leads = registered == MASTER_BROKER_ID if listed is None else listed.master_id == broker_id
    role = None if registered is None else "master" if leads else "slave"
    role = o.readiness.dledger_role or runtime_info.get("groupRole", role)
    return ReplicaStatus(
        **msgspec.structs.asdict(_pod(o, "store")),
        broker_id=broker_id,
        role=role,
        in_sync=in_sync,
        epoch=int_or_none(runtime_info.get("dledgerTerm", runtime_info.get("epoch"))),
        max_offset=int_or_none(runtime_info.get("dledgerLogEnd", runtime_info.get("commitLogMaxOffset"))),
        confirm_offset=int_or_none(runtime_info.get("confirmOffset")),
        fenced=runtime_info.get("fenced") == "true",
        drained=runtime_info.get("drained") == "true",
        ha_address=_port_or_none(o.pod, "ha"),
        dledger_address=_port_or_none(o.pod, "dledger"),
        escaped=int_or_none(runtime_info.get("escapedMessages")),
        escape_waiting=int_or_none(runtime_info.get("escapeWaitingMessages")),
    )


def _port_or_none(pod: Pod, name: str) -> str | None:
    return next((pod.port(port.name) for port in pod.ports if port.name == name), None)


def _leaders_term(brokers: Sequence[ObservedLocalPod]) -> int | None:
    """The term of the master of a DLedger group; None without one."""
    terms = (o.readiness.runtime_info.get("dledgerTerm") for o in brokers if o.readiness.leads_dledger)
    return max((int(term) for term in terms if term), default=None)


def acting_master_of(brokers: Sequence[ObservedLocalPod]) -> ActingMasterStatus | None:
    """The replica that acts for the master, if one does: of several that say so, the one with the smallest
    id, because the others are about to stop."""
    for o in sorted(brokers, key=lambda o: o.pod.ordinal):
        runtime_info = o.readiness.runtime_info
        if runtime_info.get("groupRole") == "acting":
            return ActingMasterStatus(
                pod=o.pod.name,
                since_ms=int_or_none(runtime_info.get("actingSince")),
                escaped=int_or_none(runtime_info.get("escapedMessages")),
                escape_waiting=int_or_none(runtime_info.get("escapeWaitingMessages")),
            )
    return None


def _admin_address(pod: Pod) -> str | None:
    return None if pod.sidecar is None else f"{pod.address}:{pod.sidecar.port.number}"


def _pod(o: ObservedLocalPod, volume: str) -> PodStatus:
    process = o.record.process if o.record and o.alive else None
    return PodStatus(
        pod=o.pod.name,
        address=o.pod.port("remoting"),
        pid=process.pid if process else None,
        admin_address=_admin_address(o.pod),
        data_dir=next(v.path for v in o.pod.volumes if v.name == volume),
        ready=o.serves,
        phase=o.phase,
        reason=o.reason,
        restarts=o.record.restarts if o.record else 0,
    )
