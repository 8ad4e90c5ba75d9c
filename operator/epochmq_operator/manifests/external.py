"""Renders what lets clients outside the cluster reach a group's pods: configuration keys, and Services."""

# pure: data in, data out.

from __future__ import annotations

from epochmq_operator.manifests.names import (
    component_selector,
    external_nameserver_service,
    labels,
    replica_service,
)
from epochmq_operator.manifests.settings import JsonObject
from epochmq_operator.pods import Component, Pod, PodIdentity
from epochmq_operator.resources import BrokerGroup, GroupResource
from epochmq_operator.resources.external_access import ExternalAccess, ExternalType

EXTERNAL_PORTS = {Component.BROKER: 10921, Component.CONTROLLER: 9886, Component.NAMESERVER: 9886}
"""The ports of brokers, and of nameservers in and outside controllers' processes."""
NODE_ADDRESS = "$(NODE_IP)"
DNS_ANNOTATION = "external-dns.alpha.kubernetes.io/hostname"


def external_access(group: GroupResource, component: Component) -> ExternalAccess | None:
    """How clients outside reach the pods of this component; None if they cannot."""
    if isinstance(group, BrokerGroup):
        serves = component is Component.BROKER
    else:
        embedded = group.spec.nameserver.embedded
        serves = component is (Component.CONTROLLER if embedded else Component.NAMESERVER)
    return group.spec.external if serves else None


def external_config(group: GroupResource, identity: PodIdentity) -> dict[str, str | int]:
    """The configuration keys of a pod's external port."""
    access = external_access(group, identity.component)
    if access is None:
        return {}
    config: dict[str, str | int] = {"externalListenPort": EXTERNAL_PORTS[identity.component]}
    if access.tls_mode is not None:
        config["externalTlsMode"] = access.tls_mode
    if identity.component is Component.BROKER:
        host = access.host_of(identity.ordinal)
        if host is not None:
            config["externalIP"] = host
        if access.type is ExternalType.NODE_PORT and access.node_port is not None:
            config["externalPort"] = access.node_port + identity.ordinal
    return config


def add_external_port(container: JsonObject, group: GroupResource, component: Component) -> None:
    """Adds the external port to a main container. A broker without a name for clients outside advertises its
    node's address."""
    access = external_access(group, component)
    if access is None:
        return
    number = EXTERNAL_PORTS[component]
    on_host = {"hostPort": number} if access.type is ExternalType.HOST_PORT else {}
    container["ports"].append({"name": "external", "containerPort": number, **on_host})
    if component is Component.BROKER and access.host is None:
        container["args"] += ["--set", f"externalIP={NODE_ADDRESS}"]
        container["env"].append(
            {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
        )


def external_services(group: GroupResource, component: Component, pods: tuple[Pod, ...]) -> list[JsonObject]:
    """A Service for each broker, or one for all nameservers."""
    access = external_access(group, component)
    if access is None or access.type is ExternalType.HOST_PORT:
        return []
    if component is not Component.BROKER:
        return [_service(group, component, external_nameserver_service(group.name), access, {}, 0)]
    return [
        _service(
            group,
            component,
            replica_service(group.name, pod.ordinal),
            access,
            {"statefulset.kubernetes.io/pod-name": pod.name},
            pod.ordinal,
        )
        for pod in pods
    ]


def _service(
    group: GroupResource,
    component: Component,
    name: str,
    access: ExternalAccess,
    selector: dict[str, str],
    ordinal: int,
) -> JsonObject:
    number = EXTERNAL_PORTS[component]
    port: JsonObject = {"name": "external", "port": number, "targetPort": number}
    if access.type is ExternalType.NODE_PORT and access.node_port is not None:
        port["nodePort"] = access.node_port + ordinal
    host = access.host_of(ordinal)
    annotations = {**({DNS_ANNOTATION: host} if host else {}), **access.annotations}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": group.metadata.namespace,
            "labels": labels(group, component),
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            "type": str(access.type),
            "selector": {**component_selector(group, component), **selector},
            "ports": [port],
        },
    }
