"""Restores the volumes of a new group before its brokers start (`spec.restoreFrom`): the step `restore`.

Every replica starts with the same store: a replica that had an empty log could be elected first, and would
found another log. So the step is done when all volumes of the group are restored from one backup, and only
then the StatefulSet is created. It is the step of a new group alone: it is done when the StatefulSet exists,
when the group was created, or when the status says so. Replicas that come later copy the log of the master.

Everything is computed from the cluster in every reconciliation, in this order:

1. Each replica has a volume claim with the group's uid as annotation.
2. A pod chooses the backup. When it has ended, the status has the backup's id.
3. There is a pod for each volume. When all have a node, each gets the backup's id as annotation.
4. When a pod has restored its volume, the claim gets the annotation `RESTORED_ANNOTATION`.
5. When all claims have it, and agree about the backup and the end of the log, and the controllers report a
   leader and do not know the group, the pods are deleted, and the status says `Restored`.

All pods exist at the same time, so that rules of scheduling keep the volumes apart. A pod that fails stays
until a person deletes it, unless the node ended it: then another one begins anew. Its program continues what
a killed one has left, and never writes to a volume with anything else
(`epochmq_store.backups.volume_restoring`). A group whose volumes all exist from an earlier group of its name
uses them as they are."""

# pure: data in, steps out.

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochmq_operator.manifests import ManifestSettings
from epochmq_operator.manifests.restore_pod import (
    BACKUP_ANNOTATION,
    ORDER_ANNOTATION,
    choosing_pod,
    choosing_pod_name,
    image_of,
    restore_pod,
    restore_pod_name,
    volume_claim,
)
from epochmq_operator.plans.conditions import seconds_of
from epochmq_operator.plans.effects import Apply, Create, Delete, Effect, SetAnnotation
from epochmq_operator.plans.ended_pods import is_owned, number_in, termination_of, why_it_ended
from epochmq_operator.plans.objects import (
    Manifest,
    Owner,
    annotation,
    is_deleting,
    metadata,
    ref_of,
    spec_of,
    status_of,
    with_owner,
)
from epochmq_operator.plans.observed_state import ObservedQuorum, ObservedState, observed_pod
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.plans.volumes import with_ownership, wrongly_owned
from epochmq_operator.resources import API_GROUP, BrokerGroup

RESTORE = "restore"
"""The field of a group's status about its restore; absent for a group that was created without one."""
RESTORED_ANNOTATION = f"{API_GROUP}/restored"
"""An annotation of volume claims: what was restored to the volume, as JSON."""
RESTORING, RESTORED, SKIPPED = "Restoring", "Restored", "Skipped"
IDLE_S = 600.0
"""A pod that does not run for so long needs a person."""
RETRY_S = 30.0
"""After this time another pod takes the place of one that its node ended."""
LISTED_MAX = 3


@dataclass(frozen=True, slots=True)
class RestoreRecord:
    """The content of the status field. `replicas` is the number of restored volumes."""

    state: str
    backup: str = ""
    log_start: int = 0
    log_end: int = 0
    replicas: int = 0

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> RestoreRecord | None:
        """Reads a status of any shape; None without a usable record."""
        found = status.get(RESTORE)
        if not isinstance(found, Mapping) or not isinstance(found.get("state"), str):
            return None
        numbers = [found.get(key) for key in ("logStart", "logEnd", "replicas")]
        start, end, replicas = (one if type(one) is int else 0 for one in numbers)
        return cls(found["state"], str(found.get("backup", "")), start, end, replicas)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to restore."""
        return self.state in (RESTORED, SKIPPED)

    def document(self) -> dict[str, Any]:
        """The value for the status."""
        return {
            "state": self.state,
            "backup": self.backup,
            "logStart": self.log_start,
            "logEnd": self.log_end,
            "replicas": self.replicas,
        }


def first_size(observed: ObservedState, group: BrokerGroup, stateful_set: str, count: int) -> int:
    """With how many replicas a group starts that has not been created yet, at least. One that is restored
    starts with as many as were restored, although `spec.replicas` has grown meanwhile: further ones are added
    one after the other, as to any group. `count` is its present target."""
    wanted = max(count, group.spec.replicas)
    if group.spec.restore_from is None:
        return wanted
    if observed.object("StatefulSet", stateful_set) is not None:
        return count
    record = RestoreRecord.of(status_of(observed.resource))
    return min(wanted, record.replicas) if record is not None and record.ended else wanted


@dataclass(frozen=True, slots=True)
class Restoration:
    """The restore of a group that needs one. `idle` has one line for each of its pods that does not run for
    long."""

    step: PlanStep
    idle: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why the group is not ready, in CamelCase."""
        return f"{self.step.reason}Blocked" if self.step.blocked else self.step.reason

    @property
    def message(self) -> str:
        """What the step does, or waits for."""
        if self.step.blocked or not self.step.waits_for:
            return self.step.waits_for or self.step.message
        return f"{self.step.message}, waiting for: {self.step.waits_for}"


@dataclass(frozen=True, slots=True)
class _Restore:
    """What the step is computed from. `order` is the uid of the group."""

    observed: ObservedState
    group: BrokerGroup
    stateful_set: Manifest
    settings: ManifestSettings
    quorum: ObservedQuorum
    owner: Owner
    now: float
    idle: list[str] = field(default_factory=list)

    @property
    def order(self) -> str:
        return self.owner.uid

    @property
    def ordinals(self) -> range:
        return range(spec_of(self.stateful_set)["replicas"])

    def claim_name(self, ordinal: int) -> str:
        return str(volume_claim(self.stateful_set, ordinal, self.order)["metadata"]["name"])

    def claim(self, ordinal: int) -> Manifest | None:
        return self.observed.object("PersistentVolumeClaim", self.claim_name(ordinal))

    def pod(self, name: str) -> Manifest | None:
        return self.observed.object("Pod", name)


def restoration_of(
    observed: ObservedState,
    group: BrokerGroup,
    stateful_set: Manifest | None,
    settings: ManifestSettings,
    quorum: ObservedQuorum,
    owner: Owner,
    now: float,
    *,
    created: bool,
) -> Restoration | None:
    """The restore of a group; None if it needs none, or none any more. `stateful_set` is the rendered one."""
    record = RestoreRecord.of(status_of(observed.resource))
    if group.spec.restore_from is None or created or stateful_set is None:
        return None
    if observed.objects.get(ref_of(stateful_set)) is not None:
        return None
    restore = _Restore(observed, group, stateful_set, settings, quorum, owner, now)
    claims = {ordinal: restore.claim(ordinal) for ordinal in restore.ordinals}
    if record is not None and record.ended and all(one is not None for one in claims.values()):
        return None
    return Restoration(_step(restore, record, claims), tuple(restore.idle))


def _step(restore: _Restore, record: RestoreRecord | None, claims: Mapping[int, Manifest | None]) -> PlanStep:
    gone = [restore.claim_name(one) for one, claim in claims.items() if claim and is_deleting(claim)]
    if gone:
        return _waits("creates the volumes", f"the volume claims {_listed(gone)} are being deleted")
    earlier = [
        restore.claim_name(one) for one, claim in claims.items() if claim is not None and _is_earlier(claim)
    ]
    kept = [name for name in earlier if not _is_of_order(restore, name)]
    if len(kept) == len(claims):
        message = f"the volumes of an earlier group are used as they are, not restored: {_listed(kept)}"
        return _made("RestoreSkipped", message, recorded=RestoreRecord(SKIPPED, replicas=len(kept)))
    obstacle = _obstacle(restore, kept)
    if obstacle:
        return _blocked(obstacle)
    volumes = _volumes(restore, claims)
    if volumes is not None:
        return volumes
    if record is None or not record.backup:
        return _chosen(restore)
    return _restored(restore, record, [claim for claim in claims.values() if claim is not None])


def _is_earlier(claim: Manifest) -> bool:
    """Whether the claim exists from an earlier group, which may have written to its volume: it was not made
    for a restore, or that has ended."""
    return annotation(claim, ORDER_ANNOTATION) is None or annotation(claim, RESTORED_ANNOTATION) is not None


def _is_of_order(restore: _Restore, claim: str) -> bool:
    found = restore.observed.object("PersistentVolumeClaim", claim)
    return found is not None and annotation(found, ORDER_ANNOTATION) == restore.order


def _obstacle(restore: _Restore, kept: list[str]) -> str:
    """Why nothing can be restored before a person does something; empty if it can."""
    namespace, group = restore.observed.namespace, restore.group
    if kept:
        return (
            f"volume claims of an earlier group exist for some replicas only: {_listed(kept)}; a restore "
            "needs new volumes for all: if their data is not needed, delete them with: "
            f"kubectl delete persistentvolumeclaim {' '.join(kept)} --namespace {namespace}"
        )
    if not restore.settings.restores:
        return "the operator does not restore groups: set features.restores in the values of its chart"
    if image_of(group, restore.settings) is None:
        return "no image: set spec.restoreFrom.image in a new group, or the operator's auditImage"
    name, cluster = group.broker_name, group.spec.cluster
    known = [one for one in restore.quorum.groups if one.broker_name == name and one.cluster in ("", cluster)]
    if group.is_under_controllers and any(
        one.replicas or one.sync_state_set or one.master_broker_id is not None for one in known
    ):
        return (
            f"ControllerGroup {group.spec.controller_group} knows a group with the brokerName {name}, so the "
            "restored replicas could not found one: create the group with another spec.brokerName, or under "
            "another ControllerGroup"
        )
    return ""


def _volumes(restore: _Restore, claims: Mapping[int, Manifest | None]) -> PlanStep | None:
    """The step while the claims are not all there, or not owned as `volumes` says; None when they are."""
    effects: list[Effect] = []
    for ordinal, claim in claims.items():
        if claim is None:
            effects.append(Create(volume_claim(restore.stateful_set, ordinal, restore.order)))
        elif annotation(claim, ORDER_ANNOTATION) != restore.order:
            effects.append(_annotated(claim, ORDER_ANNOTATION, restore.order))
    if not effects:
        retention = restore.group.spec.storage.retention
        wrong = wrongly_owned([one for one in claims.values() if one], restore.owner, retention)
        effects += [with_ownership(one, restore.owner, retention) for one in wrong]
    return _made("RestoringBackup", "creates the volumes", effects) if effects else None


def _chosen(restore: _Restore) -> PlanStep:
    """The step until the status has the id of the backup."""
    name, message = choosing_pod_name(restore.group.name), "chooses the backup"
    pod = restore.pod(name)
    if pod is None:
        image = image_of(restore.group, restore.settings) or ""
        made = choosing_pod(restore.group, restore.stateful_set, image)
        return _made("RestoringBackup", message, [Apply(with_owner(made, restore.owner))])
    faulty = _faulty(restore, name, pod)
    if faulty is not None:
        return faulty
    found = termination_of(pod)
    if (pod.get("status") or {}).get("phase") != "Succeeded" or not isinstance(found.get("backup"), str):
        return _waits(message, _why_unfinished(restore, pod))
    record = RestoreRecord(
        RESTORING, found["backup"], number_in(found, "logStart"), number_in(found, "logEnd")
    )
    return _made("RestoringBackup", f"restores backup {record.backup}", recorded=record)


def _restored(restore: _Restore, record: RestoreRecord, claims: Sequence[Manifest]) -> PlanStep:
    """The step while volumes are restored."""
    message = f"restores backup {record.backup} to {len(claims)} volumes"
    results = [_result_of(claim) for claim in claims]
    open_ordinals = [one for one, found in zip(restore.ordinals, results, strict=True) if not found]
    if not open_ordinals:
        return _finished(restore, record, results)
    pods = {one: restore.pod(restore_pod_name(restore.group.name, one)) for one in open_ordinals}
    effects: list[Effect] = []
    waits: list[str] = []
    for ordinal, pod in pods.items():
        name = restore_pod_name(restore.group.name, ordinal)
        if pod is None:
            image = image_of(restore.group, restore.settings) or ""
            made = restore_pod(restore.group, restore.stateful_set, ordinal, image, restore.order)
            effects.append(Apply(with_owner(made, restore.owner)))
            continue
        faulty = _faulty(restore, name, pod)
        if faulty is not None and (faulty.blocked or faulty.effects):
            return faulty
        if faulty is not None:
            waits.append(faulty.waits_for)
        elif (pod.get("status") or {}).get("phase") == "Succeeded":
            found = {"order": restore.order, **termination_of(pod)}
            effects.append(_annotated(claims[ordinal], RESTORED_ANNOTATION, json.dumps(found)))
        else:
            waits.append(_why_unfinished(restore, pod))
    if not effects:
        effects = _with_backup(record, [pod for pod in pods.values() if pod is not None])
    if effects:
        return _made("RestoringBackup", message, effects)
    return _waits(message, "; ".join(waits[:LISTED_MAX]))


def _with_backup(record: RestoreRecord, pods: Sequence[Manifest]) -> list[Effect]:
    """Gives the pods the backup's id once all have a node."""
    if not all(spec_of(pod).get("nodeName") for pod in pods):
        return []
    waiting = [pod for pod in pods if annotation(pod, BACKUP_ANNOTATION) is None]
    return [_annotated(pod, BACKUP_ANNOTATION, record.backup) for pod in waiting]


def _finished(restore: _Restore, record: RestoreRecord, results: Sequence[Mapping[str, Any]]) -> PlanStep:
    """The step when all volumes are restored: they must be the same, and the group must be new."""
    ends = {
        (found.get("backup"), number_in(found, "logStart"), number_in(found, "logEnd")) for found in results
    }
    if len(ends) != 1:
        listed = "; ".join(f"backup {one} up to offset {end}" for one, _, end in sorted(ends, key=str))
        claims = " ".join(restore.claim_name(ordinal) for ordinal in restore.ordinals)
        return _blocked(
            f"the volumes differ: {listed}; delete them, and the restore begins anew: kubectl delete "
            f"persistentvolumeclaim {claims} --namespace {restore.observed.namespace}"
        )
    if restore.group.is_under_controllers and restore.quorum.leader is None:
        return _waits("starts the restored replicas", "the controllers report no leader")
    ((backup, start, end),) = ends
    done = RestoreRecord(RESTORED, str(backup), start, end, len(results))
    names = [choosing_pod_name(restore.group.name)]
    names += [restore_pod_name(restore.group.name, ordinal) for ordinal in restore.ordinals]
    pods = [pod for name in names if (pod := restore.pod(name)) is not None]
    own = [pod for pod in pods if is_owned(restore.observed, pod)]
    deletions = [Delete(ref_of(pod), str(metadata(pod).get("uid", ""))) for pod in own]
    message = f"backup {backup} is restored up to offset {end}"
    return _made("BackupRestored", message, deletions, recorded=done)


def _result_of(claim: Manifest) -> Mapping[str, Any]:
    """What was restored to the volume; empty if nothing was."""
    try:
        found = json.loads(annotation(claim, RESTORED_ANNOTATION) or "null")
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _faulty(restore: _Restore, name: str, pod: Manifest) -> PlanStep | None:
    """The step for a pod that cannot be used; None for one that runs, or has succeeded."""
    status = pod.get("status") or {}
    message = f"restores by {name}"
    if is_deleting(pod):
        return _waits(message, f"the former {name} is being deleted")
    if not is_owned(restore.observed, pod):
        return _blocked(f"pod {name} belongs to something else: delete it, or choose another name")
    if status.get("phase") != "Failed":
        return None
    why = f"{name}: {why_it_ended(pod)}"
    reason = status.get("reason")
    if termination_of(pod).get("error") or not reason or reason == "DeadlineExceeded":
        return _blocked(
            f"{why}; when the cause is remedied, delete the pod, and it begins anew: "
            f"kubectl delete pod {name} --namespace {restore.observed.namespace}"
        )
    if restore.now - (seconds_of(_ended_at(pod)) or 0.0) < RETRY_S:
        return _waits(message, f"{why}; another one follows")
    deletion = Delete(ref_of(pod), str(metadata(pod).get("uid", "")))
    return _made("RestoringBackup", f"{message} again: {why}", [deletion])


def _ended_at(pod: Manifest) -> object:
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        if found := ((one.get("state") or {}).get("terminated") or {}).get("finishedAt"):
            return found
    return metadata(pod).get("creationTimestamp")


def _why_unfinished(restore: _Restore, pod: Manifest) -> str:
    """What to know of a pod that has not ended."""
    found = observed_pod(pod)
    if found.runs:
        return f"{found.name} runs"
    line = f"{found.name} {found.unready_reason}"
    if restore.now - (seconds_of(metadata(pod).get("creationTimestamp")) or 0.0) >= IDLE_S:
        restore.idle.append(line)
    return line


def _annotated(found: Manifest, key: str, value: str) -> SetAnnotation:
    return SetAnnotation(ref_of(found), str(metadata(found).get("resourceVersion", "")), key, value)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return ", ".join(names[:LISTED_MAX]) + more


def _made(
    reason: str, message: str, effects: Sequence[Effect] = (), *, recorded: RestoreRecord | None = None
) -> PlanStep:
    after = {} if recorded is None else {RESTORE: recorded.document()}
    return PlanStep(
        StepKind.RESTORE,
        False,
        reason,
        message,
        effects=tuple(effects),
        recorded_after=after,
        occurrence=reason,
    )


def _waits(message: str, waits_for: str) -> PlanStep:
    return PlanStep(StepKind.RESTORE, False, "RestoringBackup", message, waits_for)


def _blocked(waits_for: str) -> PlanStep:
    return PlanStep(StepKind.RESTORE, False, "Restore", "restores a backup", waits_for, blocked=True)
