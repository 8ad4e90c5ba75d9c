"""Renders the volume claims and the pods of a restore (`spec.restoreFrom`).

The claims are those that the StatefulSet of the group would make. There is a pod for each replica, which
restores its volume, and one that chooses the backup. All have the labels `epochmq.io/kind`,
`epochmq.io/group` and `epochmq.io/component: restore`. The pods of replicas are scheduled by the rules of
the brokers' pods, because a volume may be bound to the node of the first pod that uses it: a rule that keeps
brokers apart keeps these apart. They wait until their annotation `epochmq.io/restore-backup` has the id of
the backup; the program sees it as a file."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmq_operator.manifests.names import (
    COMPONENT_LABEL,
    RESTORE,
    claim_name,
    component_selector,
    labels_of,
)
from epochmq_operator.manifests.program_pod import module_container, program_pod_spec, reach_location
from epochmq_operator.manifests.settings import JsonObject, ManifestSettings
from epochmq_operator.pods import Component
from epochmq_operator.resources import API_GROUP, BrokerGroup
from epochmq_operator.resources.restore_from import RestoreFromSpec

BACKUP_ANNOTATION = f"{API_GROUP}/restore-backup"
ORDER_ANNOTATION = f"{API_GROUP}/restore-order"
"""An annotation of volume claims: the uid of the group for which a backup is to be restored to the volume."""
VOLUME_DIRECTORY, ORDER_DIRECTORY = "/volume", "/order"
BACKUP_FILE = "backup"
PROGRAM = "epochmq_store.backups.restore_pod_program"
SCHEDULING = ("affinity", "topologySpreadConstraints", "nodeSelector", "tolerations", "priorityClassName")
CREDENTIALS = ("imagePullSecrets", "securityContext")


def choosing_pod_name(group: str) -> str:
    """The pod that chooses the backup for a group."""
    return f"{group}-restore"


def restore_pod_name(group: str, ordinal: int) -> str:
    """The pod that restores the volume of a replica."""
    return f"{group}-restore-{ordinal}"


def image_of(group: BrokerGroup, settings: ManifestSettings) -> str | None:
    """The image of the pods, None if none is named. Backups on a volume need no more than the brokers'
    image has."""
    given = _restore_from(group)
    if given.image is not None:
        return given.image
    if given.claim_name is not None:
        return group.spec.image or settings.broker_image
    return settings.audit_image


def volume_claim(stateful_set: Mapping[str, Any], ordinal: int, order: str) -> JsonObject:
    """The claim of the volume of a replica, as its StatefulSet makes it, for a restore of this order."""
    spec, meta = stateful_set["spec"], stateful_set["metadata"]
    (template,) = spec["volumeClaimTemplates"]
    labels = {**template["metadata"].get("labels", {}), **spec["selector"]["matchLabels"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(template["metadata"]["name"], f"{meta['name']}-{ordinal}"),
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": {ORDER_ANNOTATION: order},
        },
        "spec": template.get("spec", {}),
    }


def choosing_pod(group: BrokerGroup, stateful_set: Mapping[str, Any], image: str) -> JsonObject:
    """The pod that finds the backup."""
    words = ["choose", "--mode", str(group.spec.mode)]
    given = _restore_from(group)
    if given.backup is not None:
        words += ["--backup-id", given.backup]
    return _pod(group, stateful_set, choosing_pod_name(group.name), image, words)


def restore_pod(
    group: BrokerGroup, stateful_set: Mapping[str, Any], ordinal: int, image: str, order: str
) -> JsonObject:
    """The pod that restores the volume of a replica."""
    timeout = str(_restore_from(group).timeout_seconds)
    words = ["restore", "--volume", VOLUME_DIRECTORY, "--order", order]
    words += ["--backup", f"{ORDER_DIRECTORY}/{BACKUP_FILE}", "--wait-s", timeout]
    pod = _pod(group, stateful_set, restore_pod_name(group.name, ordinal), image, words)
    claim = volume_claim(stateful_set, ordinal, order)["metadata"]["name"]
    item = {"path": BACKUP_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{BACKUP_ANNOTATION}']"}}
    pod["spec"]["volumes"] += [
        {"name": "order", "downwardAPI": {"items": [item]}},
        {"name": "store", "persistentVolumeClaim": {"claimName": claim}},
    ]
    pod["spec"]["containers"][0]["volumeMounts"] += [
        {"name": "order", "mountPath": ORDER_DIRECTORY, "readOnly": True},
        {"name": "store", "mountPath": VOLUME_DIRECTORY},
    ]
    template = _template_spec(stateful_set)
    brokers = component_selector(group, Component.BROKER)
    for key in SCHEDULING:
        if key in template:
            pod["spec"][key] = _beside_restores(template[key], brokers)
    return pod


def _restore_from(group: BrokerGroup) -> RestoreFromSpec:
    given = group.spec.restore_from
    assert given is not None
    return given


def _template_spec(stateful_set: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = stateful_set["spec"]["template"].get("spec") or {}
    return found


def _beside_restores(rule: Any, brokers: Mapping[str, str]) -> Any:
    """A scheduling rule that counts the pods of the restore where it counted those of the brokers."""
    if isinstance(rule, list):
        return [_beside_restores(one, brokers) for one in rule]
    if not isinstance(rule, dict):
        return rule
    if rule == brokers:
        return {**brokers, COMPONENT_LABEL: RESTORE}
    return {key: _beside_restores(value, brokers) for key, value in rule.items()}


def _pod(
    group: BrokerGroup, stateful_set: Mapping[str, Any], name: str, image: str, words: list[str]
) -> JsonObject:
    given, template = _restore_from(group), _template_spec(stateful_set)
    words = [*words, "--url", given.url]
    if given.offset is not None:
        words += ["--offset", str(given.offset)]
    if given.time_ms is not None:
        words += ["--time-ms", str(given.time_ms)]
    container = module_container(RESTORE, image, str(group.spec.image_pull_policy), PROGRAM, words, given)
    credentials = {key: template[key] for key in CREDENTIALS if key in template}
    spec = program_pod_spec(container, credentials) | {"activeDeadlineSeconds": given.timeout_seconds}
    reach_location(spec, given, readOnly=True)
    if "tolerations" in template:
        spec["tolerations"] = template["tolerations"]
    labels = labels_of(group.kind, group.name, RESTORE)
    meta = {"name": name, "namespace": group.metadata.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
