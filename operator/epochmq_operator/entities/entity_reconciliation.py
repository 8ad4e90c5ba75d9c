"""Decides what to do about one `Topic` or `User`: which changes its broker groups need, and what its status
says.

A reconciliation has three parts. The driver asks the brokers before `plan_changes`, and carries the changes
out before `conclude`.

| part | what it decides |
|---|---|
| `prepare` | what comes before the first change in a broker: the finalizer, and the groups in the status |
| `plan_changes` | the changes in each group |
| `conclude` | status and Events, from what the brokers responded |

The state is the brokers'. The status records which groups may have the entity, so that the entity is deleted
from a group that the resource no longer names, and which generation was applied there: a difference under
the same generation is drift."""

# pure: data in, effects out.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from epochmq_operator.entities.broker_changes import BrokerUser, Changes, FoundEntity, RemoveTopic, RemoveUser
from epochmq_operator.entities.entity_status import EntityRecord, GroupRecord, GroupState
from epochmq_operator.entities.masters import Problem
from epochmq_operator.entities.topic_changes import topic_changes
from epochmq_operator.entities.user_changes import user_changes
from epochmq_operator.plans.deletion import finalizers
from epochmq_operator.plans.effects import (
    CreateEvent,
    Effect,
    EventType,
    PatchStatus,
    ReconciliationResult,
    SetFinalizers,
)
from epochmq_operator.plans.objects import Manifest, digest, is_deleting, metadata, spec_of, status_of
from epochmq_operator.resources import documents
from epochmq_operator.resources.entities import ENTITY_KINDS, USER_KIND, DeletionPolicy, Entity, TopicResource
from epochmq_protocol.topics import TopicConfig

ENTITY_FINALIZER = "epochmq.io/delete-in-brokers"
"""The finalizer of a Topic or User with `deletionPolicy: Delete`: it keeps the resource until the entity is
deleted in the brokers."""
SOON_S, LATER_S = 2.0, 15.0
NAMING_FIELDS = ("topicName", "username", "brokerGroups", "deletionPolicy")
"""The fields of a spec that the deletion of an entity needs."""


def model_of(resource: Manifest) -> Entity | str:
    """The resource as the operator's model, or what is invalid."""
    return documents.model_of(ENTITY_KINDS[str(resource.get("kind"))], resource)


def entity_of(resource: Manifest) -> Entity | str:
    """The resource as `model_of` has it. Of an invalid one that is being deleted, the model has only what
    names the entity and its broker groups: the other fields do not matter any more."""
    entity = model_of(resource)
    if isinstance(entity, str) and is_deleting(resource):
        named = {key: value for key, value in spec_of(resource).items() if key in NAMING_FIELDS}
        if resource.get("kind") == USER_KIND:
            named["passwordSecret"] = {"name": "unused", "key": "unused"}
        recorded = {"brokerGroups": list(EntityRecord.of(status_of(resource)).groups)}
        for spec in (named, named | recorded):
            reduced = model_of({**resource, "spec": spec})
            if not isinstance(reduced, str):
                return reduced
    return entity


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """An entity in one broker group. `exists`: there is such a BrokerGroup. `problem`: why its master could
    not be asked; then `found` says nothing."""

    exists: bool = True
    problem: Problem | None = None
    found: FoundEntity | None = None


@dataclass(frozen=True, slots=True)
class ObservedEntity:
    """The observed state of an entity. `groups` has every group that `groups_to_ask` named. `wanted_user` is
    the desired user; None if the resource is a Topic, or if the password could not be read, for which
    `problem` gives the reason. `secret_version` is the password Secret's."""

    resource: Manifest
    entity: Entity
    groups: Mapping[str, ObservedGroup] = field(default_factory=dict)
    wanted_user: BrokerUser | None = None
    secret_version: str = ""
    problem: Problem | None = None
    older: Mapping[str, str] = field(default_factory=dict)
    """By group, the older resource that describes the same entity."""

    @property
    def applied(self) -> str:
        """What a group has when it is as desired now."""
        generation = str(metadata(self.resource).get("generation") or 0)
        return f"{generation}/{self.secret_version}" if self.secret_version else generation


def groups_to_ask(resource: Manifest, entity: Entity) -> tuple[str, ...]:
    """The groups that have the entity or may have it."""
    return tuple(dict.fromkeys((*entity.spec.broker_groups, *EntityRecord.of(status_of(resource)).groups)))


def older_resources(resource: Manifest, entity: Entity, others: Iterable[Manifest]) -> dict[str, str]:
    """By group, the name of an older resource for the same entity. `others` are the resources of the kind in
    the namespace."""
    found: dict[str, str] = {}
    for other in sorted(others, key=_age):
        if _age(other) >= _age(resource) or is_deleting(other):
            continue
        model = model_of(other)
        if isinstance(model, str) or model.broker_side_name != entity.broker_side_name:
            continue
        for group in model.spec.broker_groups:
            found.setdefault(group, str(metadata(other).get("name")))
    return found


def _age(resource: Manifest) -> tuple[str, str]:
    meta = metadata(resource)
    return str(meta.get("creationTimestamp", "")), str(meta.get("name", ""))


def prepare(resource: Manifest, entity: Entity, now: float) -> ReconciliationResult | None:
    """What must be recorded before a broker is asked or changed; None if nothing."""
    present = finalizers(resource)
    if is_deleting(resource):
        if ENTITY_FINALIZER not in present:
            return ReconciliationResult((), LATER_S)
        if entity.spec.deletion_policy is DeletionPolicy.RETAIN:
            return ReconciliationResult((_without_finalizer(resource),), LATER_S)
        return None
    effects: list[Effect] = []
    record = EntityRecord.of(status_of(resource))
    missing = [name for name in entity.spec.broker_groups if name not in record.groups]
    if missing:
        for name in missing:
            record.groups[name] = GroupRecord(name)
        effects.append(PatchStatus(record.status(resource, entity, now)))
    wanted = entity.spec.deletion_policy is DeletionPolicy.DELETE
    if wanted != (ENTITY_FINALIZER in present):
        version = str(metadata(resource).get("resourceVersion", ""))
        effects.append(
            SetFinalizers((*present, ENTITY_FINALIZER), version) if wanted else _without_finalizer(resource)
        )
    return ReconciliationResult(tuple(effects), 0.1) if effects else None


def _without_finalizer(resource: Manifest) -> SetFinalizers:
    rest = tuple(one for one in finalizers(resource) if one != ENTITY_FINALIZER)
    return SetFinalizers(rest, str(metadata(resource).get("resourceVersion", "")))


def plan_changes(observed: ObservedEntity) -> dict[str, Changes]:
    """The changes that each group needs. Groups that cannot be changed now are left out; `conclude` says
    why."""
    plan: dict[str, Changes] = {}
    for name, group in observed.groups.items():
        if not group.exists or group.problem is not None or name in observed.older:
            continue
        if is_leaving(observed, name):
            if group.found is not None and observed.entity.spec.deletion_policy is DeletionPolicy.DELETE:
                plan[name] = _removal(observed.entity)
        elif isinstance(observed.entity, TopicResource):
            assert group.found is None or isinstance(group.found, TopicConfig)
            plan[name] = topic_changes(observed.entity, group.found)
        elif observed.wanted_user is not None:
            assert group.found is None or isinstance(group.found, BrokerUser)
            plan[name] = user_changes(observed.wanted_user, group.found)
    return plan


def is_leaving(observed: ObservedEntity, group: str) -> bool:
    """Whether the resource is being deleted, or no longer names the group."""
    return is_deleting(observed.resource) or group not in observed.entity.spec.broker_groups


def _removal(entity: Entity) -> Changes:
    name = entity.broker_side_name
    return Changes(
        (RemoveTopic(name) if isinstance(entity, TopicResource) else RemoveUser(name),),
        ("the resource was deleted",),
    )


def conclude(
    observed: ObservedEntity, plan: Mapping[str, Changes], rejections: Mapping[str, str], now: float
) -> ReconciliationResult:
    """The status and the Events after the changes were sent. `rejections` says, by group, why a broker
    rejected one of them; the following changes of that group were not sent."""
    record = EntityRecord.of(status_of(observed.resource))
    events: list[CreateEvent] = []
    for name in observed.groups:
        before = record.groups.pop(name, None) or GroupRecord(name)
        changes = plan.get(name)
        problem = _problem(observed, name, rejections)
        if is_leaving(observed, name):
            after, event = _left(observed, before, changes, problem)
        elif problem is not None:
            after, event = _failed(observed, before, problem)
        else:
            after, event = _synced(observed, before, changes or Changes())
        if after is not None:
            record.groups[name] = after
        if event is not None:
            events.append(event)
    effects: list[Effect] = list(events)
    if is_deleting(observed.resource) and not record.groups:
        return ReconciliationResult((*effects, _without_finalizer(observed.resource)), LATER_S)
    status = record.status(observed.resource, observed.entity, now)
    if status != status_of(observed.resource):
        effects.append(PatchStatus(status))
    return ReconciliationResult(tuple(effects), LATER_S if record.all_synced and not events else SOON_S)


def _problem(observed: ObservedEntity, name: str, rejections: Mapping[str, str]) -> Problem | None:
    group = observed.groups[name]
    if name in observed.older:
        kind = str(observed.resource.get("kind"))
        message = (
            f"{kind} {observed.older[name]} describes {observed.entity.broker_side_name}, too: delete one"
        )
        return Problem("Conflict", message)
    if not group.exists:
        return Problem("GroupMissing", f"there is no BrokerGroup {name} in this namespace")
    if name in rejections:
        return Problem("Rejected", rejections[name])
    if group.problem is not None:
        return group.problem
    return None if is_leaving(observed, name) else observed.problem


def _left(
    observed: ObservedEntity, before: GroupRecord, changes: Changes | None, problem: Problem | None
) -> tuple[GroupRecord | None, CreateEvent | None]:
    """A group that is to have the entity no more. None when nothing is left to do."""
    delete = observed.entity.spec.deletion_policy is DeletionPolicy.DELETE
    group = observed.groups[before.name]
    if not delete or not group.exists or before.name in observed.older:
        return None, None
    if problem is not None:
        advice = "; to leave it in the brokers, set deletionPolicy to Retain"
        return before.failed(GroupState.LEAVING, problem.reason, problem.message + advice), None
    if changes is None:
        return None, None
    message = f"deleted {_named(observed)} in {before.name}"
    return None, _event(observed, EventType.NORMAL, "Deleted", message, f"{before.name}/deleted")


def _failed(
    observed: ObservedEntity, before: GroupRecord, problem: Problem
) -> tuple[GroupRecord, CreateEvent | None]:
    state = GroupState.FAILED if problem.reason in ("Rejected", "Conflict") else GroupState.PENDING
    after = before.failed(state, problem.reason, problem.message)
    if state is GroupState.PENDING or (after.reason, after.message) == (before.reason, before.message):
        return after, None
    message = f"{before.name}: {problem.message}"
    key = f"{before.name}/{problem.reason}/{digest([problem.message, observed.applied])}"
    return after, _event(observed, EventType.WARNING, problem.reason, message, key)


def _synced(
    observed: ObservedEntity, before: GroupRecord, changes: Changes
) -> tuple[GroupRecord, CreateEvent | None]:
    """A group that is as desired now, after `changes`."""
    name, what = before.name, f"{_named(observed)} in {before.name}"
    differences = "; ".join(changes.differences)
    if changes.changes and before.applied == observed.applied:
        after = before.drifted(differences)
        message = f"{what} was changed in the broker, and the operator reverted it: {differences}"
        key = f"{name}/drift/{after.drifts}"
        return after, _event(observed, EventType.WARNING, "DriftReverted", message, key)
    after = before.synced(observed.applied)
    key = f"{name}/{observed.applied}"
    if not before.applied and observed.groups[name].found is not None:
        message = f"adopted the existing {what}" + (f": {differences}" if differences else "")
        return after, _event(observed, EventType.NORMAL, "Adopted", message, key)
    if not changes.changes:
        return after, None
    reason = "Created" if observed.groups[name].found is None else "Changed"
    message = f"created {what}" if reason == "Created" else f"changed {what}: {differences}"
    return after, _event(observed, EventType.NORMAL, reason, message, key)


def _named(observed: ObservedEntity) -> str:
    kind = "topic" if isinstance(observed.entity, TopicResource) else "user"
    return f"{kind} {observed.entity.broker_side_name}"


def _event(observed: ObservedEntity, kind: EventType, reason: str, message: str, key: str) -> CreateEvent:
    return CreateEvent(kind, reason, message, f"{metadata(observed.resource).get('uid')}/{key}")


def invalid(resource: Manifest, fault: str, now: float) -> ReconciliationResult:
    """The result for a resource that passes the schema and is still invalid. One that is being deleted loses
    its finalizer: the operator cannot tell what it is in the brokers."""
    if is_deleting(resource):
        return _released(resource, fault)
    status = EntityRecord.of(status_of(resource)).invalid_status(resource, fault, now)
    if status == status_of(resource):
        return ReconciliationResult((), LATER_S)
    key = f"{metadata(resource).get('uid')}/invalid/{digest(fault)}"
    event = CreateEvent(EventType.WARNING, "InvalidSpec", fault, key)
    return ReconciliationResult((event, PatchStatus(status)), LATER_S)


def _released(resource: Manifest, fault: str) -> ReconciliationResult:
    if ENTITY_FINALIZER not in finalizers(resource):
        return ReconciliationResult((), LATER_S)
    message = f"deleted the resource alone, because it is invalid: {fault}; see what the brokers still have"
    key = f"{metadata(resource).get('uid')}/released/{digest(fault)}"
    event = CreateEvent(EventType.WARNING, "LeftInBrokers", message, key)
    return ReconciliationResult((event, _without_finalizer(resource)), LATER_S)
