"""Names and labels the objects of a group.

The name of an object is the group's name, a dash and one of a fixed set of suffixes. No suffix ends with a
dash and another suffix, so two groups of a namespace never want the same name. A BrokerGroup and a
ControllerGroup of one name have different components, because on Kubernetes only controller groups have
nameservers; so their names differ, too."""

# pure: computes names

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from epochmq_operator.pod_rendering import (
    ADMIN_PORT,
    broker_pod_name,
    component_name,
    pods_of,
)
from epochmq_operator.pods import (
    Component,
    Pod,
)
from epochmq_operator.resources import API_GROUP, REPLICAS_MAX, ControllerGroup, GroupResource

NAME_LENGTH_MAX = 63
"""The limit for names of Services and pods and for values of labels."""

KIND_LABEL = f"{API_GROUP}/kind"
GROUP_LABEL = f"{API_GROUP}/group"
COMPONENT_LABEL = f"{API_GROUP}/component"
RUN_LABEL = f"{API_GROUP}/run"
"""A label of the objects of one run of a resource that runs something: its number."""
CONFIG_HASH_ANNOTATION = f"{API_GROUP}/config-hash"
"""An annotation of pods: a digest of the configuration that the pod was started with."""
RESTART_ANNOTATION = f"{API_GROUP}/restart-digest"
"""An annotation of pods: a digest of everything for whose change the pod has to restart."""
TEMPLATE_ANNOTATION = f"{API_GROUP}/template"
"""An annotation of StatefulSets: a digest of the pod template as the operator rendered it."""
INPUTS_ANNOTATION = f"{API_GROUP}/template-inputs"
"""An annotation of StatefulSets: a digest of what the pod template follows from: the spec, the image and the
controllers. A new release of the operator may render another template from the same inputs."""
MEMBERS_ANNOTATION = f"{API_GROUP}/member-authentication"
"""An annotation of pods that authenticate other members: `Require` or `Accept`."""
RESTORE = "restore"
"""The component of the pods that restore the volumes of a new group."""
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "epochmq-operator"


class ApiKind(NamedTuple):
    """A kind of the Kubernetes API, with its plural as API paths have it."""

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


def headless_service(group: str, component: Component) -> str:
    """The headless Service, which gives each pod of the component a DNS name."""
    return f"{component_name(group, component)}s"


def nameserver_service(group: str) -> str:
    """The Service of a group's nameservers, for clients."""
    return component_name(group, Component.NAMESERVER)


def external_nameserver_service(group: str) -> str:
    """The Service of a group's nameservers, for clients outside the cluster."""
    return f"{nameserver_service(group)}-external"


def replica_service(group: str, ordinal: int) -> str:
    """The Service of one broker, for clients outside the cluster."""
    return broker_pod_name(group, ordinal)


def config_map_name(group: str, component: Component, digest: str) -> str:
    """The name of the ConfigMap with the configuration that has this digest."""
    return f"{component_name(group, component)}-{digest}"


def member_secret_name(controllers: str) -> str:
    """The name of the Secret by which the members under a ControllerGroup authenticate each other."""
    return f"{controllers}-members"


def claim_name(volume: str, pod: str) -> str:
    """The name of the PersistentVolumeClaim of a pod's volume. It is the same when the group is deleted and
    created again."""
    return f"{volume}-{pod}"


def address(pod: str, group: str, component: Component, namespace: str) -> str:
    """A pod's DNS name, valid for any cluster domain."""
    return f"{pod}.{headless_service(group, component)}.{namespace}.svc"


def admin_address(pod: Pod) -> str | None:
    """host:port of a pod's admin sidecar; None without one."""
    return None if pod.sidecar is None else f"{pod.address}:{ADMIN_PORT}"


def selector(group: GroupResource) -> Mapping[str, str]:
    """The labels that select all objects of this group only."""
    return {MANAGED_BY: MANAGER, KIND_LABEL: group.kind, GROUP_LABEL: group.name}


def component_selector(group: GroupResource, component: Component) -> dict[str, str]:
    """The labels that select the component's pods of this group only."""
    return {KIND_LABEL: group.kind, GROUP_LABEL: group.name, COMPONENT_LABEL: str(component)}


def labels(group: GroupResource, component: Component) -> dict[str, str]:
    """The labels of every object of the component."""
    return labels_of(group.kind, group.name, str(component))


def labels_of(kind: str, name: str, component: str) -> dict[str, str]:
    """The labels of an object that belongs to a resource of this kind and name. They do not depend on the
    operator's version, so that a new operator restarts no pod."""
    return {
        "app.kubernetes.io/name": "epochmq",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "epochmq",
        MANAGED_BY: MANAGER,
        KIND_LABEL: kind,
        GROUP_LABEL: name,
        COMPONENT_LABEL: component,
    }


def components_of(group: GroupResource) -> tuple[Component, ...]:
    """The components that the group has pods of."""
    return tuple(dict.fromkeys(identity.component for identity in pods_of(group)))


def possible_objects(group: GroupResource) -> frozenset[tuple[str, str]]:
    """(kind, name) of every object that a group of this name and kind can ever have, whatever its spec,
    except ConfigMaps, whose names depend on their content. The operator deletes those that exist, have the
    labels of `selector`, and are not wanted."""
    if isinstance(group, ControllerGroup):
        components = [Component.CONTROLLER, Component.NAMESERVER]
        names = (nameserver_service(group.name), external_nameserver_service(group.name))
        found = {("Service", name) for name in names}
    else:
        components = [Component.BROKER]
        found = {("Service", replica_service(group.name, ordinal)) for ordinal in range(REPLICAS_MAX)}
    for component in components:
        name = component_name(group.name, component)
        found |= {(kind.kind, name) for kind in OBJECT_KINDS if kind.kind not in ("Service", "ConfigMap")}
        found.add(("Service", headless_service(group.name, component)))
    return frozenset(found)
