"""Builds conditions by Kubernetes' conventions: one of each type; its time changes only with its status."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

MESSAGE_LENGTH_MAX = 1000


class ConditionType(StrEnum):
    """The types of a group's conditions."""

    READY = "Ready"
    QUORUM_HEALTHY = "QuorumHealthy"
    IN_SYNC = "InSync"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    PAUSED = "Paused"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `holds` is None for Unknown. `reason` is one CamelCase word, `message` a sentence."""

    type: ConditionType
    holds: bool | None
    reason: str
    message: str = ""

    @property
    def status(self) -> str:
        """The value of the field `status`."""
        return "Unknown" if self.holds is None else str(self.holds)


def outcome_conditions(ready: Condition, *, failed: bool) -> tuple[Condition, Condition]:
    """The conditions Reconciling and Stalled of a resource that has no plan. `failed`: it becomes ready only
    when a person changes something."""
    stalled, pending = not ready.holds and failed, not ready.holds and not failed
    return (
        Condition(ConditionType.RECONCILING, pending, ready.reason, ready.message if pending else ""),
        Condition(ConditionType.STALLED, stalled, ready.reason, ready.message if stalled else ""),
    )


def timestamp(now: float) -> str:
    """A time in seconds since 1970, as Kubernetes writes it."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: object) -> float | None:
    """A time in Kubernetes' format, in seconds since 1970; None for anything else."""
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def merge_conditions(
    before: Iterable[Mapping[str, Any]], wanted: Iterable[Condition], generation: int, now: float
) -> list[dict[str, Any]]:
    """The conditions for a status. `before` are the present ones, which may have any shape."""
    known = {one.get("type"): one for one in before if isinstance(one, Mapping)}
    made = []
    for condition in wanted:
        old = known.get(str(condition.type), {})
        same = old.get("status") == condition.status and isinstance(old.get("lastTransitionTime"), str)
        made.append(
            {
                "type": str(condition.type),
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message[:MESSAGE_LENGTH_MAX],
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else timestamp(now),
            }
        )
    return made
