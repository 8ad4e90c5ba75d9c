"""Holds the settings of the operator's configuration that affect the objects it renders."""

# pure: plain data.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]
"""A JSON object while it is being built: a whole manifest, with labels and annotations but without its owner,
or a part of one."""


@dataclass(frozen=True, slots=True)
class ManifestSettings:
    """`broker_image` and `controller_image` are the images of groups that name none. `operator_namespace` and
    `operator_labels` identify the operator's pods, which may connect to the admin sidecars, like all pods of
    `monitoring_namespaces`. Without `network_policies` everybody may."""

    broker_image: str
    controller_image: str
    operator_namespace: str
    operator_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "epochmq-operator"),)
    monitoring_namespaces: tuple[str, ...] = ()
    network_policies: bool = True
    image_pull_secrets: tuple[str, ...] = ()
