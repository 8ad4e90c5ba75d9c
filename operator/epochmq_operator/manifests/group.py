"""Renders all objects of a group."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from epochmq_operator.manifests.external import external_config
from epochmq_operator.manifests.kept_templates import content_digest, template_annotations, template_inputs
from epochmq_operator.manifests.names import (
    RESTART_ANNOTATION,
    address,
    component_selector,
    components_of,
    config_map_name,
    headless_service,
    labels,
)
from epochmq_operator.manifests.network import network_policy, services
from epochmq_operator.manifests.pod import (
    AUTH_DIRECTORY,
    AUTH_FILE,
    CONFIG_DIRECTORY,
    MEMBERS_DIRECTORY,
    MEMBERS_FILE,
    VOLUME_DIRECTORY,
    auth_secret,
    client_tls_files,
    default_image,
    member_secret,
    pod_template,
    sidecar_placement,
)
from epochmq_operator.manifests.restart_digest import restart_digest
from epochmq_operator.manifests.settings import JsonObject, ManifestSettings
from epochmq_operator.pod_rendering import (
    NAMESERVER_PORT,
    component_name,
    pods_of,
    possible_pods_of,
    render_pods,
)
from epochmq_operator.pods import (
    Component,
    Pod,
    PodIdentity,
    PodPlacement,
)
from epochmq_operator.quorum_steps import Founders
from epochmq_operator.resources import BrokerGroup, ControllerGroup, GroupResource, MemberMode

BUDGET_FROM = 3
"""From this number of controllers on a group tolerates the loss of one. For fewer, a budget would only block
the draining of nodes."""


def render_kubernetes_pods(
    group: GroupResource, controllers: ControllerGroup | None, settings: ManifestSettings
) -> tuple[Pod, ...]:
    """The group's pods with their placements on Kubernetes. `controllers` is the ControllerGroup of a broker
    group. On Kubernetes every broker group needs one, also a group of one replica: data written without
    controllers cannot be used under them. A group in the modes MasterSlave and DLedger uses its nameservers
    only. ValueError for a broker group without."""
    group = _with_controllers(group, controllers)
    return _pods(group, controllers, pods_of(group))


def _pods(
    group: GroupResource,
    controllers: ControllerGroup | None,
    identities: tuple[PodIdentity, ...],
    founders: int | None = None,
) -> tuple[Pod, ...]:
    places = {identity.name: _placement(group, identity) for identity in identities}
    if not isinstance(group, BrokerGroup) or controllers is None:
        return render_pods(group, places, None, identities, founders)
    name = _nameservers_name(controllers)
    places = {pod: replace(place, nameservers=name) for pod, place in places.items()}
    places |= {identity.name: _placement(controllers, identity) for identity in pods_of(controllers)}
    return render_pods(group, places, controllers, identities, founders)


def _nameservers_name(controllers: ControllerGroup) -> str | None:
    """`host:port` with the name of the headless Service of separate nameservers, so that their number can
    change without a change of the brokers. None for embedded ones."""
    if controllers.spec.nameserver.embedded:
        return None
    service = headless_service(controllers.name, Component.NAMESERVER)
    return f"{service}.{controllers.metadata.namespace}.svc:{NAMESERVER_PORT}"


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
        client_tls=client_tls_files(group),
        external=external_config(group, identity),
        member_secret=None if member_secret(group) is None else f"{MEMBERS_DIRECTORY}/{MEMBERS_FILE}",
        unproven_members=group.spec.member_authentication is MemberMode.ACCEPT,
    )


def render_manifests(
    group: GroupResource,
    controllers: ControllerGroup | None,
    settings: ManifestSettings,
    founders: Founders | None = None,
) -> tuple[JsonObject, ...]:
    """All objects of the group in the order in which they are applied: what pods need comes before the
    StatefulSets. `controllers` as for `render_kubernetes_pods`; the objects of a group's own ControllerGroup
    are not included, because it is a resource of its own. `founders` are those of a controller group or
    of a group in the mode DLedger; None for all of its members. Equal groups give the same objects, byte for
    byte."""
    group = _with_controllers(group, controllers)
    names = {identity.name for identity in pods_of(group)}
    number = None if founders is None else founders.number
    possible = _pods(group, controllers, possible_pods_of(group), number)
    image = group.spec.image or default_image(group, settings)
    inputs = template_inputs(group, controllers, image, founders)
    before: list[JsonObject] = []
    sets: list[JsonObject] = []
    for component in components_of(group):
        of_component = [pod for pod in possible if pod.component is component]
        own = tuple(pod for pod in of_component if pod.name in names)
        data = _config_files(of_component)
        before += [_service_account(group, component), _config_map(group, component, data)]
        before += services(group, component, own)
        if settings.network_policies:
            before.append(network_policy(group, component, own[0], settings))
        if component is not Component.CONTROLLER or len(own) >= BUDGET_FROM:
            before.append(_budget(group, component))
        template = _template(group, component, own[0], data, settings)
        sets.append(_stateful_set(group, component, own, template, template_annotations(inputs, template)))
    return (*before, *sets)


def _template(
    group: GroupResource, component: Component, first: Pod, data: dict[str, str], settings: ManifestSettings
) -> JsonObject:
    """The pod template of a component, given its first pod and its configuration files by name."""
    template = pod_template(group, first, content_digest(data), settings)
    digest = restart_digest(component, pod_template(group, first, "", settings), data)
    if digest is not None:
        template["metadata"]["annotations"][RESTART_ANNOTATION] = digest
    return template


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


def _config_files(pods: Iterable[Pod]) -> dict[str, str]:
    return {file.path.rpartition("/")[2]: file.text for pod in pods for file in pod.files}


def _config_map(group: GroupResource, component: Component, data: dict[str, str]) -> JsonObject:
    """The configuration of a component, also of pods that it does not have yet: so scaling up changes no
    template. A running pod keeps its configuration, because another one has another name."""
    found = _object("v1", "ConfigMap", group, component)
    found["metadata"]["name"] = config_map_name(group.name, component, content_digest(data))
    return {**found, "immutable": True, "data": data}


def _budget(group: GroupResource, component: Component) -> JsonObject:
    """At most one ready pod at a time is evicted, and only while the others are ready. A pod that is not
    ready serves nothing, so its eviction is always allowed."""
    return {
        **_object("policy/v1", "PodDisruptionBudget", group, component),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": component_selector(group, component)},
        },
    }


def _stateful_set(
    group: GroupResource,
    component: Component,
    pods: tuple[Pod, ...],
    template: JsonObject,
    annotations: dict[str, str],
) -> JsonObject:
    """The update strategy is OnDelete, because a StatefulSet does not know the order in which pods may
    restart. The volume claims do not go with the StatefulSet, which somebody may delete while the group
    lives: the operator makes the group itself their owner if they are to go with it (`plans.volumes`)."""
    found = _object("apps/v1", "StatefulSet", group, component)
    found["metadata"]["annotations"] = annotations
    return {
        **found,
        "spec": {
            "replicas": len(pods),
            "serviceName": headless_service(group.name, component),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 5,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": component_selector(group, component)},
            "template": template,
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
