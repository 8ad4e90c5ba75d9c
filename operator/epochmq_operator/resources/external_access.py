"""Defines the model of `spec.external`: how clients outside the cluster reach a group's pods."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from epochmq_operator.resources.documents import DocumentModel, enum_by_value, kubernetes_only

ORDINAL = "{ordinal}"
HOST = r"^[a-z0-9{]([a-z0-9.{}-]*[a-z0-9}])?$"
ANNOTATION = r"^[a-zA-Z0-9]([a-zA-Z0-9./_-]*[a-zA-Z0-9])?$"
ANNOTATIONS_MAX = 32


class ExternalType(StrEnum):
    """What forwards connections from outside the cluster to a pod."""

    LOAD_BALANCER = "LoadBalancer"
    NODE_PORT = "NodePort"
    HOST_PORT = "HostPort"


class ExternalAccess(DocumentModel):
    """How clients outside the cluster reach a group's pods. They connect to ports of their own, at which
    nameservers give them the brokers' external addresses."""

    type: Annotated[
        ExternalType,
        enum_by_value(ExternalType),
        kubernetes_only(
            "`LoadBalancer`, `NodePort`: a Service of this type for each broker, or one for the "
            "nameservers. `HostPort`: a port of each pod's node."
        ),
    ]
    host: Annotated[
        str | None,
        kubernetes_only(
            "Name or IPv4 address that clients outside get, with `{ordinal}` in place of the broker's "
            "ordinal. Also an annotation of the Services for external-dns. Default: the address of the pod's "
            "node.",
            max_length=200,
            pattern=HOST,
        ),
    ] = None
    node_port: Annotated[
        int | None,
        kubernetes_only(
            "Port of the nodes for the type NodePort. Broker N has this port plus N.", ge=1024, le=65500
        ),
    ] = None
    tls_mode: Annotated[
        Literal["disabled", "permissive", "enforcing"] | None,
        kubernetes_only("Whether the external port accepts TLS. Default: `tlsServerMode` of `spec.config`."),
    ] = None
    annotations: Annotated[
        dict[
            Annotated[str, Field(max_length=253, pattern=ANNOTATION)], Annotated[str, Field(max_length=1024)]
        ],
        kubernetes_only("Annotations of the Services.", max_length=ANNOTATIONS_MAX),
    ] = {}

    def host_of(self, ordinal: int) -> str | None:
        """The name or address of a pod; None: that of its node."""
        return None if self.host is None else self.host.replace(ORDINAL, str(ordinal))

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        missing = {
            ExternalType.LOAD_BALANCER: ("host", self.host),
            ExternalType.NODE_PORT: ("nodePort", self.node_port),
        }
        name, value = missing.get(self.type, ("", ""))
        if value is None:
            raise PydanticCustomError(
                "spans",
                "missing, expected a value with the type {type}",
                {"at": name, "type": str(self.type)},
            )
        return self
