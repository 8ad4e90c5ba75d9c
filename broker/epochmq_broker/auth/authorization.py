# pure: an ACL and a request in, a decision out
"""Decides whether a user may do what a request asks for (RocketMQ's UserAuthorizationHandler and
AclAuthorizationHandler).

Super users may do everything. For others, the entries that match the request are sorted, and the first one
decides: first those of the custom policy, and of the default policy only if none of these matches. A request
that no entry matches is denied.

With aclStrict the entry with the most specific resource decides: a name before a prefix, a longer prefix
before a shorter one, and a denial before a permission. RocketMQ's order is not consistent, so that a prefix
that allows may come before a name that denies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from epochmq_broker.auth.acls import (
    Acl,
    Action,
    PolicyDecision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourcePattern,
    ResourceType,
)

T = TypeVar("T")

_VAGUENESS: Final = {ResourcePattern.LITERAL: 0, ResourcePattern.PREFIXED: 1, ResourcePattern.ANY: 2}

FAILED = "Authorization failed. Please verify your access rights and try again."
"""RocketMQ's remark for a request without a user."""


class RequestedAccess(msgspec.Struct, frozen=True):
    """What a request asks for: one of the actions on the resource. (DefaultAuthorizationContext; subject and
    address are those of the request.)"""

    resource: Resource
    actions: tuple[Action, ...]


def reason_for_denial(
    acl: Acl | None, wanted: RequestedAccess, source_ip: str, *, strict: bool = False
) -> str | None:
    """Why a normal user with this ACL may not have the access, in RocketMQ's words; None if the user may."""
    entry = None if acl is None else deciding_entry(acl, wanted, source_ip, strict=strict)
    if entry is None:
        return "no matched policies."
    return "the decision is deny." if entry.decision is PolicyDecision.DENY else None


def denial_remark(username: str, wanted: RequestedAccess, source_ip: str, reason: str) -> str:
    """RocketMQ's remark for a denied request."""
    return f"User:{username} has no permission to access {wanted.resource.key} from {source_ip}, {reason}"


def deciding_entry(
    acl: Acl, wanted: RequestedAccess, source_ip: str, *, strict: bool = False
) -> PolicyEntry | None:
    """The entry that decides about the access; None if no entry matches."""
    for policy_type in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        policy = acl.policy(policy_type)
        if policy is None:
            continue
        found = [one for one in policy.entries if one.matches(wanted.resource, wanted.actions, source_ip)]
        if found:
            return min(found, key=_vagueness) if strict else _sorted_as_java(found, _compare)[0]
    return None


def _vagueness(entry: PolicyEntry) -> tuple[bool, int, int, bool]:
    """Sorts the entry first that decides with aclStrict."""
    resource = entry.resource
    return (
        resource.type is ResourceType.ANY,
        _VAGUENESS[resource.pattern],
        -len(resource.name or ""),
        entry.decision is not PolicyDecision.DENY,
    )


def _compare(one: PolicyEntry, other: PolicyEntry) -> int:
    """RocketMQ's order of entries, which is not consistent: between a literal and a prefixed resource, each
    is before the other. The result of a sort then depends on the order of comparisons."""
    result = _compare_resources(one.resource, other.resource)
    if result:
        return result
    if one.decision is PolicyDecision.DENY:
        return 1
    return -1 if other.decision is PolicyDecision.DENY else 0


def _compare_resources(one: Resource, other: Resource) -> int:
    if one.type is not other.type:
        if other.type is ResourceType.ANY:
            return -1
        return 1 if one.type is ResourceType.ANY else 0
    if one.pattern is not other.pattern:
        return 0 if one.pattern is ResourcePattern.ANY else -1
    if one.pattern is ResourcePattern.PREFIXED:
        lengths = len(one.name or ""), len(other.name or "")
        return (lengths[0] > lengths[1]) - (lengths[0] < lengths[1])
    return 0


def _sorted_as_java(items: Sequence[T], compare: Callable[[T, T], int]) -> list[T]:
    """Sorts with the comparisons of Java's sort of up to 31 elements, in their order: extend the first run,
    reverse it if it descends, then insert the others by binary search. (For more elements Java merges runs;
    with an inconsistent order the result may then differ.)"""
    result = list(items)
    if len(result) < 2:
        return result
    run = 2
    if compare(result[1], result[0]) < 0:
        while run < len(result) and compare(result[run], result[run - 1]) < 0:
            run += 1
        result[:run] = result[:run][::-1]
    else:
        while run < len(result) and compare(result[run], result[run - 1]) >= 0:
            run += 1
    for start in range(run, len(result)):
        pivot = result.pop(start)
        low, high = 0, start
        while low < high:
            middle = (low + high) // 2
            if compare(pivot, result[middle]) < 0:
                high = middle
            else:
                low = middle + 1
        result.insert(low, pivot)
    return result
