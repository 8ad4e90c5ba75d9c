"""Simulates an API server with one Topic or User, and broker groups that take changes as RocketMQ's brokers
do. The operator can be killed before any of its writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from epochmq_operator.entities.broker_changes import (
    BrokerUser,
    Change,
    FoundEntity,
    PutPermissions,
    PutTopic,
    PutUser,
    RemovePermission,
    RemoveTopic,
    RemoveUser,
)
from epochmq_operator.entities.entity_reconciliation import (
    ObservedEntity,
    ObservedGroup,
    conclude,
    entity_of,
    groups_to_ask,
    invalid,
    older_resources,
    plan_changes,
    prepare,
)
from epochmq_operator.entities.masters import Problem
from epochmq_operator.entities.user_changes import wanted_user
from epochmq_operator.plans.effects import CreateEvent, Effect, PatchStatus, SetFinalizers
from epochmq_operator.resources.entities import UserResource
from epochmq_protocol.topics import TopicConfig

NOW = 1_800_000_000.0
ROUNDS_MAX = 50


class KilledError(Exception):
    """The operator was killed."""


@dataclass
class FakeBrokers:
    """`groups` has, by broker group, its topic or user, None if it has none. `problems` are groups whose
    master cannot be asked; `refusal` is what brokers respond to changes. `kill_before` is the number of the
    write before which the operator is killed."""

    resource: dict[str, Any] | None
    groups: dict[str, FoundEntity | None] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    refusal: str = ""
    password: str = "secret"
    secret_version: str = "1"
    others: list[dict[str, Any]] = field(default_factory=list)
    events: dict[str, CreateEvent] = field(default_factory=dict)
    changes: list[tuple[str, Change]] = field(default_factory=list)
    writes: int = 0
    kill_before: int | None = None

    @property
    def status(self) -> dict[str, Any]:
        """The status of the resource."""
        assert self.resource is not None
        return self.resource.get("status") or {}

    @property
    def ready(self) -> dict[str, Any]:
        """The condition Ready."""
        return self.condition("Ready")

    def condition(self, kind: str) -> dict[str, Any]:
        """One of the conditions."""
        (found,) = (one for one in self.status["conditions"] if one["type"] == kind)
        return found  # type: ignore[no-any-return]

    def reasons(self) -> list[str]:
        """The reasons of the Events, in order."""
        return [one.reason for one in self.events.values()]

    def edit(self, **spec: Any) -> None:
        """kubectl apply with these fields."""
        assert self.resource is not None
        self.resource["spec"] = {**self.resource["spec"], **spec}
        self.resource["metadata"]["generation"] += 1

    def delete(self) -> None:
        """kubectl delete."""
        assert self.resource is not None
        if self.resource["metadata"].get("finalizers"):
            self.resource["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        else:
            self.resource = None

    def settle(self) -> None:
        """Reconciles until nothing is written."""
        for _ in range(ROUNDS_MAX):
            before = self.writes
            self.reconcile()
            if self.writes == before:
                return
        raise AssertionError("the operator does not come to rest")

    def reconcile(self) -> None:
        """One reconciliation, as `kube.entity_reconciler` runs it."""
        if self.resource is None:
            return
        entity = entity_of(self.resource)
        if isinstance(entity, str):
            self._carry_out(invalid(self.resource, entity, NOW).effects)
            return
        first = prepare(self.resource, entity, NOW)
        if first is not None:
            self._carry_out(first.effects)
            return
        observed = ObservedEntity(
            self.resource,
            entity,
            {name: self._observe(name) for name in groups_to_ask(self.resource, entity)},
            older=older_resources(self.resource, entity, self.others),
        )
        if isinstance(entity, UserResource):
            wanted = wanted_user(entity, self.password)
            observed = replace(observed, wanted_user=wanted, secret_version=self.secret_version)
        plan = plan_changes(observed)
        rejections: dict[str, str] = {}
        for name, changes in plan.items():
            for change in changes.changes:
                if self.refusal:
                    rejections[name] = self.refusal
                    break
                self._write()
                self.changes.append((name, change))
                self.groups[name] = _changed(self.groups[name], change)
        self._carry_out(conclude(observed, plan, rejections, NOW).effects)

    def _observe(self, name: str) -> ObservedGroup:
        if name not in self.groups:
            return ObservedGroup(exists=False)
        if name in self.problems:
            return ObservedGroup(problem=self.problems[name])
        return ObservedGroup(found=self.groups[name])

    def _write(self) -> None:
        if self.writes == self.kill_before:
            self.kill_before = None
            raise KilledError
        self.writes += 1

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            assert self.resource is not None
            if isinstance(effect, CreateEvent):
                if effect.key not in self.events:
                    self._write()
                    self.events[effect.key] = effect
                continue
            self._write()
            if isinstance(effect, PatchStatus):
                self.resource["status"] = dict(effect.status)
            elif isinstance(effect, SetFinalizers):
                self.resource["metadata"]["finalizers"] = list(effect.finalizers)
                if not effect.finalizers and self.resource["metadata"].get("deletionTimestamp"):
                    self.resource = None
                    return


def _changed(found: FoundEntity | None, change: Change) -> FoundEntity | None:
    match change:
        case PutTopic():
            assert found is None or isinstance(found, TopicConfig)
            old = {} if found is None else found.attributes
            new = {key.removeprefix("+"): value for key, value in change.config.attributes.items()}
            return msgspec.structs.replace(change.config, attributes={**old, **new})
        case RemoveTopic() | RemoveUser():
            return None
        case PutUser():
            assert change.exists == (found is not None)
            kept = found.permissions if isinstance(found, BrokerUser) else ()
            return replace(change.user, permissions=kept)
        case PutPermissions():
            assert isinstance(found, BrokerUser)
            assert change.exists == bool(found.permissions)
            new_keys = {(one.policy_type, one.resource) for one in change.permissions}
            stay = [one for one in found.permissions if (one.policy_type, one.resource) not in new_keys]
            return replace(found, permissions=(*stay, *change.permissions))
        case RemovePermission():
            assert isinstance(found, BrokerUser)
            gone = change.policy_type, change.resource
            stay = [one for one in found.permissions if (one.policy_type, one.resource) != gone]
            assert len(stay) < len(found.permissions)
            return replace(found, permissions=tuple(stay))


def resource(kind: str, name: str = "payments", **spec: Any) -> dict[str, Any]:
    """A resource as a user creates it, and as the API server stores it."""
    return {
        "apiVersion": "epochmq.io/v1alpha1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "trade",
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"brokerGroups": ["orders"], **spec},
    }


def topic(**spec: Any) -> dict[str, Any]:
    """A Topic."""
    return resource("Topic", **spec)


def user(**spec: Any) -> dict[str, Any]:
    """A User."""
    return resource("User", **{"passwordSecret": {"name": "payments"}, **spec})
