"""Holds the settings of the operator's configuration that affect the objects it renders."""

# pure: plain data.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

USER_ID = 10001
"""The user of the images, in which no file is accessible to root alone."""
JsonObject = dict[str, Any]
"""A JSON object while it is being built: a whole manifest, with labels and annotations but without its owner,
or a part of one."""


@dataclass(frozen=True, slots=True)
class ManifestSettings:
    """`broker_image` and `controller_image` are the images of groups that name none. `operator_namespace` and
    `operator_labels` identify the operator's pods, which may connect to the admin sidecars, like all pods of
    `monitoring_namespaces`. Without `network_policies` everybody may. `pod_user` is the user and group of
    pods; None leaves them to the cluster. `audit_image` is the image of restores from an object storage that
    name none. `restores`: the operator restores new groups."""

    broker_image: str
    controller_image: str
    operator_namespace: str
    operator_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "epochmq-operator"),)
    monitoring_namespaces: tuple[str, ...] = ()
    network_policies: bool = True
    image_pull_secrets: tuple[str, ...] = ()
    pod_user: int | None = USER_ID
    audit_image: str | None = None
    restores: bool = True

    @property
    def pod_security(self) -> JsonObject:
        """The security context of pods."""
        user = {} if self.pod_user is None else {"runAsUser": self.pod_user, "runAsGroup": self.pod_user}
        owner = {} if self.pod_user is None else {"fsGroup": self.pod_user}
        return {
            "runAsNonRoot": True,
            **user,
            **owner,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
