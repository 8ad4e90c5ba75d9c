"""The model of `BrokerGroup` and `ControllerGroup`, as data. Descriptions and defaults stand here and nowhere
else: the loader checks by it, and the definitions for Kubernetes and the reference are made of it.

Fields that only Kubernetes acts on are marked `KUBERNETES_ONLY`; the local runtime takes and ignores them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from epochmq_operator.resources.owned_keys import CONTROLLER_OWNED_KEYS, key_owner

API_GROUP = "epochmq.io"
VERSION = "v1alpha1"
API_VERSION = "epochmq.io/v1alpha1"

NAME_LENGTH_MAX = 40
"""A group's name becomes part of pod, volume and label names, which Kubernetes limits to 63 characters; the
rest of these names (`-nameserver`, a revision hash) needs 22."""
NAMES_LENGTH_MAX = 101
"""Of a group's name and its namespace's together. A controller's name in DNS has the one twice and the other
once, and what a pod's resolver tries first has the namespace once more: twice these and 50 characters, of
253, where the cluster's domain is cluster.local. With one that is longer, glibc tries no other."""
BROKER_NAME_LENGTH_MAX = 100
"""A broker's name is a topic's name too (RocketMQ creates one per broker), with a prefix in some places;
topic names end at 127."""
CONTROLLER_COUNTS = (1, 3, 5)
REPLICAS_MAX = 9
"""More replicas make a group slower, and hardly safer."""
CONFIG_KEYS_MAX = 300
LABELS_MAX = 32
TOLERATIONS_MAX = 32

CONFIG_KEY = re.compile(r"[a-zA-Z][a-zA-Z0-9]{0,99}\Z")
# Anchored for the engine that pydantic and the API server share, in which $ is the end of the text alone.
DNS_LABEL = r"^[a-z]([a-z0-9-]*[a-z0-9])?$"
NAMESPACE = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
DNS_NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
ROCKETMQ_NAME = r"^[%|a-zA-Z0-9_-]+$"
IMAGE = r"^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$"
QUANTITY = r"^[0-9]+(\.[0-9]{1,3})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
SIZE = r"^[1-9][0-9]*(\.[0-9]{1,3})?(M|G|T|P|Mi|Gi|Ti|Pi)$"
LABEL_KEY = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"

AN_EVEN_NUMBER = "an even number of controllers bears no more failures than one fewer"
COUNTS_IN_WORDS = "1, 3 or 5"

KUBERNETES_ONLY = "x-kubernetes-only"
"""Marks a field in its JSON schema that the local runtime ignores."""
SCHEMA = "x-schema"
"""Stands in a field's JSON schema for what Kubernetes is to be told of it instead."""


def _config_key(key: str) -> str:
    """Keys are RocketMQ's and not the operator's; whether RocketMQ knows a key and takes its value, the
    broker says."""
    return _unowned(key, key_owner(key))


def _controller_key(key: str) -> str:
    return _unowned(key, CONTROLLER_OWNED_KEYS.get(key))


def _unowned(key: str, owner: str | None) -> str:
    if not CONFIG_KEY.match(key):
        raise PydanticCustomError("key", "expected a RocketMQ key: letters and digits, at most 100")
    if owner:
        raise PydanticCustomError(
            "key", "expected no such key: the operator sets it, from {owner}", {"owner": owner}
        )
    return key


def _controller_count(replicas: int) -> int:
    if replicas in CONTROLLER_COUNTS:
        return replicas
    expected = COUNTS_IN_WORDS
    if replicas > 0 and replicas % 2 == 0:
        expected += f": {AN_EVEN_NUMBER}"
    raise PydanticCustomError("refused", "expected {expected}", {"expected": expected})


def _own_label(key: str) -> str:
    if key.partition("/")[0].endswith(("epochmq.io", "kubernetes.io")):
        raise PydanticCustomError("refused", "expected no key of epochmq.io or kubernetes.io")
    return key


class DocumentModel(BaseModel):
    """A part of a document: unknown fields are refused, values are not converted, nothing changes later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


def enum_by_value(kind: type[StrEnum]) -> BeforeValidator:
    """Strict mode wants a member; documents hold its value."""
    return BeforeValidator(lambda value: kind(value) if value in list(kind) else value)


def fields_of(model: type[BaseModel]) -> list[str]:
    """The names of a model's fields, its own before those that it shares with others."""
    shared = [name for base in model.__bases__ for name in getattr(base, "model_fields", ())]
    return [name for name in model.model_fields if name not in shared] + shared


class Retention(StrEnum):
    """What becomes of a group's volumes when the group is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Spread(StrEnum):
    """How hard the scheduler tries to keep a group's pods apart. Not `Off`, which YAML takes for false."""

    NONE = "None"
    PREFERRED = "Preferred"
    REQUIRED = "Required"


class PullPolicy(StrEnum):
    """When a node pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


DnsLabel = Annotated[str, Field(min_length=1, pattern=DNS_LABEL)]
DnsName = Annotated[str, Field(min_length=1, pattern=DNS_NAME)]
RocketMQName = Annotated[str, Field(min_length=1, max_length=BROKER_NAME_LENGTH_MAX, pattern=ROCKETMQ_NAME)]
ConfigKey = Annotated[str, AfterValidator(_config_key)]
ControllerKey = Annotated[str, AfterValidator(_controller_key)]
ConfigValue = str | bool | int | float
Label = Annotated[str, Field(max_length=63)]
LabelKey = Annotated[str, Field(max_length=253, pattern=LABEL_KEY)]
OwnLabelKey = Annotated[LabelKey, AfterValidator(_own_label)]
Quantity = Annotated[
    Annotated[str, Field(max_length=20, pattern=QUANTITY)] | Annotated[int, Field(ge=0)],
    Field(
        json_schema_extra={
            SCHEMA: {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": QUANTITY,
                "x-kubernetes-int-or-string": True,
            }
        }
    ),
]


def _kubernetes_only(description: str, **constraints: Any) -> Any:
    return Field(description=description, json_schema_extra={KUBERNETES_ONLY: True}, **constraints)


class ObjectMetadata(DocumentModel):
    """Kubernetes' object metadata; what the API server adds to it is accepted and ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: Annotated[DnsLabel, Field(max_length=NAME_LENGTH_MAX, description="The group's name.")]
    namespace: Annotated[
        str, Field(max_length=63, pattern=NAMESPACE, description="The group's namespace.")
    ] = "default"
    labels: Annotated[dict[str, str], Field(description="Labels; kept, not used.")] = {}
    annotations: Annotated[dict[str, str], Field(description="Annotations; kept, not used.")] = {}

    @model_validator(mode="after")
    def _check_name_lengths(self) -> Self:
        length = len(self.name) + len(self.namespace)
        if length > NAMES_LENGTH_MAX:
            raise PydanticCustomError(
                "spans",
                "{length} characters with the namespace's name, expected at most {most}: "
                "choose a shorter name, for pods find each other by names that are made of both",
                {"at": "name", "length": length, "most": NAMES_LENGTH_MAX},
            )
        return self


class StorageSpec(DocumentModel):
    """The volume that each pod has for its data."""

    size: Annotated[
        str,
        _kubernetes_only(
            "How large each pod's volume is. It may grow and never shrink.", max_length=20, pattern=SIZE
        ),
    ] = "10Gi"
    storage_class_name: Annotated[
        DnsName | None,
        _kubernetes_only(
            "The StorageClass; the cluster's default if left out. Settled once.", max_length=253
        ),
    ] = None
    retention: Annotated[
        Retention,
        enum_by_value(Retention),
        _kubernetes_only(
            "What becomes of the volumes when the group is deleted. A group of the same name adopts "
            "those that were retained."
        ),
    ] = Retention.RETAIN


class ResourcesSpec(DocumentModel):
    """What the pod's main container asks for and may use."""

    requests: Annotated[
        dict[LabelKey, Quantity], _kubernetes_only("What the scheduler sets aside.", max_length=8)
    ] = {}
    limits: Annotated[dict[LabelKey, Quantity], _kubernetes_only("What it may use.", max_length=8)] = {}


class Toleration(DocumentModel):
    """A taint of nodes that the pods bear, as Kubernetes has it."""

    key: Annotated[str | None, _kubernetes_only("The taint's key; all if left out.", max_length=316)] = None
    operator: Annotated[Literal["Exists", "Equal"], _kubernetes_only("Whether the value counts.")] = "Equal"
    value: Annotated[str | None, _kubernetes_only("The taint's value.", max_length=63)] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        _kubernetes_only("The effect that is borne; all if left out."),
    ] = None
    toleration_seconds: Annotated[
        int | None, _kubernetes_only("How long NoExecute is borne; for ever if left out.", ge=0)
    ] = None


class AdminSpec(DocumentModel):
    """Who may use the pods' admin port. Looking is open to whoever reaches it; what changes something wants a
    token or a certificate, and is refused where there is neither."""

    token_secret: Annotated[
        DnsName | None,
        _kubernetes_only(
            "A Secret whose `token` holds tokens, one a line, each of which will do.", max_length=253
        ),
    ] = None
    tls_secret: Annotated[
        DnsName | None,
        _kubernetes_only(
            "A Secret with `tls.crt`, `tls.key` and `ca.crt`: the port then speaks TLS, and certificates "
            "that `ca.crt` signed do as well as tokens.",
            max_length=253,
        ),
    ] = None


class WorkloadSpec(DocumentModel):
    """What both kinds say of their pods."""

    image: Annotated[
        str | None,
        _kubernetes_only(
            "The image of the pods; the operator's own if left out.", max_length=500, pattern=IMAGE
        ),
    ] = None
    image_pull_policy: Annotated[
        PullPolicy, enum_by_value(PullPolicy), _kubernetes_only("When a node pulls the image.")
    ] = PullPolicy.IF_NOT_PRESENT
    storage: Annotated[StorageSpec, _kubernetes_only("The volume that each pod has for its data.")] = (
        StorageSpec()
    )
    resources: Annotated[
        ResourcesSpec, _kubernetes_only("What the pods' main container asks for and may use.")
    ] = ResourcesSpec(requests={"cpu": "50m", "memory": "128Mi"})
    host_spread: Annotated[
        Spread,
        enum_by_value(Spread),
        _kubernetes_only(
            "Keeps the group's pods on different nodes: `Required` leaves a pod waiting rather than "
            "put two on one node."
        ),
    ] = Spread.PREFERRED
    zone_spread: Annotated[
        Spread,
        enum_by_value(Spread),
        _kubernetes_only("The same for zones (`topology.kubernetes.io/zone`), evenly."),
    ] = Spread.PREFERRED
    node_selector: Annotated[
        dict[LabelKey, Label],
        _kubernetes_only("Labels that the pods' nodes must have.", max_length=LABELS_MAX),
    ] = {}
    tolerations: Annotated[
        list[Toleration], _kubernetes_only("Taints of nodes that the pods bear.", max_length=TOLERATIONS_MAX)
    ] = []
    pod_labels: Annotated[
        dict[OwnLabelKey, Label], _kubernetes_only("Further labels of the pods.", max_length=LABELS_MAX)
    ] = {}
    pod_annotations: Annotated[
        dict[OwnLabelKey, Annotated[str, Field(max_length=1024)]],
        _kubernetes_only("Further annotations of the pods.", max_length=LABELS_MAX),
    ] = {}
    admin: Annotated[AdminSpec, _kubernetes_only("Who may use the pods' admin port.")] = AdminSpec()
    paused: Annotated[bool, _kubernetes_only("The operator looks on and changes nothing.")] = False
    deletion_guard: Annotated[
        bool,
        _kubernetes_only(
            "A deletion waits until the annotation `epochmq.io/confirm-deletion` holds the group's name."
        ),
    ] = False


class BrokerGroupSpec(WorkloadSpec):
    """What a group should be."""

    replicas: Annotated[
        int,
        Field(
            ge=1,
            le=REPLICAS_MAX,
            description="How many replicas hold the group's log; one of them is the master at a time.",
        ),
    ]
    broker_name: Annotated[
        RocketMQName | None,
        Field(
            description="RocketMQ's brokerName of all replicas; the group's name if left out. Settled once."
        ),
    ] = None
    cluster: Annotated[RocketMQName, Field(description="RocketMQ's brokerClusterName. Settled once.")] = (
        "DefaultCluster"
    )
    controller_group: Annotated[
        DnsLabel | None,
        Field(
            max_length=NAME_LENGTH_MAX,
            description="The ControllerGroup that elects the group's master. Left out, the group has one "
            "of its own, under its own name. Settled once.",
        ),
    ] = None
    min_in_sync_replicas: Annotated[
        int | None,
        Field(
            ge=1,
            le=REPLICAS_MAX,
            description="How many replicas must have a message before it is acknowledged; the master takes "
            "none while fewer are in the SyncStateSet. Left out: 2 of three replicas or more, else 1.",
        ),
    ] = None
    config: Annotated[
        dict[ConfigKey, ConfigValue],
        Field(
            max_length=CONFIG_KEYS_MAX,
            description="RocketMQ's broker keys, except those that the operator owns.",
        ),
    ] = {}
    external_services: Annotated[
        bool,
        _kubernetes_only(
            "A Service of type LoadBalancer for each replica; clients are told the replicas' names then, not "
            "their pods' addresses."
        ),
    ] = False

    @model_validator(mode="after")
    def _check_min_in_sync(self) -> Self:
        if self.min_in_sync_replicas is not None and self.min_in_sync_replicas > self.replicas:
            raise PydanticCustomError(
                "spans",
                "{value}, expected at most spec.replicas, which is {replicas}",
                {"at": "minInSyncReplicas", "value": self.min_in_sync_replicas, "replicas": self.replicas},
            )
        return self


class BrokerGroup(DocumentModel):
    """One replica group: one RocketMQ brokerName, n replicas, one master at a time."""

    api_version: Literal["epochmq.io/v1alpha1"]
    kind: Literal["BrokerGroup"]
    metadata: ObjectMetadata
    spec: BrokerGroupSpec
    status: Annotated[
        Any, Field(exclude=True, description="Written by the operator; ignored when loaded.")
    ] = None

    @property
    def name(self) -> str:
        """The group's name, unique in its namespace."""
        return self.metadata.name

    @property
    def broker_name(self) -> str:
        """RocketMQ's brokerName of every replica."""
        return self.spec.broker_name or self.metadata.name

    @property
    def controlled_by(self) -> str | None:
        """The name of the ControllerGroup that elects its master. None: its one replica is the master, and
        there is nothing to elect."""
        return self.spec.controller_group or (self.name if self.spec.replicas > 1 else None)

    @property
    def own_controllers(self) -> ControllerGroup | None:
        """The ControllerGroup that belongs to this group alone, if it names none and needs one."""
        if self.controlled_by is None or self.spec.controller_group is not None:
            return None
        return self.default_controllers()

    def default_controllers(self) -> ControllerGroup:
        """The ControllerGroup that a group which names none has on Kubernetes, however many replicas it has:
        what one replica wrote without controllers could not be used by three under them."""
        metadata = {"name": self.name, "namespace": self.metadata.namespace}
        return ControllerGroup.model_validate(
            {"apiVersion": API_VERSION, "kind": "ControllerGroup", "metadata": metadata}
        )

    def with_controllers(self, controllers: ControllerGroup) -> BrokerGroup:
        """The same group, with these controllers named."""
        spec = self.spec.model_copy(update={"controller_group": controllers.name})
        return self.model_copy(update={"spec": spec})


class NameserverSpec(DocumentModel):
    """Where a ControllerGroup's nameservers are."""

    embedded: Annotated[
        bool,
        Field(description="In the controllers' own processes; else in as many pods of their own."),
    ] = True


class ControllerGroupSpec(WorkloadSpec):
    """What a quorum of controllers should be."""

    replicas: Annotated[
        int,
        Field(
            description=f"How many controllers: {COUNTS_IN_WORDS}.",
            json_schema_extra={"minimum": min(CONTROLLER_COUNTS), "maximum": max(CONTROLLER_COUNTS)},
        ),
        AfterValidator(_controller_count),
    ] = 3
    nameserver: Annotated[NameserverSpec, Field(description="The nameservers that come with them.")] = (
        NameserverSpec()
    )
    config: Annotated[
        dict[ControllerKey, ConfigValue],
        Field(
            max_length=CONFIG_KEYS_MAX,
            description="RocketMQ's controller keys, except those that the operator owns.",
        ),
    ] = {}


class ControllerGroup(DocumentModel):
    """A Raft quorum of controllers, and nameservers, that any number of broker groups share."""

    api_version: Literal["epochmq.io/v1alpha1"]
    kind: Literal["ControllerGroup"]
    metadata: ObjectMetadata
    spec: ControllerGroupSpec = ControllerGroupSpec()
    status: Annotated[
        Any, Field(exclude=True, description="Written by the operator; ignored when loaded.")
    ] = None

    @property
    def name(self) -> str:
        """The group's name, unique in its namespace."""
        return self.metadata.name


GroupResource = BrokerGroup | ControllerGroup
KINDS: Mapping[str, type[BrokerGroup] | type[ControllerGroup]] = {
    "BrokerGroup": BrokerGroup,
    "ControllerGroup": ControllerGroup,
}
