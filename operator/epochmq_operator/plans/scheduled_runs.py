"""Decides when the runs of a resource start, and keeps them in its status: the present run, the history of
ended ones, and the conditions.

A resource that runs something (an audit, a backup) does so once, on a schedule, or when an annotation asks
for it. Runs do not overlap."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from epochmq_operator.plans.conditions import (
    MESSAGE_LENGTH_MAX,
    Condition,
    ConditionType,
    outcome_conditions,
    seconds_of,
    timestamp,
)
from epochmq_operator.plans.effects import (
    CreateEvent,
    Delete,
    Effect,
    EventType,
    PatchStatus,
    ReconciliationResult,
)
from epochmq_operator.plans.objects import Manifest, annotation, digest, metadata, status_of
from epochmq_operator.resources import cron

ASKED = "asked "
"""What the trigger of a run begins with that an annotation asked for."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """A present run. `trigger` is what started it: `once`, a time of the schedule, or `asked` with the
    annotation's value. `step` and `message` are for users."""

    number: int
    started: str
    trigger: str
    step: str = ""
    message: str = ""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> ScheduledRun | None:
        """Reads a status; None without a run."""
        found = status.get("run")
        if not isinstance(found, Mapping) or type(found.get("number")) is not int:
            return None
        texts = {key: str(found.get(key, "")) for key in ("started", "trigger", "step", "message")}
        return cls(number=found["number"], **texts)

    def at_step(self, step: str, message: str) -> ScheduledRun:
        """The run at another step."""
        return replace(self, step=step, message=message)

    def document(self) -> dict[str, Any]:
        """The value for the status."""
        return {
            "number": self.number,
            "started": self.started,
            "trigger": self.trigger,
            "step": self.step,
            "message": self.message,
        }


def history_of(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The history in a status, newest first, without unusable entries."""
    found = status.get("history")
    entries = found if isinstance(found, list) else []
    return [one for one in entries if isinstance(one, Mapping) and type(one.get("number")) is int]


# When runs start


@dataclass(frozen=True, slots=True)
class RunSchedule:
    """When a resource runs: its schedule, whether it is suspended, and the name of the annotation that asks
    for a run: one starts when the value differs from that of the last start."""

    schedule: str | None
    suspend: bool
    asking: str

    def due(self, resource: Manifest, now: float) -> str:
        """The trigger of a run that is due now; empty: none is due. Triggers that were missed, while another
        run or no operator was running, start one run at most. `now` is in seconds since 1970."""
        if self.suspend:
            return ""
        history = history_of(status_of(resource))
        asked = annotation(resource, self.asking)
        if asked and asked != status_of(resource).get("askedFor"):
            return f"{ASKED}{asked}"
        if self.schedule is None:
            return "" if history else "once"
        began = seconds_of(metadata(resource).get("creationTimestamp")) or now
        latest = seconds_of(history[0].get("finished")) if history else None
        after = max(began, latest or 0.0)
        found = cron.parse_schedule(self.schedule).last_between(after, now)
        return "" if found is None else timestamp(found)

    def next_due(self, now: float) -> str:
        """The next time of the schedule; empty without one."""
        if self.schedule is None or self.suspend:
            return ""
        found = cron.parse_schedule(self.schedule).next_after(now)
        return "" if found is None else timestamp(found)


def new_run(status: Mapping[str, Any], trigger: str, step: str, now: float) -> ScheduledRun:
    """The run that a trigger starts. Its number is greater than those of the history."""
    number = max([0, *(one["number"] for one in history_of(status))]) + 1
    return ScheduledRun(number, timestamp(now), trigger, step, "")


@dataclass(frozen=True, slots=True)
class RunStatuses:
    """How a kind of resource that runs something writes its status: during a run, and between runs with the
    time of the next one."""

    running: Callable[[ScheduledRun], dict[str, Any]]
    idle: Callable[[str], dict[str, Any]]


def between_runs(
    resource: Manifest,
    schedule: RunSchedule,
    statuses: RunStatuses,
    leftovers: Iterable[Delete],
    *,
    first_step: str,
    now: float,
    requeue_after_s: float,
) -> ReconciliationResult:
    """Between runs: deletes what former runs left, and then starts a run if one is due."""
    effects: list[Effect] = list(leftovers)
    status = status_of(resource)
    trigger = schedule.due(resource, now) if not effects else ""
    if trigger:
        begun = statuses.running(new_run(status, trigger, first_step, now))
        if trigger.startswith(ASKED):
            begun["askedFor"] = trigger.removeprefix(ASKED)
        return ReconciliationResult((PatchStatus(begun),), 0.0)
    idle = statuses.idle(schedule.next_due(now))
    if idle != status:
        effects.insert(0, PatchStatus(idle))
    return ReconciliationResult(tuple(effects), requeue_after_s)


# Conditions


@dataclass(frozen=True, slots=True)
class RunCondition:
    """A condition of a resource that runs something."""

    type: str
    status: str
    reason: str
    message: str = ""


def with_conditions(
    resource: Manifest, status: dict[str, Any], conditions: list[RunCondition], now: float
) -> dict[str, Any]:
    """The status with these conditions; other conditions stay."""
    generation = int(metadata(resource).get("generation") or 0)
    before = status.get("conditions")
    known = {one.get("type"): one for one in before or () if isinstance(one, Mapping)}
    for one in conditions:
        old = known.get(one.type, {})
        same = old.get("status") == one.status and isinstance(old.get("lastTransitionTime"), str)
        known[one.type] = {
            "type": one.type,
            "status": one.status,
            "reason": one.reason,
            "message": one.message[:MESSAGE_LENGTH_MAX],
            "observedGeneration": generation,
            "lastTransitionTime": old["lastTransitionTime"] if same else timestamp(now),
        }
    status["conditions"] = list(known.values())
    status["observedGeneration"] = generation
    return status


def conditions_for_tools(
    reason: str, message: str, *, holds: bool = False, failed: bool = False
) -> list[RunCondition]:
    """The conditions Ready, Reconciling and Stalled. A resource is ready when nothing runs and the last run
    has a result, whatever that is."""
    ready = Condition(ConditionType.READY, holds, reason, message)
    found = (ready, *outcome_conditions(ready, failed=failed))
    return [RunCondition(str(one.type), one.status, one.reason, one.message) for one in found]


def invalid(resource: Manifest, fault: str, now: float, requeue_after_s: float) -> ReconciliationResult:
    """The result for an invalid resource."""
    status = dict(status_of(resource)) | {"phase": "Invalid"}
    holds = [RunCondition("Progressing", "False", "InvalidSpec", fault)]
    holds += conditions_for_tools("InvalidSpec", fault, failed=True)
    status = with_conditions(resource, status, holds, now)
    if status == resource.get("status"):
        return ReconciliationResult((), requeue_after_s)
    key = f"{metadata(resource).get('uid')}/invalid/{digest(fault)}"
    return ReconciliationResult(
        (CreateEvent(EventType.WARNING, "InvalidSpec", fault, key), PatchStatus(status)), requeue_after_s
    )
