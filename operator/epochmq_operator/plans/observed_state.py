"""Collects the state of a group as observed in one reconciliation, from objects of the API server and the
states that replicas reported."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from epochmq_operator.manifests.kept_templates import image_of, mounted_config_maps
from epochmq_operator.manifests.restart_digest import restart_digest_of
from epochmq_operator.plans.indexed_objects import split_ordinal, with_ordinals
from epochmq_operator.plans.objects import Manifest, Ref, is_deleting, metadata, spec_of
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedControllerState,
    ReportedReplicaGroup,
    ReportedState,
)
from epochmq_operator.pod_rendering import MASTER_BROKER_ID

NOT_READY = "is not ready"
REASON_LENGTH_MAX = 300
NODE_LOST = "NodeLost"
STUCK_REASONS = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons why a container does not run that waiting cannot resolve: its template has to change."""


class NodeState(StrEnum):
    """The state of a node: whether its kubelet ends the pods that are deleted."""

    READY = "Ready"
    NOT_READY = "NotReady"
    GONE = "Gone"


def node_state(node: Manifest | None) -> NodeState:
    """The state of a node; None: the API server has none of the name."""
    if node is None:
        return NodeState.GONE
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return NodeState.READY if ready else NodeState.NOT_READY


@dataclass(frozen=True, slots=True)
class RejectedReload:
    """A broker's rejection of the configuration with this version."""

    version: str
    message: str


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The observed state of a `resource`. `objects` are the watched objects of its namespace, including pods
    and volume claims. `states` are the states that replicas reported, by pod. `users` are the broker groups
    that name a controller group. `rejection` is the API server's response to the resource's last write, if
    that was rejected. `can_reload`: the operator may change the settings of running replicas.
    `rejected_reloads`: configurations that replicas rejected, by pod. `rejected_claims`: sizes that the API
    server rejected lately, by volume claim. `updates_full` says why no update may begin because
    many other groups are being updated; empty if one may. `nodes` are the states of the nodes that
    `nodes_to_ask` names, without those that the operator may not read."""

    resource: Manifest
    objects: Mapping[Ref, Manifest] = field(default_factory=dict)
    states: Mapping[str, ReportedState] = field(default_factory=dict)
    users: tuple[str, ...] = ()
    rejection: str = ""
    can_reload: bool = False
    rejected_reloads: Mapping[str, RejectedReload] = field(default_factory=dict)
    rejected_claims: Mapping[str, str] = field(default_factory=dict)
    updates_full: str = ""
    nodes: Mapping[str, NodeState] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """The namespace of the resource."""
        return str(metadata(self.resource).get("namespace", ""))

    def object(self, kind: str, name: str) -> Manifest | None:
        """The object of this name in the namespace, None if it does not exist."""
        return self.objects.get(Ref(kind, self.namespace, name))


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """The pod of a replica. `unready_reason` says why it is not ready; `stuck`: it needs another template to
    run; `outdated`: its template is not its StatefulSet's present one; `deleting`: it is being deleted.
    `image` is that of its main container; `config_maps` are those that it mounts; `restart_digest` is its
    annotation of this name. `runs`: its containers run, ready or not."""

    name: str
    uid: str
    ready: bool
    unready_reason: str
    stuck: bool
    outdated: bool
    deleting: bool = False
    image: str = ""
    config_maps: frozenset[str] = frozenset()
    restart_digest: str | None = None
    runs: bool = True


def pods_of_set(observed: ObservedState, stateful_set: str, count: int) -> tuple[ObservedPod | None, ...]:
    """The pods of a StatefulSet by ordinal; None for a missing one."""
    owner = observed.object("StatefulSet", stateful_set) or {}
    revision = (owner.get("status") or {}).get("updateRevision")
    found = (observed.object("Pod", f"{stateful_set}-{n}") for n in range(count))
    pods = (None if pod is None else observed_pod(pod, revision) for pod in found)
    return tuple(None if pod is None else _with_reported_reason(pod, observed) for pod in pods)


def _with_reported_reason(pod: ObservedPod, observed: ObservedState) -> ObservedPod:
    """The pod with the reasons that its sidecar gives, if it runs and Kubernetes only knows that it is not
    ready."""
    state = observed.states.get(pod.name)
    if pod.unready_reason != NOT_READY or state is None or not state.not_ready:
        return pod
    reasons = "; ".join(state.not_ready)[:REASON_LENGTH_MAX]
    return replace(pod, unready_reason=f"{NOT_READY}: {reasons}")


def observed_pod(pod: Manifest, revision: str | None = None) -> ObservedPod:
    """Summarises a pod. `revision` is that of its StatefulSet's present template, if known."""
    meta, status = metadata(pod), pod.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    deleting = is_deleting(pod)
    ready = conditions.get("Ready", {}).get("status") == "True" and not deleting
    waits = [
        reason
        for kind in ("initContainerStatuses", "containerStatuses")
        for container in status.get(kind) or ()
        if (reason := ((container.get("state") or {}).get("waiting") or {}).get("reason"))
    ]
    stuck = sorted(set(waits) & STUCK_REASONS)
    own = (meta.get("labels") or {}).get("controller-revision-hash")
    lost = status.get("reason") == NODE_LOST
    return ObservedPod(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        ready=ready,
        unready_reason=""
        if ready
        else _unready_reason(status, conditions, stuck, _node(pod), deleting=deleting),
        stuck=bool(stuck) and not deleting,
        outdated=revision is not None and own is not None and own != revision,
        deleting=deleting,
        image=image_of(spec_of(pod)),
        config_maps=mounted_config_maps(spec_of(pod)),
        restart_digest=restart_digest_of(pod),
        runs=status.get("phase") == "Running" and not (stuck or deleting or lost),
    )


def _node(pod: Manifest) -> str:
    """Where the pod is; empty without a node."""
    node = spec_of(pod).get("nodeName")
    return f" on node {node}" if node else ""


def _unready_reason(
    status: Mapping[str, Any], conditions: Mapping[Any, Any], stuck: list[str], node: str, *, deleting: bool
) -> str:
    if deleting:
        return f"is being deleted{node}"
    if stuck:
        return f"does not run: {stuck[0]}"
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"cannot be scheduled: {scheduled.get('message', 'no reason given')}"
    if status.get("phase") == "Failed":
        # Evicted, NodeShutdown, OutOfmemory, …: Kubernetes gives both for a pod as a whole.
        given = [str(status[key]) for key in ("reason", "message") if status.get(key)]
        return f"failed: {': '.join(given) or 'no reason given'}"[:REASON_LENGTH_MAX]
    if status.get("reason") == NODE_LOST or status.get("phase") == "Unknown":
        return f"is not known to run{node}: the node does not respond"
    return NOT_READY if status.get("phase") == "Running" else "has not started"


def missing_pod(name: str) -> str:
    """What to know of a pod that does not exist. Only the Events of its StatefulSet say why, such as a quota
    that is used up."""
    return f"{name} does not exist (see kubectl describe statefulset {name.rpartition('-')[0]})"


@dataclass(frozen=True, slots=True)
class ObservedClaims:
    """The volume claims of a StatefulSet: their ordinals, and the names of those that are being deleted."""

    ordinals: frozenset[int]
    deleting: tuple[str, ...]


def claims_of_set(observed: ObservedState, manifest: Manifest) -> ObservedClaims:
    """The claims with a StatefulSet's names, whoever created them."""
    templates = (manifest.get("spec") or {}).get("volumeClaimTemplates") or ()
    prefixes = [f"{metadata(one).get('name')}-{metadata(manifest).get('name')}" for one in templates]
    ordinals, deleting = set(), []
    for prefix in prefixes:
        for ref, claim in with_ordinals(observed.objects, "PersistentVolumeClaim", prefix).items():
            _, ordinal = split_ordinal(ref.name)
            if ref.namespace != observed.namespace or ordinal is None:
                continue
            ordinals.add(ordinal)
            if is_deleting(claim):
                deleting.append(ref.name)
    return ObservedClaims(frozenset(ordinals), tuple(sorted(deleting)))


@dataclass(frozen=True, slots=True)
class ObservedQuorum:
    """What the controllers of a group report, or the replicas of a DLedger group: the pod that leads in the
    latest term, and the ids of the members as it knows them; none if it reports none. `answered` is the
    number of those that reported anything, `responding` are their pods."""

    leader: str | None
    term: int | None
    answered: int
    groups: tuple[ReportedReplicaGroup, ...] = ()
    members: frozenset[str] = frozenset()
    responding: frozenset[str] = frozenset()


def observed_quorum(observed: ObservedState, pods: tuple[str, ...]) -> ObservedQuorum:
    """Combines the reports of these controllers: of two that claim to lead, the one of the later term
    counts."""
    reported = {
        pod: state for pod in pods if isinstance(state := observed.states.get(pod), ReportedControllerState)
    }
    leading = [(state.term or 0, pod) for pod, state in reported.items() if state.role == "leader"]
    responding = frozenset(reported)
    if not leading:
        return ObservedQuorum(None, None, len(reported), responding=responding)
    term, leader = max(leading)
    state = reported[leader]
    members = frozenset(peer.id for peer in state.peers)
    return ObservedQuorum(leader, term, len(reported), tuple(state.groups), members, responding)


def observed_peers(observed: ObservedState, pods: tuple[str, ...]) -> ObservedQuorum:
    """Combines the reports of these replicas of a DLedger group: of two that claim to lead, the one of the
    later term counts."""
    reported = {
        pod: state.dledger
        for pod in pods
        if isinstance(state := observed.states.get(pod), ReportedBrokerState) and state.dledger is not None
    }
    leading = [(peer.term, pod) for pod, peer in reported.items() if peer.role == "leader"]
    responding = frozenset(reported)
    if not leading:
        return ObservedQuorum(None, None, len(reported), responding=responding)
    term, leader = max(leading)
    members = frozenset(member.id for member in reported[leader].peers)
    return ObservedQuorum(leader, term, len(reported), (), members, responding)


@dataclass(frozen=True, slots=True)
class ObservedActingMaster:
    """The pod of a slave that acts for its master, since when (milliseconds since 1970), how many messages
    other groups took from it, and how many wait to leave."""

    pod: str
    since_ms: int
    escaped: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ObservedReplicaGroup:
    """The state of a replica group: the pod of its master ("" if there is none, or it is not known), its
    epoch, and the SyncStateSet as broker ids. `known`: a controller or a broker reported it. `acting`: the
    slave that acts for the master, None if none does."""

    known: bool
    master: str = ""
    master_id: int | None = None
    epoch: int = 0
    sync_state_set: tuple[int, ...] = ()
    in_sync_pods: tuple[str, ...] = ()
    acting: ObservedActingMaster | None = None


def observed_master_slave(observed: ObservedState, pods: tuple[str, ...]) -> ObservedReplicaGroup:
    """The state of a group in the mode MasterSlave, by its brokers' own reports: the first of `pods` is the
    master while it serves. The replicas that report that they are ready take the place of the
    SyncStateSet."""
    reported = {
        pod: state for pod in pods if isinstance(state := observed.states.get(pod), ReportedBrokerState)
    }
    first = reported.get(pods[0]) if pods else None
    serves = (
        first is not None and first.role == "master" and (first.group is None or first.group.role == "master")
    )
    acting = next((_acting(pod, state) for pod, state in reported.items() if _acting(pod, state)), None)
    ready = [(ordinal, pod) for ordinal, pod in enumerate(pods) if pod in reported and reported[pod].ready]
    return ObservedReplicaGroup(
        known=bool(reported),
        master=pods[0] if serves else "",
        master_id=MASTER_BROKER_ID if serves else None,
        sync_state_set=tuple(ordinal for ordinal, _ in ready),
        in_sync_pods=tuple(pod for _, pod in ready),
        acting=None if serves else acting,
    )


def observed_dledger_group(observed: ObservedState, pods: tuple[str, ...]) -> ObservedReplicaGroup:
    """The state of a group in the mode DLedger, by its brokers' own reports. Of two that report that they are
    the master, the one of the later term counts. The replicas that report that they are ready take the place
    of the SyncStateSet."""
    reported = {
        pod: state for pod in pods if isinstance(state := observed.states.get(pod), ReportedBrokerState)
    }
    masters = [(state.master_epoch or 0, pod) for pod, state in reported.items() if state.role == "master"]
    term, master = max(masters, default=(0, ""))
    ready = [(pod, state) for pod, state in reported.items() if state.ready]
    return ObservedReplicaGroup(
        known=bool(reported),
        master=master,
        master_id=reported[master].broker_id if master else None,
        epoch=term,
        sync_state_set=tuple(sorted(state.broker_id for _, state in ready if state.broker_id is not None)),
        in_sync_pods=tuple(pod for pod, _ in ready),
    )


def _acting(pod: str, state: ReportedBrokerState) -> ObservedActingMaster | None:
    group = state.group
    if group is None or group.acting_since_ms is None:
        return None
    return ObservedActingMaster(
        pod,
        group.acting_since_ms,
        sum(one.escaped for one in group.escape),
        sum(one.waiting for one in group.escape),
    )


def _by_address(kept: ReportedReplicaGroup, pods: Sequence[str]) -> dict[int | None, str]:
    """The pods by broker id, of those whose address in the controllers' report begins with the pod's name.
    `pods` are those that report nothing: a pod with a new volume has the address of its former id, too."""
    hosts = {one.broker_id: (one.address or "").partition(".")[0] for one in kept.replicas}
    return {broker_id: host for broker_id, host in hosts.items() if host in pods}


def observed_replica_group(
    observed: ObservedState, quorum: ObservedQuorum, pods: tuple[str, ...], broker_name: str, cluster: str
) -> ObservedReplicaGroup:
    """The state by the report of the leading controller; while no controller leads, by the brokers' own
    reports."""
    reported = {
        pod: state for pod in pods if isinstance(state := observed.states.get(pod), ReportedBrokerState)
    }
    by_id: dict[int | None, str] = {
        state.broker_id: pod for pod, state in reported.items() if state.broker_id is not None
    }
    kept = next(
        (one for one in quorum.groups if one.broker_name == broker_name and one.cluster in ("", cluster)),
        None,
    )
    if kept is not None:
        by_id = {**_by_address(kept, [pod for pod in pods if pod not in reported]), **by_id}
        master_id, epoch, members = (
            kept.master_broker_id,
            kept.master_epoch,
            tuple(sorted(kept.sync_state_set)),
        )
    else:
        masters = [
            (state.master_epoch or 0, pod) for pod, state in reported.items() if state.role == "master"
        ]
        if not masters:
            return ObservedReplicaGroup(known=quorum.leader is not None)
        state = reported[max(masters)[1]]
        master_id, epoch, members = (
            state.broker_id,
            state.master_epoch or 0,
            tuple(sorted(state.sync_state_set)),
        )
    return ObservedReplicaGroup(
        known=True,
        master=by_id.get(master_id, "") if master_id is not None else "",
        master_id=master_id,
        epoch=epoch,
        sync_state_set=members,
        in_sync_pods=tuple(sorted(by_id[member] for member in members if member in by_id)),
    )
