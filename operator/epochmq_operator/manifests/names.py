"""What the objects of a group are called, and how they are found again.

Every name is the group's name, a dash and one of a fixed set of suffixes, none of which ends with a dash and
another of them: so no two groups of a namespace ever want the same name, whatever they are called. A
BrokerGroup and a ControllerGroup of one name have different components, and so share no name either: on
Kubernetes nameservers are the controllers' alone."""

# pure: names of data.

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from epochmq_operator.pod_rendering import ADMIN_PORT, Component, Pod, broker_pod_name, pods_of
from epochmq_operator.resources import API_GROUP, REPLICAS_MAX, ControllerGroup, GroupResource

NAME_LENGTH_MAX = 63
"""Of a Service, a pod and a label's value."""

KIND_LABEL = f"{API_GROUP}/kind"
GROUP_LABEL = f"{API_GROUP}/group"
COMPONENT_LABEL = f"{API_GROUP}/component"
CONFIG_HASH_ANNOTATION = f"{API_GROUP}/config-hash"
"""On a pod: a digest of the configuration that it was started with."""
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "epochmq-operator"


class ApiKind(NamedTuple):
    """A kind of Kubernetes, with what the API server's paths call it."""

    api_version: str
    kind: str
    plural: str


OBJECT_KINDS: tuple[ApiKind, ...] = (
    ApiKind("v1", "ServiceAccount", "serviceaccounts"),
    ApiKind("v1", "ConfigMap", "configmaps"),
    ApiKind("v1", "Service", "services"),
    ApiKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    ApiKind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ApiKind("apps/v1", "StatefulSet", "statefulsets"),
)
"""The kinds of all objects that a group can have."""


def stateful_set(group: str, component: Component) -> str:
    """The StatefulSet of a component; its pods are this, a dash and an ordinal. The ServiceAccount,
    ConfigMap, PodDisruptionBudget and NetworkPolicy that go with it have the same name."""
    return f"{group}-{component}"


def headless_service(group: str, component: Component) -> str:
    """The Service under which each pod of the component has an address."""
    return f"{group}-{component}s"


def nameserver_service(group: str) -> str:
    """The Service of a group's nameservers, for clients."""
    return f"{group}-nameserver"


def replica_service(group: str, ordinal: int) -> str:
    """The Service of one broker, for clients outside."""
    return broker_pod_name(group, ordinal)


def claim_name(volume: str, pod: str) -> str:
    """The claim of a pod's volume: the same whenever the group is there."""
    return f"{volume}-{pod}"


def address(pod: str, group: str, component: Component, namespace: str) -> str:
    """A pod's name in the cluster's DNS, whatever the cluster's domain is."""
    return f"{pod}.{headless_service(group, component)}.{namespace}.svc"


def admin_address(pod: Pod) -> str | None:
    """host:port of a pod's admin sidecar; None without one."""
    return None if pod.sidecar is None else f"{pod.address}:{ADMIN_PORT}"


def selector(group: GroupResource) -> Mapping[str, str]:
    """The labels of everything that belongs to the group and to no other."""
    return {MANAGED_BY: MANAGER, KIND_LABEL: group.kind, GROUP_LABEL: group.name}


def component_selector(group: GroupResource, component: Component) -> dict[str, str]:
    """The labels of the component's pods, of this group alone."""
    return {KIND_LABEL: group.kind, GROUP_LABEL: group.name, COMPONENT_LABEL: str(component)}


def labels(group: GroupResource, component: Component) -> dict[str, str]:
    """What every object of the component bears. Nothing here changes with the operator's version: a new
    operator restarts no pod."""
    return {
        "app.kubernetes.io/name": "epochmq",
        "app.kubernetes.io/instance": group.name,
        "app.kubernetes.io/component": str(component),
        "app.kubernetes.io/part-of": "epochmq",
        MANAGED_BY: MANAGER,
        **component_selector(group, component),
    }


def components_of(group: GroupResource) -> tuple[Component, ...]:
    """The components that the group has pods of."""
    return tuple(dict.fromkeys(identity.component for identity in pods_of(group)))


def possible_objects(group: GroupResource) -> frozenset[tuple[str, str]]:
    """(kind, name) of every object that a group of this name and kind can ever have, whatever its spec says:
    what is there under one of these names, and bears the labels of `selector`, and is not wanted, goes."""
    if isinstance(group, ControllerGroup):
        components = [Component.CONTROLLER, Component.NAMESERVER]
        found = {("Service", nameserver_service(group.name))}
    else:
        components = [Component.BROKER]
        found = {("Service", replica_service(group.name, ordinal)) for ordinal in range(REPLICAS_MAX)}
    for component in components:
        name = stateful_set(group.name, component)
        found |= {(kind.kind, name) for kind in OBJECT_KINDS if kind.kind != "Service"}
        found.add(("Service", headless_service(group.name, component)))
    return frozenset(found)
