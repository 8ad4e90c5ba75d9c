"""Generates the definition of `BrokerGroupAudit` and its part of the reference."""

# pure: data in, data and text out.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from epochmq_operator.crd.definition import root_schema
from epochmq_operator.crd.reference import default_of, fields_below
from epochmq_operator.crd.schema import Schema, to_structural
from epochmq_operator.crd.status import CONDITIONS, column
from epochmq_operator.resources import API_GROUP, VERSION
from epochmq_operator.resources.audit import (
    AUDIT_KIND,
    AUDIT_RULES,
    EXPECTED_OF_AUDITS,
    BrokerGroupAudit,
    BrokerGroupAuditSpec,
)

AUDIT_CONDITIONS = ("Progressing", "Complete", "Healthy")


def _text(description: str) -> Schema:
    return {"description": description, "type": "string"}


def _number(description: str) -> Schema:
    return {"description": description, "type": "integer", "format": "int64"}


_RUN: Schema = {
    "number": _number("Number of the run, counted for each resource."),
    "started": _text("Time when it began."),
    "finished": _text("Time when it ended."),
    "verdict": _text("healthy, damaged or undecided; empty without a verdict."),
    "errors": _number("Number of errors among the findings."),
    "warnings": _number("Number of warnings among the findings."),
    "notes": _number("Number of notes among the findings."),
    "reason": _text("Reason for a missing verdict, in CamelCase."),
    "message": _text("First findings, or explanation of a missing verdict."),
    "report": _text("ConfigMap with summary.json and report.html.gz."),
}

AUDIT_STATUS: Schema = {
    "description": "Observed state, written by the operator only.",
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "observedGeneration": _number("Generation of the resource that this status describes."),
        "phase": _text("Summary phase: Waiting, Running, Done, Failed, Suspended or Invalid."),
        "verdict": _text("Verdict of the last audit; absent if it failed. history has the former ones."),
        "errors": _number("Number of errors that the last audit found; absent if it failed."),
        "lastFinished": _text("Time when the last audit ended."),
        "report": _text("ConfigMap with the last report."),
        "nextRun": _text("Time when the next audit is due."),
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


def audit_definition() -> Schema:
    """The whole object for `kubectl apply`."""
    singular = AUDIT_KIND.lower()
    document = BrokerGroupAudit.model_json_schema(by_alias=True)
    spec = to_structural(document["properties"]["spec"], document["$defs"])
    for rule in AUDIT_RULES:
        if rule.path:
            spec.setdefault("x-kubernetes-validations", []).append(
                {"rule": rule.cel, "message": rule.message}
            )
    rules = [{"rule": rule.cel, "message": rule.message} for rule in AUDIT_RULES if not rule.path]
    schema = root_schema(BrokerGroupAudit, spec, AUDIT_STATUS, needed=["spec"], rules=rules)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "names": {
                "kind": AUDIT_KIND,
                "listKind": f"{AUDIT_KIND}List",
                "plural": f"{singular}s",
                "singular": singular,
                "shortNames": ["bga"],
                "categories": ["epochmq"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": AUDIT_COLUMNS,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def audit_reference() -> Iterator[str]:
    """The audit's part of the reference, in Markdown."""
    (version,) = audit_definition()["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    required = spec.get("required", [])
    yield f"## {AUDIT_KIND}\n\n{(BrokerGroupAudit.__doc__ or '').strip()} On Kubernetes alone.\n"
    yield "| field | | values | default |\n|---|---|---|---|"
    for name in (info.alias or key for key, info in BrokerGroupAuditSpec.model_fields.items()):
        for path, field in fields_below(f"spec.{name}", spec["properties"][name]):
            default = "required" if path == f"spec.{name}" and name in required else default_of(field)
            values = (
                ", ".join(f"`{value}`" for value in field["enum"])
                if "enum" in field
                else EXPECTED_OF_AUDITS.get(path) or ("" if "properties" in field else field.get("type", ""))
            )
            yield f"| `{path}` | {field.get('description', '')} | {values} | {default} |"
    yield "\nBesides values of another type, the API server rejects:\n"
    yield "| field | message |\n|---|---|"
    for rule in AUDIT_RULES:
        yield f"| `{rule.path or 'the resource'}` | {rule.message} |"
    columns = ", ".join(
        f"{one['name']}{' (with `-o wide`)' if one.get('priority') else ''}" for one in AUDIT_COLUMNS
    )
    yield f"\n`kubectl get {AUDIT_KIND.lower()}s` shows {columns}.\n"
    yield "| field of `status` | |\n|---|---|"
    for name, field in AUDIT_STATUS["properties"].items():
        yield f"| `{name}` | {field['description']} |"
    inner = ", ".join(f"`{name}`" for name in _RUN)
    yield f"\nAn entry of `history` has {inner}.\n"
