"""Generates the definition and the reference of a kind that is no group, such as an audit or a topic."""

# pure: data in, data and text out.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from epochmq_operator.crd.definition import root_schema
from epochmq_operator.crd.reference import default_of, fields_below
from epochmq_operator.crd.schema import Schema, to_structural
from epochmq_operator.resources import API_GROUP, VERSION
from epochmq_operator.resources.rules import ValidationRule


@dataclass(frozen=True, slots=True)
class SimpleKind:
    """A kind: its models, rules, status and columns. `expected` says what each field accepts, in words;
    `inner` is the list in the status whose entries the reference describes."""

    kind: str
    short_name: str
    model: type[BaseModel]
    spec: type[BaseModel]
    rules: tuple[ValidationRule, ...]
    expected: Mapping[str, str]
    status: Schema
    columns: list[dict[str, Any]]
    inner: str

    @property
    def plural(self) -> str:
        """The kind's name in paths."""
        return f"{self.kind.lower()}s"


def text(description: str) -> Schema:
    """The schema of a text."""
    return {"description": description, "type": "string"}


def number(description: str) -> Schema:
    """The schema of a whole number."""
    return {"description": description, "type": "integer", "format": "int64"}


def definition_of(kind: SimpleKind) -> Schema:
    """The CustomResourceDefinition, as for `kubectl apply`."""
    document = kind.model.model_json_schema(by_alias=True)
    spec = to_structural(document["properties"]["spec"], document["$defs"])
    for rule in kind.rules:
        if rule.path:
            part = spec
            for name in rule.path.split(".")[1:]:
                part = part["properties"][name]
            part.setdefault("x-kubernetes-validations", []).append(
                {"rule": rule.cel, "message": rule.message}
            )
    rules = [{"rule": rule.cel, "message": rule.message} for rule in kind.rules if not rule.path]
    schema = root_schema(kind.model, spec, kind.status, needed=["spec"], rules=rules)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short_name],
                "categories": ["epochmq"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": kind.columns,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def reference_of(kind: SimpleKind) -> Iterator[str]:
    """The kind's part of the reference, in Markdown."""
    (version,) = definition_of(kind)["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    required = spec.get("required", [])
    yield f"## {kind.kind}\n\n{(kind.model.__doc__ or '').strip()} On Kubernetes alone.\n"
    yield "| field | | values | default |\n|---|---|---|---|"
    order = [info.alias or key for key, info in kind.spec.model_fields.items()]
    for name in order:
        for path, field in fields_below(f"spec.{name}", spec["properties"][name]):
            default = "required" if path == f"spec.{name}" and name in required else default_of(field)
            values = (
                ", ".join(f"`{value}`" for value in field["enum"])
                if "enum" in field
                else kind.expected.get(path) or ("" if "properties" in field else field.get("type", ""))
            ).replace("|", "\\|")
            yield f"| `{path}` | {field.get('description', '')} | {values} | {default} |"
    yield "\nBesides values of another type, the API server rejects:\n"
    yield "| field | message |\n|---|---|"
    for rule in kind.rules:
        yield f"| `{rule.path or 'the resource'}` | {rule.message} |"
    columns = ", ".join(
        f"{one['name']}{' (with `-o wide`)' if one.get('priority') else ''}" for one in kind.columns
    )
    yield f"\n`kubectl get {kind.plural}` shows {columns}.\n"
    yield "| field of `status` | |\n|---|---|"
    for name, field in kind.status["properties"].items():
        yield f"| `{name}` | {field['description']} |"
    entries = kind.status["properties"][kind.inner]["items"]["properties"]
    inner = ", ".join(f"`{name}`" for name in entries)
    yield f"\nAn entry of `{kind.inner}` has {inner}.\n"
