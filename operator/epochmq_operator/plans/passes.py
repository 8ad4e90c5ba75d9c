"""One pass over one resource: what is so, what is wanted, and the single next safe step between them."""

# pure: data in, effects out.

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from epochmq_operator.plans import status as said
from epochmq_operator.plans.broker_steps import broker_steps, brokers_of
from epochmq_operator.plans.conditions import Condition, Type, merged
from epochmq_operator.plans.controller_steps import controller_steps, controllers_of
from epochmq_operator.plans.deletion import deletion_steps, finalizers, guard_step
from epochmq_operator.plans.effects import Effect, Emit, EventType, Pass, PatchStatus
from epochmq_operator.plans.objects import (
    FINALIZER,
    PAUSED,
    Manifest,
    annotation,
    digest,
    is_deleting,
    metadata,
)
from epochmq_operator.plans.standing import Floor
from epochmq_operator.plans.steps import DELETE, PlanState, Progress, Step, advance
from epochmq_operator.plans.world import World
from epochmq_operator.resources import KINDS, BrokerGroup, ControllerGroup, Group

SOON_S = 1.0
"""While a plan goes on."""
FAULTS_MAX = 5
LATER_S = 10.0
"""While nothing is to be done: what replicas say reaches the operator only when it asks."""
NAMES: Mapping[str, str] = {
    "grow": "scale-up",
    "join": "scale-up",
    "shrink": "scale-down",
    "members": "membership",
    "guard": "update",
    "held": "update",
    "ready": "heal",
    "controllers": "repair",
    "objects": "repair",
    "replicas": "repair",
}
"""What a plan is called that begins with such a step."""


def step(floor: Floor, world: World, now: float) -> Pass:
    """The next step for the world's resource. `now` is in seconds since 1970."""
    resource = world.resource
    before = PlanState.of(_status(resource))
    if is_deleting(resource):
        return _deleting(world, before, now)
    group, fault = _model(resource)
    if group is None:
        return _invalid(world, before, fault, now)
    created = before is not None and (before.name not in ("create", "delete") or bool(before.finished))
    if isinstance(group, BrokerGroup):
        return _brokers(floor, world, group, before, now, created=created)
    return _controllers(floor, world, group, before, now, created=created)


def _brokers(
    floor: Floor, world: World, group: BrokerGroup, before: PlanState | None, now: float, *, created: bool
) -> Pass:
    seen = brokers_of(floor, world, group, created=created)
    progress = _advanced(world, before, broker_steps(floor, world, seen), now, created=created)
    figures = said.broker_status(seen, _selector(seen.manifests, seen.set_name), _status(world.resource))
    conditions = said.broker_conditions(seen, progress, world.refusal, paused=is_paused(world.resource))
    return _outcome(world, progress, figures, conditions, now)


def _controllers(
    floor: Floor, world: World, group: ControllerGroup, before: PlanState | None, now: float, *, created: bool
) -> Pass:
    seen = controllers_of(floor, world, group, created=created)
    progress = _advanced(world, before, controller_steps(floor, world, seen), now, created=created)
    figures = said.controller_status(
        seen, _selector(seen.manifests, seen.set_name), world.users, _status(world.resource)
    )
    conditions = said.controller_conditions(seen, progress, world.refusal, paused=is_paused(world.resource))
    return _outcome(world, progress, figures, conditions, now)


def is_paused(resource: Manifest) -> bool:
    """Whether somebody asked the operator to keep its hands off."""
    return _spec(resource).get("paused") is True or annotation(resource, PAUSED) == "true"


def _spec(resource: Manifest) -> Mapping[str, Any]:
    found = resource.get("spec")
    return found if isinstance(found, Mapping) else {}


def _status(resource: Manifest) -> Mapping[str, Any]:
    found = resource.get("status")
    return found if isinstance(found, Mapping) else {}


def _model(resource: Manifest) -> tuple[Group | None, str]:
    """The resource as the operator's own model has it, or what is wrong with it: the API server's schema
    lets some things pass, and a stored resource may be older than the schema."""
    kind = KINDS.get(str(resource.get("kind")))
    if kind is None:
        return None, f"an unknown kind {resource.get('kind')}"
    shaped = {key: resource[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in resource}
    try:
        return kind.model_validate(shaped), ""
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in details[:FAULTS_MAX]]
        return None, "; ".join(lines)


def _advanced(
    world: World, before: PlanState | None, steps: Iterable[Step], now: float, *, created: bool
) -> Progress:
    """The next of these steps, after that of the deletion guard; none while paused."""
    resource = world.resource
    if is_paused(resource):
        return Progress(before, None)
    guard = guard_step(resource, wanted=_spec(resource).get("deletionGuard") is True)
    undone = next((one for one in itertools.chain([guard], steps) if not one.done), None)
    return _next(world, before, undone, _plan_name(undone, created=created), now)


def _next(world: World, before: PlanState | None, undone: Step | None, name: str, now: float) -> Progress:
    meta = metadata(world.resource)
    return advance(
        before,
        undone,
        name=name,
        generation=int(meta.get("generation") or 0),
        uid=str(meta.get("uid", "")),
        now=now,
    )


def _plan_name(undone: Step | None, *, created: bool) -> str:
    if undone is None:
        return ""
    if not created:
        return "create"
    return "update" if undone.changed else NAMES.get(undone.name.partition("-")[0], "update")


def _selector(manifests: Iterable[Manifest], stateful_set: str) -> str:
    for manifest in manifests:
        if manifest.get("kind") == "StatefulSet" and metadata(manifest).get("name") == stateful_set:
            labels = manifest["spec"]["selector"]["matchLabels"]
            return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return ""


def _outcome(
    world: World,
    progress: Progress,
    figures: Mapping[str, Any],
    conditions: Iterable[Condition],
    now: float,
) -> Pass:
    """Events first, then the status, then the step: who is killed in between finds the note and goes on."""
    resource = world.resource
    old, generation = _status(resource), int(metadata(resource).get("generation") or 0)
    found = list(conditions)
    ready = any(one.type is Type.READY and one.holds for one in found)
    paused = is_paused(resource)
    listed = old.get("conditions")
    made: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": str(said.phase_of(progress, ready=ready, paused=paused)),
        **figures,
        "conditions": merged(listed if isinstance(listed, list) else (), found, generation, now),
    }
    return _told(progress, made, old)


def _told(progress: Progress, made: dict[str, Any], old: Mapping[str, Any]) -> Pass:
    """What a pass comes to: its Events, the status `made` of it, with where the plan stands, if it differs
    from the `old` one, then what is done; and when to look again."""
    if progress.state is not None:
        made["plan"] = progress.state.document()
    effects: list[Effect] = list(progress.told)
    if made != old:
        effects.append(PatchStatus(made))
    effects += progress.effects
    busy = progress.step is not None and not progress.step.blocked
    return Pass(tuple(effects), SOON_S if busy else LATER_S)


def _invalid(world: World, before: PlanState | None, fault: str, now: float) -> Pass:
    """Nothing is done to what runs; the status says what is wrong."""
    old, meta = _status(world.resource), metadata(world.resource)
    generation = int(meta.get("generation") or 0)
    conditions = [
        Condition(Type.READY, False, "InvalidSpec", fault),
        Condition(Type.PROGRESSING, False, "InvalidSpec", "nothing is changed until the spec is valid"),
        Condition(Type.DEGRADED, True, "InvalidSpec", fault),
    ]
    listed = old.get("conditions")
    kept = {key: value for key, value in old.items() if key not in ("conditions", "phase")}
    made = {
        **kept,
        "observedGeneration": generation,
        "phase": str(said.Phase.INVALID),
        "conditions": merged(listed if isinstance(listed, list) else (), conditions, generation, now),
    }
    if made == old:
        return Pass((), LATER_S)
    key = f"{meta.get('uid')}/invalid/{generation}/{digest(fault)}"
    return Pass((Emit(EventType.WARNING, "InvalidSpec", fault, key), PatchStatus(made)), LATER_S)


def _deleting(world: World, before: PlanState | None, now: float) -> Pass:
    """A group without the guard is left to the garbage collector, which may be at it already."""
    resource = world.resource
    if FINALIZER not in finalizers(resource):
        return Pass((), LATER_S)
    guarded = _spec(resource).get("deletionGuard") is True
    undone = next(one for one in deletion_steps(world, guarded=guarded) if not one.done)
    progress = _next(world, before, undone, DELETE, now)
    old, generation = _status(resource), int(metadata(resource).get("generation") or 0)
    conditions = [said.progressing(progress, [])]
    others = [one for one in old.get("conditions") or () if one.get("type") != str(Type.PROGRESSING)]
    made = {
        **old,
        "observedGeneration": generation,
        "phase": str(said.Phase.DELETING),
        "conditions": [*others, *merged(old.get("conditions") or (), conditions, generation, now)],
    }
    return _told(progress, made, old)
