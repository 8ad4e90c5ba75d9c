"""Decides whether a replica whose node or volume is lost gets a new volume: `epochmq.io/replace-replica`. The
same steps replace a controller, by the rules in `controller_replacement`.

A replica whose local volume is on a lost node never comes back by itself: its pod waits for that node, or
does not end there. Only a person knows that the volume is lost. The annotation says so for one volume: its
value names the pod and the uid of its claim. `epochmq replica replace` and `epochmq controllers replace` set
it.

The operator accepts the order only if nothing is lost by it: another replica is the master, the lost one is
not in the SyncStateSet, and as many others have every acknowledged message as an acknowledgement needs. A
person may accept fewer, but not none. An order that is not accepted is refused at once and removed, so that
it has no effect later, when the replica is back.

The steps of an accepted order, each of which another operator may continue:

1. `status.replacement` records the order; from now on it is the same order, whatever happens.
2. The claim is deleted, by its uid. It stays until no pod on a node uses it. A controller first leaves its
   quorum.
3. The pod is deleted, by its uid; without waiting for its node only if that is gone or not ready.
4. The StatefulSet creates claim and pod again. The replica has an empty volume, so the controllers give it
   another broker id, and it copies the log.
5. The annotation is removed."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from epochmq_operator.manifests.names import claim_name
from epochmq_operator.plans.effects import CreateEvent, Delete, Effect, EventType, RemoveAnnotation
from epochmq_operator.plans.objects import (
    REPLACE_REPLICA,
    Manifest,
    Ref,
    annotation,
    digest,
    is_deleting,
    metadata,
    spec_of,
    status_of,
)
from epochmq_operator.plans.observed_state import (
    NODE_LOST,
    NodeState,
    ObservedPod,
    ObservedReplicaGroup,
    ObservedState,
)
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.plans.reported_states import ReportedBrokerState

REPLACEMENT = "replacement"
"""The field of a group's status with the last order."""
FEWER_COPIES = "fewer-copies"
"""The last part of an order that accepts that fewer copies are left than an acknowledgement needs."""
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""The annotation of a claim with the node for which its volume was made."""


class ReplacementState(StrEnum):
    """The state of an order."""

    REPLACING = "Replacing"
    REPLACED = "Replaced"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class ReplacementOrder:
    """An order: the pod, the uid of its volume claim, and whether fewer copies are accepted than an
    acknowledgement needs."""

    pod: str
    claim_uid: str
    accepts_fewer: bool = False

    @classmethod
    def parse(cls, value: str) -> ReplacementOrder | None:
        """Parses the value of the annotation; None if it is none."""
        pod, *rest = value.split(".")
        if not pod or not rest or not rest[0] or rest[1:] not in ([], [FEWER_COPIES]):
            return None
        return cls(pod, rest[0], accepts_fewer=len(rest) == 2)

    def __str__(self) -> str:
        return ".".join([self.pod, self.claim_uid, *([FEWER_COPIES] if self.accepts_fewer else [])])


@dataclass(frozen=True, slots=True)
class LostReplica:
    """A replica whose pod does not run although it has a volume. `node` is where the volume was made, or
    where the pod is; empty if that is not known. `ends`: its pod is being deleted, which usually takes
    seconds."""

    pod: str
    claim: str
    node: str
    ends: bool = False

    def __str__(self) -> str:
        return f"{self.pod} (volume claim {self.claim}{f', node {self.node}' if self.node else ''})"


def claim_of(stateful_set: Manifest, pod: str) -> str:
    """The name of the volume claim of a pod."""
    (template, *_) = spec_of(stateful_set).get("volumeClaimTemplates") or ({},)
    return claim_name(str(metadata(template).get("name")), pod)


def lost_replicas(
    observed: ObservedState, stateful_set: Manifest, pods: Mapping[str, ObservedPod | None]
) -> tuple[LostReplica, ...]:
    """The replicas that have a volume, and whose pods do not run because of their node or their volume."""
    found = []
    for name, pod in pods.items():
        manifest = observed.object("Pod", name)
        claim = observed.object("PersistentVolumeClaim", claim_of(stateful_set, name))
        if pod is None or pod.runs or manifest is None or claim is None or is_deleting(claim):
            continue
        phase = status_of(claim).get("phase")
        if phase == "Lost" or (phase == "Bound" and (_is_unreachable(manifest) or pod.deleting)):
            node = annotation(claim, SELECTED_NODE) or spec_of(manifest).get("nodeName") or ""
            found.append(LostReplica(name, str(metadata(claim).get("name")), str(node), ends=pod.deleting))
    return tuple(found)


def _is_unreachable(pod: Manifest) -> bool:
    """Whether no node can take the pod, or its node does not respond."""
    status = status_of(pod)
    scheduled = any(
        one.get("type") == "PodScheduled" and one.get("status") == "False"
        for one in status.get("conditions") or ()
    )
    return scheduled or status.get("reason") == NODE_LOST or status.get("phase") == "Unknown"


def nodes_to_ask(resource: Manifest, objects: Mapping[Ref, Manifest]) -> list[str]:
    """The nodes whose state the plan of this resource has to know: that of a pod which an order concerns and
    which does not end."""
    order = ReplacementOrder.parse(annotation(resource, REPLACE_REPLICA) or "")
    if order is None:
        return []
    pod = objects.get(Ref("Pod", str(metadata(resource).get("namespace", "")), order.pod))
    node = spec_of(pod).get("nodeName") if pod is not None and is_deleting(pod) else None
    return [str(node)] if node else []


class RemainingCopies(Protocol):
    """What an order depends on: which pods have everything without the lost one."""

    @property
    def pods(self) -> Mapping[str, ObservedPod | None]:
        """The pods of the group."""

    @property
    def unavailable(self) -> str:
        """Why the group takes no order now; empty if it does."""

    def impediment(self, pod: str, *, accepts_fewer: bool) -> str:
        """Why this pod must keep its volume, and what would be lost; empty if it may be replaced."""

    def kept(self, pod: str) -> str:
        """Where everything is without this pod."""

    def departure(self, pod: str) -> tuple[Effect, ...]:
        """What is done before the volume of this pod is deleted."""


@dataclass(frozen=True, slots=True)
class GroupCopies:
    """What an order depends on. `pods` are those of the group. `leaderless`: controllers elect the master,
    and report no leader. `master` is the pod of the master, `masters` are those whose brokers report that
    they are it. `in_sync` are the pods that have every acknowledged message. `needed` is the number of copies
    that an acknowledgement needs. `unavailable` says why the group takes no order now; empty if it does."""

    pods: Mapping[str, ObservedPod | None]
    leaderless: bool
    master: str
    masters: frozenset[str]
    in_sync: frozenset[str]
    needed: int
    unavailable: str = ""

    @classmethod
    def of(
        cls,
        observed: ObservedState,
        pods: Mapping[str, ObservedPod | None],
        replica_group: ObservedReplicaGroup,
        needed: int,
        *,
        leaderless: bool,
        unavailable: str,
    ) -> GroupCopies:
        """Collects it from what controllers and brokers report."""
        states = {name: observed.states.get(name) for name in pods}
        masters = [
            name
            for name, state in states.items()
            if isinstance(state, ReportedBrokerState) and state.role == "master"
        ]
        in_sync = frozenset(replica_group.in_sync_pods)
        return cls(pods, leaderless, replica_group.master, frozenset(masters), in_sync, needed, unavailable)

    def beside(self, pod: str) -> list[str]:
        """The other pods that are ready and have every acknowledged message."""
        ready = [name for name, one in self.pods.items() if one is not None and one.ready and name != pod]
        return sorted(name for name in ready if name in self.in_sync)

    def kept(self, pod: str) -> str:
        """Where everything is without this pod."""
        return f"every acknowledged message is in {', '.join(self.beside(pod))}"

    def departure(self, pod: str) -> tuple[Effect, ...]:
        """Nothing: the controllers give the new replica another broker id."""
        return ()

    def needed_beside(self) -> int:
        """The number of other copies that make an order safe."""
        return max(1, min(self.needed, len(self.pods) - 1))

    def impediment(self, pod: str, *, accepts_fewer: bool) -> str:
        """Why this replica must keep its volume, and what would be lost; empty if it may be replaced."""
        found = self.pods.get(pod)
        if self.unavailable:
            return self.unavailable
        if found is not None and found.ready:
            return f"{pod} is ready, so its volume works"
        lost = f"messages that only {pod} has would be lost"
        if self.leaderless:
            return f"the controllers report no leader, so it is not known which replicas are in sync; {lost}"
        if self.master == pod:
            return f"{pod} is the master; {lost}"
        if not self.master or self.master not in self.masters:
            return f"no other replica is known to be the master; {lost}"
        if pod in self.in_sync:
            return f"{pod} is in the SyncStateSet: wait until the master has removed it; {lost}"
        copies, needed = self.beside(pod), self.needed_beside()
        if self.master not in copies:
            return f"the master {self.master} is not ready; {lost}"
        if len(copies) < needed and not accepts_fewer:
            return (
                f"of the other replicas only {', '.join(copies)} has every acknowledged message, and an "
                f"acknowledgement needs {needed} of them; if it fails before {pod} has copied the log, all "
                "messages are lost; --accept-fewer-copies accepts that"
            )
        return ""


@dataclass(frozen=True, slots=True)
class ReplacementVerdict:
    """What is to be done for an order. `state` and `message` are what the status says of it. `step`: None if
    the order is carried out or refused; then `effects` end it."""

    order: str
    state: ReplacementState
    message: str
    step: PlanStep | None = None
    effects: tuple[Effect, ...] = ()

    def document(self) -> dict[str, Any]:
        """The value for the status."""
        return {"order": self.order, "state": str(self.state), "message": self.message}


def judge(
    observed: ObservedState, stateful_set: Manifest, copies: RemainingCopies
) -> ReplacementVerdict | None:
    """The verdict on the order of a person; None without one."""
    value = annotation(observed.resource, REPLACE_REPLICA)
    if value is None:
        return None
    order = ReplacementOrder.parse(value)
    former = status_of(observed.resource).get(REPLACEMENT) or {}
    begun = former.get("state") if former.get("order") == value else None
    if copies.unavailable and begun is not ReplacementState.REPLACING:
        return _refused(observed, value, copies.unavailable)
    if order is None or order.pod not in copies.pods:
        known = ", ".join(copies.pods)
        return _refused(observed, value, f"it is not POD.UID of a pod and its volume claim; pods: {known}")
    claim = observed.object("PersistentVolumeClaim", claim_of(stateful_set, order.pod))
    is_ordered = claim is not None and metadata(claim).get("uid") == order.claim_uid
    if begun not in (ReplacementState.REPLACING, ReplacementState.REPLACED):
        if claim is None or not is_ordered:
            uid = "no volume claim" if claim is None else f"the volume claim {metadata(claim).get('uid')}"
            return _refused(observed, value, f"{order.pod} has {uid}, not {order.claim_uid}")
        impediment = copies.impediment(order.pod, accepts_fewer=order.accepts_fewer)
        if impediment:
            return _refused(observed, value, impediment)
    elif claim is not None and not is_ordered:
        message = f"{order.pod} has a new volume"
        end = RemoveAnnotation(REPLACE_REPLICA, value)
        return ReplacementVerdict(value, ReplacementState.REPLACED, message, effects=(end,))
    step = _step(observed, order, claim, copies)
    return ReplacementVerdict(value, ReplacementState.REPLACING, step.waits_for or step.message, step)


def _refused(observed: ObservedState, value: str, why: str) -> ReplacementVerdict:
    """The end of an order that is not accepted."""
    order = ReplacementOrder.parse(value)
    message = f"does not replace {order.pod if order else value}: {why}"
    key = f"{metadata(observed.resource).get('uid')}/refused/{value}/{digest(why)}"
    effects = (
        CreateEvent(EventType.WARNING, "ReplacementRefused", message, key),
        RemoveAnnotation(REPLACE_REPLICA, value),
    )
    return ReplacementVerdict(value, ReplacementState.REFUSED, message, effects=effects)


def _step(
    observed: ObservedState, order: ReplacementOrder, claim: Manifest | None, copies: RemainingCopies
) -> PlanStep:
    """The next step of an accepted order. While the claim exists, the volume may still come back: so the step
    waits if the others have failed meanwhile."""
    message = f"gives {order.pod} a new volume; {copies.kept(order.pod)}"
    waits_for, effects = "", tuple[Effect, ...]()
    if claim is not None:
        waits_for = copies.impediment(order.pod, accepts_fewer=order.accepts_fewer)
    if not waits_for and claim is not None and not is_deleting(claim):
        deletion = Delete(_ref(claim, "PersistentVolumeClaim"), order.claim_uid)
        effects = copies.departure(order.pod) or (deletion,)
    elif not waits_for:
        effects, waits_for = _pod_effects(observed, order.pod, claim)
    return PlanStep(
        StepKind.REPLACE,
        False,
        "ReplacingReplica",
        message,
        waits_for,
        effects=effects,
        occurrence=order.claim_uid,
        event=EventType.WARNING,
        subject=order.pod,
    )


def _pod_effects(
    observed: ObservedState, name: str, claim: Manifest | None
) -> tuple[tuple[Effect, ...], str]:
    """The effects that end the pod of the former volume, or one that has none, and what they wait for."""
    pod = observed.object("Pod", name)
    if pod is None:
        return (), f"Kubernetes has not created {name} again"
    node = str(spec_of(pod).get("nodeName") or "")
    if not node and claim is not None:
        return (), f"the volume claim {metadata(claim).get('name')} is being deleted"
    ref, uid = _ref(pod, "Pod"), str(metadata(pod).get("uid", ""))
    if not is_deleting(pod):
        return (Delete(ref, uid),), ""
    if not node:
        return (), f"{name} is being deleted"
    state = observed.nodes.get(node)
    if state in (NodeState.GONE, NodeState.NOT_READY):
        return (Delete(ref, uid, forced=True),), ""
    if state is NodeState.READY:
        return (), f"{name} is being deleted on node {node}, which is ready"
    command = f"kubectl delete pod {name} --namespace {observed.namespace} --force --grace-period=0"
    return (), (
        f"{name} is being deleted on node {node}, whose state the operator may not read; if the node is "
        f"switched off: {command}"
    )


def _ref(found: Manifest, kind: str) -> Ref:
    meta = metadata(found)
    return Ref(kind, str(meta.get("namespace", "")), str(meta.get("name", "")))
