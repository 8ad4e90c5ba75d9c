"""Renders the pod of one run of a BrokerGroupBackup.

`backup_steps` makes the BrokerGroupBackup the owner of the pod, so it is deleted with it. The pod has the
labels `epochmq.io/kind`, `epochmq.io/group` (the name of the BrokerGroupBackup), `epochmq.io/component`,
`epochmq.io/run` (the number of the run) and `epochmq.io/replica` (the pod of the replica that it reads). Its
annotation `epochmq.io/backup-cut`, which the operator adds later, is the offset up to which it reads the log;
the program sees it as a file."""

# pure: data in, data out.

from __future__ import annotations

from dataclasses import dataclass

from epochmq_operator.manifests import MANAGED_BY, MANAGER, JsonObject, claim_name
from epochmq_operator.manifests.names import COMPONENT_LABEL, GROUP_LABEL, KIND_LABEL
from epochmq_operator.manifests.settings import USER_ID
from epochmq_operator.resources import API_GROUP
from epochmq_operator.resources.backup import BACKUP_KIND, BrokerGroupBackup
from epochmq_operator.resources.backup_location import CLAIM_DIRECTORY

RUN_LABEL = f"{API_GROUP}/run"
REPLICA_LABEL = f"{API_GROUP}/replica"
CUT_ANNOTATION = f"{API_GROUP}/backup-cut"
COMPONENT = "backup"
STORE_DIRECTORY, CUT_DIRECTORY = "/volume", "/cut"
CUT_FILE = "offset"
READY_FILE = "/tmp/progress-read"
PYTHON = "/opt/epochmq/bin/python3"
REQUESTS = {"cpu": "20m", "memory": "128Mi"}
GRACE_S = 10


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """The settings of the operator's configuration for backups. `image` is that of backups that name none."""

    image: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    pod_user: int | None = USER_ID
    """The user and group of pods; None leaves them to the cluster."""


@dataclass(frozen=True, slots=True)
class BackedUpReplica:
    """The replica whose volume is read: its pod, the node of the pod if it has one, and what its group is.
    `tolerations` are those of the group."""

    pod: str
    node: str | None
    broker_name: str
    cluster: str
    mode: str
    tolerations: tuple[JsonObject, ...] = ()


def pod_name(backup: str, number: int) -> str:
    """The pod of a run. `backup` is the name of the BrokerGroupBackup."""
    return f"{backup}-backup-{number}"


def image_of(backup: BrokerGroupBackup, settings: BackupSettings) -> str | None:
    """The image of the pod, None if neither the resource nor the operator names one."""
    return backup.spec.image or settings.image


def pod(
    backup: BrokerGroupBackup,
    settings: BackupSettings,
    number: int,
    replica: BackedUpReplica,
    order: str,
    deadline_s: int,
) -> JsonObject:
    """The pod of a run. It mounts the replica's volume read-only, on the node where the volume is mounted
    already. `order` names the run at the storage, where it makes one backup at most."""
    name = pod_name(backup.name, number)
    labels = {
        "app.kubernetes.io/name": "epochmq",
        "app.kubernetes.io/instance": backup.name,
        "app.kubernetes.io/component": COMPONENT,
        "app.kubernetes.io/part-of": "epochmq",
        MANAGED_BY: MANAGER,
        KIND_LABEL: BACKUP_KIND,
        GROUP_LABEL: backup.name,
        COMPONENT_LABEL: COMPONENT,
        RUN_LABEL: str(number),
        REPLICA_LABEL: replica.pod,
    }
    spec: JsonObject = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "activeDeadlineSeconds": max(deadline_s, 1),
        "securityContext": _pod_security(backup, settings),
        "containers": [_container(backup, settings, replica, order)],
        "volumes": _volumes(backup, replica),
    }
    if replica.node is not None:
        spec["affinity"] = _on_node(replica.node)
    own = [one.model_dump(by_alias=True, exclude_none=True) for one in backup.spec.tolerations]
    tolerations = [*replica.tolerations, *(one for one in own if one not in replica.tolerations)]
    if tolerations:
        spec["tolerations"] = tolerations
    if backup.spec.service_account_name is not None:
        spec["serviceAccountName"] = backup.spec.service_account_name
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": one} for one in settings.image_pull_secrets]
    meta = {"name": name, "namespace": backup.metadata.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _pod_security(backup: BrokerGroupBackup, settings: BackupSettings) -> JsonObject:
    made: JsonObject = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if settings.pod_user is not None:
        made |= {"runAsUser": settings.pod_user, "runAsGroup": settings.pod_user}
        if backup.spec.claim_name is not None:
            made |= {"fsGroup": settings.pod_user, "fsGroupChangePolicy": "OnRootMismatch"}
    return made


def _container(
    backup: BrokerGroupBackup, settings: BackupSettings, replica: BackedUpReplica, order: str
) -> JsonObject:
    words = {
        "--url": backup.spec.url,
        "--store": STORE_DIRECTORY,
        "--broker-name": replica.broker_name,
        "--cluster": replica.cluster,
        "--mode": replica.mode,
        "--replica": replica.pod,
        "--order": order,
        "--ready": READY_FILE,
        "--cut": f"{CUT_DIRECTORY}/{CUT_FILE}",
    }
    if backup.spec.retention is not None:
        words["--keep"] = str(backup.spec.retention)
    container: JsonObject = {
        "name": COMPONENT,
        "image": image_of(backup, settings) or "",
        "imagePullPolicy": str(backup.spec.image_pull_policy),
        "command": [PYTHON, "-m", "epochmq_store.backups.pod_program"],
        "args": [word for pair in words.items() for word in pair],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": {"requests": dict(REQUESTS), "limits": {"memory": backup.spec.memory}},
        "readinessProbe": {"exec": {"command": ["test", "-f", READY_FILE]}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "cut", "mountPath": CUT_DIRECTORY, "readOnly": True},
            {"name": "store", "mountPath": STORE_DIRECTORY, "readOnly": True},
        ],
    }
    if backup.spec.claim_name is not None:
        container["volumeMounts"].append({"name": "backups", "mountPath": CLAIM_DIRECTORY})
    if backup.spec.credentials_secret is not None:
        container["envFrom"] = [{"secretRef": {"name": backup.spec.credentials_secret}}]
    return container


def _volumes(backup: BrokerGroupBackup, replica: BackedUpReplica) -> list[JsonObject]:
    cut = {"path": CUT_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{CUT_ANNOTATION}']"}}
    volumes: list[JsonObject] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "cut", "downwardAPI": {"items": [cut]}},
        {
            "name": "store",
            "persistentVolumeClaim": {"claimName": claim_of(replica.pod), "readOnly": True},
        },
    ]
    if backup.spec.claim_name is not None:
        claim = {"claimName": backup.spec.claim_name}
        volumes.append({"name": "backups", "persistentVolumeClaim": claim})
    return volumes


def claim_of(replica: str) -> str:
    """The claim of the volume of a replica, which is named by its pod."""
    return claim_name("store", replica)


def _on_node(node: str) -> JsonObject:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    rule = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rule}}
