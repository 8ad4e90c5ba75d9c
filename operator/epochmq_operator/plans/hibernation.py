"""Stops and starts all replicas of a group (`spec.hibernate`), while its volumes stay.

The replica with the highest ordinal stops first, and each only when the remaining ones have every
acknowledged message; a master among them hands its mastership over before. So replica 0 is the last one, and
the only member of the SyncStateSet. It starts first again and becomes the master; the others start one after
the other. The pods keep the configuration for all replicas: the group stores no message while it has fewer
replicas than each message needs. The controllers keep running."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from epochmq_operator.plans.objects import Manifest, metadata, status_of
from epochmq_operator.plans.observed_state import ObservedReplicaGroup, ObservedState
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.resources import REPLICAS_MAX, BrokerGroup

HIBERNATION = "hibernation"
"""The field of a group's status with the state of its hibernation; absent while the group is in use."""


class HibernationState(StrEnum):
    """The state of a group that hibernates or resumes."""

    HIBERNATING = "Hibernating"
    HIBERNATED = "Hibernated"
    RESUMING = "Resuming"


def hibernation_of(
    resource: Manifest, group: BrokerGroup, count: int, *, created: bool
) -> HibernationState | None:
    """The state of a group with this target number of replicas; None while the group is in use. A new group
    is created first."""
    if group.spec.hibernate and created:
        return HibernationState.HIBERNATING if count > 0 else HibernationState.HIBERNATED
    if status_of(resource).get(HIBERNATION) and count < group.spec.replicas:
        return HibernationState.RESUMING
    return None


def with_size(manifests: Iterable[Manifest], stateful_set: str, count: int) -> tuple[Manifest, ...]:
    """The manifests with this number of replicas in the StatefulSet."""
    return tuple(
        {**one, "spec": {**one["spec"], "replicas": count}}
        if one.get("kind") == "StatefulSet" and metadata(one).get("name") == stateful_set
        else one
        for one in manifests
    )


@dataclass(frozen=True, slots=True)
class HibernatingGroup:
    """What the steps follow from: the names of the pods that are to run, of all that the group can have, the
    state of the replica group, and whether controllers elect the master and have a leader."""

    state: HibernationState
    names: Sequence[str]
    possible: Sequence[str]
    replica_group: ObservedReplicaGroup
    elected: bool
    has_leader: bool

    @classmethod
    def of(
        cls,
        state: HibernationState,
        stateful_set: str,
        count: int,
        replica_group: ObservedReplicaGroup,
        *,
        elected: bool,
        has_leader: bool,
    ) -> HibernatingGroup:
        """The group with this StatefulSet and this target number of replicas."""
        possible = [f"{stateful_set}-{ordinal}" for ordinal in range(REPLICAS_MAX)]
        return cls(state, possible[:count], possible, replica_group, elected, has_leader)


def hibernation_steps(observed: ObservedState, group: HibernatingGroup) -> Iterator[PlanStep]:
    """The steps of a group that hibernates or resumes, in order."""
    if group.state is HibernationState.RESUMING:
        if group.names:
            yield _started(group)
        yield _start(group)
        return
    yield _stopped(observed, group)
    if group.names:
        yield _stop(group)


def _stopped(observed: ObservedState, group: HibernatingGroup) -> PlanStep:
    """Waits for the replica that was stopped last."""
    leaving = [
        name for name in group.possible[len(group.names) :] if observed.object("Pod", name) is not None
    ]
    members = len(group.replica_group.sync_state_set)
    # The last replica stays in the SyncStateSet, because it has every message.
    done = not leaving and not (group.elected and members > max(len(group.names), 1))
    what = f"{', '.join(leaving)} has gone" if leaving else "the SyncStateSet has the running replicas only"
    return PlanStep(
        StepKind.STOPPED, done, "Hibernating", f"waits until {what}", subject=str(len(group.names))
    )


def _stop(group: HibernatingGroup) -> PlanStep:
    *remaining, chosen = group.names
    return PlanStep(
        StepKind.STOP,
        False,
        "Hibernating",
        f"stops {chosen}, whose volume stays",
        _unsafe_to_stop(group, remaining, chosen),
        target=len(remaining),
        subject=chosen,
    )


def _unsafe_to_stop(group: HibernatingGroup, remaining: Sequence[str], chosen: str) -> str:
    """Why a replica must not stop yet; empty if it may."""
    known = group.replica_group
    if group.elected and not group.has_leader:
        return "the controllers report no leader"
    if known.master_id is None:
        return "the group has no master"
    if not remaining:
        return "" if known.master == chosen else f"{chosen} is not the master"
    # A master may not be ready because too few replicas are in sync.
    behind = [name for name in remaining if name not in known.in_sync_pods and name != known.master]
    return f"{', '.join(behind)} is not in sync" if behind else ""


def _started(group: HibernatingGroup) -> PlanStep:
    """Waits for the replica that was started last. It may not be ready, because too few are in sync."""
    last, known = group.names[-1], group.replica_group
    done = known.master_id is not None and (last in known.in_sync_pods or len(group.names) == 1)
    return PlanStep(StepKind.STARTED, done, "Resuming", f"waits until {last} is in sync", subject=last)


def _start(group: HibernatingGroup) -> PlanStep:
    chosen = group.possible[len(group.names)]
    waits = group.elected and not group.has_leader
    return PlanStep(
        StepKind.START,
        False,
        "Resuming",
        f"starts {chosen}",
        "the controllers report no leader" if waits else "",
        target=len(group.names) + 1,
        subject=chosen,
    )


def hibernation_status(state: HibernationState | None) -> Mapping[str, Any]:
    """The status field of a group in this state."""
    return {} if state is None else {HIBERNATION: str(state)}
