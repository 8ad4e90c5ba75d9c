"""Reads the outcome of a backup's run from its pod, and writes it into the history."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.ended_pods import number_in, termination_of, why_it_ended
from epochmq_operator.plans.objects import Manifest, metadata
from epochmq_operator.plans.scheduled_runs import ScheduledRun

MESSAGE_LENGTH_MAX = 1000


@dataclass(frozen=True, slots=True)
class BackupOutcome:
    """The outcome of a run. `taken` is what the pod's program says of its backup. Without a backup it is
    empty, and `reason` says why, in CamelCase."""

    taken: Mapping[str, Any] | None = None
    reason: str = ""
    message: str = ""

    def entry(self, run: ScheduledRun, finished: str) -> dict[str, Any]:
        """The entry for the history."""
        found = self.taken or {}
        stored_ms = number_in(found, "lastStoredMs")
        numbers = (
            {}
            if self.taken is None
            else {
                "logStart": number_in(found, "logStart"),
                "logEnd": number_in(found, "logEnd"),
                "lastMessage": timestamp(stored_ms / 1000) if stored_ms else "",
                "bytes": number_in(found, "bytes"),
                "uploadedBytes": number_in(found, "uploadedBytes"),
                "deleted": number_in(found, "pruned"),
            }
        )
        return {
            "number": run.number,
            "trigger": run.trigger,
            "started": run.started,
            "finished": finished,
            "backup": str(found.get("id", "")),
            "parent": str(found.get("parent", "")),
            "replica": str(found.get("replica", "")),
            **numbers,
            "reason": self.reason,
            "message": (self.message or str(found.get("warning", "")))[:MESSAGE_LENGTH_MAX],
        }


def outcome_of(pod: Manifest) -> BackupOutcome | None:
    """The outcome by the pod of a run; None while it runs."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase not in ("Succeeded", "Failed"):
        return None
    found = termination_of(pod)
    if phase == "Succeeded" and isinstance(found.get("id"), str):
        return BackupOutcome(taken=found)
    reason = "DeadlineExceeded" if status.get("reason") == "DeadlineExceeded" else "PodFailed"
    return BackupOutcome(reason=reason, message=f"{metadata(pod).get('name')}: {why_it_ended(pod)}")
