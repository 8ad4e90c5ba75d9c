"""Renders a group's pods (`epochmq_operator.pod_rendering`) as Kubernetes objects. Pure throughout.

render_manifests(group, controllers, settings)         # all objects of a group, in the order of applying
render_kubernetes_pods(group, controllers, settings)   # its pods as plain data, with their addresses
differences(desired, observed)                         # where an object differs from its manifest
keep_immutable_fields(desired, observed)               # the manifest with immutable fields as observed
"""
# pure: resources to objects

from epochmq_operator.manifests.differences import differences, keep_immutable_fields
from epochmq_operator.manifests.group import render_kubernetes_pods, render_manifests
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
)
from epochmq_operator.manifests.pod import default_image
from epochmq_operator.manifests.settings import JsonObject, ManifestSettings

__all__ = [
    "MANAGED_BY",
    "MANAGER",
    "OBJECT_KINDS",
    "JsonObject",
    "ManifestSettings",
    "admin_address",
    "claim_name",
    "default_image",
    "differences",
    "headless_service",
    "keep_immutable_fields",
    "nameserver_service",
    "possible_objects",
    "render_kubernetes_pods",
    "render_manifests",
    "replica_service",
    "selector",
]
