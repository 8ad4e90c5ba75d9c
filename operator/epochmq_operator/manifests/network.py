"""Renders Services and NetworkPolicies."""

# pure: data in, data out.

from __future__ import annotations

from epochmq_operator.manifests.external import EXTERNAL_PORTS, external_access, external_services
from epochmq_operator.manifests.names import (
    component_selector,
    headless_service,
    labels,
    nameserver_service,
    replica_service,
)
from epochmq_operator.manifests.settings import JsonObject, ManifestSettings
from epochmq_operator.pod_rendering import (
    ADMIN_PORT,
    CONTROLLER_PORT,
    NAMESERVER_PORT,
    component_name,
)
from epochmq_operator.pods import (
    Component,
    Pod,
    PodPort,
)
from epochmq_operator.resources import BrokerGroup, ControllerGroup, GroupResource

FROM_OUTSIDE = ("remoting", "vip")
"""The broker's ports for clients."""


def _metadata(group: GroupResource, component: Component, name: str) -> JsonObject:
    return {"name": name, "namespace": group.metadata.namespace, "labels": labels(group, component)}


def _service(
    group: GroupResource, component: Component, name: str, spec: JsonObject, ports: list[PodPort]
) -> JsonObject:
    listed = [{"name": port.name, "port": port.number, "targetPort": port.number} for port in ports]
    selector = {**component_selector(group, component), **spec.pop("selector", {})}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(group, component, name),
        "spec": {**spec, "selector": selector, "ports": listed},
    }


def services(group: GroupResource, component: Component, pods: tuple[Pod, ...]) -> list[JsonObject]:
    """The Services of a component, the headless one first. That one also lists pods that are not ready:
    controllers must find each other before there is a quorum."""
    first = pods[0]
    spec: JsonObject = {"clusterIP": "None", "publishNotReadyAddresses": True}
    ports = [*first.ports, *([first.sidecar.port] if first.sidecar else [])]
    found = [_service(group, component, headless_service(group.name, component), spec, ports)]
    nameserver = [PodPort("nameserver", NAMESERVER_PORT)]
    if isinstance(group, ControllerGroup) and any(port.number == NAMESERVER_PORT for port in first.ports):
        found.append(_service(group, component, nameserver_service(group.name), {}, nameserver))
    if isinstance(group, BrokerGroup) and group.spec.external_services:
        outside = [port for port in first.ports if port.name in FROM_OUTSIDE]
        for pod in pods:
            spec = {"type": "LoadBalancer", "selector": {"statefulset.kubernetes.io/pod-name": pod.name}}
            found.append(_service(group, component, replica_service(group.name, pod.ordinal), spec, outside))
    return found + external_services(group, component, pods)


def network_policy(
    group: GroupResource, component: Component, first: Pod, settings: ManifestSettings
) -> JsonObject:
    """The NetworkPolicy of the component's pods. Clients may connect from anywhere. The controllers' port is
    open to the namespace that they serve, the HA port and the DLedger port to the group itself, and the admin
    port to the operator and to the namespaces that collect metrics."""
    group_only = [{"podSelector": {"matchLabels": component_selector(group, component)}}]
    ingress: list[JsonObject] = []
    if external_access(group, component) is not None:
        ingress.append({"ports": [{"protocol": "TCP", "port": EXTERNAL_PORTS[component]}]})
    for port in first.ports:
        allowed: JsonObject = {"ports": [{"protocol": "TCP", "port": port.number}]}
        if port.name in ("ha", "dledger"):
            allowed["from"] = group_only
        elif port.number == CONTROLLER_PORT:
            allowed["from"] = [{"podSelector": {}}]
        ingress.append(allowed)
    if first.sidecar is not None:
        operator = {
            "namespaceSelector": _namespace(settings.operator_namespace),
            "podSelector": {"matchLabels": dict(settings.operator_labels)},
        }
        watching = [{"namespaceSelector": _namespace(name)} for name in settings.monitoring_namespaces]
        port_of_admin = [{"protocol": "TCP", "port": ADMIN_PORT}]
        ingress.append({"ports": port_of_admin, "from": [operator, *watching]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(group, component, component_name(group.name, component)),
        "spec": {
            "podSelector": {"matchLabels": component_selector(group, component)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _namespace(name: str) -> JsonObject:
    return {"matchLabels": {"kubernetes.io/metadata.name": name}}
