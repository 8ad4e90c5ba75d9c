"""Decides the next step of one BrokerGroupBackup: which objects to create or delete, and what its status
says.

The present step is computed from the cluster in every reconciliation, except for one thing: the status
records a run before its pod is created, and its outcome before the pod is deleted. So an operator that is
killed at any point is followed by one that continues. A pod that is lost is created anew; at the storage its
run makes one backup, whatever became of the first pod (`epochmq_store.backups.taking`).

A run has these steps; the first that is not done is taken:

| step | waits for | is done when |
|---|---|---|
| `volume` | the group, and a master that reports its confirm offset | the pod exists |
| `progress` | | the pod is ready: it has read what was processed, which the cut must not precede |
| `cut` | the same replica to be the master | the pod has the confirm offset as an annotation |
| `upload` | | the pod has ended |

Then the outcome is recorded, and the pod is deleted. The pod reads the master's volume, because only the
master has every topic at the time of the cut."""

# pure: data in, effects out.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from epochmq_operator.audits.cut import GroupCut, cut_of
from epochmq_operator.audits.plan import broker_name_of, broker_pods_of
from epochmq_operator.backups import backup_pod, backup_status
from epochmq_operator.backups.backup_pod import BackedUpReplica, BackupSettings
from epochmq_operator.backups.outcomes import BackupOutcome, outcome_of
from epochmq_operator.manifests.names import RUN_LABEL
from epochmq_operator.plans.conditions import seconds_of
from epochmq_operator.plans.effects import (
    Apply,
    CreateEvent,
    Delete,
    Effect,
    EventType,
    PatchStatus,
    ReconciliationResult,
    SetAnnotation,
)
from epochmq_operator.plans.ended_pods import is_owned
from epochmq_operator.plans.indexed_objects import of_resource
from epochmq_operator.plans.objects import (
    Manifest,
    Owner,
    Ref,
    annotation,
    is_deleting,
    metadata,
    ref_of,
    spec_of,
    status_of,
    with_owner,
)
from epochmq_operator.plans.observed_state import ObservedState, observed_pod
from epochmq_operator.plans.reported_states import ReportedState
from epochmq_operator.plans.scheduled_runs import (
    RunSchedule,
    RunStatuses,
    ScheduledRun,
    between_runs,
    invalid,
)
from epochmq_operator.resources import GroupMode
from epochmq_operator.resources.backup import BACKUP_KIND, BrokerGroupBackup
from epochmq_operator.resources.documents import model_of
from epochmq_operator.resources.model import BrokerGroupSpec

DEFAULT_CLUSTER = str(BrokerGroupSpec.model_fields["cluster"].default)
BACKUP_NOW = "epochmq.io/backup-now"
"""The annotation that starts a backup: it starts when the value differs from that of the last start."""
SOON_S, LATER_S = 2.0, 15.0
STUCK_S = 60.0
"""A pod that cannot run with its template (its image cannot be pulled) fails the run after this time: a
registry may be down for a while."""


@dataclass(frozen=True, slots=True)
class ObservedBackup:
    """A backup's observed state. `states` are those of the group's replicas; empty in reconciliations that
    need none (`wants_states`). `ready_uid` is the `ready_pod` before they were requested: only then is their
    confirm offset a cut for that pod."""

    observed: ObservedState
    states: Mapping[str, ReportedState] = field(default_factory=dict)
    ready_uid: str = ""


def schedule_of(backup: BrokerGroupBackup) -> RunSchedule:
    """When the backup runs."""
    return RunSchedule(backup.spec.schedule, backup.spec.suspend, BACKUP_NOW)


def wants_states(observed: ObservedState) -> bool:
    """Whether this reconciliation needs the replicas' states: to choose a volume, or for the cut."""
    run = ScheduledRun.of(status_of(observed.resource))
    if run is None or is_deleting(observed.resource):
        return False
    return _pod(observed, run) is None or ready_pod(observed) != ""


def ready_pod(observed: ObservedState) -> str:
    """The uid of a pod that has read what was processed, and waits for its cut; empty without one."""
    run = ScheduledRun.of(status_of(observed.resource))
    pod = None if run is None else _pod(observed, run)
    if pod is None or annotation(pod, backup_pod.CUT_ANNOTATION) is not None or not observed_pod(pod).ready:
        return ""
    return str(metadata(pod).get("uid", ""))


def _pod(observed: ObservedState, run: ScheduledRun) -> Manifest | None:
    return observed.object(
        "Pod", backup_pod.pod_name(str(metadata(observed.resource).get("name")), run.number)
    )


def reconcile(settings: BackupSettings, observed_backup: ObservedBackup, now: float) -> ReconciliationResult:
    """Reconciles the observed backup. `now` is in seconds since 1970."""
    observed = observed_backup.observed
    if is_deleting(observed.resource):
        return ReconciliationResult((), LATER_S)  # the garbage collector deletes the pod that it owns
    backup = model_of(BrokerGroupBackup, observed.resource)
    if isinstance(backup, str):
        return invalid(observed.resource, backup, now, LATER_S)
    run = ScheduledRun.of(status_of(observed.resource))
    if run is None:
        return _between(backup, observed, now)
    run, effects, outcome = _advance(settings, observed_backup, backup, run, now)
    if outcome is not None:
        return _ended(backup, observed, run, outcome, now)
    started = CreateEvent(
        EventType.NORMAL,
        "BackupStarted",
        f"backup {run.number} of {backup.spec.broker_group} begins",
        _key(observed, run, "started"),
    )
    status = backup_status.running(backup, observed.resource, run, observed.rejection, now)
    changed = (PatchStatus(status),) if status != status_of(observed.resource) else ()
    cleaning = tuple(_leftovers(observed, backup, run))
    return ReconciliationResult((started, *changed, *cleaning, *effects), SOON_S)


def _between(backup: BrokerGroupBackup, observed: ObservedState, now: float) -> ReconciliationResult:
    """Between runs: deletes what former runs left, and then starts a run if one is due."""
    statuses = RunStatuses(
        lambda run: backup_status.running(backup, observed.resource, run, "", now),
        lambda next_run: backup_status.idle(backup, observed.resource, next_run, now),
    )
    return between_runs(
        observed.resource,
        schedule_of(backup),
        statuses,
        _leftovers(observed, backup, None),
        first_step="volume",
        now=now,
        requeue_after_s=LATER_S,
    )


def _leftovers(
    observed: ObservedState, backup: BrokerGroupBackup, run: ScheduledRun | None
) -> Iterator[Delete]:
    """Deletions of the pods of ended runs."""
    own = of_resource(observed.objects, "Pod", ref_of(observed.resource))
    for ref, found in sorted(own.items(), key=lambda one: one[0].name):
        number = (metadata(found).get("labels") or {}).get(RUN_LABEL)
        if not is_deleting(found) and (run is None or number != str(run.number)):
            yield _delete(ref, found)


def _delete(ref: Ref, found: Manifest) -> Delete:
    return Delete(ref, str(metadata(found).get("uid", "")))


# A run

RunProgress = tuple[ScheduledRun, tuple[Effect, ...], BackupOutcome | None]


def _advance(
    settings: BackupSettings,
    observed_backup: ObservedBackup,
    backup: BrokerGroupBackup,
    run: ScheduledRun,
    now: float,
) -> RunProgress:
    """The run's present step, the effects, and the outcome if the run has ended."""
    observed, name = observed_backup.observed, backup_pod.pod_name(backup.name, run.number)
    pod = _pod(observed, run)
    if pod is not None and is_deleting(pod):
        return run.at_step("volume", f"waits until the former {name} is deleted"), (), None
    if pod is not None and not is_owned(observed, pod):
        return run, (), BackupOutcome(reason="NameTaken", message=f"pod {name} belongs to something else")
    if pod is not None and (outcome := outcome_of(pod)) is not None:
        return run, (), outcome
    left_s = (seconds_of(run.started) or now) + backup.spec.timeout_seconds - now
    if left_s <= 0:
        what = f"not finished within {backup.spec.timeout_seconds} s: {run.step}: {run.message}"
        return run, (), BackupOutcome(reason="TimedOut", message=what)
    if backup_pod.image_of(backup, settings) is None:
        what = "no image: set spec.image, or the operator's auditImage"
        return run, (), BackupOutcome(reason="NoImage", message=what)
    group = observed.object("BrokerGroup", backup.spec.broker_group)
    if group is not None and spec_of(group).get("mode") == GroupMode.DLEDGER:
        what = "no backup can be taken of a group in the mode DLedger"
        return run, (), BackupOutcome(reason="UnsupportedMode", message=what)
    if pod is None:
        return _create_pod(settings, observed_backup, backup, run, group, left_s)
    found = observed_pod(pod)
    if found.stuck and now - (seconds_of(metadata(pod).get("creationTimestamp")) or now) > STUCK_S:
        return run, (), BackupOutcome(reason="PodStuck", message=f"{name} {found.unready_reason}")
    if annotation(pod, backup_pod.CUT_ANNOTATION) is not None:
        return run.at_step("upload", "writes what earlier backups lack"), (), None
    if not found.ready or observed_backup.ready_uid != found.uid:
        why = found.unready_reason or "is ready, the replicas are asked next"
        return run.at_step("progress", f"waits: {name} {why}"), (), None
    return _set_cut(observed_backup, run, pod, group)


def _cut(observed_backup: ObservedBackup, group: Manifest | None, name: str) -> GroupCut | str:
    """The group's cut, or why there is none. Its master and confirm offset are what a backup needs."""
    if group is None:
        return f"BrokerGroup {name} does not exist"
    states = observed_backup.states
    return cut_of(broker_pods_of(group), states, {}, states, broker_name_of(group))


def _create_pod(
    settings: BackupSettings,
    observed_backup: ObservedBackup,
    backup: BrokerGroupBackup,
    run: ScheduledRun,
    group: Manifest | None,
    left_s: float,
) -> RunProgress:
    observed = observed_backup.observed
    cut = _cut(observed_backup, group, backup.spec.broker_group)
    if not isinstance(cut, GroupCut) or group is None:
        return run.at_step("volume", f"waits: {cut}"), (), None
    claim = backup_pod.claim_of(cut.master)
    if observed.object("PersistentVolumeClaim", claim) is None:
        return run.at_step("volume", f"waits: volume claim {claim} does not exist"), (), None
    spec = spec_of(group)
    replica = BackedUpReplica(
        cut.master,
        spec_of(observed.object("Pod", cut.master) or {}).get("nodeName"),
        broker_name_of(group),
        str(spec.get("cluster") or DEFAULT_CLUSTER),
        str(spec.get("mode") or GroupMode.CONTROLLER),
        tuple(spec.get("tolerations") or ()),
    )
    uid = str(metadata(observed.resource).get("uid", ""))
    pod = backup_pod.pod(backup, settings, run.number, replica, f"{uid}/{run.number}", int(left_s))
    wanted = Apply(with_owner(pod, Owner(BACKUP_KIND, backup.name, uid)))
    return run.at_step("volume", f"reads the volume of {cut.master}"), (wanted,), None


def _set_cut(
    observed_backup: ObservedBackup, run: ScheduledRun, pod: Manifest, group: Manifest | None
) -> RunProgress:
    observed, meta = observed_backup.observed, metadata(pod)
    name = str(spec_of(observed.resource).get("brokerGroup", ""))
    cut = _cut(observed_backup, group, name)
    if not isinstance(cut, GroupCut):
        return run.at_step("cut", f"waits: {cut}"), (), None
    replica = (meta.get("labels") or {}).get(backup_pod.REPLICA_LABEL)
    if cut.master != replica:
        what = f"begins again: the master is {cut.master}, no longer {replica}"
        return run.at_step("volume", what), (_delete(ref_of(pod), pod),), None
    version, offset = str(meta.get("resourceVersion", "")), str(cut.confirmed)
    event = CreateEvent(
        EventType.NORMAL,
        "BackupCut",
        f"backup {run.number}: up to offset {offset} of {cut.master}, epoch {cut.epoch}",
        _key(observed, run, "cut"),
    )
    setting = SetAnnotation(ref_of(pod), version, backup_pod.CUT_ANNOTATION, offset)
    return run.at_step("cut", f"up to offset {offset} of {cut.master}"), (setting, event), None


def _ended(
    backup: BrokerGroupBackup,
    observed: ObservedState,
    run: ScheduledRun,
    outcome: BackupOutcome,
    now: float,
) -> ReconciliationResult:
    """Records the outcome. The following reconciliations delete the run's pod."""
    next_run = schedule_of(backup).next_due(now)
    status = backup_status.ended(backup, observed.resource, run, outcome, next_run, now)
    entry = status["history"][0]
    if outcome.taken is None:
        kind, reason, what = EventType.WARNING, f"Backup{outcome.reason}", f"failed: {entry['message']}"
    elif entry["message"]:
        kind, reason, what = EventType.WARNING, "OldBackupsRemain", entry["message"]
    else:
        kind, reason = EventType.NORMAL, "BackupTaken"
        what = f"{entry['backup']}, {entry['uploadedBytes']} of {entry['bytes']} bytes uploaded"
    event = CreateEvent(kind, reason, f"backup {run.number}: {what}", _key(observed, run, "ended"))
    return ReconciliationResult((event, PatchStatus(status)), 0.0)


def _key(observed: ObservedState, run: ScheduledRun, what: str) -> str:
    return "/".join((str(metadata(observed.resource).get("uid", "")), str(run.number), what))
