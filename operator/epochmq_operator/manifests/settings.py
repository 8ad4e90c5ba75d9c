"""What the operator's own configuration decides about the objects it makes."""

# pure: plain data.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]
"""A whole object: apiVersion, kind, metadata, and what its kind has besides. Labels and annotations are ours;
whoever applies it adds the owner."""


@dataclass(frozen=True, slots=True)
class ManifestSettings:
    """`broker_image` and `controller_image` are what groups get that name none; `operator_namespace` is where
    the operator runs, and `operator_labels` what its pods bear: they may ask the admin sidecars, as may all
    pods of `monitoring_namespaces`. Without `network_policies` everybody may."""

    broker_image: str
    controller_image: str
    operator_namespace: str
    operator_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "epochmq-operator"),)
    monitoring_namespaces: tuple[str, ...] = ()
    network_policies: bool = True
    image_pull_secrets: tuple[str, ...] = ()
