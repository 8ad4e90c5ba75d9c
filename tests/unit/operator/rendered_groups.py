"""Resources with every field, and the manifests that they render to."""

from __future__ import annotations

from typing import Any

from epochmq_operator.manifests import (
    JsonObject,
    ManifestSettings,
    render_manifests,
)
from epochmq_operator.resources import (
    BrokerGroup,
    ControllerGroup,
    GroupResource,
)

SETTINGS = ManifestSettings(
    "epochmq/broker:1", "epochmq/controller:1", "epochmq-system", monitoring_namespaces=("watch",)
)


def broker_group(name: str = "orders", namespace: str = "shop", **spec: Any) -> BrokerGroup:
    return BrokerGroup.model_validate(
        {
            "apiVersion": "epochmq.io/v1alpha1",
            "kind": "BrokerGroup",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"replicas": 3, **spec},
        }
    )


def controller_group(name: str = "quorum", namespace: str = "shop", **spec: Any) -> ControllerGroup:
    return ControllerGroup.model_validate(
        {
            "apiVersion": "epochmq.io/v1alpha1",
            "kind": "ControllerGroup",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
    )


def made(group: GroupResource, settings: ManifestSettings = SETTINGS) -> tuple[JsonObject, ...]:
    controllers = group.default_controllers() if isinstance(group, BrokerGroup) else None
    return render_manifests(group, controllers, settings)


def of_kind(kind: str, objects: tuple[JsonObject, ...]) -> list[JsonObject]:
    return [one for one in objects if one["kind"] == kind]


EVERYTHING = broker_group(
    replicas=2,
    brokerName="Orders_EU",
    cluster="Shop",
    minInSyncReplicas=2,
    config={"flushDiskType": "SYNC_FLUSH", "maxMessageSize": 65536},
    image="registry.example/broker@sha256:" + "0" * 64,
    imagePullPolicy="Always",
    storage={"size": "1Ti", "storageClassName": "fast", "retention": "Delete"},
    resources={"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
    hostSpread="Required",
    zoneSpread="Required",
    externalServices=True,
    nodeSelector={"disk": "nvme"},
    tolerations=[{"key": "brokers", "operator": "Exists", "effect": "NoSchedule"}],
    podLabels={"team": "orders"},
    podAnnotations={"note": "mine"},
    admin={"tokenSecret": "orders-token", "tlsSecret": "orders-tls"},
    authSecret="orders-auth",
    clientTlsSecret="orders-client-tls",
)
