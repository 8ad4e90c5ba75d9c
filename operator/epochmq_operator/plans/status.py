"""What a group's status says. Nothing in it changes while nothing happens: no offsets, no clocks."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from epochmq_operator.plans.broker_steps import Brokers, troubles
from epochmq_operator.plans.conditions import Condition, Type
from epochmq_operator.plans.controller_steps import Controllers
from epochmq_operator.plans.steps import Progress

LISTED_MAX = 5


class Phase(StrEnum):
    """A group in a word."""

    CREATING = "Creating"
    READY = "Ready"
    SCALING = "Scaling"
    UPDATING = "Updating"
    HEALING = "Healing"
    BLOCKED = "Blocked"
    DEGRADED = "Degraded"
    PAUSED = "Paused"
    DELETING = "Deleting"
    INVALID = "Invalid"


PHASES: Mapping[str, Phase] = {
    "create": Phase.CREATING,
    "scale-up": Phase.SCALING,
    "update": Phase.UPDATING,
    "repair": Phase.HEALING,
    "heal": Phase.HEALING,
    "delete": Phase.DELETING,
}
"""What a plan that goes on makes of a group."""


def phase_of(progress: Progress, *, ready: bool, paused: bool) -> Phase:
    """The word for it."""
    if paused:
        return Phase.PAUSED
    if progress.unfinished and progress.state is not None:
        if progress.step is not None and progress.step.blocked:
            return Phase.DELETING if progress.state.name == "delete" else Phase.BLOCKED
        return PHASES.get(progress.state.name, Phase.UPDATING)
    return Phase.READY if ready else Phase.DEGRADED


def progressing(progress: Progress, outdated: list[str]) -> Condition:
    """Whether a plan goes on, at which step, or what it waits for."""
    step, state = progress.step, progress.state
    if step is None or state is None:
        if outdated:
            told = f"restart them one by one for what changed to hold: {_listed(outdated)}"
            return Condition(Type.PROGRESSING, False, "RestartPending", told)
        return Condition(Type.PROGRESSING, False, "AsWanted")
    if step.blocked:
        return Condition(Type.PROGRESSING, False, f"{step.reason}Blocked", step.missing)
    message = f"{state.name}: {step.message}" + (
        f", once this is over: {step.missing}" if step.missing else ""
    )
    return Condition(Type.PROGRESSING, True, step.reason, message)


def paused_condition(*, paused: bool) -> Condition:
    """Whether the operator keeps its hands off."""
    if not paused:
        return Condition(Type.PAUSED, False, "NotPaused")
    message = "nothing is changed until spec.paused and the annotation epochmq.io/paused are off"
    return Condition(Type.PAUSED, True, "Asked", message)


def degraded(progress: Progress, wrong: list[str], refusal: str, *, created: bool) -> Condition:
    """Whether something is worse than it was; a group that is being created was never better. `refusal` is
    what the API server said to what the operator last tried."""
    if refusal:
        return Condition(Type.DEGRADED, True, "Refused", refusal)
    if (
        progress.step is not None
        and progress.step.blocked
        and progress.step.name not in ("shrink", "members", "held")
    ):
        return Condition(Type.DEGRADED, True, f"{progress.step.reason}Blocked", progress.step.missing)
    if created and wrong:
        return Condition(Type.DEGRADED, True, "NotReady", _listed(wrong))
    return Condition(Type.DEGRADED, False, "AsWanted")


def _listed(lines: list[str]) -> str:
    more = f"; and {len(lines) - LISTED_MAX} more" if len(lines) > LISTED_MAX else ""
    return "; ".join(lines[:LISTED_MAX]) + more


def quorum_condition(leader: str | None, answered: int, ready: int, count: int) -> Condition:
    """Whether most controllers are there and one of them leads."""
    kind = Type.QUORUM_HEALTHY
    if ready * 2 <= count:
        return Condition(kind, False, "NoMajority", f"{ready} of {count} controllers are ready")
    if answered == 0:
        return Condition(kind, None, "NoAnswer", "no controller answers the operator")
    if leader is None:
        return Condition(kind, False, "NoLeader", "no controller leads")
    return Condition(kind, True, "Leads", f"{leader} leads")


def broker_conditions(seen: Brokers, progress: Progress, refusal: str, *, paused: bool) -> list[Condition]:
    """A broker group's."""
    wrong = troubles(seen.pods, seen.set_name)
    kept = seen.mastership
    if kept.known and kept.master_id is None:
        wrong.append("the group has no master")
    wanted = seen.group.spec.replicas
    ready = not wrong and seen.ready >= wanted
    if ready:
        first = Condition(
            Type.READY, True, "AllReplicasReady", f"{seen.ready} of {wanted} replicas are ready"
        )
    else:
        reason = "ReplicasNotReady" if seen.ready < wanted else "NoMaster"
        first = Condition(
            Type.READY, False, reason, _listed(wrong) or f"{seen.ready} of {wanted} replicas are ready"
        )
    controllers_ready = sum(1 for pod in seen.controller_pods if pod is not None and pod.ready)
    members = list(kept.sync_state_set)
    if seen.in_sync is None:
        in_sync = Condition(Type.IN_SYNC, None, "NoAnswer", "nobody says who is in sync")
    else:
        said = f"{len(members)} of {seen.count} replicas are in the SyncStateSet {members}"
        in_sync = Condition(Type.IN_SYNC, seen.in_sync, "AllInSync" if seen.in_sync else "Behind", said)
    return [
        first,
        quorum_condition(
            seen.quorum.leader, seen.quorum.answered, controllers_ready, max(len(seen.controller_pods), 1)
        ),
        in_sync,
        progressing(progress, seen.outdated),
        degraded(progress, wrong, refusal, created=seen.created),
        paused_condition(paused=paused),
    ]


def broker_status(seen: Brokers, selector: str, old: Mapping[str, Any]) -> dict[str, Any]:
    """A broker group's figures. While nobody says who is the master, the old ones stand."""
    kept: dict[str, Any] = {
        "master": seen.mastership.master,
        "masterEpoch": seen.mastership.epoch,
        "syncStateSet": list(seen.mastership.sync_state_set),
    }
    if not seen.mastership.known:
        kept = {key: old.get(key, value) for key, value in kept.items()}
    return {
        "replicas": seen.count,
        "readyReplicas": seen.ready,
        "ready": f"{seen.ready}/{seen.group.spec.replicas}",
        "selector": selector,
        **kept,
        "controllerGroup": seen.group.spec.controller_group,
    }


def controller_conditions(
    seen: Controllers, progress: Progress, refusal: str, *, paused: bool
) -> list[Condition]:
    """A controller group's."""
    wrong = seen.troubles
    quorum = quorum_condition(seen.quorum.leader, seen.quorum.answered, seen.ready, len(seen.pods))
    if quorum.holds is False:
        wrong = [quorum.message, *wrong]
    if not wrong:
        first = Condition(
            Type.READY, True, "AllReady", f"{seen.ready} of {seen.wanted} controllers are ready"
        )
    else:
        first = Condition(Type.READY, False, "NotReady", _listed(wrong))
    return [
        first,
        quorum,
        progressing(progress, seen.outdated),
        degraded(progress, wrong, refusal, created=seen.created),
        paused_condition(paused=paused),
    ]


def controller_status(
    seen: Controllers, selector: str, users: tuple[str, ...], old: Mapping[str, Any]
) -> dict[str, Any]:
    """A controller group's figures. While no controller answers, its leader is the last one known."""
    kept: dict[str, Any] = {"leader": seen.quorum.leader or "", "term": seen.quorum.term or 0}
    if not seen.quorum.answered:
        kept = {key: old.get(key, value) for key, value in kept.items()}
    return {
        "replicas": len(seen.pods),
        "readyReplicas": seen.ready,
        "ready": f"{seen.ready}/{seen.wanted}",
        "selector": selector,
        **kept,
        "brokerGroups": sorted(users),
    }
