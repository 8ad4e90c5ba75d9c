"""Computes the steps of a controller group.

- `guard`, `objects`: as for a broker group.
- `replicas`: the StatefulSets are up to date. Waits while a volume claim is being deleted, or while there are
  claims of another number of controllers. A StatefulSet that a person scaled is scaled back: the number
  of controllers in a configuration is never that of the StatefulSet.
- `ready`: all pods are ready, and one controller leads.
- `replace-POD`: the controller has a new volume, by the rules in `controller_replacement`. Then it becomes a
  member by the steps below.
- `restart-POD`: the pod has the template of its StatefulSet, by the rules in `restarts`; separate
  nameservers come before controllers. A pod that is not ready comes before `ready`.
- `add-POD`, `admit-POD`, `remove-POD`, `founders`, `members`: as many controllers run as the spec asks for,
  and they are the members of the quorum, by the rules in `quorum_members`. A removal, and every change
  while others are members than run, comes before `ready`.
- `configurations`: no ConfigMap of a former configuration is left.
- `expand-CLAIM`, `volumes`, `held`: as for a broker group.

The configuration names the controllers with which the group began, and only until the Raft log names the
members: a majority of another number may not know what the quorum has committed."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from epochmq_operator.plans.common_steps import (
    count_of,
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
from epochmq_operator.plans.controller_replacement import ControllerCopies
from epochmq_operator.plans.member_modes import mode_of_controllers, rendered_mode
from epochmq_operator.plans.objects import Manifest, Owner, metadata
from epochmq_operator.plans.observed_state import (
    ObservedPod,
    ObservedQuorum,
    ObservedState,
    observed_quorum,
    pods_of_set,
)
from epochmq_operator.plans.pinned_image import pinned_image, with_image
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.plans.quorum_members import (
    CONTROLLERS,
    QuorumMembers,
    founders_of_configuration,
    recorded_founders,
)
from epochmq_operator.plans.reloads import with_unneeded_restarts
from epochmq_operator.plans.renderer import ApplicableManifests, Renderer, applicable_manifests
from epochmq_operator.plans.replica_replacement import (
    LostReplica,
    ReplacementVerdict,
    judge,
    lost_replicas,
)
from epochmq_operator.plans.restarts import PodsByName, next_broken_pod, next_ready_pod, restart_step
from epochmq_operator.plans.update_gate import UpdateGate
from epochmq_operator.plans.volumes import ownership_step, urgent_volume_step, volume_steps
from epochmq_operator.pod_rendering import component_name
from epochmq_operator.pods import Component
from epochmq_operator.resources import ControllerGroup


@dataclass(frozen=True, slots=True)
class ObservedControllerGroup:
    """A controller group and everything that its steps and its status are computed from. `group` has as many
    replicas as its target; `wanted` is the number in the spec; `others` are the pods of its other
    StatefulSets. `rendered` are its manifests, `image` is the image of its pods if the spec names none.
    `copies` are the controllers that have every committed entry, `lost` those that do not run although they
    have a volume; `replacement` is the verdict on an order to replace one."""

    group: ControllerGroup
    wanted: int
    owner: Owner
    created: bool
    rendered: ApplicableManifests
    image: str | None
    pods: tuple[ObservedPod | None, ...]
    others: tuple[tuple[str, tuple[ObservedPod | None, ...]], ...]
    quorum: ObservedQuorum
    members: QuorumMembers
    copies: ControllerCopies
    lost: tuple[LostReplica, ...]
    replacement: ReplacementVerdict | None

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifests of its objects."""
        return self.rendered.manifests

    @property
    def set_name(self) -> str:
        """The name of the controllers' StatefulSet."""
        return component_name(self.group.name, Component.CONTROLLER)

    @property
    def ready(self) -> int:
        """The number of ready controllers."""
        return sum(1 for pod in self.pods if pod is not None and pod.ready)

    @property
    def outdated(self) -> list[str]:
        """The pods that have an older template than their StatefulSet."""
        pods = (*self.pods, *(pod for _, more in self.others for pod in more))
        return [pod.name for pod in pods if pod is not None and pod.outdated]

    @property
    def leaderless(self) -> bool:
        """Whether controllers respond and none leads."""
        return self.quorum.answered > 0 and self.quorum.leader is None

    @property
    def restart_orders(self) -> list[tuple[str, PodsByName]]:
        """The StatefulSets in the order of their restarts, each with its pods, the highest ordinal first."""
        sets = [*self.others, (self.set_name, self.pods)]
        return [(name, dict(reversed(pods_by_name(name, pods).items()))) for name, pods in sets]

    def serves(self, pod: ObservedPod) -> bool:
        """Whether the quorum may miss this pod although Kubernetes does not find it ready: its sidecar may
        fail while its controller works."""
        others = sum(1 for other in self.pods if other is not None and other.ready and other is not pod)
        return not self.leaderless and others * 2 <= len(self.pods)

    @property
    def idle_pods(self) -> list[str]:
        """One line for each pod of the group that does not run."""
        sets = [(self.set_name, self.pods), *self.others]
        return [line for name, pods in sets for line in idle_pods(pods, name)]

    @property
    def unready_pods(self) -> list[str]:
        """One line for each pod of the group that is not ready. A controller is ready only as a member."""
        lines = self.members.unready
        for name, pods in self.others:
            lines += unready_pods(pods, name)
        return lines


def observed_controller_group(
    renderer: Renderer, observed: ObservedState, group: ControllerGroup, gate: UpdateGate
) -> ObservedControllerGroup:
    """Collects everything about the group from the observed state."""
    created = gate.created
    name = component_name(group.name, Component.CONTROLLER)
    spec_replicas = group.spec.replicas
    count = target_replicas(observed, observed.resource, name, spec_replicas, created=created)
    mode = rendered_mode(mode_of_controllers(observed, observed.resource))
    update = {"replicas": count, "member_authentication": mode}
    effective = group.model_copy(update={"spec": group.spec.model_copy(update=update)})
    image = pinned_image(renderer.settings, observed, group, name, gate)
    number = recorded_founders(observed, CONTROLLERS, name, count, created=created)
    founders = founders_of_configuration(observed, name, number, max(count, spec_replicas))
    rendered = applicable_manifests(renderer, observed, with_image(effective, image), None, gate, founders)
    pods = with_unneeded_restarts(
        observed, rendered.reload_targets.get(name), pods_of_set(observed, name, count)
    )
    quorum = observed_quorum(observed, tuple(f"{name}-{n}" for n in range(count)))
    members = QuorumMembers(CONTROLLERS, group.name, observed.namespace, spec_replicas, number, pods, quorum)
    copies = ControllerCopies.of(observed, members, created=created)
    own = next(one for one in stateful_sets(rendered.manifests) if metadata(one).get("name") == name)
    others = tuple(
        (other, pods_of_set(observed, other, count_of(one) or 0))
        for one in rendered.manifests
        if one.get("kind") == "StatefulSet" and (other := str(metadata(one).get("name"))) != name
    )
    return ObservedControllerGroup(
        group=effective,
        wanted=spec_replicas,
        owner=Owner("ControllerGroup", group.name, str(metadata(observed.resource).get("uid", ""))),
        created=created,
        rendered=rendered,
        image=image,
        pods=pods,
        others=others,
        quorum=quorum,
        members=members,
        copies=copies,
        lost=lost_replicas(observed, own, copies.pods),
        replacement=judge(observed, own, copies),
    )


def controller_steps(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedControllerGroup
) -> Iterator[PlanStep]:
    """The steps in order."""
    sets = stateful_sets(observed_group.manifests)
    rest = [one for one in observed_group.manifests if one.get("kind") != "StatefulSet"]
    compared = ComparedObjects.of(observed, renderer.differences, rest, observed_group.owner)
    unwanted = surplus(observed, observed_group.group, observed_group.manifests, observed_group.owner)
    compared_sets = ComparedObjects.of(observed, renderer.differences, sets, observed_group.owner)
    yield objects_step(replace(compared, surplus=unwanted), compared_sets)
    created, members = observed_group.created, observed_group.members
    own = next((one for one in sets if metadata(one).get("name") == observed_group.set_name), None)
    yield members.check_claims(observed, own, sets_step(observed, compared_sets, created), created=created)
    storage = observed_group.group.spec.storage
    yield ownership_step(observed, sets, observed_group.owner, storage.retention)
    yield from urgent_volume_step(observed, sets, storage.size, observed_group.owner)
    change = members.step(observed)
    replacement = observed_group.replacement
    if replacement is not None and replacement.step is not None:
        if change is not None and change.kind is StepKind.FOUNDERS:
            yield change  # The new controller must not start by the configuration of the founders.
        yield replacement.step
    for set_name, pods in observed_group.restart_orders:
        broken = next_broken_pod(pods, observed_group.serves, _ready_names(pods))
        if broken is not None:
            yield restart_step(observed, set_name, broken, "")
    if change is not None and members.comes_first(change):
        yield change
    yield PlanStep(
        StepKind.READY,
        not observed_group.unready_pods and not observed_group.leaderless,
        "AwaitingReady",
        "waits until every controller is ready and one leads",
    )
    for set_name, pods in observed_group.restart_orders:
        following = next_ready_pod(pods, _ready_names(pods), observed_group.quorum.leader or "")
        if following.pod is not None:
            if observed_group.rendered.update_waits_for:
                yield waiting_update_step(observed_group.rendered, started=True)
                return
            unknown = "" if observed_group.quorum.leader else "the controllers report no leader"
            yield restart_step(observed, set_name, following.pod, following.waits_for or unknown)
    yield waiting_update_step(observed_group.rendered)
    if change is not None:
        yield change
    yield unused_config_maps_step(observed, observed_group.manifests, observed_group.owner)
    yield from volume_steps(observed, sets, storage.size, observed_group.owner)
    yield immutable_changes_step(observed_group.rendered.immutable_changes)


def _ready_names(pods: PodsByName) -> frozenset[str]:
    return frozenset(name for name, pod in pods.items() if pod is not None and pod.ready)
