"""Renders the Kubernetes objects of one run of an audit, that is, of one comparison that a BrokerGroupAudit
orders.

`plan` makes the BrokerGroupAudit the owner of the objects, so they are deleted with it. The driver's pod owns
Spark's executors. All objects have the labels `epochmq.io/kind`, `epochmq.io/group` (the name of the
BrokerGroupAudit), `epochmq.io/component` and `epochmq.io/run` (the number of the run)."""

# pure: data in, data out.

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochmq_operator.audits.cut import GroupCut
from epochmq_operator.crd.text import to_yaml
from epochmq_operator.manifests import JsonObject, claim_name
from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL, RUN_LABEL, labels_of
from epochmq_operator.manifests.program_pod import (
    PYTHON,
    credentials_of,
    on_node,
    program_pod_spec,
    restricted_container,
)
from epochmq_operator.manifests.settings import USER_ID
from epochmq_operator.pod_rendering import broker_pod_name
from epochmq_operator.resources.audit import AUDIT_KIND, BrokerGroupAudit
from epochmq_operator.resources.quantities import parse_quantity

READER_PORT = 9885
DRIVER_PORT, BLOCK_MANAGER_PORT = 7078, 7079
"""The ports of Spark's driver and of its block managers."""
VOLUME = "store"
STORE_DIRECTORY = "/volume"
JOB_DIRECTORY = "/etc/epochmq-audit"
JOB_FILE, TEMPLATE_FILE = "job.json", "executor.yaml"
READER_REQUESTS = {"cpu": "20m", "memory": "64Mi"}
READER_LIMITS = {"memory": "256Mi"}
"""The limit includes the page cache of what the reader reads, so it bounds how much of the node's cache an
audit takes."""
DRIVER_CPU = "20m"
EXECUTOR_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1"


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The settings of the operator's configuration for audits. `image` is that of audits that name none."""

    image: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    network_policies: bool = True
    pod_user: int | None = USER_ID
    """The user and group of pods; None leaves them to the cluster."""


@dataclass(frozen=True, slots=True)
class AuditRunNames:
    """The names of the objects of one run of an audit. `audit` is the name of the BrokerGroupAudit."""

    audit: str
    number: int

    @property
    def run(self) -> str:
        """The name of the run. Executors are named after it, with `-exec-` and a number."""
        return f"{self.audit}-audit-{self.number}"

    @property
    def job(self) -> str:
        """The ConfigMap with the job: what to compare, and the cut."""
        return f"{self.run}-job"

    @property
    def report(self) -> str:
        """The ConfigMap for the driver's report."""
        return f"{self.run}-report"

    @property
    def driver(self) -> str:
        """The driver's pod, ServiceAccount, Role and RoleBinding."""
        return f"{self.run}-driver"

    def reader(self, ordinal: int) -> str:
        """The pod that serves a replica's volume."""
        return f"{self.run}-reader-{ordinal}"

    def labels(self, component: str) -> dict[str, str]:
        """The labels of an object."""
        return {**labels_of(AUDIT_KIND, self.audit, component), RUN_LABEL: str(self.number)}


def _head(
    api: str, kind: str, name: str, audit: BrokerGroupAudit, names: AuditRunNames, component: str
) -> JsonObject:
    metadata = {
        "name": name,
        "namespace": audit.metadata.namespace,
        "labels": names.labels(component),
    }
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def image_of(audit: BrokerGroupAudit, settings: AuditSettings) -> str | None:
    """The image of the audit's pods, None if neither the audit nor the operator names one."""
    return audit.spec.image or settings.image


def objects_before_pods(
    audit: BrokerGroupAudit, names: AuditRunNames, settings: AuditSettings, cut: GroupCut, broker_name: str
) -> list[JsonObject]:
    """The objects that exist before any pod: the driver's account and rights, the network policy, an empty
    report, and, last, the job with the cut."""
    rules = [
        # Spark creates, watches and deletes its executors.
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "get", "list", "watch"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [names.report],
            "verbs": ["patch"],
        },
    ]
    authorization = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": names.driver, "namespace": audit.metadata.namespace}
    objects: list[JsonObject] = [
        {
            **_head("v1", "ServiceAccount", names.driver, audit, names, "driver"),
            "automountServiceAccountToken": False,
        },
        {**_head(f"{authorization}/v1", "Role", names.driver, audit, names, "driver"), "rules": rules},
        {
            **_head(f"{authorization}/v1", "RoleBinding", names.driver, audit, names, "driver"),
            "roleRef": {"apiGroup": authorization, "kind": "Role", "name": names.driver},
            "subjects": [subject],
        },
        _head("v1", "ConfigMap", names.report, audit, names, "report"),
    ]
    if settings.network_policies:
        objects.append(_policy(audit, names))
    image = image_of(audit, settings) or ""
    job = {
        "group": broker_name,
        "replicas": [one.document() for one in cut.replicas],
        "view": cut.view,
        "spark": spark_settings(audit, names, image),
        "report": names.report,
    }
    data = {
        JOB_FILE: json.dumps(job, indent=1, sort_keys=True),
        TEMPLATE_FILE: to_yaml([executor_template(audit, names, settings)]),
    }
    objects.append({**_head("v1", "ConfigMap", names.job, audit, names, "job"), "data": data})
    return objects


def _policy(audit: BrokerGroupAudit, names: AuditRunNames) -> JsonObject:
    """Only pods of a run can connect to its pods."""
    own = {"matchLabels": {KIND_LABEL: AUDIT_KIND, GROUP_LABEL: names.audit, RUN_LABEL: str(names.number)}}
    return {
        **_head("networking.k8s.io/v1", "NetworkPolicy", names.run, audit, names, "policy"),
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": own}]}],
        },
    }


def mebibytes(size: str) -> int:
    """The number of mebibytes in a size such as 512Mi or 2Gi."""
    return int(parse_quantity(size) // 2**20)


def spark_settings(audit: BrokerGroupAudit, names: AuditRunNames, image: str) -> dict[str, str]:
    """The Spark configuration. The driver adds its own address."""
    spec = audit.spec
    executors = spec.executors
    kubernetes = {
        "namespace": audit.metadata.namespace,
        "container.image": image,
        "container.image.pullPolicy": str(spec.image_pull_policy),
        "driver.pod.name": names.driver,
        "executor.podNamePrefix": names.run,
        "executor.podTemplateFile": f"{JOB_DIRECTORY}/{TEMPLATE_FILE}",
        "executor.podTemplateContainerName": "executor",
        "executor.disableConfigMap": "true",
        "executor.request.cores": executors.cpu_request,
        "driver.service.deleteOnTermination": "false",
        "driver.ownPersistentVolumeClaim": "false",
        **{f"executor.label.{key}": value for key, value in names.labels("executor").items()},
    }
    return {
        **{f"spark.kubernetes.{key}": value for key, value in kubernetes.items()},
        "spark.driver.memory": f"{mebibytes(spec.driver.memory)}m",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.executor.instances": str(executors.instances),
        "spark.executor.cores": str(executors.cores),
        "spark.executor.memory": f"{mebibytes(executors.memory)}m",
        "spark.executor.memoryOverhead": f"{mebibytes(executors.memory_overhead)}m",
        "spark.executor.extraJavaOptions": EXECUTOR_JAVA_OPTIONS,
        "spark.executorEnv.HOME": "/tmp",
        "spark.executorEnv.NUMBA_CACHE_DIR": "/tmp/numba",
        "spark.pyspark.python": PYTHON,
        "spark.pyspark.driver.python": PYTHON,
        "spark.sql.shuffle.partitions": str(max(2, 2 * executors.instances * executors.cores)),
    }


def _container(name: str, image: str, audit: BrokerGroupAudit) -> JsonObject:
    return restricted_container(name, image, str(audit.spec.image_pull_policy))


def _pod_spec(settings: AuditSettings, container: JsonObject) -> JsonObject:
    return program_pod_spec(container, credentials_of(settings.pod_user, settings.image_pull_secrets))


def _tolerations(audit: BrokerGroupAudit) -> list[JsonObject]:
    return [one.model_dump(by_alias=True, exclude_none=True) for one in audit.spec.tolerations]


def _with_node_selection(audit: BrokerGroupAudit, spec: JsonObject) -> JsonObject:
    """The pod spec with the node selector and the tolerations of the resource."""
    selected = dict(spec)
    if audit.spec.node_selector:
        selected["nodeSelector"] = dict(audit.spec.node_selector)
    if audit.spec.tolerations:
        selected["tolerations"] = _tolerations(audit)
    return selected


def executor_template(audit: BrokerGroupAudit, names: AuditRunNames, settings: AuditSettings) -> JsonObject:
    """The template of Spark's executor pods."""
    spec = _pod_spec(settings, _container("executor", image_of(audit, settings) or "", audit))
    return {"apiVersion": "v1", "kind": "Pod", "spec": _with_node_selection(audit, spec)}


def driver(
    audit: BrokerGroupAudit,
    names: AuditRunNames,
    settings: AuditSettings,
    readers: Mapping[str, str],
    deadline_s: int,
) -> JsonObject:
    """The driver's pod. `readers` maps each replica to host:port of its volume reader; empty text without
    one."""
    container = _container("driver", image_of(audit, settings) or "", audit)
    heap, overhead = mebibytes(audit.spec.driver.memory), mebibytes(audit.spec.driver.memory_overhead)
    memory = f"{heap + overhead}Mi"
    container |= {
        "args": ["driver", "--job", f"{JOB_DIRECTORY}/{JOB_FILE}"],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "NUMBA_CACHE_DIR", "value": "/tmp/numba"},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "READERS", "value": json.dumps(dict(sorted(readers.items())))},
        ],
        "resources": {"requests": {"cpu": DRIVER_CPU, "memory": memory}, "limits": {"memory": memory}},
    }
    container["volumeMounts"] = [{"name": "job", "mountPath": JOB_DIRECTORY, "readOnly": True}]
    spec = _with_node_selection(audit, _pod_spec(settings, container))
    spec["volumes"] = [*spec["volumes"], {"name": "job", "configMap": {"name": names.job}}]
    spec |= {
        "serviceAccountName": names.driver,
        "automountServiceAccountToken": True,
        "activeDeadlineSeconds": max(deadline_s, 1),
    }
    return {**_head("v1", "Pod", names.driver, audit, names, "driver"), "spec": spec}


@dataclass(frozen=True, slots=True)
class ObservedVolume:
    """A replica's volume: its claim, its size, and the node of the pod that uses it, if there is one."""

    claim: Mapping[str, Any]
    size: str
    node: str | None


def reader(
    audit: BrokerGroupAudit,
    names: AuditRunNames,
    settings: AuditSettings,
    ordinal: int,
    volume: ObservedVolume,
    group_tolerations: list[JsonObject],
    deadline_s: int,
) -> JsonObject:
    """The pod that serves a replica's volume to the executors. Without a snapshot class it
    mounts the claim read-only, on the node where the claim is mounted already. With one it mounts a clone of
    the snapshot, as an ephemeral volume that is deleted with the pod."""
    container = _container("reader", image_of(audit, settings) or "", audit)
    container |= {
        "args": [
            "reader",
            "--root",
            STORE_DIRECTORY,
            "--port",
            str(READER_PORT),
        ],
        "ports": [{"name": "files", "containerPort": READER_PORT}],
        "readinessProbe": {"httpGet": {"path": "/live", "port": READER_PORT}, "periodSeconds": 1},
        "resources": {"requests": dict(READER_REQUESTS), "limits": dict(READER_LIMITS)},
    }
    container["volumeMounts"] = [{"name": VOLUME, "mountPath": STORE_DIRECTORY, "readOnly": True}]
    spec = _pod_spec(settings, container)
    tolerations = [*group_tolerations, *(one for one in _tolerations(audit) if one not in group_tolerations)]
    if tolerations:
        spec["tolerations"] = tolerations
    spec["activeDeadlineSeconds"] = max(deadline_s, 1)
    name = names.reader(ordinal)
    claim = volume.claim["metadata"]["name"]
    if audit.spec.volume_snapshot_class_name is None:
        source: JsonObject = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        if volume.node is not None:
            spec["affinity"] = on_node(volume.node)
    else:
        source = {"ephemeral": {"volumeClaimTemplate": _clone(volume, name, names)}}
    spec["volumes"] = [*spec["volumes"], {"name": VOLUME, **source}]
    return {**_head("v1", "Pod", name, audit, names, "reader"), "spec": spec}


def _clone(volume: ObservedVolume, snapshot: str, names: AuditRunNames) -> JsonObject:
    spec: JsonObject = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": volume.size}},
        "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot},
    }
    if (found := (volume.claim.get("spec") or {}).get("storageClassName")) is not None:
        spec["storageClassName"] = found
    return {"metadata": {"labels": names.labels("clone")}, "spec": spec}


def snapshot(
    audit: BrokerGroupAudit, names: AuditRunNames, ordinal: int, volume: ObservedVolume, reader_uid: str
) -> JsonObject:
    """The snapshot for a reader's clone. The reader's pod owns it, and it is deleted with the pod, so the
    operator needs no right to delete snapshots."""
    name = names.reader(ordinal)
    manifest = _head("snapshot.storage.k8s.io/v1", "VolumeSnapshot", name, audit, names, "snapshot")
    manifest["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": reader_uid}
    ]
    source = {"persistentVolumeClaimName": volume.claim["metadata"]["name"]}
    return {
        **manifest,
        "spec": {"volumeSnapshotClassName": audit.spec.volume_snapshot_class_name, "source": source},
    }


def claim_of(group: str, ordinal: int) -> str:
    """The claim of a replica's volume."""
    return claim_name(VOLUME, broker_pod_name(group, ordinal))
