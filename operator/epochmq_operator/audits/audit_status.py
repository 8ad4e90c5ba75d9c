"""Builds the status of an audit. It holds nothing that changes by itself."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochmq_operator.audits.runs import AuditRun, RunOutcome, history_of
from epochmq_operator.plans.conditions import (
    MESSAGE_LENGTH_MAX,
    Condition,
    ConditionType,
    outcome_conditions,
    timestamp,
)
from epochmq_operator.plans.effects import CreateEvent, EventType, PatchStatus, ReconciliationResult
from epochmq_operator.plans.objects import Manifest, digest, metadata
from epochmq_operator.resources.audit import BrokerGroupAudit


@dataclass(frozen=True, slots=True)
class _AuditCondition:
    type: str
    status: str
    reason: str
    message: str = ""


def _old(resource: Manifest) -> dict[str, Any]:
    found = resource.get("status")
    return dict(found) if isinstance(found, Mapping) else {}


def _generation(resource: Manifest) -> int:
    return int(metadata(resource).get("generation") or 0)


def _with(
    resource: Manifest, status: dict[str, Any], conditions: list[_AuditCondition], now: float
) -> dict[str, Any]:
    """The status with these conditions; other conditions stay."""
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
            "observedGeneration": _generation(resource),
            "lastTransitionTime": old["lastTransitionTime"] if same else timestamp(now),
        }
    status["conditions"] = list(known.values())
    status["observedGeneration"] = _generation(resource)
    return status


def _for_tools(
    reason: str, message: str, *, holds: bool = False, failed: bool = False
) -> list[_AuditCondition]:
    """The conditions Ready, Reconciling and Stalled. An audit is ready when none runs and the last one has a
    verdict, whatever that is."""
    ready = Condition(ConditionType.READY, holds, reason, message)
    found = (ready, *outcome_conditions(ready, failed=failed))
    return [_AuditCondition(str(one.type), one.status, one.reason, one.message) for one in found]


def running(
    audit: BrokerGroupAudit, resource: Manifest, run: AuditRun, rejection: str, now: float
) -> dict[str, Any]:
    """The status during a run."""
    status = _old(resource) | {"phase": "Running", "run": run.document()}
    status.pop("nextRun", None)
    message = rejection or f"audit {run.number}: {run.message or 'starting'}"
    reason = "Refused" if rejection else run.step.capitalize()
    conditions = [_AuditCondition("Progressing", "True", reason, message)]
    return _with(resource, status, conditions + _for_tools(reason, message), now)


def idle(audit: BrokerGroupAudit, resource: Manifest, next_run: str, now: float) -> dict[str, Any]:
    """The status between runs."""
    status = _old(resource)
    history = history_of(status)
    status.pop("run", None)
    status.pop("nextRun", None)
    if next_run:
        status["nextRun"] = next_run
    if audit.spec.suspend:
        status["phase"] = "Suspended"
    elif not history:
        status["phase"] = "Waiting"
    else:
        status["phase"] = "Done" if history[0].get("verdict") else "Failed"
    status["history"] = history[: audit.spec.history_limit]
    waits = f"the next audit is due at {next_run}" if next_run else "no audit is due"
    reason = "Suspended" if audit.spec.suspend else "Idle"
    conditions = [_AuditCondition("Progressing", "False", reason, waits)]
    failed = status["phase"] == "Failed"
    message = str(history[0].get("message", "")) if failed else waits
    conditions += _for_tools(status["phase"], message, holds=not failed, failed=failed)
    return _with(resource, status, conditions, now)


def ended(
    audit: BrokerGroupAudit,
    resource: Manifest,
    run: AuditRun,
    outcome: RunOutcome,
    report: str,
    next_run: str,
    now: float,
) -> dict[str, Any]:
    """The status after a run. A run without a verdict removes the former verdict, which may no longer hold.
    The history keeps it."""
    status = _old(resource)
    former = next((one for one in history_of(status) if one.get("verdict")), None)
    entry = outcome.entry(run, timestamp(now), report)
    status.pop("run", None)
    status["history"] = [entry, *history_of(status)][: audit.spec.history_limit]
    status["lastFinished"] = timestamp(now)
    message = outcome.message or "no findings"
    if outcome.verdict:
        status |= {"phase": "Done", "verdict": outcome.verdict, "errors": entry["errors"]}
        status["report"] = entry["report"]
        healthy = {"healthy": "True", "damaged": "False"}.get(outcome.verdict, "Unknown")
        conditions = [
            _AuditCondition("Complete", "True", "Verdict", f"audit {run.number}: {outcome.verdict}"),
            _AuditCondition("Healthy", healthy, outcome.verdict.capitalize(), message),
        ]
    else:
        status["phase"] = "Failed"
        status.pop("verdict", None)
        status.pop("errors", None)
        conditions = [_AuditCondition("Complete", "False", outcome.reason, message)]
        if former is not None:
            stale = f"audit {run.number} has no verdict; audit {former['number']} was {former['verdict']}"
            conditions.append(_AuditCondition("Healthy", "Unknown", outcome.reason, stale))
    if next_run:
        status["nextRun"] = next_run
    waits = f"the next audit is due at {next_run}" if next_run else "no audit is due"
    conditions.append(_AuditCondition("Progressing", "False", "Idle", waits))
    failed = not outcome.verdict
    conditions += _for_tools(status["phase"], message if failed else waits, holds=not failed, failed=failed)
    return _with(resource, status, conditions, now)


def invalid(resource: Manifest, fault: str, now: float, requeue_after_s: float) -> ReconciliationResult:
    """The result for an invalid resource."""
    status = _old(resource) | {"phase": "Invalid"}
    holds = [_AuditCondition("Progressing", "False", "InvalidSpec", fault)]
    holds += _for_tools("InvalidSpec", fault, failed=True)
    status = _with(resource, status, holds, now)
    if status == resource.get("status"):
        return ReconciliationResult((), requeue_after_s)
    key = f"{metadata(resource).get('uid')}/invalid/{digest(fault)}"
    return ReconciliationResult(
        (CreateEvent(EventType.WARNING, "InvalidSpec", fault, key), PatchStatus(status)), requeue_after_s
    )
