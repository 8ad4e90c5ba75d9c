"""Defines values of Kubernetes' pods: labels, quantities, resources and tolerations."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from epochmq_operator.resources.documents import SCHEMA, DocumentModel, kubernetes_only

LABELS_MAX = 32
TOLERATIONS_MAX = 32
DNS_NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
IMAGE = r"^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$"
QUANTITY = r"^[0-9]+(\.[0-9]{1,3})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
LABEL_KEY = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"


def _own_label(key: str) -> str:
    if key.partition("/")[0].endswith(("epochmq.io", "kubernetes.io")):
        raise PydanticCustomError("refused", "expected no key of epochmq.io or kubernetes.io")
    return key


class Spread(StrEnum):
    """How strictly the scheduler keeps a group's pods apart. The first member is not `Off`, which YAML reads
    as false."""

    NONE = "None"
    PREFERRED = "Preferred"
    REQUIRED = "Required"


class PullPolicy(StrEnum):
    """When a node pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


DnsName = Annotated[str, Field(min_length=1, pattern=DNS_NAME)]
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


class ResourcesSpec(DocumentModel):
    """Resource requests and limits of the pod's main container."""

    requests: Annotated[
        dict[LabelKey, Quantity], kubernetes_only("Resources that the scheduler reserves.", max_length=8)
    ] = {}
    limits: Annotated[
        dict[LabelKey, Quantity], kubernetes_only("Upper limits of resources.", max_length=8)
    ] = {}


class Toleration(DocumentModel):
    """A toleration of a node's taint, as in Kubernetes."""

    key: Annotated[str | None, kubernetes_only("The taint's key. Default: all keys.", max_length=316)] = None
    operator: Annotated[
        Literal["Exists", "Equal"], kubernetes_only("Whether the taint's value is compared.")
    ] = "Equal"
    value: Annotated[str | None, kubernetes_only("The taint's value.", max_length=63)] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        kubernetes_only("The tolerated effect. Default: all effects."),
    ] = None
    toleration_seconds: Annotated[
        int | None, kubernetes_only("How long NoExecute is tolerated. Default: without limit.", ge=0)
    ] = None
