"""One pass over one audit. Where it stands is read off the cluster in every pass, but for one thing: which
run goes on is noted in the status before anything of it is made, and how it ended before anything of it is
removed. So an operator that was killed anywhere is followed by one that goes on; nothing is begun twice,
and nothing is left behind.

A run has these steps; the first that is not done is taken:

| step | waits for | is done when |
|---|---|---|
| `cut` | the group, a master that says what is confirmed | the job, with the cut in it, is there |
| `volumes` | | a reader is ready for every volume; for one at least, when it was waited long enough |
| `audit` | | the driver's pod has ended |

Then the outcome is noted, and everything of the run goes but its report."""

# pure: data in, effects out.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from epochmq_operator.audits import manifests as made
from epochmq_operator.audits import status as said
from epochmq_operator.audits.cut import GroupCut, cut_of
from epochmq_operator.audits.manifests import AuditSettings, Names, VolumeSeen
from epochmq_operator.audits.runs import Outcome, Run, history_of, outcome_of, seconds_of, why_it_ended
from epochmq_operator.manifests.names import GROUP, KIND
from epochmq_operator.plans.conditions import at
from epochmq_operator.plans.effects import Apply, Delete, Effect, Emit, EventType, Pass, PatchStatus
from epochmq_operator.plans.objects import (
    Manifest,
    Owner,
    Ref,
    annotation,
    is_deleting,
    metadata,
    owned,
)
from epochmq_operator.plans.words import Word
from epochmq_operator.plans.world import World, pod_seen
from epochmq_operator.render import broker_pod_name
from epochmq_operator.resources import cron
from epochmq_operator.resources.audit import KIND as AUDIT
from epochmq_operator.resources.audit import BrokerGroupAudit

AUDIT_NOW = "epochmq.io/audit-now"
"""An annotation: an audit begins when its value is another one than that of the last."""
SOON_S, LATER_S = 2.0, 15.0
STUCK_S = 60.0
"""A pod that cannot run as it is (its image cannot be pulled) is given so long: a registry may be away."""
READERS_WAIT_S = 180.0
"""After so long an audit begins without the volumes that nobody can show."""
SETTLE_S = 15.0
"""Between the cut and a snapshot: what was confirmed must be on the disk, and brokers write it out later."""
REPLICAS_MAX = 9


@dataclass(frozen=True, slots=True)
class AuditWorld:
    """`copies` are the epoch files of the group's replicas, asked for after `world.words` were said; `later`
    is what these said after that. All are empty in passes that need no cut (`wants_cut`)."""

    world: World
    copies: Mapping[str, bytes] = field(default_factory=dict)
    later: Mapping[str, Word] = field(default_factory=dict)


def model_of(resource: Manifest) -> BrokerGroupAudit | str:
    """The resource as the operator has it, or what is wrong with it."""
    shaped = {key: resource[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in resource}
    try:
        return BrokerGroupAudit.model_validate(shaped)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def status_of(resource: Manifest) -> Mapping[str, Any]:
    """The resource's status, whatever stands there."""
    found = resource.get("status")
    return found if isinstance(found, Mapping) else {}


def wants_cut(world: World) -> bool:
    """Whether this pass asks the replicas."""
    run = Run.of(status_of(world.resource))
    if run is None or is_deleting(world.resource):
        return False
    names = Names(str(metadata(world.resource).get("name")), run.number)
    return not _is_mine(world, world.object("ConfigMap", names.job))


def step(settings: AuditSettings, seen: AuditWorld, now: float) -> Pass:
    """What is to be done for the world's audit. `now` is in seconds since 1970."""
    world = seen.world
    if is_deleting(world.resource):
        return Pass((), LATER_S)  # everything belongs to it, and goes
    audit = model_of(world.resource)
    if isinstance(audit, str):
        return said.invalid(world.resource, audit, now, LATER_S)
    run = Run.of(status_of(world.resource))
    if run is None:
        return _between(audit, world, now)
    names = Names(audit.name, run.number)
    cleaning = tuple(_leavings(world, audit, run))
    run, effects, outcome = _advanced(settings, seen, audit, names, run, now)
    if outcome is not None:
        return _ended(audit, world, names, run, outcome, now)
    told = (
        Emit(
            EventType.NORMAL,
            "AuditStarted",
            f"audit {run.number} of {audit.spec.broker_group} begins",
            _key(world, run, "started"),
        ),
    )
    status = said.running(audit, world.resource, run, world.refusal, now)
    changed = (PatchStatus(status),) if status != status_of(world.resource) else ()
    return Pass((*told, *changed, *cleaning, *effects), SOON_S)


# Between runs


def due(audit: BrokerGroupAudit, resource: Manifest, now: float) -> str:
    """What a run is to begin for now; empty: nothing. What was due while another went on, or while there was
    no operator, is done once at most."""
    if audit.spec.suspend:
        return ""
    history = history_of(status_of(resource))
    asked = annotation(resource, AUDIT_NOW)
    if asked and asked != status_of(resource).get("askedFor"):
        return f"asked {asked}"
    if audit.spec.schedule is None:
        return "" if history else "once"
    began = seconds_of(metadata(resource).get("creationTimestamp")) or now
    latest = seconds_of(history[0].get("finished")) if history else None
    after = max(began, latest or 0.0)
    found = cron.parse(audit.spec.schedule).last(after, now)
    return "" if found is None else at(found)


def next_due(audit: BrokerGroupAudit, now: float) -> str:
    """When the schedule fires next, empty without one."""
    if audit.spec.schedule is None or audit.spec.suspend:
        return ""
    found = cron.parse(audit.spec.schedule).after(now)
    return "" if found is None else at(found)


def _between(audit: BrokerGroupAudit, world: World, now: float) -> Pass:
    """Nothing goes on: what former runs left is removed, and then one may begin."""
    effects: list[Effect] = list(_leavings(world, audit, None))
    status = status_of(world.resource)
    trigger = due(audit, world.resource, now) if not effects else ""
    if trigger:
        history = history_of(status)
        number = max([0, *(one["number"] for one in history)]) + 1
        run = Run(number, at(now), trigger, "cut", "")
        begun = said.running(audit, world.resource, run, "", now)
        if trigger.startswith("asked "):
            begun["askedFor"] = trigger.removeprefix("asked ")
        return Pass((PatchStatus(begun),), 0.0)
    idle = said.idle(audit, world.resource, next_due(audit, now), now)
    if idle != status:
        effects.insert(0, PatchStatus(idle))
    return Pass(tuple(effects), LATER_S)


def _leavings(world: World, audit: BrokerGroupAudit, run: Run | None) -> Iterator[Delete]:
    """What belongs to runs that ended, but for the reports of those in the history."""
    kept = {str(one.get("report")) for one in history_of(status_of(world.resource))}
    if run is not None:
        kept.add(Names(audit.name, run.number).report)
    for ref, found in sorted(world.objects.items(), key=lambda one: (one[0].kind, one[0].name)):
        labels = metadata(found).get("labels") or {}
        if ref.namespace != world.namespace or ref.kind == "PersistentVolumeClaim":
            continue
        if labels.get(KIND) != AUDIT or labels.get(GROUP) != audit.name or is_deleting(found):
            continue
        if run is not None and labels.get(made.RUN) == str(run.number):
            continue
        if not (ref.kind == "ConfigMap" and ref.name in kept):
            yield Delete(ref, str(metadata(found).get("uid", "")))


# A run

Advanced = tuple[Run, tuple[Effect, ...], Outcome | None]


def _advanced(
    settings: AuditSettings, seen: AuditWorld, audit: BrokerGroupAudit, names: Names, run: Run, now: float
) -> Advanced:
    """Where the run stands, what is done next, and how it ended, if it did."""
    world = seen.world
    owner = Owner(AUDIT, audit.name, str(metadata(world.resource).get("uid", "")))
    left_s = (seconds_of(run.started) or now) + audit.spec.timeout_seconds - now
    found = world.object("Pod", names.driver)
    if _is_mine(world, found) and (outcome := outcome_of(found or {})) is not None:
        return run, (), outcome
    if left_s <= 0:
        what = f"not done within {audit.spec.timeout_seconds} s: {run.step}: {run.message}"
        return run, (), Outcome(reason="TimedOut", message=what)
    if made.image_of(audit, settings) is None:
        what = "no image is named: give spec.image, or the operator's auditImage"
        return run, (), Outcome(reason="NoImage", message=what)
    group = world.object("BrokerGroup", audit.spec.broker_group)
    if not _is_mine(world, world.object("ConfigMap", names.job)):
        return _cut(settings, seen, audit, names, run, group, owner)
    if found is None:
        volumes = dict(_volumes(world, audit, group))
        if not volumes:
            what = f"{audit.spec.broker_group} has no volumes"
            return run, (), Outcome(reason="NoVolume", message=what)
        return _readers(settings, world, audit, names, run, group, volumes, owner, now, left_s)
    return _audit(world, run, found, now)


def _is_mine(world: World, found: Manifest | None) -> bool:
    """Whether an object is there and belongs to this very audit."""
    if found is None or is_deleting(found):
        return False
    owners = metadata(found).get("ownerReferences") or ()
    return any(one.get("uid") == metadata(world.resource).get("uid") for one in owners)


def pods_of(group: Manifest) -> tuple[str, ...]:
    """The pods of a broker group."""
    count = (group.get("spec") or {}).get("replicas")
    name = str(metadata(group).get("name"))
    return tuple(broker_pod_name(name, str(n)) for n in range(count if type(count) is int else 0))


def broker_name_of(group: Manifest) -> str:
    """RocketMQ's name of a broker group."""
    return str((group.get("spec") or {}).get("brokerName") or metadata(group).get("name"))


def _cut(
    settings: AuditSettings,
    seen: AuditWorld,
    audit: BrokerGroupAudit,
    names: Names,
    run: Run,
    group: Manifest | None,
    owner: Owner,
) -> Advanced:
    world = seen.world
    if group is None:
        return run.at("cut", f"waits for a BrokerGroup {audit.spec.broker_group}"), (), None
    cut = cut_of(pods_of(group), world.words, seen.copies, seen.later, broker_name_of(group))
    if not isinstance(cut, GroupCut):
        return run.at("cut", f"waits: {cut}"), (), None
    wanted = made.foundation(audit, names, settings, cut, broker_name_of(group))
    effects = tuple(Apply(owned(one, owner)) for one in wanted)
    told = Emit(
        EventType.NORMAL,
        "AuditCut",
        f"audit {run.number}: up to offset {cut.confirmed} of {cut.master}, epoch {cut.epoch}",
        _key(world, run, "cut"),
    )
    return run.at("cut", "makes the cut"), (*effects, told), None


def _volumes(
    world: World, audit: BrokerGroupAudit, group: Manifest | None
) -> Iterator[tuple[int, VolumeSeen]]:
    """The volumes of the group's replicas, by ordinal; also when the group itself has gone."""
    count = len(pods_of(group)) if group is not None else REPLICAS_MAX
    for ordinal in range(count):
        claim = world.object("PersistentVolumeClaim", made.claim_of(audit.spec.broker_group, ordinal))
        if claim is None:
            continue
        pod = world.object("Pod", broker_pod_name(audit.spec.broker_group, str(ordinal)))
        node = ((pod or {}).get("spec") or {}).get("nodeName")
        size = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
        asked = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
        yield ordinal, VolumeSeen(claim, str(size or asked.get("storage") or "1Gi"), node)


def _readers(
    settings: AuditSettings,
    world: World,
    audit: BrokerGroupAudit,
    names: Names,
    run: Run,
    group: Manifest | None,
    volumes: Mapping[int, VolumeSeen],
    owner: Owner,
    now: float,
    left_s: float,
) -> Advanced:
    """Readers are made, and waited for; then the driver."""
    tolerations = list(((group or {}).get("spec") or {}).get("tolerations") or ())
    effects: list[Effect] = []
    addresses: dict[str, str] = {}
    waiting: list[str] = []
    failed: list[str] = []
    for ordinal, volume in volumes.items():
        name = names.reader(ordinal)
        pod = world.object("Pod", name)
        if pod is None:
            wanted = made.reader(audit, names, settings, ordinal, volume, tolerations, int(left_s))
            effects.append(Apply(owned(wanted, owner)))
            waiting.append(f"{name} is made")
            continue
        found, status = pod_seen(pod), pod.get("status") or {}
        if found.stuck and _age_s(pod, now) > STUCK_S:
            return run, (), Outcome(reason="PodStuck", message=f"{name} {found.trouble}")
        if status.get("phase") in ("Failed", "Succeeded"):
            failed.append(f"{name}: {why_it_ended(pod)}")
        elif found.ready and status.get("podIP"):
            replica = broker_pod_name(audit.spec.broker_group, str(ordinal))
            addresses[replica] = f"{_host(status['podIP'])}:{made.READER_PORT}"
        else:
            waiting.append(f"{name} {found.trouble}")
            settled = _since_cut_s(world, names, now) >= SETTLE_S
            if audit.spec.volume_snapshot_class_name is not None and settled:
                effects.append(Apply(made.snapshot(audit, names, ordinal, volume, found.uid)))
    if len(failed) == len(volumes):
        return run, (), Outcome(reason="ReaderFailed", message="; ".join(failed))
    if waiting and (not addresses or _since_cut_s(world, names, now) < READERS_WAIT_S):
        return run.at("volumes", f"waits: {'; '.join(waiting)}"), tuple(effects), None
    everyone = pods_of(group) if group is not None else tuple(addresses)
    given = {replica: addresses.get(replica, "") for replica in everyone}
    wanted = made.driver(audit, names, settings, given, int(left_s))
    return run.at("audit", "starts the driver"), (*effects, Apply(owned(wanted, owner))), None


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _age_s(found: Manifest, now: float) -> float:
    return now - (seconds_of(metadata(found).get("creationTimestamp")) or now)


def _since_cut_s(world: World, names: Names, now: float) -> float:
    return _age_s(world.object("ConfigMap", names.job) or {}, now)


def _audit(world: World, run: Run, pod: Manifest, now: float) -> Advanced:
    found = pod_seen(pod)
    if found.stuck and _age_s(pod, now) > STUCK_S:
        return run, (), Outcome(reason="PodStuck", message=f"{found.name} {found.trouble}")
    what = "the driver compares" if found.ready else f"{found.name} {found.trouble}"
    return run.at("audit", what), (), None


def _ended(
    audit: BrokerGroupAudit, world: World, names: Names, run: Run, outcome: Outcome, now: float
) -> Pass:
    """The outcome is noted first; what the run made goes in the passes after."""
    status = said.ended(audit, world.resource, run, outcome, names.report, next_due(audit, now), now)
    if outcome.verdict:
        bad = outcome.verdict != "healthy"
        told = Emit(
            EventType.WARNING if bad else EventType.NORMAL,
            f"Audit{outcome.verdict.capitalize()}",
            f"audit {run.number}: {outcome.verdict}" + (f": {outcome.message}" if outcome.message else ""),
            _key(world, run, "ended"),
        )
    else:
        what = f"audit {run.number} has no verdict: {outcome.message}"
        told = Emit(EventType.WARNING, f"Audit{outcome.reason}", what, _key(world, run, "ended"))
    return Pass((told, PatchStatus(status)), 0.0)


def _key(world: World, run: Run, what: str) -> str:
    return "/".join((str(metadata(world.resource).get("uid", "")), str(run.number), what))


def refs_of(world: World) -> list[Ref]:
    """All that is there of this audit, its reports included."""
    name = str(metadata(world.resource).get("name"))
    return [
        ref
        for ref, found in world.objects.items()
        if (labels := metadata(found).get("labels") or {}).get(KIND) == AUDIT and labels.get(GROUP) == name
    ]
