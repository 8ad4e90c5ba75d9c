"""Renders the pod of one run of a BrokerGroupBackup.

`backup_steps` makes the BrokerGroupBackup the owner of the pod, so it is deleted with it. The pod has the
labels `epochmq.io/kind`, `epochmq.io/group` (the name of the BrokerGroupBackup), `epochmq.io/component`,
`epochmq.io/run` (the number of the run) and `epochmq.io/replica` (the pod of the replica that it reads). Its
annotation `epochmq.io/backup-cut`, which the operator adds later, is the offset up to which it reads the log;
the program sees it as a file."""

# pure: data in, data out.

from __future__ import annotations

from dataclasses import dataclass

from epochmq_operator.manifests import JsonObject, claim_name
from epochmq_operator.manifests.names import RUN_LABEL, labels_of
from epochmq_operator.manifests.program_pod import (
    credentials_of,
    module_container,
    on_node,
    program_pod_spec,
    reach_location,
)
from epochmq_operator.manifests.settings import USER_ID
from epochmq_operator.resources import API_GROUP
from epochmq_operator.resources.backup import BACKUP_KIND, BrokerGroupBackup

REPLICA_LABEL = f"{API_GROUP}/replica"
CUT_ANNOTATION = f"{API_GROUP}/backup-cut"
COMPONENT = "backup"
STORE_DIRECTORY, CUT_DIRECTORY = "/volume", "/cut"
CUT_FILE = "offset"
READY_FILE = "/tmp/progress-read"
PROGRAM = "epochmq_store.backups.pod_program"


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
    labels = labels_of(BACKUP_KIND, backup.name, COMPONENT)
    labels |= {RUN_LABEL: str(number), REPLICA_LABEL: replica.pod}
    spec = program_pod_spec(_container(backup, settings, replica, order), _credentials(backup, settings)) | {
        "activeDeadlineSeconds": max(deadline_s, 1)
    }
    spec["volumes"] += _volumes(replica)
    reach_location(spec, backup.spec)
    if replica.node is not None:
        spec["affinity"] = on_node(replica.node)
    own = [one.model_dump(by_alias=True, exclude_none=True) for one in backup.spec.tolerations]
    tolerations = [*replica.tolerations, *(one for one in own if one not in replica.tolerations)]
    if tolerations:
        spec["tolerations"] = tolerations
    meta = {"name": name, "namespace": backup.metadata.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _credentials(backup: BrokerGroupBackup, settings: BackupSettings) -> JsonObject:
    made = credentials_of(settings.pod_user, settings.image_pull_secrets)
    if settings.pod_user is not None and backup.spec.claim_name is not None:
        made["securityContext"] |= {"fsGroup": settings.pod_user, "fsGroupChangePolicy": "OnRootMismatch"}
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
    container = module_container(
        COMPONENT,
        image_of(backup, settings) or "",
        str(backup.spec.image_pull_policy),
        PROGRAM,
        [word for pair in words.items() for word in pair],
        backup.spec,
    )
    return container | {
        "readinessProbe": {"exec": {"command": ["test", "-f", READY_FILE]}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "cut", "mountPath": CUT_DIRECTORY, "readOnly": True},
            {"name": "store", "mountPath": STORE_DIRECTORY, "readOnly": True},
        ],
    }


def _volumes(replica: BackedUpReplica) -> list[JsonObject]:
    cut = {"path": CUT_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{CUT_ANNOTATION}']"}}
    claim = {"claimName": claim_of(replica.pod), "readOnly": True}
    return [
        {"name": "cut", "downwardAPI": {"items": [cut]}},
        {"name": "store", "persistentVolumeClaim": claim},
    ]


def claim_of(replica: str) -> str:
    """The claim of the volume of a replica, which is named by its pod."""
    return claim_name("store", replica)
