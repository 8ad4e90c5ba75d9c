"""Guards groups, and computes the steps that delete one: after a confirmation, brokers before controllers.

- `confirm` is done when the annotation `epochmq.io/confirm-deletion` holds the group's name, or the guard is
  off.
- `brokers`: the StatefulSet and its pods are gone.
- `controllers`: the group's own ControllerGroup is gone.
- `release`: the finalizer is removed, and the API server then deletes the resource.

A group without the guard needs no operator for its deletion: all its objects have the resource as their
owner, so Kubernetes' garbage collector deletes them. Volume claims have no owner, unless the spec asks for
their deletion."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterator

from epochmq_operator.plans.effects import Delete, SetFinalizers
from epochmq_operator.plans.objects import (
    CONFIRM_DELETION,
    FINALIZER,
    Manifest,
    Ref,
    annotation,
    is_deleting,
    metadata,
    owner_of,
    spec_of,
)
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.pod_rendering import component_name
from epochmq_operator.pods import Component

LISTED_PODS_MAX = 3


def finalizers(resource: Manifest) -> tuple[str, ...]:
    """The finalizers of a resource."""
    return tuple(metadata(resource).get("finalizers") or ())


def guard_step(resource: Manifest, *, wanted: bool) -> PlanStep:
    """The step that makes the finalizer present if and only if the spec asks for the guard."""
    present = FINALIZER in finalizers(resource)
    others = tuple(one for one in finalizers(resource) if one != FINALIZER)
    version = str(metadata(resource).get("resourceVersion", ""))
    effect = SetFinalizers((*others, FINALIZER) if wanted else others, version)
    message = "adds the deletion guard" if wanted else "removes the deletion guard"
    return PlanStep(StepKind.GUARD, present == wanted, "Guarding", message, effects=(effect,))


def deletion_steps(observed: ObservedState, *, guarded: bool) -> Iterator[PlanStep]:
    """The steps of a group that is being deleted and has the finalizer. `guarded`: the spec asks for the
    guard."""
    resource = observed.resource
    name, kind = str(metadata(resource).get("name", "")), str(resource.get("kind", ""))
    yield PlanStep(
        StepKind.CONFIRM,
        not guarded or annotation(resource, CONFIRM_DELETION) == name,
        "DeletionUnconfirmed",
        "waits for the confirmation of the deletion",
        f"spec.deletionGuard is on, the group keeps running; to confirm: kubectl annotate {kind.lower()} "
        f"{name} {CONFIRM_DELETION}={name}",
        blocked=True,
    )
    if kind == "BrokerGroup":
        yield _delete_stateful_set_step(
            observed,
            StepKind.BROKERS,
            "StoppingReplicas",
            "stops the replicas",
            Component.BROKER,
        )
        yield _delete_controllers_step(observed, name)
    else:
        yield _delete_stateful_set_step(
            observed,
            StepKind.CONTROLLERS,
            "StoppingControllers",
            "stops the controllers",
            Component.CONTROLLER,
        )
    others = tuple(one for one in finalizers(resource) if one != FINALIZER)
    version = str(metadata(resource).get("resourceVersion", ""))
    yield PlanStep(
        StepKind.RELEASE,
        False,
        "Released",
        "removes the finalizer",
        effects=(SetFinalizers(others, version),),
    )


def _delete_stateful_set_step(
    observed: ObservedState, kind: StepKind, reason: str, message: str, component: Component
) -> PlanStep:
    name = str(metadata(observed.resource).get("name", ""))
    stateful_set = component_name(name, component)
    present = observed.object("StatefulSet", stateful_set)
    mine = present is not None and _belongs(present, observed.resource)
    left = sorted(
        ref.name
        for ref, pod in observed.objects.items()
        if ref.kind == "Pod" and ref.namespace == observed.namespace and _pod_of(pod, stateful_set)
    )
    effects: tuple[Delete, ...] = ()
    if present is not None and mine and not is_deleting(present):
        effects = (
            Delete(Ref("StatefulSet", observed.namespace, stateful_set), str(metadata(present).get("uid"))),
        )
    if not effects and left:
        listed = [_stopping(observed, pod) for pod in left[:LISTED_PODS_MAX]]
        more = f" and {len(left) - LISTED_PODS_MAX} more" if len(left) > LISTED_PODS_MAX else ""
        message += f": waits for {', '.join(listed)}{more}"
    return PlanStep(kind, not mine and not left, reason, message, effects=effects)


def _stopping(observed: ObservedState, pod: str) -> str:
    """A pod that has not gone yet, and its node, which may be why."""
    node = spec_of(observed.object("Pod", pod) or {}).get("nodeName")
    return f"{pod} on node {node}" if node else pod


def _pod_of(pod: Manifest, stateful_set: str) -> bool:
    owner = owner_of(pod)
    return owner is not None and (owner.kind, owner.name) == ("StatefulSet", stateful_set)


def _delete_controllers_step(observed: ObservedState, name: str) -> PlanStep:
    present = observed.object("ControllerGroup", name)
    mine = present is not None and _belongs(present, observed.resource)
    effects: tuple[Delete, ...] = ()
    if present is not None and mine and not is_deleting(present):
        effects = (
            Delete(Ref("ControllerGroup", observed.namespace, name), str(metadata(present).get("uid"))),
        )
    return PlanStep(
        StepKind.CONTROLLERS,
        not mine,
        "StoppingControllers",
        "stops the group's controllers",
        effects=effects,
    )


def _belongs(present: Manifest, resource: Manifest) -> bool:
    owner = owner_of(present)
    return owner is not None and owner.uid == metadata(resource).get("uid")
