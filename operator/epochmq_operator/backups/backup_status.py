"""Builds the status of a BrokerGroupBackup. It holds nothing that changes by itself."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmq_operator.backups.outcomes import BackupOutcome
from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.objects import Manifest, status_of
from epochmq_operator.plans.scheduled_runs import (
    RunCondition,
    ScheduledRun,
    conditions_for_tools,
    history_of,
    with_conditions,
)
from epochmq_operator.resources.backup import BrokerGroupBackup

SHOWN = ("backup", "logEnd", "lastMessage", "bytes")
"""The fields of the last backup that the status repeats from its entry in the history."""


def running(
    backup: BrokerGroupBackup, resource: Manifest, run: ScheduledRun, rejection: str, now: float
) -> dict[str, Any]:
    """The status during a run."""
    status = dict(status_of(resource)) | {"phase": "Running", "run": run.document()}
    status.pop("nextRun", None)
    message = rejection or f"backup {run.number}: {run.message or 'starting'}"
    reason = "Refused" if rejection else run.step.capitalize()
    conditions = [RunCondition("Progressing", "True", reason, message)]
    return with_conditions(resource, status, conditions + conditions_for_tools(reason, message), now)


def idle(backup: BrokerGroupBackup, resource: Manifest, next_run: str, now: float) -> dict[str, Any]:
    """The status between runs."""
    status = dict(status_of(resource))
    history = history_of(status)
    status.pop("run", None)
    if backup.spec.suspend:
        status["phase"] = "Suspended"
    elif not history:
        status["phase"] = "Waiting"
    else:
        status["phase"] = "Done" if history[0].get("backup") else "Failed"
    status["history"] = history[: backup.spec.history_limit]
    return _between_runs(backup, resource, status, next_run, now)


def ended(
    backup: BrokerGroupBackup,
    resource: Manifest,
    run: ScheduledRun,
    outcome: BackupOutcome,
    next_run: str,
    now: float,
) -> dict[str, Any]:
    """The status after a run. A run that failed takes nothing from the backups before it."""
    status = dict(status_of(resource))
    entry = outcome.entry(run, timestamp(now))
    status.pop("run", None)
    status["history"] = [entry, *history_of(status)][: backup.spec.history_limit]
    status["lastFinished"] = entry["finished"]
    if outcome.taken is not None:
        status |= {key: entry[key] for key in SHOWN}
        status |= {"phase": "Done", "lastSuccess": run.started}
        status.pop("error", None)
    else:
        status |= {"phase": "Failed", "error": entry["message"]}
    return _between_runs(backup, resource, status, next_run, now)


def _between_runs(
    backup: BrokerGroupBackup, resource: Manifest, status: dict[str, Any], next_run: str, now: float
) -> dict[str, Any]:
    status.pop("nextRun", None)
    if next_run:
        status["nextRun"] = next_run
    waits = f"the next backup is due at {next_run}" if next_run else "no backup is due"
    reason = "Suspended" if backup.spec.suspend else "Idle"
    conditions = [RunCondition("Progressing", "False", reason, waits)]
    failed = status["phase"] == "Failed"
    if status["history"]:
        conditions.append(_complete(status["history"][0]))
    message = str(status.get("error", "")) if failed else waits
    conditions += conditions_for_tools(status["phase"], message, holds=not failed, failed=failed)
    return with_conditions(resource, status, conditions, now)


def _complete(entry: Mapping[str, Any]) -> RunCondition:
    """Whether the last run has a backup."""
    if not entry.get("backup"):
        return RunCondition("Complete", "False", str(entry["reason"]), str(entry["message"]))
    what = f"run {entry['number']}: {entry['backup']}, up to offset {entry['logEnd']}"
    if entry.get("message"):
        return RunCondition("Complete", "True", "OldBackupsRemain", f"{what}; {entry['message']}")
    return RunCondition("Complete", "True", "Taken", what)
