"""Computes the steps that broker groups and controller groups have in common."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epochmq_operator.manifests.kept_templates import mounted_config_maps, template_spec
from epochmq_operator.plans.compared_objects import ComparedObjects, ObjectState
from epochmq_operator.plans.effects import Delete
from epochmq_operator.plans.hibernation import HIBERNATION
from epochmq_operator.plans.indexed_objects import of_kind, of_owner
from epochmq_operator.plans.objects import (
    APPLIED,
    Manifest,
    Owner,
    annotation,
    is_deleting,
    metadata,
    owner_of,
    spec_of,
    status_of,
)
from epochmq_operator.plans.observed_state import (
    ObservedPod,
    ObservedState,
    claims_of_set,
    missing_pod,
)
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.plans.renderer import ApplicableManifests
from epochmq_operator.resources import REPLICAS_MAX

TARGET = "targetReplicas"
"""The field of a group's status with the number of replicas that the group is to have at present. While a
group scales up it is below `spec.replicas`. The operator records it before it changes the StatefulSet."""

BLOCKED_PHASE = "Blocked"
"""The phase of a group whose plan only a person can continue."""
PENDING_PHASE = "UpdatePending"
"""The phase of a group whose update may not restart pods now."""
REVERTING = "RevertingDrift"
"""The reason of a step that only reverts what others changed."""


def count_of(stateful_set: Manifest | None) -> int | None:
    """`spec.replicas` of a StatefulSet; None if there is no StatefulSet."""
    count = ((stateful_set or {}).get("spec") or {}).get("replicas")
    return count if isinstance(count, int) else None


def target_replicas(
    observed: ObservedState, resource: Manifest, stateful_set: str, wanted: int, *, created: bool
) -> int:
    """The number of replicas that the group is to have at present. `wanted` is `spec.replicas`. The
    StatefulSet's own number does not count: a person may have changed it.

    A status without a record is that of a new group, of an earlier release, or was deleted. Then the number
    is derived once: from the StatefulSet, or from its volume claims, which stay when it is scaled down."""
    present = observed.object("StatefulSet", stateful_set)
    recorded = status_of(resource).get(TARGET)
    least = 0 if status_of(resource).get(HIBERNATION) else 1
    if type(recorded) is int and least <= recorded <= REPLICAS_MAX:
        return recorded if created or present is not None else wanted
    if present is None:
        return wanted
    ordinals = claims_of_set(observed, present).ordinals
    return max(count_of(present) or 0, min(max(ordinals, default=0) + 1, wanted))


def stateful_sets(manifests: Iterable[Manifest]) -> list[Manifest]:
    """The StatefulSets among a group's manifests."""
    return [one for one in manifests if one.get("kind") == "StatefulSet"]


def unready_pods(pods: Sequence[ObservedPod | None], stateful_set: str) -> list[str]:
    """One line for each of these pods that is not ready."""
    lines = []
    for ordinal, pod in enumerate(pods):
        name = f"{stateful_set}-{ordinal}"
        if pod is None:
            lines.append(missing_pod(name))
        elif not pod.ready:
            lines.append(f"{name} {pod.unready_reason}")
    return lines


def idle_pods(pods: Sequence[ObservedPod | None], stateful_set: str) -> list[str]:
    """One line for each of these pods that does not run."""
    missing = [name for name, pod in pods_by_name(stateful_set, pods).items() if pod is None]
    idle = [pod for pod in pods if pod is not None and not pod.runs]
    return [*map(missing_pod, missing), *(f"{pod.name} {pod.unready_reason}" for pod in idle)]


def pods_by_name(stateful_set: str, pods: Sequence[ObservedPod | None]) -> dict[str, ObservedPod | None]:
    """The pods of a StatefulSet, given by ordinal, by name."""
    return {f"{stateful_set}-{ordinal}": pod for ordinal, pod in enumerate(pods)}


def objects_step(compared: ComparedObjects, sets: ComparedObjects) -> PlanStep:
    """The step that is done when everything but the StatefulSets is up to date. `sets` are the StatefulSets:
    a new configuration is a new object, which is no repair if they are to use it."""
    done = compared.done
    message = "applies the objects that the pods need"
    if not done and not any(one.state is ObjectState.MISSING for one in compared.all):
        message = compared.why
    return PlanStep(
        StepKind.OBJECTS,
        done,
        REVERTING if compared.drifted else "ApplyingObjects",
        message,
        compared.waits_for,
        bool(compared.foreign),
        compared.changed or sets.changed,
        compared.effects,
    )


def sets_step(observed: ObservedState, compared: ComparedObjects, created: bool) -> PlanStep:
    """The step that is done when the StatefulSets are up to date. For a new group it does not create a
    StatefulSet beside volume claims of more replicas than it will have."""
    unnoticed = [one.ref.name for one in compared.all if _is_unnoticed(observed.objects.get(one.ref))]
    done = not compared.not_up_to_date and not unnoticed
    waits_for, blocked = compared.waits_for, bool(compared.foreign)
    if not compared.not_up_to_date and unnoticed:
        waits_for = f"Kubernetes has not yet handled the change of {', '.join(unnoticed)}"
    missing = [one for one in compared.all if one.state is ObjectState.MISSING]
    for one in missing:
        claims, count = claims_of_set(observed, one.manifest), count_of(one.manifest) or 0
        surplus = sorted(n for n in claims.ordinals if n >= count)
        if claims.deleting:
            waits_for = waits_for or f"the volume claims {', '.join(claims.deleting)} are being deleted"
        elif surplus and not created:
            blocked = True
            last = max(claims.ordinals)
            waits_for = waits_for or (
                f"volume claims up to {one.ref.name}-{last} exist from an earlier group, more than "
                f"spec.replicas: {count}; their data may be the only copy in sync: set spec.replicas to "
                f"{last + 1}, or delete the claims of {one.ref.name}-{count} and above"
            )
    message = "starts the replicas" if missing and not created else compared.why
    changed = compared.changed
    reason = REVERTING if compared.drifted else "StartingReplicas"
    return PlanStep(StepKind.REPLICAS, done, reason, message, waits_for, blocked, changed, compared.effects)


def _is_unnoticed(stateful_set: Manifest | None) -> bool:
    """Whether Kubernetes has not handled the StatefulSet's present generation. Until then its status does not
    say which pods are outdated."""
    found = stateful_set or {}
    generation, handled = metadata(found).get("generation"), status_of(found).get("observedGeneration")
    return isinstance(generation, int) and isinstance(handled, int) and handled < generation


def unused_config_maps_step(observed: ObservedState, manifests: Sequence[Manifest], owner: Owner) -> PlanStep:
    """The step that is done when the group has no ConfigMap of a former configuration: one that is not among
    its `manifests` and that no StatefulSet and no pod mounts."""
    used = {str(metadata(one).get("name")) for one in manifests if one.get("kind") == "ConfigMap"}
    former = {
        ref: found
        for ref, found in of_owner(observed.objects, "ConfigMap", owner.uid).items()
        if ref.namespace == observed.namespace and ref.name not in used
        if _belongs(found, owner) and not is_deleting(found)
    }
    if former:  # Only then it matters what pods of the whole namespace mount.
        for kind in ("Pod", "StatefulSet"):
            for ref, found in of_kind(observed.objects, kind).items():
                if ref.namespace == observed.namespace:
                    spec = spec_of(found) if kind == "Pod" else template_spec(found)
                    used |= mounted_config_maps(spec)
    unused = sorted(
        (
            Delete(ref, str(metadata(found).get("uid", "")))
            for ref, found in former.items()
            if ref.name not in used
        ),
        key=lambda one: one.ref,
    )
    return PlanStep(
        StepKind.CONFIGURATIONS,
        not unused,
        "RemovingConfigurations",
        "removes former configurations: " + ", ".join(one.ref.name for one in unused),
        effects=tuple(unused),
    )


def waiting_update_step(rendered: ApplicableManifests, *, started: bool = False) -> PlanStep:
    """The step that is done when no update waits for a maintenance window, a person, or its turn among the
    groups. `started`: pods have still to be restarted for an update that began before."""
    return PlanStep(
        StepKind.TURN if rendered.waits_for_turn else StepKind.APPROVAL,
        not (rendered.held or started),
        "Update",
        "waits until the update may restart pods",
        rendered.update_waits_for,
        blocked=not rendered.waits_for_turn,
        opens_later=rendered.opens_later,
    )


def _belongs(found: Manifest, owner: Owner) -> bool:
    """Whether the operator made the object for this owner."""
    master = owner_of(found)
    return master is not None and master.uid == owner.uid and annotation(found, APPLIED) is not None


def immutable_changes_step(immutable_changes: Sequence[str]) -> PlanStep:
    """The step that is done when no change of an immutable field is wanted. A person has to take the change
    back, so the step is blocked."""
    return PlanStep(
        StepKind.HELD,
        not immutable_changes,
        "Change",
        "changes immutable fields",
        "cannot be changed while the group exists: " + "; ".join(immutable_changes),
        blocked=True,
    )
