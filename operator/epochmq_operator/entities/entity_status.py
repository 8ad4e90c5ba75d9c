"""Reads and writes the status of a `Topic` or `User`: one record for each broker group, and the conditions
that tools wait for."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from epochmq_operator.plans.conditions import (
    Condition,
    ConditionType,
    merge_conditions,
    outcome_conditions,
)
from epochmq_operator.plans.objects import Manifest, is_deleting, metadata, status_of
from epochmq_operator.resources.entities import Entity

MESSAGE_LENGTH_MAX = 500


class GroupState(StrEnum):
    """The state of an entity in one broker group."""

    PENDING = "Pending"
    """It could not be compared: the group is missing, has no master, or does not respond."""
    SYNCED = "Synced"
    FAILED = "Failed"
    """A broker rejected a change, or another resource describes the same entity."""
    LEAVING = "Leaving"
    """It is to be deleted in this group."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The record of one broker group. `applied` is the generation (and, of a user, the Secret's version)
    that was applied last; empty before the first time. `reason` and `message` say why it is not Synced."""

    name: str
    state: GroupState = GroupState.PENDING
    applied: str = ""
    drifts: int = 0
    last_drift: str = ""
    reason: str = "Pending"
    message: str = ""

    def synced(self, applied: str) -> GroupRecord:
        """The record after the entity was found, or made, as desired."""
        return replace(self, state=GroupState.SYNCED, applied=applied, reason="Synced", message="")

    def drifted(self, differences: str) -> GroupRecord:
        """The record after the operator reverted a change that others made."""
        drift = differences[:MESSAGE_LENGTH_MAX]
        return replace(self.synced(self.applied), drifts=self.drifts + 1, last_drift=drift)

    def failed(self, state: GroupState, reason: str, message: str) -> GroupRecord:
        """The record after an attempt that failed."""
        return replace(self, state=state, reason=reason, message=message[:MESSAGE_LENGTH_MAX])

    def document(self) -> dict[str, Any]:
        """The record as the status holds it."""
        shown: dict[str, Any] = {"name": self.name, "state": str(self.state), "reason": self.reason}
        optional = {
            "applied": self.applied,
            "drifts": self.drifts,
            "lastDrift": self.last_drift,
            "message": self.message,
        }
        return {**shown, **{key: value for key, value in optional.items() if value}}


def _record(found: Mapping[str, Any]) -> GroupRecord:
    state = str(found.get("state", ""))
    drifts = found.get("drifts")
    return GroupRecord(
        name=str(found.get("name", "")),
        state=GroupState(state) if state in list(GroupState) else GroupState.PENDING,
        applied=str(found.get("applied", "")),
        drifts=drifts if isinstance(drifts, int) else 0,
        last_drift=str(found.get("lastDrift", "")),
        reason=str(found.get("reason", "Pending")),
        message=str(found.get("message", "")),
    )


@dataclass(slots=True)
class EntityRecord:
    """The records of an entity's broker groups, by name."""

    groups: dict[str, GroupRecord] = field(default_factory=dict)

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> EntityRecord:
        """Reads a status, which may have any shape."""
        found = status.get("brokerGroups")
        listed = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        return cls({record.name: record for record in map(_record, listed) if record.name})

    @property
    def all_synced(self) -> bool:
        """Whether every group is as desired."""
        return all(one.state is GroupState.SYNCED for one in self.groups.values())

    def status(self, resource: Manifest, entity: Entity, now: float) -> dict[str, Any]:
        """The status of the resource; `now` in seconds since 1970."""
        records = sorted(self.groups.values(), key=lambda one: one.name)
        synced = sum(one.state is GroupState.SYNCED for one in records)
        worst = [one for one in records if one.state is not GroupState.SYNCED]
        worst.sort(key=lambda one: one.state is not GroupState.FAILED)
        if not worst:
            ready = Condition(ConditionType.READY, True, "Synced", "every broker group is as desired")
        else:
            message = "; ".join(f"{one.name}: {one.message or 'not compared yet'}" for one in worst)
            ready = Condition(ConditionType.READY, False, worst[0].reason, message)
        phase = "Ready"
        if is_deleting(resource):
            phase = "Deleting"
        elif worst:
            failed = worst[0].state is GroupState.FAILED
            phase = worst[0].reason if worst[0].reason == "Conflict" else "Failed" if failed else "Pending"
        return {
            "observedGeneration": _generation(resource),
            "phase": phase,
            "name": entity.broker_side_name,
            "synced": f"{synced}/{len(records)}",
            "brokerGroups": [one.document() for one in records],
            "conditions": _conditions(resource, ready, failed=phase in ("Failed", "Conflict"), now=now),
        }

    def invalid_status(self, resource: Manifest, fault: str, now: float) -> dict[str, Any]:
        """The status of an invalid resource; the records stay."""
        ready = Condition(ConditionType.READY, False, "InvalidSpec", fault)
        return {
            **status_of(resource),
            "observedGeneration": _generation(resource),
            "phase": "Invalid",
            "conditions": _conditions(resource, ready, failed=True, now=now),
        }


def _generation(resource: Manifest) -> int:
    return int(metadata(resource).get("generation") or 0)


def _conditions(resource: Manifest, ready: Condition, *, failed: bool, now: float) -> list[dict[str, Any]]:
    """The conditions. `failed`: the brokers will not accept the entity until a person changes something."""
    before = status_of(resource).get("conditions")
    wanted = [ready, *outcome_conditions(ready, failed=failed)]
    return merge_conditions(before if isinstance(before, list) else (), wanted, _generation(resource), now)
