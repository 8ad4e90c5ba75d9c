"""The second floor: a group's pods (`epochmq_operator.pod_rendering`), put into Kubernetes places, as the
objects that Kubernetes is given. Pure throughout.

    manifests(group, quorum, settings)   # all objects of a group, in the order in which they are applied
    pods(group, quorum, settings)        # its pods as plain data, with the addresses they have there
    differences(desired, observed)       # what of one object is otherwise than we want it
    settled(desired, observed)           # as much of it as the API server lets us change
"""

from epochmq_operator.manifests.differences import differences
from epochmq_operator.manifests.group import render_kubernetes_pods, render_manifests
from epochmq_operator.manifests.immutable_fields import keep_immutable_fields
from epochmq_operator.manifests.names import (
    MANAGED_BY,
    MANAGER,
    OBJECT_KINDS,
    admin_address,
    claim_name,
    headless_service,
    nameserver_service,
    possible_objects,
    replica_service,
    selector,
    stateful_set,
)
from epochmq_operator.manifests.settings import JsonObject, ManifestSettings

__all__ = [
    "MANAGED_BY",
    "MANAGER",
    "OBJECT_KINDS",
    "JsonObject",
    "ManifestSettings",
    "admin_address",
    "claim_name",
    "differences",
    "headless_service",
    "keep_immutable_fields",
    "nameserver_service",
    "possible_objects",
    "render_kubernetes_pods",
    "render_manifests",
    "replica_service",
    "selector",
    "stateful_set",
]
