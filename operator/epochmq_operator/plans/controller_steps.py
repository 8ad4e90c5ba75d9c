"""Computes the steps of a controller group.

- `guard`, `objects`: as for a broker group.
- `replicas`: the StatefulSets are up to date. Waits while a volume claim is being deleted, or while there are
  claims of another number of controllers. A StatefulSet that somebody else scaled is scaled back: the number
  of controllers in a configuration is never that of the StatefulSet.
- `ready`: all pods are ready, and one controller leads.
- `members`: as many controllers run as the spec asks for. Never starts: not supported yet.
- `held`: as for a broker group.

The number of controllers of a quorum is fixed at its creation: a majority of another number may not know what
the quorum has committed."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from epochmq_operator.plans.common_steps import (
    count_of,
    deletions_of_stuck_pods,
    immutable_changes_step,
    objects_step,
    sets_step,
    target_replicas,
    unready_pods,
)
from epochmq_operator.plans.compared_objects import ComparedObjects, surplus
from epochmq_operator.plans.objects import Manifest, Owner, metadata
from epochmq_operator.plans.observed_state import (
    ObservedPod,
    ObservedQuorum,
    ObservedState,
    claims_of_set,
    observed_quorum,
    pods_of_set,
)
from epochmq_operator.plans.plan_steps import PlanStep
from epochmq_operator.plans.renderer import Renderer, applicable_manifests
from epochmq_operator.pod_rendering import Component, component_name
from epochmq_operator.resources import ControllerGroup


@dataclass(frozen=True, slots=True)
class ObservedControllerGroup:
    """A controller group and everything that its steps and its status are computed from. `group` has as many
    replicas as its target; `wanted` is the number in the spec; `others` are the pods of its other
    StatefulSets."""

    group: ControllerGroup
    wanted: int
    owner: Owner
    created: bool
    manifests: tuple[Manifest, ...]
    immutable_changes: tuple[str, ...]
    pods: tuple[ObservedPod | None, ...]
    others: tuple[tuple[str, tuple[ObservedPod | None, ...]], ...]
    quorum: ObservedQuorum

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
    def unready_pods(self) -> list[str]:
        """One line for each pod of the group that is not ready."""
        lines = unready_pods(self.pods, self.set_name)
        for name, pods in self.others:
            lines += unready_pods(pods, name)
        return lines


def observed_controller_group(
    renderer: Renderer, observed: ObservedState, group: ControllerGroup, *, created: bool
) -> ObservedControllerGroup:
    """Collects everything about the group from the observed state."""
    name = component_name(group.name, Component.CONTROLLER)
    wanted = group.spec.replicas
    count = target_replicas(observed, observed.resource, name, wanted, created=created)
    effective = group.model_copy(update={"spec": group.spec.model_copy(update={"replicas": count})})
    manifests, immutable_changes = applicable_manifests(renderer, observed, effective, None)
    others = tuple(
        (other, pods_of_set(observed, other, count_of(one) or 0))
        for one in manifests
        if one.get("kind") == "StatefulSet" and (other := str(metadata(one).get("name"))) != name
    )
    return ObservedControllerGroup(
        group=effective,
        wanted=wanted,
        owner=Owner("ControllerGroup", group.name, str(metadata(observed.resource).get("uid", ""))),
        created=created,
        manifests=manifests,
        immutable_changes=immutable_changes,
        pods=pods_of_set(observed, name, count),
        others=others,
        quorum=observed_quorum(observed, tuple(f"{name}-{n}" for n in range(count))),
    )


def controller_steps(
    renderer: Renderer, observed: ObservedState, observed_group: ObservedControllerGroup
) -> Iterator[PlanStep]:
    """The steps in order."""
    sets = [one for one in observed_group.manifests if one.get("kind") == "StatefulSet"]
    rest = [one for one in observed_group.manifests if one.get("kind") != "StatefulSet"]
    compared = ComparedObjects.of(observed, renderer.differences, rest, observed_group.owner)
    unwanted = surplus(
        observed, renderer, observed_group.group, observed_group.manifests, observed_group.owner
    )
    yield objects_step(replace(compared, surplus=unwanted))
    yield _check_claims(
        observed,
        observed_group,
        sets_step(
            observed,
            ComparedObjects.of(observed, renderer.differences, sets, observed_group.owner),
            observed_group.created,
        ),
    )
    leaderless = observed_group.quorum.answered > 0 and observed_group.quorum.leader is None
    pods = (*observed_group.pods, *(pod for _, more in observed_group.others for pod in more))
    yield PlanStep(
        "ready",
        not observed_group.unready_pods and not leaderless,
        "AwaitingReady",
        "waits until every controller is ready and one leads",
        effects=deletions_of_stuck_pods(pods, observed.namespace),
    )
    if len(observed_group.pods) != observed_group.wanted:
        yield PlanStep(
            "members",
            False,
            "Membership",
            f"changes the number of controllers to {observed_group.wanted}",
            f"changing the number of controllers is not supported yet: {len(observed_group.pods)} keep "
            f"running; set spec.replicas to {len(observed_group.pods)}",
            blocked=True,
        )
    yield immutable_changes_step(observed_group.immutable_changes)


def _check_claims(
    observed: ObservedState, observed_group: ObservedControllerGroup, step: PlanStep
) -> PlanStep:
    """The step, blocked if volume claims of another number of controllers exist."""
    if step.done or step.waits_for or observed.object("StatefulSet", observed_group.set_name) is not None:
        return step
    manifest = next(
        (
            one
            for one in observed_group.manifests
            if str(metadata(one).get("name")) == observed_group.set_name
        ),
        None,
    )
    claims = claims_of_set(observed, manifest) if manifest is not None else None
    count = len(observed_group.pods)
    if claims is None or not claims.ordinals or len(claims.ordinals) == count:
        return step
    if observed_group.created and claims.ordinals.issuperset(range(count)):
        return step  # Further claims are of pods that somebody else added to the StatefulSet.
    before = len(claims.ordinals)
    return PlanStep(
        step.name,
        False,
        step.reason,
        step.message,
        f"volume claims of {before} controllers exist from an earlier group, but spec.replicas is "
        f"{observed_group.wanted}: a majority of another number may lack committed entries; set "
        f"spec.replicas to {before}, or delete the claims of {observed_group.set_name}",
        blocked=True,
    )
