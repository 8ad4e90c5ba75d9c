"""Defines the models of `Topic` and `User`, which describe a topic or a user of broker groups, and their
validation rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from epochmq_operator.resources.documents import DocumentModel, enum_by_value
from epochmq_operator.resources.model import (
    NAME_LENGTH_MAX,
    NAMESPACE,
    DnsLabel,
    ObjectMetadata,
)
from epochmq_operator.resources.pod_values import DNS_NAME, DnsName
from epochmq_operator.resources.rules import ValidationRule
from epochmq_protocol.topics import PERM_READ, PERM_WRITE, TOPIC_LENGTH_MAX

TOPIC_KIND, USER_KIND = "Topic", "User"
ENTITY_NAME_LENGTH_MAX = 200
"""The names of a resource's Events hold its name and 17 characters, of at most 253."""
BROKER_GROUPS_MAX = 32
QUEUES_MAX = 1024
ATTRIBUTES_MAX = 16
USERNAME_LENGTH_MAX = 100
ACL_ENTRIES_MAX = 64
SOURCE_IPS_MAX = 32
TOPIC_NAME = r"^[%|a-zA-Z0-9_-]+$"
USERNAME = r"^[a-zA-Z0-9][a-zA-Z0-9_.@-]*$"
RESOURCE = r"^(\*|(Cluster|Topic|Group):[%|a-zA-Z0-9_-]*\*?)$"
ATTRIBUTE = r"^[a-z][a-z.]*$"
ATTRIBUTE_VALUE = r"^[a-zA-Z0-9_.-]+$"
SECRET_KEY = r"^[-._a-zA-Z0-9]+$"
MESSAGE_TYPE = "message.type"


class DeletionPolicy(StrEnum):
    """What happens to the topic or user in the brokers when its resource is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class TopicPermission(StrEnum):
    """What clients may do with a topic."""

    READ_WRITE = "ReadWrite"
    READ = "Read"
    WRITE = "Write"

    @property
    def perm(self) -> int:
        """RocketMQ's bits."""
        read = 0 if self is TopicPermission.WRITE else PERM_READ
        return read | (0 if self is TopicPermission.READ else PERM_WRITE)


class EntityMetadata(ObjectMetadata):
    """Kubernetes' object metadata of a topic or user. No pod is named after it."""

    name: Annotated[
        str, Field(min_length=1, max_length=ENTITY_NAME_LENGTH_MAX, pattern=DNS_NAME, description="The name.")
    ]
    namespace: Annotated[
        str, Field(max_length=63, pattern=NAMESPACE, description="The namespace of the broker groups.")
    ] = "default"

    @model_validator(mode="after")
    def _check_name_lengths(self) -> Self:
        return self


def _without_repetition(path: str, values: Iterable[str]) -> None:
    """Raises PydanticCustomError if a value is there twice."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise PydanticCustomError(
                "spans", "{value} is given twice, expected once", {"at": path, "value": value}
            )
        seen.add(value)


class EntitySpec(DocumentModel):
    """The fields that topics and users have in common."""

    broker_groups: Annotated[
        list[Annotated[DnsLabel, Field(max_length=NAME_LENGTH_MAX)]],
        Field(
            min_length=1,
            max_length=BROKER_GROUPS_MAX,
            description="Names of the BrokerGroups, in the same namespace. A group that is removed from the "
            "list is treated as if the resource were deleted, for that group alone.",
        ),
    ]

    @model_validator(mode="after")
    def _check_broker_groups(self) -> Self:
        _without_repetition("brokerGroups", self.broker_groups)
        return self


class TopicSpec(EntitySpec):
    """The desired state of a topic."""

    topic_name: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=TOPIC_LENGTH_MAX,
            pattern=TOPIC_NAME,
            description="Name of the topic in RocketMQ. Default: the resource's name. Immutable.",
        ),
    ] = None
    queues: Annotated[
        int, Field(ge=1, le=QUEUES_MAX, description="Number of queues for writing in each broker group.")
    ] = 8
    read_queues: Annotated[
        int | None,
        Field(
            ge=1,
            le=QUEUES_MAX,
            description="Number of queues for reading, at least `queues`. Default: `queues`, or more if the "
            "topic already has more, so that no message becomes unreadable.",
        ),
    ] = None
    permission: Annotated[
        TopicPermission,
        enum_by_value(TopicPermission),
        Field(description="What clients may do with the topic."),
    ] = TopicPermission.READ_WRITE
    message_type: Annotated[
        Literal["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"] | None,
        Field(description="RocketMQ's `message.type`. Default: left as it is."),
    ] = None
    attributes: Annotated[
        dict[
            Annotated[str, Field(max_length=64, pattern=ATTRIBUTE)],
            Annotated[str, Field(max_length=64, pattern=ATTRIBUTE_VALUE)],
        ],
        Field(
            default_factory=dict,
            max_length=ATTRIBUTES_MAX,
            description="Other attributes of RocketMQ, such as `reserve.time`. The others of the topic are "
            "left as they are.",
        ),
    ]
    deletion_policy: Annotated[
        DeletionPolicy,
        enum_by_value(DeletionPolicy),
        Field(
            description="`Delete`: the topic and its messages are deleted with the resource. `Retain`: they "
            "stay."
        ),
    ] = DeletionPolicy.RETAIN

    @model_validator(mode="after")
    def _check_queues(self) -> Self:
        if self.read_queues is not None and self.read_queues < self.queues:
            raise PydanticCustomError(
                "spans",
                "{value}, expected at least spec.queues, which is {queues}",
                {"at": "readQueues", "value": self.read_queues, "queues": self.queues},
            )
        if MESSAGE_TYPE in self.attributes:
            raise PydanticCustomError(
                "spans",
                "expected no message.type here: give spec.messageType instead",
                {"at": "attributes"},
            )
        return self

    @property
    def wanted_attributes(self) -> dict[str, str]:
        """The attributes that the topic is to have at least."""
        message_type = {} if self.message_type is None else {MESSAGE_TYPE: self.message_type}
        return {**self.attributes, **message_type}


class PasswordSecret(DocumentModel):
    """Where the password is."""

    name: Annotated[DnsName, Field(max_length=253, description="Name of the Secret, in the same namespace.")]
    key: Annotated[
        str, Field(min_length=1, max_length=253, pattern=SECRET_KEY, description="Key in the Secret.")
    ] = "password"


class AclEntry(DocumentModel):
    """What the user may do with one resource, or may not."""

    resource: Annotated[
        str,
        Field(
            max_length=300,
            pattern=RESOURCE,
            description="`Topic:NAME`, `Group:NAME` or `Cluster:NAME`; `Topic:PREFIX*`; `Topic:*`; or `*` "
            "for everything.",
        ),
    ]
    actions: Annotated[
        list[Literal["All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]],
        Field(min_length=1, max_length=8, description="The actions."),
    ]
    source_ips: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64)]],
        Field(
            default_factory=list,
            max_length=SOURCE_IPS_MAX,
            description="Addresses, or ranges such as `10.0.0.0/8`, from which the entry holds. "
            "Default: all.",
        ),
    ]
    decision: Annotated[Literal["Allow", "Deny"], Field(description="The effect of the entry.")] = "Allow"

    @model_validator(mode="after")
    def _check_repetition(self) -> Self:
        _without_repetition("actions", self.actions)
        return self


class UserSpec(EntitySpec):
    """The desired state of a user."""

    username: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=USERNAME_LENGTH_MAX,
            pattern=USERNAME,
            description="Name of the user in RocketMQ (the access key). Default: the resource's name. "
            "Immutable.",
        ),
    ] = None
    password_secret: Annotated[
        PasswordSecret, Field(description="Secret with the password (the secret key).")
    ]
    type: Annotated[
        Literal["Normal", "Super"],
        Field(description="`Super`: the user may do everything. `Normal`: what `acl` allows."),
    ] = "Normal"
    enabled: Annotated[bool, Field(description="Whether the user can authenticate itself.")] = True
    acl: Annotated[
        list[AclEntry],
        Field(
            default_factory=list,
            max_length=ACL_ENTRIES_MAX,
            description="The user's permissions, one entry for each resource. Entries that are not listed "
            "are removed.",
        ),
    ]
    deletion_policy: Annotated[
        DeletionPolicy,
        enum_by_value(DeletionPolicy),
        Field(
            description="`Delete`: the user and its ACL are deleted with the resource. `Retain`: they stay."
        ),
    ] = DeletionPolicy.DELETE

    @model_validator(mode="after")
    def _check_acl(self) -> Self:
        _without_repetition("acl", (one.resource for one in self.acl))
        return self


class TopicResource(DocumentModel):
    """A topic of one or several broker groups."""

    api_version: Literal["epochmq.io/v1alpha1"]
    kind: Literal["Topic"]
    metadata: EntityMetadata
    spec: TopicSpec
    status: Annotated[
        Any, Field(exclude=True, description="Written by the operator; ignored when loaded.")
    ] = None

    @property
    def broker_side_name(self) -> str:
        """The topic's name in the brokers."""
        return self.spec.topic_name or self.metadata.name


class UserResource(DocumentModel):
    """A user of one or several broker groups, with its permissions."""

    api_version: Literal["epochmq.io/v1alpha1"]
    kind: Literal["User"]
    metadata: EntityMetadata
    spec: UserSpec
    status: Annotated[
        Any, Field(exclude=True, description="Written by the operator; ignored when loaded.")
    ] = None

    @property
    def broker_side_name(self) -> str:
        """The user's name in the brokers."""
        return self.spec.username or self.metadata.name


Entity = TopicResource | UserResource
ENTITY_KINDS: Mapping[str, type[TopicResource] | type[UserResource]] = {
    TOPIC_KIND: TopicResource,
    USER_KIND: UserResource,
}


def _immutable_name(field: str) -> ValidationRule:
    return ValidationRule(
        "spec",
        f"has(self.{field}) == has(oldSelf.{field})"
        f" && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        f"{field} cannot change, because clients use it: restore it, or create a new resource",
    )


_COMMON = (
    ValidationRule(
        "",
        f"self.metadata.name.size() <= {ENTITY_NAME_LENGTH_MAX}",
        f"choose a name of at most {ENTITY_NAME_LENGTH_MAX} characters: names of Events are derived from it",
    ),
    ValidationRule(
        "spec.brokerGroups",
        "self.all(one, self.exists_one(other, other == one))",
        "remove the repeated name: each group is named once",
    ),
)
ENTITY_RULES: Mapping[str, tuple[ValidationRule, ...]] = {
    TOPIC_KIND: (
        *_COMMON,
        _immutable_name("topicName"),
        ValidationRule(
            "spec",
            "!has(self.readQueues) || self.readQueues >= self.queues",
            "readQueues is below queues, so messages could not be read: give at least as many as queues",
        ),
        ValidationRule(
            "spec.attributes",
            f"!('{MESSAGE_TYPE}' in self)",
            f"remove {MESSAGE_TYPE} from attributes: give messageType instead",
        ),
    ),
    USER_KIND: (
        *_COMMON,
        _immutable_name("username"),
        ValidationRule(
            "spec.acl",
            "self.all(one, self.exists_one(other, other.resource == one.resource))",
            "remove the repeated resource: give one entry for each resource",
        ),
    ),
}

EXPECTED_OF_ENTITIES: Mapping[str, str] = {
    "spec.brokerGroups": "names of BrokerGroups",
    "spec.topicName": f"letters, digits, '-', '_', '|' and '%', at most {TOPIC_LENGTH_MAX} characters",
    "spec.queues": f"a whole number from 1 to {QUEUES_MAX}",
    "spec.readQueues": f"a whole number from spec.queues to {QUEUES_MAX}",
    "spec.attributes": "a mapping of attributes to values",
    "spec.username": f"letters, digits, '_', '.', '@' and '-', at most {USERNAME_LENGTH_MAX} characters",
    "spec.passwordSecret.name": "the name of a Secret",
    "spec.passwordSecret.key": "a key of the Secret",
    "spec.enabled": "true or false",
    "spec.acl": "a list of entries",
    "spec.acl[].resource": "a resource, such as Topic:orders",
    "spec.acl[].actions": "Pub, Sub, Create, Update, Delete, Get, List or All",
    "spec.acl[].sourceIps": "a list of addresses or ranges",
}
"""What each field accepts, in words."""
