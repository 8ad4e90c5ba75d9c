"""Computes the steps of a broker group. One step at a time, and each only when it is safe, they lead from
nothing to all replicas in sync.

- `guard` is done when the group has the finalizer if and only if `spec.deletionGuard` is on.
- `controllers`: the ControllerGroup exists. Waits while the name belongs to another object.
- `objects`: all objects but the StatefulSet are up to date, and there are no surplus ones. Waits while names
  belong to foreign objects, or while objects of a deleted group of this name exist.
- `replicas`: the StatefulSet is as rendered for the target number of replicas. Waits while a volume claim is
  being deleted, or, for a new group, while there are claims of ordinals that the group will not have.
- `join-N`: replica N is ready and in the SyncStateSet.
- `grow-N`: the status records N as the target number of replicas; `objects` and `replicas` then add the
  replica. Waits until the other N−1 are ready and in sync, there is a master, and the controllers have a
  leader (which a group in the mode MasterSlave does not need).
- `ready`: all replicas are ready, and there is a master.
- `shrink`: the StatefulSet has no more replicas than the spec. Never starts: not supported yet.
- `held`: no immutable field (such as a volume's size) is to change. Never starts.

The number of replicas comes from the spec, or from the target in the status, never from the StatefulSet: a
StatefulSet that somebody else scaled is scaled back."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from epochmq_operator.manifests.names import MANAGED_BY, MANAGER
from epochmq_operator.plans.common_steps import (
    deletions_of_stuck_pods,
    immutable_changes_step,
    objects_step,
    sets_step,
    target_replicas,
    unready_pods,
)
from epochmq_operator.plans.compared_objects import ComparedObjects, ObjectState, compare_object, surplus
from epochmq_operator.plans.effects import Effect
from epochmq_operator.plans.objects import Manifest, Owner, metadata, owner_of, status_of
from epochmq_operator.plans.observed_state import (
    ObservedPod,
    ObservedQuorum,
    ObservedReplicaGroup,
    ObservedState,
    observed_master_slave,
    observed_quorum,
    observed_replica_group,
    pods_of_set,
)
from epochmq_operator.plans.plan_steps import PlanState, PlanStep, was_created
from epochmq_operator.plans.renderer import Renderer, applicable_manifests
from epochmq_operator.pod_rendering import Component, component_name
from epochmq_operator.resources import API_VERSION, BrokerGroup, ControllerGroup
from epochmq_operator.restart_order import BrokerInTurn, restart_sequence

LISTED_PODS_MAX = 3


@dataclass(frozen=True, slots=True)
class ObservedBrokerGroup:
    """A broker group and everything that its steps and its status are computed from. `group` names its
    controllers, even if the resource does not. `count` is the target number of replicas. `quorum_missing`
    says why its controllers cannot be used. `manifests` are rendered for `count`, but keep immutable fields
    as they are; `immutable_changes` lists these."""

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
        """The name of its StatefulSet."""
        return component_name(self.group.name, Component.BROKER)

    @property
    def ready(self) -> int:
        """The number of ready replicas."""
        return sum(1 for pod in self.pods if pod is not None and pod.ready)

    @property
    def outdated(self) -> list[str]:
        """The pods that have an older template than their StatefulSet, in the order in which they should
        restart: in the mode MasterSlave the master is the last."""
        brokers = [
            BrokerInTurn(pod.name, ordinal, pod.outdated, pod.ready)
            for ordinal, pod in enumerate(self.pods)
            if pod is not None
        ]
        if self.group.is_master_slave:
            return restart_sequence(brokers)
        return [broker.name for broker in brokers if broker.outdated]

    @property
    def in_sync(self) -> bool | None:
        """Whether every replica is in the SyncStateSet; None if that is not known."""
        if not self.replica_group.known:
            return None
        return len(self.replica_group.sync_state_set) >= self.count


def with_controllers_named(group: BrokerGroup) -> BrokerGroup:
    """The group with `spec.controllerGroup` set. On Kubernetes every group has controllers, also a group of
    one replica: so it can scale up without a change of how its master is elected. A group in the mode
    MasterSlave uses their nameservers only."""
    if group.spec.controller_group is not None:
        return group
    spec = group.spec.model_copy(update={"controller_group": group.name})
    return group.model_copy(update={"spec": spec})


def with_replicas(group: BrokerGroup, count: int) -> BrokerGroup:
    """The group with this number of replicas."""
    least = group.spec.min_in_sync_replicas
    update = {"replicas": count, "min_in_sync_replicas": None if least is None else min(least, count)}
    return group.model_copy(update={"spec": group.spec.model_copy(update=update)})


def own_controllers(group: BrokerGroup) -> dict[str, Any]:
    """The manifest of the ControllerGroup of a broker group that names none."""
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
    """Collects everything about the group from the observed state."""
    named = with_controllers_named(group)
    name = named.spec.controller_group or group.name
    own = own_controllers(group) if group.spec.controller_group is None else {}
    controllers, waits_for = _controllers(observed, name, own=bool(own))
    stateful_set = component_name(group.name, Component.BROKER)
    wanted = group.spec.replicas
    count = target_replicas(observed, observed.resource, stateful_set, wanted, created=created)
    count = count if created else max(count, wanted)
    pods = pods_of_set(observed, stateful_set, count)
    controller_count = controllers.spec.replicas if controllers else 0
    controller_set = component_name(name, Component.CONTROLLER)
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
        replica_group=observed_master_slave(observed, broker_pods)
        if group.is_master_slave
        else observed_replica_group(observed, quorum, broker_pods, group.broker_name, group.spec.cluster),
        manifests=manifests,
        immutable_changes=immutable_changes,
        quorum_missing=waits_for,
        own=own,
    )


def _controllers(observed: ObservedState, name: str, *, own: bool) -> tuple[ControllerGroup | None, str]:
    """The ControllerGroup with its target number of replicas, or why it cannot be used."""
    resource = observed.object("ControllerGroup", name)
    if resource is None:
        # The operator creates the group's own ControllerGroup in the first step.
        return (
            None,
            ""
            if own
            else f"spec.controllerGroup: ControllerGroup {name} does not exist in this namespace: create it",
        )
    shaped = {key: resource.get(key) for key in ("apiVersion", "kind", "metadata", "spec")}
    try:
        found = ControllerGroup.model_validate(shaped)
    except ValidationError:
        return None, f"ControllerGroup {name} is invalid: see its status"
    stateful_set = component_name(name, Component.CONTROLLER)
    created = was_created(PlanState.of(status_of(resource)))
    count = target_replicas(observed, resource, stateful_set, found.spec.replicas, created=created)
    spec = found.spec.model_copy(update={"replicas": count})
    return found.model_copy(update={"spec": spec}), ""


def broker_steps(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedBrokerGroup
) -> Iterator[PlanStep]:
    """The steps in order. A step may rely on the steps before it being done."""
    yield _controllers_step(renderer, observed, observed_group)
    if observed_group.controllers is None:
        return
    yield from _object_steps(renderer, observed, observed_group)
    wanted = observed_group.group.spec.replicas
    if observed_group.count < wanted:
        if observed_group.count > 1:
            yield _join(observed_group, observed_group.count)
        yield _grow(observed_group, observed_group.count + 1)
    yield _ready(observed, observed_group)
    if observed_group.count > wanted:
        yield _shrink(observed_group)
    yield immutable_changes_step(observed_group.immutable_changes)


def _controllers_step(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedBrokerGroup
) -> PlanStep:
    name = observed_group.group.spec.controller_group or observed_group.group.name
    reason, message = "EnsuringControllers", f"ensures that ControllerGroup {name} exists"
    if not observed_group.own:
        done = observed_group.controllers is not None
        return PlanStep("controllers", done, reason, message, observed_group.quorum_missing, blocked=not done)
    present = observed.object("ControllerGroup", name)
    if present is not None and owner_of(present) is None and not metadata(present).get("deletionTimestamp"):
        # A user created a ControllerGroup of this name: the group uses it, and the operator does not change
        # it.
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
    compared = ComparedObjects.of(observed, renderer.differences, rest, observed_group.owner)
    unwanted = surplus(
        observed, renderer, observed_group.group, observed_group.manifests, observed_group.owner
    )
    yield objects_step(replace(compared, surplus=unwanted))
    yield sets_step(
        observed,
        ComparedObjects.of(observed, renderer.differences, sets, observed_group.owner),
        observed_group.created,
    )


def _grow(observed_group: ObservedBrokerGroup, size: int) -> PlanStep:
    return PlanStep(
        f"grow-{size}",
        False,
        "AddingReplica",
        f"adds {observed_group.set_name}-{size - 1}",
        _unsafe_to_grow(observed_group),
        target=size,
    )


def _unsafe_to_grow(observed_group: ObservedBrokerGroup) -> str:
    unready = unready_pods(observed_group.pods, observed_group.set_name)
    if unready:
        return "; ".join(unready)
    elected = not observed_group.group.is_master_slave
    if elected and observed_group.quorum.leader is None:
        return "the controllers report no leader"
    if observed_group.replica_group.master_id is None:
        return "the group has no master"
    if not observed_group.in_sync and not elected:
        ready = list(observed_group.replica_group.sync_state_set)
        return f"only the replicas {ready} report that they are ready"
    if not observed_group.in_sync:
        return (
            f"the SyncStateSet {list(observed_group.replica_group.sync_state_set)} does not hold all replicas"
        )
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


def _shrink(observed_group: ObservedBrokerGroup) -> PlanStep:
    wanted = observed_group.group.spec.replicas
    return PlanStep(
        "shrink",
        False,
        "ScaleDown",
        f"removes replicas until {wanted} are left",
        f"scaling down is not supported yet: the group keeps its {observed_group.count} replicas; set "
        f"spec.replicas to {observed_group.count}",
        blocked=True,
    )
