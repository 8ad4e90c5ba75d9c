"""Builds the status of a group. The status changes only when the group does: it holds no offsets and no clock
times."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from epochmq_operator.plans.broker_steps import ObservedBrokerGroup
from epochmq_operator.plans.common_steps import (
    BLOCKED_PHASE,
    PENDING_PHASE,
    TARGET,
)
from epochmq_operator.plans.conditions import Condition, ConditionType, timestamp
from epochmq_operator.plans.controller_steps import ObservedControllerGroup
from epochmq_operator.plans.hibernation import hibernation_status
from epochmq_operator.plans.known_controllers import KNOWN_CONTROLLERS
from epochmq_operator.plans.member_modes import MEMBER_AUTHENTICATION
from epochmq_operator.plans.observed_state import ObservedActingMaster
from epochmq_operator.plans.pinned_image import PINNED_IMAGE
from epochmq_operator.plans.plan_steps import PlanProgress, StepKind
from epochmq_operator.plans.progress_conditions import LISTED_MAX, STEP_DEADLINE_S, listed, tool_conditions
from epochmq_operator.plans.quorum_members import FOUNDERS
from epochmq_operator.plans.reloads import PodReload, ReloadTarget
from epochmq_operator.plans.renderer import ADOPTED
from epochmq_operator.plans.replica_replacement import REPLACEMENT, LostReplica, RemainingCopies
from epochmq_operator.plans.restoration import RESTORE
from epochmq_operator.quorum_steps import member_id
from epochmq_operator.resources import ControllerGroup, MemberMode


class ResourcePhase(StrEnum):
    """The summary phase of a resource."""

    CREATING = "Creating"
    READY = "Ready"
    SCALING = "Scaling"
    UPDATING = "Updating"
    UPDATE_PENDING = PENDING_PHASE
    REPAIRING = "Repairing"
    BLOCKED = BLOCKED_PHASE
    DEGRADED = "Degraded"
    PAUSED = "Paused"
    HIBERNATED = "Hibernated"
    DELETING = "Deleting"
    INVALID = "Invalid"


PHASES: Mapping[str, ResourcePhase] = {
    "create": ResourcePhase.CREATING,
    "scale-up": ResourcePhase.SCALING,
    "scale-down": ResourcePhase.SCALING,
    "membership": ResourcePhase.SCALING,
    "update": ResourcePhase.UPDATING,
    "repair": ResourcePhase.REPAIRING,
    "heal": ResourcePhase.DEGRADED,
    "delete": ResourcePhase.DELETING,
}
"""The phase while a plan of this name is unfinished."""


UNDEGRADING_STEPS = (StepKind.MEMBERS, StepKind.PEERS, StepKind.HELD, StepKind.APPROVAL, StepKind.RELOAD)
"""The steps that leave availability and redundancy as they are, also while they are blocked."""


SCALING_STEPS = (StepKind.GROW, StepKind.JOIN, StepKind.LEAVE, StepKind.SHRINK)
"""The steps during which the SyncStateSet may have fewer members than the group has replicas."""


def phase_of(
    progress: PlanProgress,
    *,
    ready: bool,
    degraded: bool,
    now: float,
    paused: bool,
    hibernated: bool = False,
) -> ResourcePhase:
    """The summary phase. A restart or a new replica reduces redundancy for a while; a group whose step lasts
    longer than its deadline meanwhile is degraded, whatever its plan."""
    if paused:
        return ResourcePhase.PAUSED
    if progress.unfinished and progress.state is not None:
        if progress.step is not None and progress.step.kind is StepKind.APPROVAL:
            return ResourcePhase.UPDATE_PENDING
        if progress.step is not None and progress.step.blocked:
            return ResourcePhase.DELETING if progress.state.name == "delete" else ResourcePhase.BLOCKED
        if degraded and progress.step_seconds(now) >= STEP_DEADLINE_S:
            return ResourcePhase.DEGRADED
        return PHASES.get(progress.state.name, ResourcePhase.UPDATING)
    if hibernated:
        return ResourcePhase.HIBERNATED
    return ResourcePhase.READY if ready and not degraded else ResourcePhase.DEGRADED


def progressing(progress: PlanProgress, outdated: list[str], *, in_order: bool = False) -> Condition:
    """The condition Progressing: whether a plan is unfinished, its step, or what it waits for. `in_order`:
    the `outdated` pods must restart in this order."""
    step, state = progress.step, progress.state
    if step is None or state is None:
        if outdated:
            how = "one by one, in this order, each when all are ready," if in_order else "one by one"
            message = f"restart these pods {how} to apply the change: {listed(outdated)}"
            return Condition(ConditionType.PROGRESSING, False, "RestartPending", message)
        return Condition(ConditionType.PROGRESSING, False, "AsWanted")
    if step.blocked:
        return Condition(ConditionType.PROGRESSING, False, f"{step.reason}Blocked", step.waits_for)
    message = f"{state.name}: {step.message}" + (f", waiting for: {step.waits_for}" if step.waits_for else "")
    return Condition(ConditionType.PROGRESSING, True, step.reason, message)


def paused_condition(*, paused: bool) -> Condition:
    """The condition Paused."""
    if not paused:
        return Condition(ConditionType.PAUSED, False, "NotPaused")
    message = (
        "nothing but the status is written until spec.paused and the annotation epochmq.io/paused are off"
    )
    return Condition(ConditionType.PAUSED, True, "Asked", message)


def degraded(progress: PlanProgress, wrong: list[str], rejection: str, *, created: bool) -> Condition:
    """The condition Degraded: whether availability or redundancy is reduced. A group is not degraded while it
    is being created. `rejection` is the API server's response to the operator's last write."""
    if rejection:
        return Condition(ConditionType.DEGRADED, True, "Refused", rejection)
    if progress.step is not None and progress.step.blocked and progress.step.kind not in UNDEGRADING_STEPS:
        return Condition(
            ConditionType.DEGRADED, True, f"{progress.step.reason}Blocked", progress.step.waits_for
        )
    if created and wrong:
        return Condition(ConditionType.DEGRADED, True, "NotReady", listed(wrong))
    return Condition(ConditionType.DEGRADED, False, "AsWanted")


def quorum_condition(
    leader: str | None, answered: int, ready: int, count: int, member: str = "controller"
) -> Condition:
    """The condition QuorumHealthy: whether a majority of the members is ready and one of them leads."""
    kind = ConditionType.QUORUM_HEALTHY
    if ready * 2 <= count:
        return Condition(kind, False, "NoMajority", f"{ready} of {count} {member}s are ready")
    if answered == 0:
        return Condition(kind, None, "NoAnswer", f"no {member} responds to the operator")
    if leader is None:
        return Condition(kind, False, "NoLeader", f"no {member} leads")
    return Condition(kind, True, "Leads", f"{leader} leads")


def broker_conditions(
    observed_group: ObservedBrokerGroup, progress: PlanProgress, rejection: str, now: float
) -> list[Condition]:
    """The conditions of a broker group."""
    wrong = observed_group.unready_pods
    kept = observed_group.replica_group
    if kept.known and kept.master_id is None:
        acts = f": {kept.acting.pod} acts for it since {_time_of(kept.acting)}" if kept.acting else ""
        wrong.append(f"the group has no master{acts}")
    spec_replicas = observed_group.group.spec.replicas
    hibernation, restoration = observed_group.hibernation, observed_group.restoration
    if restoration is not None:
        wrong = []  # no replica is to run yet
    if hibernation is not None:
        wrong = []  # fewer replicas than the spec says are no fault then
    ready = not wrong and observed_group.ready >= spec_replicas
    if ready:
        first = Condition(
            ConditionType.READY,
            True,
            "AllReplicasReady",
            f"{observed_group.ready} of {spec_replicas} replicas are ready",
        )
    else:
        reason = "ReplicasNotReady" if observed_group.ready < spec_replicas else "NoMaster"
        reason = str(hibernation or reason)
        if restoration is not None:
            reason, wrong = restoration.reason, [restoration.message]
        first = Condition(
            ConditionType.READY,
            False,
            reason,
            listed(wrong) or f"{observed_group.ready} of {spec_replicas} replicas are ready",
        )
    members = list(kept.sync_state_set)
    under_controllers = observed_group.group.is_under_controllers
    if not under_controllers:
        in_sync = _ready_in_sync(observed_group)
    elif observed_group.in_sync is None:
        in_sync = Condition(
            ConditionType.IN_SYNC,
            None,
            "NoAnswer",
            "neither the controllers nor the brokers report the SyncStateSet",
        )
    else:
        message = f"{len(members)} of {observed_group.count} replicas are in the SyncStateSet {members}"
        in_sync = Condition(
            ConditionType.IN_SYNC,
            observed_group.in_sync,
            "AllInSync" if observed_group.in_sync else "Behind",
            message,
        )
    idle, reduced = observed_group.idle_pods, wrong + _behind(observed_group, progress)
    if restoration is not None:
        idle = list(restoration.idle)
    if idle and hibernation is None and under_controllers and observed_group.created:
        copies = _copies(observed_group)
        idle = _with_loss(idle, copies, _replacement_offer(observed_group, slow=True))
        reduced = _with_loss(reduced, copies, _replacement_offer(observed_group, slow=False))
    ready_condition, *others = tool_conditions(first, progress, rejection, idle, now)
    return [
        ready_condition,
        _quorum_of(observed_group),
        in_sync,
        progressing(progress, observed_group.outdated, in_order=not under_controllers),
        degraded(progress, reduced, rejection, created=observed_group.created),
        paused_condition(paused=progress.paused),
        *others,
    ]


def _with_loss(lines: list[str], copies: str, offer: str) -> list[str]:
    """The first of these lines, what the loss of the replicas would cost, and what to do about it."""
    added = [copies, offer] if offer else [copies]
    return [*lines[: LISTED_MAX - len(added)], *added]


def _replacement_offer(observed_group: ObservedBrokerGroup, *, slow: bool) -> str:
    """The command that replaces the first lost replica, or why it must keep its volume; empty if none is
    lost. `slow`: the plan makes no progress, so a pod that is being deleted does not end."""
    if observed_group.copies is None or observed_group.replacement is not None:
        return ""
    group = observed_group.group
    command = f"epochmq replica replace {group.name}/{{}} --namespace {group.metadata.namespace}"
    return _offer(observed_group.lost, observed_group.copies, command, slow=slow)


def _offer(lost_pods: Iterable[LostReplica], copies: RemainingCopies, command: str, *, slow: bool) -> str:
    """The command for the first lost pod, with its ordinal in place of `{}`, or why it must keep its
    volume."""
    lost = next((one for one in lost_pods if slow or not one.ends), None)
    if lost is None:
        return ""
    impediment = copies.impediment(lost.pod, accepts_fewer=False)
    if impediment:
        return f"{lost} cannot be replaced now: {impediment}"
    return f"if {lost} does not come back: {command.format(lost.pod.rpartition('-')[2])}"


def _copies(observed_group: ObservedBrokerGroup) -> str:
    """Which replicas that run have every acknowledged message, so that people know what the loss of the
    others would cost."""
    running = {pod.name for pod in observed_group.pods if pod is not None and pod.runs}
    copies = sorted(running & observed_group.in_sync_pods)
    if observed_group.quorum.leader is None or not copies:
        return "no replica that runs is known to have every acknowledged message: delete no volume"
    return f"{', '.join(copies)} {'has' if len(copies) == 1 else 'have'} every acknowledged message"


def _behind(observed_group: ObservedBrokerGroup, progress: PlanProgress) -> list[str]:
    """What the SyncStateSet of a group lacks whose number of replicas does not change."""
    if observed_group.in_sync is not False or not observed_group.group.is_under_controllers:
        return []
    if observed_group.hibernation is not None:
        return []
    if progress.undone is not None and progress.undone.kind in SCALING_STEPS:
        return []
    members = list(observed_group.replica_group.sync_state_set)
    return [f"the SyncStateSet {members} has fewer than {observed_group.count} members"]


def _quorum_of(observed_group: ObservedBrokerGroup) -> Condition:
    """The condition QuorumHealthy: of the controllers, or in the mode DLedger of the replicas."""
    group, kept = observed_group.group, observed_group.replica_group
    if group.is_master_slave:
        why = "no controllers elect this group's master"
        return Condition(ConditionType.QUORUM_HEALTHY, None, "NotUsed", why)
    if group.is_dledger:
        voters = observed_group.pods if observed_group.members is None else observed_group.members.voters
        ready = sum(1 for pod in voters if pod is not None and pod.ready)
        return quorum_condition(kept.master or None, int(kept.known), ready, len(voters), "replica")
    members = observed_group.quorum.members
    pods = [
        pod
        for ordinal, pod in enumerate(observed_group.controller_pods)
        if not members or member_id(ordinal) in members
    ]
    return quorum_condition(
        observed_group.quorum.leader,
        observed_group.quorum.answered,
        sum(1 for pod in pods if pod is not None and pod.ready),
        max(len(pods), 1),
    )


def _ready_in_sync(observed_group: ObservedBrokerGroup) -> Condition:
    """The condition InSync without controllers: whether every replica reports that it is ready."""
    if observed_group.in_sync is None:
        return Condition(ConditionType.IN_SYNC, None, "NoAnswer", "no broker responds to the operator")
    ready = list(observed_group.replica_group.sync_state_set)
    message = f"{len(ready)} of {observed_group.count} replicas report that they are ready: {ready}"
    holds = observed_group.in_sync
    return Condition(ConditionType.IN_SYNC, holds, "AllInSync" if holds else "Behind", message)


def _time_of(acting: ObservedActingMaster) -> str:
    """When it began to act, as Kubernetes writes times."""
    return timestamp(acting.since_ms / 1000)


def _acting_status(acting: ObservedActingMaster) -> dict[str, Any]:
    """The status field `actingMaster`."""
    return {
        "pod": acting.pod,
        "since": _time_of(acting),
        "escaped": acting.escaped,
        "waiting": acting.waiting,
    }


def _template_status(image: str | None, adopted: str | None) -> dict[str, Any]:
    """The status fields about the pods' templates."""
    return {PINNED_IMAGE: image or "", **({ADOPTED: adopted} if adopted is not None else {})}


def _reload_status(target: ReloadTarget | None, reloads: Iterable[PodReload]) -> dict[str, Any]:
    """The status field `reloads`; none if all pods started with the present configuration."""
    pods = [one.document() for one in reloads]
    if target is None or not pods:
        return {}
    return {"reloads": {"configMap": target.config_map, "pods": pods}}


def broker_status(
    observed_group: ObservedBrokerGroup, target: int | None, selector: str, old: Mapping[str, Any]
) -> dict[str, Any]:
    """The other status fields of a broker group. While the master is not known, its fields keep their
    values. `target`: the new target number of replicas, if a step records one."""
    acting = observed_group.replica_group.acting
    kept: dict[str, Any] = {
        "master": observed_group.replica_group.master,
        "masterEpoch": observed_group.replica_group.epoch,
        "syncStateSet": list(observed_group.replica_group.sync_state_set),
    }
    if not observed_group.replica_group.known:
        kept = {key: old.get(key, value) for key, value in kept.items()}
    return {
        "replicas": observed_group.count,
        TARGET: observed_group.count if target is None else target,
        "readyReplicas": observed_group.ready,
        "ready": f"{observed_group.ready}/{observed_group.group.spec.replicas}",
        "selector": selector,
        **kept,
        **({"actingMaster": _acting_status(acting)} if acting is not None else {}),
        **_template_status(observed_group.image, observed_group.rendered.adopted),
        **hibernation_status(observed_group.hibernation),
        **{key: old[key] for key in (REPLACEMENT, RESTORE) if key in old},
        **_reload_status(observed_group.reload_target, observed_group.reloads),
        **(
            {KNOWN_CONTROLLERS: observed_group.known_controllers}
            if observed_group.group.is_under_controllers
            else {}
        ),
        **({FOUNDERS: observed_group.members.founders} if observed_group.members is not None else {}),
        **(_member_status(observed_group.controllers) if observed_group.controllers is not None else {}),
        "controllerGroup": observed_group.group.spec.controller_group,
    }


def controller_conditions(
    observed_group: ObservedControllerGroup, progress: PlanProgress, rejection: str, now: float
) -> list[Condition]:
    """The conditions of a controller group."""
    wrong = observed_group.unready_pods
    voters = observed_group.members.voters
    quorum = quorum_condition(
        observed_group.quorum.leader,
        observed_group.quorum.answered,
        sum(1 for pod in voters if pod is not None and pod.ready),
        len(voters),
    )
    if quorum.holds is False:
        wrong = [quorum.message, *wrong]
    if not wrong:
        first = Condition(
            ConditionType.READY,
            True,
            "AllReady",
            f"{observed_group.ready} of {observed_group.wanted} controllers are ready",
        )
    else:
        first = Condition(ConditionType.READY, False, "NotReady", listed(wrong))
    idle, reduced = observed_group.idle_pods, wrong
    if idle and observed_group.created:
        idle = _with_offer(idle, _controller_offer(observed_group, slow=True))
        reduced = _with_offer(wrong, _controller_offer(observed_group, slow=False))
    ready_condition, *others = tool_conditions(first, progress, rejection, idle, now)
    return [
        ready_condition,
        quorum,
        progressing(progress, observed_group.outdated),
        degraded(progress, reduced, rejection, created=observed_group.created),
        paused_condition(paused=progress.paused),
        *others,
    ]


def _with_offer(lines: list[str], offer: str) -> list[str]:
    """The first of these lines, and the offer if there is one."""
    return [*lines[: LISTED_MAX - 1], offer] if offer else lines


def _controller_offer(observed_group: ObservedControllerGroup, *, slow: bool) -> str:
    """The command that replaces the first lost controller, or why it must keep its volume."""
    group = observed_group.group
    command = f"epochmq controllers replace {group.name}/{{}} --namespace {group.metadata.namespace}"
    if observed_group.replacement is not None:
        return ""
    return _offer(observed_group.lost, observed_group.copies, command, slow=slow)


def controller_status(
    observed_group: ObservedControllerGroup,
    target: int | None,
    selector: str,
    users: tuple[str, ...],
    old: Mapping[str, Any],
) -> dict[str, Any]:
    """The other status fields of a controller group. While no controller responds, leader and term keep their
    values. `target`: the new target number of controllers, if a step records one."""
    kept: dict[str, Any] = {
        "leader": observed_group.quorum.leader or "",
        "term": observed_group.quorum.term or 0,
    }
    if not observed_group.quorum.answered:
        kept = {key: old.get(key, value) for key, value in kept.items()}
    return {
        "replicas": len(observed_group.pods),
        TARGET: len(observed_group.pods) if target is None else target,
        FOUNDERS: observed_group.members.founders,
        "readyReplicas": observed_group.ready,
        "ready": f"{observed_group.ready}/{observed_group.wanted}",
        "selector": selector,
        **kept,
        **_template_status(observed_group.image, observed_group.rendered.adopted),
        **_member_status(observed_group.group),
        **({REPLACEMENT: old[REPLACEMENT]} if REPLACEMENT in old else {}),
        "brokerGroups": sorted(users),
    }


def _member_status(controllers: ControllerGroup) -> dict[str, Any]:
    """How the members of the group authenticate each other."""
    return {MEMBER_AUTHENTICATION: str(controllers.spec.member_authentication or MemberMode.DISABLED)}
