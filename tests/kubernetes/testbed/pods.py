"""Builds pods for tests as plain data. They meet the "restricted" Pod Security Standard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

USER = 10001
SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
REQUESTS = {"cpu": "50m"}
"""The CPU request of a broker: a pod without one gets next to nothing on a busy node."""


def pod(
    name: str,
    image: str,
    *,
    arguments: Sequence[str] = (),
    command: Sequence[str] = (),
    node: str | None = None,
    labels: Mapping[str, str] | None = None,
    claims: Mapping[str, str] | None = None,
    restart: str = "Never",
    stdin: bool = False,
) -> dict[str, Any]:
    """A pod of one container, `main`: the image's program with `arguments`, or `command` in its place; on
    `node`, or where the scheduler puts it; `claims` are its volumes' claims by the path where each is
    mounted. /tmp is the volume `tmp`, which goes with the pod. With `stdin` its standard input stays open."""
    mounts = dict(claims or {})
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "securityContext": SECURITY,
        "resources": {"requests": dict(REQUESTS)},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            *({"name": claim, "mountPath": path} for path, claim in mounts.items()),
        ],
        "stdin": stdin,
    }
    if command:
        container["command"] = list(command)
    if arguments:
        container["args"] = list(arguments)
    spec: dict[str, Any] = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            *({"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in mounts.values()),
        ],
    }
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": spec,
    }


def claim(name: str, size: str = "64Mi") -> dict[str, Any]:
    """A claim of a volume of the default storage class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    }
