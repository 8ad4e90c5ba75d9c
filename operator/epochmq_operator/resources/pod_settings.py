"""Defines the model of `spec.pod`: fields of Kubernetes' pods that the operator passes on."""

from __future__ import annotations

import posixpath
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from epochmq_operator.resources.documents import SCHEMA, DocumentModel, kubernetes_only
from epochmq_operator.resources.pod_values import DnsName, LabelKey, ResourcesSpec

AFFINITIES = ("nodeAffinity", "podAffinity", "podAntiAffinity")
OWN_VARIABLES = frozenset({"POD_IP", "POD_NAME"})
VARIABLES_MAX = 64
SUPPLEMENTAL_GROUPS_MAX = 32
VOLUMES_MAX = 32
SOURCE_FIELDS_MAX = 16
SECRETS_MAX = 16
CONSTRAINTS_MAX = 8
OWN_VOLUMES = frozenset(
    {"admin-secrets", "auth", "client-tls", "config", "data", "members", "run", "store", "tmp"}
)
"""The volumes that the operator makes."""
OWN_DIRECTORIES = (
    "/etc/epochmq",
    "/etc/epochmq-admin",
    "/etc/epochmq-auth",
    "/etc/epochmq-members",
    "/etc/epochmq-tls",
    "/run/epochmq",
    "/tmp",
    "/var/lib/epochmq",
)
"""Where the operator mounts its volumes."""
VOLUME_NAME = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
MOUNT_PATH = r"^/[^:]*$"
PRIORITY_CLASS = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
AFFINITY_TEXT = (
    "Affinity of the pods, as in Kubernetes: nodeAffinity, podAffinity and podAntiAffinity. The terms of "
    "podAntiAffinity are added to those of `hostSpread`."
)

Id = Annotated[int, Field(ge=1, le=2**31 - 1)]


def _known_affinities(value: dict[str, Any]) -> dict[str, Any]:
    for key, inner in value.items():
        if key not in AFFINITIES or not isinstance(inner, dict):
            raise PydanticCustomError(
                "refused", "expected mappings {known}", {"known": ", ".join(AFFINITIES)}
            )
    return value


class EnvironmentVariable(DocumentModel):
    """An environment variable of the pods' main container."""

    name: Annotated[
        str, kubernetes_only("Name of the variable.", min_length=1, max_length=256, pattern=VARIABLE)
    ]
    value: Annotated[str, kubernetes_only("Value of the variable.", max_length=4096)] = ""


class PodSecurity(DocumentModel):
    """Fields of the pods' security context."""

    run_as_user: Annotated[Id | None, kubernetes_only("User. Default: the operator's setting.")] = None
    run_as_group: Annotated[Id | None, kubernetes_only("Group. Default: the operator's setting.")] = None
    fs_group: Annotated[
        Id | None, kubernetes_only("Group that owns the volumes. Default: the operator's setting.")
    ] = None
    supplemental_groups: Annotated[
        list[Id], kubernetes_only("More groups.", max_length=SUPPLEMENTAL_GROUPS_MAX)
    ] = []


def _source(what: str) -> Any:
    """A source of a volume, whose fields are Kubernetes'."""
    text = f"{what}, as in Kubernetes."
    schema: dict[str, Any] = {"description": text, "type": "object", "maxProperties": SOURCE_FIELDS_MAX}
    schema["x-kubernetes-preserve-unknown-fields"] = True
    return Field(description=text, max_length=SOURCE_FIELDS_MAX, json_schema_extra={SCHEMA: schema})


class ExtraVolume(DocumentModel):
    """A volume of the pods: its name, and one source. A directory of the node is no source, because it would
    give away the node to everybody who may create a group."""

    name: Annotated[
        str, kubernetes_only("Name of the volume.", min_length=1, max_length=63, pattern=VOLUME_NAME)
    ]
    config_map: Annotated[dict[str, Any] | None, _source("A ConfigMap")] = None
    secret: Annotated[dict[str, Any] | None, _source("A Secret")] = None
    projected: Annotated[dict[str, Any] | None, _source("Several sources in one directory")] = None
    empty_dir: Annotated[dict[str, Any] | None, _source("An empty directory")] = None
    persistent_volume_claim: Annotated[
        dict[str, Any] | None, _source("A volume claim, which all pods share")
    ] = None
    csi: Annotated[dict[str, Any] | None, _source("A volume of a CSI driver")] = None

    def source(self) -> dict[str, Any]:
        """The volume as Kubernetes has it."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if len(self.model_fields_set) != 2 or len(self.source()) != 2:
            raise PydanticCustomError(
                "refused",
                "expected a name and one source: configMap, secret, projected, emptyDir, "
                "persistentVolumeClaim or csi",
            )
        return self


class VolumeMount(DocumentModel):
    """Where a volume of `volumes` is in the pods' main container."""

    name: Annotated[
        str,
        kubernetes_only("Name of a volume in `volumes`.", min_length=1, max_length=63, pattern=VOLUME_NAME),
    ]
    mount_path: Annotated[
        str, kubernetes_only("Its directory.", min_length=2, max_length=1024, pattern=MOUNT_PATH)
    ]
    sub_path: Annotated[
        str | None, kubernetes_only("Path in the volume. Default: all of it.", min_length=1, max_length=1024)
    ] = None
    read_only: Annotated[bool, kubernetes_only("Whether the container may only read it.")] = False


class SpreadConstraint(DocumentModel):
    """How evenly the pods of one component of the group are spread over nodes with different values of a
    label."""

    topology_key: Annotated[LabelKey, kubernetes_only("Label of the nodes.", min_length=1)]
    max_skew: Annotated[int, kubernetes_only("Greatest difference of the numbers of pods.", ge=1, le=9)] = 1
    when_unsatisfiable: Annotated[
        Literal["ScheduleAnyway", "DoNotSchedule"],
        kubernetes_only("Whether a pod stays pending rather than exceed it."),
    ] = "ScheduleAnyway"


class PodSettings(DocumentModel):
    """Fields of Kubernetes' pods that the operator passes on."""

    priority_class_name: Annotated[
        str | None,
        kubernetes_only("PriorityClass of the pods.", min_length=1, max_length=253, pattern=PRIORITY_CLASS),
    ] = None
    affinity: Annotated[
        dict[str, Any],
        AfterValidator(_known_affinities),
        Field(
            description=AFFINITY_TEXT,
            max_length=len(AFFINITIES),
            json_schema_extra={
                SCHEMA: {
                    "description": AFFINITY_TEXT,
                    "type": "object",
                    "maxProperties": len(AFFINITIES),
                    "x-kubernetes-preserve-unknown-fields": True,
                }
            },
        ),
    ] = {}
    env: Annotated[
        list[EnvironmentVariable],
        kubernetes_only("Environment variables of the pods' main container.", max_length=VARIABLES_MAX),
    ] = []
    sidecar_resources: Annotated[
        ResourcesSpec | None,
        kubernetes_only(
            "Resource requests and limits of the admin sidecar. Default: requests of 10m CPU and 64Mi memory."
        ),
    ] = None
    image_pull_secrets: Annotated[
        list[Annotated[DnsName, Field(max_length=253)]],
        kubernetes_only(
            "Secrets for pulling images, besides those of the operator's setting.", max_length=SECRETS_MAX
        ),
    ] = []
    topology_spread_constraints: Annotated[
        list[SpreadConstraint],
        kubernetes_only(
            "Spread of the pods over more topologies than nodes and zones, for which there are `hostSpread` "
            "and `zoneSpread`.",
            max_length=CONSTRAINTS_MAX,
        ),
    ] = []
    volumes: Annotated[list[ExtraVolume], kubernetes_only("More volumes.", max_length=VOLUMES_MAX)] = []
    volume_mounts: Annotated[
        list[VolumeMount],
        kubernetes_only("Where these volumes are in the pods' main container.", max_length=VOLUMES_MAX),
    ] = []
    security_context: Annotated[PodSecurity, kubernetes_only("Fields of the pods' security context.")] = (
        PodSecurity()
    )

    @model_validator(mode="after")
    def _check_variables(self) -> Self:
        seen = set(OWN_VARIABLES)
        for one in self.env:
            if one.name in seen:
                why = "the operator sets it" if one.name in OWN_VARIABLES else "it is given twice"
                raise PydanticCustomError(
                    "spans",
                    "{name}: {why}, expected another name",
                    {"at": "env", "name": one.name, "why": why},
                )
            seen.add(one.name)
        return self

    @model_validator(mode="after")
    def _check_volumes(self) -> Self:
        seen = set(OWN_VOLUMES)
        for volume in self.volumes:
            if volume.name in seen:
                why = "the operator makes it" if volume.name in OWN_VOLUMES else "it is given twice"
                _refuse("volumes", volume.name, f"{why}, expected another name")
            seen.add(volume.name)
        paths: set[str] = set()
        for mount in self.volume_mounts:
            if mount.name in OWN_VOLUMES or mount.name not in seen:
                _refuse("volumeMounts", mount.name, "expected the name of a volume in volumes")
            path = posixpath.normpath(mount.mount_path)
            own = next((one for one in OWN_DIRECTORIES if _overlaps(path, one)), None)
            if own is not None:
                why = f"the operator mounts {own}, expected a directory apart from it"
                _refuse("volumeMounts", mount.mount_path, why)
            if path in paths:
                _refuse("volumeMounts", mount.mount_path, "it is given twice, expected another directory")
            paths.add(path)
        return self

    @model_validator(mode="after")
    def _check_constraints(self) -> Self:
        seen = set()
        for one in self.topology_spread_constraints:
            if (one.topology_key, one.when_unsatisfiable) in seen:
                why = "it is given twice, expected another topologyKey"
                _refuse("topologySpreadConstraints", one.topology_key, why)
            seen.add((one.topology_key, one.when_unsatisfiable))
        return self


def _overlaps(path: str, own: str) -> bool:
    """Whether one of these directories is in the other one."""
    return posixpath.commonpath([path, own]) in (path, own)


def _refuse(at: str, name: str, why: str) -> NoReturn:
    raise PydanticCustomError("spans", "{name}: {why}", {"at": at, "name": name, "why": why})
