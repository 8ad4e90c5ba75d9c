"""Defines the status and the columns of `BrokerGroupAudit` in the API server."""

# pure: plain data.

from __future__ import annotations

from typing import Any

from epochmq_operator.crd.schema import Schema
from epochmq_operator.crd.simple_kind import SimpleKind, definition_of, number, text
from epochmq_operator.crd.status import CONDITIONS, column
from epochmq_operator.resources.audit import (
    AUDIT_KIND,
    AUDIT_RULES,
    EXPECTED_OF_AUDITS,
    BrokerGroupAudit,
    BrokerGroupAuditSpec,
)

AUDIT_CONDITIONS = ("Progressing", "Complete", "Healthy", "Ready", "Reconciling", "Stalled")


_RUN: Schema = {
    "number": number("Number of the run, counted for each resource."),
    "started": text("Time when it began."),
    "finished": text("Time when it ended."),
    "verdict": text("healthy, damaged or undecided; empty without a verdict."),
    "errors": number("Number of errors among the findings."),
    "warnings": number("Number of warnings among the findings."),
    "notes": number("Number of notes among the findings."),
    "reason": text("Reason for a missing verdict, in CamelCase."),
    "message": text("First findings, or explanation of a missing verdict."),
    "report": text("ConfigMap with summary.json and report.html.gz."),
}

AUDIT_STATUS: Schema = {
    "description": "Observed state, written by the operator only.",
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "observedGeneration": number("Generation of the resource that this status describes."),
        "phase": text("Summary phase: Waiting, Running, Done, Failed, Suspended or Invalid."),
        "verdict": text("Verdict of the last audit; absent if it failed. history has the former ones."),
        "errors": number("Number of errors that the last audit found; absent if it failed."),
        "lastFinished": text("Time when the last audit ended."),
        "report": text("ConfigMap with the last report."),
        "nextRun": text("Time when the next audit is due."),
        "run": {
            "description": "The running audit and its step.",
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        },
        "history": {
            "description": "The last audits, newest first.",
            "type": "array",
            "maxItems": 100,
            "x-kubernetes-list-type": "atomic",
            "items": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": _RUN,
            },
        },
        "conditions": {
            **CONDITIONS,
            "description": f"Conditions of the audit: {', '.join(AUDIT_CONDITIONS)}.",
        },
    },
}

AUDIT_COLUMNS: list[dict[str, Any]] = [
    column("Group", ".spec.brokerGroup"),
    column("Schedule", ".spec.schedule"),
    column("Phase", ".status.phase"),
    column("Verdict", ".status.verdict"),
    column("Errors", ".status.errors", "integer"),
    column("Last", ".status.lastFinished", "date"),
    column("Age", ".metadata.creationTimestamp", "date"),
    column("Report", ".status.report", priority=1),
]


AUDIT = SimpleKind(
    kind=AUDIT_KIND,
    short_name="bga",
    model=BrokerGroupAudit,
    spec=BrokerGroupAuditSpec,
    rules=AUDIT_RULES,
    expected=EXPECTED_OF_AUDITS,
    status=AUDIT_STATUS,
    columns=AUDIT_COLUMNS,
    inner="history",
)


def audit_definition() -> Schema:
    """The whole object for `kubectl apply`."""
    return definition_of(AUDIT)
