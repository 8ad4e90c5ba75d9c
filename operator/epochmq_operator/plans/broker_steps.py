"""Computes the steps of a broker group. One step at a time, and each only when it is safe, they lead from
nothing to all replicas in sync.

- `guard` is done when the group has the finalizer if and only if `spec.deletionGuard` is on.
- `controllers`: the ControllerGroup exists, by the rules in `own_controllers`. Waits while the name belongs
  to another object.
- `objects`: all objects but the StatefulSet are up to date, and there are no surplus ones. Waits while names
  belong to foreign objects, or while objects of a deleted group of this name exist.
- `restore`: all volumes of a new group with `spec.restoreFrom` have its backup, by the rules in
  `restoration`.
- `replicas`: the StatefulSet is as rendered for the target number of replicas. Waits while a volume claim is
  being deleted, or, for a new group, while there are claims of ordinals that the group will not have.
- `claims`: the group owns its volume claims exactly if they are to be deleted with it (`volumes`).
- `replace-POD`: the replica has a new volume, by the rules in `replica_replacement`.
- `join-N`: replica N is ready and in the SyncStateSet.
- `grow-N`: the status records N as the target number of replicas; `objects` and `replicas` then add the
  replica. Waits until the other N−1 are ready and in sync, there is a master, and the controllers have a
  leader (which a group in the modes MasterSlave and DLedger does not need).
- `ready`: all replicas are ready, and there is a master.
- `restart-POD`: the pod has the template of its StatefulSet, by the rules in `restarts`. A pod that is not
  ready comes before `join-N`. A ready pod waits for the controllers, too, which restart first.
- `reload-POD`: the broker has applied the present configuration while it runs, by the rules in `reloads`.
- `configurations`: no ConfigMap of a former configuration is left.
- `leave-N`: replica N has gone, and the SyncStateSet has no more members than the target.
- `shrink-N`: the status records N as the target number of replicas; `replicas` then removes the replica with
  the highest ordinal, whose preStop hook hands a mastership over. Waits like `grow-N`, unless the replica has
  never run, and comes before `ready` while it waits; a person may override that by the rules in
  `forced_scale_down`. A number of copies that N replicas could not have is lowered before, by an update of
  all replicas.
- `stop-POD`, `stopped-N`, `start-POD`, `started-POD`: of a group that hibernates or resumes, in place of all
  steps after `replicas`, by the rules in `hibernation`.
- `expand-CLAIM`, `volumes`: the volumes have the size that the spec asks for, by the rules in `volumes`. The
  size of a claim is raised right after `replicas`, because a full volume may be why a replica is not ready.
- `members`: as many of the group's own controllers run as it asks for, by the rules in `own_controllers`.
- `add-POD`, `admit-POD`, `remove-POD`, `founders`, `peers`: in the mode DLedger, in place of `grow-N`,
  `join-N` and `shrink-N`, by the rules in `quorum_members`. A removal, and every change while others are
  members than run, comes before `ready`.
- `held`: no immutable field is to change. Never starts.

The number of replicas comes from the spec, or from the target in the status, never from the StatefulSet: a
StatefulSet that a person scaled is scaled back.

The module is longer than 600 lines because the steps and their order are one list."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from epochmq_operator.plans.common_steps import (
    BLOCKED_PHASE,
    PENDING_PHASE,
    idle_pods,
    immutable_changes_step,
    objects_step,
    pods_by_name,
    sets_step,
    stateful_sets,
    target_replicas,
    unready_pods,
    unused_config_maps_step,
    waiting_update_step,
)
from epochmq_operator.plans.compared_objects import ComparedObjects, surplus
from epochmq_operator.plans.effects import EventType
from epochmq_operator.plans.forced_scale_down import ForcedRemoval
from epochmq_operator.plans.hibernation import (
    HibernatingGroup,
    HibernationState,
    hibernation_of,
    hibernation_steps,
    with_size,
)
from epochmq_operator.plans.known_controllers import known_controllers
from epochmq_operator.plans.member_modes import mode_of_brokers, rendered_mode
from epochmq_operator.plans.objects import (
    PAUSED,
    Manifest,
    Owner,
    annotation,
    metadata,
    spec_of,
    status_of,
)
from epochmq_operator.plans.observed_state import (
    ObservedPod,
    ObservedQuorum,
    ObservedReplicaGroup,
    ObservedState,
    observed_dledger_group,
    observed_master_slave,
    observed_peers,
    observed_quorum,
    observed_replica_group,
    pods_of_set,
)
from epochmq_operator.plans.own_controllers import ControllersOfGroup, own_controllers
from epochmq_operator.plans.pinned_image import pinned_image, with_image
from epochmq_operator.plans.plan_steps import PlanState, PlanStep, StepKind, was_created
from epochmq_operator.plans.quorum_members import (
    REPLICAS,
    QuorumMembers,
    founders_of_configuration,
    recorded_founders,
)
from epochmq_operator.plans.reloads import (
    PodReload,
    ReloadTarget,
    pod_reloads,
    reload_steps,
    with_reloads,
)
from epochmq_operator.plans.renderer import NO_MANIFESTS, ApplicableManifests, Renderer, applicable_manifests
from epochmq_operator.plans.replica_replacement import (
    GroupCopies,
    LostReplica,
    ReplacementVerdict,
    judge,
    lost_replicas,
)
from epochmq_operator.plans.reported_states import ReportedBrokerState
from epochmq_operator.plans.restarts import PodsByName, next_broken_pod, next_ready_pod, restart_step
from epochmq_operator.plans.restoration import Restoration, first_size, restoration_of
from epochmq_operator.plans.update_gate import UpdateGate
from epochmq_operator.plans.volumes import never_ran, ownership_step, urgent_volume_step, volume_steps
from epochmq_operator.pod_rendering import component_name
from epochmq_operator.pods import Component
from epochmq_operator.resources import REPLICAS_MAX, BrokerGroup, ControllerGroup

LISTED_PODS_MAX = 3
WAITING_PHASES = (BLOCKED_PHASE, PENDING_PHASE)
"""The phases of a ControllerGroup that waits for a person or a maintenance window."""


@dataclass(frozen=True, slots=True)
class ObservedBrokerGroup:
    """A broker group and everything that its steps and its status are computed from. `group` names its
    controllers, even if the resource does not. `count` is the target number of replicas. `quorum_missing`
    says why its controllers cannot be used. `rendered` are its manifests for `count`. `image` is the image of
    its pods if the spec names none. `controllers_wait` says what its controllers still have to do before its
    replicas restart; empty if nothing. `unready_brokers` are the pods whose brokers report that they are not
    ready. `reloads` are the pods that get the configuration `reload_target` without a restart.
    `known_controllers` is the number of controllers that all brokers list. `members`: None unless the group
    is in the mode DLedger. `copies` are the replicas that have every acknowledged message, `lost` those that
    do not run although they have a volume; `replacement` is the verdict on an order to replace one.
    `restoration`: None unless a backup is to be restored before the replicas start."""

    group: BrokerGroup
    owner: Owner
    created: bool
    count: int
    pods: tuple[ObservedPod | None, ...]
    controllers: ControllerGroup | None
    controller_pods: tuple[ObservedPod | None, ...]
    quorum: ObservedQuorum
    replica_group: ObservedReplicaGroup
    rendered: ApplicableManifests = NO_MANIFESTS
    quorum_missing: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)
    image: str | None = None
    controllers_wait: str = ""
    unready_brokers: frozenset[str] = frozenset()
    reload_target: ReloadTarget | None = None
    reloads: tuple[PodReload, ...] = ()
    hibernation: HibernationState | None = None
    known_controllers: int = 0
    members: QuorumMembers | None = None
    copies: GroupCopies | None = None
    lost: tuple[LostReplica, ...] = ()
    replacement: ReplacementVerdict | None = None
    restoration: Restoration | None = None

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifests of its objects."""
        return self.rendered.manifests

    @property
    def set_name(self) -> str:
        """The name of its StatefulSet."""
        return component_name(self.group.name, Component.BROKER)

    @property
    def ready(self) -> int:
        """The number of ready replicas."""
        return sum(1 for pod in self.pods if pod is not None and pod.ready)

    @property
    def unready_pods(self) -> list[str]:
        """One line for each pod that is not ready, apart from those that are not members of a DLedger group
        yet."""
        if self.members is not None:
            return self.members.unready
        return unready_pods(self.pods, self.set_name)

    @property
    def idle_pods(self) -> list[str]:
        """One line for each pod that does not run."""
        return idle_pods(self.pods, self.set_name)

    @property
    def restart_order(self) -> PodsByName:
        """The pods in the order of their restarts, except that the master is the last: the highest ordinal
        first."""
        return dict(reversed(pods_by_name(self.set_name, self.pods).items()))

    @property
    def outdated(self) -> list[str]:
        """The pods that have an older template than their StatefulSet, in the order of their restarts."""
        found = [pod.name for pod in self.restart_order.values() if pod is not None and pod.outdated]
        return sorted(found, key=lambda name: name == self.replica_group.master)

    @property
    def in_sync_pods(self) -> frozenset[str]:
        """The pods in the SyncStateSet; without controllers those that report that they are ready."""
        return frozenset(self.replica_group.in_sync_pods)

    def serves(self, pod: ObservedPod) -> bool:
        """Whether the group may miss this pod although Kubernetes does not find it ready: its sidecar may
        fail while its broker works."""
        if not self.group.is_under_controllers:
            return pod.name not in self.unready_brokers
        kept = self.replica_group
        return not kept.known or (kept.master_id is not None and pod.name in self.in_sync_pods)

    @property
    def in_sync(self) -> bool | None:
        """Whether every replica is in the SyncStateSet; None if that is not known."""
        if not self.replica_group.known:
            return None
        return len(self.replica_group.sync_state_set) >= self.count


def with_controllers_named(group: BrokerGroup) -> BrokerGroup:
    """The group with `spec.controllerGroup` set. On Kubernetes every group has controllers, also a group of
    one replica: so it can scale up without a change of how its master is elected. A group in the modes
    MasterSlave and DLedger uses their nameservers only."""
    if group.spec.controller_group is not None:
        return group
    spec = group.spec.model_copy(update={"controller_group": group.name})
    return group.model_copy(update={"spec": spec})


def with_replicas(group: BrokerGroup, count: int) -> BrokerGroup:
    """The group with this number of replicas. Before it scales down it needs no more copies of a message than
    the spec asks for."""
    least = group.spec.min_in_sync_replicas
    if least is None and count > group.spec.replicas and not group.is_dledger:
        least = group.min_in_sync
    update = {"replicas": count, "min_in_sync_replicas": None if least is None else min(least, count)}
    return group.model_copy(update={"spec": group.spec.model_copy(update=update)})


def observed_broker_group(
    renderer: Renderer, observed: ObservedState, group: BrokerGroup, gate: UpdateGate
) -> ObservedBrokerGroup:
    """Collects everything about the group from the observed state."""
    created = gate.created
    named = with_controllers_named(group)
    name = named.spec.controller_group or group.name
    own = own_controllers(group) if group.spec.controller_group is None else {}
    controllers, waits_for = _controllers(observed, name, own=bool(own))
    stateful_set = component_name(group.name, Component.BROKER)
    spec_replicas = group.spec.replicas
    count = target_replicas(observed, observed.resource, stateful_set, spec_replicas, created=created)
    count = count if created else first_size(observed, group, stateful_set, count)
    hibernation = hibernation_of(observed.resource, group, count, created=created)
    controller_count = controllers.spec.replicas if controllers else 0
    controller_set = component_name(name, Component.CONTROLLER)
    image = pinned_image(renderer.settings, observed, named, stateful_set, gate)
    number, founders = 0, None
    if group.is_dledger:
        number = recorded_founders(observed, REPLICAS, stateful_set, count, created=created)
        founders = founders_of_configuration(observed, stateful_set, number, max(count, spec_replicas))
    rendered = NO_MANIFESTS
    if controllers is not None:
        size = count if hibernation is None else spec_replicas
        effective = with_image(with_replicas(named, size), image)
        rendered = applicable_manifests(renderer, observed, effective, controllers, gate, founders)
        rendered = replace(rendered, manifests=with_size(rendered.manifests, stateful_set, count))
    target = rendered.reload_targets.get(stateful_set)
    pods = with_reloads(observed, target, pods_of_set(observed, stateful_set, count))
    quorum = observed_quorum(observed, tuple(f"{controller_set}-{n}" for n in range(controller_count)))
    broker_pods = tuple(f"{stateful_set}-{n}" for n in range(count))
    members = None
    if group.is_dledger:
        peers = observed_peers(observed, broker_pods)
        members = QuorumMembers(REPLICAS, group.name, observed.namespace, spec_replicas, number, pods, peers)
    replica_group = _replica_group(observed, group, quorum, broker_pods)
    unavailable = "" if created and hibernation is None else "the group is being created, or hibernates"
    copies = GroupCopies.of(
        observed,
        pods_by_name(stateful_set, pods),
        replica_group,
        group.min_in_sync,
        leaderless=group.is_under_controllers and quorum.leader is None,
        unavailable=unavailable,
    )
    set_manifest = next(iter(stateful_sets(rendered.manifests)), None)
    owner = Owner("BrokerGroup", group.name, str(metadata(observed.resource).get("uid", "")))
    return ObservedBrokerGroup(
        group=named,
        owner=owner,
        created=created,
        count=count,
        pods=pods,
        controllers=controllers,
        controller_pods=pods_of_set(observed, controller_set, controller_count),
        quorum=quorum,
        replica_group=replica_group,
        rendered=rendered,
        quorum_missing=waits_for,
        own=own,
        image=image,
        controllers_wait=_unfinished_change(observed, name),
        hibernation=hibernation,
        reload_target=target,
        reloads=pod_reloads(observed, target, pods),
        known_controllers=known_controllers(observed, stateful_set, pods),
        unready_brokers=frozenset(
            pod
            for pod in broker_pods
            if isinstance(state := observed.states.get(pod), ReportedBrokerState) and not state.ready
        ),
        members=members,
        copies=copies,
        lost=() if set_manifest is None else lost_replicas(observed, set_manifest, copies.pods),
        replacement=None if set_manifest is None else judge(observed, set_manifest, copies),
        restoration=restoration_of(
            observed, named, set_manifest, renderer.settings, quorum, owner, gate.now, created=created
        ),
    )


def _replica_group(
    observed: ObservedState, group: BrokerGroup, quorum: ObservedQuorum, pods: tuple[str, ...]
) -> ObservedReplicaGroup:
    if group.is_master_slave:
        return observed_master_slave(observed, pods)
    if group.is_dledger:
        return observed_dledger_group(observed, pods)
    return observed_replica_group(observed, quorum, pods, group.broker_name, group.spec.cluster)


def _unfinished_change(observed: ObservedState, controllers: str) -> str:
    """What the operator still has to do for a changed ControllerGroup; empty if nothing, or if a person has
    to do something first."""
    resource = observed.object("ControllerGroup", controllers) or {}
    status = status_of(resource)
    plan = PlanState.of(status)
    if spec_of(resource).get("paused") is True or annotation(resource, PAUSED) == "true":
        return ""
    if status.get("observedGeneration") != metadata(resource).get("generation"):
        return f"the change of ControllerGroup {controllers} comes first"
    blocked = status.get("phase") in WAITING_PHASES
    if plan is None or plan.finished or blocked or plan.name == "heal":
        return ""
    if plan.step_kind is StepKind.ADMIT:
        return ""  # These wait until the brokers list another controller.
    return f"ControllerGroup {controllers} comes first: {plan.message}"


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
    mode = rendered_mode(mode_of_brokers(observed, resource))
    spec = found.spec.model_copy(update={"replicas": count, "member_authentication": mode})
    return found.model_copy(update={"spec": spec}), ""


def broker_steps(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedBrokerGroup
) -> Iterator[PlanStep]:
    """The steps in order. A step may rely on the steps before it being done."""
    of_controllers = _controllers_of(observed_group)
    yield of_controllers.ensure_step(observed, renderer.differences)
    if observed_group.controllers is None:
        return
    yield from _object_steps(renderer, observed, observed_group)
    sets, storage = stateful_sets(observed_group.manifests), observed_group.group.spec.storage
    yield ownership_step(observed, sets, observed_group.owner, storage.retention)
    yield from urgent_volume_step(observed, sets, storage.size, observed_group.owner)
    if observed_group.hibernation is not None:
        hibernating = HibernatingGroup.of(
            observed_group.hibernation,
            observed_group.set_name,
            observed_group.count,
            observed_group.replica_group,
            elected=observed_group.group.is_under_controllers,
            has_leader=observed_group.quorum.leader is not None,
        )
        yield from hibernation_steps(observed, hibernating)
        return
    if observed_group.replacement is not None and observed_group.replacement.step is not None:
        yield observed_group.replacement.step
    spec_replicas = observed_group.group.spec.replicas
    broken = next_broken_pod(observed_group.restart_order, observed_group.serves, observed_group.in_sync_pods)
    if broken is not None:
        yield restart_step(observed, observed_group.set_name, broken, "")
    yield from reload_steps(observed, observed_group.reload_target, reversed(observed_group.reloads))
    if observed_group.count < spec_replicas and observed_group.members is None:
        if observed_group.count > 1:
            yield _join(observed_group, observed_group.count)
        yield _grow(observed_group, observed_group.count + 1)
    members = observed_group.members
    change = members.step(observed) if members is not None else None
    if members is not None and change is not None and members.comes_first(change):
        yield change
    yield from _hindered_removal_steps(observed, observed_group)
    yield _ready(observed_group)
    yield _leave(observed, observed_group)
    yield from _restart_steps(observed, observed_group)
    yield waiting_update_step(observed_group.rendered)
    if change is not None:
        yield change
    if observed_group.count > spec_replicas and members is None:
        yield _shrink(observed_group, observed_group.count - 1, _unsafe_to_scale(observed_group))
    yield unused_config_maps_step(observed, observed_group.manifests, observed_group.owner)
    yield from volume_steps(observed, sets, storage.size, observed_group.owner)
    count_step = of_controllers.count_step(observed)
    if count_step is not None:
        yield count_step
    yield immutable_changes_step(observed_group.rendered.immutable_changes)


def _restart_steps(observed: ObservedState, observed_group: ObservedBrokerGroup) -> Iterator[PlanStep]:
    """The step that restarts the next ready pod with an older template."""
    leads = observed_group.replica_group.master
    if observed_group.group.is_master_slave:
        leads = f"{observed_group.set_name}-0"
    following = next_ready_pod(observed_group.restart_order, observed_group.in_sync_pods, leads)
    if following.pod is None:
        return
    if observed_group.rendered.update_waits_for:
        yield waiting_update_step(observed_group.rendered, started=True)
        return
    waits_for = observed_group.controllers_wait or following.waits_for
    if not waits_for and not observed_group.group.is_master_slave:
        if observed_group.group.is_under_controllers and observed_group.quorum.leader is None:
            waits_for = "the controllers report no leader"
        elif observed_group.replica_group.master_id is None:
            waits_for = "the group has no master"
    yield restart_step(observed, observed_group.set_name, following.pod, waits_for)


def _controllers_of(observed_group: ObservedBrokerGroup) -> ControllersOfGroup:
    spec = observed_group.group.spec
    return ControllersOfGroup(
        name=spec.controller_group or observed_group.group.name,
        owner=observed_group.owner,
        own=dict(observed_group.own),
        wanted=spec.controllers.replicas if spec.controllers is not None else None,
        usable=observed_group.controllers is not None,
        missing=observed_group.quorum_missing,
    )


def _object_steps(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedBrokerGroup
) -> Iterator[PlanStep]:
    sets = stateful_sets(observed_group.manifests)
    rest = [one for one in observed_group.manifests if one.get("kind") != "StatefulSet"]
    compared = ComparedObjects.of(observed, renderer.differences, rest, observed_group.owner)
    unwanted = surplus(observed, observed_group.group, observed_group.manifests, observed_group.owner)
    compared_sets = ComparedObjects.of(observed, renderer.differences, sets, observed_group.owner)
    yield objects_step(replace(compared, surplus=unwanted), compared_sets)
    step = sets_step(observed, compared_sets, observed_group.created)
    if observed_group.members is not None:
        step = observed_group.members.check_claims(observed, sets[0], step, created=observed_group.created)
    if observed_group.restoration is not None and not step.waits_for:
        yield observed_group.restoration.step
    yield step


def _grow(observed_group: ObservedBrokerGroup, size: int) -> PlanStep:
    return PlanStep(
        StepKind.GROW,
        False,
        "AddingReplica",
        f"adds {observed_group.set_name}-{size - 1}",
        _unsafe_to_scale(observed_group),
        target=size,
        subject=str(size),
    )


def _unsafe_to_scale(observed_group: ObservedBrokerGroup) -> str:
    unready = unready_pods(observed_group.pods, observed_group.set_name)
    if unready:
        return "; ".join(unready)
    elected = observed_group.group.is_under_controllers
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
    return PlanStep(
        StepKind.JOIN, done, "AwaitingReplica", f"waits until {name} is ready and in sync", subject=str(size)
    )


def _ready(observed_group: ObservedBrokerGroup) -> PlanStep:
    unready = unready_pods(observed_group.pods, observed_group.set_name)
    masterless = observed_group.replica_group.known and observed_group.replica_group.master_id is None
    return PlanStep(
        StepKind.READY,
        not unready and not masterless,
        "AwaitingReady",
        f"waits until every replica is ready and one is the master: {'; '.join(unready[:LISTED_PODS_MAX])}",
    )


def _leave(observed: ObservedState, observed_group: ObservedBrokerGroup) -> PlanStep:
    """Waits for a replica that a scale-down removes. Later ones are removed one after another, so there is at
    most one, unless a person scaled the StatefulSet up."""
    leaving = [
        name
        for ordinal in range(observed_group.count, REPLICAS_MAX)
        if observed.object("Pod", name := f"{observed_group.set_name}-{ordinal}") is not None
    ]
    members = len(observed_group.replica_group.sync_state_set)
    elected = observed_group.group.is_under_controllers
    message = f"waits until {', '.join(leaving)} has gone" if leaving else "waits for the SyncStateSet"
    return PlanStep(
        StepKind.LEAVE,
        not leaving and not (elected and members > observed_group.count),
        "AwaitingRemoval",
        message,
        subject=str(observed_group.count + 1),
    )


def _shrink(observed_group: ObservedBrokerGroup, size: int, waits_for: str = "") -> PlanStep:
    return PlanStep(
        StepKind.SHRINK,
        False,
        "RemovingReplica",
        f"removes {observed_group.set_name}-{size}, whose volume stays",
        waits_for,
        target=size,
        subject=str(size),
    )


def _hindered_removal_steps(
    observed: ObservedState, observed_group: ObservedBrokerGroup
) -> Iterator[PlanStep]:
    """The removal of a replica while others are not ready or not in sync: it waits, or a person overrides
    that."""
    size, obstacle = observed_group.count - 1, _unsafe_to_scale(observed_group)
    if size < observed_group.group.spec.replicas or observed_group.members is not None or not obstacle:
        return
    names, elected = tuple(observed_group.restart_order), observed_group.group.is_under_controllers
    if _is_unused(observed, observed_group, f"{observed_group.set_name}-{size}"):
        yield _leave(observed, observed_group)
        yield replace(
            _shrink(observed_group, size),
            message=f"removes {observed_group.set_name}-{size}, which never ran",
        )
        return
    removal = ForcedRemoval(
        observed.resource,
        f"{observed_group.set_name}-{size}",
        obstacle,
        remaining=tuple(sorted(names[1:])),
        in_sync=observed_group.in_sync_pods,
        master=observed_group.replica_group.master,
        masters=frozenset(
            name
            for name in names
            if isinstance(state := observed.states.get(name), ReportedBrokerState) and state.role == "master"
        ),
        unknown="the controllers report no leader" if elected and not observed_group.quorum.leader else "",
    )
    step = _shrink(observed_group, size, removal.waits_for)
    if removal.waits_for:
        yield step
        return
    yield _leave(observed, observed_group)
    yield replace(step, reason="ForcingScaleDown", message=removal.consequence, event=EventType.WARNING)


def _is_unused(observed: ObservedState, observed_group: ObservedBrokerGroup, name: str) -> bool:
    """Whether a replica can be removed at once because it has never run. Its volume may be new although it
    ran before, so a group that was created must be known not to count on it."""
    (stateful_set,) = stateful_sets(observed_group.manifests)
    if name in observed_group.in_sync_pods or not never_ran(observed, stateful_set, name):
        return False
    return observed_group.replica_group.known or not observed_group.created
