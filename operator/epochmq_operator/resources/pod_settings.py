"""Defines the model of `spec.pod`: fields of Kubernetes' pods that the operator passes on."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from epochmq_operator.resources.documents import SCHEMA, DocumentModel, kubernetes_only

AFFINITIES = ("nodeAffinity", "podAffinity", "podAntiAffinity")
OWN_VARIABLES = frozenset({"POD_IP", "POD_NAME"})
VARIABLES_MAX = 64
SUPPLEMENTAL_GROUPS_MAX = 32
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
