"""What the pods of programs that run once and end have in common: those of audits, backups and restores. And
what all containers have: the restrictions of the Pod Security Standard "restricted"."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from epochmq_operator.manifests.settings import JsonObject
from epochmq_operator.resources.backup_location import CLAIM_DIRECTORY, BackupLocation

PYTHON: Final = "/opt/epochmq/bin/python3"
REQUESTS: Final = {"cpu": "20m", "memory": "128Mi"}
"""Of the programs of backups and restores."""
GRACE_S: Final = 10


def restricted_container(name: str, image: str, pull_policy: str) -> JsonObject:
    """A container without rights."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": pull_policy,
        "securityContext": no_rights(),
    }


def no_rights() -> JsonObject:
    """The security context of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def program_pod_spec(container: JsonObject, credentials: JsonObject) -> JsonObject:
    """The spec of a pod whose one container runs once. It has no token, and `/tmp` is its own. `credentials`
    are its security context and its secrets for images."""
    container["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}, *container.get("volumeMounts", ())]
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        **credentials,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }


def credentials_of(pod_user: int | None, image_pull_secrets: Sequence[str]) -> JsonObject:
    """The security context of a pod with this user and group, which the cluster chooses if it is None, and
    its secrets for images."""
    user = {} if pod_user is None else {"runAsUser": pod_user, "runAsGroup": pod_user}
    security = {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}}
    found: JsonObject = {"securityContext": security}
    if image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in image_pull_secrets]
    return found


def on_node(node: str) -> JsonObject:
    """The affinity of a pod that runs on this node only."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    rule = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rule}}


def module_container(
    name: str, image: str, pull_policy: str, module: str, words: list[str], location: BackupLocation
) -> JsonObject:
    """The container of a Python module that reads or writes backups at a location."""
    container = restricted_container(name, image, pull_policy) | {
        "command": [PYTHON, "-m", module],
        "args": words,
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": {"requests": dict(REQUESTS), "limits": {"memory": location.memory}},
    }
    if location.credentials_secret is not None:
        container["envFrom"] = [{"secretRef": {"name": location.credentials_secret}}]
    return container


def reach_location(spec: JsonObject, location: BackupLocation, **mount: bool) -> None:
    """Gives a pod the volume of the backups and the account with the rights for them, if the location names
    them. `mount`: further fields of the mount."""
    if location.claim_name is not None:
        claim = {"claimName": location.claim_name}
        spec["volumes"].append({"name": "backups", "persistentVolumeClaim": claim})
        found = {"name": "backups", "mountPath": CLAIM_DIRECTORY, **mount}
        spec["containers"][0]["volumeMounts"].append(found)
    if location.service_account_name is not None:
        spec["serviceAccountName"] = location.service_account_name
