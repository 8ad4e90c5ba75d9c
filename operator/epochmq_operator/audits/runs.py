"""Reads and writes the runs in an audit's status: the running one, and the history."""

# pure: data in, data out.

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from epochmq_operator.plans.objects import Manifest, metadata

MESSAGE_LENGTH_MAX = 1000
VERDICTS = ("healthy", "damaged", "undecided")


@dataclass(frozen=True, slots=True)
class AuditRun:
    """A running audit. `trigger` is what started it: `once`, a time of the schedule, or `asked` with the
    annotation's value. `step` and `message` are for users."""

    number: int
    started: str
    trigger: str
    step: str = ""
    message: str = ""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> AuditRun | None:
        """Reads a status; None without a running audit."""
        found = status.get("run")
        if not isinstance(found, Mapping) or type(found.get("number")) is not int:
            return None
        texts = {key: str(found.get(key, "")) for key in ("started", "trigger", "step", "message")}
        return cls(number=found["number"], **texts)

    def at_step(self, step: str, message: str) -> AuditRun:
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


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run. Without a verdict, `reason` says why, in CamelCase."""

    verdict: str = ""
    reason: str = ""
    message: str = ""
    severities: Mapping[str, int] | None = None
    stored: bool = False

    def entry(self, run: AuditRun, finished: str, report: str) -> dict[str, Any]:
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


def history_of(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The history in a status, newest first, without unusable entries."""
    found = status.get("history")
    entries = found if isinstance(found, list) else []
    return [one for one in entries if isinstance(one, Mapping) and type(one.get("number")) is int]


def outcome_of(pod: Manifest) -> RunOutcome | None:
    """The outcome by the driver's pod; None while it runs."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase not in ("Succeeded", "Failed"):
        return None
    termination = _json_object(_terminated(pod).get("message"))
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


def why_it_ended(pod: Manifest) -> str:
    """Why a pod ended, by its own termination message if it left one."""
    status, ended = pod.get("status") or {}, _terminated(pod)
    why = _json_object(ended.get("message")).get("error") or status.get("message") or ended.get("message")
    if why:
        return str(why)
    code, signal = ended.get("exitCode"), ended.get("reason")
    if code is None:
        return str(status.get("reason") or "the pod ended")
    return f"exit status {code}" + (f" ({signal})" if signal else "")


def _terminated(pod: Manifest) -> Mapping[str, Any]:
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        if found := (one.get("state") or {}).get("terminated"):
            return dict(found)
    return {}


def _json_object(text: object) -> Mapping[str, Any]:
    try:
        found = json.loads(str(text))
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}
