"""Computes how a user of a broker group and its ACL differ from the resource, and the changes that make them
equal. ACL entries that the resource does not list are removed. No text shows a password."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from epochmq_operator.entities.broker_changes import (
    BrokerUser,
    Change,
    Changes,
    Permission,
    PutPermissions,
    PutUser,
    RemovePermission,
)
from epochmq_operator.resources.entities import UserResource


def wanted_user(user: UserResource, password: str) -> BrokerUser:
    """The user as the brokers are to have it."""
    return BrokerUser(
        username=user.broker_side_name,
        password=password,
        type=user.spec.type,
        enabled=user.spec.enabled,
        permissions=tuple(
            Permission(one.resource, frozenset(one.actions), tuple(one.source_ips), one.decision)
            for one in user.spec.acl
        ),
    )


def user_changes(wanted: BrokerUser, found: BrokerUser | None) -> Changes:
    """The changes to the user as found, None if the broker group does not have it."""
    changes: list[Change] = []
    differences: list[str] = []
    if found is None:
        changes.append(PutUser(wanted, exists=False))
        differences.append("the user does not exist")
    elif unequal := _fields_that_differ(wanted, found):
        changes.append(PutUser(wanted, exists=True))
        differences += unequal
    present = found.permissions if found is not None else ()
    missing = tuple(one for one in wanted.permissions if one not in present)
    if missing:
        changes.append(PutPermissions(wanted.username, missing, exists=bool(present)))
        if found is not None:
            differences += [_missing(one, present) for one in missing]
    kept = {(one.policy_type, one.resource) for one in wanted.permissions}
    for one in present:
        if (one.policy_type, one.resource) not in kept:
            changes.append(RemovePermission(wanted.username, one.policy_type, one.resource))
            differences.append(f"the ACL has an entry for {one.resource}, expected none")
    return Changes(tuple(changes), tuple(differences))


def _fields_that_differ(wanted: BrokerUser, found: BrokerUser) -> list[str]:
    lines = []
    if found.password != wanted.password:
        lines.append("the password is not the Secret's")
    if found.type != wanted.type:
        lines.append(f"type is {found.type}, expected {wanted.type}")
    if found.enabled != wanted.enabled:
        lines.append(f"enabled is {_word(found.enabled)}, expected {_word(wanted.enabled)}")
    return lines


def _word(value: bool) -> str:
    return str(value).lower()


def _missing(wanted: Permission, present: Iterable[Permission]) -> str:
    """What is different about the entry for a resource."""
    for one in present:
        if replace(one, actions=frozenset(), source_ips=(), decision="") == replace(
            wanted, actions=frozenset(), source_ips=(), decision=""
        ):
            return f"the ACL's entry for {one.resource} is {_entry(one)}, expected {_entry(wanted)}"
    return f"the ACL has no entry for {wanted.resource}, expected {_entry(wanted)}"


def _entry(one: Permission) -> str:
    addresses = f" from {', '.join(one.source_ips)}" if one.source_ips else ""
    return f"{one.decision} {', '.join(sorted(one.actions))}{addresses}"
