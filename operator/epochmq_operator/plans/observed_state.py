"""What the operator sees of a group in one pass: objects of the API server, and what replicas say."""

# pure: data in, data out.

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epochmq_operator.plans.objects import Manifest, Ref, is_deleting, metadata
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedControllerState,
    ReportedReplicaGroup,
    ReportedState,
)

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
"""Why a container does not run, where waiting alone helps nothing: its template has to change."""


@dataclass(frozen=True, slots=True)
class ObservedState:
    """`objects` are those of the resource's namespace that the operator watches, pods and claims included;
    `words` the replicas' own, by pod; `users` the broker groups that name a controller group; `refusal` what
    the API server said when the resource's last step failed."""

    resource: Manifest
    objects: Mapping[Ref, Manifest] = field(default_factory=dict)
    states: Mapping[str, ReportedState] = field(default_factory=dict)
    users: tuple[str, ...] = ()
    rejection: str = ""

    @property
    def namespace(self) -> str:
        """The resource's."""
        return str(metadata(self.resource).get("namespace", ""))

    def object(self, kind: str, name: str) -> Manifest | None:
        """An object of the namespace, None when it is not there."""
        return self.objects.get(Ref(kind, self.namespace, name))


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A replica's pod as the API server knows it. `trouble` says why it is not ready, `stuck` whether its
    template has to change for that; `outdated`: it is not of its StatefulSet's present template."""

    name: str
    uid: str
    ready: bool
    unready_reason: str
    stuck: bool
    outdated: bool


def pods_of_set(observed: ObservedState, stateful_set: str, count: int) -> tuple[ObservedPod | None, ...]:
    """The pods that a StatefulSet has or should have, by ordinal; None for one that is missing."""
    owner = observed.object("StatefulSet", stateful_set) or {}
    revision = (owner.get("status") or {}).get("updateRevision")
    found = (observed.object("Pod", f"{stateful_set}-{n}") for n in range(count))
    return tuple(None if pod is None else observed_pod(pod, revision) for pod in found)


def observed_pod(pod: Manifest, revision: str | None = None) -> ObservedPod:
    """A pod, given the revision of its StatefulSet's present template, if that is known."""
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
    return ObservedPod(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        ready=ready,
        unready_reason="" if ready else _unready_reason(status, conditions, stuck, deleting=deleting),
        stuck=bool(stuck) and not deleting,
        outdated=revision is not None and own is not None and own != revision,
    )


def _unready_reason(
    status: Mapping[str, Any], conditions: Mapping[Any, Any], stuck: list[str], *, deleting: bool
) -> str:
    if deleting:
        return "is being deleted"
    if stuck:
        return f"does not run: {stuck[0]}"
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"fits no node: {scheduled.get('message', 'no reason given')}"
    if status.get("reason") == "NodeLost" or status.get("phase") == "Unknown":
        return "is on a node that does not answer"
    return "is not ready" if status.get("phase") == "Running" else "has not started"


CLAIM_ORDINAL = re.compile(r"-(0|[1-9][0-9]{0,5})\Z")


@dataclass(frozen=True, slots=True)
class ObservedClaims:
    """A StatefulSet's volume claims, as they are: the ordinals that have some, and those on their way out."""

    ordinals: frozenset[int]
    deleting: tuple[str, ...]


def claims_of_set(observed: ObservedState, manifest: Manifest) -> ObservedClaims:
    """The claims under a StatefulSet's names, whoever made them."""
    templates = (manifest.get("spec") or {}).get("volumeClaimTemplates") or ()
    prefixes = [f"{metadata(one).get('name')}-{metadata(manifest).get('name')}" for one in templates]
    ordinals, deleting = set(), []
    for ref, claim in observed.objects.items():
        if ref.kind != "PersistentVolumeClaim" or ref.namespace != observed.namespace:
            continue
        found = CLAIM_ORDINAL.search(ref.name)
        if found is None or ref.name[: found.start()] not in prefixes:
            continue
        ordinals.add(int(found[1]))
        if is_deleting(claim):
            deleting.append(ref.name)
    return ObservedClaims(frozenset(ordinals), tuple(sorted(deleting)))


@dataclass(frozen=True, slots=True)
class ObservedQuorum:
    """What a controller group's members say: the pod that leads, of the latest term. `answered` members gave
    a word at all."""

    leader: str | None
    term: int | None
    answered: int
    groups: tuple[ReportedReplicaGroup, ...] = ()


def observed_quorum(observed: ObservedState, pods: tuple[str, ...]) -> ObservedQuorum:
    """The words of these controllers, taken together: of two that say they lead, the later term counts."""
    reported = {
        pod: state for pod in pods if isinstance(state := observed.states.get(pod), ReportedControllerState)
    }
    leading = [(state.term or 0, pod) for pod, state in reported.items() if state.role == "leader"]
    if not leading:
        return ObservedQuorum(None, None, len(reported))
    term, leader = max(leading)
    return ObservedQuorum(leader, term, len(reported), tuple(reported[leader].groups))


@dataclass(frozen=True, slots=True)
class ObservedReplicaGroup:
    """A replica group's own state: the pod of its master ("" while it has none or it is not known), its
    epoch, and the SyncStateSet as broker ids. `known`: somebody could say."""

    known: bool
    master: str = ""
    master_id: int | None = None
    epoch: int = 0
    sync_state_set: tuple[int, ...] = ()
    in_sync_pods: tuple[str, ...] = ()


def _by_address(kept: ReportedReplicaGroup, pods: tuple[str, ...]) -> dict[int | None, str]:
    """The pods by broker id, of those whose address, as the controllers have it, begins with the pod's
    name."""
    hosts = {one.broker_id: (one.address or "").partition(".")[0] for one in kept.replicas}
    return {broker_id: host for broker_id, host in hosts.items() if host in pods}


def observed_replica_group(
    observed: ObservedState, quorum: ObservedQuorum, pods: tuple[str, ...], broker_name: str, cluster: str
) -> ObservedReplicaGroup:
    """By the leading controller; by the brokers themselves while no controller leads."""
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
        by_id = {**_by_address(kept, pods), **by_id}
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
