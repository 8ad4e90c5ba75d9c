"""Renders all objects of a group."""

# pure: data in, data out.

from __future__ import annotations

from epochmq_operator.manifests.names import (
    address,
    component_selector,
    components_of,
    headless_service,
    labels,
)
from epochmq_operator.manifests.network import network_policy, services
from epochmq_operator.manifests.pod import (
    AUTH_DIRECTORY,
    AUTH_FILE,
    CONFIG_DIRECTORY,
    VOLUME_DIRECTORY,
    auth_secret,
    pod_template,
    sidecar_placement,
)
from epochmq_operator.manifests.settings import JsonObject, ManifestSettings
from epochmq_operator.pod_rendering import (
    Component,
    Pod,
    PodIdentity,
    PodPlacement,
    component_name,
    pods_of,
    render_pods,
)
from epochmq_operator.resources import BrokerGroup, ControllerGroup, GroupResource

BUDGET_FROM = 3
"""From this number of controllers on a group tolerates the loss of one. For fewer, a budget would only block
the draining of nodes."""


def render_kubernetes_pods(
    group: GroupResource, controllers: ControllerGroup | None, settings: ManifestSettings
) -> tuple[Pod, ...]:
    """The group's pods with their placements on Kubernetes. `controllers` is the ControllerGroup of a broker
    group. On Kubernetes every broker group needs one, also a group of one replica: data written without
    controllers cannot be used under them. A group in the mode MasterSlave uses its nameservers only.
    ValueError for a broker group without."""
    group = _with_controllers(group, controllers)
    members = [group, *([controllers] if controllers is not None and isinstance(group, BrokerGroup) else [])]
    places = {identity.name: _placement(one, identity) for one in members for identity in pods_of(one)}
    return render_pods(group, places, controllers if isinstance(group, BrokerGroup) else None)


def _with_controllers(group: GroupResource, controllers: ControllerGroup | None) -> GroupResource:
    if not isinstance(group, BrokerGroup):
        return group
    if controllers is None:
        raise ValueError(f"BrokerGroup {group.name} has no controllers, expected those that elect its master")
    return group.with_controllers(controllers)


def _placement(group: GroupResource, identity: PodIdentity) -> PodPlacement:
    return PodPlacement(
        address=address(identity.name, group.name, identity.component, group.metadata.namespace),
        bind_address="0.0.0.0",
        config_directory=CONFIG_DIRECTORY,
        volumes={volume: f"{VOLUME_DIRECTORY}/{volume}" for volume in identity.volumes},
        config_name=identity.name,
        admin=sidecar_placement(group),
        auth_secrets=None if auth_secret(group) is None else f"{AUTH_DIRECTORY}/{AUTH_FILE}",
    )


def render_manifests(
    group: GroupResource, controllers: ControllerGroup | None, settings: ManifestSettings
) -> tuple[JsonObject, ...]:
    """All objects of the group in the order in which they are applied: what pods need comes before the
    StatefulSets. `controllers` as for `render_kubernetes_pods`; the objects of a group's own ControllerGroup
    are not included, because it is a resource of its own. Equal groups give the same objects, byte for byte.
    """
    group = _with_controllers(group, controllers)
    rendered = render_kubernetes_pods(group, controllers, settings)
    before: list[JsonObject] = []
    sets: list[JsonObject] = []
    for component in components_of(group):
        own = tuple(pod for pod in rendered if pod.component is component)
        before += [_service_account(group, component), _config_map(group, component, own)]
        before += services(group, component, own)
        if settings.network_policies:
            before.append(network_policy(group, component, own[0], settings))
        if component is not Component.CONTROLLER or len(own) >= BUDGET_FROM:
            before.append(_budget(group, component))
        sets.append(_stateful_set(group, component, own, settings))
    return (*before, *sets)


def _object(api_version: str, kind: str, group: GroupResource, component: Component) -> JsonObject:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": component_name(group.name, component),
            "namespace": group.metadata.namespace,
            "labels": labels(group, component),
        },
    }


def _service_account(group: GroupResource, component: Component) -> JsonObject:
    """The pods send no requests to the API server, so their account has no token."""
    return {**_object("v1", "ServiceAccount", group, component), "automountServiceAccountToken": False}


def _config_map(group: GroupResource, component: Component, pods: tuple[Pod, ...]) -> JsonObject:
    data = {file.path.rpartition("/")[2]: file.text for pod in pods for file in pod.files}
    return {**_object("v1", "ConfigMap", group, component), "data": data}


def _budget(group: GroupResource, component: Component) -> JsonObject:
    """At most one pod at a time is evicted, and only while the others are ready."""
    return {
        **_object("policy/v1", "PodDisruptionBudget", group, component),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": component_selector(group, component)},
        },
    }


def _stateful_set(
    group: GroupResource, component: Component, pods: tuple[Pod, ...], settings: ManifestSettings
) -> JsonObject:
    """The update strategy is OnDelete, because a StatefulSet does not know the order in which pods may
    restart."""
    return {
        **_object("apps/v1", "StatefulSet", group, component),
        "spec": {
            "replicas": len(pods),
            "serviceName": headless_service(group.name, component),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 5,
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": str(group.spec.storage.retention),
                "whenScaled": "Retain",
            },
            "selector": {"matchLabels": component_selector(group, component)},
            "template": pod_template(group, pods[0], settings),
            "volumeClaimTemplates": [_claim(group, component, volume.name) for volume in pods[0].volumes],
        },
    }


def _claim(group: GroupResource, component: Component, volume: str) -> JsonObject:
    storage = group.spec.storage
    spec: JsonObject = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": volume, "labels": labels(group, component)},
        "spec": spec,
    }
