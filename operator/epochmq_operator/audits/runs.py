"""Reads the outcome of an audit's run, and writes it into the history."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochmq_operator.plans.ended_pods import termination_of, why_it_ended
from epochmq_operator.plans.objects import Manifest, metadata
from epochmq_operator.plans.scheduled_runs import ScheduledRun

MESSAGE_LENGTH_MAX = 1000
VERDICTS = ("healthy", "damaged", "undecided")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run. Without a verdict, `reason` says why, in CamelCase."""

    verdict: str = ""
    reason: str = ""
    message: str = ""
    severities: Mapping[str, int] | None = None
    stored: bool = False

    def entry(self, run: ScheduledRun, finished: str, report: str) -> dict[str, Any]:
        """The entry for the history."""
        found = self.severities or {}
        return {
            "number": run.number,
            "trigger": run.trigger,
            "started": run.started,
            "finished": finished,
            "verdict": self.verdict,
            "errors": int(found.get("error", 0)),
            "warnings": int(found.get("warning", 0)),
            "notes": int(found.get("note", 0)),
            "reason": self.reason,
            "message": self.message[:MESSAGE_LENGTH_MAX],
            "report": report if self.stored else "",
        }


def outcome_of(pod: Manifest) -> RunOutcome | None:
    """The outcome by the driver's pod; None while it runs."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase not in ("Succeeded", "Failed"):
        return None
    termination = termination_of(pod)
    if phase == "Succeeded" and termination.get("verdict") in VERDICTS:
        lines = termination.get("findings")
        severities = termination.get("severities")
        return RunOutcome(
            verdict=termination["verdict"],
            message="; ".join(map(str, lines)) if isinstance(lines, list) else "",
            severities={str(key): int(value) for key, value in severities.items()}
            if isinstance(severities, Mapping)
            else {},
            stored=termination.get("report") is True,
        )
    reason = "DeadlineExceeded" if status.get("reason") == "DeadlineExceeded" else "DriverFailed"
    return RunOutcome(reason=reason, message=f"{metadata(pod).get('name')}: {why_it_ended(pod)}")
