"""Defines the fields of pods that users may set: the same for brokers, controllers and nameservers."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from epochmq_operator.resources.documents import DocumentModel, enum_by_value, kubernetes_only
from epochmq_operator.resources.pod_settings import PodSettings
from epochmq_operator.resources.pod_values import (
    IMAGE,
    LABELS_MAX,
    TOLERATIONS_MAX,
    Label,
    LabelKey,
    OwnLabelKey,
    PullPolicy,
    ResourcesSpec,
    Spread,
    Toleration,
)

ZONE = "topology.kubernetes.io/zone"


class PodFields(DocumentModel):
    """The fields of pods."""

    image: Annotated[
        str | None,
        kubernetes_only("Image of the pods. Default: the operator's setting.", max_length=500, pattern=IMAGE),
    ] = None
    image_pull_policy: Annotated[
        PullPolicy, enum_by_value(PullPolicy), kubernetes_only("When a node pulls the image.")
    ] = PullPolicy.IF_NOT_PRESENT
    resources: Annotated[
        ResourcesSpec, kubernetes_only("Resource requests and limits of the pods' main container.")
    ] = ResourcesSpec(requests={"cpu": "50m", "memory": "128Mi"})
    host_spread: Annotated[
        Spread,
        enum_by_value(Spread),
        kubernetes_only(
            "Keeps the group's pods on different nodes. With `Required` a pod stays pending rather than "
            "share a node."
        ),
    ] = Spread.PREFERRED
    zone_spread: Annotated[
        Spread,
        enum_by_value(Spread),
        kubernetes_only("Spreads the group's pods evenly over zones (`topology.kubernetes.io/zone`)."),
    ] = Spread.PREFERRED
    node_selector: Annotated[
        dict[LabelKey, Label],
        kubernetes_only("Labels that the pods' nodes must have.", max_length=LABELS_MAX),
    ] = {}
    tolerations: Annotated[
        list[Toleration], kubernetes_only("Tolerations of the pods.", max_length=TOLERATIONS_MAX)
    ] = []
    pod_labels: Annotated[
        dict[OwnLabelKey, Label], kubernetes_only("Additional labels of the pods.", max_length=LABELS_MAX)
    ] = {}
    pod_annotations: Annotated[
        dict[OwnLabelKey, Annotated[str, Field(max_length=1024)]],
        kubernetes_only("Additional annotations of the pods.", max_length=LABELS_MAX),
    ] = {}
    pod: Annotated[PodSettings, kubernetes_only("Other fields of Kubernetes' pods.")] = PodSettings()

    @model_validator(mode="after")
    def _check_constraints(self) -> Self:
        zones = [one for one in self.pod.topology_spread_constraints if one.topology_key == ZONE]
        if zones and self.zone_spread is not Spread.NONE:
            raise PydanticCustomError(
                "spans",
                "{key}, expected another topologyKey: zoneSpread spreads the pods over zones; set it to None",
                {"at": "pod.topologySpreadConstraints", "key": ZONE},
            )
        return self
