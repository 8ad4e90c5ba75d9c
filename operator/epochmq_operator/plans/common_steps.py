"""Computes the steps that broker groups and controller groups have in common."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Sequence

from epochmq_operator.plans.compared_objects import ComparedObjects, ObjectState
from epochmq_operator.plans.effects import Delete
from epochmq_operator.plans.objects import Manifest, Ref
from epochmq_operator.plans.observed_state import ObservedPod, ObservedState, claims_of_set
from epochmq_operator.plans.plan_steps import PlanStep


def count_of(stateful_set: Manifest | None) -> int | None:
    """`spec.replicas` of a StatefulSet; None if there is no StatefulSet."""
    count = ((stateful_set or {}).get("spec") or {}).get("replicas")
    return count if isinstance(count, int) else None


def unready_pods(pods: Sequence[ObservedPod | None], stateful_set: str) -> list[str]:
    """One line for each of these pods that is not ready."""
    lines = []
    for ordinal, pod in enumerate(pods):
        name = f"{stateful_set}-{ordinal}"
        if pod is None:
            lines.append(f"{name} does not exist")
        elif not pod.ready:
            lines.append(f"{name} {pod.unready_reason}")
    return lines


def deletions_of_stuck_pods(pods: Sequence[ObservedPod | None], namespace: str) -> tuple[Delete, ...]:
    """Deletions of the pods that cannot run with their template and whose StatefulSet has another template by
    now."""
    return tuple(
        Delete(Ref("Pod", namespace, pod.name), pod.uid)
        for pod in pods
        if pod is not None and pod.stuck and pod.outdated
    )


def objects_step(compared: ComparedObjects) -> PlanStep:
    """The step that is done when everything but the StatefulSets is up to date."""
    done = compared.done
    message = "applies the objects that the pods need"
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
    """The step that is done when the StatefulSets are up to date. It does not create a StatefulSet beside
    volume claims of more replicas than it will have."""
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
            last = max(claims.ordinals)
            waits_for = waits_for or (
                f"volume claims up to {one.ref.name}-{last} exist from an earlier group, more than "
                f"spec.replicas: {count}; their data may be the only copy in sync: set spec.replicas to "
                f"{last + 1}, or delete the claims of {one.ref.name}-{count} and above"
            )
    message = "starts the replicas" if fresh and not created else compared.why
    changed = compared.changed
    return PlanStep(
        "replicas", done, "StartingReplicas", message, waits_for, blocked, changed, compared.effects
    )


def immutable_changes_step(immutable_changes: Sequence[str]) -> PlanStep:
    """The step that is done when no immutable field is to change."""
    return PlanStep(
        "held",
        not immutable_changes,
        "Change",
        "changes immutable fields",
        "cannot be changed while the group exists: " + "; ".join(immutable_changes),
        blocked=True,
    )
