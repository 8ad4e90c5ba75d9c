"""Defines the models of `BrokerGroup` and `ControllerGroup`. They are the only source of defaults and
descriptions: the loader validates by them, and the definitions for Kubernetes and the reference are generated
from them.

Fields that only Kubernetes acts on are marked `KUBERNETES_ONLY`; the local runtime accepts and ignores them.
The module is longer than 600 lines because the fields of both kinds and their descriptions are one text, from
which the reference is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from epochmq_operator.resources.documents import DocumentModel, enum_by_value, kubernetes_only
from epochmq_operator.resources.external_access import ExternalAccess
from epochmq_operator.resources.member_mode import MemberMode
from epochmq_operator.resources.owned_keys import CONTROLLER_OWNED_KEYS, key_owner
from epochmq_operator.resources.pod_fields import PodFields
from epochmq_operator.resources.pod_values import DnsName
from epochmq_operator.resources.restore_from import RestoreFromSpec
from epochmq_operator.resources.update_policy import UpdatePolicySpec

API_GROUP = "epochmq.io"
VERSION = "v1alpha1"
API_VERSION = "epochmq.io/v1alpha1"

NAME_LENGTH_MAX = 40
"""A group's name is part of pod, volume and label names, which Kubernetes limits to 63 characters. The rest
of these names (`-nameserver`, a revision hash) needs 22 characters."""
NAMES_LENGTH_MAX = 101
"""The limit for the lengths of a group's name and its namespace together. A controller's DNS name holds the
group's name twice and the namespace once, and the first name that a pod's resolver tries holds the namespace
once more: twice the sum and 50 characters, of at most 253, if the cluster's domain is cluster.local. glibc
tries no other name after one that is longer."""
BROKER_NAME_LENGTH_MAX = 100
"""A broker's name is also the name of a topic (RocketMQ creates one per broker), in some places with a
prefix. Topic names have at most 127 characters."""
CONTROLLER_COUNTS = (1, 3, 5)
DLEDGER_COUNTS = CONTROLLER_COUNTS
"""The numbers of replicas of a group that elects its master by Raft."""
REPLICAS_MAX = 9
"""More replicas make a group slower, and hardly safer."""
SAFE_REPLICAS = 3
"""From this number of replicas on, `minInSyncReplicas` is 2: one replica may be missing, and an acknowledged
message still is on two disks, so that it survives the loss of either."""
CONFIG_KEYS_MAX = 300

CONFIG_KEY = re.compile(r"[a-zA-Z][a-zA-Z0-9]{0,99}\Z")
# Anchored for the regular expressions of pydantic and the API server, where $ matches only at the end of the
# text.
DNS_LABEL = r"^[a-z]([a-z0-9-]*[a-z0-9])?$"
NAMESPACE = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
ROCKETMQ_NAME = r"^[%|a-zA-Z0-9_-]+$"
SIZE = r"^[1-9][0-9]*(\.[0-9]{1,3})?(M|G|T|P|Mi|Gi|Ti|Pi)$"

AN_EVEN_NUMBER = "an even number of controllers tolerates no more failures than one fewer"
COUNTS_IN_WORDS = "1, 3 or 5"


def _config_key(key: str) -> str:
    """Rejects keys that the operator owns. Whether RocketMQ knows the key and accepts its value is checked by
    the broker."""
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


def fields_of(model: type[BaseModel]) -> list[str]:
    """The names of a model's fields: its own first, then inherited ones."""
    shared = [name for base in model.__bases__ for name in getattr(base, "model_fields", ())]
    return [name for name in model.model_fields if name not in shared] + shared


class Retention(StrEnum):
    """What happens to a group's volumes when the group is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class GroupMode(StrEnum):
    """Who decides which replica is the master."""

    CONTROLLER = "Controller"
    """Controllers elect it, and elect another one when it is down."""
    MASTER_SLAVE = "MasterSlave"
    """The configuration: the first replica is the master for good. A slave may act for it (RIP-32)."""
    DLEDGER = "DLedger"
    """The replicas elect it by Raft among themselves: their commit log is a DLedger log."""


DnsLabel = Annotated[str, Field(min_length=1, pattern=DNS_LABEL)]
RocketMQName = Annotated[str, Field(min_length=1, max_length=BROKER_NAME_LENGTH_MAX, pattern=ROCKETMQ_NAME)]
ConfigKey = Annotated[str, AfterValidator(_config_key)]
ControllerKey = Annotated[str, AfterValidator(_controller_key)]
ConfigValue = str | bool | int | float


class ObjectMetadata(DocumentModel):
    """Kubernetes' object metadata. Fields that the API server adds are accepted and ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: Annotated[DnsLabel, Field(max_length=NAME_LENGTH_MAX, description="The group's name.")]
    namespace: Annotated[
        str, Field(max_length=63, pattern=NAMESPACE, description="The group's namespace.")
    ] = "default"
    labels: Annotated[dict[str, str], Field(description="Labels; stored, not used.")] = {}
    annotations: Annotated[dict[str, str], Field(description="Annotations; stored, not used.")] = {}

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
    """The volume of each pod."""

    size: Annotated[
        str,
        kubernetes_only(
            "Size of each pod's volume. It can grow but not shrink.", max_length=20, pattern=SIZE
        ),
    ] = "10Gi"
    storage_class_name: Annotated[
        DnsName | None,
        kubernetes_only("StorageClass. Default: the cluster's. Immutable.", max_length=253),
    ] = None
    retention: Annotated[
        Retention,
        enum_by_value(Retention),
        kubernetes_only(
            "What happens to the volumes when the group is deleted. A new group of the same name uses "
            "retained volumes."
        ),
    ] = Retention.RETAIN


class AdminSpec(DocumentModel):
    """Who may use the pods' admin port. Reading is open to everybody who reaches the port. Changes need a
    token or a client certificate; without both of these settings they are rejected."""

    token_secret: Annotated[
        DnsName | None,
        kubernetes_only("Secret whose `token` holds valid tokens, one a line.", max_length=253),
    ] = None
    tls_secret: Annotated[
        DnsName | None,
        kubernetes_only(
            "Secret with `tls.crt`, `tls.key` and `ca.crt`: the port uses TLS, and certificates signed by "
            "`ca.crt` are accepted like tokens.",
            max_length=253,
        ),
    ] = None


class WorkloadSpec(PodFields):
    """The fields that both kinds have for their pods."""

    storage: Annotated[StorageSpec, kubernetes_only("The volume of each pod.")] = StorageSpec()
    admin: Annotated[AdminSpec, kubernetes_only("Who may use the pods' admin port.")] = AdminSpec()
    client_tls_secret: Annotated[
        DnsName | None,
        kubernetes_only(
            "Secret with `tls.crt`, `tls.key` and `ca.crt`, as cert-manager writes it: the ports for clients "
            "accept TLS besides plain connections. Changed certificates are used without a restart.",
            max_length=253,
        ),
    ] = None
    external: Annotated[
        ExternalAccess | None, kubernetes_only("How clients outside the cluster reach the pods.")
    ] = None
    member_authentication: Annotated[
        MemberMode | None,
        enum_by_value(MemberMode),
        Field(
            description="Whether brokers, controllers and nameservers prove to each other that they are "
            "members, by a secret that the operator, or `epochmq up`, makes. `Accept`: they do, and accept "
            "members without a proof, such as RocketMQ's. For `epochmq up` `Disabled` is the same. With "
            "`spec.controllerGroup` it is a field of that ControllerGroup. Default: `Require`; on "
            "Kubernetes a group that an earlier release created without a secret stays without."
        ),
    ] = None
    update_policy: Annotated[
        UpdatePolicySpec, kubernetes_only("When and for what the operator restarts running pods.")
    ] = UpdatePolicySpec()
    paused: Annotated[bool, kubernetes_only("The operator updates the status and changes nothing else.")] = (
        False
    )
    deletion_guard: Annotated[
        bool,
        kubernetes_only(
            "A deletion waits until the annotation `epochmq.io/confirm-deletion` holds the group's name."
        ),
    ] = False


class OwnControllersSpec(PodFields):
    """The controllers that belong to one broker group alone, and their pods."""

    replicas: Annotated[
        int,
        Field(
            description=f"Number of the group's own controllers: {COUNTS_IN_WORDS}.",
            json_schema_extra={"minimum": min(CONTROLLER_COUNTS), "maximum": max(CONTROLLER_COUNTS)},
        ),
        AfterValidator(_controller_count),
    ] = 3
    storage: Annotated[StorageSpec, kubernetes_only("The volume of each controller.")] = StorageSpec()


class BrokerGroupSpec(WorkloadSpec):
    """The desired state of a broker group."""

    replicas: Annotated[
        int,
        Field(
            ge=1,
            le=REPLICAS_MAX,
            description="Number of replicas of the group's log. One of them is the master at a time.",
        ),
    ]
    mode: Annotated[
        GroupMode,
        enum_by_value(GroupMode),
        Field(
            description="`Controller`: controllers elect the master. `MasterSlave`: the first replica is the "
            "master, and the others are its slaves for good. `DLedger`: one, three or five replicas elect "
            "the master by Raft. Immutable."
        ),
    ] = GroupMode.CONTROLLER
    acting_master: Annotated[
        bool | None,
        Field(
            description="Whether a slave acts for a master that is down, so that consumers read on. Only in "
            "the mode MasterSlave. Default there: true."
        ),
    ] = None
    broker_name: Annotated[
        RocketMQName | None,
        Field(description="RocketMQ's brokerName of all replicas. Default: the group's name. Immutable."),
    ] = None
    cluster: Annotated[RocketMQName, Field(description="RocketMQ's brokerClusterName. Immutable.")] = (
        "DefaultCluster"
    )
    controller_group: Annotated[
        DnsLabel | None,
        Field(
            max_length=NAME_LENGTH_MAX,
            description="ControllerGroup that elects the group's master. Default: one of its own, under the "
            "group's name. In the modes MasterSlave and DLedger the group uses its nameservers only. "
            "Immutable.",
        ),
    ] = None
    controllers: Annotated[
        OwnControllersSpec | None,
        Field(
            description="The group's own controllers. Not together with controllerGroup. Once given it "
            "stays: with it the controllers have the group's `spec.admin`, which a change of their number "
            "needs. Default: three controllers without `spec.admin`."
        ),
    ] = None
    min_in_sync_replicas: Annotated[
        int | None,
        Field(
            ge=1,
            le=REPLICAS_MAX,
            description="Number of replicas that must have a message before it is acknowledged. The master "
            "rejects messages while fewer are in the SyncStateSet. Default: 2 with three or more "
            "replicas, else 1; 1 in the mode MasterSlave. Not in the mode DLedger, where it is a majority of "
            "the replicas.",
        ),
    ] = None
    config: Annotated[
        dict[ConfigKey, ConfigValue],
        Field(
            max_length=CONFIG_KEYS_MAX,
            description="RocketMQ's broker keys, except those that the operator owns.",
        ),
    ] = {}
    hibernate: Annotated[
        bool,
        kubernetes_only(
            "Stops all replicas one after the other; their volumes stay. Set to false, the replicas start "
            "again, the last master first. The controllers keep running."
        ),
    ] = False
    external_services: Annotated[
        bool,
        kubernetes_only(
            "A Service of type LoadBalancer for each replica. Clients then get the replicas' names instead "
            "of their pods' addresses."
        ),
    ] = False
    restore_from: Annotated[
        RestoreFromSpec | None,
        kubernetes_only(
            "The backup from which a new group starts. It is restored to the volumes of all replicas before "
            "the first one starts, and never again. Not in the mode DLedger. Immutable."
        ),
    ] = None
    auth_secret: Annotated[
        DnsName | None,
        kubernetes_only(
            "Secret whose `auth.properties` holds the passwords of access control: RocketMQ's keys "
            "initAuthenticationUser and innerClientAuthenticationCredentials, one a line.",
            max_length=253,
        ),
    ] = None

    @model_validator(mode="after")
    def _check_external(self) -> Self:
        if self.external is not None and self.external_services:
            raise PydanticCustomError(
                "spans",
                "expected no such field together with spec.externalServices: remove one of them",
                {"at": "external"},
            )
        return self

    @model_validator(mode="after")
    def _check_own_controllers(self) -> Self:
        if self.controllers is not None and self.controller_group is not None:
            raise PydanticCustomError(
                "spans",
                "expected no such field together with spec.controllerGroup, which has a number of "
                "controllers of its own: remove it, and scale that ControllerGroup",
                {"at": "controllers"},
            )
        return self

    @model_validator(mode="after")
    def _check_member_authentication(self) -> Self:
        if self.member_authentication is not None and self.controller_group is not None:
            raise PydanticCustomError(
                "spans",
                "expected no such field together with spec.controllerGroup: remove it, and set it on that "
                "ControllerGroup",
                {"at": "memberAuthentication"},
            )
        return self

    @model_validator(mode="after")
    def _check_min_in_sync(self) -> Self:
        if self.min_in_sync_replicas is not None and self.min_in_sync_replicas > self.replicas:
            raise PydanticCustomError(
                "spans",
                "{value}, expected at most spec.replicas, which is {replicas}",
                {"at": "minInSyncReplicas", "value": self.min_in_sync_replicas, "replicas": self.replicas},
            )
        return self

    @model_validator(mode="after")
    def _check_acting_master(self) -> Self:
        if self.acting_master is not None and self.mode is not GroupMode.MASTER_SLAVE:
            raise PydanticCustomError(
                "spans",
                "{value}, expected no such field in the mode {mode}: {who} elect another master; "
                "remove it, or set spec.mode to MasterSlave in a new group",
                {
                    "at": "actingMaster",
                    "value": "true" if self.acting_master else "false",
                    "mode": str(self.mode),
                    "who": "the replicas" if self.mode is GroupMode.DLEDGER else "controllers",
                },
            )
        return self

    @model_validator(mode="after")
    def _check_dledger(self) -> Self:
        if self.mode is not GroupMode.DLEDGER:
            return self
        if self.replicas not in DLEDGER_COUNTS:
            raise PydanticCustomError(
                "spans",
                "{value}, expected {counts} in the mode DLedger: {why}",
                {
                    "at": "replicas",
                    "value": self.replicas,
                    "counts": COUNTS_IN_WORDS,
                    "why": "an even number tolerates no more failures than one fewer"
                    if self.replicas % 2 == 0
                    else "more replicas make elections and every message slower",
                },
            )
        if self.min_in_sync_replicas is not None:
            raise PydanticCustomError(
                "spans",
                "{value}, expected no such field in the mode DLedger: a message is acknowledged once a "
                "majority of the replicas has it; remove it",
                {"at": "minInSyncReplicas", "value": self.min_in_sync_replicas},
            )
        if self.hibernate:
            raise PydanticCustomError(
                "spans",
                "true, expected false: a group in the mode DLedger cannot hibernate yet, because a replica "
                "alone is no majority",
                {"at": "hibernate"},
            )
        if self.restore_from is not None:
            raise PydanticCustomError(
                "spans",
                "expected no such field in the mode DLedger, in which no backups are taken: remove it",
                {"at": "restoreFrom"},
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
        """The name of the ControllerGroup that elects its master. None: the first replica is always the
        master, or the replicas elect it themselves."""
        return self.nameservers_of if self.is_under_controllers else None

    @property
    def nameservers_of(self) -> str | None:
        """The name of the ControllerGroup whose nameservers it registers with. None: it has a nameserver of
        its own."""
        needs_own = self.spec.replicas > 1 and self.is_under_controllers
        return self.spec.controller_group or (self.name if needs_own else None)

    @property
    def min_in_sync(self) -> int:
        """The number of replicas that must have a message before it is acknowledged, unless `spec.config`
        sets another one. While a group scales up it has fewer replicas than the spec says."""
        wanted = self.spec.min_in_sync_replicas
        if self.is_dledger:
            return self.spec.replicas // 2 + 1
        if wanted is None:
            wanted = 2 if self.spec.replicas >= SAFE_REPLICAS and self.is_under_controllers else 1
        return min(wanted, self.spec.replicas)

    @property
    def is_under_controllers(self) -> bool:
        """Whether controllers elect the master, if the group has any."""
        return self.spec.mode is GroupMode.CONTROLLER

    @property
    def is_dledger(self) -> bool:
        """Whether the replicas elect the master by Raft among themselves."""
        return self.spec.mode is GroupMode.DLEDGER

    @property
    def is_master_slave(self) -> bool:
        """Whether the first replica is the master for good."""
        return self.spec.mode is GroupMode.MASTER_SLAVE

    @property
    def has_acting_master(self) -> bool:
        """Whether a slave acts for a master that is down."""
        return self.is_master_slave and self.spec.acting_master is not False

    @property
    def own_controllers(self) -> ControllerGroup | None:
        """The ControllerGroup that belongs to this group alone, if the group needs one and names none. On
        this machine a group in the modes MasterSlave and DLedger needs none."""
        if self.nameservers_of is None or self.spec.controller_group is not None:
            return None
        return self.default_controllers()

    def default_controllers(self) -> ControllerGroup:
        """The ControllerGroup of a group that names none. On Kubernetes such a group has one whatever its
        number of replicas: three replicas under controllers could not use what one replica wrote without
        them."""
        metadata = {"name": self.name, "namespace": self.metadata.namespace}
        spec: dict[str, Any] = {}
        if self.spec.controllers is not None:
            given = self.spec.controllers
            spec = given.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            spec["replicas"] = given.replicas
        if self.spec.member_authentication is not None:
            spec["memberAuthentication"] = self.spec.member_authentication
        return ControllerGroup.model_validate(
            {"apiVersion": API_VERSION, "kind": "ControllerGroup", "metadata": metadata, "spec": spec}
        )

    def with_controllers(self, controllers: ControllerGroup) -> BrokerGroup:
        """The same group with `spec.controllerGroup` set to these controllers."""
        mode = controllers.spec.member_authentication
        update = {"controller_group": controllers.name, "member_authentication": mode}
        return self.model_copy(update={"spec": self.spec.model_copy(update=update)})


class NameserverSpec(DocumentModel):
    """Where a ControllerGroup's nameservers run, and how many."""

    embedded: Annotated[
        bool,
        Field(description="In the controllers' processes. If false: in pods of their own."),
    ] = True
    replicas: Annotated[
        int | None,
        Field(
            ge=1,
            le=REPLICAS_MAX,
            description="Number of nameservers in pods of their own. Default: as many as controllers.",
        ),
    ] = None

    pods: Annotated[
        PodFields | None,
        kubernetes_only(
            "Fields of nameservers in pods of their own, in place of all of the spec's. Default: the spec's."
        ),
    ] = None

    @model_validator(mode="after")
    def _check_pods(self) -> Self:
        if self.embedded and self.pods is not None:
            raise PydanticCustomError(
                "spans",
                "expected no such field for embedded nameservers, which run in the controllers' pods: "
                "remove it, or create a new group with embedded: false",
                {"at": "pods"},
            )
        return self

    @model_validator(mode="after")
    def _check_replicas(self) -> Self:
        if self.embedded and self.replicas is not None:
            raise PydanticCustomError(
                "spans",
                "{value}, expected no such field for embedded nameservers, of which each controller has one: "
                "remove it, or create a new group with embedded: false",
                {"at": "replicas", "value": self.replicas},
            )
        return self


class ControllerGroupSpec(WorkloadSpec):
    """The desired state of a quorum of controllers."""

    replicas: Annotated[
        int,
        Field(
            description=f"Number of controllers: {COUNTS_IN_WORDS}.",
            json_schema_extra={"minimum": min(CONTROLLER_COUNTS), "maximum": max(CONTROLLER_COUNTS)},
        ),
        AfterValidator(_controller_count),
    ] = 3
    nameserver: Annotated[NameserverSpec, Field(description="The nameservers of the group.")] = (
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


def is_raft_group(group: GroupResource) -> bool:
    """Whether the replicas of the group are the members of a Raft group: controllers, or brokers in the mode
    DLedger."""
    return isinstance(group, ControllerGroup) or group.is_dledger


def with_member_count(group: GroupResource, replicas: int) -> GroupResource:
    """The same group with another number of members of its Raft group: controllers, or brokers in the mode
    DLedger. It is even in the middle of a change."""
    return group.model_copy(update={"spec": group.spec.model_copy(update={"replicas": replicas})})


KINDS: Mapping[str, type[BrokerGroup] | type[ControllerGroup]] = {
    "BrokerGroup": BrokerGroup,
    "ControllerGroup": ControllerGroup,
}
