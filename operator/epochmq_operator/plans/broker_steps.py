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

from epochmq_operator.plans.effects import Delete, Effect
from epochmq_operator.plans.objects import Manifest, Owner, Ref, metadata, owner_of
from epochmq_operator.plans.standing import Findings, Floor, Standing, find, rendered, surplus
from epochmq_operator.plans.steps import Step
from epochmq_operator.plans.world import (
    Mastership,
    PodSeen,
    Quorum,
    World,
    claims_of_set,
    mastership_of,
    pods_of_set,
    quorum_of,
)
from epochmq_operator.render import broker_pod_name, controller_pod_name
from epochmq_operator.resources import API_VERSION, BrokerGroup, ControllerGroup

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "epochmq-operator"
TOLD_MAX = 3


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


def troubles(pods: Sequence[PodSeen | None], stateful_set: str) -> list[str]:
    """A line for each of these pods that is not ready."""
    lines = []
    for ordinal, pod in enumerate(pods):
        name = f"{stateful_set}-{ordinal}"
        if pod is None:
            lines.append(f"{name} is not there")
        elif not pod.ready:
            lines.append(f"{name} {pod.trouble}")
    return lines


def replacements(pods: Sequence[PodSeen | None], namespace: str) -> tuple[Delete, ...]:
    """Of the pods that cannot run as they are, those whose StatefulSet has another template by now."""
    return tuple(
        Delete(Ref("Pod", namespace, pod.name), pod.uid)
        for pod in pods
        if pod is not None and pod.stuck and pod.outdated
    )


@dataclass(frozen=True, slots=True)
class Brokers:
    """A broker group with everything that its steps and its status are made of. `group` names its
    controllers, also those of its own. `count` is how many replicas it has just now, or is given first;
    `quorum_missing` says why its controllers cannot be used. `manifests` are rendered for `count`, but for
    what is `held`, because it cannot be changed any more."""

    group: BrokerGroup
    owner: Owner
    created: bool
    count: int
    pods: tuple[PodSeen | None, ...]
    controllers: ControllerGroup | None
    controller_pods: tuple[PodSeen | None, ...]
    quorum: Quorum
    mastership: Mastership
    manifests: tuple[Manifest, ...] = ()
    held: tuple[str, ...] = ()
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
        if not self.mastership.known:
            return None
        return len(self.mastership.sync_state_set) >= self.count


def placed(group: BrokerGroup) -> BrokerGroup:
    """The group with its controllers named. On Kubernetes every group has some, one of a single replica too:
    so it can grow without a change of who says which replica is the master."""
    if group.spec.controller_group is not None:
        return group
    spec = group.spec.model_copy(update={"controller_group": group.name})
    return group.model_copy(update={"spec": spec})


def counted(group: BrokerGroup, count: int) -> BrokerGroup:
    """The group with so many replicas."""
    least = group.spec.min_in_sync_replicas
    update = {"replicas": count, "min_in_sync_replicas": None if least is None else min(least, count)}
    return group.model_copy(update={"spec": group.spec.model_copy(update=update)})


def own_controllers(group: BrokerGroup) -> dict[str, Any]:
    """The ControllerGroup of a broker group that names none, to be applied."""
    default = group.controllers_of_its_own()
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


def brokers_of(floor: Floor, world: World, group: BrokerGroup, *, created: bool) -> Brokers:
    """Everything about the group, read off the world."""
    named = placed(group)
    name = named.spec.controller_group or group.name
    own = own_controllers(group) if group.spec.controller_group is None else {}
    controllers, missing = _controllers(world, name, own=bool(own))
    stateful_set = set_of_brokers(group.name)
    observed = count_of(world.object("StatefulSet", stateful_set))
    wanted = group.spec.replicas
    count = wanted if observed is None else observed if created else max(observed, wanted)
    pods = pods_of_set(world, stateful_set, count)
    controller_count = controllers.spec.replicas if controllers else 0
    controller_set = set_of_controllers(name)
    manifests, held = rendered(floor, world, counted(named, count), controllers) if controllers else ((), ())
    quorum = quorum_of(world, tuple(f"{controller_set}-{n}" for n in range(controller_count)))
    broker_pods = tuple(f"{stateful_set}-{n}" for n in range(count))
    return Brokers(
        group=named,
        owner=Owner("BrokerGroup", group.name, str(metadata(world.resource).get("uid", ""))),
        created=created,
        count=count,
        pods=pods,
        controllers=controllers,
        controller_pods=pods_of_set(world, controller_set, controller_count),
        quorum=quorum,
        mastership=mastership_of(world, quorum, broker_pods, group.broker_name, group.spec.cluster),
        manifests=manifests,
        held=held,
        quorum_missing=missing,
        own=own,
    )


def _controllers(world: World, name: str, *, own: bool) -> tuple[ControllerGroup | None, str]:
    """The controllers as they are (those that run, rather than those that are asked for), or why not."""
    resource = world.object("ControllerGroup", name)
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
    running = count_of(world.object("StatefulSet", set_of_controllers(name)))
    if running is None or running == found.spec.replicas:
        return found, ""
    spec = found.spec.model_copy(update={"replicas": running})
    return found.model_copy(update={"spec": spec}), ""


def broker_steps(floor: Floor, world: World, seen: Brokers) -> Iterator[Step]:
    """The steps, in order; each is looked at only when those before it are done."""
    yield _controllers_step(floor, world, seen)
    if seen.controllers is None:
        return
    yield from _object_steps(floor, world, seen)
    wanted = seen.group.spec.replicas
    for size in range(seen.count, wanted + 1):
        if size > seen.count:
            yield _grow(floor, world, seen, size)
        if size > 1 and seen.count < wanted:
            yield _join(seen, size)
    yield _ready(world, seen)
    if seen.count > wanted:
        yield _shrink(seen)
    yield held_step(seen.held)


def _controllers_step(floor: Floor, world: World, seen: Brokers) -> Step:
    name = seen.group.spec.controller_group or seen.group.name
    reason, message = "EnsuringControllers", f"sees to ControllerGroup {name}"
    if not seen.own:
        done = seen.controllers is not None
        return Step("controllers", done, reason, message, seen.quorum_missing, blocked=not done)
    present = world.object("ControllerGroup", name)
    if present is not None and owner_of(present) is None and not metadata(present).get("deletionTimestamp"):
        # Somebody made one of this name by hand: the group shares it, and changes nothing of it.
        return Step("controllers", seen.controllers is not None, reason, message, seen.quorum_missing)
    found = find(world, floor.differences, seen.own, seen.owner)
    done = found.standing is Standing.RIGHT and seen.controllers is not None
    findings = Findings((found,))
    missing = findings.missing or ("" if found.standing is not Standing.RIGHT else seen.quorum_missing)
    effects: tuple[Effect, ...] = findings.effects
    return Step("controllers", done, reason, message, missing, bool(findings.taken), False, effects)


def _object_steps(floor: Floor, world: World, seen: Brokers) -> Iterator[Step]:
    sets = [one for one in seen.manifests if one.get("kind") == "StatefulSet"]
    rest = [one for one in seen.manifests if one.get("kind") != "StatefulSet"]
    findings = _findings(floor, world, seen, rest, seen.manifests)
    if not findings.done and seen.created and seen.count < seen.group.spec.replicas:
        # Whoever was killed while it added a replica left some of them as they will be.
        manifests, _ = rendered(floor, world, counted(seen.group, seen.count + 1), seen.controllers)
        findings = findings.or_else(_findings(floor, world, seen, manifests, manifests))
    yield objects_step(findings)
    yield sets_step(world, Findings.of(world, floor.differences, sets, seen.owner), seen.created)


def _findings(
    floor: Floor, world: World, seen: Brokers, wanted: Sequence[Manifest], all_wanted: Sequence[Manifest]
) -> Findings:
    found = Findings.of(world, floor.differences, wanted, seen.owner)
    return replace(found, surplus=surplus(world, floor, seen.group, all_wanted, seen.owner))


def objects_step(findings: Findings) -> Step:
    """Everything but the StatefulSets is as rendered."""
    done = findings.done
    message = "applies what the pods need"
    if not done and not any(one.standing is Standing.MISSING for one in findings.all):
        message = findings.why
    return Step(
        "objects",
        done,
        "ApplyingObjects",
        message,
        findings.missing,
        bool(findings.taken),
        findings.changed,
        findings.effects,
    )


def sets_step(world: World, findings: Findings, created: bool) -> Step:
    """The StatefulSets are as rendered."""
    done = not findings.wrong
    missing, blocked = findings.missing, bool(findings.taken)
    fresh = [one for one in findings.all if one.standing is Standing.MISSING]
    for one in fresh:
        claims, count = claims_of_set(world, one.manifest), count_of(one.manifest) or 0
        over = sorted(n for n in claims.ordinals if n >= count)
        if claims.leaving:
            missing = missing or f"the volume claims {', '.join(claims.leaving)} are being deleted"
        elif over:
            blocked = True
            missing = missing or (
                f"volume claims of {max(claims.ordinals)} and below are there from before, more than "
                f"spec.replicas: {count}; what they hold may be the only copy in sync: set spec.replicas to "
                f"{max(claims.ordinals) + 1}, or delete the claims of {one.ref.name}-{count} and above"
            )
    message = "starts the replicas" if fresh and not created else findings.why
    changed = findings.changed
    return Step("replicas", done, "StartingReplicas", message, missing, blocked, changed, findings.effects)


def _grow(floor: Floor, world: World, seen: Brokers, size: int) -> Step:
    manifests, _ = rendered(floor, world, counted(seen.group, size), seen.controllers)
    # The StatefulSet comes last: its new pod finds the rest as it should be.
    ordered = sorted(manifests, key=lambda one: one.get("kind") == "StatefulSet")
    findings = Findings.of(world, floor.differences, ordered, seen.owner)
    return Step(
        f"grow-{size}",
        False,
        "AddingReplica",
        f"adds {seen.set_name}-{size - 1}",
        _unsafe_to_grow(seen),
        effects=findings.effects,
    )


def _unsafe_to_grow(seen: Brokers) -> str:
    unready = troubles(seen.pods, seen.set_name)
    if unready:
        return "; ".join(unready)
    if seen.quorum.leader is None:
        return "the controllers have no leader, or do not say"
    if seen.mastership.master_id is None:
        return "the group has no master"
    if not seen.in_sync:
        return f"the SyncStateSet {list(seen.mastership.sync_state_set)} lacks a replica"
    return ""


def _join(seen: Brokers, size: int) -> Step:
    pod = seen.pods[size - 1] if size <= len(seen.pods) else None
    name = f"{seen.set_name}-{size - 1}"
    ready = pod is not None and pod.ready
    done = ready and name in seen.mastership.in_sync_pods
    return Step(f"join-{size}", done, "AwaitingReplica", f"waits until {name} is ready and in sync")


def _ready(world: World, seen: Brokers) -> Step:
    unready = troubles(seen.pods, seen.set_name)
    masterless = seen.mastership.known and seen.mastership.master_id is None
    return Step(
        "ready",
        not unready and not masterless,
        "AwaitingReady",
        f"waits until every replica is ready and one is the master: {'; '.join(unready[:TOLD_MAX])}",
        effects=replacements(seen.pods, world.namespace),
    )


def held_step(held: Sequence[str]) -> Step:
    """Nothing is wished that cannot be changed in place."""
    return Step(
        "held",
        not held,
        "Change",
        "changes what cannot be changed in place",
        "cannot be changed while the group is there: " + "; ".join(held),
        blocked=True,
    )


def _shrink(seen: Brokers) -> Step:
    wanted = seen.group.spec.replicas
    return Step(
        "shrink",
        False,
        "ScaleDown",
        f"takes away replicas until {wanted} are left",
        f"a group cannot be scaled down yet: it has {seen.count} replicas and keeps them; set spec.replicas "
        f"to {seen.count}",
        blocked=True,
    )
