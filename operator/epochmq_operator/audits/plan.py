"""Decides the next step of one audit: which objects to create or delete, and what its status says.

The present step is computed from the cluster in every reconciliation, except for one thing: the status
records a run before any of its objects is created, and its outcome before any of them is deleted. So an
operator that is killed at any point is followed by one that continues: it begins nothing twice, and leaves no
object behind.

A run has these steps; the first that is not done is taken:

| step | waits for | is done when |
|---|---|---|
| `cut` | the group, and a master that reports its confirm offset | the job, which holds the cut, exists |
| `volumes` | | a reader is ready for every volume; after a long wait, for one at least |
| `audit` | | the driver's pod has ended |

Then the outcome is recorded, and all objects of the run but its report are deleted."""

# pure: data in, effects out.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from epochmq_operator.audits import audit_status, manifests
from epochmq_operator.audits.cut import GroupCut, cut_of, reported_dledger_cut
from epochmq_operator.audits.manifests import AuditRunNames, AuditSettings, ObservedVolume
from epochmq_operator.audits.runs import RunOutcome, outcome_of
from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL, RUN_LABEL
from epochmq_operator.plans.conditions import seconds_of
from epochmq_operator.plans.effects import (
    Apply,
    CreateEvent,
    Delete,
    Effect,
    EventType,
    PatchStatus,
    ReconciliationResult,
)
from epochmq_operator.plans.ended_pods import is_owned, why_it_ended
from epochmq_operator.plans.objects import (
    Manifest,
    Owner,
    Ref,
    is_deleting,
    metadata,
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
    history_of,
    invalid,
)
from epochmq_operator.pod_rendering import broker_pod_name
from epochmq_operator.resources import GroupMode
from epochmq_operator.resources.audit import AUDIT_KIND, BrokerGroupAudit
from epochmq_operator.resources.documents import model_of

AUDIT_NOW = "epochmq.io/audit-now"
"""The annotation that starts an audit: it starts when the value differs from that of the last start."""
SOON_S, LATER_S = 2.0, 15.0
STUCK_S = 60.0
"""A pod that cannot run with its template (its image cannot be pulled) fails the run after this time: a
registry may be down for a while."""
READERS_WAIT_S = 180.0
"""After this time an audit starts without the volumes that have no ready reader."""
FLUSH_WAIT_S = 15.0
"""The delay between the cut and a snapshot: confirmed messages must be on the disk, and brokers flush
later."""
REPLICAS_MAX = 9


@dataclass(frozen=True, slots=True)
class ObservedAudit:
    """An audit's observed state. `copies` are the epoch files of the group's replicas, requested after
    `observed.states` were reported; `later` are the states after that. All are empty in reconciliations that
    need no cut (`wants_cut`)."""

    observed: ObservedState
    copies: Mapping[str, bytes] = field(default_factory=dict)
    later: Mapping[str, ReportedState] = field(default_factory=dict)


def wants_cut(observed: ObservedState) -> bool:
    """Whether this reconciliation needs the replicas' states and epoch files."""
    run = ScheduledRun.of(status_of(observed.resource))
    if run is None or is_deleting(observed.resource):
        return False
    names = AuditRunNames(str(metadata(observed.resource).get("name")), run.number)
    return not is_owned(observed, observed.object("ConfigMap", names.job))


def reconcile(settings: AuditSettings, observed_audit: ObservedAudit, now: float) -> ReconciliationResult:
    """Reconciles the observed audit. `now` is in seconds since 1970."""
    observed = observed_audit.observed
    if is_deleting(observed.resource):
        return ReconciliationResult((), LATER_S)  # the garbage collector deletes all that it owns
    audit = model_of(BrokerGroupAudit, observed.resource)
    if isinstance(audit, str):
        return invalid(observed.resource, audit, now, LATER_S)
    run = ScheduledRun.of(status_of(observed.resource))
    if run is None:
        return _between(audit, observed, now)
    names = AuditRunNames(audit.name, run.number)
    cleaning = tuple(_leftovers(observed, audit, run))
    run, effects, outcome = _advance(settings, observed_audit, audit, names, run, now)
    if outcome is not None:
        return _ended(audit, observed, names, run, outcome, now)
    started = (
        CreateEvent(
            EventType.NORMAL,
            "AuditStarted",
            f"audit {run.number} of {audit.spec.broker_group} begins",
            _key(observed, run, "started"),
        ),
    )
    status = audit_status.running(audit, observed.resource, run, observed.rejection, now)
    changed = (PatchStatus(status),) if status != status_of(observed.resource) else ()
    return ReconciliationResult((*started, *changed, *cleaning, *effects), SOON_S)


# Between runs


def schedule_of(audit: BrokerGroupAudit) -> RunSchedule:
    """When the audit runs."""
    return RunSchedule(audit.spec.schedule, audit.spec.suspend, AUDIT_NOW)


def _between(audit: BrokerGroupAudit, observed: ObservedState, now: float) -> ReconciliationResult:
    """Between runs: deletes what former runs left, and then starts a run if one is due."""
    statuses = RunStatuses(
        lambda run: audit_status.running(audit, observed.resource, run, "", now),
        lambda next_run: audit_status.idle(audit, observed.resource, next_run, now),
    )
    return between_runs(
        observed.resource,
        schedule_of(audit),
        statuses,
        _leftovers(observed, audit, None),
        first_step="cut",
        now=now,
        requeue_after_s=LATER_S,
    )


def _leftovers(
    observed: ObservedState, audit: BrokerGroupAudit, run: ScheduledRun | None
) -> Iterator[Delete]:
    """Deletions of objects of ended runs, but not of the reports in the history."""
    kept = {str(one.get("report")) for one in history_of(status_of(observed.resource))}
    if run is not None:
        kept.add(AuditRunNames(audit.name, run.number).report)
    for ref, found in sorted(observed.objects.items(), key=lambda one: (one[0].kind, one[0].name)):
        labels = metadata(found).get("labels") or {}
        if ref.namespace != observed.namespace or ref.kind == "PersistentVolumeClaim":
            continue
        if (
            labels.get(KIND_LABEL) != AUDIT_KIND
            or labels.get(GROUP_LABEL) != audit.name
            or is_deleting(found)
        ):
            continue
        if run is not None and labels.get(RUN_LABEL) == str(run.number):
            continue
        if not (ref.kind == "ConfigMap" and ref.name in kept):
            yield Delete(ref, str(metadata(found).get("uid", "")))


# A run

RunProgress = tuple[ScheduledRun, tuple[Effect, ...], RunOutcome | None]


def _advance(
    settings: AuditSettings,
    observed_audit: ObservedAudit,
    audit: BrokerGroupAudit,
    names: AuditRunNames,
    run: ScheduledRun,
    now: float,
) -> RunProgress:
    """The run's present step, the effects, and the outcome if the run has ended."""
    observed = observed_audit.observed
    owner = Owner(AUDIT_KIND, audit.name, str(metadata(observed.resource).get("uid", "")))
    left_s = (seconds_of(run.started) or now) + audit.spec.timeout_seconds - now
    driver = observed.object("Pod", names.driver)
    if is_owned(observed, driver) and (outcome := outcome_of(driver or {})) is not None:
        return run, (), outcome
    if left_s <= 0:
        what = f"not finished within {audit.spec.timeout_seconds} s: {run.step}: {run.message}"
        return run, (), RunOutcome(reason="TimedOut", message=what)
    if manifests.image_of(audit, settings) is None:
        what = "no image: set spec.image, or the operator's auditImage"
        return run, (), RunOutcome(reason="NoImage", message=what)
    group = observed.object("BrokerGroup", audit.spec.broker_group)
    if not is_owned(observed, observed.object("ConfigMap", names.job)):
        return _cut(settings, observed_audit, audit, names, run, group, owner)
    if driver is None:
        volumes = dict(_volumes(observed, audit, group))
        if not volumes:
            what = f"{audit.spec.broker_group} has no volumes"
            return run, (), RunOutcome(reason="NoVolume", message=what)
        return _readers(settings, observed, audit, names, run, group, volumes, owner, now, left_s)
    return _audit(observed, run, driver, now)


def broker_pods_of(group: Manifest) -> tuple[str, ...]:
    """The names of a broker group's pods."""
    count = (group.get("spec") or {}).get("replicas")
    name = str(metadata(group).get("name"))
    return tuple(broker_pod_name(name, str(n)) for n in range(count if type(count) is int else 0))


def broker_name_of(group: Manifest) -> str:
    """RocketMQ's brokerName of a broker group."""
    return str((group.get("spec") or {}).get("brokerName") or metadata(group).get("name"))


def _cut(
    settings: AuditSettings,
    observed_audit: ObservedAudit,
    audit: BrokerGroupAudit,
    names: AuditRunNames,
    run: ScheduledRun,
    group: Manifest | None,
    owner: Owner,
) -> RunProgress:
    observed = observed_audit.observed
    if group is None:
        return run.at_step("cut", f"waits for BrokerGroup {audit.spec.broker_group}"), (), None
    cut = _cut_of(observed_audit, group)
    if not isinstance(cut, GroupCut):
        return run.at_step("cut", f"waits: {cut}"), (), None
    wanted = manifests.objects_before_pods(audit, names, settings, cut, broker_name_of(group))
    effects = tuple(Apply(with_owner(one, owner)) for one in wanted)
    event = CreateEvent(
        EventType.NORMAL,
        "AuditCut",
        f"audit {run.number}: up to offset {cut.confirmed} of {cut.master}, epoch {cut.epoch}",
        _key(observed, run, "cut"),
    )
    return run.at_step("cut", "makes the cut"), (*effects, event), None


def _cut_of(observed_audit: ObservedAudit, group: Manifest) -> GroupCut | str:
    """The cut of the group, or why there is none."""
    pods, states, later = broker_pods_of(group), observed_audit.observed.states, observed_audit.later
    if (group.get("spec") or {}).get("mode") == GroupMode.DLEDGER:
        return reported_dledger_cut(pods, states, later)
    return cut_of(pods, states, observed_audit.copies, later, broker_name_of(group))


def _volumes(
    observed: ObservedState, audit: BrokerGroupAudit, group: Manifest | None
) -> Iterator[tuple[int, ObservedVolume]]:
    """The volumes of the group's replicas by ordinal, even if the group itself is gone."""
    count = len(broker_pods_of(group)) if group is not None else REPLICAS_MAX
    for ordinal in range(count):
        claim = observed.object("PersistentVolumeClaim", manifests.claim_of(audit.spec.broker_group, ordinal))
        if claim is None:
            continue
        pod = observed.object("Pod", broker_pod_name(audit.spec.broker_group, str(ordinal)))
        node = ((pod or {}).get("spec") or {}).get("nodeName")
        size = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
        asked = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
        yield ordinal, ObservedVolume(claim, str(size or asked.get("storage") or "1Gi"), node)


def _readers(
    settings: AuditSettings,
    observed: ObservedState,
    audit: BrokerGroupAudit,
    names: AuditRunNames,
    run: ScheduledRun,
    group: Manifest | None,
    volumes: Mapping[int, ObservedVolume],
    owner: Owner,
    now: float,
    left_s: float,
) -> RunProgress:
    """Creates the readers, waits for them, and then creates the driver."""
    tolerations = list(((group or {}).get("spec") or {}).get("tolerations") or ())
    effects: list[Effect] = []
    addresses: dict[str, str] = {}
    waiting: list[str] = []
    failed: list[str] = []
    for ordinal, volume in volumes.items():
        name = names.reader(ordinal)
        pod = observed.object("Pod", name)
        if pod is None:
            manifest = manifests.reader(audit, names, settings, ordinal, volume, tolerations, int(left_s))
            effects.append(Apply(with_owner(manifest, owner)))
            waiting.append(f"{name} is being created")
            continue
        observed_reader, status = observed_pod(pod), pod.get("status") or {}
        if observed_reader.stuck and _age_s(pod, now) > STUCK_S:
            return run, (), RunOutcome(reason="PodStuck", message=f"{name} {observed_reader.unready_reason}")
        if status.get("phase") in ("Failed", "Succeeded"):
            failed.append(f"{name}: {why_it_ended(pod)}")
        elif observed_reader.ready and status.get("podIP"):
            replica = broker_pod_name(audit.spec.broker_group, str(ordinal))
            addresses[replica] = f"{_host(status['podIP'])}:{manifests.READER_PORT}"
        else:
            waiting.append(f"{name} {observed_reader.unready_reason}")
            flushed = _since_cut_s(observed, names, now) >= FLUSH_WAIT_S
            if audit.spec.volume_snapshot_class_name is not None and flushed:
                effects.append(Apply(manifests.snapshot(audit, names, ordinal, volume, observed_reader.uid)))
    if len(failed) == len(volumes):
        return run, (), RunOutcome(reason="ReaderFailed", message="; ".join(failed))
    if waiting and (not addresses or _since_cut_s(observed, names, now) < READERS_WAIT_S):
        return run.at_step("volumes", f"waits: {'; '.join(waiting)}"), tuple(effects), None
    everyone = broker_pods_of(group) if group is not None else tuple(addresses)
    given = {replica: addresses.get(replica, "") for replica in everyone}
    manifest = manifests.driver(audit, names, settings, given, int(left_s))
    return run.at_step("audit", "starts the driver"), (*effects, Apply(with_owner(manifest, owner))), None


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _age_s(found: Manifest, now: float) -> float:
    return now - (seconds_of(metadata(found).get("creationTimestamp")) or now)


def _since_cut_s(observed: ObservedState, names: AuditRunNames, now: float) -> float:
    return _age_s(observed.object("ConfigMap", names.job) or {}, now)


def _audit(observed: ObservedState, run: ScheduledRun, pod: Manifest, now: float) -> RunProgress:
    found = observed_pod(pod)
    if found.stuck and _age_s(pod, now) > STUCK_S:
        return run, (), RunOutcome(reason="PodStuck", message=f"{found.name} {found.unready_reason}")
    what = "the driver compares" if found.ready else f"{found.name} {found.unready_reason}"
    return run.at_step("audit", what), (), None


def _ended(
    audit: BrokerGroupAudit,
    observed: ObservedState,
    names: AuditRunNames,
    run: ScheduledRun,
    outcome: RunOutcome,
    now: float,
) -> ReconciliationResult:
    """Records the outcome. The following reconciliations delete the run's objects."""
    status = audit_status.ended(
        audit, observed.resource, run, outcome, names.report, schedule_of(audit).next_due(now), now
    )
    if outcome.verdict:
        bad = outcome.verdict != "healthy"
        event = CreateEvent(
            EventType.WARNING if bad else EventType.NORMAL,
            f"Audit{outcome.verdict.capitalize()}",
            f"audit {run.number}: {outcome.verdict}" + (f": {outcome.message}" if outcome.message else ""),
            _key(observed, run, "ended"),
        )
    else:
        what = f"audit {run.number} has no verdict: {outcome.message}"
        event = CreateEvent(EventType.WARNING, f"Audit{outcome.reason}", what, _key(observed, run, "ended"))
    return ReconciliationResult((event, PatchStatus(status)), 0.0)


def _key(observed: ObservedState, run: ScheduledRun, what: str) -> str:
    return "/".join((str(metadata(observed.resource).get("uid", "")), str(run.number), what))


def refs_of(observed: ObservedState) -> list[Ref]:
    """The existing objects of this audit, including reports."""
    name = str(metadata(observed.resource).get("name"))
    return [
        ref
        for ref, found in observed.objects.items()
        if (labels := metadata(found).get("labels") or {}).get(KIND_LABEL) == AUDIT_KIND
        and labels.get(GROUP_LABEL) == name
    ]
