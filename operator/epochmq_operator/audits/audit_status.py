"""Builds the status of an audit. It holds nothing that changes by itself."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmq_operator.audits.runs import RunOutcome
from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.objects import Manifest
from epochmq_operator.plans.scheduled_runs import (
    RunCondition,
    ScheduledRun,
    conditions_for_tools,
    history_of,
    with_conditions,
)
from epochmq_operator.resources.audit import BrokerGroupAudit


def _old(resource: Manifest) -> dict[str, Any]:
    found = resource.get("status")
    return dict(found) if isinstance(found, Mapping) else {}


def running(
    audit: BrokerGroupAudit, resource: Manifest, run: ScheduledRun, rejection: str, now: float
) -> dict[str, Any]:
    """The status during a run."""
    status = _old(resource) | {"phase": "Running", "run": run.document()}
    status.pop("nextRun", None)
    message = rejection or f"audit {run.number}: {run.message or 'starting'}"
    reason = "Refused" if rejection else run.step.capitalize()
    conditions = [RunCondition("Progressing", "True", reason, message)]
    return with_conditions(resource, status, conditions + conditions_for_tools(reason, message), now)


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
    conditions = [RunCondition("Progressing", "False", reason, waits)]
    failed = status["phase"] == "Failed"
    message = str(history[0].get("message", "")) if failed else waits
    conditions += conditions_for_tools(status["phase"], message, holds=not failed, failed=failed)
    return with_conditions(resource, status, conditions, now)


def ended(
    audit: BrokerGroupAudit,
    resource: Manifest,
    run: ScheduledRun,
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
            RunCondition("Complete", "True", "Verdict", f"audit {run.number}: {outcome.verdict}"),
            RunCondition("Healthy", healthy, outcome.verdict.capitalize(), message),
        ]
    else:
        status["phase"] = "Failed"
        status.pop("verdict", None)
        status.pop("errors", None)
        conditions = [RunCondition("Complete", "False", outcome.reason, message)]
        if former is not None:
            stale = f"audit {run.number} has no verdict; audit {former['number']} was {former['verdict']}"
            conditions.append(RunCondition("Healthy", "Unknown", outcome.reason, stale))
    if next_run:
        status["nextRun"] = next_run
    waits = f"the next audit is due at {next_run}" if next_run else "no audit is due"
    conditions.append(RunCondition("Progressing", "False", "Idle", waits))
    failed = not outcome.verdict
    conditions += conditions_for_tools(
        status["phase"], message if failed else waits, holds=not failed, failed=failed
    )
    return with_conditions(resource, status, conditions, now)
