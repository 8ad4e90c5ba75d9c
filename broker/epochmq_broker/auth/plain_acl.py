# pure: the content of RocketMQ 4's files in, users and ACLs out
"""Converts the accounts of RocketMQ 4's `plain_acl.yml` to users and ACLs (RocketMQ's AuthMigrator).

An account whose access key is the name of an existing user is left out, so a restart changes nothing.
The lists of addresses without authentication (`globalWhiteRemoteAddresses`, `whiteRemoteAddress`) have no
counterpart; RocketMQ drops them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from epochmq_broker.auth.acls import (
    Acl,
    Action,
    Policy,
    PolicyDecision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourcePattern,
    ResourceType,
    group_resource,
    topic_resource,
)
from epochmq_broker.auth.users import User, UserStatus, UserType, is_blank

_ACTIONS = {
    "PUB": (Action.PUB,),
    "SUB": (Action.SUB,),
    "PUB|SUB": (Action.PUB, Action.SUB),
    "SUB|PUB": (Action.PUB, Action.SUB),
}


def accounts_of(documents: Iterable[object]) -> list[Mapping[str, Any]]:
    """The accounts of all files; of several with one access key, the first."""
    found: dict[str, Mapping[str, Any]] = {}
    for document in documents:
        accounts = document.get("accounts") if isinstance(document, Mapping) else None
        for account in accounts or ():
            key = account.get("accessKey") if isinstance(account, Mapping) else None
            if isinstance(key, str) and not is_blank(key):
                found.setdefault(key, account)
    return list(found.values())


def migrated(account: Mapping[str, Any]) -> tuple[User, Acl | None]:
    """The user of an account, and its ACL if the account has permissions. ValueError: the account has no
    secret key."""
    name, secret = str(account["accessKey"]), account.get("secretKey")
    if secret is None or is_blank(str(secret)):
        raise ValueError(f"the account {name} has no secretKey")
    kind = UserType.SUPER if account.get("admin") is True else UserType.NORMAL
    custom = [
        *_entries(account.get("topicPerms"), topic_resource),
        *_entries(account.get("groupPerms"), group_resource),
    ]
    default = [
        *_default_entry(account.get("defaultTopicPerm"), ResourceType.TOPIC),
        *_default_entry(account.get("defaultGroupPerm"), ResourceType.GROUP),
    ]
    policies = [Policy(PolicyType.CUSTOM, tuple(custom))] if custom else []
    if default:
        policies.append(Policy(PolicyType.DEFAULT, tuple(default)))
    user = User(name, str(secret), kind, UserStatus.ENABLE)
    return user, Acl(name, tuple(policies)) if policies else None


def _entries(permissions: object, resource_of: Any) -> list[PolicyEntry]:
    found: list[PolicyEntry] = []
    for permission in permissions if isinstance(permissions, list) else ():
        parts = [part for part in str(permission).split("=") if part]
        if len(parts) == 2:
            found.append(_entry(resource_of(parts[0].strip()), parts[1].strip()))
    return found


def _default_entry(permission: object, kind: ResourceType) -> list[PolicyEntry]:
    if permission is None or is_blank(str(permission)):
        return []
    return [_entry(Resource(kind, None, ResourcePattern.ANY), str(permission).strip())]


def _entry(resource: Resource, permission: str) -> PolicyEntry:
    decision = PolicyDecision.DENY if permission in ("DENY", "") else PolicyDecision.ALLOW
    return PolicyEntry(resource, _ACTIONS.get(permission, (Action.ALL,)), (), decision)
