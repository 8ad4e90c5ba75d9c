# pure: values
"""Declares the access control lists: which subject may do which actions on which resources, from which
addresses (RocketMQ's Acl, Policy, PolicyEntry and Resource).

An ACL has at most one policy of each type. A policy has one entry for each resource. A resource is written as
`Topic:orders`, `Topic:orders*` (a prefix), `Topic:*` or `*`.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import Final

import msgspec

from epochmq_broker.auth.address_ranges import is_in_range
from epochmq_protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from epochmq_protocol.steps import finish
from epochmq_protocol.topics import RETRY_GROUP_TOPIC_PREFIX, is_retry_topic

ENTRIES_AT_A_TIME: Final = 50
"""Entries that are checked or merged in one step: about 0.1 ms."""
SUBJECT_PREFIX: Final = "User:"
"""Subjects are users: `User:alice`."""


class Action(Enum):
    """What a request does. An entry with ALL allows or denies every action; ANY is not for entries."""

    UNKNOWN = "Unknown"
    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class ResourceType(Enum):
    """What kind of object a resource is."""

    UNKNOWN = "Unknown"
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class ResourcePattern(Enum):
    """How the name of a resource is compared."""

    ANY = "ANY"
    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class PolicyDecision(Enum):
    """The effect of an entry."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(Enum):
    """The default policy decides only where the custom policy has no matching entry."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


_RESOURCE_TYPES: Final = {one.value.lower(): one for one in ResourceType}
_ACTIONS: Final = {one.value.lower(): one for one in Action}
_DECISIONS: Final = {one.value.lower(): one for one in PolicyDecision}


class Resource(msgspec.Struct, frozen=True):
    """One object, or all whose names follow the pattern. Without a name, a literal resource matches nothing
    that has one."""

    type: ResourceType
    name: str | None = None
    pattern: ResourcePattern = ResourcePattern.LITERAL

    @property
    def key(self) -> str:
        """The resource as text. A missing name reads `null`, as in RocketMQ's remarks."""
        if self.type is ResourceType.ANY:
            return "*"
        name = "null" if self.name is None else self.name
        shown = {ResourcePattern.ANY: "*", ResourcePattern.PREFIXED: f"{name}*"}.get(self.pattern, name)
        return f"{self.type.value}:{shown}"

    def matches(self, other: Resource) -> bool:
        """Whether an entry for this resource is about the other one."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not other.type:
            return False
        if self.pattern is ResourcePattern.ANY:
            return True
        if self.pattern is ResourcePattern.LITERAL:
            return self.name == other.name
        return other.name is not None and other.name.startswith(self.name or "")


def topic_resource(name: str | None) -> Resource:
    """The topic of this name."""
    return Resource(ResourceType.TOPIC, name)


def group_resource(name: str | None) -> Resource:
    """The group of this name, or of this retry topic."""
    if name is not None and is_retry_topic(name):
        name = name[len(RETRY_GROUP_TOPIC_PREFIX) :]
    return Resource(ResourceType.GROUP, name)


def parse_resource(key: str | None) -> Resource | None:
    """The resource that the text names; None if it names none."""
    if not key or key.isspace():
        return None
    if key == "*":
        return Resource(ResourceType.ANY, None, ResourcePattern.ANY)
    kind, _, name = key.partition(":")
    resource_type = _RESOURCE_TYPES.get(kind.lower())
    if resource_type is None:
        return None
    if name == "*":
        return Resource(resource_type, None, ResourcePattern.ANY)
    if name.endswith("*"):
        return Resource(resource_type, name[: name.index("*")], ResourcePattern.PREFIXED)
    return Resource(resource_type, name)


def parse_action(name: str) -> Action | None:
    """The action of this name in any case; None for another name."""
    return _ACTIONS.get(name.lower())


def parse_decision(name: str | None) -> PolicyDecision | None:
    """The decision of this name in any case; None for another name."""
    return _DECISIONS.get((name or "").lower())


def parse_policy_type(name: str | None) -> PolicyType | None:
    """The policy type of this name in any case; None for another name."""
    return next((one for one in PolicyType if one.value.lower() == (name or "").lower()), None)


def parse_subject(key: str | None) -> str | None:
    """The username of a subject `User:name`; None if the text names no user."""
    kind, _, name = (key or "").partition(":")
    return name if kind.lower() == "user" else None


class PolicyEntry(msgspec.Struct, frozen=True):
    """Allows or denies actions on a resource, to requests from these addresses; without any, from all."""

    resource: Resource
    actions: tuple[Action, ...]
    source_ips: tuple[str, ...]
    decision: PolicyDecision

    def matches(self, resource: Resource, actions: tuple[Action, ...], source_ip: str) -> bool:
        """Whether the entry is about a request for one of these actions on this resource."""
        return (
            self.resource.matches(resource)
            and self._has_action(actions)
            and (not self.source_ips or any(is_in_range(source_ip, one) for one in self.source_ips))
        )

    def _has_action(self, actions: tuple[Action, ...]) -> bool:
        if Action.ANY in actions or Action.ALL in self.actions:
            return bool(self.actions)
        return any(action in self.actions for action in actions)

    def info(self) -> PolicyEntryInfo:
        """The entry as requests carry it."""
        return PolicyEntryInfo(
            resource=self.resource.key,
            actions=[action.value for action in self.actions] or None,
            source_ips=list(self.source_ips) or None,
            decision=self.decision.value,
        )


class Policy(msgspec.Struct, frozen=True):
    """The entries of one policy type."""

    type: PolicyType
    entries: tuple[PolicyEntry, ...]

    def merge(self, newer: Policy) -> Policy:
        """This policy with the entries of a newer one: an entry for the same resource is replaced."""
        return finish(self.merge_steps(newer))

    def merge_steps(self, newer: Policy) -> Generator[None, None, Policy]:
        """`merge` in steps."""
        entries = list(self.entries)
        places: dict[Resource, int] = {}
        for number, entry in enumerate(entries):
            places.setdefault(entry.resource, number)
            if number % ENTRIES_AT_A_TIME == 0:
                yield
        for number, entry in enumerate(newer.entries):
            place = places.get(entry.resource)
            if place is None:
                places[entry.resource] = len(entries)
                entries.append(entry)
            else:
                entries[place] = msgspec.structs.replace(entry, resource=entries[place].resource)
            if number % ENTRIES_AT_A_TIME == 0:
                yield
        return Policy(self.type, tuple(entries))

    def without(self, resource: Resource) -> Policy:
        """This policy without its first entry for the resource."""
        place = next((n for n, old in enumerate(self.entries) if old.resource == resource), None)
        if place is None:
            return self
        return Policy(self.type, self.entries[:place] + self.entries[place + 1 :])


class Acl(msgspec.Struct, frozen=True):
    """The policies of one user."""

    username: str
    policies: tuple[Policy, ...]

    @property
    def subject(self) -> str:
        """The user as a subject, `User:alice`."""
        return SUBJECT_PREFIX + self.username

    def policy(self, policy_type: PolicyType) -> Policy | None:
        """The first policy of a type."""
        return next((policy for policy in self.policies if policy.type is policy_type), None)

    def merge_steps(self, policies: tuple[Policy, ...]) -> Generator[None, None, Acl]:
        """This ACL with newer policies, in steps: their entries replace those for the same resources."""
        merged = list(self.policies)
        for newer in policies:
            place = next((n for n, old in enumerate(merged) if old.type is newer.type), None)
            if place is None:
                merged.append(newer)
            else:
                merged[place] = yield from merged[place].merge_steps(newer)
        return Acl(self.username, tuple(merged))

    def without(self, policy_type: PolicyType, resource: Resource) -> Acl:
        """This ACL without the entry for the resource, and without the policy if it was the last entry."""
        policy = self.policy(policy_type)
        if policy is None:
            return self
        left = policy.without(resource)
        changed = [left if one is policy else one for one in self.policies]
        return Acl(self.username, tuple(one for one in changed if one is not left or left.entries))

    def without_policy(self, policy_type: PolicyType) -> Acl:
        """This ACL without the policies of a type."""
        return Acl(self.username, tuple(one for one in self.policies if one.type is not policy_type))

    def info(self) -> AclInfo:
        """The ACL as requests carry it."""
        policies = [
            PolicyInfo(policy_type=policy.type.value, entries=[entry.info() for entry in policy.entries])
            for policy in self.policies
        ]
        return AclInfo(subject=self.subject, policies=policies or None)
