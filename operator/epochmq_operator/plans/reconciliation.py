"""Reconciles one resource: compares its observed with its desired state and takes the next safe step."""

# pure: data in, effects out.

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from epochmq_operator.plans import group_status
from epochmq_operator.plans.broker_steps import broker_steps, observed_broker_group
from epochmq_operator.plans.conditions import Condition, ConditionType, merge_conditions
from epochmq_operator.plans.controller_steps import controller_steps, observed_controller_group
from epochmq_operator.plans.deletion import deletion_steps, finalizers, guard_step
from epochmq_operator.plans.effects import CreateEvent, Effect, EventType, PatchStatus, ReconciliationResult
from epochmq_operator.plans.hibernation import HibernationState
from epochmq_operator.plans.objects import (
    FINALIZER,
    PAUSED,
    Manifest,
    annotation,
    digest,
    is_deleting,
    metadata,
    spec_of,
    status_of,
)
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.plan_steps import (
    CREATE,
    DELETE,
    PlanProgress,
    PlanState,
    PlanStep,
    StepKind,
    advance,
    was_created,
)
from epochmq_operator.plans.progress_conditions import deletion_conditions
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.plans.replica_replacement import REPLACEMENT, ReplacementVerdict
from epochmq_operator.plans.update_gate import UpdateGate
from epochmq_operator.resources import KINDS, BrokerGroup, ControllerGroup, GroupResource

UNFINISHED_DELAY_S = 1.0
"""The delay before the next reconciliation while a plan is unfinished."""
FAULTS_MAX = 5
IDLE_DELAY_S = 10.0
"""The delay while nothing is to be done. The operator learns what replicas report only when it asks them."""
PLAN_NAMES: Mapping[StepKind, str] = {
    StepKind.GROW: "scale-up",
    StepKind.JOIN: "scale-up",
    StepKind.LEAVE: "scale-down",
    StepKind.SHRINK: "scale-down",
    StepKind.MEMBERS: "membership",
    StepKind.PEERS: "membership",
    StepKind.ADD: "membership",
    StepKind.ADMIT: "membership",
    StepKind.REMOVE: "membership",
    StepKind.FOUNDERS: "membership",
    StepKind.GUARD: "update",
    StepKind.CLAIMS: "update",
    StepKind.EXPAND: "expand-volumes",
    StepKind.REPLACE: "replace",
    StepKind.STOP: "hibernate",
    StepKind.STOPPED: "hibernate",
    StepKind.START: "resume",
    StepKind.STARTED: "resume",
    StepKind.VOLUMES: "expand-volumes",
    StepKind.HELD: "update",
    StepKind.APPROVAL: "update",
    StepKind.TURN: "update",
    StepKind.RESTART: "update",
    StepKind.RELOAD: "update",
    StepKind.CONFIGURATIONS: "update",
    StepKind.READY: "heal",
    StepKind.CONTROLLERS: "repair",
    StepKind.OBJECTS: "repair",
    StepKind.REPLICAS: "repair",
    StepKind.RESTORE: "repair",
    StepKind.CONFIRM: DELETE,
    StepKind.BROKERS: DELETE,
    StepKind.RELEASE: DELETE,
}
"""The name of a plan that begins with this step."""


def reconcile(renderer: Renderer, observed: ObservedState, now: float) -> ReconciliationResult:
    """Reconciles the observed resource. `now` is in seconds since 1970."""
    resource = observed.resource
    before = PlanState.of(status_of(resource))
    if is_deleting(resource):
        return _deleting(observed, before, now)
    group, fault = _model(resource)
    if group is None:
        return _invalid(observed, before, fault, now)
    gate = UpdateGate.of(
        resource, group.spec.update_policy, now, created=was_created(before), full=observed.updates_full
    )
    if isinstance(group, BrokerGroup):
        return _brokers(renderer, observed, group, before, gate)
    return _controllers(renderer, observed, group, before, gate)


def _brokers(
    renderer: Renderer,
    observed: ObservedState,
    group: BrokerGroup,
    before: PlanState | None,
    gate: UpdateGate,
) -> ReconciliationResult:
    observed_group = observed_broker_group(renderer, observed, group, gate)
    progress = _advanced(observed, before, broker_steps(renderer, observed, observed_group), gate)
    statistics = group_status.broker_status(
        observed_group,
        progress.target,
        _selector(observed_group.manifests, observed_group.set_name),
        status_of(observed.resource),
    )
    conditions = group_status.broker_conditions(observed_group, progress, observed.rejection, gate.now)
    verdict = None if progress.paused else observed_group.replacement
    state = observed_group.hibernation
    hibernated = state is HibernationState.HIBERNATED and progress.step is None
    return _outcome(
        observed, progress, statistics, conditions, gate.now, hibernated=hibernated, verdict=verdict
    )


def _controllers(
    renderer: Renderer,
    observed: ObservedState,
    group: ControllerGroup,
    before: PlanState | None,
    gate: UpdateGate,
) -> ReconciliationResult:
    observed_group = observed_controller_group(renderer, observed, group, gate)
    progress = _advanced(observed, before, controller_steps(renderer, observed, observed_group), gate)
    statistics = group_status.controller_status(
        observed_group,
        progress.target,
        _selector(observed_group.manifests, observed_group.set_name),
        observed.users,
        status_of(observed.resource),
    )
    conditions = group_status.controller_conditions(observed_group, progress, observed.rejection, gate.now)
    verdict = None if progress.paused else observed_group.replacement
    return _outcome(observed, progress, statistics, conditions, gate.now, verdict=verdict)


def is_paused(resource: Manifest) -> bool:
    """Whether a user paused the resource."""
    return spec_of(resource).get("paused") is True or annotation(resource, PAUSED) == "true"


def _model(resource: Manifest) -> tuple[GroupResource | None, str]:
    """The resource as the operator's model, or what is invalid: the API server's schema accepts some values
    that the model rejects, and a stored resource may be older than the schema."""
    kind = KINDS.get(str(resource.get("kind")))
    if kind is None:
        return None, f"unknown kind {resource.get('kind')}"
    shaped = {key: resource[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in resource}
    try:
        return kind.model_validate(shaped), ""
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in details[:FAULTS_MAX]]
        return None, "; ".join(lines)


def _advanced(
    observed: ObservedState, before: PlanState | None, steps: Iterable[PlanStep], gate: UpdateGate
) -> PlanProgress:
    """The progress by the first of these steps that is not done, the deletion guard first; none while
    paused."""
    resource = observed.resource
    guard = guard_step(resource, wanted=spec_of(resource).get("deletionGuard") is True)
    undone = next((one for one in itertools.chain([guard], steps) if not one.done), None)
    if is_paused(resource):
        return PlanProgress(before, None, paused=True, held=undone)
    return _next(observed, before, undone, _plan_name(undone, created=gate.created), gate.now)


def _next(
    observed: ObservedState, before: PlanState | None, undone: PlanStep | None, name: str, now: float
) -> PlanProgress:
    meta = metadata(observed.resource)
    return advance(
        before,
        undone,
        name=name,
        generation=int(meta.get("generation") or 0),
        uid=str(meta.get("uid", "")),
        now=now,
    )


def _plan_name(undone: PlanStep | None, *, created: bool) -> str:
    if undone is None:
        return ""
    if not created:
        return CREATE
    return "update" if undone.changed else PLAN_NAMES[undone.kind]


def _selector(manifests: Iterable[Manifest], stateful_set: str) -> str:
    for manifest in manifests:
        if manifest.get("kind") == "StatefulSet" and metadata(manifest).get("name") == stateful_set:
            labels = manifest["spec"]["selector"]["matchLabels"]
            return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return ""


def _outcome(
    observed: ObservedState,
    progress: PlanProgress,
    statistics: Mapping[str, Any],
    conditions: Iterable[Condition],
    now: float,
    *,
    hibernated: bool = False,
    verdict: ReplacementVerdict | None = None,
) -> ReconciliationResult:
    """The result: Events first, then the status, then the step's effects, then what ends an order. If the
    operator is killed in between, the next one finds the plan's state in the status."""
    resource = observed.resource
    old, generation = status_of(resource), int(metadata(resource).get("generation") or 0)
    found = list(conditions)
    ready = any(one.type is ConditionType.READY and one.holds for one in found)
    degraded = any(one.type is ConditionType.DEGRADED and one.holds for one in found)
    phase = group_status.phase_of(
        progress, ready=ready, degraded=degraded, now=now, paused=progress.paused, hibernated=hibernated
    )
    listed = old.get("conditions")
    made: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": str(phase),
        **statistics,
        **({} if verdict is None else {REPLACEMENT: verdict.document()}),
        "conditions": merge_conditions(listed if isinstance(listed, list) else (), found, generation, now),
    }
    result = _result(progress, made, old)
    if verdict is None:
        return result
    return ReconciliationResult((*result.effects, *verdict.effects), result.requeue_after_s)


def _result(progress: PlanProgress, made: dict[str, Any], old: Mapping[str, Any]) -> ReconciliationResult:
    """Combines Events, the status `made` with the plan's state (if it differs from the `old` one), the
    effects and what is recorded after them, and the delay."""
    if progress.state is not None:
        made["plan"] = progress.state.document()
    effects: list[Effect] = list(progress.events)
    if made != old:
        effects.append(PatchStatus(made))
    effects += progress.effects
    if progress.recorded_after:
        effects.append(PatchStatus({**made, **progress.recorded_after}))
    busy = progress.step is not None and not progress.step.blocked
    return ReconciliationResult(tuple(effects), UNFINISHED_DELAY_S if busy else IDLE_DELAY_S)


def _invalid(
    observed: ObservedState, before: PlanState | None, fault: str, now: float
) -> ReconciliationResult:
    """The result for an invalid resource: the status says what is wrong, and nothing that runs is changed."""
    old, meta = status_of(observed.resource), metadata(observed.resource)
    generation = int(meta.get("generation") or 0)
    conditions = [
        Condition(ConditionType.READY, False, "InvalidSpec", fault),
        Condition(
            ConditionType.PROGRESSING, False, "InvalidSpec", "nothing is changed until the spec is valid"
        ),
        Condition(ConditionType.DEGRADED, True, "InvalidSpec", fault),
        Condition(ConditionType.RECONCILING, False, "Stalled"),
        Condition(ConditionType.STALLED, True, "InvalidSpec", fault),
    ]
    listed = old.get("conditions")
    kept = {key: value for key, value in old.items() if key not in ("conditions", "phase")}
    made = {
        **kept,
        "observedGeneration": generation,
        "phase": str(group_status.ResourcePhase.INVALID),
        "conditions": merge_conditions(
            listed if isinstance(listed, list) else (), conditions, generation, now
        ),
    }
    if made == old:
        return ReconciliationResult((), IDLE_DELAY_S)
    key = f"{meta.get('uid')}/invalid/{generation}/{digest(fault)}"
    return ReconciliationResult(
        (CreateEvent(EventType.WARNING, "InvalidSpec", fault, key), PatchStatus(made)), IDLE_DELAY_S
    )


def _deleting(observed: ObservedState, before: PlanState | None, now: float) -> ReconciliationResult:
    """The result for a resource that is being deleted. Without the guard, the garbage collector deletes its
    objects."""
    resource = observed.resource
    if FINALIZER not in finalizers(resource):
        return ReconciliationResult((), IDLE_DELAY_S)
    guarded = spec_of(resource).get("deletionGuard") is True
    undone = next(one for one in deletion_steps(observed, guarded=guarded) if not one.done)
    progress = _next(observed, before, undone, DELETE, now)
    old, generation = status_of(resource), int(metadata(resource).get("generation") or 0)
    conditions = [group_status.progressing(progress, []), *deletion_conditions(progress)]
    written = {str(one.type) for one in conditions}
    others = [one for one in old.get("conditions") or () if one.get("type") not in written]
    made = {
        **old,
        "observedGeneration": generation,
        "phase": str(group_status.ResourcePhase.DELETING),
        "conditions": [*others, *merge_conditions(old.get("conditions") or (), conditions, generation, now)],
    }
    return _result(progress, made, old)
