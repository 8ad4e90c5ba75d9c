"""Builds the status of a group. The status changes only when the group does: it holds no offsets and no clock
times."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from epochmq_operator.plans.broker_steps import ObservedBrokerGroup
from epochmq_operator.plans.common_steps import (
    BLOCKED_PHASE,
    PENDING_PHASE,
    TARGET,
    WAITING_UPDATE,
    unready_pods,
)
from epochmq_operator.plans.conditions import Condition, ConditionType, timestamp
from epochmq_operator.plans.controller_steps import ObservedControllerGroup
from epochmq_operator.plans.observed_state import ObservedActingMaster
from epochmq_operator.plans.pinned_image import PINNED_IMAGE
from epochmq_operator.plans.plan_steps import PlanProgress
from epochmq_operator.plans.renderer import ADOPTED

LISTED_MAX = 5


class ResourcePhase(StrEnum):
    """The summary phase of a resource."""

    CREATING = "Creating"
    READY = "Ready"
    SCALING = "Scaling"
    UPDATING = "Updating"
    UPDATE_PENDING = PENDING_PHASE
    HEALING = "Healing"
    BLOCKED = BLOCKED_PHASE
    DEGRADED = "Degraded"
    PAUSED = "Paused"
    DELETING = "Deleting"
    INVALID = "Invalid"


PHASES: Mapping[str, ResourcePhase] = {
    "create": ResourcePhase.CREATING,
    "scale-up": ResourcePhase.SCALING,
    "scale-down": ResourcePhase.SCALING,
    "update": ResourcePhase.UPDATING,
    "repair": ResourcePhase.HEALING,
    "heal": ResourcePhase.HEALING,
    "delete": ResourcePhase.DELETING,
}
"""The phase while a plan of this name is unfinished."""


def phase_of(progress: PlanProgress, *, ready: bool, paused: bool) -> ResourcePhase:
    """The summary phase."""
    if paused:
        return ResourcePhase.PAUSED
    if progress.unfinished and progress.state is not None:
        if progress.step is not None and progress.step.name == WAITING_UPDATE:
            return ResourcePhase.UPDATE_PENDING
        if progress.step is not None and progress.step.blocked:
            return ResourcePhase.DELETING if progress.state.name == "delete" else ResourcePhase.BLOCKED
        return PHASES.get(progress.state.name, ResourcePhase.UPDATING)
    return ResourcePhase.READY if ready else ResourcePhase.DEGRADED


def progressing(progress: PlanProgress, outdated: list[str], *, in_order: bool = False) -> Condition:
    """The condition Progressing: whether a plan is unfinished, its step, or what it waits for. `in_order`:
    the `outdated` pods must restart in this order."""
    step, state = progress.step, progress.state
    if step is None or state is None:
        if outdated:
            how = "one by one, in this order, each when all are ready," if in_order else "one by one"
            message = f"restart these pods {how} to apply the change: {_listed(outdated)}"
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
    if (
        progress.step is not None
        and progress.step.blocked
        and progress.step.name not in ("members", "held", WAITING_UPDATE)
    ):
        return Condition(
            ConditionType.DEGRADED, True, f"{progress.step.reason}Blocked", progress.step.waits_for
        )
    if created and wrong:
        return Condition(ConditionType.DEGRADED, True, "NotReady", _listed(wrong))
    return Condition(ConditionType.DEGRADED, False, "AsWanted")


def _listed(lines: list[str]) -> str:
    more = f"; and {len(lines) - LISTED_MAX} more" if len(lines) > LISTED_MAX else ""
    return "; ".join(lines[:LISTED_MAX]) + more


def quorum_condition(leader: str | None, answered: int, ready: int, count: int) -> Condition:
    """The condition QuorumHealthy: whether a majority of the controllers is ready and one of them leads."""
    kind = ConditionType.QUORUM_HEALTHY
    if ready * 2 <= count:
        return Condition(kind, False, "NoMajority", f"{ready} of {count} controllers are ready")
    if answered == 0:
        return Condition(kind, None, "NoAnswer", "no controller responds to the operator")
    if leader is None:
        return Condition(kind, False, "NoLeader", "no controller leads")
    return Condition(kind, True, "Leads", f"{leader} leads")


def broker_conditions(
    observed_group: ObservedBrokerGroup, progress: PlanProgress, rejection: str, *, paused: bool
) -> list[Condition]:
    """The conditions of a broker group."""
    wrong = unready_pods(observed_group.pods, observed_group.set_name)
    kept = observed_group.replica_group
    if kept.known and kept.master_id is None:
        acts = f": {kept.acting.pod} acts for it since {_time_of(kept.acting)}" if kept.acting else ""
        wrong.append(f"the group has no master{acts}")
    wanted = observed_group.group.spec.replicas
    ready = not wrong and observed_group.ready >= wanted
    if ready:
        first = Condition(
            ConditionType.READY,
            True,
            "AllReplicasReady",
            f"{observed_group.ready} of {wanted} replicas are ready",
        )
    else:
        reason = "ReplicasNotReady" if observed_group.ready < wanted else "NoMaster"
        first = Condition(
            ConditionType.READY,
            False,
            reason,
            _listed(wrong) or f"{observed_group.ready} of {wanted} replicas are ready",
        )
    controllers_ready = sum(1 for pod in observed_group.controller_pods if pod is not None and pod.ready)
    members = list(kept.sync_state_set)
    is_master_slave = observed_group.group.is_master_slave
    if is_master_slave:
        in_sync = _master_slave_in_sync(observed_group)
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
    return [
        first,
        Condition(ConditionType.QUORUM_HEALTHY, None, "NotUsed", "no controllers elect this group's master")
        if is_master_slave
        else quorum_condition(
            observed_group.quorum.leader,
            observed_group.quorum.answered,
            controllers_ready,
            max(len(observed_group.controller_pods), 1),
        ),
        in_sync,
        progressing(progress, observed_group.outdated, in_order=is_master_slave),
        degraded(progress, wrong, rejection, created=observed_group.created),
        paused_condition(paused=paused),
    ]


def _master_slave_in_sync(observed_group: ObservedBrokerGroup) -> Condition:
    """The condition InSync in the mode MasterSlave: whether every replica reports that it is ready."""
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
        TARGET: target or observed_group.count,
        "readyReplicas": observed_group.ready,
        "ready": f"{observed_group.ready}/{observed_group.group.spec.replicas}",
        "selector": selector,
        **kept,
        **({"actingMaster": _acting_status(acting)} if acting is not None else {}),
        **_template_status(observed_group.image, observed_group.rendered.adopted),
        "controllerGroup": observed_group.group.spec.controller_group,
    }


def controller_conditions(
    observed_group: ObservedControllerGroup, progress: PlanProgress, rejection: str, *, paused: bool
) -> list[Condition]:
    """The conditions of a controller group."""
    wrong = observed_group.unready_pods
    quorum = quorum_condition(
        observed_group.quorum.leader,
        observed_group.quorum.answered,
        observed_group.ready,
        len(observed_group.pods),
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
        first = Condition(ConditionType.READY, False, "NotReady", _listed(wrong))
    return [
        first,
        quorum,
        progressing(progress, observed_group.outdated),
        degraded(progress, wrong, rejection, created=observed_group.created),
        paused_condition(paused=paused),
    ]


def controller_status(
    observed_group: ObservedControllerGroup, selector: str, users: tuple[str, ...], old: Mapping[str, Any]
) -> dict[str, Any]:
    """The other status fields of a controller group. While no controller responds, leader and term keep their
    values."""
    kept: dict[str, Any] = {
        "leader": observed_group.quorum.leader or "",
        "term": observed_group.quorum.term or 0,
    }
    if not observed_group.quorum.answered:
        kept = {key: old.get(key, value) for key, value in kept.items()}
    return {
        "replicas": len(observed_group.pods),
        TARGET: len(observed_group.pods),
        "readyReplicas": observed_group.ready,
        "ready": f"{observed_group.ready}/{observed_group.wanted}",
        "selector": selector,
        **kept,
        **_template_status(observed_group.image, observed_group.rendered.adopted),
        "brokerGroups": sorted(users),
    }
