"""The steps of a broker group: from nothing to all replicas in sync, one safe step at a time.

`guard` is done when the group has the finalizer exactly if `spec.deletionGuard` is on.
`controllers`: the ControllerGroup is there. Waits while another object has the name.
`objects`: all but the StatefulSet are as rendered, and none is left over. Waits while others have the names,
    or while objects of a former group of this name are left.
`replicas`: the StatefulSet is as rendered for the present count. Waits while a volume claim is being deleted,
    or claims are there of ordinals that the group will not have.
`grow-N`: the StatefulSet has N replicas. Waits until the N−1 are ready and in sync, there is a master, and
    the controllers have a leader.
`join-N`: replica N is ready and in the SyncStateSet.
`ready`: all replicas are ready, and there is a master.
`shrink`: the StatefulSet has no more replicas than the spec. Waits for ever: not supported yet.
`held`: nothing is wished that cannot be changed of what is there (a volume's size). Waits for ever.
"""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from epochmq_operator.plans.compared_objects import (
    ComparedObjects,
    ObjectState,
    Renderer,
    applicable_manifests,
    compare_object,
    surplus,
)
from epochmq_operator.plans.effects import Delete, Effect
from epochmq_operator.plans.objects import Manifest, Owner, Ref, metadata, owner_of
from epochmq_operator.plans.observed_state import (
    ObservedPod,
    ObservedQuorum,
    ObservedReplicaGroup,
    ObservedState,
    claims_of_set,
    observed_quorum,
    observed_replica_group,
    pods_of_set,
)
from epochmq_operator.plans.plan_steps import PlanStep
from epochmq_operator.pod_rendering import broker_pod_name, controller_pod_name
from epochmq_operator.resources import API_VERSION, BrokerGroup, ControllerGroup

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "epochmq-operator"
LISTED_PODS_MAX = 3


def set_of_brokers(group: str) -> str:
    """The StatefulSet of a broker group."""
    return broker_pod_name(group, "").rstrip("-")


def set_of_controllers(group: str) -> str:
    """The StatefulSet of a controller group."""
    return controller_pod_name(group, "").rstrip("-")


def count_of(stateful_set: Manifest | None) -> int | None:
    """How many replicas a StatefulSet is told to have; None when it is not there."""
    count = ((stateful_set or {}).get("spec") or {}).get("replicas")
    return count if isinstance(count, int) else None


def unready_pods(pods: Sequence[ObservedPod | None], stateful_set: str) -> list[str]:
    """A line for each of these pods that is not ready."""
    lines = []
    for ordinal, pod in enumerate(pods):
        name = f"{stateful_set}-{ordinal}"
        if pod is None:
            lines.append(f"{name} is not there")
        elif not pod.ready:
            lines.append(f"{name} {pod.unready_reason}")
    return lines


def deletions_of_stuck_pods(pods: Sequence[ObservedPod | None], namespace: str) -> tuple[Delete, ...]:
    """Of the pods that cannot run as they are, those whose StatefulSet has another template by now."""
    return tuple(
        Delete(Ref("Pod", namespace, pod.name), pod.uid)
        for pod in pods
        if pod is not None and pod.stuck and pod.outdated
    )


@dataclass(frozen=True, slots=True)
class ObservedBrokerGroup:
    """A broker group with everything that its steps and its status are made of. `group` names its
    controllers, also those of its own. `count` is how many replicas it has just now, or is given first;
    `quorum_missing` says why its controllers cannot be used. `manifests` are rendered for `count`, but for
    what is `held`, because it cannot be changed any more."""

    group: BrokerGroup
    owner: Owner
    created: bool
    count: int
    pods: tuple[ObservedPod | None, ...]
    controllers: ControllerGroup | None
    controller_pods: tuple[ObservedPod | None, ...]
    quorum: ObservedQuorum
    replica_group: ObservedReplicaGroup
    manifests: tuple[Manifest, ...] = ()
    immutable_changes: tuple[str, ...] = ()
    quorum_missing: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def set_name(self) -> str:
        """Its StatefulSet."""
        return set_of_brokers(self.group.name)

    @property
    def ready(self) -> int:
        """How many replicas are ready."""
        return sum(1 for pod in self.pods if pod is not None and pod.ready)

    @property
    def outdated(self) -> list[str]:
        """The pods that are of an older template than is wanted now."""
        return [pod.name for pod in self.pods if pod is not None and pod.outdated]

    @property
    def in_sync(self) -> bool | None:
        """Whether every replica is in the SyncStateSet; None when nobody can say."""
        if not self.replica_group.known:
            return None
        return len(self.replica_group.sync_state_set) >= self.count


def with_controllers_named(group: BrokerGroup) -> BrokerGroup:
    """The group with its controllers named. On Kubernetes every group has some, one of a single replica too:
    so it can grow without a change of who says which replica is the master."""
    if group.spec.controller_group is not None:
        return group
    spec = group.spec.model_copy(update={"controller_group": group.name})
    return group.model_copy(update={"spec": spec})


def with_replicas(group: BrokerGroup, count: int) -> BrokerGroup:
    """The group with so many replicas."""
    least = group.spec.min_in_sync_replicas
    update = {"replicas": count, "min_in_sync_replicas": None if least is None else min(least, count)}
    return group.model_copy(update={"spec": group.spec.model_copy(update=update)})


def own_controllers(group: BrokerGroup) -> dict[str, Any]:
    """The ControllerGroup of a broker group that names none, to be applied."""
    default = group.default_controllers()
    return {
        "apiVersion": API_VERSION,
        "kind": "ControllerGroup",
        "metadata": {
            "name": group.name,
            "namespace": group.metadata.namespace,
            "labels": {MANAGED_BY: MANAGER},
        },
        "spec": {"replicas": default.spec.replicas},
    }


def observed_broker_group(
    renderer: Renderer, observed: ObservedState, group: BrokerGroup, *, created: bool
) -> ObservedBrokerGroup:
    """Everything about the group, read off the world."""
    named = with_controllers_named(group)
    name = named.spec.controller_group or group.name
    own = own_controllers(group) if group.spec.controller_group is None else {}
    controllers, waits_for = _controllers(observed, name, own=bool(own))
    stateful_set = set_of_brokers(group.name)
    observed_count = count_of(observed.object("StatefulSet", stateful_set))
    wanted = group.spec.replicas
    count = wanted if observed_count is None else observed_count if created else max(observed_count, wanted)
    pods = pods_of_set(observed, stateful_set, count)
    controller_count = controllers.spec.replicas if controllers else 0
    controller_set = set_of_controllers(name)
    manifests, immutable_changes = (
        applicable_manifests(renderer, observed, with_replicas(named, count), controllers)
        if controllers
        else ((), ())
    )
    quorum = observed_quorum(observed, tuple(f"{controller_set}-{n}" for n in range(controller_count)))
    broker_pods = tuple(f"{stateful_set}-{n}" for n in range(count))
    return ObservedBrokerGroup(
        group=named,
        owner=Owner("BrokerGroup", group.name, str(metadata(observed.resource).get("uid", ""))),
        created=created,
        count=count,
        pods=pods,
        controllers=controllers,
        controller_pods=pods_of_set(observed, controller_set, controller_count),
        quorum=quorum,
        replica_group=observed_replica_group(
            observed, quorum, broker_pods, group.broker_name, group.spec.cluster
        ),
        manifests=manifests,
        immutable_changes=immutable_changes,
        quorum_missing=waits_for,
        own=own,
    )


def _controllers(observed: ObservedState, name: str, *, own: bool) -> tuple[ControllerGroup | None, str]:
    """The controllers as they are (those that run, rather than those that are asked for), or why not."""
    resource = observed.object("ControllerGroup", name)
    if resource is None:
        # One of its own is made with defaults; until it is there, these are what it will be.
        return (
            None,
            "" if own else f"spec.controllerGroup: there is no ControllerGroup {name} here: create it",
        )
    shaped = {key: resource.get(key) for key in ("apiVersion", "kind", "metadata", "spec")}
    try:
        found = ControllerGroup.model_validate(shaped)
    except ValidationError:
        return None, f"ControllerGroup {name} is not valid: its status says why"
    running = count_of(observed.object("StatefulSet", set_of_controllers(name)))
    if running is None or running == found.spec.replicas:
        return found, ""
    spec = found.spec.model_copy(update={"replicas": running})
    return found.model_copy(update={"spec": spec}), ""


def broker_steps(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedBrokerGroup
) -> Iterator[PlanStep]:
    """The steps, in order; each is looked at only when those before it are done."""
    yield _controllers_step(renderer, observed, observed_group)
    if observed_group.controllers is None:
        return
    yield from _object_steps(renderer, observed, observed_group)
    wanted = observed_group.group.spec.replicas
    for size in range(observed_group.count, wanted + 1):
        if size > observed_group.count:
            yield _grow(renderer, observed, observed_group, size)
        if size > 1 and observed_group.count < wanted:
            yield _join(observed_group, size)
    yield _ready(observed, observed_group)
    if observed_group.count > wanted:
        yield _shrink(observed_group)
    yield immutable_changes_step(observed_group.immutable_changes)


def _controllers_step(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedBrokerGroup
) -> PlanStep:
    name = observed_group.group.spec.controller_group or observed_group.group.name
    reason, message = "EnsuringControllers", f"sees to ControllerGroup {name}"
    if not observed_group.own:
        done = observed_group.controllers is not None
        return PlanStep("controllers", done, reason, message, observed_group.quorum_missing, blocked=not done)
    present = observed.object("ControllerGroup", name)
    if present is not None and owner_of(present) is None and not metadata(present).get("deletionTimestamp"):
        # Somebody made one of this name by hand: the group shares it, and changes nothing of it.
        return PlanStep(
            "controllers",
            observed_group.controllers is not None,
            reason,
            message,
            observed_group.quorum_missing,
        )
    found = compare_object(observed, renderer.differences, observed_group.own, observed_group.owner)
    done = found.state is ObjectState.UP_TO_DATE and observed_group.controllers is not None
    compared = ComparedObjects((found,))
    waits_for = compared.waits_for or (
        "" if found.state is not ObjectState.UP_TO_DATE else observed_group.quorum_missing
    )
    effects: tuple[Effect, ...] = compared.effects
    return PlanStep("controllers", done, reason, message, waits_for, bool(compared.foreign), False, effects)


def _object_steps(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedBrokerGroup
) -> Iterator[PlanStep]:
    sets = [one for one in observed_group.manifests if one.get("kind") == "StatefulSet"]
    rest = [one for one in observed_group.manifests if one.get("kind") != "StatefulSet"]
    compared = _compare_all(renderer, observed, observed_group, rest, observed_group.manifests)
    if (
        not compared.done
        and observed_group.created
        and observed_group.count < observed_group.group.spec.replicas
    ):
        # Whoever was killed while it added a replica left some of them as they will be.
        manifests, _ = applicable_manifests(
            renderer,
            observed,
            with_replicas(observed_group.group, observed_group.count + 1),
            observed_group.controllers,
        )
        compared = compared.or_else(_compare_all(renderer, observed, observed_group, manifests, manifests))
    yield objects_step(compared)
    yield sets_step(
        observed,
        ComparedObjects.of(observed, renderer.differences, sets, observed_group.owner),
        observed_group.created,
    )


def _compare_all(
    renderer: Renderer,
    observed: ObservedState,
    observed_group: ObservedBrokerGroup,
    wanted: Sequence[Manifest],
    all_wanted: Sequence[Manifest],
) -> ComparedObjects:
    found = ComparedObjects.of(observed, renderer.differences, wanted, observed_group.owner)
    return replace(
        found, surplus=surplus(observed, renderer, observed_group.group, all_wanted, observed_group.owner)
    )


def objects_step(compared: ComparedObjects) -> PlanStep:
    """Everything but the StatefulSets is as rendered."""
    done = compared.done
    message = "applies what the pods need"
    if not done and not any(one.state is ObjectState.MISSING for one in compared.all):
        message = compared.why
    return PlanStep(
        "objects",
        done,
        "ApplyingObjects",
        message,
        compared.waits_for,
        bool(compared.foreign),
        compared.changed,
        compared.effects,
    )


def sets_step(observed: ObservedState, compared: ComparedObjects, created: bool) -> PlanStep:
    """The StatefulSets are as rendered."""
    done = not compared.not_up_to_date
    waits_for, blocked = compared.waits_for, bool(compared.foreign)
    fresh = [one for one in compared.all if one.state is ObjectState.MISSING]
    for one in fresh:
        claims, count = claims_of_set(observed, one.manifest), count_of(one.manifest) or 0
        over = sorted(n for n in claims.ordinals if n >= count)
        if claims.deleting:
            waits_for = waits_for or f"the volume claims {', '.join(claims.deleting)} are being deleted"
        elif over:
            blocked = True
            waits_for = waits_for or (
                f"volume claims of {max(claims.ordinals)} and below are there from before, more than "
                f"spec.replicas: {count}; what they hold may be the only copy in sync: set spec.replicas to "
                f"{max(claims.ordinals) + 1}, or delete the claims of {one.ref.name}-{count} and above"
            )
    message = "starts the replicas" if fresh and not created else compared.why
    changed = compared.changed
    return PlanStep(
        "replicas", done, "StartingReplicas", message, waits_for, blocked, changed, compared.effects
    )


def _grow(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedBrokerGroup, size: int
) -> PlanStep:
    manifests, _ = applicable_manifests(
        renderer, observed, with_replicas(observed_group.group, size), observed_group.controllers
    )
    # The StatefulSet comes last: its new pod finds the rest as it should be.
    ordered = sorted(manifests, key=lambda one: one.get("kind") == "StatefulSet")
    compared = ComparedObjects.of(observed, renderer.differences, ordered, observed_group.owner)
    return PlanStep(
        f"grow-{size}",
        False,
        "AddingReplica",
        f"adds {observed_group.set_name}-{size - 1}",
        _unsafe_to_grow(observed_group),
        effects=compared.effects,
    )


def _unsafe_to_grow(observed_group: ObservedBrokerGroup) -> str:
    unready = unready_pods(observed_group.pods, observed_group.set_name)
    if unready:
        return "; ".join(unready)
    if observed_group.quorum.leader is None:
        return "the controllers have no leader, or do not say"
    if observed_group.replica_group.master_id is None:
        return "the group has no master"
    if not observed_group.in_sync:
        return f"the SyncStateSet {list(observed_group.replica_group.sync_state_set)} lacks a replica"
    return ""


def _join(observed_group: ObservedBrokerGroup, size: int) -> PlanStep:
    pod = observed_group.pods[size - 1] if size <= len(observed_group.pods) else None
    name = f"{observed_group.set_name}-{size - 1}"
    ready = pod is not None and pod.ready
    done = ready and name in observed_group.replica_group.in_sync_pods
    return PlanStep(f"join-{size}", done, "AwaitingReplica", f"waits until {name} is ready and in sync")


def _ready(observed: ObservedState, observed_group: ObservedBrokerGroup) -> PlanStep:
    unready = unready_pods(observed_group.pods, observed_group.set_name)
    masterless = observed_group.replica_group.known and observed_group.replica_group.master_id is None
    return PlanStep(
        "ready",
        not unready and not masterless,
        "AwaitingReady",
        f"waits until every replica is ready and one is the master: {'; '.join(unready[:LISTED_PODS_MAX])}",
        effects=deletions_of_stuck_pods(observed_group.pods, observed.namespace),
    )


def immutable_changes_step(immutable_changes: Sequence[str]) -> PlanStep:
    """Nothing is wished that cannot be changed in place."""
    return PlanStep(
        "held",
        not immutable_changes,
        "Change",
        "changes what cannot be changed in place",
        "cannot be changed while the group is there: " + "; ".join(immutable_changes),
        blocked=True,
    )


def _shrink(observed_group: ObservedBrokerGroup) -> PlanStep:
    wanted = observed_group.group.spec.replicas
    return PlanStep(
        "shrink",
        False,
        "ScaleDown",
        f"takes away replicas until {wanted} are left",
        f"a group cannot be scaled down yet: it has {observed_group.count} replicas and keeps them; set "
        f"spec.replicas to {observed_group.count}",
        blocked=True,
    )
