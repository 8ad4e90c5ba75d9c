"""Declares how an entity was found in a broker group, and the changes that make it as desired."""

# pure: plain data.

from __future__ import annotations

from dataclasses import dataclass, field

from epochmq_protocol.topics import TopicConfig


@dataclass(frozen=True, slots=True)
class Permission:
    """One entry of an ACL. `policy_type` is RocketMQ's: Custom or Default."""

    resource: str
    actions: frozenset[str]
    source_ips: tuple[str, ...] = ()
    decision: str = "Allow"
    policy_type: str = "Custom"


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """A user of a broker. The representation does not show the password."""

    username: str
    password: str = field(repr=False)
    type: str = "Normal"
    enabled: bool = True
    permissions: tuple[Permission, ...] = ()


FoundEntity = TopicConfig | BrokerUser


@dataclass(frozen=True, slots=True)
class PutTopic:
    """Creates or changes a topic. The keys of `attributes` have RocketMQ's sign (`+key`)."""

    config: TopicConfig


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Deletes a topic with its messages."""

    name: str


@dataclass(frozen=True, slots=True)
class PutUser:
    """Creates a user, or changes it if `exists`; not its permissions."""

    user: BrokerUser
    exists: bool


@dataclass(frozen=True, slots=True)
class RemoveUser:
    """Deletes a user with its ACL."""

    username: str


@dataclass(frozen=True, slots=True)
class PutPermissions:
    """Adds entries to a user's ACL; replaces those of the same resources. `exists`: the user has an ACL."""

    username: str
    permissions: tuple[Permission, ...]
    exists: bool


@dataclass(frozen=True, slots=True)
class RemovePermission:
    """Removes an entry of a user's ACL."""

    username: str
    policy_type: str
    resource: str


Change = PutTopic | RemoveTopic | PutUser | RemoveUser | PutPermissions | RemovePermission


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one entity in one broker group, in this order. `differences` says, one line each, what
    was found and what is desired."""

    changes: tuple[Change, ...] = ()
    differences: tuple[str, ...] = ()
